"""The two readings of constants: which are taken for more than their bits, and what that lets pass."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from symcheck import Verdict, check
from symcheck.readings import DIGITS, is_inexact, meant


def single(value):
    return float(np.float32(value))


@pytest.mark.parametrize(
    "value", [0.1, 1e-5, 1 / 3, 1 + 1e-12, single(0.1), single(1e-5), single(0.044715), single(1 / 3)]
)
def test_rounded_decimals_and_fractions_are_inexact(value):
    assert is_inexact(value, DIGITS)


@pytest.mark.parametrize("value", [0.5, 100.5, 1 + 2.0**-20, 2.0**-23, 2.0**-83, 3 * 2.0**-30, 1e10, 7])
def test_literals_of_few_bits_are_exact(value):
    assert not is_inexact(value, DIGITS)


@pytest.mark.parametrize(
    ("value", "is_single", "fraction"),
    [
        (0.1, False, Fraction(1, 10)),
        (single(0.1), True, Fraction(1, 10)),
        (1 / 3, False, Fraction(1, 3)),
        (single(1 / 3), True, Fraction(1, 3)),
        (0.044715, False, Fraction(44715, 10**6)),
        (3.141592653589793, False, Fraction("3.141592653589793")),
    ],
)
def test_what_was_meant(value, is_single, fraction):
    assert meant(value, is_single) == fraction


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1 + 2.0**-20, 1 - 2.0**-22, 1 + 1e-6])
def test_a_factor_of_few_bits_is_no_constant_that_rounding_explains(factor, dtype):
    x = torch.tensor([0.5, -1.0, 2.0], dtype=dtype)
    for formula, verdict in ((lambda x: 3 * x**2 * factor, Verdict.FORMULA), (lambda x: 3 * x**2, Verdict.OK)):
        report = check(lambda x: (x**3).sum(), (x,), formulas={"x": formula}, budget=0)
        assert report["formula", "x"].verdict is verdict


@pytest.mark.parametrize("tenth", [0.1, single(0.1), Fraction(1, 10)], ids=["float64", "float32", "a fraction"])
def test_a_rounded_constant_explains_itself(tenth):
    x = torch.tensor([0.5, -1.0, 2.0])
    formula = {"x": lambda x: 2 * x * tenth if isinstance(tenth, float) else 2 * x / 10}
    report = check(lambda x: (0.1 * x**2).sum(), (x,), formulas=formula, budget=0)
    assert report["formula", "x"].verdict is Verdict.OK
    wrong = {"x": lambda x: formula["x"](x) * 1.0001}
    report = check(lambda x: (0.1 * x**2).sum(), (x,), formulas=wrong, budget=0)
    assert report["formula", "x"].verdict is Verdict.FORMULA


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_tensor_of_few_bits_is_a_rounded_constant_in_float32_only(dtype):
    """A float32 tensor holds what a person rounded to it; a float64 tensor would have held more of that."""
    x = torch.tensor([0.5, -1.0, 2.0], dtype=dtype)
    factor = torch.full((3,), 1 + 2.0**-20, dtype=dtype)
    report = check(lambda x: (x**3).sum(), (x,), formulas={"x": lambda x: 3 * x**2 * factor}, budget=0)
    assert report["formula", "x"].verdict is (Verdict.FORMULA if dtype is torch.float64 else Verdict.OK)
