"""Resampling: interpolation along regular and arbitrary grids, as weights on taps gathered by position."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, prod

import numpy as np
import torch
from numpy.typing import NDArray

from symcheck.building import Builder
from symcheck.errors import UnknownOperator
from symcheck.program import Array, Constant
from symcheck.semantics.table import meaning

# The cubic convolution kernel with a = -3/4 at distances |t| <= 1 and 1 <= |t| <= 2 of the tap.
CUBIC_NEAR = "(5*{t}**3/4 - 9*{t}**2/4 + 1)"
CUBIC_FAR = "(-3*({t}**3 - 5*{t}**2 + 8*{t} - 4)/4)"


# -- nearest ----------------------------------------------------------------------------------------------------------

NEAREST = [f"aten.{name}{n}d.default" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)]


@meaning(*NEAREST)
def nearest(b: Builder, x: Array, *args: object) -> Array:
    """out[n, o] = x[n, floor(o size/out)], or the nearest to (o + 1/2) size/out - 1/2"""
    operator = getattr(torch.ops.aten, b.operator.split(".")[1]).default

    def move(positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(operator(torch.from_numpy(positions).double(), *args).long().numpy())

    return b.rearrange(x, move)


NEAREST_BACKWARD = [row.replace("d.default", "d_backward.default") for row in NEAREST]


@meaning(*NEAREST_BACKWARD)
def nearest_backward(
    b: Builder, g: Array, output_size: Sequence[int], input_size: Sequence[int], *scales: object
) -> Array:
    """out[n, i] = sum of g[n, o] over the outputs o that read i"""
    operator = getattr(torch.ops.aten, b.operator.split(".")[1].removesuffix("_backward")).default
    places = torch.arange(prod(input_size), dtype=torch.float64).reshape(tuple(input_size))
    return b.scatter(g, operator(places, output_size, *scales).long().numpy(), input_size)


# -- regular grids ----------------------------------------------------------------------------------------------------


class _Axis:
    """One axis of a regular grid: where output o lies among the inputs, exactly.

    The place is (o + 1/2) scale - 1/2, or o scale where the corners are aligned; scale is a body constant.
    """

    def __init__(self, size: int, out: int, align: bool, factor: float | None) -> None:
        self.size, self.out = size, out
        self.place = "a0*c0" if align else "(a0 + 1/2)*c0 - 1/2"
        if align:
            self.scale = Fraction(size - 1, out - 1) if out > 1 else Fraction(0)
        else:
            self.scale = Fraction(size, out) if factor is None or factor <= 0 else 1 / Fraction(factor)
        half = Fraction(0 if align else 1, 2)
        self.exact = [(o + half) * self.scale - half for o in range(out)]


def _along(b: Builder, x: Array, dim: int, taps: NDArray[np.int64], weights: Array) -> Array:
    """out[.., o, ..] = sum over t of weights[o, t] x[.., taps[o, t], ..]"""
    moved = b.rearrange(x, lambda positions: np.moveaxis(positions, dim, -1)[..., taps])
    letters = "abcdefgh"[: len(x.shape) - 1]
    kept = letters[:dim] + "o" + letters[dim:]
    return b.equation(f"{letters}ot,ot->{kept}", "a0*a1", moved, weights)


def _linear(b: Builder, axis: _Axis, dtype: str) -> tuple[NDArray[np.int64], Array]:
    """The two taps around each output and their weights, 1 - t and t; before the first input, the first."""
    below = [max(floor(place), 0) for place in axis.exact]
    taps = np.minimum(np.add.outer(below, [0, 1]), axis.size - 1)
    start = b.constant(np.asarray(below, dtype=np.int64))
    along, side = b.constant(np.arange(axis.out)), b.constant(np.arange(2))
    t = f"({axis.place} - a1)"
    body = f"Piecewise((1 - a2, {t} < 0), ((1 - a2)*(1 - {t}) + a2*{t}, True))"
    return taps, b.equation("o,o,t->ot", body, along, start, side, axis.scale, dtype=dtype)


def _cubic(b: Builder, axis: _Axis, dtype: str) -> tuple[NDArray[np.int64], Array]:
    """The four taps around each output and the cubic convolution's weights."""
    below = [floor(place) for place in axis.exact]
    taps = np.clip(np.add.outer(below, [-1, 0, 1, 2]), 0, axis.size - 1)
    start = b.constant(np.asarray(below, dtype=np.int64))
    along, side = b.constant(np.arange(axis.out)), b.constant(np.arange(4))
    t = f"({axis.place} - a1)"
    return taps, b.equation("o,o,t->ot", _cubic_weights(t, "a2"), along, start, side, axis.scale, dtype=dtype)


