"""INSTABILITY: where floating point loses needlessly what the formula says, and where it does not.

The rule is computed here from its definition, without symcheck: with M the largest exact element, S_i how far exact_i
moves when the data move by an ulp, u the unit roundoff and T = 2^(p/3), an element is lost where it is not finite, or

    error_i > M / T   and   error_i > T max(S_i, u |exact_i|).

Rows that must fire have their exact gradient in closed form, evaluated by mpmath with 60 digits; rows that must not
have it from float64, or for float64 from differences of sixth order.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mpf
from torch.nn import functional as F

from symcheck import Verdict, check

PASSES = {Verdict.OK, Verdict.ROUNDING}
PRECISIONS = {torch.float64: 53, torch.float32: 24, torch.bfloat16: 8, torch.float16: 11}
F64, F32, B16, F16 = PRECISIONS
DTYPES = pytest.mark.parametrize("dtype", list(PRECISIONS), ids=lambda dtype: str(dtype).removeprefix("torch."))


def threshold(dtype):
    return 2.0 ** (PRECISIONS[dtype] / 3)


def ulp(value, dtype):
    """The spacing of a dtype's numbers at a value that is not zero."""
    return 2.0 ** (math.floor(math.log2(abs(value))) + 1 - PRECISIONS[dtype])


def autograd(function, inputs, name, dtype=None):
    """Torch's gradient of a scalar function by one input, as float64; in another dtype if one is given."""
    given = {key: x.to(dtype) if dtype and x.is_floating_point() else x for key, x in inputs.items()}
    given[name] = given[name].clone().requires_grad_()
    return torch.autograd.grad(function(**given), given[name])[0].double()


# -- where it fires


@dataclass(frozen=True)
class Loss:
    """A function of a vector x that loses its gradient.

    Attributes:
        function: of x; a scalar.
        exact: of x, a list of mpmath numbers; the gradient, a list.
        points: x in each dtype.
        formula: the candidate, if it is not autograd.
    """

    function: Any
    exact: Any
    points: dict[torch.dtype, list[float]]
    formula: Any = None

    def candidate(self, x):
        return autograd(self.function, {"x": x}, "x") if self.formula is None else self.formula(x).double()


def by_element(derivative):
    return lambda x: [derivative(value) for value in x]


def everywhere(*values):
    return {dtype: list(values) for dtype in PRECISIONS}


def softmax_minus_first(z):
    """The gradient of -log softmax(z)[0], without cancellation: p_0 - 1 is minus the other p."""
    total = sum(mpmath.exp(value) for value in z)
    p = [mpmath.exp(value) / total for value in z]
    return [-sum(p[1:]), *p[1:]]


def std_gradient(x):
    mean = sum(x) / len(x)
    std = mpmath.sqrt(sum((value - mean) ** 2 for value in x) / len(x))
    return [(value - mean) / (len(x) * std) for value in x]


def one_pass_std(x):
    return torch.sqrt((x * x).mean() - x.mean() ** 2)


def hand_one_pass_std(x):
    return (x - x.mean()) / (len(x) * one_pass_std(x))


def two_pass_std(x):
    return torch.sqrt(((x - x.mean()) ** 2).mean())


def minus_first(z):
    first = torch.zeros_like(z)
    first[0] = 1
    return torch.softmax(z, 0) - first


