"""Ties and near-ties: gradients that depend on an open choice say so, and nothing else does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from symcheck.arithmetic.ball import Ball, to_ball, working_precision
from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.arithmetic.choices import alternative_selections
from symcheck.arithmetic.double import argument_selection
from symcheck.binding import bind
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.tracing import to_numpy, trace

TIED = [3.0, 1.0, 3.0, 2.0, 3.0, 0.0]
STRICT = [3.0, 1.0, 5.0, 2.0, 4.0, 0.0]
INF = float("inf")

# (name, function of a vector of 6, the elements whose derivative is open at TIED)
CASES: list[tuple[str, Callable[[Tensor], Tensor], list[int]]] = [
    ("max", lambda x: x.max(0)[0], [0, 2, 4]),
    ("max over all", lambda x: x.max(), [0, 2, 4]),
    ("amax", lambda x: x.amax(0), [0, 2, 4]),
    ("amin of the negative", lambda x: (-x).amin(), [0, 2, 4]),
    ("sort", lambda x: x.sort()[0], [0, 2, 4]),
    ("descending sort", lambda x: x.sort(descending=True)[0], [0, 2, 4]),
    ("topk of less than the tie", lambda x: x.topk(2)[0], [0, 2, 4]),
    ("kthvalue", lambda x: x.kthvalue(5)[0], [0, 2, 4]),
    ("max pooling", lambda x: F.max_pool1d(x[None, None], 3), [0, 2]),  # 2, 3, 4: 4 is alone
    ("adaptive max pooling", lambda x: F.adaptive_max_pool1d(x[None], 1), [0, 2, 4]),
    ("cummax", lambda x: x.cummax(0)[0], [0, 2, 4]),
    ("scatter_reduce", lambda x: x[:1].scatter_reduce(0, torch.zeros(6, dtype=torch.int64), x, "amax"), [0, 2, 4]),
    ("where of a comparison", lambda x: torch.where(x > 3, x, 2 * x), [0, 2, 4]),
]


def evaluated(function: Callable[[Tensor], Tensor], point: list[float]) -> tuple[Bounded, Bounded]:
    """The value and the gradient at a point, with cotangents that are all different."""
    binding = bind(function, (torch.tensor(point, dtype=torch.float64),))
    program = trace(binding.call, binding.inputs).program
    values = {name: to_numpy(tensor) for name, tensor in binding.inputs.items()}
    (result,) = evaluate(program, values, Bound())
    cotangent = 1.0 + np.arange(result.value.size).reshape(result.value.shape)
    (gradient,) = evaluate(derive(program, binding.wrt), {**values, "d_cotangent0": cotangent}, Bound())
    return result, gradient


def open_places(value: Bounded) -> list[int]:
    return [] if value.open is None else np.flatnonzero(np.broadcast_to(value.open, value.value.shape)).tolist()


@pytest.mark.parametrize(("name", "function", "expected"), CASES, ids=[case[0] for case in CASES])
def test_ties_open_the_gradient_of_every_tied_element(name: str, function: Any, expected: list[int]) -> None:
    result, gradient = evaluated(function, TIED)
    assert open_places(gradient) == expected
    if not name.startswith("where"):
        assert open_places(result) == []


@pytest.mark.parametrize(("name", "function", "expected"), CASES, ids=[case[0] for case in CASES])
def test_strict_choices_are_never_open(name: str, function: Any, expected: list[int]) -> None:
    strict = [value + 0.5 for value in STRICT] if name.startswith("where") else STRICT
    if name == "scatter_reduce":  # its own start is one of the elements
        strict = [-value for value in strict]
        strict[3] = 1.0
    result, gradient = evaluated(function, strict)
    assert open_places(result) == open_places(gradient) == []


def test_a_tie_that_no_gradient_reaches_is_not_open() -> None:
    """Taking all tied elements, in any order, with one cotangent."""
    binding = bind(lambda x: x.sort()[0].sum(), (torch.tensor(TIED, dtype=torch.float64),))
    program = derive(trace(binding.call, binding.inputs).program, binding.wrt)
    values = {name: to_numpy(tensor) for name, tensor in binding.inputs.items()}
    (gradient,) = evaluate(program, {**values, "d_cotangent0": np.ones(())}, Bound())
    assert open_places(gradient) == []


def test_near_ties_within_their_errors_are_open() -> None:
    _, gradient = evaluated(lambda x: (x / 3).exp().max(), [1.0, 1.0 + 2.0**-52, 0.5])
    assert open_places(gradient) == [0, 1]


def test_indices_chosen_by_value_carry_their_choice_through_integer_arithmetic() -> None:
    """x[argmax + 1 from the end]: the position is computed from an open one."""
    _, gradient = evaluated(lambda x: x.take((x.argmax() - 5).reshape(1)), TIED)
    assert open_places(gradient) == [1, 3, 5]


RULES = ("argmax", "argmin", "argsort", "argsort descending", "cumargmax", "cumargmin")


def compatible(value: np.ndarray, error: np.ndarray, rule: str, chosen: np.ndarray) -> bool:
    """Whether numbers within their errors could be chosen so."""
    low, high = value - error, value + error
    if rule.endswith("min"):
        low, high = -high, -low
    if rule.startswith("cum"):
        return all(chosen[j] <= j and high[chosen[j]] >= low[: j + 1].max() for j in range(len(chosen)))
    if rule.startswith("arg") and "sort" not in rule:
        return bool(high[chosen] >= low.max())
    return sorted(chosen.tolist()) == list(range(len(chosen)))


@pytest.mark.parametrize("rule", RULES)
def test_alternatives_are_possible_and_complete(rule: str) -> None:
    generator = np.random.default_rng(7)
    for _ in range(50):
        value = generator.integers(-3, 4, size=7).astype(float)
        error = generator.choice([0.0, 0.0, 0.6], size=7)
        chosen = np.asarray(argument_selection(value, rule))
        other = alternative_selections(value, error, rule, chosen)
        worlds = [chosen] if other is None else [chosen, *other]
        assert all(compatible(value, error, rule, np.asarray(world)) for world in worlds)
        if "sort" not in rule:
            named = set(np.concatenate([np.ravel(world) for world in worlds]).tolist())
            sign = -1 if rule.endswith("min") else 1
            low, high = sign * value - error, sign * value + error
            if rule.startswith("cum"):
                possible = {i for i in range(7) if high[i] >= low[: i + 1].max()}
            else:
                possible = {i for i in range(7) if high[i] >= low.max()}
            assert named >= possible


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("row", [[1.0, float("nan"), 3.0], [INF, 2.0, INF], [-INF, -INF, 0.0], [0.0]])
def test_selection_of_special_values_does_not_fail(rule: str, row: list[float]) -> None:
    value = np.array(row)
    alternative_selections(value, np.zeros(len(row)), rule, np.asarray(argument_selection(value, rule)))


@pytest.mark.parametrize("rule", RULES)
def test_balls_are_selected_beyond_float64(rule: str) -> None:
    with working_precision(300):
        tiny = to_ball(np.array(2.0**-200))[()]
        values = to_ball(np.array([1.0, 1.0, 1.0, 0.5, 1.0]))
        values[1] = values[1] + tiny
        values[4] = values[4] - tiny
        ranks = np.array([2.0, 3.0, 2.0, 0.0, 1.0])
        assert np.array_equal(Ball().select(values, rule), argument_selection(ranks, rule))
