"""Jumps, kinks that cancel, and scales that float64 differences cannot see."""

import numpy as np
import pytest
import torch

import symcheck
from symcheck import Verdict


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.floor(x).sum(),
        lambda x: torch.sign(x - 1).sum(),
        lambda x: torch.where(x > 1, 1.0, 0.0).sum() + x.sum(),
    ],
)
def test_a_jump_is_no_pass_and_nothing_beside_it_is(function):
    at_jump = symcheck.check(function, (torch.tensor([1.0, 2.5]),))
    assert at_jump["autograd", "x"].verdict is Verdict.UNDECIDED
    assert "jump" in at_jump["autograd", "x"].reason
    beside = symcheck.check(function, (torch.tensor([1.25, 2.5]),))
    assert beside["autograd", "x"].verdict is Verdict.OK


def test_a_wrong_formula_is_convicted_at_a_jump_too():
    report = symcheck.check(
        lambda x: torch.floor(x[:1]).sum() + (x**2).sum(),
        (torch.tensor([1.0, 2.5]),),
        formulas={"x": lambda x: 2.001 * x},
    )
    assert report["formula", "x"].verdict is Verdict.FORMULA


def test_a_kink_of_second_order_is_none_of_first():
    """x|x| has the derivative 2|x| everywhere."""
    x = torch.tensor([0.0, 2.5, -3.0])
    right = symcheck.check(lambda x: (x * x.abs()).sum(), (x,), formulas={"x": lambda x: 2 * x.abs()})
    assert right["formula", "x"].verdict is Verdict.OK
    assert right["autograd", "x"].verdict is Verdict.OK
    wrong = symcheck.check(lambda x: (x * x.abs()).sum(), (x,), formulas={"x": lambda x: 2.001 * x.abs()})
    assert wrong["formula", "x"].verdict is Verdict.FORMULA


def test_a_kink_of_first_order_is_named():
    report = symcheck.check(lambda x: x.abs().sum(), (torch.tensor([0.0, 2.5]),))
    assert report["autograd", "x"].verdict is Verdict.NONSMOOTH


def test_differences_too_coarse_for_the_function_do_not_accuse_it():
    """|d|^(1/2) at d = 1e-44: no float64 step from there is small; a high-precision difference is."""
    a, b = torch.tensor([[1e-44, 1.0]]), torch.tensor([[0.0, 0.25]])
    report = symcheck.check(lambda a, b: torch.cdist(a, b, p=0.5), (a, b))
    assert report["autograd", "a"].verdict in (Verdict.OK, Verdict.ROUNDING)
    assert report["finite differences", "a"].verdict is Verdict.UNDECIDED


def test_a_fused_recurrent_layer_is_traced_in_its_parts():
    torch.manual_seed(0)
    report = symcheck.check(torch.nn.LSTM(3, 4), (torch.randn(5, 2, 3),), wrt=["input", "weight_hh_l0"])
    assert report.ok
    assert torch.backends.mkldnn.enabled


def test_a_small_frozen_term_is_still_seen_by_differences():
    """2^-30 of the value is less than the re-evaluated trace shows; differences see it, and balls do not overrule."""

    def function(x):
        return (x.exp() + 1e-9 * torch.from_numpy(np.sin(x.detach().numpy()))).sum()

    report = symcheck.check(function, (torch.tensor([0.5, -1.0], dtype=torch.float64),))
    assert not report.ok


def test_a_tie_of_another_input_is_no_kink_of_this_one():
    """The targets of a hinge embedding loss are 1 or -1, where it jumps in them; by x it is smooth."""
    x, y = torch.tensor([0.3, 0.6, -0.2]), torch.tensor([1.0, -1.0, 1.0])
    report = symcheck.check(
        torch.nn.functional.hinge_embedding_loss,
        {"input": x, "target": y},
        wrt=["input", "target"],
        formulas={"input": lambda input, target: target / 3},
    )
    assert report["formula", "input"].verdict is Verdict.OK
    assert report["autograd", "target"].verdict is Verdict.UNDECIDED


def test_a_value_that_underflows_in_its_dtype_is_still_the_functions():
    """1e-9 is 0 in float16. The gradient, 6e-9, is 0 as well, which is what it rounds to."""
    w = torch.tensor([0.0043, -0.0022, 0.0031], dtype=torch.float16)
    function = lambda w: (w**3).sum() * 1e-4  # noqa: E731
    right = symcheck.check(function, (w,), formulas={"w": lambda w: 3e-4 * w**2})
    for candidate in ("autograd", "formula"):
        assert right[candidate, "w"].verdict is Verdict.OK
    wide = symcheck.check(function, (w.float(),), formulas={"w": lambda w: 2e-4 * w**2})
    assert wide["autograd", "w"].verdict is Verdict.OK
    assert wide["formula", "w"].verdict is Verdict.FORMULA