# Where 1 - f rounds to few bits or none. Sigmoid leaves 1 as exp(-x), tanh as 2 exp(-2 x).
NEAR_ONE = {F64: [36.5, 37.0, 38.0, 40.0], F32: [17.0, 17.5, 18.0], B16: [7.0, 7.5, 8.0], F16: [8.0, 8.5, 9.0]}
TANH_TAIL = {F64: [18.5, 19.0, 20.0], F32: [9.0, 9.5, 10.0], B16: [3.75, 4.0, 4.5], F16: [4.5, 5.0, 5.25]}
SATURATED = {F64: [38.0, 45.0], F32: [20.5, 30.0], B16: [8.0, 12.0], F16: [12.0, 16.0]}
OVERFLOWS = {F64: [720.0, 800.0], F32: [90.0, 120.0], B16: [90.0, 120.0], F16: [12.0, 20.0]}
CONFIDENT = {F64: [40.0, 0.5, -0.25], F32: [20.0, 0.5, -0.25], B16: [8.0, 0.5, -0.25], F16: [10.0, 0.5, -0.25]}
UNDERFLOWS = {F64: [0.0, 800.0], F32: [0.0, 120.0], B16: [0.0, 120.0], F16: [0.0, 24.0]}
# Spread 1 at an offset R: one pass loses u R^2 of the variance, the data themselves hold u R of it.
OFFSET = {
    F64: [3e7, 3e7 + 1.25, 3e7 - 0.75, 3e7 + 2.0],
    F32: [3000.0, 3001.25, 2999.25, 3002.0],
    B16: [40.0, 41.0, 39.0, 42.0],  # nothing is left of the variance: it is 0 or less
    F16: [150.0, 151.25, 149.25, 152.0],
}
SIGMOID = by_element(lambda x: mpmath.exp(-x) / (1 + mpmath.exp(-x)) ** 2)
SECH2 = by_element(lambda x: 1 / mpmath.cosh(x) ** 2)
MASKED = everywhere(-1.0, 4.0, -0.5)

FIRES = {
    "sigmoid, its right tail": Loss(lambda x: torch.sigmoid(x).sum(), SIGMOID, NEAR_ONE),
    "sigmoid, s (1 - s) by hand": Loss(
        lambda x: torch.sigmoid(x).sum(), SIGMOID, NEAR_ONE, lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x))
    ),
    "log(1 - sigmoid)": Loss(
        lambda x: torch.log(1 - torch.sigmoid(x)).sum(), by_element(lambda x: -1 / (1 + mpmath.exp(-x))), SATURATED
    ),
    "tanh, its tail": Loss(lambda x: torch.tanh(x).sum(), SECH2, TANH_TAIL),
    "tanh, its left tail": Loss(
        lambda x: torch.tanh(x).sum(), SECH2, {dtype: [-value for value in x] for dtype, x in TANH_TAIL.items()}
    ),
    "tanh, 1 - tanh^2 by hand": Loss(lambda x: torch.tanh(x).sum(), SECH2, TANH_TAIL, lambda x: 1 - torch.tanh(x) ** 2),
    "expm1, its left tail": Loss(
        lambda x: torch.expm1(x).sum(),
        by_element(mpmath.exp),
        {F64: [-38.0, -40.0], F32: [-18.0, -20.0], B16: [-7.0, -8.0], F16: [-8.5, -9.0]},
    ),
    "expm1, by its own value": Loss(
        lambda x: torch.expm1(x).sum(),
        by_element(mpmath.exp),
        {F64: [-38.0, -40.0], F32: [-18.0, -20.0], B16: [-7.0, -8.0], F16: [-8.5, -9.0]},
        lambda x: torch.expm1(x) + 1,
    ),
    "softplus, log(1 + exp)": Loss(
        lambda x: torch.log(1 + torch.exp(x)).sum(), by_element(lambda x: 1 / (1 + mpmath.exp(-x))), OVERFLOWS
    ),
    "one-pass variance": Loss(one_pass_std, std_gradient, OFFSET),
    "one-pass variance, by hand": Loss(two_pass_std, std_gradient, OFFSET, hand_one_pass_std),
    "softmax, then log": Loss(lambda x: -torch.log(torch.softmax(x, 0))[0], softmax_minus_first, UNDERFLOWS),
    "cross-entropy, confident": Loss(
        lambda x: F.cross_entropy(x[None], torch.tensor([0])), softmax_minus_first, CONFIDENT
    ),
    "cross-entropy, confident, by hand": Loss(
        lambda x: F.cross_entropy(x[None], torch.tensor([0])), softmax_minus_first, CONFIDENT, minus_first
    ),
    "masked root": Loss(
        lambda x: torch.where(x > 0, torch.sqrt(x), x).sum(),
        by_element(lambda x: 1 / (2 * mpmath.sqrt(x)) if x > 0 else mpf(1)),
        MASKED,
    ),
    "masked logarithm of zero": Loss(
        lambda x: torch.where(torch.tensor([True, False, True]), torch.log(x), 2 * x).sum(),
        lambda x: [1 / x[0], mpf(2), 1 / x[2]],
        everywhere(0.5, 0.0, 4.0),
    ),
    "masked division by zero": Loss(
        lambda x: torch.where(torch.tensor([True, False, True]), 1 / x, x).sum(),
        lambda x: [-1 / x[0] ** 2, mpf(1), -1 / x[2] ** 2],
        everywhere(0.5, 0.0, 4.0),
    ),
    "masked overflow": Loss(
        lambda x: torch.where(x < 10, torch.exp(x * x), x).sum(),
        by_element(lambda x: 2 * x * mpmath.exp(x * x) if x < 10 else mpf(1)),
        everywhere(-1.0, 40.0, 0.5),
    ),
}


