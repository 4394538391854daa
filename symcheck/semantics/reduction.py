"""Reductions: sums, means, variances, norms, products and their cumulative forms."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any, TypeAlias

import numpy as np

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.folding import (
    axes,
    exact_order,
    finish_norm,
    from_last,
    kept_shape,
    norm_of_last,
    norm_terms,
    product_of_last,
    scan_last,
    shift_of,
    to_last,
)
from symcheck.semantics.table import meaning

Dims: TypeAlias = "Sequence[int] | int | None"


@meaning("aten.sum")
def total(b: Builder, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = sum over k of x[i, k]"""
    return b.sum(b.cast(x, b.result_dtype), axes(x, dim), keepdim)


@meaning("aten.mean")
def mean(b: Builder, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = sum over k of x[i, k] / n"""
    return b.mean(b.cast(x, b.result_dtype), axes(x, dim), keepdim)


@meaning("aten.nansum")
def nansum(b: Builder, x: Array, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = sum over k of x[i, k], NaN counted as 0"""
    return b.sum(b.cast(x, b.result_dtype), axes(x, dim), keepdim, "Piecewise((0, isnan(a0) > 0), (a0, True))")


def variance_and_mean(b: Builder, x: Array, dim: Dims, correction: float | None) -> tuple[Array, Array]:
    """The sum of squared deviations from the mean over n - correction, and the mean; reduced axes kept as size 1."""
    chosen = axes(x, dim)
    count = prod(x.shape[axis] for axis in chosen)
    centre = b.mean(x, chosen, keepdim=True)
    deviation = b.pointwise("a0 - a1", x, centre)
    squares = b.sum(deviation, chosen, True, "a0**2")
    freedom = max(count - (1 if correction is None else correction), 0)
    # Nothing left to divide by: infinite, and NaN where the squares are 0 as well.
    return b.pointwise(*(("a0/c0", squares, freedom) if freedom else ("a0*c0", squares, inf))), centre


@meaning("aten.var.correction")
def var(b: Builder, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """out[i] = sum over k of (x[i, k] - mean[i])^2 / (n - correction)"""
    return b.reshape(variance_and_mean(b, x, dim, correction)[0], kept_shape(x, dim, keepdim))


@meaning("aten.std.correction")
def std(b: Builder, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False) -> Array:
    """out[i] = square root of sum over k of (x[i, k] - mean[i])^2 / (n - correction)"""
    return finish_norm(b, var(b, x, dim, correction=correction, keepdim=keepdim), 2)


@meaning("aten.var_mean.correction")
def var_mean(
    b: Builder, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """(variance, mean) over k"""
    shape = kept_shape(x, dim, keepdim)
    variance, centre = variance_and_mean(b, x, dim, correction)
    return b.reshape(variance, shape), b.reshape(centre, shape)


@meaning("aten.std_mean.correction")
def std_mean(
    b: Builder, x: Array, dim: Dims = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """(standard deviation, mean) over k"""
    variance, centre = var_mean(b, x, dim, correction=correction, keepdim=keepdim)
    return finish_norm(b, variance, 2), centre


@meaning("aten.linalg_vector_norm")
def vector_norm(b: Builder, x: Array, order: float = 2, dim: Dims = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = (sum over k of |x[i, k]|^p)^(1/p); the largest |x| at p = inf, the smallest at -inf, the count at 0"""
    values = to_last(b, b.cast(x, b.result_dtype), dim)
    return b.reshape(norm_of_last(b, values, order), kept_shape(x, dim, keepdim))


@meaning("aten.dist")
def dist(b: Builder, x: Array, y: Array, order: float = 2) -> Array:
    """out = the norm of x - y"""
    return norm_of_last(b, to_last(b, b.pointwise("a0 - a1", x, y), None), order)


@meaning("aten._cdist_forward")
def cdist(b: Builder, x: Array, y: Array, order: float, *_: Any) -> Array:
    """out[n, i, j] = the norm over k of x[n, i, k] - y[n, j, k]"""
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    rows, columns = x.shape[-2:], y.shape[-2:]
    count = prod(batch)
    left = b.reshape(b.expand(x, (*batch, *rows)), (count, *rows))
    right = b.reshape(b.expand(y, (*batch, *columns)), (count, *columns))
    if abs(order) == inf or rows[1] == 0:
        out = norm_of_last(b, b.equation("nik,njk->nijk", "a0 - a1", left, right), order)
    else:
        body = norm_terms(order).replace("a1", "(-a0)").replace("a0", "(a0 - a1)")
        out = finish_norm(b, b.equation("nik,njk->nij", body, left, right, exact_order(order)), order)
    return b.reshape(out, (*batch, rows[0], columns[0]))


@meaning("aten._pdist_forward")
def pdist(b: Builder, x: Array, order: float = 2) -> Array:
    """out[pairs i < j] = the norm over k of x[i, k] - x[j, k]"""
    first, second = np.triu_indices(x.shape[0], 1)
    rows = np.arange(x.size).reshape(x.shape)
    difference = b.pointwise("a0 - a1", b.gather((x,), rows[first]), b.gather((x,), rows[second]))
    return norm_of_last(b, difference, order)


SIGN = "Piecewise((1, a1 > 0), (-1, a1 < 0), (0, True))"
SIZE = "Piecewise((a1, a1 >= 0), (-a1, True))"


def _distance_slope(order: float) -> str:
    """What torch's kernels multiply: the cotangent a0, the difference a1, the distance a2, the order c0."""
    if order == 1:
        return f"a0*{SIGN}"
    if order == 2:
        return "Piecewise((0, Eq(a2, 0)), (a0*a1/a2, True))"
    if order == inf:
        return f"Piecewise((a0*{SIGN}, Eq({SIZE}, a2)), (0, True))"
    if order < 2:
        return f"Piecewise((0, Eq(a2, 0)), (0, Eq(a1, 0)), (a0*{SIGN}*{SIZE}**(c0 - 1)/a2**(c0 - 1), True))"
    return f"Piecewise((0, Eq(a2, 0)), (a0*a1*{SIZE}**(c0 - 2)/a2**(c0 - 1), True))"


@meaning("aten._cdist_backward")
def cdist_backward(b: Builder, g: Array, x: Array, y: Array, order: float, distance: Array) -> Array:
    """out[n, i, k] = sum over j of g[n, i, j] times the slope of the distance of x[n, i] and y[n, j] by x[n, i, k]"""
    if order == 0 or x.size == 0 or y.size == 0:
        return b.absent(b.result_shape, x.dtype)
    batch, count = b.result_shape[:-2], prod(b.result_shape[:-2])
    left, right, cotangent, lengths = (
        b.reshape(b.expand(part, (*batch, *part.shape[-2:])), (count, *part.shape[-2:])) for part in (x, y, g, distance)
    )
    difference = b.equation("nik,njk->nijk", "a0 - a1", left, right)
    power = () if order in (1, 2, inf) else (exact_order(order),)
    slope = b.equation("nij,nijk,nij->nik", _distance_slope(order), cotangent, difference, lengths, *power)
    return b.reshape(slope, b.result_shape)


@meaning("aten._pdist_backward")
def pdist_backward(b: Builder, g: Array, x: Array, order: float, distance: Array) -> Array:
    """out[i, k] = sum over the pairs with i of g times the slope of their distance by x[i, k]"""
    if order == 0 or g.size == 0:
        return b.absent(x.shape, x.dtype)
    first, second = np.triu_indices(x.shape[0], 1)
    rows = np.arange(x.size).reshape(x.shape)
    difference = b.pointwise("a0 - a1", b.gather((x,), rows[first]), b.gather((x,), rows[second]))
    power = () if order in (1, 2, inf) else (exact_order(order),)
    slope = b.equation("p,pk,p->pk", _distance_slope(order), g, difference, distance, *power)
    ahead, behind = b.scatter(slope, rows[first], x.shape), b.scatter(slope, rows[second], x.shape)
    return b.pointwise("a0 - a1", ahead, behind)


@meaning("aten.logsumexp")
def logsumexp(b: Builder, x: Array, dim: Dims, keepdim: bool = False) -> Array:
    """out[i] = log(sum over k of exp(x[i, k])), shifted by the largest term"""
    values = b.cast(x, b.result_dtype)
    shift = shift_of(b, values, dim)
    shifted = b.pointwise("exp(a0 - a1)", values, shift)
    out = b.pointwise("log(a0) + a1", b.sum(shifted, axes(x, dim), True), shift)
    return b.reshape(out, kept_shape(x, dim, keepdim))


@meaning("aten.prod")
def product(b: Builder, x: Array, dim: int | None = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = product over k of x[i, k]"""
    out = product_of_last(b, to_last(b, b.cast(x, b.result_dtype), dim))
    return b.reshape(out, kept_shape(x, dim, keepdim))


@meaning("aten.cumsum")
def cumsum(b: Builder, x: Array, dim: int, **_: Any) -> Array:
    """out[i, j] = sum over k <= j of x[i, k]"""
    last = to_last(b, b.cast(x, b.result_dtype), dim)
    # The triangle's zeros are absent, so that an infinity further on does not reach back.
    triangle = b.gather((b.constant(np.ones(()), last.dtype),), np.tri(last.shape[-1], dtype=np.int64) - 1)
    rows = b.reshape(last, (prod(last.shape[:-1]), last.shape[-1]))
    return from_last(b, b.reshape(b.equation("jk,ik->ij", "a0*a1", triangle, rows), last.shape), x, dim)


@meaning("aten.cumprod")
def cumprod(b: Builder, x: Array, dim: int, **_: Any) -> Array:
    """out[i, j] = product over k <= j of x[i, k]"""
    last = to_last(b, b.cast(x, b.result_dtype), dim)
    return from_last(b, scan_last(b, last, lambda left, right: b.pointwise("a0*a1", left, right)), x, dim)


LOG_ADD_EXP = (
    "Piecewise((a0 + log1p(exp(a1 - a0)), a0 > a1), (a1 + log1p(exp(a0 - a1)), a1 > a0), ((a0 + a1)/2 + log(2), True))"
)


@meaning("aten.logcumsumexp")
def logcumsumexp(b: Builder, x: Array, dim: int) -> Array:
    """out[i, j] = log(sum over k <= j of exp(x[i, k]))"""
    last = to_last(b, x, dim)
    return from_last(b, scan_last(b, last, lambda left, right: b.pointwise(LOG_ADD_EXP, left, right)), x, dim)