def _cubic_weights(t: str, side: str) -> str:
    """The weight of tap number `side` of -1, 0, 1, 2 at the distance t past tap 0."""
    weights = [
        CUBIC_FAR.format(t=f"({t} + 1)"),
        CUBIC_NEAR.format(t=t),
        CUBIC_NEAR.format(t=f"(1 - {t})"),
        CUBIC_FAR.format(t=f"(2 - {t})"),
    ]
    branches = ", ".join(f"({weight}, Eq({side}, {n}))" for n, weight in enumerate(weights[:3]))
    return f"Piecewise({branches}, ({weights[3]}, True))"


def _factors(count: int, factors: Sequence[float | None]) -> tuple[float | None, ...]:
    return tuple(factors) if factors else (None,) * count


@meaning("aten.upsample_linear1d.default", "aten.upsample_bilinear2d.default", "aten.upsample_trilinear3d.default")
def upsample_linear(b: Builder, x: Array, size: Sequence[int], align: bool, *factors: float | None) -> Array:
    """out[n, o] = sum over the two neighbours of each axis of x, weighted by 1 - t and t"""
    return _upsampled(b, x, size, align, factors, _linear)


@meaning("aten.upsample_bicubic2d.default")
def upsample_cubic(b: Builder, x: Array, size: Sequence[int], align: bool, *factors: float | None) -> Array:
    """out[n, o] = sum over the four neighbours of each axis of x, weighted by cubic convolution with a = -3/4"""
    return _upsampled(b, x, size, align, factors, _cubic)


TRIANGLE = "Piecewise((0, a0 <= -1), (1 + a0, a0 < 0), (1 - a0, a0 < 1), (0, True))"


@meaning("aten._upsample_bilinear2d_aa.default")
def upsample_linear_smoothed(b: Builder, x: Array, size: Sequence[int], align: bool, *factors: float | None) -> Array:
    """out[n, o] = sum over i of x weighted by a triangle as wide as the outputs' step, its weights adding to 1"""
    return _upsampled(b, x, size, align, factors, _Smoothed(TRIANGLE, 1))


@meaning("aten._upsample_bicubic2d_aa.default")
def upsample_cubic_smoothed(b: Builder, x: Array, size: Sequence[int], align: bool, *factors: float | None) -> Array:
    """out[n, o] = sum over i of x weighted by a cubic kernel (a = -1/2) as wide as the step, its weights adding to 1"""
    near, far = "(3*{t}**3/2 - 5*{t}**2/2 + 1)", "(-({t}**3 - 5*{t}**2 + 8*{t} - 4)/2)"
    branches = [
        "(0, a0 <= -2)",
        f"({far.format(t='(-a0)')}, a0 <= -1)",
        f"({near.format(t='(-a0)')}, a0 < 0)",
        f"({near.format(t='a0')}, a0 < 1)",
        f"({far.format(t='a0')}, a0 < 2)",
    ]
    return _upsampled(b, x, size, align, factors, _Smoothed(f"Piecewise({', '.join(branches)}, (0, True))", 2))


class _Smoothed:
    """Weights of a kernel widened to the step between outputs; the number of taps is that of the widest window."""

    def __init__(self, kernel: str, reach: int) -> None:
        self.kernel, self.reach = kernel, reach

    def __call__(self, b: Builder, axis: _Axis, dtype: str) -> tuple[NDArray[np.int64], Array]:
        width = max(axis.scale, Fraction(1))
        centres = [axis.scale * (2 * o + 1) / 2 for o in range(axis.out)]
        support = self.reach * width
        first = np.array([max(floor(c - support + Fraction(1, 2)), 0) for c in centres])
        last = np.array([min(floor(c + support + Fraction(1, 2)), axis.size) for c in centres])
        taps = first[:, None] + np.arange((last - first).max(initial=1))
        inside = b.constant((taps < last[:, None]).astype(np.int64))
        where, along = b.constant(taps), b.constant(np.arange(axis.out))
        constants: tuple[Constant, ...] = (axis.scale, width)
        distance = b.equation("ot,o->ot", "(a0 - c0*(2*a1 + 1)/2 + 1/2)/c1", where, along, *constants, dtype=dtype)
        raw = b.pointwise(f"Piecewise(({self.kernel}, a1 > 0), (0, True))", distance, inside)
        return np.minimum(taps, axis.size - 1), b.pointwise("a0/a1", raw, b.sum(raw, (1,), True))


