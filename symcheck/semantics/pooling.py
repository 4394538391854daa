"""Average pooling: windows gathered by position, then their sum over a count."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning
from symcheck.semantics.windows import crossed, in_every_plane, per_axis, window_positions


@meaning("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def average_pool(
    b: Builder,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """out[n, o] = sum over k of x[n, o*stride - padding + k] / number of taps"""
    count = int(b.operator[len("aten.avg_pool")])
    kernel = per_axis(kernel_size, count)
    geometry = kernel, per_axis(stride, count, kernel), per_axis(padding, count)
    size, out = x.shape[-count:], b.result_shape[-count:]
    return _averaged(b, x, count, *_windows(size, out, geometry, count_include_pad, divisor_override))


Windows = tuple[NDArray[np.int64], NDArray[np.int64]]


def _windows(
    size: Sequence[int],
    out: Sequence[int],
    geometry: tuple[tuple[int, ...], ...],
    count_include_pad: bool,
    divisor_override: int | None,
) -> Windows:
    """[k, o]: the positions averaged into each output, and [o]: what their sum is divided by."""
    kernel, steps, pads = geometry
    count = len(kernel)
    window = window_positions(size, kernel, out, steps, pads, (1,) * count)
    if divisor_override is not None:
        return window, np.full(window.shape[1], divisor_override)
    if count_include_pad:
        padded = [n + 2 * p for n, p in zip(size, pads, strict=True)]
        return window, (window_positions(padded, kernel, out, steps, (0,) * count, (1,) * count) >= 0).sum(axis=0)
    return window, (window >= 0).sum(axis=0)


@meaning("aten.avg_pool2d_backward", "aten.avg_pool3d_backward")
def average_pool_backward(
    b: Builder,
    g: Array,
    x: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Array:
    """out[n, i] = sum of g[n, o] / number of taps over the windows o that read i"""
    count = int(b.operator[len("aten.avg_pool")])
    kernel = per_axis(kernel_size, count)
    geometry = kernel, per_axis(stride, count, kernel), per_axis(padding, count)
    size, out = x.shape[-count:], g.shape[-count:]
    return _spread(b, g, x, count, *_windows(size, out, geometry, count_include_pad, divisor_override))


def _spread(b: Builder, g: Array, x: Array, count: int, window: NDArray[np.int64], taps: NDArray[np.int64]) -> Array:
    """out[n, window[k, o]] += g[n, o] / taps[o], over the last `count` axes"""
    planes, size = prod(x.shape[:-count]), prod(x.shape[-count:])
    flat = b.reshape(g, (planes, prod(g.shape[-count:])))
    shares = b.equation("no,o->nko", "a0/a1", flat, b.constant(taps), sizes={"k": window.shape[0]})
    return b.scatter(shares, in_every_plane(window, (planes,), size), x.shape)


def _averaged(b: Builder, x: Array, count: int, window: NDArray[np.int64], taps: NDArray[np.int64]) -> Array:
    """out[n, o] = sum over k of x[n, window[k, o]] / taps[o], over the last `count` axes"""
    planes, size = prod(x.shape[:-count]), prod(x.shape[-count:])
    values = b.gather((x,), in_every_plane(window, (planes,), size))
    return b.reshape(b.equation("nko,o->no", "a0/a1", values, b.constant(taps)), b.result_shape)


@meaning("aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d")
def adaptive_average_pool(b: Builder, x: Array, output_size: Sequence[int]) -> Array:
    """out[n, o] = the mean of x[n, i] over floor(o size/out) <= i < ceil((o + 1) size/out)"""
    count = len(output_size)
    return _averaged(b, x, count, *_adaptive_windows(x.shape[-count:], output_size))


@meaning("aten._adaptive_avg_pool2d_backward", "aten._adaptive_avg_pool3d_backward")
def adaptive_average_pool_backward(b: Builder, g: Array, x: Array) -> Array:
    """out[n, i] = sum of g[n, o] / (size of the window of o) over the windows o that read i"""
    count = int(b.operator[len("aten._adaptive_avg_pool")])
    return _spread(b, g, x, count, *_adaptive_windows(x.shape[-count:], g.shape[-count:]))


def _adaptive_windows(sizes: Sequence[int], outs: Sequence[int]) -> Windows:
    """[k, o]: the positions averaged into each output, and [o]: how many those are."""
    window = np.zeros((1, 1), dtype=np.int64)
    for size, out in zip(sizes, outs, strict=True):
        window = crossed(window, _adaptive_window(size, out), size)
    return window, (window >= 0).sum(axis=0)


def _adaptive_window(size: int, out: int) -> NDArray[np.int64]:
    """[k, o]: the positions averaged into output o along one axis; -1 where that output has fewer."""
    start = np.arange(out) * size // max(out, 1)
    stop = -(-(np.arange(out) + 1) * size // max(out, 1))
    place = start + np.arange((stop - start).max(initial=0))[:, None]
    return np.where(place < stop, place, -1)
