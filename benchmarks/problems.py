"""Five functions with the gradient by every input derived by hand, and how to plant a relative error in any of them.

The formulas are written from the mathematics, in vectorised torch. `exact=True` gives sizes at which every constant of
a function and of its formulas is a binary number of few digits: powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["PROBLEMS", "Plant", "Problem", "as_custom", "exaggerated", "in_autograd", "in_formulas", "problems"]

Formula: TypeAlias = Callable[..., Tensor]
Plant: TypeAlias = Callable[[Tensor], Tensor]  # a right gradient to a wrong one


@dataclass(frozen=True, slots=True)
class Problem:
    """A function and its gradient, derived by hand.

    Attributes:
        name: what people call it.
        function: of the inputs, in the order of `shapes` and then of `targets`.
        shapes: of each real input; they are drawn from the normal distribution, and scaled.
        gradients: of the inputs and the output's cotangent, by name: the gradient by every real input.
        scales: the standard deviation of an input; 1 where there is none.
        targets: integer inputs: shape, and how many values there are.
        is_scalar: whether the output is a scalar, whose cotangent is 1.
    """

    name: str
    function: Callable[..., Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    gradients: Callable[..., dict[str, Tensor]]
    scales: Mapping[str, float]
    targets: Mapping[str, tuple[tuple[int, ...], int]]
    is_scalar: bool

    def inputs(self, seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """The inputs of a seed, rounded to a dtype."""
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            name: (self.scales.get(name, 1.0) * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)
            for name, shape in self.shapes.items()
        }
        return drawn | {
            name: torch.randint(count, shape, generator=generator) for name, (shape, count) in self.targets.items()
        }

    def formulas(self) -> dict[str, Formula]:
        """The gradient by each real input as a formula for symcheck."""

        def formula(name: str, cotangent: Any, **inputs: Tensor) -> Tensor:
            return self.gradients(**inputs, cotangent=cotangent)[name]

        return {name: partial(formula, name) for name in self.shapes}


def exaggerated(gradient: Tensor, relative: float) -> Tensor:
    """A gradient off by a relative error; below the dtype's resolution as an added power of two times itself.

    The factor 1 + 1e-25 is no floating-point number: what is added is lost when it is computed, not when it is read.
    """
    if relative >= 2.0**-50:
        return gradient * (1 + relative)
    return gradient + gradient * 2.0 ** round(math.log2(relative))


def in_formulas(problem: Problem, plant: Plant) -> dict[str, Formula]:
    """The formulas of a problem, each with a plant."""

    def planted(right: Formula, cotangent: Any, **inputs: Tensor) -> Tensor:
        return plant(right(cotangent=cotangent, **inputs))

    return {name: partial(planted, right) for name, right in problem.formulas().items()}


def in_autograd(problem: Problem, plant: Plant) -> Callable[..., Tensor]:
    """The function, with a plant in autograd's gradient by every real input."""

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> Tensor:
            return plant(cotangent)

    return _named(
        problem,
        lambda **inputs: problem.function(
            **{name: Planted.apply(tensor) if name in problem.shapes else tensor for name, tensor in inputs.items()}
        ),
    )


def as_custom(problem: Problem, plant: Plant) -> Callable[..., Tensor]:
    """The function as a custom `autograd.Function` whose backward is the hand formulas, each with a plant."""
    names = [*problem.shapes, *problem.targets]

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            ctx.save_for_backward(*tensors)
            return problem.function(*tensors)

        @staticmethod
        def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
            given = dict(zip(names, ctx.saved_tensors, strict=True))
            gradients = problem.gradients(**given, cotangent=cotangent)
            return tuple(plant(gradients[name]) if name in gradients else None for name in names)

    return _named(problem, lambda **inputs: Custom.apply(*(inputs[name] for name in names)))