def _upsampled(
    b: Builder, x: Array, size: Sequence[int], align: bool, factors: Sequence[float | None], weigh: object
) -> Array:
    assert callable(weigh)
    for place, (out, factor) in enumerate(zip(size, _factors(len(size), factors), strict=True)):
        dim = len(x.shape) - len(size) + place
        taps, weights = weigh(b, _Axis(x.shape[dim], out, align, factor), x.dtype)
        x = _along(b, x, dim, taps, weights)
    return x


# -- their transposes -------------------------------------------------------------------------------------------------


def _downsampled(
    b: Builder, g: Array, input_size: Sequence[int], align: bool, factors: Sequence[float | None], weigh: object
) -> Array:
    """out[.., taps[o, t], ..] += weights[o, t] g[.., o, ..], axis by axis"""
    assert callable(weigh)
    count = len(input_size) - 2
    for place, factor in enumerate(_factors(count, factors)):
        dim, size = 2 + place, input_size[2 + place]
        taps, weights = weigh(b, _Axis(size, g.shape[dim], align, factor), g.dtype)
        letters = "abcdefgh"[: len(g.shape) - 1]
        shares = b.equation(f"{letters[:dim]}o{letters[dim:]},ot->{letters}ot", "a0*a1", g, weights)
        shape = (*g.shape[:dim], size, *g.shape[dim + 1 :])
        lines = np.moveaxis(np.arange(prod(shape)).reshape(shape), dim, -1)
        g = b.scatter(shares, lines[..., taps], shape)
    return g


@meaning(
    "aten.upsample_linear1d_backward.default",
    "aten.upsample_bilinear2d_backward.default",
    "aten.upsample_trilinear3d_backward.default",
)
def upsample_linear_backward(
    b: Builder, g: Array, _: Sequence[int], size: Sequence[int], align: bool, *factors: float | None
) -> Array:
    """out[n, i] = sum of g[n, o] over the outputs o that read i, with the weights 1 - t and t"""
    return _downsampled(b, g, size, align, factors, _linear)


@meaning("aten.upsample_bicubic2d_backward.default")
def upsample_cubic_backward(
    b: Builder, g: Array, _: Sequence[int], size: Sequence[int], align: bool, *factors: float | None
) -> Array:
    """out[n, i] = sum of g[n, o] over the outputs o that read i, with the weights of cubic convolution"""
    return _downsampled(b, g, size, align, factors, _cubic)


@meaning("aten._upsample_bilinear2d_aa_backward.default")
def upsample_linear_smoothed_backward(
    b: Builder, g: Array, _: Sequence[int], size: Sequence[int], align: bool, *factors: float | None
) -> Array:
    """out[n, i] = sum of g[n, o] over the outputs o that read i, with the weights of the widened triangle"""
    return _downsampled(b, g, size, align, factors, _Smoothed(TRIANGLE, 1))


# -- arbitrary grids --------------------------------------------------------------------------------------------------

BILINEAR, NEAREST_MODE, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


@meaning("aten.grid_sampler_2d", "aten.grid_sampler_3d")
def grid_sampler(b: Builder, x: Array, grid: Array, mode: int, padding: int, align: bool) -> Array:
    """out[n, c, o] = sum over the neighbours i of the place that grid[n, o] names of weight[n, o, i] x[n, c, i]"""
    n, channels, *size = x.shape
    outputs = prod(grid.shape[1:-1])
    flat = b.reshape(grid, (n, outputs, len(size)))
    sides = {BILINEAR: 2, NEAREST_MODE: 1, BICUBIC: 4}[mode]
    index = weight = None
    for place, extent in enumerate(size):
        last = len(size) - 1 - place  # the grid names the last axis of x first
        own = b.rearrange(flat, lambda positions, last=last: positions[:, :, last])  # type: ignore[misc]
        at = _unnormalised(b, own, extent, align)
        if padding == REFLECTION and mode != BICUBIC:
            at = _reflected(b, at, extent, align)
        start = b.pointwise({NEAREST_MODE: "rint(a0)"}.get(mode, "floor(a0)"), at, dtype="int64")
        taps = _taps(b, start, sides, extent, padding, align)
        weights = _tap_weights(b, at, start, mode)
        index = taps if index is None else _joined_index(b, index, taps, extent)
        weight = weights if weight is None or weights is None else _joined_weight(b, weight, weights)
    assert index is not None
    out = _sampled(b, x, index, weight, outputs)
    return b.reshape(out, (n, channels, *grid.shape[1:-1]))


