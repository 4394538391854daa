"""Generic points: what moves does, and what is a set stays in it."""

from fractions import Fraction

import numpy as np
import pytest

from symcheck.neighbours import generic, idealised, nudged

SIZE = 2.0**-10
DRAWN = np.random.default_rng(5).standard_normal((4, 4))
ROWS = np.exp(DRAWN) / np.exp(DRAWN).sum(1, keepdims=True)


def moved(values, size=SIZE, seed=0):
    return generic({"x": np.asarray(values)}, ["x"], np.random.default_rng(seed), size)["x"]


ORDINARY = {
    "numbers": DRAWN,
    "ones": np.ones(5),
    "zeros": np.zeros(5),
    "a scalar": np.array(1.0),
    "two ones": np.array([1.0, 0.0]) + 1,
    "large and small": np.array([1e30, 1e-30, 1.0]),
    "nearly a mask": np.array([0.0, 1.0, 1.0 + 2.0**-50]),
    "probabilities but for one": np.where(np.eye(4) > 0, 1.01, 1.0) * ROWS,
}


@pytest.mark.parametrize("values", ORDINARY.values(), ids=list(ORDINARY))
@pytest.mark.parametrize("size", [2.0**-10, 2.0**-20])
def test_ordinary_numbers_all_move_and_not_far(values, size):
    there = moved(values, size)
    scale = np.where(values == 0, np.abs(values).max() or 1.0, np.abs(values))
    step = np.abs(there - values)
    assert (step >= 2.0**-53 * scale).all()
    assert (step <= 2 * size * scale).all()


SETS = {
    "a mask": np.array([0.0, 1.0, 1.0]),
    "signs": np.array([-1.0, 1.0, 1.0]),
    "one-hots": np.eye(4)[[0, 2, 2]],
    "integers": np.array([3, 4, 5]),
    "truth values": np.array([True, False]),
    "nothing": np.zeros((0, 3)),
}


@pytest.mark.parametrize("values", SETS.values(), ids=list(SETS))
def test_what_stands_for_something_else_than_numbers_stays(values):
    assert np.array_equal(moved(values), values)


def test_what_is_not_named_stays():
    arrays = {"x": DRAWN, "y": DRAWN}
    there = generic(arrays, ["x"], np.random.default_rng(0), SIZE)
    assert np.array_equal(there["y"], DRAWN)
    assert not np.array_equal(there["x"], DRAWN)


@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_probabilities_keep_their_sum_exactly_and_move(axis):
    values = np.moveaxis(ROWS, 1, axis)
    there = moved(values)
    assert (there != values).any(axis=axis).all()
    assert (there >= 0).all()
    total = np.vectorize(Fraction, otypes=[object])
    assert (total(there).sum(axis=axis) == total(values).sum(axis=axis)).all()


def test_a_symmetric_matrix_stays_symmetric_and_another_does_not():
    there = moved(DRAWN + DRAWN.T)
    assert np.array_equal(there, there.T)
    assert (there != DRAWN + DRAWN.T).all()
    odd = DRAWN + DRAWN.T
    odd[0, 1] += 2.0**-40
    assert not np.array_equal(moved(odd) - np.triu(moved(odd)), (moved(odd) - np.tril(moved(odd))).T)


def test_what_is_not_finite_stays_and_the_rest_moves():
    values = np.array([np.inf, -np.inf, np.nan, 1.5])
    there = moved(values)
    assert np.array_equal(there[:3], values[:3], equal_nan=True)
    assert there[3] != 1.5


@pytest.mark.parametrize("roundoff", [2.0**-53, 2.0**-24])
def test_a_nudge_is_one_unit_in_the_last_place(roundoff):
    values = np.array([1.0, 1.5, -3.0, 0.0, np.inf])
    there = nudged({"x": values, "y": values}, np.random.default_rng(0), {"x": roundoff})
    assert np.array_equal(there["y"], values)
    assert np.array_equal(np.abs(there["x"][:4] - values[:4]), 2 * roundoff * np.array([1, 1, 2, 0]))
    assert there["x"][4] == np.inf


# -- laws kept up to rounding


def ideal(values, roundoff=2.0**-24):
    return idealised({"x": values}, {"x": roundoff}).get("x")


def in_single(values):
    return values.astype(np.float32).astype(np.float64)


def test_probabilities_sum_to_1_exactly():
    found = ideal(in_single(ROWS))
    assert all(sum(row) == 1 for row in found.tolist())
    assert np.abs(found.astype(np.float64) - ROWS).max() <= 2.0**-22


def test_rows_of_length_1_have_it_to_thousands_of_bits():
    found = ideal(in_single(DRAWN / np.linalg.norm(DRAWN, axis=1, keepdims=True)))
    assert all(abs(sum(x * x for x in row) - 1) < Fraction(1, 1 << 5000) for row in found.tolist())


def test_rows_of_mean_0_have_it_exactly():
    found = ideal(in_single(DRAWN - DRAWN.mean(1, keepdims=True)))
    assert all(sum(row) == 0 for row in found.tolist())


@pytest.mark.parametrize("size", [2.0**-18, 1.0])
def test_what_keeps_no_law_is_left_alone(size):
    """2^-18 is 64 units of float32: rounding four probabilities moves their sum by four at most."""
    assert ideal(in_single(ROWS * (1 + size))) is None
    assert ideal(DRAWN) is None
    assert ideal(in_single(ROWS), 2.0**-53) is None
