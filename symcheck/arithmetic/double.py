"""Plain float64: the fast arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.layout import Contraction
from symcheck.arithmetic.special import FUNCTIONS, STEP_FUNCTIONS

__all__ = ["Double", "argument_selection", "inverse_positions"]

Floats = NDArray[np.float64]


def _piecewise(*branches: tuple[Any, Any]) -> Any:
    values, conditions = zip(*branches, strict=True)
    shape = np.broadcast_shapes(*(np.shape(part) for part in (*values, *conditions)))
    result: Any = np.full(shape, np.nan) if conditions[-1] is not True else np.broadcast_to(values[-1], shape)
    for value, condition in reversed(branches):
        if condition is not True:
            result = np.where(condition, value, result)
    return result


def argument_selection(values: NDArray[Any], rule: str) -> NDArray[np.int64]:
    """Positions along the last axis by a rule of `Selection`; NaN counts as largest, as in torch."""
    if rule == "argmax":
        return np.asarray(np.argmax(values, axis=-1))
    if rule == "argmin":
        return np.asarray(np.argmin(values, axis=-1))
    if rule == "argsort":
        return np.argsort(values, axis=-1, kind="stable")
    if rule == "argsort descending":
        flipped = np.argsort(values[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        return np.asarray(values.shape[-1] - 1 - flipped)
    extreme = np.maximum.accumulate(values, axis=-1) if rule == "cumargmax" else np.minimum.accumulate(values, axis=-1)
    here = np.where((values == extreme) | np.isnan(values), np.arange(values.shape[-1]), 0)
    return np.maximum.accumulate(here, axis=-1)


def inverse_positions(positions: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """For every element of `shape`, the last flat position that names it, or -1."""
    out = np.full(shape, -1, dtype=np.int64)
    flat = positions.reshape(-1)
    inside = (flat >= 0) & (flat < out.size)
    out.reshape(-1)[flat[inside]] = np.flatnonzero(inside)
    return out


class Double:
    """The number system of plain float64 arrays; discrete arrays are int64."""

    namespace: ClassVar[dict[str, Any]] = {
        **FUNCTIONS,
        **STEP_FUNCTIONS,
        "reciprocal": lambda x: 1.0 / np.asarray(x, dtype=np.float64),
        "divide": lambda x, y: np.asarray(x, dtype=np.float64) / y,
        "rational": lambda p, q: p / q,
        "piecewise": _piecewise,
        "less": np.less,
        "less_equal": np.less_equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "equal": np.equal,
        "unequal": np.not_equal,
        "both": lambda *parts: np.logical_and.reduce(np.broadcast_arrays(*parts)),
        "either": lambda *parts: np.logical_or.reduce(np.broadcast_arrays(*parts)),
        "negate": np.logical_not,
        "Abs": np.abs,
        "infinity": lambda: np.inf,
        "undefined": lambda: np.nan,
        "constant_Pi": lambda: np.pi,
        "constant_Exp1": lambda: np.e,
        "constant_EulerGamma": lambda: np.euler_gamma,
    }

    def lift(self, values: NDArray[np.generic], *, real: bool, active: bool) -> NDArray[Any]:
        return np.asarray(values, dtype=np.float64 if real else np.int64)

    def constant(self, value: Any) -> Any:
        return value if isinstance(value, int) else float(value)

    def hold(self, value: NDArray[Any]) -> NDArray[Any]:
        return value

    def shape(self, value: NDArray[Any]) -> tuple[int, ...]:
        return np.shape(value)

    def map_arrays(self, function: Callable[[NDArray[Any]], NDArray[Any]], value: NDArray[Any]) -> NDArray[Any]:
        return function(np.asarray(value))

    def concatenate(self, values: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
        return np.concatenate(values, axis)

    def sum(self, value: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
        return np.asarray(np.sum(value, axis=axes))

    def plus(self, left: Any, right: Any) -> Any:
        return left + right

    def times(self, left: Any, right: Any) -> Any:
        return left * right

    def contract(self, left: NDArray[Any], right: NDArray[Any], plan: Contraction) -> NDArray[Any]:
        return plan.back(np.matmul(plan.left(left), plan.right(right)))

    def settle(self, value: Any, *, real: bool) -> NDArray[Any]:
        values = np.asarray(value)
        if real:
            return values.astype(np.float64, copy=False)
        return _to_integers(values)

    def gather(
        self, sources: Sequence[NDArray[Any]], positions: NDArray[Any], offset: int, *, real: bool
    ) -> NDArray[Any]:
        flat = np.concatenate([source.reshape(-1) for source in sources]) if sources else np.zeros(0)
        where = positions - offset
        inside = (where >= 0) & (where < flat.size)
        padded = np.append(flat, np.zeros(1, dtype=flat.dtype))
        return np.asarray(padded[np.where(inside, where, flat.size)])

    def scatter(
        self, value: NDArray[Any], positions: NDArray[Any], offset: int, shape: tuple[int, ...]
    ) -> NDArray[Any]:
        size = int(np.prod(shape))
        where = (positions - offset).reshape(-1)
        inside = (where >= 0) & (where < size)
        total = np.bincount(where[inside], weights=value.reshape(-1)[inside], minlength=size)
        return np.asarray(total[:size].reshape(shape), dtype=value.dtype)

    def select(self, value: NDArray[Any], rule: str) -> NDArray[Any]:
        return argument_selection(value, rule)

    def invert(self, positions: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        return inverse_positions(positions, shape)

    def in_every_world(self, function: Callable[[Sequence[Any]], Any], values: Sequence[Any], *, real: bool) -> Any:
        return function(values)


def _to_integers(values: NDArray[Any]) -> NDArray[np.int64]:
    if values.dtype.kind == "f":
        values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    return values.astype(np.int64, copy=False)