def _unnormalised(b: Builder, place: Array, size: int, align: bool) -> Array:
    """-1 .. 1 to 0 .. size - 1 between the centres of the corner elements, or between their outer edges."""
    return b.pointwise("(a0 + 1)*(c0 - 1)/2" if align else "((a0 + 1)*c0 - 1)/2", place, size)


def _reflected(b: Builder, at: Array, size: int, align: bool) -> Array:
    """Folded back at the first and last element, or at their outer edges, as often as needed."""
    low, span = (Fraction(0), size - 1) if align else (Fraction(-1, 2), size)
    if span == 0:
        return b.pointwise("0*a0", at)
    folds = b.pointwise("floor((a0 - c0)/c1)", at, low, span, dtype="int64")
    odd = b.pointwise("a0 - 2*floordiv(a0, 2)", folds, dtype="int64")
    body = "Piecewise((a0 - a1*c1, Eq(a2, 0)), (2*c0 + c1 - a0 + a1*c1, True))"
    return b.pointwise(body, at, folds, odd, low, span)


def _taps(b: Builder, start: Array, sides: int, size: int, padding: int, align: bool) -> Array:
    """[n, o, t]: the element under each tap; -1 where there is none, or the nearest with a border.

    Clipping the taps rather than the place gives the same values, and no decisions where the place is out of range.
    """
    offset = b.constant(np.arange(sides) - (1 if sides == 4 else 0))
    place = b.equation("no,t->not", "a0 + a1", start, offset, dtype="int64")
    if padding == REFLECTION and sides == 4:
        place = _reflected_index(b, place, size, align)
    if padding != ZEROS:
        body = "Piecewise((0, a0 < 0), (c0, a0 > c0), (a0, True))"
        return b.pointwise(body, place, size - 1, dtype="int64")
    return b.pointwise("Piecewise((-1, a0 < 0), (-1, a0 >= c0), (a0, True))", place, size, dtype="int64")


def _reflected_index(b: Builder, place: Array, size: int, align: bool) -> Array:
    """An integer place folded back: period 2 (size - 1) about the elements, or 2 size about the edges."""
    if align and size == 1:
        return b.pointwise("0*a0", place, dtype="int64")
    period, shift = (2 * (size - 1), 0) if align else (2 * size, 1)
    rest = b.pointwise("a0 - c0*floordiv(a0, c0)", place, period, dtype="int64")
    return b.pointwise("Piecewise((a0, 2*a0 <= c0 - 1), (c0 - c1 - a0, True))", rest, period, shift, dtype="int64")


def _tap_weights(b: Builder, at: Array, start: Array, mode: int) -> Array | None:
    """[n, o, t]: the weight of each tap."""
    if mode == NEAREST_MODE:
        return None
    if mode == BILINEAR:
        body = "(1 - a2)*(1 - (a0 - a1)) + a2*(a0 - a1)"
        return b.equation("no,no,t->not", body, at, start, b.constant(np.arange(2)))
    return b.equation("no,no,t->not", _cubic_weights("(a0 - a1)", "a2"), at, start, b.constant(np.arange(4)))


def _joined_index(b: Builder, outer: Array, inner: Array, size: int) -> Array:
    """[n, o, t u]: flat positions from those along outer axes and one inner axis."""
    body = "Piecewise((-1, (a0 < 0) | (a1 < 0)), (a0*c0 + a1, True))"
    both = b.equation("not,nou->notu", body, outer, inner, size, dtype="int64")
    return b.reshape(both, (*both.shape[:2], both.shape[2] * both.shape[3]))


def _joined_weight(b: Builder, outer: Array, inner: Array) -> Array:
    both = b.equation("not,nou->notu", "a0*a1", outer, inner)
    return b.reshape(both, (*both.shape[:2], both.shape[2] * both.shape[3]))


