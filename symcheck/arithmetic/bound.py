"""The number system of float64 with a running error bound: how `Bounded` arrays are moved, summed and contracted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.bounded import (
    Bounded,
    absolute,
    either,
    function,
    growth_of,
    is_bounded,
    is_zero,
    lift,
    power,
    reciprocal,
    sqrt,
    with_absent,
)
from symcheck.arithmetic.choices import alternative_selections
from symcheck.arithmetic.decisions import QUOTIENTS, both, compare, either_of, exact, modulo, negate, piecewise, step
from symcheck.arithmetic.double import Double, argument_selection
from symcheck.arithmetic.formats import working
from symcheck.arithmetic.layout import Contraction
from symcheck.arithmetic.products import COARSE, peak_of, product_error
from symcheck.arithmetic.special import FUNCTIONS, STEP_FUNCTIONS

__all__ = ["Bound", "Bounded"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


def _constant(value: float, relative_error: float) -> Bounded:
    return Bounded(np.asarray(value), np.asarray(relative_error * abs(value)))


# the names that a printed body calls
NAMESPACE: dict[str, Any] = {
    **{name: function(name) for name in FUNCTIONS},
    "power": power,
    "sqrt": sqrt,
    "reciprocal": lambda x: reciprocal(lift(x)),
    "divide": lambda x, y: lift(x) / lift(y),
    "rational": lambda p, q: lift(p / q) if q & (q - 1) == 0 else _constant(p / q, working().held.unit),
    "piecewise": piecewise,
    "less": compare(np.less),
    "less_equal": compare(np.less_equal),
    "greater": compare(np.greater),
    "greater_equal": compare(np.greater_equal),
    "equal": compare(np.equal),
    "unequal": compare(np.not_equal),
    "both": both,
    "either": either_of,
    "negate": negate,
    "Abs": absolute,
    **{name: step(STEP_FUNCTIONS[name]) for name in ("floor", "ceiling", "trunc", "rint", "binary_exponent")},
    **{name: exact(name) for name in ("isnan", "isposinf", "isneginf", "bitand", "bitor", "bitxor")},
    **QUOTIENTS,
    "remainder": modulo("remainder", "floordiv"),
    "Mod": modulo("Mod", "floordiv"),
    "fmod": modulo("fmod", "truncdiv"),
    "infinity": lambda: lift(np.inf),
    "undefined": lambda: lift(np.nan),
    "constant_Pi": lambda: _constant(np.pi, working().unit),
    "constant_Exp1": lambda: _constant(np.e, working().unit),
    "constant_EulerGamma": lambda: _constant(np.euler_gamma, working().unit),
}


class Bound:
    """The number system of `Bounded` arrays."""

    namespace: ClassVar[dict[str, Any]] = NAMESPACE

    def __init__(self) -> None:
        self._plain = Double()

    def lift(self, values: NDArray[np.generic], *, real: bool, active: bool) -> Bounded:
        plain = self._plain.lift(values, real=real, active=active)
        return Bounded(plain, active=active, peak=peak_of(plain) if real and plain.size > COARSE else None)

    def constant(self, value: Any) -> Any:
        return value if isinstance(value, int) and abs(value) <= 1 << 53 else float(value)

    def hold(self, value: Bounded) -> Bounded:
        return Bounded(value.value)

    def shape(self, value: Bounded) -> tuple[int, ...]:
        return np.shape(value.value)

    def map_arrays(self, function: Callable[[NDArray[Any]], NDArray[Any]], value: Any) -> Bounded:
        value = lift(value)
        shape = value.value.shape

        def move(part: NDArray[Any] | None) -> NDArray[Any] | None:
            if part is None:
                return None
            if part.ndim == 0 and shape:  # one number for all elements, wherever they go
                return part
            return function(part if part.shape == shape else np.broadcast_to(part, shape))

        other = None if value.other is None else np.stack([function(world) for world in value.other])
        return Bounded(
            function(value.value),
            move(value.error),
            move(value.absent),
            move(value.open),
            other,
            value.active,
            value.peak,
        )

    def concatenate(self, values: Sequence[Bounded], axis: int) -> Bounded:
        return _joined(values, lambda parts: np.concatenate(parts, axis))

    def plus(self, left: Bounded, right: Bounded) -> Bounded:
        return left + right

    def times(self, left: Any, right: Any) -> Bounded:
        return lift(left) * lift(right)

    def sum(self, value: Bounded, axes: tuple[int, ...]) -> Bounded:
        if not axes:
            return value
        count = int(np.prod([value.value.shape[axis] for axis in axes]))
        total = np.sum(value.value, axis=axes)
        error = growth_of(count) * np.sum(np.abs(value.value), axis=axes) if count > 1 else np.zeros_like(total)
        if value.error is not None:
            error = error + (1 + growth_of(count)) * np.sum(np.broadcast_to(value.error, value.value.shape), axis=axes)
        absent = None if value.absent is None else np.all(np.broadcast_to(value.absent, value.value.shape), axis=axes)
        opened = None if value.open is None else np.any(np.broadcast_to(value.open, value.value.shape), axis=axes)
        return Bounded(np.asarray(total), np.asarray(error), absent, opened, None, value.active)

    def contract(self, left: Bounded, right: Bounded, plan: Contraction) -> Bounded:
        a = self.map_arrays(plan.left, left)
        b = self.map_arrays(plan.right, right)
        if _poisoned(a, b):
            return self.map_arrays(plan.back, self._contract_by_terms(a, b))
        value = a.value * b.value if plan.summed == 1 else np.matmul(a.value, b.value)  # the former is faster
        error = product_error(a, b, plan.summed)
        opened = None
        if a.open is not None or b.open is not None:
            opened = _opened_product(a, b)
        result = with_absent(value, error, _absent_product(a, b), opened, a, b)
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
        value = lift(value)
        if real:
            real_values: Bounded = replace(value, value=value.value.astype(np.float64, copy=False))
            return real_values
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

    def _scatter_plainly(self, value: Bounded, positions: NDArray[Any], offset: int, shape: tuple[int, ...]) -> Bounded:
        size = int(np.prod(shape))
        where = (positions - offset).reshape(-1)
        inside = (where >= 0) & (where < size)
        if value.absent is not None:
            inside &= ~value.absent.reshape(-1)
        where = where[inside]

        def total(part: NDArray[Any]) -> Floats:
            flat = np.broadcast_to(part, value.value.shape).reshape(-1)[inside]
            sums: Floats = np.bincount(where, weights=flat, minlength=size)[:size].astype(np.float64, copy=False)
            return sums.reshape(shape)

        count = np.bincount(where, minlength=size)[:size].reshape(shape)
        most = int(count.max(initial=0))
        error = growth_of(most) * total(np.abs(value.value)) if most > 1 else np.zeros(shape)
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
        return (
            Bounded(np.zeros(where.shape), None, np.ones(where.shape, dtype=bool))
            if real
            else Bounded(np.zeros(where.shape, dtype=np.int64))
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
    opened = either(either(first.open, second.open), differs if differs.any() else None)
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


def _opened_product(a: Bounded, b: Bounded) -> Mask:
    """Where some term of a matrix product is open: see `open_unless_zero`."""
    settled = np.matmul(_opened(a), _live(b)) + np.matmul(_live(a), _opened(b))
    wild_a, wild_b = (np.where(is_bounded(side), 0.0, _opened(side)) for side in (a, b))
    if wild_a.any() or wild_b.any():
        settled = settled + np.matmul(wild_a, _present(b)) + np.matmul(_present(a), wild_b)
    return np.asarray(settled > 0)


def _live(side: Bounded) -> Floats:
    """1 where an element could carry what it is multiplied by: neither absent nor zero."""
    return np.where(is_zero(side), 0.0, _present(side))


def _absent_product(a: Bounded, b: Bounded) -> Mask | None:
    """Where every term of a matrix product is absent; None where that is nowhere."""
    shape = (a.value.shape[0], a.value.shape[1], b.value.shape[2])
    if a.absent is not None and b.absent is not None:
        absent = np.matmul(_present(a), _present(b)) == 0
    elif a.absent is not None:
        absent = np.all(np.broadcast_to(a.absent, a.value.shape), axis=2, keepdims=True)
    elif b.absent is not None:
        absent = np.all(np.broadcast_to(b.absent, b.value.shape), axis=1, keepdims=True)
    else:
        return None
    return np.broadcast_to(absent, shape) if absent.any() else None