def is_lost(loss, x):
    """The rule, from its definition; S is the sum of all data's effects, which no random moves exceed."""
    dtype = x.dtype
    computed = loss.candidate(x).tolist()
    with mpmath.workdps(60):
        given = [mpf(value) for value in x.tolist()]
        exact = loss.exact(given)
        if not all(map(math.isfinite, computed)):
            return all(mpmath.isfinite(value) for value in exact)
        moved = [mpf(0) for _ in exact]
        for place in range(len(given)):
            changes = []
            for sign in (1, -1):
                there = list(given)
                there[place] += sign * ulp(x[place].item(), dtype)
                changes.append([abs(a - b) for a, b in zip(loss.exact(there), exact, strict=True)])
            moved = [m + max(pair) for m, pair in zip(moved, zip(*changes, strict=True), strict=True)]
        largest = max(abs(value) for value in exact)
        u, t = mpf(2) ** -PRECISIONS[dtype], mpf(threshold(dtype))
        return any(
            abs(c - e) > largest / t and abs(c - e) > t * max(m, u * abs(e))
            for c, e, m in zip(computed, exact, moved, strict=True)
        )


@DTYPES
@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name, dtype):
    loss = FIRES[name]
    x = torch.tensor(loss.points[dtype], dtype=dtype)
    assert x.tolist() == loss.points[dtype], "a point that the dtype does not hold"
    assert is_lost(loss, x), "the row itself is wrong: by the rule nothing is lost here"
    formulas = None if loss.formula is None else {"x": loss.formula}
    report = check(loss.function, {"x": x}, formulas=formulas)
    candidate = "autograd" if loss.formula is None else "formula"
    assert report[candidate, "x"].verdict is Verdict.INSTABILITY, report[candidate, "x"].reason
    assert not report.ok


@DTYPES
def test_a_wrong_formula_that_is_unstable_too_is_wrong(dtype):
    x = torch.tensor(TANH_TAIL[dtype], dtype=dtype)
    wrong = {"x": lambda x: 2 * (1 - torch.tanh(x) ** 2)}
    report = check(lambda x: torch.tanh(x).sum(), {"x": x}, formulas=wrong)
    assert report["formula", "x"].verdict is Verdict.FORMULA, report["formula", "x"].reason


@DTYPES
def test_an_unstable_formula_away_from_its_tail_is_not(dtype):
    x = torch.tensor([-0.5, 0.25, 1.0], dtype=dtype)
    right = {"x": lambda x: 1 - torch.tanh(x) ** 2}
    assert check(lambda x: torch.tanh(x).sum(), {"x": x}, formulas=right)["formula", "x"].verdict in PASSES


# -- where it does not


def drawn(**shapes):
    """A maker of normal inputs of these shapes in a dtype; weights (w...) are scaled as layers do."""

    def make(dtype):
        generator = torch.Generator().manual_seed(7)
        tensors = {name: torch.randn(shape, generator=generator, dtype=F64) for name, shape in shapes.items()}
        return {n: (x / x.shape[-1] ** 0.5 if n.startswith("w") else x).to(dtype) for n, x in tensors.items()}

    return make


def at(points):
    return lambda dtype: {"x": torch.tensor(points[dtype], dtype=dtype)}


def weighed(x):
    """A scalar of a tensor that uses each element, with weights of few bits."""
    places = torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape)
    return (x * (1 + places % 5 / 4)).sum()


def attention(x, wq, wk, wv):
    scores = (x @ wq) @ (x @ wk).t() / wq.shape[1] ** 0.5
    return weighed(torch.softmax(scores, -1) @ (x @ wv))


