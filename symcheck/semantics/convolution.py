"""Convolutions: windows gathered by position, then one contraction; transposed, one contraction, then a scatter."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning
from symcheck.semantics.windows import in_every_plane, per_axis, window_positions


@meaning("aten.convolution", "aten._convolution")
def convolution(
    b: Builder,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: object,
) -> Array:
    """out[n, d, o] = bias[d] + sum over c, k of weight[d, c, k] x[n, c, o*stride - padding + k*dilation]"""
    count = len(weight.shape) - 2
    batched = x if len(x.shape) == count + 2 else b.reshape(x, (1, *x.shape))
    geometry = tuple(per_axis(value, count) for value in (stride, padding, dilation))
    apply = _transposed if transposed else _direct
    out = apply(b, batched, weight, b.result_shape[-count:], geometry, groups)
    out = b.reshape(out, (batched.shape[0], out.shape[1] * out.shape[2], *b.result_shape[-count:]))
    if bias is not None:
        out = b.pointwise("a0 + a1", out, b.reshape(bias, (bias.size, *(1,) * count)))
    return b.reshape(out, b.result_shape)


Geometry = tuple[tuple[int, ...], ...]


def _direct(b: Builder, x: Array, weight: Array, out: Sequence[int], geometry: Geometry, groups: int) -> Array:
    """out[n, g, d, o] = sum over c, k of window[n, g, c, k, o] weight[g, d, c, k]"""
    n, channels, *size = x.shape
    kernel = weight.shape[2:]
    window = window_positions(size, kernel, out, *geometry)
    planes = (n, groups, channels // groups)
    taps = b.gather((x,), in_every_plane(window, planes, prod(size)))
    grouped = b.reshape(weight, (groups, weight.shape[0] // groups, weight.shape[1], prod(kernel)))
    return b.equation("ngcko,gdck->ngdo", "a0*a1", taps, grouped)


def _transposed(b: Builder, x: Array, weight: Array, out: Sequence[int], geometry: Geometry, groups: int) -> Array:
    """out[n, g, d, i*stride - padding + k*dilation] += sum over c of x[n, g, c, i] weight[g, c, d, k]"""
    n, channels, *size = x.shape
    kernel, features = weight.shape[2:], weight.shape[1]
    grouped = b.reshape(x, (n, groups, channels // groups, prod(size)))
    taps = b.reshape(weight, (groups, channels // groups, features, prod(kernel)))
    spread = b.equation("ngci,gcdk->ngdki", "a0*a1", grouped, taps)
    window = window_positions(out, kernel, size, *geometry)
    planes = (n, groups, features)
    return b.scatter(spread, in_every_plane(window, planes, prod(out)), (*planes, prod(out)))


@meaning("aten.convolution_backward")
def convolution_backward(
    b: Builder,
    g: Array,
    x: Array,
    weight: Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> tuple[Array | None, Array | None, Array | None]:
    """out[n, c, i] = sum of weight[d, c, k] g[n, d, o] over the k, o that read i; the weight's and bias's likewise"""
    count = len(weight.shape) - 2
    geometry = tuple(per_axis(value, count) for value in (stride, padding, dilation))
    by_x = by_weight = by_bias = None
    if wanted[0]:
        apply = _direct if transposed else _transposed
        by_x = b.reshape(apply(b, g, weight, x.shape[2:], geometry, groups), x.shape)
    if wanted[1]:
        read, other = (g, x) if transposed else (x, g)
        by_weight = b.reshape(_by_weight(b, read, other, weight, geometry, groups), weight.shape)
    if wanted[2]:
        by_bias = b.sum(g, [axis for axis in range(len(g.shape)) if axis != 1])
    return by_x, by_weight, by_bias


def _by_weight(b: Builder, x: Array, g: Array, weight: Array, geometry: Geometry, groups: int) -> Array:
    """out[g, d, c, k] = sum over n, o of window[n, g, c, k, o] g[n, g, d, o]"""
    n, channels, *size = x.shape
    out = g.shape[2:]
    window = window_positions(size, weight.shape[2:], out, *geometry)
    taps = b.gather((x,), in_every_plane(window, (n, groups, channels // groups), prod(size)))
    grouped = b.reshape(g, (n, groups, g.shape[1] // groups, prod(out)))
    return b.equation("ngcko,ngdo->gdck", "a0*a1", taps, grouped)
