"""Float64 with a running error bound, absent elements and open decisions.

Each value travels with

    error   a bound on |value - exact|; None where the value is exact
    absent  True where the element is identically zero near this point: whatever it is multiplied by, the product is
            absent, infinities and NaN included
    open    True where the element depends on a decision that could fall either way: an exact tie, or a margin
            smaller than the error. The error there covers both branches.
    peak    a number that no |value| exceeds; of large arrays only, where it saves a pass
    other   of a discrete value: what it would be in other worlds, where open decisions fell otherwise; worlds first

Absent comes from literal zeros of branches that are strictly taken and from positions that are not read.
Bounds follow Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1-3.3; sums are bounded in
any order of evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.formats import Format, working
from symcheck.arithmetic.special import FUNCTIONS, LIPSCHITZ, MONOTONE, POLES

__all__ = [
    "Bounded",
    "absolute",
    "are_integers",
    "either",
    "function",
    "growth_of",
    "is_bounded",
    "is_zero",
    "lift",
    "open_unless_zero",
    "power",
    "reciprocal",
    "sqrt",
    "sum_errors",
    "with_absent",
]

LOST = 2.0**-1000
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


def growth_of(count: int) -> float:
    """The relative error of n roundings: n u / (1 - n u), or (1 + u)^n - 1 where n u is 1/2 and more."""
    unit = working().unit
    product = count * unit
    return product / (1 - product) if product < 0.5 else float(np.expm1(min(700.0, count * np.log1p(unit))))


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """An array of values with their error bounds; see the module."""

    value: NDArray[Any]
    error: Floats | None = None
    absent: Mask | None = None
    open: Mask | None = None
    other: NDArray[np.int64] | None = None
    active: bool = False
    peak: float | None = None

    __array_priority__ = 1000.0

    def __add__(self, right: Any) -> Bounded:
        return _add(self, lift(right))

    def __radd__(self, left: Any) -> Bounded:
        return _add(lift(left), self)

    def __sub__(self, right: Any) -> Bounded:
        return _add(self, -lift(right))

    def __rsub__(self, left: Any) -> Bounded:
        return _add(lift(left), -self)

    def __mul__(self, right: Any) -> Bounded:
        return _multiply(self, lift(right))

    def __rmul__(self, left: Any) -> Bounded:
        return _multiply(lift(left), self)

    def __truediv__(self, right: Any) -> Bounded:
        return _multiply(self, reciprocal(lift(right)))

    def __rtruediv__(self, left: Any) -> Bounded:
        return _multiply(lift(left), reciprocal(self))

    def __neg__(self) -> Bounded:
        return replace(self, value=-self.value)


def lift(value: Any) -> Bounded:
    if isinstance(value, Bounded):
        return value
    whole = isinstance(value, int) and abs(value) <= 1 << 53
    return Bounded(np.asarray(value, dtype=np.int64 if whole else np.float64))


def are_integers(*parts: Bounded) -> bool:
    return all(part.value.dtype.kind == "i" for part in parts)


def either(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None:
        return right
    return left if right is None else left | right


def sum_errors(*errors: Floats | None) -> Floats | None:
    total: Floats | None = None
    for error in errors:
        if error is not None:
            total = error if total is None else total + error
    return total


def _add(a: Bounded, b: Bounded) -> Bounded:
    value, form = a.value + b.value, working()
    rounding = form.unit * (np.abs(a.value) + np.abs(b.value) if form.in_any_order else np.abs(value))
    absent = None if a.absent is None or b.absent is None else a.absent & b.absent
    if _is_zero(a) or _is_zero(b) or are_integers(a, b):  # exact
        rounding = np.zeros(())
    error = sum_errors(rounding, a.error, b.error)
    if error is not None and not np.isfinite(value).all():
        error = np.where(np.isinf(value) & (_exactly_infinite(a) | _exactly_infinite(b)), 0.0, error)
    return Bounded(value, error, absent, either(a.open, b.open), None, a.active or b.active)


def _exactly_infinite(a: Bounded) -> Mask:
    """Where the exact value is this infinity, such as a mask's, rather than a number that overflowed."""
    infinite = np.isinf(a.value)
    return np.asarray(infinite if a.error is None else infinite & (a.error == 0))


def _is_zero(a: Bounded) -> bool:
    return a.value.ndim == 0 and a.error is None and a.value == 0


def _is_unit(a: Bounded) -> bool:
    return a.value.ndim == 0 and a.error is None and np.abs(a.value) == 1


def _multiply(a: Bounded, b: Bounded) -> Bounded:
    value, form = a.value * b.value, working()
    parts: list[Floats] = []
    if not (_is_unit(a) or _is_unit(b) or are_integers(a, b)):
        parts.append(form.unit * np.abs(value) + form.tiny)
    if b.error is not None:
        parts.append(np.abs(a.value) * b.error)
    if a.error is not None:
        magnitude = np.abs(b.value) if b.error is None else np.abs(b.value) + b.error
        parts.append(magnitude * a.error)
    error = sum_errors(*parts)
    if error is not None and not np.isfinite(value).all():
        exact = (_exactly_infinite(a) & _certainly_nonzero(b)) | (_exactly_infinite(b) & _certainly_nonzero(a))
        error = np.where(exact, 0.0, error)
    opened = either(open_unless_zero(a, b), open_unless_zero(b, a))
    return with_absent(value, error, either(a.absent, b.absent), opened, a, b)


def open_unless_zero(a: Bounded, b: Bounded) -> Mask | None:
    """Where a is open and b is not zero, so that their product is open; x|x| has no kink of first order.

    Zero does not settle what has no bound: x / |x| at 0.
    """
    return None if a.open is None else np.asarray(a.open & ~(is_zero(b) & is_bounded(a)))