def gru(x, h, w_ih, w_hh, b_ih, b_hh):
    for step in x:
        h = torch.gru_cell(step, h, w_ih, w_hh, b_ih, b_hh)
    return weighed(h)


def deep_tanh(x, w1, w2, w3, w4, w5, w6):
    for w in (w1, w2, w3, w4, w5, w6):
        x = torch.tanh(x @ w)
    return weighed(x)


SQUARES = {f"w{n}": (5, 5) for n in range(1, 7)}
GATES = {"x": (3, 4, 5), "h": (4, 3), "w_ih": (9, 5), "w_hh": (9, 3), "b_ih": (9,), "b_hh": (9,)}
SILENT = {
    "mean": (lambda x: (x.mean(0) ** 2).sum(), drawn(x=(6, 4))),
    "weighted mean": (lambda x, v: (x * v.exp()).sum() / v.exp().sum(), drawn(x=(8,), v=(8,))),
    "variance": (lambda x: weighed(x.var(0)), drawn(x=(6, 4))),
    "standard deviation": (lambda x: weighed(x.std(0)), drawn(x=(6, 4))),
    "one-pass variance without an offset": (one_pass_std, drawn(x=(8,))),
    "two-pass variance at an offset": (two_pass_std, at(OFFSET)),
    "norm": (lambda x: weighed(x.norm(dim=-1)), drawn(x=(4, 5))),
    "normalised": (lambda x: weighed(F.normalize(x, dim=-1)), drawn(x=(4, 5))),
    "layer norm": (lambda x, w, b: weighed(F.layer_norm(x, (6,), w, b)), drawn(x=(4, 6), w=(6,), b=(6,))),
    "batch norm": (lambda x, w, b: weighed(F.batch_norm(x, None, None, w, b, True)), drawn(x=(6, 4), w=(4,), b=(4,))),
    "group norm": (lambda x: weighed(F.group_norm(x, 2)), drawn(x=(2, 4, 3))),
    "root mean square norm": (lambda x: weighed(x / (x.square().mean(-1, True) + 1e-3).sqrt()), drawn(x=(4, 6))),
    "attention": (attention, drawn(x=(5, 4), wq=(4, 4), wk=(4, 4), wv=(4, 4))),
    "GRU": (gru, drawn(**GATES)),
    "deep tanh net": (deep_tanh, drawn(x=(4, 5), **SQUARES)),
    "softmax": (lambda x: weighed(torch.softmax(x, -1)), drawn(x=(4, 5))),
    "cross-entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 2, 1, 4])), drawn(x=(4, 5))),
    "log-sum-exp": (lambda x: x.logsumexp(-1).sum(), drawn(x=(4, 5))),
    "log(1 - sigmoid)": (lambda x: torch.log(1 - torch.sigmoid(x)).sum(), drawn(x=(6,))),
    "softplus": (lambda x: F.softplus(x).sum(), at(SATURATED)),
    "log-sigmoid": (lambda x: F.logsigmoid(-x).sum(), at(SATURATED)),
    "sigmoid, its left tail": (lambda x: torch.sigmoid(-x).sum(), at(NEAR_ONE)),
    "exponential, its left tail": (lambda x: torch.exp(-x).sum(), at(NEAR_ONE)),
    "tanh, a tail beside the rest": (
        lambda x: torch.tanh(x).sum(),
        at({dtype: [0.25, *tail] for dtype, tail in TANH_TAIL.items()}),
    ),
    "masked root, made safe": (
        lambda x: torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, torch.ones_like(x))), x).sum(),
        at(MASKED),
    ),
}


def by_differences(function, inputs, name):
    """The gradient in float64 by central differences of sixth order, step 2^-9 of each element's size."""
    x = inputs[name]
    found = torch.zeros(x.numel(), dtype=F64)
    for place in range(x.numel()):
        step = 2.0**-9 * min(1.0, abs(x.flatten()[place].item()) or 1.0)
        for distance, weight in ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60)):
            for sign in (1, -1):
                there = x.clone()
                there.view(-1)[place] += sign * distance * step
                found[place] += sign * weight / step * function(**{**inputs, name: there})
    return found.reshape(x.shape)


