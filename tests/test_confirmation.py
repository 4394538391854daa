"""Candidates nearby: what is hidden at the input is found at generic ones, and a frozen trace is no program."""

import numpy as np
import pytest
import torch

from symcheck import Verdict, certification, check


def squares(x):
    return (x**2).sum()


@pytest.mark.parametrize("size", [3, 200_000])
def test_what_a_one_hides_is_found_nearby_however_large(size, monkeypatch):
    """At x = 1 the gradient 2 x of x^2 is also 2 x^2; large problems are first held in float64."""
    x = torch.ones(size, dtype=torch.float64)
    report = check(squares, (x,), formulas={"x": lambda x: 2 * x**2}, budget=0)
    assert report["formula", "x"].verdict is Verdict.FORMULA
    assert "generic inputs nearby" in report["formula", "x"].reason
    right = check(squares, (x,), formulas={"x": lambda x: x * 2.0 * x / x}, budget=0)
    assert right["formula", "x"].verdict is Verdict.OK


def only_float32(x):
    if x.dtype is not torch.float32:
        raise TypeError("float32 only")
    return 2 * x


def frozen_float32(x):
    if x.dtype is not torch.float32:
        raise TypeError("float32 only")
    return torch.from_numpy(2 * np.array(x.detach().tolist(), dtype=np.float32))


def test_a_formula_that_refuses_float64_is_confirmed_in_its_own_dtype():
    x = torch.tensor([0.5, 1.5, -2.5])
    finding = check(squares, (x,), formulas={"x": only_float32}, budget=0)["formula", "x"]
    assert finding.verdict is Verdict.OK
    assert "ladder" not in finding.reason
    frozen = check(squares, (x,), formulas={"x": frozen_float32}, budget=0)["formula", "x"]
    assert "ladder" in frozen.reason


def absolute(x):
    return torch.sqrt(x * x).sum()


@pytest.mark.parametrize(("slope", "verdict"), [(0.3, Verdict.NONSMOOTH), (1.5, Verdict.UNDECIDED)])
def test_a_slope_beyond_those_of_the_sides_is_undecided(slope, verdict):
    """|x| as a root has 0/0 at 0; its sides have the slopes -1 and 1."""
    x = torch.tensor([0.0, 2.0], dtype=torch.float64)
    formula = lambda x: torch.where(x == 0, slope, torch.sign(x))  # noqa: E731
    assert check(absolute, (x,), formulas={"x": formula}, budget=0)["formula", "x"].verdict is verdict


def test_no_limit_is_claimed_that_was_not_looked_for(monkeypatch):
    x = torch.tensor([0.0, 2.0], dtype=torch.float64)
    monkeypatch.setattr(certification, "MORE_SECONDS", 0.0)
    finding = check(absolute, (x,), budget=0)["autograd", "x"]
    assert finding.verdict is Verdict.UNDECIDED
    assert "nowhere" not in finding.reason
