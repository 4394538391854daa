"""Every family of functions at ordinary inputs in four dtypes: never convicted when right, always when wrong."""

import pytest
import torch

from symcheck import Verdict, check
from tests.certified.functions import FUNCTIONS

PASSES = {Verdict.OK, Verdict.ROUNDING}
# The factor planted in each dtype's backward: one ulp above 1 or less, and exact in the dtype.
FACTORS = {torch.float64: 1 + 2.0**-40, torch.float32: 1 + 2.0**-20, torch.bfloat16: 1.03125, torch.float16: 1.03125}
DTYPES = tuple(FACTORS)
HALVES = {name: DTYPES[2 + place % 2] for place, name in enumerate(FUNCTIONS)}  # either, by turns: a matter of time
RIGHT = [(name, dtype) for name in FUNCTIONS for dtype in (*DTYPES[:2], HALVES[name])]


def named(dtype):
    return str(dtype).removeprefix("torch.")


def runs(function, inputs):
    """Whether torch has kernels for a function and its backward in the dtype of its inputs."""
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    try:
        function(*given).sum().backward()
    except (NotImplementedError, RuntimeError) as error:
        if "not implemented for" in str(error):
            return False
        raise
    finally:
        if isinstance(function, torch.nn.Module):
            function.zero_grad()
    return True


@pytest.mark.parametrize(("name", "dtype"), RIGHT, ids=[f"{name}-{named(dtype)}" for name, dtype in RIGHT])
def test_what_is_right_passes(name, dtype):
    function, inputs = FUNCTIONS[name].built(dtype)
    if not runs(function, inputs):
        pytest.skip(f"torch has no kernel for it in {named(dtype)}")
    report = check(function, inputs, budget=0)
    for finding in report.findings:
        assert finding.verdict in PASSES, f"{finding.input}: {finding.reason}"


def exaggerating(factor):
    class Exaggerated(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * factor

    return Exaggerated.apply


@pytest.mark.parametrize("place", range(len(FUNCTIONS)), ids=list(FUNCTIONS))
def test_what_is_wrong_does_not(place):
    """The gradient by the first input is off by a factor; the dtype goes round."""
    name, dtype = list(FUNCTIONS)[place], DTYPES[place % len(DTYPES)]
    function, inputs = FUNCTIONS[name].built(dtype)
    if not runs(function, inputs):
        pytest.skip(f"torch has no kernel for it in {named(dtype)}")
    plant = exaggerating(FACTORS[dtype])
    report = check(lambda first, *rest: function(plant(first), *rest), inputs, "first", budget=0)
    assert report["autograd", "first"].verdict is Verdict.FORMULA, report["autograd", "first"].reason
