"""Decisions on `Bounded` arrays: comparisons, the branches they choose, and piecewise-constant functions.

A decision is open where it could fall either way: at a tie that an input moves, or within the error of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.bounded import Bounded, are_integers, either, lift, sum_errors, with_absent
from symcheck.arithmetic.formats import working
from symcheck.arithmetic.special import STEP_FUNCTIONS

__all__ = ["QUOTIENTS", "Decision", "both", "compare", "either_of", "exact", "modulo", "negate", "piecewise", "step"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Truth values of a comparison, and where they could fall either way."""

    value: Mask
    open: Mask | None = None


def _still(a: Bounded) -> Mask:
    """Where no move of an input changes a value: everywhere if it depends on none, else where it is absent."""
    if not a.active:
        return np.ones((), dtype=bool)
    return np.zeros((), dtype=bool) if a.absent is None else a.absent


def compare(test: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Decision]:
    def decide(left: Any, right: Any) -> Decision:
        a, b = lift(left), lift(right)
        decided = np.asarray(test(a.value, b.value))
        if (a.error is None and b.error is None and not (a.active or b.active)) or _same_memory(a.value, b.value):
            return Decision(decided)
        slack = sum_errors(a.error, b.error)
        with np.errstate(all="ignore"):
            margin = np.abs(a.value - b.value)
        reach = np.zeros(()) if slack is None else slack
        still = _still(a) & _still(b)  # a tie of exact values that nothing moves is decided
        near = (margin <= reach) & ~(still & (reach == 0))
        return Decision(decided, near if near.any() else None)

    return decide