def is_bounded(a: Bounded) -> Mask:
    """Where a value and its error are finite."""
    return np.asarray(np.isfinite(a.value) & (True if a.error is None else np.isfinite(a.error)))


def is_zero(a: Bounded) -> Mask:
    """Where a value is zero, to within what underflow may have lost."""
    return np.asarray((a.value == 0) & (True if a.error is None else a.error < LOST))


def _certainly_nonzero(a: Bounded) -> Mask:
    return np.asarray(np.abs(a.value) > (0.0 if a.error is None else a.error))


def with_absent(
    value: Floats, error: Floats | None, absent: Mask | None, opened: Mask | None, *parents: Bounded
) -> Bounded:
    active = any(parent.active for parent in parents)
    if absent is None:
        return Bounded(value, error, None, opened, None, active)
    value = np.where(absent, 0.0, value)
    error = None if error is None else np.where(absent, 0.0, error)
    opened = None if opened is None else opened & ~absent
    return Bounded(value, error, absent, opened, None, active)


def reciprocal(a: Bounded) -> Bounded:
    value, form = 1.0 / a.value, working()
    error = form.unit * np.abs(value) + form.tiny
    if a.error is not None:
        room = np.abs(a.value) - a.error  # |1/x - 1/v| <= e / (|v| (|v| - e))
        spread = np.where(room > 0, a.error / (np.abs(a.value) * np.where(room > 0, room, 1.0)), np.inf)
        error = error + spread
    return Bounded(value, error, None, a.open, None, a.active)


def function(name: str) -> Callable[..., Bounded]:
    plain = FUNCTIONS[name]

    def apply(*arguments: Any) -> Bounded:
        form = working()
        ulps = form.ulps[name]
        slack = ulps if name in form.conditioned else None
        lifted = [lift(argument) for argument in arguments]
        points = [argument.value for argument in lifted]
        value = np.asarray(plain(*points), dtype=np.float64)
        size = np.maximum(np.abs(value), 1.0) if name in form.absolute else np.abs(value)
        error = 2 * ulps * form.unit * size + form.lost
        for position, argument in enumerate(lifted):
            reach = _reach(argument, slack, form)
            if reach is not None:
                error = error + _change(name, points, position, reach, value, form)
        opened = None
        for argument in lifted:
            opened = either(opened, argument.open)
        absent = _vanishing(value, lifted)
        return with_absent(value, error, absent, opened, *lifted)

    return apply


def _vanishing(value: Floats, arguments: Sequence[Bounded]) -> Mask | None:
    """Where a function of one argument is 0 at an exact infinity, such as exp of a mask: no move changes that."""
    if len(arguments) != 1 or np.isfinite(arguments[0].value).all():
        return None
    return np.asarray(_exactly_infinite(arguments[0]) & (value == 0))


def _reach(argument: Bounded, slack: float | None, form: Format) -> Floats | None:
    """How far an argument may be off, with `slack` of its own ulps; None where it is exact."""
    if argument.error is None and (slack is None or argument.value.dtype.kind == "i"):
        return None
    own = np.zeros(()) if argument.error is None else argument.error
    room = slack if slack is not None else 1.0 if form.is_reference else 0.0
    reach: Floats = own + 2 * room * form.unit * np.abs(argument.value)
    if not np.isfinite(argument.value).all():
        reach = np.where(_exactly_infinite(argument), 0.0, reach)
    return reach


def _change(
    name: str, points: Sequence[NDArray[Any]], position: int, reach: Floats, value: Floats, form: Format
) -> Floats:
    """How far a function moves where one argument moves by `reach` either way."""
    point, plain = points[position], FUNCTIONS[name]
    if name in LIPSCHITZ and position == len(points) - 1:
        return np.asarray(np.minimum(reach, 2.0))
    change = np.zeros(())
    for step in (point - reach, point + reach):
        corner = plain(*(step if place == position else other for place, other in enumerate(points)))
        change = np.maximum(change, np.where(corner == value, 0.0, np.abs(corner - value)))
    if name in POLES:
        low, high = POLES[name](point - reach), POLES[name](point + reach)
        change = np.where(low == high, change, np.inf)
    # Others are monotone within a few ulps, or turn by less than their own rounding. The reference's corners are as
    # uncertain as its values.
    return change if name in MONOTONE and not form.is_reference else 2 * change


def power(base: Any, exponent: Any) -> Bounded:
    if isinstance(exponent, int):
        return _integer_power(lift(base), exponent)
    return _GENERAL_POWER(base, exponent)


def _integer_power(base: Bounded, exponent: int) -> Bounded:
    if exponent < 0:
        return reciprocal(_integer_power(base, -exponent))
    if exponent > 64:
        return _GENERAL_POWER(base, float(exponent))
    result: Bounded | None = None
    square = base
    while exponent:
        if exponent & 1:
            result = square if result is None else result * square
        exponent >>= 1
        if exponent:
            square = square * square
    return result if result is not None else lift(1)


def sqrt(x: Any) -> Bounded:
    a = lift(x)
    value = np.sqrt(a.value)
    form = working()
    error = 2 * form.ulps["sqrt"] * form.unit * value
    # |sqrt(x) - sqrt(v)| <= e / sqrt(v), and <= sqrt(e) near 0; sqrt of |x|'s part below 0 is 0
    if a.error is not None:
        error = error + np.where(a.value > a.error, a.error / value, np.sqrt(a.error))
    return Bounded(value, error, a.absent, a.open, None, a.active)


_GENERAL_POWER = function("power")


def absolute(x: Any) -> Bounded:
    a = lift(x)
    return replace(a, value=np.abs(a.value))