def _sampled(b: Builder, x: Array, index: Array, weight: Array | None, outputs: int) -> Array:
    """out[n, c, o] = sum over t of weight[n, o, t] x[n, c, index[n, o, t]]"""
    n, channels, *size = x.shape
    start = b.constant(np.arange(n * channels).reshape(n, channels) * prod(size))
    body = "Piecewise((-1, a1 < 0), (a0 + a1, True))"
    taps = b.gather((x,), b.equation("nc,not->ncot", body, start, index, dtype="int64"))
    if weight is None:
        return b.reshape(taps, (n, channels, outputs))
    return b.equation("ncot,not->nco", "a0*a1", taps, weight)


@meaning("aten.grid_sampler_2d_backward", "aten.grid_sampler_3d_backward")
def grid_sampler_backward(
    b: Builder, g: Array, x: Array, grid: Array, mode: int, padding: int, align: bool, wanted: Sequence[bool]
) -> tuple[Array | None, Array | None]:
    """by x: weight g at the elements under the taps; by grid: sum over c, t of g x times the slope of the weight"""
    n, channels, *size = x.shape
    if mode == BICUBIC or padding == REFLECTION:
        raise UnknownOperator(b.operator, detail="by cubic convolution or with reflection, its backward has no meaning")
    outputs, rank = prod(grid.shape[1:-1]), len(size)
    flat = b.reshape(grid, (n, outputs, rank))
    index, weights, slopes = _linear_taps(b, flat, size, mode, padding, align)
    start = b.constant(np.arange(n * channels).reshape(n, channels) * prod(size))
    places = b.equation("nc,not->ncot", "Piecewise((-1, a1 < 0), (a0 + a1, True))", start, index, dtype="int64")
    cotangent = b.reshape(g, (n, channels, outputs))
    by_x = by_grid = None
    if wanted[0]:
        by_x = b.scatter(b.equation("nco,not->ncot", "a0*a1", cotangent, _product(b, weights)), places, x.shape)
    if wanted[1] and mode == NEAREST_MODE:
        by_grid = b.absent(grid.shape, grid.dtype)
    elif wanted[1]:
        taps = b.gather((x,), places)
        parts = []
        for axis in range(rank):
            moved = _product(b, [*weights[:axis], slopes[axis], *weights[axis + 1 :]])
            parts.append(b.equation("nco,ncot,not->no", "a0*a1*a2", cotangent, taps, moved))
        order = np.arange(rank)[::-1] * n * outputs + np.arange(n * outputs).reshape(n, outputs, 1)
        by_grid = b.reshape(b.gather(parts, order), grid.shape)
    return by_x, by_grid


def _linear_taps(
    b: Builder, flat: Array, size: Sequence[int], mode: int, padding: int, align: bool
) -> tuple[Array, list[Array], list[Array]]:
    """The joined positions of all taps; by axis of x the taps' weights, and their slopes by the grid."""
    index, weights, slopes = None, [], []
    for place, extent in enumerate(size):
        last = len(size) - 1 - place
        own = b.rearrange(flat, lambda positions, last=last: positions[:, :, last])  # type: ignore[misc]
        at = _unnormalised(b, own, extent, align)
        start = b.pointwise("rint(a0)" if mode == NEAREST_MODE else "floor(a0)", at, dtype="int64")
        taps = _taps(b, start, 1 if mode == NEAREST_MODE else 2, extent, padding, align)
        index = taps if index is None else _joined_index(b, index, taps, extent)
        both = _tap_weights(b, at, start, mode)
        weights.append(b.pointwise("1 + 0*a0", taps, dtype=flat.dtype) if both is None else both)
        # With a border torch stops the slope at the outermost elements and beyond.
        steep = "(2*a1 - 1)*c0/2"
        steep = steep if padding == ZEROS else f"Piecewise((0, a0 <= 0), (0, a0 >= c1), ({steep}, True))"
        sides = b.constant(np.arange(taps.shape[2]))
        slopes.append(b.equation("no,t->not", steep, at, sides, extent - 1 if align else extent, extent - 1))
    assert index is not None
    return index, weights, slopes


def _product(b: Builder, weights: Sequence[Array]) -> Array:
    out = weights[0]
    for weight in weights[1:]:
        out = _joined_weight(b, out, weight)
    return out
