"""Ball arithmetic: every element a python-flint `arb`, a midpoint with a rigorous radius, or `ABSENT`.

Discrete arrays stay int64. A comparison that the balls do not decide is taken by midpoints and counted in
`Ball.undecided`, so that a caller who needs proof can tell. Infinities follow IEEE arithmetic: 1/0 is +inf, 0 * inf
is NaN, and NaN stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from functools import cmp_to_key
from typing import Any, ClassVar

import flint
import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.decisions import Decision, both, either_of, negate
from symcheck.arithmetic.double import argument_selection, inverse_positions
from symcheck.arithmetic.enclosures import ENCLOSURES, integer_power
from symcheck.arithmetic.layout import Contraction

__all__ = [
    "ABSENT",
    "Ball",
    "difference_quotient",
    "differences",
    "enclosures",
    "from_ball",
    "moved_balls",
    "to_ball",
    "working_precision",
]

arb = flint.arb


class _Absent:
    """An element that is zero near this point, whatever it is multiplied by, infinities and NaN included."""

    __slots__ = ()

    def __mul__(self, other: Any) -> Any:
        return self

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return self

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return -other

    def __rsub__(self, other: Any) -> Any:
        return other

    def __truediv__(self, other: Any) -> Any:
        return self

    def __repr__(self) -> str:
        return "absent"


ABSENT: Any = _Absent()


@contextmanager
def working_precision(bits: int) -> Iterator[None]:
    """Evaluate balls at a precision of so many bits inside the block."""
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def to_ball(values: NDArray[Any]) -> NDArray[Any]:
    """Exact balls of float64 or integer values."""
    source = np.asarray(values)
    out = np.empty(source.shape, dtype=object)
    flat = out.reshape(-1)
    for place, value in enumerate(source.reshape(-1).tolist()):
        flat[place] = arb(value)
    return out


def from_ball(values: NDArray[Any]) -> NDArray[np.float64]:
    """The midpoints of balls, rounded to float64; NaN where a ball is not finite."""
    flat = [_middle(_ball(value)) for value in np.asarray(values).reshape(-1)]
    return np.array(flat, dtype=np.float64).reshape(np.shape(values))


def _middle(value: Any) -> float:
    return float(value.mid()) if value.is_finite() else float(value)


def enclosures(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Midpoints rounded to float64, and how far the exact values may be from them: nan and inf where not finite."""
    flat = np.asarray(_each(_ball)(np.asarray(values).reshape(-1)), dtype=object).reshape(-1)
    middle = from_ball(flat)
    radius = np.fromiter((_upper(v.rad()) if v.is_finite() else np.inf for v in flat.tolist()), np.float64, flat.size)
    error = radius + 2.0**-53 * np.abs(middle) + 5e-324
    error = np.where(np.isfinite(middle), error, np.inf)
    return middle.reshape(np.shape(values)), error.reshape(np.shape(values))


