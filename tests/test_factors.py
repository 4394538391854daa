"""A factor is named where there is one, and none where one element disagrees."""

import numpy as np
import pytest

from symcheck.factors import advise_by_factor, describe_factor

EXACT = np.array([1.0, -2.0, 3.0, 0.0])
ALL = np.ones(4, dtype=bool)


@pytest.mark.parametrize(
    ("factor", "said", "advice"),
    [
        (0.5, ", by the factor 1/2 everywhere", "multiply it by 2"),
        (-1.0, ", by the factor -1 everywhere", "multiply it by -1"),
        (3.0, ", by the factor 3 everywhere", "multiply it by 1/3"),
        (1 / 7, ", by the factor 1/7 everywhere", "multiply it by 7"),
        (1 + 1e-6, ", by the factor (1 + 1e-06) everywhere", "multiply it by (1 - 1e-06)"),
        (np.pi, ", by the factor 3.14159 everywhere", "multiply it by 0.31831"),
        (0.0, ": it is zero everywhere", "a path from the input to the output is missing"),
    ],
)
def test_a_factor_and_its_cure(factor, said, advice):
    assert describe_factor(factor * EXACT, EXACT, ALL) == said
    assert advise_by_factor(factor * EXACT, EXACT, ALL) == advice


@pytest.mark.parametrize("change", [1e-2, -1.0, 2.0])
@pytest.mark.parametrize("place", [0, 2, 3])
def test_one_element_that_disagrees_leaves_no_factor(change, place):
    """At the last place the exact gradient is 0, and no factor makes it anything else."""
    wrong = EXACT / 2
    wrong[place] += change
    assert describe_factor(wrong, EXACT, ALL) == ""
    assert "element by element" in advise_by_factor(wrong, EXACT, ALL)
    rest = np.arange(4) != place
    assert describe_factor(wrong, EXACT, rest) == ", by the factor 1/2 everywhere"


def test_a_factor_closer_to_1_than_float64_is_known_from_the_difference():
    difference = 2.0**-83 * EXACT
    assert describe_factor(EXACT, EXACT, ALL, difference) == ", by the factor (1 + 1.03e-25) everywhere"
    assert describe_factor(EXACT, EXACT, ALL, -difference) == ", by the factor (1 - 1.03e-25) everywhere"


def test_a_sum_is_no_factor():
    """2^-83 added to each element is another part of each."""
    assert describe_factor(EXACT, EXACT, ALL, np.full(4, 2.0**-83)) == ""
    beside_a_zero = 2.0**-83 * EXACT
    beside_a_zero[3] = 2.0**-83
    assert describe_factor(EXACT, EXACT, ALL, beside_a_zero) == ""


def test_nothing_to_compare_has_no_factor():
    assert describe_factor(EXACT, 0 * EXACT, ALL) == ""
    assert describe_factor(EXACT, EXACT, ~ALL) == ""
