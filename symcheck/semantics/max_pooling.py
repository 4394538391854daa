"""Max pooling: the largest element of each window, chosen by value; padding is never chosen."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning
from symcheck.semantics.windows import in_every_plane, per_axis, window_positions

Positions = NDArray[np.int64]

START = "Piecewise((c1, Eq(a1, c2)), (trunc((a0 + a1)*c0) - trunc(a0*c0), True))"


def _rank(b: Builder) -> int:
    return 3 if "3d" in b.operator else 2


def _pooled(b: Builder, x: Array, windows: Positions) -> tuple[Array, Array]:
    """out[p, o] = the largest of x[p, windows[o, k]] over k, and its place in the plane; -1 reads nothing"""
    size = prod(x.shape[-_rank(b) :])
    positions = in_every_plane(windows, (x.size // size,), size)
    taps = b.gather((x, b.constant(np.asarray(-inf), x.dtype)), np.where(positions < 0, x.size, positions))
    chosen = b.select(taps, "argmax")
    starts = b.constant(np.arange(windows.shape[0]) * windows.shape[1])
    place = b.gather((b.constant(windows),), b.pointwise("a0 + a1", chosen, starts, dtype="int64"))
    return b.reshape(b.take_last(taps, chosen), b.result_shape), b.reshape(place, b.result_shape)


@meaning("aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def max_pool(
    b: Builder,
    x: Array,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """out[p, o] = the largest x[p, o*stride - padding + k*dilation] over the taps k within x"""
    rank = _rank(b)
    taps = per_axis(kernel, rank)
    steps, pads, gaps = per_axis(stride, rank, taps), per_axis(padding, rank), per_axis(dilation, rank)
    windows = window_positions(x.shape[-rank:], taps, b.result_shape[-rank:], steps, pads, gaps)
    return _pooled(b, x, windows.T)


@meaning("aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(b: Builder, x: Array, size: Sequence[int]) -> tuple[Array, Array]:
    """out[p, o] = the largest x[p, i] over floor(o*n/m) <= i < ceil((o + 1)*n/m)"""
    rank = _rank(b)
    windows = np.zeros((1, 1), dtype=np.int64)
    for n, m in zip(x.shape[-rank:], b.result_shape[-rank:], strict=True):
        start = np.arange(m) * n // m
        length = -(-(np.arange(m) + 1) * n // m) - start
        tap = np.arange(length.max())
        place = np.where(tap < length[:, None], start[:, None] + tap, -1)
        joined = windows[:, None, :, None] * n + place[None, :, None, :]
        joined = np.where((windows[:, None, :, None] < 0) | (place[None, :, None, :] < 0), -1, joined)
        windows = joined.reshape(windows.shape[0] * m, -1)
    return _pooled(b, x, windows)


@meaning("aten.fractional_max_pool2d", "aten.fractional_max_pool3d")
def fractional_max_pool(
    b: Builder, x: Array, kernel: Sequence[int], size: Sequence[int], samples: Array
) -> tuple[Array, Array]:
    """out[p, o] = the largest x[p, s(o) + k] over k, with s(o) = trunc((o + u)*a) - trunc(u*a) for the samples u"""
    rank = _rank(b)
    taps, extent, out = per_axis(kernel, rank), x.shape[-rank:], b.result_shape[-rank:]
    planes = x.size // prod(extent)
    draws = b.reshape(samples, [planes, rank])
    starts = [_starts(b, draws, axis, extent[axis], out[axis], taps[axis]) for axis in range(rank)]
    window = window_positions(extent, taps, [1] * rank, [1] * rank, [0] * rank, [1] * rank).reshape(-1)
    plane = np.arange(planes) * prod(extent)
    body = " + ".join([f"c{axis}*a{axis}" for axis in range(rank)] + [f"a{rank}", f"a{rank + 1}"])
    letters = "xyz"[:rank]
    spec = ",".join([f"p{letter}" for letter in letters] + ["k", "p"]) + f"->p{letters}k"
    steps = [prod(extent[axis + 1 :]) for axis in range(rank)]
    where = b.equation(spec, body, *starts, b.constant(window), b.constant(plane), *steps, dtype="int64")
    positions = b.reshape(where, [planes, prod(out), window.size])
    taken = b.gather((x,), positions)
    chosen = b.select(taken, "argmax")
    place = b.pointwise("a0 - a1", b.take_last(positions, chosen), b.constant(plane[:, None]), dtype="int64")
    return b.reshape(b.take_last(taken, chosen), b.result_shape), b.reshape(place, b.result_shape)


def _starts(b: Builder, draws: Array, axis: int, extent: int, out: int, taps: int) -> Array:
    """Where the windows of each plane start along an axis; in two dimensions torch draws the last axis first."""
    column = draws.shape[1] - 1 - axis if draws.shape[1] == 2 else axis
    draw = b.rearrange(draws, lambda places: places[:, column])
    step = Fraction(extent - taps, max(1, out - 1))
    return b.equation("p,o->po", START, draw, b.constant(np.arange(out)), step, extent - taps, out - 1, dtype="int64")


@meaning(
    "aten.max_pool2d_with_indices_backward",
    "aten.max_pool3d_with_indices_backward",
    "aten.adaptive_max_pool2d_backward",
    "aten.adaptive_max_pool3d_backward",
    "aten.fractional_max_pool2d_backward",
    "aten.fractional_max_pool3d_backward",
)
def max_pool_backward(b: Builder, g: Array, x: Array, *rest: Any, **kwargs: Any) -> Array:
    """out[p, i] = sum of g[p, o] over the windows o that chose i"""
    indices = kwargs.get("indices", rest[-1] if rest else None)
    assert isinstance(indices, Array)
    size = prod(x.shape[-_rank(b) :])
    plane = np.arange(x.size // size).reshape(*x.shape[: -_rank(b)], *[1] * _rank(b)) * size
    return b.scatter(g, b.pointwise("a0 + a1", indices, b.constant(plane), dtype="int64"), x.shape)