def differences(
    left: NDArray[Any], right: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """left - right: its midpoint, its radius (nan where not finite), and where it is proved not to be zero."""
    middle, radius, apart = [], [], []
    for x, y in zip(np.asarray(left).reshape(-1), np.asarray(right).reshape(-1), strict=True):
        gap = _ball(x) - _ball(y)
        finite = gap.is_finite()
        middle.append(float(gap.mid()) if finite else np.nan)
        radius.append(_upper(gap.rad()) if finite else np.nan)
        apart.append(finite and not gap.contains(0))
    shape = np.shape(left)
    parts = (np.array(middle), np.array(radius), np.array(apart, dtype=bool))
    return parts[0].reshape(shape), parts[1].reshape(shape), parts[2].reshape(shape)


def _upper(radius: Any) -> float:
    value = float(radius)
    return value if value == 0 else value * (1 + 2.0**-50) + 5e-324


def moved_balls(values: NDArray[Any], direction: NDArray[Any], sign: int, step: int) -> NDArray[Any]:
    """values + sign * 2^-step * direction, exact at any precision that holds both."""
    return np.asarray(to_ball(values) + to_ball(direction) * (arb(sign) / (1 << step)), dtype=object)


def difference_quotient(
    above: Sequence[NDArray[Any]], below: Sequence[NDArray[Any]], weights: Sequence[NDArray[Any]], step: int
) -> float:
    """sum of weights * (above - below) / (2 * 2^-step), over all arrays."""
    zero: Any = arb(0)
    total = zero
    for high, low, weight in zip(above, below, weights, strict=True):
        total += np.sum((high - low) * to_ball(weight), initial=zero)
    return float((total * (1 << (step - 1))).mid()) if total.is_finite() else float("nan")


def _ball(value: Any) -> Any:
    if isinstance(value, arb):
        return value
    return arb(0) if value is ABSENT else arb(value)


def _each(function: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    each: Callable[..., Any] = np.frompyfunc(lambda *arguments: function(*map(_ball, arguments)), count, 1)
    return each


def _quotient(x: Any, y: Any) -> Any:
    if x is ABSENT:
        return x
    x, y = _ball(x), _ball(y)
    return x * arb("inf") if y == 0 else x / y


_power: Any = _each(ENCLOSURES["power"][0], 2)


def _raise(base: Any, exponent: Any) -> Any:
    if isinstance(exponent, int) and exponent > 0 and np.asarray(base).dtype == object:
        return integer_power(base, exponent)
    return _power(base, exponent)


_divide: Any = np.frompyfunc(_quotient, 2, 1)


def _comparison(test: Callable[[Any, Any], bool]) -> Callable[..., Any]:
    def compare(left: Any, right: Any) -> tuple[bool, bool]:
        left, right = _ball(left), _ball(right)
        tied = bool(left.overlaps(right))
        if tied and not (left.is_exact() and right.is_exact()):
            Ball.undecided += 1
        if left.is_finite() and right.is_finite():
            return test(left.mid(), right.mid()), tied
        return test(left, right), tied

    ufunc = np.frompyfunc(compare, 2, 2)

    def decide(left: Any, right: Any) -> Any:
        result, tied = ufunc(left, right)
        discrete = np.asarray(left).dtype != object and np.asarray(right).dtype != object
        return Decision(np.asarray(result, dtype=bool), None if discrete else np.asarray(tied, dtype=bool))

    return decide


def _piecewise(*branches: tuple[Any, Any]) -> Any:
    """The first branch that holds; a literal 0 is absent where that is decided strictly."""
    decisions = [c if isinstance(c, Decision) else Decision(np.asarray(c, dtype=bool)) for _, c in branches]
    shape = np.broadcast_shapes(*(np.shape(value) for value, _ in branches), *(d.value.shape for d in decisions))
    result = np.full(shape, arb("nan"), dtype=object)
    opened = np.zeros(shape, dtype=bool)  # where this branch or an earlier one could hold or not
    taken = np.zeros(shape, dtype=bool)
    for (value, _), decision in zip(branches, decisions, strict=True):
        if decision.open is not None:
            opened |= decision.open & ~taken
        here = np.broadcast_to(decision.value, shape) & ~taken
        taken |= here
        if isinstance(value, int) and value == 0:
            result[here] = arb(0)
            result[here & ~opened] = ABSENT
        elif isinstance(value, np.ndarray) and value.dtype == object:
            result[here] = np.broadcast_to(value, shape)[here]
        else:
            result[here] = np.broadcast_to(np.asarray(_each(_ball)(value), dtype=object), shape)[here]
    return result


_MIDPOINTS: Any = np.frompyfunc(lambda x: x.mid() if x is not ABSENT and x.is_finite() else x, 1, 1)
_IS_ABSENT: Any = np.frompyfunc(lambda x: x is ABSENT, 1, 1)
_IS_WILD: Any = np.frompyfunc(lambda x: not _ball(x).is_finite(), 1, 1)


def _absent_of(values: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(_IS_ABSENT(values), dtype=bool)


class Ball:
    """The number system of object arrays of `arb`; run it inside `working_precision`."""

    undecided = 0

    namespace: ClassVar[dict[str, Any]] = {
        **{name: _each(function, count) for name, (function, count) in ENCLOSURES.items()},
        "divide": _divide,
        "power": _raise,
        "rational": lambda p, q: arb(p) / q,
        "piecewise": _piecewise,
        "less": _comparison(lambda x, y: bool(x < y)),
        "less_equal": _comparison(lambda x, y: bool(x <= y)),
        "greater": _comparison(lambda x, y: bool(x > y)),
        "greater_equal": _comparison(lambda x, y: bool(x >= y)),
        "equal": _comparison(lambda x, y: bool(x == y)),
        "unequal": _comparison(lambda x, y: not bool(x == y)),
        "both": both,
        "either": either_of,
        "negate": negate,
        "infinity": lambda: arb("inf"),
        "undefined": lambda: arb("nan"),
        "constant_Pi": lambda: arb.pi(),
        "constant_Exp1": lambda: arb(1).exp(),
        "constant_EulerGamma": lambda: arb.const_euler(),
    }

    def lift(self, values: NDArray[np.generic], *, real: bool, active: bool) -> NDArray[Any]:
        if not real:
            return np.asarray(values, dtype=np.int64)
        if values.dtype == object:  # balls already, or fractions among numbers
            return np.asarray(np.frompyfunc(self.constant, 1, 1)(values), dtype=object).reshape(values.shape)
        return to_ball(np.asarray(values, dtype=np.float64))

    def constant(self, value: Any) -> Any:
        if isinstance(value, arb) or value is ABSENT:
            return value
        if isinstance(value, Fraction):
            return arb(value.numerator) / value.denominator
        return arb(value)

    def hold(self, value: NDArray[Any]) -> NDArray[Any]:
        return value if value.dtype != object else _MIDPOINTS(value)

    def shape(self, value: NDArray[Any]) -> tuple[int, ...]:
        return np.shape(value)

    def map_arrays(self, function: Callable[[NDArray[Any]], NDArray[Any]], value: Any) -> NDArray[Any]:
        return function(np.asarray(value))

    def concatenate(self, values: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
        return np.concatenate(values, axis)

    def sum(self, value: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
        if value.dtype != object:
            return np.asarray(np.sum(value, axis=axes))
        return np.asarray(np.sum(value, axis=axes, initial=ABSENT), dtype=object)

    def plus(self, left: Any, right: Any) -> Any:
        return left + right

    def times(self, left: Any, right: Any) -> Any:
        return left * right

    def contract(self, left: NDArray[Any], right: NDArray[Any], plan: Contraction) -> NDArray[Any]:
        lefts, rights = plan.left(left), plan.right(right)
        shape = (lefts.shape[0], lefts.shape[1], rights.shape[2])
        out = np.empty(shape, dtype=object)
        if plan.summed == 1:
            return plan.back(np.asarray(lefts * rights, dtype=object))
        for place, (a, b) in enumerate(zip(lefts, rights, strict=True)):
            out[place] = _product(a, b)
        return plan.back(out)

    def settle(self, value: Any, *, real: bool) -> NDArray[Any]:
        values = np.asarray(value)
        if not real:
            if values.dtype == object:
                values = np.array([_integer(v) for v in values.reshape(-1)])
            return values.astype(np.int64).reshape(np.shape(value))
        if values.dtype == object and set(map(type, values.reshape(-1).tolist())) <= {arb, _Absent}:
            return values
        lifted = np.frompyfunc(lambda x: x if x is ABSENT else _ball(x), 1, 1)(values)
        return np.asarray(lifted, dtype=object).reshape(values.shape)

    def gather(
        self, sources: Sequence[NDArray[Any]], positions: NDArray[Any], offset: int, *, real: bool
    ) -> NDArray[Any]:
        flat = [element for source in sources for element in np.asarray(source).reshape(-1)]
        absent = ABSENT if real else 0
        where = (positions - offset).reshape(-1).tolist()
        picked = [flat[place] if 0 <= place < len(flat) else absent for place in where]
        out = np.empty(len(picked), dtype=object if real else np.int64)
        out[:] = picked
        return out.reshape(positions.shape)

    def scatter(
        self, value: NDArray[Any], positions: NDArray[Any], offset: int, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        out = np.empty(shape, dtype=object)
        flat = out.reshape(-1)
        flat[:] = [ABSENT] * flat.size
        for place, element in zip(
            (positions - offset).reshape(-1).tolist(), np.asarray(value).reshape(-1), strict=True
        ):
            if 0 <= place < flat.size:
                flat[place] = flat[place] + element
        return out

    def select(self, value: NDArray[Any], rule: str) -> NDArray[Any]:
        return argument_selection(_ranks(value) if value.dtype == object else value, rule)

    def invert(self, positions: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return inverse_positions(positions, shape)

    def in_every_world(self, function: Callable[[Sequence[Any]], Any], values: Sequence[Any], *, real: bool) -> Any:
        return function(values)


def _integer(value: Any) -> int:
    if value is ABSENT:
        return 0
    if not isinstance(value, arb):
        return int(value)
    return int(ENCLOSURES["trunc"][0](value).unique_fmpz()) if value.is_finite() else 0


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in the order of the midpoints along the last axis, equal where they are; NaN stays NaN."""
    rounded = from_ball(values)
    ranks = rounded.copy()
    for row in np.ndindex(*values.shape[:-1]):
        order = np.argsort(rounded[row], kind="stable")
        gaps = np.diff(rounded[row][order])
        if (gaps > 1e-12 * np.abs(rounded[row][order][1:])).all():
            continue  # float64 tells them apart
        middle = [value.mid() if value.is_finite() else value for value in map(_ball, values[row])]
        sorted_places = sorted(
            (place for place in order.tolist() if not np.isnan(rounded[row][place])),
            key=cmp_to_key(lambda i, j, middle=middle: (middle[i] > middle[j]) - (middle[i] < middle[j])),  # type: ignore[misc]
        )
        rank = 0
        for before, place in zip([None, *sorted_places], sorted_places, strict=False):
            rank += before is not None and bool(middle[before] < middle[place])
            ranks[(*row, place)] = rank
    return ranks


def _product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The product of two matrices; an absent element takes no part in it."""
    shape = (a.shape[0], b.shape[1])
    absent_a, absent_b = _absent_of(a), _absent_of(b)
    if not (absent_a.any() or absent_b.any()):
        return np.array((_matrix(a) * _matrix(b)).entries(), dtype=object).reshape(shape)
    if bool(np.any(_IS_WILD(a))) or bool(np.any(_IS_WILD(b))):
        rows = [np.sum(row[:, None] * b, axis=0, initial=ABSENT) for row in a]
        return np.array(rows, dtype=object).reshape(shape)
    product = np.array((_matrix(a) * _matrix(b)).entries(), dtype=object).reshape(shape)
    product[(~absent_a).astype(np.int64) @ (~absent_b).astype(np.int64) == 0] = ABSENT
    return product


def _matrix(values: NDArray[Any]) -> flint.arb_mat:
    rows, columns = values.shape
    return flint.arb_mat(rows, columns, [_ball(element) for element in values.reshape(-1).tolist()])