def _named(problem: Problem, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function whose parameters are the problem's inputs, by name or in order."""
    names = [*problem.shapes, *problem.targets]

    def function(*args: Tensor, **kwargs: Tensor) -> Tensor:
        return call(**dict(zip(names, args, strict=False)), **kwargs)

    return function


# -- the functions and their gradients


def mse_linear(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    """mean((x W' + b - y)^2)."""
    return F.mse_loss(F.linear(x, weight, bias), y)


def mse_linear_gradients(x: Tensor, weight: Tensor, bias: Tensor, y: Tensor, cotangent: Any) -> dict[str, Tensor]:
    """With r = x W' + b - y of N elements, the gradient by the prediction is d = 2 r / N."""
    d = cotangent * (2 * (x @ weight.t() + bias - y) / y.numel())
    return {"x": d @ weight, "weight": d.t() @ x, "bias": d.sum(0), "y": -d}


def cross_entropy(x: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """The mean cross-entropy of softmax(x W' + b) with the targets."""
    return F.cross_entropy(F.linear(x, weight, bias), target)


def cross_entropy_gradients(
    x: Tensor, weight: Tensor, bias: Tensor, target: Tensor, cotangent: Any
) -> dict[str, Tensor]:
    """The gradient by the logits is (softmax - onehot) / n."""
    p = torch.softmax(x @ weight.t() + bias, 1)
    d = cotangent * ((p - F.one_hot(target, len(weight)).to(p.dtype)) / len(x))
    return {"x": d @ weight, "weight": d.t() @ x, "bias": d.sum(0)}


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(var + eps) over the last axis, times weight, plus bias."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_gradients(x: Tensor, weight: Tensor, bias: Tensor, cotangent: Tensor, eps: float) -> dict[str, Tensor]:
    """With h = g w and normed n, the gradient by x is (h - mean h - n mean(h n)) / sigma."""
    centred = x - x.mean(-1, keepdim=True)
    inverse = 1 / torch.sqrt((centred**2).mean(-1, keepdim=True) + eps)
    normed, h = centred * inverse, cotangent * weight
    by_x = inverse * (h - h.mean(-1, keepdim=True) - normed * (h * normed).mean(-1, keepdim=True))
    return {"x": by_x, "weight": (cotangent * normed).sum(0), "bias": cotangent.sum(0)}


def attention(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor) -> Tensor:
    """One head of self-attention: softmax(Q K' / sqrt(d)) V."""
    scores = (x @ w_q) @ (x @ w_k).t() / math.sqrt(w_q.shape[1])
    return torch.softmax(scores, -1) @ (x @ w_v)


def attention_gradients(x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
    """Through the scores S with P = softmax(S): dS = P (dP - sum(dP P)), each row by itself."""
    root = math.sqrt(w_q.shape[1])
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    p = torch.softmax(q @ k.t() / root, -1)
    by_v, by_p = p.t() @ cotangent, cotangent @ v.t()
    by_scores = p * (by_p - (by_p * p).sum(-1, keepdim=True))
    by_q, by_k = by_scores @ k / root, by_scores.t() @ q / root
    by_x = by_q @ w_q.t() + by_k @ w_k.t() + by_v @ w_v.t()
    return {"x": by_x, "w_q": x.t() @ by_q, "w_k": x.t() @ by_k, "w_v": x.t() @ by_v}


def gru_cell(x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    """torch's cell: h' = (1 - z) n + z h, with n = tanh(W_in x + b_in + r (W_hn h + b_hn))."""
    return torch.gru_cell(x, h, w_ih, w_hh, b_ih, b_hh)


def gru_cell_gradients(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, cotangent: Tensor
) -> dict[str, Tensor]:
    """By the gates' arguments a_r, a_z, a_n, and on to the two linear maps that feed them."""
    i_r, i_z, i_n = (x @ w_ih.t() + b_ih).chunk(3, 1)
    h_r, h_z, h_n = (h @ w_hh.t() + b_hh).chunk(3, 1)
    r, z = torch.sigmoid(i_r + h_r), torch.sigmoid(i_z + h_z)
    n = torch.tanh(i_n + r * h_n)
    a_n = cotangent * (1 - z) * (1 - n**2)
    a_z = cotangent * (h - n) * z * (1 - z)
    a_r = a_n * h_n * r * (1 - r)
    by_i, by_h = torch.cat([a_r, a_z, a_n], 1), torch.cat([a_r, a_z, a_n * r], 1)
    return {
        "x": by_i @ w_ih,
        "h": cotangent * z + by_h @ w_hh,
        "w_ih": by_i.t() @ x,
        "w_hh": by_h.t() @ h,
        "b_ih": by_i.sum(0),
        "b_hh": by_h.sum(0),
    }


def problems(*, exact: bool = False) -> list[Problem]:
    """The five problems; with `exact`, at sizes whose constants are exact."""
    samples, features, outputs = (64, 8, 1) if exact else (50, 5, 1)
    rows, width, classes = (8, 16, 8) if exact else (6, 12, 5)
    eps = 2.0**-16 if exact else 1e-5
    tokens, model, head = (8, 4, 16) if exact else (7, 5, 6)
    batch, given, hidden = (4, 4, 4) if exact else (4, 5, 6)
    scores, gates, wide = 1 / math.sqrt(model), 1 / math.sqrt(hidden), 1 / math.sqrt(features)
    linear = {"x": (samples, features), "weight": (outputs, features), "bias": (outputs,), "y": (samples, outputs)}
    logits = {"x": (rows, features), "weight": (classes, features), "bias": (classes,)}
    projections = dict.fromkeys(("w_q", "w_k", "w_v"), (model, head))
    cell = {"x": (batch, given), "h": (batch, hidden), "w_ih": (3 * hidden, given), "w_hh": (3 * hidden, hidden)}
    biases = {"b_ih": (3 * hidden,), "b_hh": (3 * hidden,)}
    norm, norm_gradients = partial(layer_norm, eps=eps), partial(layer_norm_gradients, eps=eps)
    affine = {"x": (rows, width), "weight": (width,), "bias": (width,)}
    targets = {"target": ((rows,), classes)}
    narrow = dict.fromkeys([*cell, *biases][2:], gates)
    return [
        Problem("MSE linear", mse_linear, linear, mse_linear_gradients, {"weight": wide}, {}, True),
        Problem("cross-entropy", cross_entropy, logits, cross_entropy_gradients, {"weight": wide}, targets, True),
        Problem("layer norm", norm, affine, norm_gradients, {}, {}, False),
        Problem(
            "attention",
            attention,
            {"x": (tokens, model)} | projections,
            attention_gradients,
            dict.fromkeys(projections, scores),
            {},
            False,
        ),
        Problem("GRU cell", gru_cell, cell | biases, gru_cell_gradients, narrow, {}, False),
    ]


PROBLEMS = tuple(problem.name for problem in problems())
