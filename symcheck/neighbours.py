"""Generic points near an input, at which a formula must hold too.

A weight of 1, a zero or an all-ones cotangent hides what depends on it; one step away it does not. What is a set
rather than a number keeps to its set: one-hots and masks stay, rows of probabilities keep their sum, symmetric
matrices stay symmetric.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from math import isqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["generic", "idealised", "nudged"]

Floats: TypeAlias = NDArray[np.float64]
Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

MOST = 1 << 16  # elements above which an array is not looked at for laws that it may keep
ROOT_BITS = 6000  # of the lengths by which rows are divided: beyond the precision of any ball


def generic(
    arrays: Arrays,
    names: Collection[str],
    generator: np.random.Generator,
    size: float,
    roundoffs: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The arrays with those named moved by about `size` of each element, zeros by `size` of the largest.

    Args:
        arrays: float64 or integer arrays by name.
        names: which to move.
        generator: draws the moves.
        size: relative.
        roundoffs: the unit roundoff of the arrays that were rounded to narrower dtypes.
    """
    known = roundoffs or {}
    return {
        name: _moved(value, generator, size, known.get(name, 2.0**-53)) if name in names else value
        for name, value in arrays.items()
    }


def idealised(arrays: Arrays, roundoffs: Mapping[str, float]) -> dict[str, NDArray[Any]]:
    """Those arrays that keep a law only up to rounding, as fractions that keep it exactly.

    Rows of probabilities are divided by their sum, rows of length 1 by their length, rows of mean 0 lose it: a formula
    such as p - y, which is the gradient where the rows of y sum to 1, is right of data that mean to.

    Args:
        arrays: float64 arrays by name.
        roundoffs: the unit roundoff of each, in the dtype it was rounded to.
    """
    found = {}
    for name, roundoff in roundoffs.items():
        value = arrays.get(name)
        if value is None or value.dtype.kind != "f" or not 2 <= value.size <= MOST or not np.isfinite(value).all():
            continue
        ideal = _ideal(np.asarray(value, dtype=np.float64), roundoff)
        if ideal is not None:
            found[name] = ideal
    return found


def _ideal(values: Floats, roundoff: float) -> NDArray[Any] | None:
    axis = _simplex_axis(values, roundoff)
    if axis is not None:
        return _by_rows(values, axis, _of_sum_one)
    for axis in reversed(range(values.ndim)):
        count = values.shape[axis]
        if count < 2:
            continue
        slack = 4 * count * roundoff
        if (np.abs((values**2).sum(axis=axis) - 1) <= slack).all():
            return _by_rows(values, axis, _of_length_one)
        size = np.abs(values).sum(axis=axis)
        if (np.abs(values.sum(axis=axis)) <= slack * size).all() and (size > 0).all():
            return _by_rows(values, axis, _of_mean_zero)
    return None


def _by_rows(values: Floats, axis: int, change: Callable[[list[Fraction]], list[Fraction]]) -> NDArray[Any]:
    rows = np.moveaxis(values, axis, -1)
    out = np.empty(rows.shape, dtype=object)
    for place in np.ndindex(*rows.shape[:-1]):
        out[place] = change([Fraction(x) for x in rows[place].tolist()])
    return np.moveaxis(out, -1, axis)


def _of_sum_one(row: list[Fraction]) -> list[Fraction]:
    total = sum(row, start=Fraction(0))
    return [x / total for x in row]


def _of_mean_zero(row: list[Fraction]) -> list[Fraction]:
    mean = sum(row, start=Fraction(0)) / len(row)
    return [x - mean for x in row]


def _of_length_one(row: list[Fraction]) -> list[Fraction]:
    square = sum((x * x for x in row), start=Fraction(0))
    length = Fraction(isqrt(int(square * (1 << 2 * ROOT_BITS))), 1 << ROOT_BITS)
    return [x / length for x in row]


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


def _moved(
    value: NDArray[np.generic], generator: np.random.Generator, size: float, roundoff: float
) -> NDArray[np.generic]:
    if value.dtype.kind != "f" or value.size == 0:
        return value
    values = np.asarray(value, dtype=np.float64)
    finite = np.isfinite(values)
    if _is_indicator(values):
        return value
    axis = _simplex_axis(values, roundoff)
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


def _simplex_axis(values: Floats, roundoff: float) -> int | None:
    """The axis along which an array holds probabilities that sum to 1, up to rounding; None if there is none."""
    if not (values >= 0).all() or not (values <= 1).all():
        return None
    for axis in reversed(range(values.ndim)):
        count = values.shape[axis]
        if count > 1 and (np.abs(values.sum(axis=axis) - 1) <= 4 * count * roundoff).all():
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
