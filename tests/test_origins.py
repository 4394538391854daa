"""The first operator that gives an infinity or NaN, and its line."""

import numpy as np
import pytest
import torch

from symcheck.origins import first_nonfinite
from symcheck.tracing import trace


def origin(function, x, dtype=torch.float64):
    given = {"x": torch.tensor(x, dtype=dtype)}
    program = trace(lambda tensors: (function(tensors["x"]),), given).program
    return first_nonfinite(program, {"x": given["x"].double().numpy()})


def by_root(x):
    y = 2 * x
    root = (y - 1).sqrt()
    return torch.where(x > 1, root, 0).exp()


def by_ratio(x):
    ratio = x / x
    return (ratio * x).log()


def by_square(x):
    square = x * x
    return square.sqrt()


@pytest.mark.parametrize(
    ("function", "x", "operator", "line"),
    [
        (by_root, [0.25, 2.0], "aten.sqrt", "root = (y - 1).sqrt()"),
        (by_ratio, [0.0, 2.0], "aten.div", "ratio = x / x"),
        (by_square, [1e200, 2.0], "aten.mul", "square = x * x"),
    ],
)
def test_the_first_of_those_that_follow_is_named(function, x, operator, line):
    found = origin(function, x)
    assert found.startswith(operator)
    assert found.endswith(line)


@pytest.mark.parametrize(("function", "x"), [(by_root, [0.75, 2.0]), (by_ratio, [1.0, 2.0]), (by_square, [1e100])])
def test_where_all_is_finite_nothing_is_named(function, x):
    assert origin(function, x) == ""


def test_what_overflows_in_its_own_dtype_only():
    """(10^30)^2 is beyond float32, 300^2 beyond float16."""
    for value, dtype in ((1e30, torch.float32), (300.0, torch.float16)):
        assert origin(by_square, [value], dtype).endswith("square = x * x")
        assert origin(by_square, [value]) == ""


def test_an_infinite_input_is_no_operators_fault():
    assert origin(lambda x: x - x, [np.inf, 1.0]) == ""
