"""Formula error apart from rounding: disjoint balls, tight overlaps, and constants read two ways."""

import numpy as np
import pytest
import torch

from symcheck.derivation import derive
from symcheck.separation import join_candidates
from symcheck.tracing import trace

X = {"x": torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)}
KEY = ("formula", "x")


def joint(function, formula, x=None):
    given = {"x": X["x"] if x is None else x}
    gradient = derive(trace(lambda tensors: (function(tensors["x"]).sum(),), given).program, ["x"])
    candidate = trace(lambda tensors: (formula(tensors["x"]),), given).program
    return join_candidates(gradient, ["x"], 0, [("formula", candidate, ("x",))])


def separated(function, formula, x=None):
    values = (X["x"] if x is None else x).double().numpy()
    given = {"x": values, "d_cotangent0": np.ones(())}
    return joint(function, formula, x).separate(given, [KEY], np.random.default_rng(0))[KEY]


@pytest.mark.parametrize("power", [20, 60, 83, 150])
def test_a_fault_of_any_size_is_apart_and_its_size_is_known(power):
    found = separated(lambda x: x**3, lambda x: 3 * x**2 + 2.0**-power)
    assert found.apart.all()
    assert np.allclose(found.difference, 2.0**-power, rtol=2.0**-50, atol=0)
    assert (found.formula_error >= found.difference).all()


def test_a_right_formula_overlaps_tightly():
    found = separated(lambda x: torch.sin(x) ** 2, lambda x: torch.sin(2 * x))
    assert not found.apart.any()
    assert not found.loose.any()
    assert (found.formula_error <= 2.0**-150).all()
    assert np.abs(found.exact - torch.sin(2 * X["x"]).numpy()).max() <= 2.0**-52


def test_one_wrong_element_is_apart_alone():
    found = separated(lambda x: x**3, lambda x: 3 * x**2 + 2.0**-100 * torch.tensor([0, 1, 0]))
    assert found.apart.tolist() == [False, True, False]


def test_a_gradient_that_cancels_is_followed_until_it_is_small_or_apart():
    """tanh(300)' is 4 exp(-600): no number of float64 beside 1, and not zero."""
    x = torch.tensor([300.0], dtype=torch.float64)
    right = separated(torch.tanh, lambda x: 1 - torch.tanh(x) ** 2, x)
    assert not right.apart.any()
    assert not right.loose.any()
    assert separated(torch.tanh, lambda x: (1 - torch.tanh(x) ** 2) * (1 + 2.0**-20), x).apart.all()
    assert separated(torch.tanh, lambda x: 0 * x, x).apart.all()


def test_what_is_not_finite_is_neither_apart_nor_right():
    x = torch.tensor([0.0, 1.0], dtype=torch.float64)
    found = separated(lambda x: x**2, lambda x: 2 * x**2 / x, x)
    assert not found.apart.any()
    assert np.isnan(found.formula_error[0])
    assert np.isnan(found.intended[0])
    assert found.formula_error[1] <= 2.0**-150


def test_a_program_that_is_the_gradients_is_proved_right():
    gradient = derive(trace(lambda tensors: (torch.sin(tensors["x"]).sum(),), X).program, ["x"])
    same = join_candidates(gradient, ["x"], 0, [("formula", gradient, ("x",))])
    assert same.is_same(KEY)
    found = same.separate({"x": X["x"].numpy(), "d_cotangent0": np.ones(())}, [KEY], np.random.default_rng(0))[KEY]
    assert found.same
    assert (found.formula_error == 0).all()
    assert not joint(torch.sin, lambda x: torch.cos(x) * (1 + 2.0**-20)).is_same(KEY)


# -- the readings of constants

THIRD = 1 / 3
STENCIL = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)
READ = {
    "binary": (lambda x: x**2 * 0.1, lambda x: 2 * x * 0.1, lambda x: 2 * x * (0.1 + 2.0**-40)),
    "as meant": (lambda x: x**2 * 0.1, lambda x: x / 5, lambda x: x / 5 * (1 + 2.0**-20)),
    "a third": (lambda x: x**2 * THIRD, lambda x: 2 * x / 3, lambda x: 2 * x * 0.333333),
    "both added": (lambda x: x**2 * 0.1 + x**2 * 0.2, lambda x: 2 * x * 0.3, lambda x: 2 * x * 0.3000001),
    "a stencil": (lambda x: STENCIL * x**2, lambda x: x * torch.tensor([1, 2, 7]) / 5, lambda x: 2 * x * STENCIL[0]),
    "sampled": (
        lambda x: x**2 * float(np.sqrt(2)) * float(np.sqrt(3)),
        lambda x: 2 * x * float(np.sqrt(6)),
        lambda x: 2 * x * 2.44949,
    ),
}


@pytest.mark.parametrize(("function", "right", "wrong"), READ.values(), ids=list(READ))
def test_constants_are_acquitted_to_their_own_precision(function, right, wrong):
    assert not separated(function, right).apart.any()
    assert separated(function, wrong).apart.any()


def test_what_was_sampled_says_so_and_what_was_read_does_not():
    assert separated(*READ["sampled"][:2]).sampled.all()
    assert not separated(*READ["as meant"][:2]).sampled.any()


def test_a_fault_beside_constants_read_both_ways_is_apart():
    """0.1 as written, and 1/10: the second reading makes them one, and leaves 2^-40 what it is."""
    assert not separated(lambda x: (0.1 * x) ** 2, lambda x: 2 * 0.1 * x / 10).apart.any()
    assert separated(lambda x: (0.1 * x) ** 2, lambda x: 2 * 0.1 * x / 10 + 2.0**-40 * x).apart.all()
