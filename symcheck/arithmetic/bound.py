"""Float64 with a running error bound, absent elements and open decisions.

Each value travels with

    error   a bound on |value - exact|; None where the value is exact
    absent  True where the element is identically zero near this point: whatever it is multiplied by, the product is
            absent, infinities and NaN included
    open    True where the element depends on a decision that could fall either way: an exact tie, or a margin
            smaller than the error. The error there covers both branches.
    other   of a discrete value: what it would be in other worlds, where open decisions fell otherwise; worlds first

Absent comes from literal zeros of branches that are strictly taken and from positions that are not read.
Bounds follow Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1-3.3; sums are bounded in
any order of evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.choices import alternative_selections
from symcheck.arithmetic.double import Double, argument_selection
from symcheck.arithmetic.layout import Contraction
from symcheck.arithmetic.special import CONDITIONED, FUNCTIONS, STEP_FUNCTIONS, ULPS

__all__ = ["Bound", "Bounded"]

UNIT = 2.0**-53
TINY = 5e-324
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """An array of values with their error bounds; see the module."""

    value: NDArray[Any]
    error: Floats | None = None
    absent: Mask | None = None
    open: Mask | None = None
    other: NDArray[np.int64] | None = None
    active: bool = False

    __array_priority__ = 1000.0

    def __add__(self, right: Any) -> Bounded:
        return _add(self, _lift(right))

    def __radd__(self, left: Any) -> Bounded:
        return _add(_lift(left), self)

    def __sub__(self, right: Any) -> Bounded:
        return _add(self, -_lift(right))

    def __rsub__(self, left: Any) -> Bounded:
        return _add(_lift(left), -self)

    def __mul__(self, right: Any) -> Bounded:
        return _multiply(self, _lift(right))

    def __rmul__(self, left: Any) -> Bounded:
        return _multiply(_lift(left), self)

    def __truediv__(self, right: Any) -> Bounded:
        return _multiply(self, _reciprocal(_lift(right)))

    def __rtruediv__(self, left: Any) -> Bounded:
        return _multiply(_lift(left), _reciprocal(self))

    def __neg__(self) -> Bounded:
        return replace(self, value=-self.value)


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Truth values of a comparison, and where they could fall either way."""

    value: Mask
    open: Mask | None = None


def _lift(value: Any) -> Bounded:
    if isinstance(value, Bounded):
        return value
    whole = isinstance(value, int) and abs(value) <= 1 << 53
    return Bounded(np.asarray(value, dtype=np.int64 if whole else np.float64))


def _are_integers(*parts: Bounded) -> bool:
    return all(part.value.dtype.kind == "i" for part in parts)