def _same_memory(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether both are the very same elements, as in the test x != x for NaN: no tie then."""
    one, other = left.__array_interface__, right.__array_interface__
    return all(one[key] == other[key] for key in ("data", "shape", "strides", "typestr"))


def both(*parts: Any) -> Decision:
    decisions = [_decision(part) for part in parts]
    value = np.logical_and.reduce(np.broadcast_arrays(*(d.value for d in decisions)))
    return Decision(value, _open_unless(decisions, settled_by=False))


def either_of(*parts: Any) -> Decision:
    decisions = [_decision(part) for part in parts]
    value = np.logical_or.reduce(np.broadcast_arrays(*(d.value for d in decisions)))
    return Decision(value, _open_unless(decisions, settled_by=True))


def _decision(part: Any) -> Decision:
    return part if isinstance(part, Decision) else Decision(np.asarray(part, dtype=bool))


def _open_unless(decisions: Sequence[Decision], settled_by: bool) -> Mask | None:
    """Open where some part is, unless a strict part settles the whole."""
    opened: Mask | None = None
    settled: Mask = np.zeros((), dtype=bool)
    for d in decisions:
        opened = either(opened, d.open)
        strict = (d.value == settled_by) if d.open is None else (d.value == settled_by) & ~d.open
        settled = settled | strict
    return None if opened is None else opened & ~settled


def negate(part: Any) -> Decision:
    d = _decision(part)
    return Decision(~d.value, d.open)


def piecewise(*branches: tuple[Any, Any]) -> Bounded:
    values = [lift(value) for value, _ in branches]
    zeros = [isinstance(value, int) and value == 0 for value, _ in branches]
    conditions = [_decision(condition) for _, condition in branches]
    shape = np.broadcast_shapes(*(v.value.shape for v in values), *(c.value.shape for c in conditions))
    complete = bool(np.all(conditions[-1].value))
    result = _Choice(shape, np.int64 if complete and are_integers(*values) else np.float64)
    reached: Mask = np.ones((), dtype=bool)  # where this branch is the first to hold, as decided
    possible: Mask = np.ones((), dtype=bool)  # where it could be
    for value, zero, condition in zip(values, zeros, conditions, strict=True):
        maybe = condition.value if condition.open is None else condition.value | condition.open
        surely = condition.value if condition.open is None else condition.value & ~condition.open
        result.add(value, zero, reached & condition.value, possible & maybe)
        reached, possible = reached & ~condition.value, possible & ~surely
    active = any(value.active for value in values)
    return result.finish(active, any(condition.open is not None for condition in conditions))


class _Choice:
    """Accumulates the branches of a piecewise body: the one taken, and the ones that could be."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.generic]) -> None:
        self.shape = shape
        self.value = np.full(shape, 0 if dtype is np.int64 else np.nan, dtype)
        self.error: Floats = np.zeros(shape)
        self.absent: Mask = np.zeros(shape, dtype=bool)
        self.never_absent: Mask = np.zeros(shape, dtype=bool)
        self.open: Mask = np.zeros(shape, dtype=bool)
        self.candidates: list[tuple[Bounded, Mask]] = []

    def add(self, branch: Bounded, zero: bool, taken: Mask, possible: Mask) -> None:
        np.copyto(self.value, branch.value, where=taken)
        if branch.error is not None:
            np.copyto(self.error, branch.error, where=taken)
        else:
            np.copyto(self.error, 0.0, where=taken)
        if branch.open is not None:
            self.open |= branch.open & taken
        mask = True if zero else branch.absent
        if mask is not None:
            np.copyto(self.absent, mask, where=taken)
            self.never_absent |= possible & ~np.asarray(mask)
        else:
            self.never_absent |= possible
        self.candidates.append((branch, possible))

    def finish(self, active: bool, undecided: bool) -> Bounded:
        if undecided:
            for branch, possible in self.candidates:
                own = 0.0 if branch.error is None else branch.error
                apart = np.abs(branch.value - self.value)
                apart = np.where(branch.value == self.value, 0.0, np.where(np.isnan(apart), np.inf, apart))
                differs = possible & ((apart > self.error + own) | (apart == np.inf))
                self.open |= differs
                self.error = np.where(possible, np.maximum(self.error, apart + own), self.error)
            self.absent &= ~self.never_absent
        absent = self.absent if self.absent.any() else None
        opened = self.open if self.open.any() else None
        return with_absent(self.value, self.error, absent, opened, Bounded(self.value, active=active))


def step(function: Callable[[Any], Any]) -> Callable[[Any], Bounded]:
    """A piecewise-constant function: its error is the jump within reach; absent has no part in it."""

    def apply(x: Any) -> Bounded:
        a = lift(x)
        value = np.asarray(function(a.value), dtype=np.float64)
        if a.error is None and not a.active:
            return Bounded(value)
        form = working()
        reach = form.tiny + (2 * form.unit * np.abs(a.value) if a.error is None else a.error)
        jump = np.maximum(np.abs(function(a.value - reach) - value), np.abs(function(a.value + reach) - value))
        opened = jump > 0
        return Bounded(value, jump, None, either(a.open, opened if opened.any() else None), None, a.active)

    return apply


def _quotient_step(name: str, rounding: Callable[[Any], Any]) -> Callable[[Any, Any], Bounded]:
    """x / y rounded to an integer; exact unless the quotient could lie on either side of a jump."""

    def apply(x: Any, y: Any) -> Bounded:
        a, b = lift(x), lift(y)
        value = np.asarray(STEP_FUNCTIONS[name](a.value, b.value))
        if a.error is None and b.error is None and not (a.active or b.active):
            return Bounded(value)
        return replace(step(rounding)(a / b), value=value)

    return apply


def modulo(name: str, quotient: str) -> Callable[[Any, Any], Bounded]:
    def apply(x: Any, y: Any) -> Bounded:
        a, b = lift(x), lift(y)
        value = np.asarray(STEP_FUNCTIONS[name](a.value, b.value))
        if a.error is None and b.error is None and not (a.active or b.active):
            return Bounded(value)
        return replace(a - b * QUOTIENTS[quotient](a, b), value=value)

    return apply


def exact(name: str) -> Callable[..., Bounded]:
    return lambda *arguments: Bounded(np.asarray(STEP_FUNCTIONS[name](*(lift(x).value for x in arguments))))


QUOTIENTS = {"floordiv": _quotient_step("floordiv", np.floor), "truncdiv": _quotient_step("truncdiv", np.trunc)}
