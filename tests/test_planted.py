"""Faults that people make when they derive gradients by hand, planted one by one in right formulas.

Each function has its right formulas, which must pass, and wrong ones, which must be convicted: by exact verdict, in
float32 and in float64, at generic inputs of ordinary size. Most are the right formula with one thing changed, so the
two stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from symcheck import Verdict, check

PASSES = {Verdict.OK, Verdict.ROUNDING}
EPS = 1e-3

Formula = Callable[..., Any]


@dataclass(frozen=True)
class Planted:
    """A function with right formulas and wrong ones.

    Attributes:
        function: of the inputs.
        shapes: of the real inputs.
        right: the formula by each input that has one.
        wrong: what the fault is called, the input, and the faulty formula.
        integers: integer and boolean inputs.
    """

    function: Callable[..., torch.Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    right: Mapping[str, Formula]
    wrong: Mapping[str, tuple[str, Formula]]
    integers: Mapping[str, torch.Tensor] | None = None

    def inputs(self, dtype):
        generator = torch.Generator().manual_seed(3)
        drawn = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in self.shapes.items()
        }
        return {name: x.to(dtype) for name, x in drawn.items()} | dict(self.integers or {})


# -- linear layer with mean squared error: r = x W' + b - y, loss = sum r^2 / N


def mse(x, w, b, y):
    return ((x @ w.t() + b - y) ** 2).mean()


def residual(x, w, b, y):
    return 2 * (x @ w.t() + b - y) / y.numel()


MSE = Planted(
    mse,
    {"x": (5, 3), "w": (2, 3), "b": (2,), "y": (5, 2)},
    {
        "x": lambda x, w, b, y: residual(x, w, b, y) @ w,
        "w": lambda x, w, b, y: residual(x, w, b, y).t() @ x,
        "b": lambda x, w, b, y: residual(x, w, b, y).sum(0),
        "y": lambda x, w, b, y: -residual(x, w, b, y),
    },
    {
        "sign": ("y", residual),
        "factor 2": ("w", lambda x, w, b, y: residual(x, w, b, y).t() @ x / 2),
        "missing 1/n": ("w", lambda x, w, b, y: 2 * (x @ w.t() + b - y).t() @ x),
        "n of the rows only": ("x", lambda x, w, b, y: 2 * (x @ w.t() + b - y) @ w / len(x)),
        "n - 1 for n": ("b", lambda x, w, b, y: 2 * (x @ w.t() + b - y).sum(0) / (y.numel() - 1)),
        "dropped path": ("w", lambda x, w, b, y: (2 * (x @ w.t() - y) / y.numel()).t() @ x),
        "missing broadcast sum": ("b", residual),
        "broadcast mean": ("b", lambda x, w, b, y: residual(x, w, b, y).mean(0)),
        "wrong axis": ("b", lambda x, w, b, y: residual(x, w, b, y)[:2].sum(1)),
    },
)


# -- a bilinear form of square matrices, where a transposition keeps the shape: sum(g * (a b))

PRODUCT = Planted(
    lambda a, b: a @ b,
    {"a": (3, 3), "b": (3, 3)},
    {"a": lambda a, b, cotangent: cotangent @ b.t(), "b": lambda a, b, cotangent: a.t() @ cotangent},
    {
        "transposed operand": ("a", lambda a, b, cotangent: cotangent @ b),
        "transposed result": ("b", lambda a, b, cotangent: cotangent.t() @ a),
        "swapped factors": ("b", lambda a, b, cotangent: cotangent @ a.t()),
        "swapped arguments": ("a", lambda a, b, cotangent: cotangent @ a.t()),
        "forgotten cotangent": ("b", lambda a, b, cotangent: a.t() @ torch.ones_like(cotangent)),
        "one entry off by 1e-5": ("a", lambda a, b, cotangent: off_at_one_place(cotangent @ b.t())),
    },
)


def off_at_one_place(gradient):
    there = torch.zeros_like(gradient)
    there[1, 2] = 1
    return gradient * (1 + 1e-5 * there)


# -- a quadratic form: x' A x has the gradient (A + A') x, and 2 A x only where A is symmetric

QUADRATIC = Planted(
    lambda x, a: x @ a @ x / 2,
    {"x": (4,), "a": (4, 4)},
    {"x": lambda x, a: (a + a.t()) @ x / 2, "a": lambda x, a: torch.outer(x, x) / 2},
    {
        "as if symmetric": ("x", lambda x, a: a @ x),
        "missing 1/2": ("a", lambda x, a: torch.outer(x, x)),
        "one of two paths": ("x", lambda x, a: a.t() @ x / 2),
    },
)


# -- softmax cross-entropy of logits z with class targets t

TARGETS = torch.tensor([2, 0, 1, 2, 3])


def logits_gradient(z, t):
    return (torch.softmax(z, 1) - F.one_hot(t, z.shape[1])) / len(z)


CROSS_ENTROPY = Planted(
    lambda z, t: F.cross_entropy(z, t),
    {"z": (5, 4)},
    {"z": logits_gradient},
    {
        "sign": ("z", lambda z, t: -logits_gradient(z, t)),
        "missing 1/n": ("z", lambda z, t: torch.softmax(z, 1) - F.one_hot(t, 4)),
        "by the classes": ("z", lambda z, t: (torch.softmax(z, 1) - F.one_hot(t, 4)) / 4),
        "wrong axis": ("z", lambda z, t: (torch.softmax(z, 0) - F.one_hot(t, 4)) / len(z)),
        "off-by-one index": ("z", lambda z, t: (torch.softmax(z, 1) - F.one_hot((t + 1) % 4, 4)) / len(z)),
        "only the target's term": ("z", lambda z, t: -F.one_hot(t, 4) * (1 - torch.softmax(z, 1)) / len(z)),
        "softmax twice": (
            "z",
            lambda z, t: (torch.softmax(torch.softmax(z, 1), 1) - F.one_hot(t, 4)) / len(z),
        ),
        "dropped maximum": (
            "z",
            lambda z, t: (torch.exp(z - z.amax(1, True)) / torch.exp(z).sum(1, True) - F.one_hot(t, 4)) / len(z),
        ),
    },
    {"t": TARGETS},
)


# -- Kullback-Leibler divergence of softmax(q) from the distribution softmax(p), summed over a row, mean over the batch

KL = Planted(
    lambda q, p: F.kl_div(q.log_softmax(1), p.softmax(1), reduction="batchmean"),
    {"q": (3, 4), "p": (3, 4)},
    {
        "q": lambda q, p: (q.softmax(1) - p.softmax(1)) / len(q),
        "p": lambda q, p: by_p(p.softmax(1), p.log_softmax(1) - q.log_softmax(1)) / len(q),
    },
    {
        "swapped arguments": ("q", lambda q, p: (p.softmax(1) - q.softmax(1)) / len(q)),
        "mean over all elements": ("q", lambda q, p: (q.softmax(1) - p.softmax(1)) / q.numel()),
        "no softmax Jacobian": ("p", lambda q, p: (p.log_softmax(1) - q.log_softmax(1) + 1) / len(q)),
        "dropped mean of the Jacobian": (
            "p",
            lambda q, p: p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1)) / len(q),
        ),
        "reverse divergence": ("p", lambda q, p: (p.softmax(1) - q.softmax(1)) / len(q)),
    },
)


def by_p(p, difference):
    return p * (difference - (p * difference).sum(1, keepdim=True))


# -- layer norm: s = 1 / sqrt(var + eps), n = (x - mean) s, h = g w, by x: s (h - mean h - n mean(h n))


def normed(x, correction=0, eps=EPS):
    return (x - x.mean(-1, True)) * inverse(x, correction, eps)


def inverse(x, correction=0, eps=EPS):
    return 1 / (x.var(-1, keepdim=True, correction=correction) + eps).sqrt()


def norm_by_x(x, h, n, s):
    return s * (h - h.mean(-1, True) - n * (h * n).mean(-1, True))


LAYER_NORM = Planted(
    lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS),
    {"x": (3, 5), "w": (5,), "b": (5,)},
    {
        "x": lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x), inverse(x)),
        "w": lambda x, w, cotangent: (cotangent * normed(x)).sum(0),
        "b": lambda x, w, cotangent: cotangent.sum(0),
    },
    {
        "n - 1 for n": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x, 1), inverse(x, 1))),
        "eps outside the root": (
            "x",
            lambda x, w, cotangent: norm_by_x(
                x,
                cotangent * w,
                (x - x.mean(-1, True)) / (x.std(-1, correction=0, keepdim=True) + EPS),
                1 / (x.std(-1, correction=0, keepdim=True) + EPS),
            ),
        ),
        "other eps": ("w", lambda x, w, cotangent: (cotangent * normed(x, eps=1e-5)).sum(0)),
        "eps left out": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x, eps=0), inverse(x, eps=0))),
        "detached statistics": ("x", lambda x, w, cotangent: inverse(x) * cotangent * w),
        "detached mean": (
            "x",
            lambda x, w, cotangent: (
                inverse(x) * (cotangent * w - normed(x) * (cotangent * w * normed(x)).mean(-1, True))
            ),
        ),
        "detached variance": (
            "x",
            lambda x, w, cotangent: inverse(x) * (cotangent * w - (cotangent * w).mean(-1, True)),
        ),
        "weight after the mean": (
            "x",
            lambda x, w, cotangent: w * norm_by_x(x, cotangent, normed(x), inverse(x)),
        ),
        "wrong axis": ("w", lambda x, w, cotangent: (cotangent * normed(x.t()).t()).sum(0)),
        "not normed": ("w", lambda x, w, cotangent: (cotangent * x).sum(0)),
        "forgotten cotangent": ("b", lambda x, w, cotangent: torch.ones_like(w) * len(x)),
    },
)


# -- batch norm in training: as layer norm, along the batch

BATCH_NORM = Planted(
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, EPS),
    {"x": (6, 3), "w": (3,), "b": (3,)},
    {
        "x": lambda x, w, cotangent: norm_by_x(x.t(), (cotangent * w).t(), normed(x.t()), inverse(x.t())).t(),
        "w": lambda x, w, cotangent: (cotangent * normed(x.t()).t()).sum(0),
    },
    {
        "n - 1 for n": (
            "x",
            lambda x, w, cotangent: norm_by_x(x.t(), (cotangent * w).t(), normed(x.t(), 1), inverse(x.t(), 1)).t(),
        ),
        "evaluation mode": ("x", lambda x, w, cotangent: cotangent * w * inverse(x.t()).t()),
        "wrong axis": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x), inverse(x))),
        "mean path missing": (
            "x",
            lambda x, w, cotangent: (
                inverse(x.t()).t() * w * (cotangent - normed(x.t()).t() * (cotangent * normed(x.t()).t()).mean(0))
            ),
        ),
    },
)


# -- attention: p = softmax(q k' / sqrt d) over visible keys, out = p v


VISIBLE = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], dtype=torch.bool)


def probabilities(q, k, visible, root=2.0):
    return torch.softmax((q @ k.t() / root).masked_fill(~visible, -torch.inf), -1)


def scores_gradient(q, k, v, visible, cotangent):
    p = probabilities(q, k, visible)
    by_p = cotangent @ v.t()
    return p * (by_p - (by_p * p).sum(-1, True)) / 2


def without_jacobian_sum(q, k, v, visible, cotangent):
    return probabilities(q, k, visible) * (cotangent @ v.t()) / 2 @ k


def softmax_along_queries(q, k, v, visible, cotangent):
    p = probabilities(q, k, visible)
    by_p = cotangent @ v.t()
    return p * (by_p - (by_p * p).sum(0, True)) / 2 @ k


ATTENTION = Planted(
    lambda q, k, v, visible: probabilities(q, k, visible) @ v,
    {"q": (3, 4), "k": (4, 4), "v": (4, 2)},
    {
        "q": lambda q, k, v, visible, cotangent: scores_gradient(q, k, v, visible, cotangent) @ k,
        "k": lambda q, k, v, visible, cotangent: scores_gradient(q, k, v, visible, cotangent).t() @ q,
        "v": lambda q, k, v, visible, cotangent: probabilities(q, k, visible).t() @ cotangent,
    },
    {
        "missing scale": (
            "q",
            lambda q, k, v, visible, cotangent: 2 * scores_gradient(q, k, v, visible, cotangent) @ k,
        ),
        "scale twice": (
            "k",
            lambda q, k, v, visible, cotangent: scores_gradient(q, k, v, visible, cotangent).t() @ q / 2,
        ),
        "missing mask": (
            "v",
            lambda q, k, v, visible, cotangent: probabilities(q, k, torch.ones_like(visible)).t() @ cotangent,
        ),
        "mask off by one": (
            "v",
            lambda q, k, v, visible, cotangent: (
                probabilities(q, k, visible.roll(1, 1) | visible[:, :1]).t() @ cotangent
            ),
        ),
        "mask after the softmax": (
            "v",
            lambda q, k, v, visible, cotangent: (torch.softmax(q @ k.t() / 2, -1) * visible).t() @ cotangent,
        ),
        "softmax Jacobian without its sum": ("q", without_jacobian_sum),
        "Jacobian's sum along the wrong axis": ("q", softmax_along_queries),
        "queries for keys": (
            "q",
            lambda q, k, v, visible, cotangent: scores_gradient(q, k, v, visible, cotangent)[:, :3] @ q,
        ),
    },
    {"visible": VISIBLE},
)


# -- one-dimensional convolution without padding: y[o, t] = sum over c, s of w[o, c, s] x[c, t + s]


def conv_by_x(x, w, cotangent):
    return F.conv_transpose1d(cotangent, w)


def conv_by_w(x, w, cotangent):
    return torch.einsum("bot,bcts->ocs", cotangent, x.unfold(2, w.shape[2], 1))


CONVOLUTION = Planted(
    lambda x, w: F.conv1d(x, w),
    {"x": (2, 3, 6), "w": (4, 3, 3)},
    {"x": conv_by_x, "w": conv_by_w},
    {
        "kernel not flipped": ("x", lambda x, w, cotangent: conv_by_x(x, w.flip(2), cotangent)),
        "kernel flipped": ("w", lambda x, w, cotangent: conv_by_w(x, w, cotangent).flip(2)),
        "off-by-one index": ("x", lambda x, w, cotangent: conv_by_x(x, w, cotangent).roll(1, 2)),
        "windows shifted by one": ("w", lambda x, w, cotangent: conv_by_w(x.roll(-1, 2), w, cotangent)),
        "mean over the batch": ("w", lambda x, w, cotangent: conv_by_w(x, w, cotangent) / len(x)),
        "first of the batch": ("w", lambda x, w, cotangent: conv_by_w(x[:1], w, cotangent[:1])),
        "border left out": (
            "x",
            lambda x, w, cotangent: F.pad(conv_by_x(x, w, cotangent)[:, :, 1:-1], (1, 1)),
        ),
    },
)


# -- a recurrent cell with a gate: z = sigmoid(x u + h w), c = tanh(x v + z (h a)), out = (1 - z) c + z h


def gates(x, h, u, w, v, a):
    z = torch.sigmoid(x @ u + h @ w)
    return z, torch.tanh(x @ v + z * (h @ a))


def gated(x, h, u, w, v, a):
    z, c = gates(x, h, u, w, v, a)
    return (1 - z) * c + z * h


def gate_gradients(x, h, u, w, v, a, cotangent):
    """By the arguments of the gate and of the candidate state."""
    z, c = gates(x, h, u, w, v, a)
    by_c = cotangent * (1 - z) * (1 - c * c)
    return (cotangent * (h - c) + by_c * (h @ a)) * z * (1 - z), by_c


def gated_by_h(x, h, u, w, v, a, cotangent):
    by_z, by_c = gate_gradients(x, h, u, w, v, a, cotangent)
    z = gates(x, h, u, w, v, a)[0]
    return cotangent * z + by_z @ w.t() + (by_c * z) @ a.t()


def without_the_direct_path(x, h, u, w, v, a, cotangent):
    return gated_by_h(x, h, u, w, v, a, cotangent) - cotangent * gates(x, h, u, w, v, a)[0]


def without_the_gate_in_the_candidate(x, h, u, w, v, a, cotangent):
    z, c = gates(x, h, u, w, v, a)
    return x.t() @ (cotangent * (h - c) * z * (1 - z))


def with_a_stale_state(x, h, u, w, v, a, cotangent):
    """The candidate state saved before the gate was applied."""
    z, _ = gates(x, h, u, w, v, a)
    stale = torch.tanh(x @ v + h @ a)
    return x.t() @ (cotangent * (1 - z) * (1 - stale * stale))


def with_the_other_gate(x, h, u, w, v, a, cotangent):
    z, c = gates(x, h, u, w, v, a)
    return x.t() @ (cotangent * z * (1 - c * c))


def with_sigmoid_for_tanh(x, h, u, w, v, a, cotangent):
    z, c = gates(x, h, u, w, v, a)
    return x.t() @ (cotangent * (1 - z) * c * (1 - c))


SIX = ("x", "h", "u", "w", "v", "a")
GATED = Planted(
    gated,
    {"x": (2, 3), "h": (2, 4), "u": (3, 4), "w": (4, 4), "v": (3, 4), "a": (4, 4)},
    {
        "u": lambda x, h, u, w, v, a, cotangent: x.t() @ gate_gradients(x, h, u, w, v, a, cotangent)[0],
        "v": lambda x, h, u, w, v, a, cotangent: x.t() @ gate_gradients(x, h, u, w, v, a, cotangent)[1],
        "h": gated_by_h,
    },
    {
        "dropped path": ("h", without_the_direct_path),
        "path through the gate in the candidate": ("u", without_the_gate_in_the_candidate),
        "stale intermediate": ("v", with_a_stale_state),
        "z for 1 - z": ("v", with_the_other_gate),
        "derivative of the other activation": ("v", with_sigmoid_for_tanh),
        "last step for the whole": ("h", lambda x, h, u, w, v, a, cotangent: cotangent * gates(x, h, u, w, v, a)[0]),
    },
)


# -- sums and products along an axis

CUMSUM = Planted(
    lambda x: x.cumsum(0),
    {"x": (5,)},
    {"x": lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0)},
    {
        "not reversed": ("x", lambda x, cotangent: cotangent.cumsum(0)),
        "exclusive": ("x", lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0) - cotangent),
        "off-by-one index": ("x", lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0).roll(1)),
        "sum for its tail": ("x", lambda x, cotangent: cotangent.sum() + 0 * x),
    },
)

PROD = Planted(
    lambda x: x.prod(1),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True) / x},
    {
        "product itself": ("x", lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True).expand(3, 4)),
        "product of the neighbour": (
            "x",
            lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True) / x.roll(1, 1),
        ),
        "wrong axis": ("x", lambda x, cotangent: cotangent[:, None] * x.prod(0, keepdim=True) / x),
    },
)

VARIANCE = Planted(
    lambda x: x.var(1),
    {"x": (3, 5)},
    {"x": lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 4},
    {
        "n for n - 1": ("x", lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 5),
        "missing factor 2": ("x", lambda x, cotangent: cotangent[:, None] * (x - x.mean(1, True)) / 4),
        "not centred": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x / 4),
        "mean of all": ("x", lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean()) / 4),
        "the mean counted twice": (
            "x",
            lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 4 * (1 - 1 / 5),
        ),
    },
)

NORM = Planted(
    lambda x: x.norm(dim=1),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: cotangent[:, None] * x / x.norm(dim=1, keepdim=True)},
    {
        "squared norm": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x),
        "missing 1/2": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x / x.norm(dim=1, keepdim=True)),
        "divided by the square": ("x", lambda x, cotangent: cotangent[:, None] * x / x.square().sum(1, True)),
        "norm of all": ("x", lambda x, cotangent: cotangent[:, None] * x / x.norm()),
        "other norm": ("x", lambda x, cotangent: cotangent[:, None] * x.sign()),
        "eps in the root": (
            "x",
            lambda x, cotangent: cotangent[:, None] * x / (x.square().sum(1, True) + 1e-6).sqrt(),
        ),
    },
)

NORMALISE = Planted(
    lambda x: x / x.norm(dim=1, keepdim=True),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: normalise_by_x(x, cotangent)},
    {
        "diagonal only": ("x", lambda x, cotangent: cotangent / x.norm(dim=1, keepdim=True)),
        "sign of the projection": (
            "x",
            lambda x, cotangent: 2 * cotangent / x.norm(dim=1, keepdim=True) - normalise_by_x(x, cotangent),
        ),
        "projection without normalising": (
            "x",
            lambda x, cotangent: (cotangent - x * (x * cotangent).sum(1, True)) / x.norm(dim=1, keepdim=True),
        ),
    },
)


def normalise_by_x(x, cotangent):
    size = x.norm(dim=1, keepdim=True)
    unit = x / size
    return (cotangent - unit * (unit * cotangent).sum(1, True)) / size


# -- activations and elementwise losses


def gelu_by_x(x, cotangent):
    density = torch.exp(-(x**2) / 2) / (2 * torch.pi) ** 0.5
    return cotangent * (0.5 * (1 + torch.erf(x / 2**0.5)) + x * density)


GELU = Planted(
    lambda x: F.gelu(x),
    {"x": (6,)},
    {"x": gelu_by_x},
    {
        "missing 1/2 in the exponent": (
            "x",
            lambda x, cotangent: (
                cotangent * (0.5 * (1 + torch.erf(x / 2**0.5)) + x * torch.exp(-(x**2)) / (2 * torch.pi) ** 0.5)
            ),
        ),
        "derivative of the factor only": ("x", lambda x, cotangent: cotangent * 0.5 * (1 + torch.erf(x / 2**0.5))),
        "the tanh approximation's": (
            "x",
            lambda x, cotangent: torch.autograd.functional.vjp(
                lambda t: F.gelu(t, approximate="tanh"), x.detach(), cotangent
            )[1],
        ),
        "truncated constant": (
            "x",
            lambda x, cotangent: (
                cotangent * (0.5 * (1 + torch.erf(x * 0.70711)) + x * torch.exp(-(x**2) / 2) * 0.398942)
            ),
        ),
    },
)

BINARY = Planted(
    lambda z, y: F.binary_cross_entropy_with_logits(z, y.sigmoid()),
    {"z": (3, 2), "y": (3, 2)},
    {
        "z": lambda z, y: (z.sigmoid() - y.sigmoid()) / z.numel(),
        "y": lambda z, y: -z * y.sigmoid() * (1 - y.sigmoid()) / z.numel(),
    },
    {
        "swapped arguments": ("z", lambda z, y: (y.sigmoid() - z.sigmoid()) / z.numel()),
        "slope of the sigmoid again": (
            "z",
            lambda z, y: (z.sigmoid() - y.sigmoid()) * z.sigmoid() * (1 - z.sigmoid()) / z.numel(),
        ),
        "missing chain": ("y", lambda z, y: -z / z.numel()),
        "missing 1/n": ("z", lambda z, y: z.sigmoid() - y.sigmoid()),
    },
)

HUBER = Planted(
    lambda x, y: F.huber_loss(x, y, delta=0.75),
    {"x": (8,), "y": (8,)},
    {"x": lambda x, y: (x - y).clamp(-0.75, 0.75) / 8},
    {
        "not clamped": ("x", lambda x, y: (x - y) / 8),
        "delta of 1": ("x", lambda x, y: (x - y).clamp(-1, 1) / 8),
        "sign beyond delta": ("x", lambda x, y: torch.where((x - y).abs() < 0.75, x - y, (x - y).sign()) / 8),
    },
)


# -- indices

ROWS = torch.tensor([2, 0, 2, 4, 1])


def scattered(rows, cotangent, size):
    return torch.zeros(size, cotangent.shape[1], dtype=cotangent.dtype).index_add(0, rows, cotangent)


EMBEDDING = Planted(
    lambda table, rows: F.embedding(rows, table),
    {"table": (5, 3)},
    {"table": lambda table, rows, cotangent: scattered(rows, cotangent, 5)},
    {
        "off-by-one index": ("table", lambda table, rows, cotangent: scattered((rows + 1) % 5, cotangent, 5)),
        "repeated rows written once": (
            "table",
            lambda table, rows, cotangent: torch.zeros_like(table).index_copy(0, rows[1:], cotangent[1:]),
        ),
        "gathered, not scattered": ("table", lambda table, rows, cotangent: cotangent[rows]),
        "mean of repeated rows": (
            "table",
            lambda table, rows, cotangent: (
                scattered(rows, cotangent, 5) / torch.bincount(rows, minlength=5).clamp(min=1)[:, None]
            ),
        ),
    },
    {"rows": ROWS},
)

DIFFERENCE = Planted(
    lambda x: ((x[1:] - x[:-1]) ** 2).sum() / 2,
    {"x": (6,)},
    {"x": lambda x: F.pad(x[1:] - x[:-1], (1, 0)) - F.pad(x[1:] - x[:-1], (0, 1))},
    {
        "ends as if periodic": ("x", lambda x: 2 * x - x.roll(1) - x.roll(-1)),
        "one neighbour": ("x", lambda x: F.pad(x[1:] - x[:-1], (1, 0))),
        "sign": ("x", lambda x: F.pad(x[1:] - x[:-1], (0, 1)) - F.pad(x[1:] - x[:-1], (1, 0))),
        "off-by-one index": ("x", lambda x: (F.pad(x[1:] - x[:-1], (1, 0)) - F.pad(x[1:] - x[:-1], (0, 1))).roll(1)),
    },
)

FUNCTIONS = {
    "linear layer, squared error": MSE,
    "matrix product": PRODUCT,
    "quadratic form": QUADRATIC,
    "cross-entropy": CROSS_ENTROPY,
    "Kullback-Leibler divergence": KL,
    "layer norm": LAYER_NORM,
    "batch norm": BATCH_NORM,
    "attention": ATTENTION,
    "convolution": CONVOLUTION,
    "gated cell": GATED,
    "cumulative sum": CUMSUM,
    "product": PROD,
    "variance": VARIANCE,
    "norm": NORM,
    "normalisation": NORMALISE,
    "GELU": GELU,
    "binary cross-entropy": BINARY,
    "Huber loss": HUBER,
    "embedding": EMBEDDING,
    "differences": DIFFERENCE,
}
FAULTS = [(name, fault) for name, planted in FUNCTIONS.items() for fault in planted.wrong]
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_formulas_pass(name, dtype):
    planted = FUNCTIONS[name]
    report = check(planted.function, planted.inputs(dtype), formulas=planted.right)
    for finding in report.findings:
        if finding.candidate != "finite differences":
            assert finding.verdict in PASSES, f"{finding.candidate} {finding.input}: {finding.reason}"


@DTYPES
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault}" for name, fault in FAULTS])
def test_a_planted_fault_is_convicted(name, fault, dtype):
    planted = FUNCTIONS[name]
    by, formula = planted.wrong[fault]
    report = check(planted.function, planted.inputs(dtype), by, {by: formula}, budget=0)
    assert report["formula", by].verdict is Verdict.FORMULA, report["formula", by].reason
    assert report["autograd", by].verdict in PASSES
