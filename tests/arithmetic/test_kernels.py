"""Torch's kernels stay within the ulps that rounding bounds rely on: a slice of `python -m benchmarks.ulps`."""

from dataclasses import replace

import pytest
import torch

from benchmarks.ulps import FUNCTIONS, measure
from symcheck.arithmetic.kernels import KERNEL_ULPS, UNSOUND, kernel_format
from symcheck.arithmetic.special import ULPS

COUNT = 25


def label(function):
    return function.name if function.order is None else f"{function.name}{function.order}"


def stated(function, dtype):
    return kernel_format(dtype, function.operator).ulps[function.name]


@pytest.mark.parametrize("function", FUNCTIONS, ids=label)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_kernel_is_as_accurate_as_stated(function, dtype):
    found = measure(function, dtype, COUNT)
    assert found is not None
    if not (dtype == "float64" and function.name in UNSOUND):
        assert found.ulps <= stated(function, dtype), found.at


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.operator or f.name in ("erf", "tanh")], ids=label)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_rounds_where_it_is_said_to(function, dtype):
    found = measure(function, dtype, COUNT)
    assert found is not None
    assert found.ulps <= stated(function, dtype), found.at


@pytest.mark.parametrize("name", ["exp", "tanh", "log_ndtr", "ndtr"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_slightly_worse_kernel_is_caught(name, dtype):
    function = next(f for f in FUNCTIONS if f.name == name)
    eps = torch.finfo(getattr(torch, dtype)).eps
    worse = replace(function, kernel=lambda *x: function.kernel(*x) * (1 + 4 * KERNEL_ULPS[name] * eps))
    found = measure(worse, dtype, COUNT)
    assert found is not None
    assert found.ulps > stated(function, dtype)


def test_what_float64_loses_is_not_in_the_table():
    """An entry that covered a kernel of float32's accuracy would hide what it loses."""
    worst = {name: max(measure(f, "float64", COUNT).ulps for f in FUNCTIONS if f.name == name) for name in UNSOUND}
    assert all(worst[name] > 1e4 > KERNEL_ULPS[name] for name in UNSOUND), worst


def test_every_function_has_an_entry():
    assert set(KERNEL_ULPS) == set(ULPS)
