"""Windows: the flat positions that sliding kernels read, found by index arithmetic alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

__all__ = ["crossed", "in_every_plane", "per_axis", "window_positions"]

Positions = NDArray[np.int64]


def per_axis(value: Sequence[int] | int, count: int, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """One number for each of `count` axes: torch accepts a single one for all, and none for the default."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    if not numbers and default is not None:
        return tuple(default)
    return tuple(numbers) * count if len(numbers) == 1 else numbers


def window_positions(
    size: Sequence[int],
    kernel: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Positions:
    """[k, o]: the flat position, in a grid of the given size, of tap k of the window of output o; -1 beyond the grid.

    Taps and outputs are flat in row-major order: along each axis tap k of output o is o*stride - padding + k*dilation.
    """
    flat = np.zeros((1, 1), dtype=np.int64)
    for n, k, o, s, p, d in zip(size, kernel, out, stride, padding, dilation, strict=True):
        place = np.arange(o) * s - p + np.arange(k)[:, None] * d
        flat = crossed(flat, np.where((place >= 0) & (place < n), place, -1), n)
    return flat


def crossed(outer: Positions, inner: Positions, size: int) -> Positions:
    """Positions [k, o] along outer axes and one inner axis of a size, joined to flat ones; -1 where either is."""
    left, right = outer[:, None, :, None], inner[None, :, None, :]
    flat = np.where((left < 0) | (right < 0), -1, left * size + right)
    return flat.reshape(outer.shape[0] * inner.shape[0], outer.shape[1] * inner.shape[1])


def in_every_plane(positions: Positions, planes: Sequence[int], plane_size: int) -> Positions:
    """The same positions within each of several planes, one after the other: [planes, k, o]."""
    starts = np.arange(prod(planes)).reshape(*planes, *(1,) * positions.ndim) * plane_size
    return np.where(positions < 0, -1, positions + starts)
