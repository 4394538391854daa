"""Every row of the table of meanings, because it is there: its values against torch, its derivative against none.

The derivative that SymPy derives is judged by `directional_agreement`: the primal alone, at two points, in balls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.samples import OpSample
from symcheck.arithmetic.ball import Ball, from_ball, working_precision
from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.derivation import derive
from symcheck.errors import UnknownOperator
from symcheck.evaluation import evaluate
from symcheck.program import Program
from symcheck.selfcheck import directional_agreement
from symcheck.semantics import TABLE
from symcheck.uninitialised import ALLOCATIONS
from tests.semantics.calls import CALLS, direct_call
from tests.semantics.reaching import FILE, Call, sample_named, slope_here, traced_call

REACHING: dict[str, list[str]] = json.loads(FILE.read_text())

# Torch's kernel and the program compute the same in float64, in orders of their own; so what bounds the program's
# error bounds the kernel's as to size, and a kernel may use other approximations: this many times the bound.
KERNEL = 16.0
UNIT = 2.0**-53

# row -> the relative error that torch's own float64 kernel is allowed, where it is worse; measured against balls
KERNELS_OFF: dict[str, float] = {
    "aten.polygamma": 1e-10,  # digamma at -4.15: 3.7e-11
    "aten.special_bessel_j0": 1e-9,  # at 3.7: 5.5e-10
    "aten.special_bessel_j1": 1e-9,  # at 3.7: 1.8e-10, of its value
    "aten.special_bessel_y0": 1e-9,  # at 3.7: 4.7e-10, of its value
    "aten.special_bessel_y1": 1e-9,  # at 3.7: 3.3e-10
}

# rows whose derivative is 0 wherever there is one
FLAT = frozenset(
    {"aten.angle", "aten.eq", "aten.floor", "aten.floor_divide", "aten.heaviside", "aten.ones_like", "aten.sgn"}
    | {"aten.div.Scalar_mode", "aten.div.Tensor_mode", "aten.round.decimals", "aten.round.default", "aten.sign"}
    | {"aten.trunc", "aten.where.Scalar", *ALLOCATIONS}
)


@cache
def calls_of(row: str) -> tuple[Call, ...]:
    traced = [traced_call(sample_named(name)) for name in REACHING.get(row, ())]
    return (*traced, *([direct_call(row)] if row in CALLS else []))


def values_of(call: Call, program: Program | None = None) -> list[Bounded]:
    outputs = evaluate(program or call.program, call.inputs, Bound(), moving=call.wrt)
    return outputs[: len(call.outputs)]


def furthest(
    call: Call, values: Sequence[Bounded], judges: Sequence[Any], allowed: Callable[[Bounded, Any], Any]
) -> str:
    """Where a value is further from its judge than allowed, "" if nowhere."""
    for place, (ours, judge) in enumerate(zip(values, judges, strict=True)):
        limit = np.broadcast_to(allowed(ours, error_of(ours)), ours.value.shape)
        gap = np.abs(ours.value - judge)
        wrong = ~((ours.value == judge) | (np.isnan(ours.value) & np.isnan(judge)) | (gap <= limit))
        if wrong.any():
            at = np.unravel_index(np.argmax(np.where(wrong, np.nan_to_num(gap, nan=np.inf), -1)), wrong.shape)
            where = f"output {place}{[int(index) for index in at]} of {call.name}"
            return f"{where}: {ours.value[at]!r} should be {judge[at]!r}, allowed {limit[at]:.2g}"
    return ""


def error_of(value: Bounded) -> Any:
    return 0.0 if value.error is None else np.nan_to_num(value.error, nan=np.inf, posinf=np.inf)


def value_problem(call: Call, program: Program | None = None, kernel_off: float = 0.0) -> str:
    """Where the program's values differ from torch's."""
    narrow = {array.dtype for array in (statement.out for statement in call.program.statements) if array.is_real}
    unit = max((float(torch.finfo(getattr(torch, dtype)).eps) / 2 for dtype in narrow), default=UNIT)

    def allowed(ours: Bounded, error: Any) -> Any:
        size = np.abs(ours.value)
        return KERNEL * (error + unit * size) + kernel_off * np.max(size, initial=0.0, where=np.isfinite(size))

    return furthest(call, values_of(call, program), call.outputs, allowed)


def bound_problem(call: Call, values: Sequence[Bounded] | None = None) -> str:
    """Where the running bound does not reach the value that balls give; those are then rounded to float64."""
    with working_precision(200):
        exact = [from_ball(value) for value in evaluate(call.program, call.inputs, Ball())[: len(call.outputs)]]
    values = values_of(call) if values is None else values
    known = [np.where(np.isfinite(ball), ball, ours.value) for ours, ball in zip(values, exact, strict=True)]
    return furthest(call, values, known, lambda ours, error: error + 2 * UNIT * np.abs(ours.value))


def derivative_problem(call: Call, gradient: Program | None = None) -> str:
    """How the derived gradient differs from a derivative-free difference in balls."""
    agreement = directional_agreement(call.program, call.wrt, call.inputs, np.random.default_rng(0), gradient=gradient)
    return "" if agreement.relative_error < 1e-12 else str(agreement)


def test_every_row_is_reached() -> None:
    missing = sorted(set(TABLE) - set(REACHING) - set(CALLS))
    assert not missing, f"run `python -m tests.semantics.reaching`, or add a call to CALLS for {missing}"
    stale = sorted((set(REACHING) | set(CALLS)) - set(TABLE))
    assert not stale, f"these rows are gone: {stale}"


@pytest.mark.parametrize("row", sorted(TABLE))
def test_row(row: str) -> None:
    if TABLE[row].formula.startswith("refused"):
        with pytest.raises(UnknownOperator):
            direct_call(row)
        return
    calls = calls_of(row)
    assert calls
    for call in calls:
        assert row in call.rows, f"{call.name} does not reach {row}; run `python -m tests.semantics.reaching`"
        assert row in ALLOCATIONS or not value_problem(call, kernel_off=KERNELS_OFF.get(row, 0.0))
        assert not bound_problem(call)
    slopes = {call.name: slope_here(call) for call in calls}
    for call in calls:
        assert slopes[call.name] not in ("smooth", "flat") or not derivative_problem(call), call.name
    assert row in FLAT or {"smooth", "none"} & set(slopes.values()), "no call shows a derivative; add one to CALLS"


# -- the tests of the tests: each judge convicts what is slightly wrong, and passes what is right ---------------------


def hand_call(function: Callable[..., Any]) -> Call:
    x = torch.linspace(0.3, 1.7, 6, dtype=torch.float64)
    return traced_call(OpSample("planted", function, {"x": x}, ("x",)))


@pytest.fixture
def right() -> Call:
    return hand_call(lambda x: torch.tanh(x) * x)


@pytest.fixture
def wrong() -> Call:
    return hand_call(lambda x: torch.tanh(x) * x * (1 + 1e-9))


def test_a_wrong_gradient_is_convicted(right: Call, wrong: Call) -> None:
    assert not derivative_problem(right, gradient=derive(right.program, right.wrt))
    assert derivative_problem(right, gradient=derive(wrong.program, wrong.wrt))


def test_a_wrong_value_is_convicted(right: Call, wrong: Call) -> None:
    assert not value_problem(right)
    assert value_problem(right, program=wrong.program)


def test_a_bound_too_small_is_convicted(right: Call) -> None:
    assert not bound_problem(right)
    (value,) = values_of(right)
    assert bound_problem(right, [replace(value, value=value.value * (1 + 8 * UNIT), error=value.error / 8)])