def is_kept(function, inputs, name, dtype):
    """That the rule does not hold. In float64 for its first half alone, as the differences hold some nine digits."""
    computed = autograd(function, inputs, name)
    wide = {key: x.double() for key, x in inputs.items()}
    if not torch.isfinite(computed).all():
        return False
    if dtype is F64:
        exact = by_differences(function, inputs, name)
        return bool(((computed - exact).abs() <= exact.abs().max() / threshold(dtype)).all())
    exact = autograd(function, wide, name)
    generator = np.random.default_rng(0)
    moved = torch.zeros_like(exact)
    for _ in range(6):
        there = {key: x + one_ulp_moves(x, dtype, generator) for key, x in wide.items()}
        moved = torch.maximum(moved, (autograd(function, there, name) - exact).abs())
    error, t = (computed - exact).abs(), threshold(dtype)
    noise = torch.maximum(moved, 2.0 ** -PRECISIONS[dtype] * exact.abs())
    return bool(((error <= exact.abs().max() / t) | (error <= t * noise)).all())


def one_ulp_moves(x, dtype, generator):
    signs = torch.from_numpy(generator.choice([-1.0, 1.0], size=tuple(x.shape)))
    return signs * torch.tensor([ulp(v, dtype) if v else 0.0 for v in x.flatten().tolist()]).double().reshape(x.shape)


def direction_of_small_differences(x):
    """The length of (3 x_0 - 3 x_1, 3 x_2 - 3 x_1): rounding 3 x loses what an ulp of x holds as well."""
    return torch.sqrt((3 * x[0] - 3 * x[1]) ** 2 + (3 * x[2] - 3 * x[1]) ** 2)


def direction_gradient(x):
    first, second = x[0] - x[1], x[2] - x[1]
    length = mpmath.sqrt(first**2 + second**2)
    return [3 * first / length, -3 * (first + second) / length, 3 * second / length]


ILL_CONDITIONED = Loss(
    direction_of_small_differences,
    direction_gradient,
    {
        F64: [1.5 + 2.0**-51, 1.5, 1.5 + 3 * 2.0**-52],
        F32: [1.5 + 2.0**-22, 1.5, 1.5 + 3 * 2.0**-23],
        B16: [1.359375, 1.3515625, 1.3671875],
        F16: [1.5 + 2.0**-9, 1.5, 1.5 + 3 * 2.0**-10],
    },
)


@DTYPES
def test_an_ill_conditioned_question_is_not_accused(dtype):
    """The error is more than M / T, and the data determine the gradient no better."""
    x = torch.tensor(ILL_CONDITIONED.points[dtype], dtype=dtype)
    exact = torch.tensor([float(v) for v in direction_gradient([mpf(v) for v in x.tolist()])], dtype=F64)
    error = (ILL_CONDITIONED.candidate(x) - exact).abs().max()
    assert error > exact.abs().max() / threshold(dtype)
    assert not is_lost(ILL_CONDITIONED, x)
    report = check(ILL_CONDITIONED.function, {"x": x}, budget=0)
    assert report["autograd", "x"].verdict in PASSES, report["autograd", "x"].reason


@DTYPES
@pytest.mark.parametrize("name", SILENT)
def test_it_is_silent(name, dtype):
    function, make = SILENT[name]
    inputs = make(dtype)
    kept = partial(is_kept, function, inputs, dtype=dtype)
    assert all(kept(name=each) for each in inputs), "the row itself is wrong: by the rule something is lost here"
    report = check(function, inputs, budget=0)
    for each in inputs:
        assert report["autograd", each].verdict in PASSES, report["autograd", each].reason


@pytest.mark.parametrize("top", [250.0, 300.0, 350.0])
def test_a_slope_that_looks_like_zero_is_followed(top):
    """The sigmoid's slope at 300 is 5e-131: float64 holds it, and 1 - s, at 400 bits still, does not."""
    x = torch.tensor([top], dtype=F64)
    slope = lambda x: torch.sigmoid(x) * (1 - torch.sigmoid(x))  # noqa: E731
    for factor, verdict in ((1, Verdict.INSTABILITY), (2, Verdict.FORMULA)):
        report = check(lambda x: torch.sigmoid(x).sum(), {"x": x}, formulas={"x": lambda x, f=factor: f * slope(x)})
        assert report["formula", "x"].verdict is verdict, report["formula", "x"].reason
        assert report["autograd", "x"].verdict is Verdict.INSTABILITY
