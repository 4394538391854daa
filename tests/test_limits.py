"""Limits of gradients, with the values that mathematics gives; and what has none is not given one."""

import numpy as np
import pytest
import torch

from symcheck.derivation import derive
from symcheck.limits import GROWING, KINK, NOWHERE, SMOOTH, Limit, difference_limit, find_limits, join_limits
from symcheck.tracing import trace

ZERO, NAN, INF = 0.0, float("nan"), float("inf")


def limit_of(function, *x, seed=0):
    """The limit of the gradient of a sum."""
    given = {"x": torch.tensor(x, dtype=torch.float64)}
    program = derive(trace(lambda tensors: (function(tensors["x"]).sum(),), given).program, ["x"])
    arrays = {"x": given["x"].numpy(), "d_cotangent0": np.ones(())}
    return find_limits(program, arrays, [0], ["x"], np.random.default_rng(seed))[0]


# function, x, and what the derivative tends to
DERIVATIVES = {
    "sqrt(x)^2": (lambda x: x.sqrt() ** 2, ZERO, SMOOTH, 1),
    "x^2/x": (lambda x: x**2 / x, ZERO, SMOOTH, 1),
    "exp(log x)": (lambda x: x.log().exp(), ZERO, SMOOTH, 1),
    "sin(x)/x": (lambda x: x.sin() / x, ZERO, SMOOTH, 0),
    "(exp(x) - 1)/x": (lambda x: (x.exp() - 1) / x, ZERO, SMOOTH, 0.5),
    "log(1 + x)/x": (lambda x: (1 + x).log() / x, ZERO, SMOOTH, -0.5),
    "(1 - cos x)/x^2 + x": (lambda x: (1 - x.cos()) / x**2 + x, ZERO, SMOOTH, 1),
    "x log x": (lambda x: x * x.log(), ZERO, GROWING, -INF),
    "sqrt x": (lambda x: x.sqrt(), ZERO, GROWING, INF),
    "1/x^2": (lambda x: -1 / x, ZERO, GROWING, INF),
    "1/x^3, of either sign": (lambda x: -1 / x**2, ZERO, GROWING, NAN),
    "|x|": (lambda x: x.abs(), ZERO, KINK, NAN),
    "sqrt(x^2)": (lambda x: (x**2).sqrt(), ZERO, KINK, NAN),
    "relu(x) - relu(-x)": (lambda x: x.relu() - (-x).relu(), ZERO, SMOOTH, 1),
    "x|x|": (lambda x: x * x.abs(), ZERO, SMOOTH, 0),
    "sqrt(-1 - x^2)": (lambda x: (-1 - x**2).sqrt(), ZERO, NOWHERE, NAN),
    "x^3": (lambda x: x**3, 2.0, SMOOTH, 12),
}


@pytest.mark.parametrize(("function", "x", "kind", "value"), DERIVATIVES.values(), ids=list(DERIVATIVES))
def test_what_a_derivative_tends_to(function, x, kind, value):
    found = limit_of(function, x)
    assert found.kinds[0] == kind
    assert np.array_equal(found.values[:1], [value], equal_nan=True) or abs(found.values[0] - value) <= 2.0**-52


@pytest.mark.parametrize("slope", [1 + 2.0**-30, 1 - 2.0**-30])
def test_a_small_kink_is_one(slope):
    found = limit_of(lambda x: torch.where(x > 0, slope * x, x), ZERO)
    assert found.kinds[0] == KINK
    assert {found.low[0], found.high[0]} == {1.0, slope}


def test_each_element_has_its_own_limit():
    found = limit_of(lambda x: torch.stack([x[0].sqrt() ** 2, x[1].sqrt(), x[2].abs(), x[3] ** 2]), 0, 0, 0, 3)
    assert found.kinds.tolist() == [SMOOTH, GROWING, KINK, SMOOTH]
    assert found.values[[0, 1, 3]].tolist() == [1, INF, 6]


def test_sides_that_agree_by_chance_do_not_in_the_end():
    """Of three equal values the middle one's slopes cancel: with three directions that is seen once in 27 times."""

    def distances(x):
        return (x[:, None] - x[None]).abs()

    rounds = [limit_of(distances, 1, 1, 1, seed=seed) for seed in range(24)]
    assert any((found.kinds == SMOOTH).any() for found in rounds)
    joined = rounds[0]
    for found in rounds[1:]:
        joined = join_limits(joined, found)
    assert (joined.kinds == KINK).all()


def single(kind, value, low=None, high=None):
    values = np.array([value])
    return Limit(values, np.array([kind]), *(values if end is None else np.array([end]) for end in (low, high)))


ONE = single(SMOOTH, 1.0)


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        (ONE, SMOOTH),
        (single(SMOOTH, 1 + 2.0**-30), KINK),
        (single(KINK, NAN, -1.0, 1.0), KINK),
        (single(NOWHERE, NAN), SMOOTH),
    ],
)
def test_two_samples_together(second, kind):
    joined = join_limits(ONE, second)
    assert joined.kinds[0] == kind
    assert joined.values[0] == 1 or kind == KINK


# -- from difference quotients


def quotient(function, x):
    given = {"x": torch.tensor([x], dtype=torch.float64)}
    program = trace(lambda tensors: (function(tensors["x"]),), given).program
    return difference_limit(program, {"x": given["x"].numpy()}, "x", 0, [np.ones(1)])


@pytest.mark.parametrize(
    ("function", "x", "slope"),
    [(lambda x: x**3, 2.0, 12), (lambda x: x.exp(), 0.0, 1), (lambda x: x * x.abs(), 0.0, 0)],
)
def test_a_slope_from_quotients(function, x, slope):
    assert abs(quotient(function, x) - slope) <= 2.0**-50 * max(1, slope)


@pytest.mark.parametrize("function", [torch.abs, torch.sqrt, lambda x: torch.where(x > 0, x + 2.0**-30 * x, x)])
def test_where_sides_differ_there_is_no_slope(function):
    assert np.isnan(quotient(function, 0.0))