def _either(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None:
        return right
    return left if right is None else left | right


def _sum_errors(*errors: Floats | None) -> Floats | None:
    present = [error for error in errors if error is not None]
    total = present[0] if present else None
    for error in present[1:]:
        total = total + error
    return total


def _add(a: Bounded, b: Bounded) -> Bounded:
    value = a.value + b.value
    rounding = UNIT * np.abs(value)
    absent = None if a.absent is None or b.absent is None else a.absent & b.absent
    if _is_zero(a) or _is_zero(b) or _are_integers(a, b):  # exact
        rounding = np.zeros(())
    error = _sum_errors(rounding, a.error, b.error)
    if error is not None and not np.isfinite(value).all():
        error = np.where(np.isinf(value) & (_exactly_infinite(a) | _exactly_infinite(b)), 0.0, error)
    return Bounded(value, error, absent, _either(a.open, b.open), None, a.active or b.active)


def _exactly_infinite(a: Bounded) -> Mask:
    """Where the exact value is this infinity, such as a mask's, rather than a number that overflowed."""
    infinite = np.isinf(a.value)
    return np.asarray(infinite if a.error is None else infinite & (a.error == 0))


def _is_zero(a: Bounded) -> bool:
    return a.value.ndim == 0 and a.error is None and a.value == 0


def _is_unit(a: Bounded) -> bool:
    return a.value.ndim == 0 and a.error is None and np.abs(a.value) == 1


def _multiply(a: Bounded, b: Bounded) -> Bounded:
    value = a.value * b.value
    parts: list[Floats] = [] if _is_unit(a) or _is_unit(b) or _are_integers(a, b) else [UNIT * np.abs(value) + TINY]
    if b.error is not None:
        parts.append(np.abs(a.value) * b.error)
    if a.error is not None:
        magnitude = np.abs(b.value) if b.error is None else np.abs(b.value) + b.error
        parts.append(magnitude * a.error)
    error = _sum_errors(*parts)
    if error is not None and not np.isfinite(value).all():
        exact = (_exactly_infinite(a) & _certainly_nonzero(b)) | (_exactly_infinite(b) & _certainly_nonzero(a))
        error = np.where(exact, 0.0, error)
    return _with_absent(value, error, _either(a.absent, b.absent), _either(a.open, b.open), a, b)


def _certainly_nonzero(a: Bounded) -> Mask:
    return np.asarray(np.abs(a.value) > (0.0 if a.error is None else a.error))


def _with_absent(
    value: Floats, error: Floats | None, absent: Mask | None, opened: Mask | None, *parents: Bounded
) -> Bounded:
    active = any(parent.active for parent in parents)
    if absent is None:
        return Bounded(value, error, None, opened, None, active)
    value = np.where(absent, 0.0, value)
    error = None if error is None else np.where(absent, 0.0, error)
    opened = None if opened is None else opened & ~absent
    return Bounded(value, error, absent, opened, None, active)


def _reciprocal(a: Bounded) -> Bounded:
    value = 1.0 / a.value
    error = UNIT * np.abs(value) + TINY
    if a.error is not None:
        room = np.abs(a.value) - a.error  # |1/x - 1/v| <= e / (|v| (|v| - e))
        spread = np.where(room > 0, a.error / (np.abs(a.value) * np.where(room > 0, room, 1.0)), np.inf)
        error = error + spread
    return Bounded(value, error, None, a.open, None, a.active)


def _function(name: str) -> Callable[..., Bounded]:
    plain, ulps = FUNCTIONS[name], ULPS[name]
    slack = ulps if name in CONDITIONED else None

    def apply(*arguments: Any) -> Bounded:
        lifted = [_lift(argument) for argument in arguments]
        points = [argument.value for argument in lifted]
        value = np.asarray(plain(*points), dtype=np.float64)
        error = 2 * ulps * UNIT * np.abs(value) + TINY
        moved = [_moved(argument, slack) for argument in lifted]
        for position, steps in enumerate(moved):
            # Within a few ulps the function is monotone, or turns by less than the rounding allowed for above.
            change = np.zeros(())
            for step in steps:
                corner = plain(*(step if place == position else point for place, point in enumerate(points)))
                change = np.maximum(change, np.where(corner == value, 0.0, np.abs(corner - value)))
            error = error + 2 * change if steps else error
        opened = None
        for argument in lifted:
            opened = _either(opened, argument.open)
        absent = _vanishing(value, lifted)
        return _with_absent(value, error, absent, opened, *lifted)

    return apply


def _vanishing(value: Floats, arguments: Sequence[Bounded]) -> Mask | None:
    """Where a function of one argument is 0 at an exact infinity, such as exp of a mask: no move changes that."""
    if len(arguments) != 1 or np.isfinite(arguments[0].value).all():
        return None
    return np.asarray(_exactly_infinite(arguments[0]) & (value == 0))


def _moved(argument: Bounded, slack: float | None) -> tuple[Floats, ...]:
    """The argument as far as it may be off, and by `slack` of its own ulps, either way."""
    if argument.error is None and (slack is None or argument.value.dtype.kind == "i"):
        return ()
    own = 0.0 if argument.error is None else argument.error
    reach = own + 2 * (1 if slack is None else slack) * UNIT * np.abs(argument.value)
    if not np.isfinite(argument.value).all():
        reach = np.where(_exactly_infinite(argument), 0.0, reach)
    return argument.value - reach, argument.value + reach


def _power(base: Any, exponent: Any) -> Bounded:
    if isinstance(exponent, int):
        return _integer_power(_lift(base), exponent)
    return _GENERAL_POWER(base, exponent)


def _integer_power(base: Bounded, exponent: int) -> Bounded:
    if exponent < 0:
        return _reciprocal(_integer_power(base, -exponent))
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
    return result if result is not None else _lift(1)


def _sqrt(x: Any) -> Bounded:
    a = _lift(x)
    value = np.sqrt(a.value)
    error = UNIT * value
    if a.error is not None:  # |sqrt(x) - sqrt(v)| <= e / sqrt(v), and <= sqrt(e) near 0; sqrt of |x|'s part below 0 is 0
        error = error + np.where(a.value > a.error, a.error / value, np.sqrt(a.error))
    return Bounded(value, error, a.absent, a.open, None, a.active)


_GENERAL_POWER = _function("power")


def _absolute(x: Any) -> Bounded:
    a = _lift(x)
    return replace(a, value=np.abs(a.value))


def _still(a: Bounded) -> Mask:
    """Where no move of an input changes a value: everywhere if it depends on none, else where it is absent."""
    if not a.active:
        return np.ones((), dtype=bool)
    return np.zeros((), dtype=bool) if a.absent is None else a.absent


def _compare(test: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Decision]:
    def compare(left: Any, right: Any) -> Decision:
        a, b = _lift(left), _lift(right)
        decided = np.asarray(test(a.value, b.value))
        if (a.error is None and b.error is None and not (a.active or b.active)) or _same_memory(a.value, b.value):
            return Decision(decided)
        slack = _sum_errors(a.error, b.error)
        with np.errstate(all="ignore"):
            margin = np.abs(a.value - b.value)
        reach = np.zeros(()) if slack is None else slack
        still = _still(a) & _still(b)  # a tie of exact values that nothing moves is decided
        near = (margin <= reach) & ~(still & (reach == 0))
        return Decision(decided, near if near.any() else None)

    return compare


def _same_memory(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether both are the very same elements, as in the test x != x for NaN: no tie then."""
    one, other = left.__array_interface__, right.__array_interface__
    return all(one[key] == other[key] for key in ("data", "shape", "strides", "typestr"))


def _both(*parts: Any) -> Decision:
    decisions = [_decision(part) for part in parts]
    value = np.logical_and.reduce(np.broadcast_arrays(*(d.value for d in decisions)))
    return Decision(value, _open_unless(decisions, settled_by=False))


def _either_of(*parts: Any) -> Decision:
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
        opened = _either(opened, d.open)
        strict = (d.value == settled_by) if d.open is None else (d.value == settled_by) & ~d.open
        settled = settled | strict
    return None if opened is None else opened & ~settled


def _negate(part: Any) -> Decision:
    d = _decision(part)
    return Decision(~d.value, d.open)


def _piecewise(*branches: tuple[Any, Any]) -> Bounded:
    values = [_lift(value) for value, _ in branches]
    zeros = [isinstance(value, int) and value == 0 for value, _ in branches]
    conditions = [_decision(condition) for _, condition in branches]
    shape = np.broadcast_shapes(*(v.value.shape for v in values), *(c.value.shape for c in conditions))
    complete = bool(np.all(conditions[-1].value))
    result = _Choice(shape, np.int64 if complete and _are_integers(*values) else np.float64)
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
        return _with_absent(self.value, self.error, absent, opened, Bounded(self.value, active=active))


def _step(function: Callable[[Any], Any]) -> Callable[[Any], Bounded]:
    """A piecewise-constant function: its error is the jump within reach; absent has no part in it."""

    def apply(x: Any) -> Bounded:
        a = _lift(x)
        value = np.asarray(function(a.value), dtype=np.float64)
        if a.error is None and not a.active:
            return Bounded(value)
        reach = 2 * UNIT * np.abs(a.value) + TINY if a.error is None else a.error + TINY
        jump = np.maximum(np.abs(function(a.value - reach) - value), np.abs(function(a.value + reach) - value))
        opened = jump > 0
        return Bounded(value, jump, None, _either(a.open, opened if opened.any() else None), None, a.active)

    return apply


def _quotient_step(name: str, rounding: Callable[[Any], Any]) -> Callable[[Any, Any], Bounded]:
    """x / y rounded to an integer; exact unless the quotient could lie on either side of a jump."""

    def apply(x: Any, y: Any) -> Bounded:
        a, b = _lift(x), _lift(y)
        value = np.asarray(STEP_FUNCTIONS[name](a.value, b.value))
        if a.error is None and b.error is None and not (a.active or b.active):
            return Bounded(value)
        return replace(_step(rounding)(a / b), value=value)

    return apply


def _modulo(name: str, quotient: str) -> Callable[[Any, Any], Bounded]:
    def apply(x: Any, y: Any) -> Bounded:
        a, b = _lift(x), _lift(y)
        value = np.asarray(STEP_FUNCTIONS[name](a.value, b.value))
        if a.error is None and b.error is None and not (a.active or b.active):
            return Bounded(value)
        return replace(a - b * _QUOTIENTS[quotient](a, b), value=value)

    return apply


def _exact(name: str) -> Callable[..., Bounded]:
    return lambda *arguments: Bounded(np.asarray(STEP_FUNCTIONS[name](*(_lift(x).value for x in arguments))))


_QUOTIENTS = {"floordiv": _quotient_step("floordiv", np.floor), "truncdiv": _quotient_step("truncdiv", np.trunc)}


class Bound:
    """The number system of `Bounded` arrays."""

    namespace: dict[str, Any] = {
        **{name: _function(name) for name in FUNCTIONS},
        "power": _power,
        "sqrt": _sqrt,
        "reciprocal": lambda x: _reciprocal(_lift(x)),
        "rational": lambda p, q: Bounded(np.asarray(p / q), np.asarray(UNIT * abs(p / q)) if q & (q - 1) else None),
        "piecewise": _piecewise,
        "less": _compare(np.less),
        "less_equal": _compare(np.less_equal),
        "greater": _compare(np.greater),
        "greater_equal": _compare(np.greater_equal),
        "equal": _compare(np.equal),
        "unequal": _compare(np.not_equal),
        "both": _both,
        "either": _either_of,
        "negate": _negate,
        "Abs": _absolute,
        **{name: _step(STEP_FUNCTIONS[name]) for name in ("floor", "ceiling", "trunc", "rint", "binary_exponent")},
        **{name: _exact(name) for name in ("isnan", "isposinf", "isneginf", "bitand", "bitor", "bitxor")},
        **_QUOTIENTS,
        "remainder": _modulo("remainder", "floordiv"),
        "Mod": _modulo("Mod", "floordiv"),
        "fmod": _modulo("fmod", "truncdiv"),
        "infinity": lambda: _lift(np.inf),
        "undefined": lambda: _lift(np.nan),
        "constant_Pi": lambda: Bounded(np.asarray(np.pi), np.asarray(UNIT * 4)),
        "constant_Exp1": lambda: Bounded(np.asarray(np.e), np.asarray(UNIT * 4)),
        "constant_EulerGamma": lambda: Bounded(np.asarray(np.euler_gamma), np.asarray(UNIT)),
    }

    def __init__(self) -> None:
        self._plain = Double()

    def lift(self, values: NDArray[np.generic], *, real: bool, active: bool) -> Bounded:
        return Bounded(self._plain.lift(values, real=real, active=active), active=active)

    def constant(self, value: Any) -> Any:
        return value if isinstance(value, int) and abs(value) <= 1 << 53 else float(value)

    def hold(self, value: Bounded) -> Bounded:
        return Bounded(value.value)

    def shape(self, value: Bounded) -> tuple[int, ...]:
        return np.shape(value.value)

    def map_arrays(self, function: Callable[[NDArray[Any]], NDArray[Any]], value: Any) -> Bounded:
        value = _lift(value)
        shape = value.value.shape

        def move(part: NDArray[Any] | None) -> NDArray[Any] | None:
            if part is None:
                return None
            return function(part if part.shape == shape else np.broadcast_to(part, shape))

        other = None if value.other is None else np.stack([function(world) for world in value.other])
        return Bounded(
            function(value.value), move(value.error), move(value.absent), move(value.open), other, value.active
        )

    def concatenate(self, values: Sequence[Bounded], axis: int) -> Bounded:
        return _joined(values, lambda parts: np.concatenate(parts, axis))

    def plus(self, left: Bounded, right: Bounded) -> Bounded:
        return left + right

    def times(self, left: Any, right: Any) -> Bounded:
        return _lift(left) * _lift(right)

    def sum(self, value: Bounded, axes: tuple[int, ...]) -> Bounded:
        if not axes:
            return value
        count = int(np.prod([value.value.shape[axis] for axis in axes]))
        total = np.sum(value.value, axis=axes)
        error = _growth(count) * np.sum(np.abs(value.value), axis=axes) if count > 1 else np.zeros_like(total)
        if value.error is not None:
            error = error + (1 + _growth(count)) * np.sum(np.broadcast_to(value.error, value.value.shape), axis=axes)
        absent = None if value.absent is None else np.all(np.broadcast_to(value.absent, value.value.shape), axis=axes)
        opened = None if value.open is None else np.any(np.broadcast_to(value.open, value.value.shape), axis=axes)
        return Bounded(np.asarray(total), np.asarray(error), absent, opened, None, value.active)

    def contract(self, left: Bounded, right: Bounded, plan: Contraction) -> Bounded:
        a = self.map_arrays(plan.left, left)
        b = self.map_arrays(plan.right, right)
        if _poisoned(a, b):
            return self.map_arrays(plan.back, self._contract_by_terms(a, b))
        value = np.matmul(a.value, b.value)
        error = _product_error(a, b, plan.summed)
        absent = opened = None
        if a.absent is not None or b.absent is not None:
            absent = _matmul_masks(_present(a), _present(b)) == 0
        if a.open is not None or b.open is not None:
            opened = (_matmul_masks(_opened(a), _present(b)) + _matmul_masks(_present(a), _opened(b))) > 0
        result = _with_absent(value, error, absent, opened, a, b)
        return self.map_arrays(plan.back, result)

    def _contract_by_terms(self, a: Bounded, b: Bounded) -> Bounded:
        """Matrix products term by term, for absent elements beside infinities and NaN."""
        rows = []
        for place in range(a.value.shape[1]):
            row = self.map_arrays(lambda array, place=place: array[:, place, :, None], a)  # type: ignore[misc]
            rows.append(self.map_arrays(lambda array: array[:, None, :], self.sum(row * b, (1,))))
        if not rows:
            return Bounded(np.zeros((a.value.shape[0], 0, b.value.shape[2])))
        return self.concatenate(rows, 1)

    def settle(self, value: Any, *, real: bool) -> Bounded:
        value = _lift(value)
        if real:
            return replace(value, value=value.value.astype(np.float64, copy=False))
        plain = self._plain.settle(value.value, real=False)
        if value.open is None or value.error is None:
            return Bounded(plain, other=value.other)
        opened = np.broadcast_to(value.open, plain.shape)
        jump = np.where(opened, self._plain.settle(value.error, real=False), 0)
        if np.isin(plain, (0, 1)).all() and (jump <= 1).all():  # a truth value
            return Bounded(plain, other=np.where(opened, 1 - plain, plain)[None])
        return Bounded(plain, other=np.stack([plain - jump, plain + jump]))

    def gather(self, sources: Sequence[Bounded], positions: Bounded, offset: int, *, real: bool) -> Bounded:
        def pick(values: Sequence[Bounded]) -> Bounded:
            parts = [self.map_arrays(lambda array: array.reshape(-1), source) for source in values[:-1]]
            empty = Bounded(np.zeros(0, dtype=np.float64 if real else np.int64))
            flat = _joined(parts, np.concatenate) if parts else empty
            return _pick(flat, values[-1].value - offset, real)

        return self.in_every_world(pick, [*sources, positions], real=real)

    def scatter(self, value: Bounded, positions: Bounded, offset: int, shape: tuple[int, ...]) -> Bounded:
        def add(values: Sequence[Bounded]) -> Bounded:
            return self._scatter_plainly(values[0], values[1].value, offset, shape)

        return self.in_every_world(add, [value, positions], real=value.value.dtype.kind == "f")

    def _scatter_plainly(
        self, value: Bounded, positions: NDArray[Any], offset: int, shape: tuple[int, ...]
    ) -> Bounded:
        size = int(np.prod(shape))
        where = (positions - offset).reshape(-1)
        inside = (where >= 0) & (where < size)
        if value.absent is not None:
            inside &= ~value.absent.reshape(-1)
        where = where[inside]

        def total(part: NDArray[Any]) -> Floats:
            flat = np.broadcast_to(part, value.value.shape).reshape(-1)[inside]
            return np.bincount(where, weights=flat, minlength=size)[:size].reshape(shape)

        count = np.bincount(where, minlength=size)[:size].reshape(shape)
        most = int(count.max(initial=0))
        error = _growth(most) * total(np.abs(value.value)) if most > 1 else np.zeros(shape)
        if value.error is not None:
            error = error + 2 * total(value.error)
        opened = None if value.open is None else total(value.open) > 0
        result = total(value.value).astype(value.value.dtype)
        return Bounded(result, error, count == 0, opened, None, value.active)

    def select(self, value: Bounded, rule: str) -> Bounded:
        return self.in_every_world(lambda values: _selected(values[0], rule), [value], real=False)

    def invert(self, positions: Bounded, shape: tuple[int, ...]) -> Bounded:
        return self.in_every_world(
            lambda values: Bounded(self._plain.invert(values[0].value, shape)), [positions], real=False
        )

    def in_every_world(
        self, function: Callable[[Sequence[Bounded]], Bounded], values: Sequence[Bounded], *, real: bool
    ) -> Bounded:
        first = function([_in_world(value, None) for value in values])
        count = max((len(value.other) for value in values if value.other is not None), default=0)
        return _united(first, [function([_in_world(value, n) for value in values]) for n in range(count)], real)


def _in_world(value: Bounded, world: int | None) -> Bounded:
    if value.other is None:
        return value
    return replace(value, value=value.value if world is None else value.other[world % len(value.other)], other=None)


def _selected(value: Bounded, rule: str) -> Bounded:
    chosen = argument_selection(value.value, rule)
    if value.error is None and not value.active:
        return Bounded(chosen)
    error = np.broadcast_to(np.zeros(()) if value.error is None else value.error, value.value.shape)
    return Bounded(chosen, other=alternative_selections(value.value, error, rule, chosen))


def _growth(count: int) -> float:
    """n u / (1 - n u): the relative error of n roundings, inf where n u reaches 1."""
    product = count * UNIT
    return product / (1 - product) if product < 1 else float("inf")


def _joined(values: Sequence[Bounded], join: Callable[[Sequence[NDArray[Any]]], NDArray[Any]]) -> Bounded:
    def part(name: str, default: Callable[[Bounded], Any]) -> NDArray[Any] | None:
        parts = [getattr(value, name) for value in values]
        if all(item is None for item in parts):
            return None
        full = [
            np.broadcast_to(default(value) if item is None else item, value.value.shape)
            for item, value in zip(parts, values, strict=True)
        ]
        return join(full)

    return Bounded(
        join([value.value for value in values]),
        part("error", lambda value: 0.0),
        part("absent", lambda value: False),
        part("open", lambda value: False),
        None,
        any(value.active for value in values),
    )


def _pick(flat: Bounded, where: NDArray[Any], real: bool) -> Bounded:
    size = flat.value.size
    inside = (where >= 0) & (where < size)
    outside = not bool(inside.all())
    place = np.where(inside, where, 0) if outside else where
    if size == 0:
        return Bounded(np.zeros(where.shape), None, np.ones(where.shape, dtype=bool)) if real else Bounded(
            np.zeros(where.shape, dtype=np.int64)
        )

    def take(part: NDArray[Any] | None) -> NDArray[Any] | None:
        if part is None:
            return None
        picked = np.broadcast_to(part, flat.value.shape)[place]
        return np.where(inside, picked, np.zeros((), dtype=picked.dtype)) if outside else picked

    absent = take(flat.absent)
    if outside and real:
        absent = ~inside if absent is None else absent | ~inside
    value = take(flat.value)
    assert value is not None
    return Bounded(value, take(flat.error), absent, take(flat.open), None, flat.active)


def _united(first: Bounded, others: Sequence[Bounded], real: bool) -> Bounded:
    """The first result, where choices of positions are open and could have given the others."""
    if not others:
        return first
    if not real:
        worlds = [other.value for other in others] + ([] if first.other is None else list(first.other))
        return Bounded(first.value, other=np.stack(worlds))
    return reduce(_covering, others, first)


def _covering(first: Bounded, second: Bounded) -> Bounded:
    own = np.zeros(()) if first.error is None else first.error
    theirs = np.zeros(()) if second.error is None else second.error
    apart = np.abs(first.value - second.value)
    apart = np.where(np.isnan(apart) & ~(np.isnan(first.value) & np.isnan(second.value)), np.inf, apart)
    differs = apart > own + theirs
    error = np.maximum(own, apart + theirs)
    absent = None
    if first.absent is not None and second.absent is not None:
        absent = first.absent & second.absent
    opened = _either(_either(first.open, second.open), differs if differs.any() else None)
    return Bounded(first.value, error, absent, opened, None, first.active)


def _poisoned(a: Bounded, b: Bounded) -> bool:
    """Whether an absent element of one side could meet an infinity or NaN of the other."""

    def bad(side: Bounded) -> bool:
        return not np.isfinite(np.sum(side.value)) and not bool(np.isfinite(side.value).all())

    return (a.absent is not None and bad(b)) or (b.absent is not None and bad(a))


def _present(side: Bounded) -> Floats:
    if side.absent is None:
        return np.ones(side.value.shape)
    return (~np.broadcast_to(side.absent, side.value.shape)).astype(np.float64)


def _opened(side: Bounded) -> Floats:
    if side.open is None:
        return np.zeros(side.value.shape)
    return np.broadcast_to(side.open, side.value.shape).astype(np.float64)


def _matmul_masks(left: Floats, right: Floats) -> Floats:
    return np.matmul(left, right)


SHARP_PRODUCT = 1 << 21  # multiplications up to which a product's bound is a product itself


def _product_error(a: Bounded, b: Bounded, terms: int) -> Floats:
    """A bound on the error of a matrix product, term by term where it is cheap, by norms (Cauchy-Schwarz) elsewhere."""
    growth = _growth(terms)
    if a.value.size * b.value.shape[-1] <= SHARP_PRODUCT:
        left, right = np.abs(a.value), np.abs(b.value)
        sharp = growth * np.matmul(left, right) + terms * TINY
        if b.error is not None:
            sharp = sharp + np.matmul(left, np.broadcast_to(b.error, right.shape))
        if a.error is not None:
            lifted = right if b.error is None else right + b.error
            sharp = sharp + np.matmul(np.broadcast_to(a.error, left.shape), lifted)
        return np.asarray(sharp)
    rows, columns = _norms(a.value, 2), _norms(b.value, 1)
    error = growth * rows * columns + terms * TINY
    if b.error is not None:
        wobble = _norms(np.broadcast_to(b.error, b.value.shape), 1)
        error = error + rows * wobble
        columns = columns + wobble
    if a.error is not None:
        error = error + _norms(np.broadcast_to(a.error, a.value.shape), 2) * columns
    return np.asarray(error)


def _norms(matrices: Floats, axis: int) -> Floats:
    """The 2-norms along an axis, kept; scaled so that they neither overflow nor vanish."""
    scale = float(np.max(np.abs(matrices), initial=0.0))
    if scale == 0.0 or not np.isfinite(scale):
        return np.full([1 if place == axis else size for place, size in enumerate(matrices.shape)], scale)
    scaled = matrices if 1e-100 < scale < 1e100 else matrices / scale
    unit = scale if scaled is matrices else 1.0
    spec = "bij,bij->bi" if axis == 2 else "bij,bij->bj"
    squares = np.expand_dims(np.einsum(spec, scaled, scaled), axis)
    # squares below the smallest normal number are lost: at most sqrt(n) * 2^-500 of the largest element
    lost = np.sqrt(matrices.shape[axis]) * 2.0**-500 * unit
    result = (np.sqrt(squares) + lost) * (1 + _growth(matrices.shape[axis] + 4))
    return np.asarray(result if scaled is matrices else result * scale)
