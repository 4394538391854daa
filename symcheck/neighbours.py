"""Generic points near an input, at which a formula must hold too.

A weight of 1, a zero or an all-ones cotangent hides what depends on it; one step away it does not. What is a set
rather than a number keeps to its set: one-hots and masks stay, rows of probabilities keep their sum, symmetric
matrices stay symmetric.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["generic", "nudged"]

Floats: TypeAlias = NDArray[np.float64]
Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]


def generic(arrays: Arrays, names: Collection[str], generator: np.random.Generator, size: float) -> dict[str, Any]:
    """The arrays with those named moved by about `size` of each element, zeros by `size` of the largest."""
    return {name: _moved(value, generator, size) if name in names else value for name, value in arrays.items()}


def nudged(arrays: Arrays, generator: np.random.Generator, roundoffs: Mapping[str, float]) -> dict[str, Any]:
    """The arrays with every element of the named ones moved by one unit in its last place, up or down.

    Args:
        arrays: float64 arrays, exact in their own dtypes.
        generator: draws the signs.
        roundoffs: the unit roundoff of each array to move.
    """
    result = dict(arrays)
    for name, roundoff in roundoffs.items():
        values = np.asarray(arrays[name], dtype=np.float64)
        usable = np.isfinite(values) & (values != 0)
        exponent = np.floor(np.log2(np.abs(values), where=usable, out=np.zeros(values.shape)))
        step = 2 * roundoff * 2.0**exponent * generator.choice([-1.0, 1.0], size=values.shape)
        result[name] = np.where(usable, values + step, values)
    return result


def _moved(value: NDArray[np.generic], generator: np.random.Generator, size: float) -> NDArray[np.generic]:
    if value.dtype.kind != "f" or value.size == 0:
        return value
    values = np.asarray(value, dtype=np.float64)
    finite = np.isfinite(values)
    if _is_indicator(values):
        return value
    axis = _simplex_axis(values)
    if axis is not None:
        return _moved_rows(values, axis, generator, size)
    largest = float(np.max(np.abs(values), where=finite, initial=0.0)) or 1.0
    scale = np.where(values == 0, largest, np.abs(values))
    magnitude = generator.integers(64, 128, size=values.shape) / 128.0
    step = (
        magnitude
        * generator.choice([-1.0, 1.0], size=values.shape)
        * 2.0 ** np.ceil(np.log2(np.where(finite, scale, 1.0) * size))
    )
    if _is_symmetric(values):
        step = np.triu(step) + np.swapaxes(np.triu(step, 1), -1, -2)
    return np.where(finite, values + step, values)


def _is_indicator(values: Floats) -> bool:
    """Whether an array holds truth values or signs: {0, 1} or {-1, 1}, both of them."""
    found = set(values.reshape(-1)[:64].tolist())
    if not found <= {0.0, 1.0, -1.0}:
        return False
    found = set(np.unique(values).tolist())
    return found in ({0.0, 1.0}, {-1.0, 1.0}) and values.size > 2


def _simplex_axis(values: Floats) -> int | None:
    """The axis along which an array holds probabilities that sum to 1, up to rounding; None if there is none."""
    if not (values >= 0).all() or not (values <= 1).all():
        return None
    for axis in reversed(range(values.ndim)):
        if values.shape[axis] > 1 and (np.abs(values.sum(axis=axis) - 1) <= 2.0**-7 * 2.0**-14).all():
            return axis
    return None


def _moved_rows(values: Floats, axis: int, generator: np.random.Generator, size: float) -> Floats:
    """Probabilities moved from each element to the next, in steps that float64 holds exactly."""
    rows = np.moveaxis(values, axis, -1)
    following = np.roll(rows, -1, axis=-1)
    unit = 2.0**-44
    amount = np.floor(np.minimum(rows, following) * size * generator.random(rows.shape) / unit) * unit
    return np.moveaxis(rows - amount + np.roll(amount, 1, axis=-1), -1, axis)


def _is_symmetric(values: Floats) -> bool:
    if values.ndim < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        return False
    return bool(np.array_equal(values, np.swapaxes(values, -1, -2), equal_nan=True))
