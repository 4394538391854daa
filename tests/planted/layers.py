"""Planted faults: attention, convolution, a gated cell, GELU."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.planted.faults import Planted

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
