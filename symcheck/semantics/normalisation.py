"""Normalisations: softmax, and means and variances divided out of layers, batches and groups; attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any, TypeAlias

import numpy as np

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.folding import log_weights, shift_of
from symcheck.semantics.table import meaning

MaybeArray: TypeAlias = Array | None


# -- softmax ----------------------------------------------------------------------------------------------------------


# The largest term is 1, so that the total is 0 only where all scores are -inf.
RATIO = "Piecewise((c0, Eq(a1, 0)), (a0/a1, True))"


@meaning("aten._softmax")
def softmax(b: Builder, x: Array, dim: int, *_: Any) -> Array:
    """out[i, j] = exp(x[i, j]) / sum over k of exp(x[i, k]), shifted by the largest term"""
    return _weights(b, b.cast(x, b.result_dtype), dim, nan)


@meaning("aten._safe_softmax")
def safe_softmax(b: Builder, x: Array, dim: int, *_: Any, **__: Any) -> Array:
    """out = the softmax of x, and 0 throughout a row of -inf"""
    return _weights(b, b.cast(x, b.result_dtype), dim, 0)


def _weights(b: Builder, x: Array, dim: int, masked: float) -> Array:
    terms = b.pointwise("exp(a0 - a1)", x, shift_of(b, x, dim))
    return b.pointwise(RATIO, terms, b.sum(terms, _one(x, dim), True), masked)


def _one(x: Array, dim: int) -> tuple[int, ...]:
    return (dim,) if x.shape else ()


@meaning("aten._log_softmax")
def log_softmax(b: Builder, x: Array, dim: int, *_: Any) -> Array:
    """out[i, j] = x[i, j] - log(sum over k of exp(x[i, k])), shifted by the largest term"""
    return log_weights(b, b.cast(x, b.result_dtype), dim)


@meaning("aten._softmax_backward_data")
def softmax_backward(b: Builder, g: Array, y: Array, dim: int, *_: Any) -> Array:
    """out[i, j] = y[i, j] (g[i, j] - sum over k of g[i, k] y[i, k])"""
    product = b.pointwise("a0*a1", g, y)
    return b.cast(b.pointwise("a0 - a1*a2", product, y, b.sum(product, _one(y, dim), True)), b.result_dtype)


@meaning("aten._log_softmax_backward_data")
def log_softmax_backward(b: Builder, g: Array, y: Array, dim: int, *_: Any) -> Array:
    """out[i, j] = g[i, j] - exp(y[i, j]) sum over k of g[i, k]"""
    return b.cast(b.pointwise("a0 - exp(a1)*a2", g, y, b.sum(g, _one(y, dim), True)), b.result_dtype)


# -- means and variances ----------------------------------------------------------------------------------------------


def _moments(b: Builder, x: Array, dims: Sequence[int]) -> tuple[Array, Array]:
    """The mean, and the mean of squared deviations from it; reduced axes kept as size 1."""
    centre = b.mean(x, dims, keepdim=True)
    return centre, b.sum(b.pointwise("a0 - a1", x, centre), dims, True, "a0**2/c0")


def _affine(b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, shape: Sequence[int]) -> Array:
    """weight x + bias, each where given, both seen in a shape that broadcasts."""
    if weight is not None and bias is not None:
        return b.pointwise("a0*a1 + a2", x, b.reshape(weight, shape), b.reshape(bias, shape))
    if weight is not None:
        return b.pointwise("a0*a1", x, b.reshape(weight, shape))
    return x if bias is None else b.pointwise("a0 + a1", x, b.reshape(bias, shape))


NORMALISED = "(a0 - a1)*a2"
INVERSE_ROOT = "1/sqrt(a0 + c0)"


@meaning("aten.native_layer_norm")
def layer_norm(
    b: Builder, x: Array, shape: Sequence[int], weight: MaybeArray, bias: MaybeArray, eps: float
) -> tuple[Array, Array, Array]:
    """out[i, k] = weight[k] (x[i, k] - mean[i]) / sqrt(variance[i] + eps) + bias[k], mean and variance over k"""
    dims = range(len(x.shape) - len(shape), len(x.shape))
    centre, variance = _moments(b, x, dims)
    inverse = b.pointwise(INVERSE_ROOT, variance, eps)
    return _affine(b, b.pointwise(NORMALISED, x, centre, inverse), weight, bias, tuple(shape)), centre, inverse


@meaning("aten.native_group_norm")
def group_norm(
    b: Builder,
    x: Array,
    weight: MaybeArray,
    bias: MaybeArray,
    n: int,
    channels: int,
    pixels: int,
    group: int,
    eps: float,
) -> tuple[Array, Array, Array]:
    """out[n, c, i] = weight[c] (x[n, c, i] - mean[n, g]) / sqrt(variance[n, g] + eps) + bias[c], over each group g"""
    grouped = b.reshape(x, (n, group, channels // group * pixels))
    centre, variance = _moments(b, grouped, (2,))
    inverse = b.pointwise(INVERSE_ROOT, variance, eps)
    by_channel = b.reshape(b.pointwise(NORMALISED, grouped, centre, inverse), (n, channels, pixels))
    out = b.reshape(_affine(b, by_channel, weight, bias, (channels, 1)), x.shape)
    return out, b.reshape(centre, (n, group)), b.reshape(inverse, (n, group))


def _by_channel(x: Array) -> tuple[int, ...]:
    """A shape in which one number for each channel broadcasts against x."""
    return (x.shape[1], *(1,) * (len(x.shape) - 2))


def _trained(
    b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, eps: float
) -> tuple[Array, Array, Array, Array]:
    """Normalised by the statistics of the batch: (out, mean, 1 / sqrt(variance + eps), variance), by channel."""
    dims = [axis for axis in range(len(x.shape)) if axis != 1]
    centre, variance = _moments(b, x, dims)
    inverse = b.pointwise(INVERSE_ROOT, variance, eps)
    out = _affine(b, b.pointwise(NORMALISED, x, centre, inverse), weight, bias, _by_channel(x))
    flat = (x.shape[1],)
    return out, b.reshape(centre, flat), b.reshape(inverse, flat), b.reshape(variance, flat)


def _fixed(
    b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, centre: Array, variance: Array, eps: float
) -> Array:
    """Normalised by running statistics."""
    shape = _by_channel(x)
    inverse = b.pointwise(INVERSE_ROOT, b.reshape(variance, shape), eps)
    return _affine(b, b.pointwise(NORMALISED, x, b.reshape(centre, shape), inverse), weight, bias, shape)


def _running(
    b: Builder, x: Array, centre: Array, variance: Array, old_mean: Array, old_variance: Array, momentum: float
) -> tuple[Array, Array]:
    """The running statistics moved by momentum towards the batch's mean and unbiased variance."""
    count = x.size // x.shape[1]
    mean = b.pointwise("c0*a0 + (1 - c0)*a1", centre, old_mean, momentum)
    return mean, b.pointwise("c0*a0*c1/(c1 - 1) + (1 - c0)*a1", variance, old_variance, momentum, count)


def _none(b: Builder, x: Array) -> Array:
    """What is saved where no statistics of the batch are: nothing."""
    return b.constant(np.zeros(0), x.dtype)


@meaning("aten._native_batch_norm_legit.no_stats")
def batch_norm_of_batch(
    b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """out[n, c, i] = weight[c] (x[n, c, i] - mean[c]) / sqrt(variance[c] + eps) + bias[c], over n and i"""
    return _trained(b, x, weight, bias, eps)[:3]


@meaning("aten._native_batch_norm_legit_no_training")
def batch_norm_fixed(
    b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, centre: Array, variance: Array, *rest: float
) -> tuple[Array, Array, Array]:
    """out[n, c, i] = weight[c] (x[n, c, i] - running mean[c]) / sqrt(running variance[c] + eps) + bias[c]"""
    return _fixed(b, x, weight, bias, centre, variance, rest[-1]), _none(b, x), _none(b, x)


@meaning("aten.native_batch_norm")
def batch_norm(
    b: Builder,
    x: Array,
    weight: MaybeArray,
    bias: MaybeArray,
    centre: MaybeArray,
    variance: MaybeArray,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """as with running statistics, or by those of the batch while training"""
    if training or centre is None or variance is None:
        return _trained(b, x, weight, bias, eps)[:3]
    return _fixed(b, x, weight, bias, centre, variance, eps), _none(b, x), _none(b, x)


@meaning("aten._native_batch_norm_legit_functional")
def batch_norm_functional(
    b: Builder,
    x: Array,
    weight: MaybeArray,
    bias: MaybeArray,
    old_mean: Array,
    old_variance: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, ...]:
    """as native_batch_norm, with the running statistics that it leaves behind"""
    if not training:
        out = _fixed(b, x, weight, bias, old_mean, old_variance, eps)
        return out, _none(b, x), _none(b, x), old_mean, old_variance
    out, centre, inverse, variance = _trained(b, x, weight, bias, eps)
    return out, centre, inverse, *_running(b, x, centre, variance, old_mean, old_variance, momentum)


@meaning("aten._batch_norm_with_update_functional")
def batch_norm_with_update(
    b: Builder, x: Array, weight: MaybeArray, bias: MaybeArray, mean: Array, variance: Array, *rest: float
) -> tuple[Array | None, ...]:
    """as native_batch_norm while training, with the running statistics that it leaves behind"""
    out, centre, inverse, *updated = batch_norm_functional(b, x, weight, bias, mean, variance, True, *rest)
    return out, centre, inverse, b.constant(np.zeros(0, dtype=np.uint8), "uint8"), *updated


# -- attention --------------------------------------------------------------------------------------------------------


@meaning("aten._scaled_dot_product_flash_attention_for_cpu")
def attention(
    b: Builder,
    query: Array,
    key: Array,
    value: Array,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: MaybeArray = None,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """out[n, h, q] = sum over k of softmax over k of (scale query[n, h, q] . key[n, h, k] + mask) value[n, h, k]"""
    size = query.shape[-1]
    scores = b.equation("nhqd,nhkd->nhqk", "a0*a1", query, key)
    scores = b.pointwise("a0/sqrt(c0)", scores, size) if scale is None else b.pointwise("c0*a0", scores, scale)
    scores = _masked(b, scores, attn_mask, causal)
    shift = shift_of(b, scores, -1)
    terms = b.pointwise("exp(a0 - a1)", scores, shift)
    total = b.sum(terms, (-1,), True)
    weights = b.pointwise(RATIO, terms, total, 0)
    log_total = b.pointwise("a1 + log(a0)", total, shift)
    out = b.equation("nhqk,nhkd->nhqd", "a0*a1", weights, value)
    return out, b.reshape(log_total, log_total.shape[:-1])


@meaning("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def attention_backward(
    b: Builder,
    g: Array,
    query: Array,
    key: Array,
    value: Array,
    out: Array,
    log_total: Array,
    dropout: float,
    causal: bool,
    *,
    attn_mask: MaybeArray = None,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """by value P' g, by query scale S key, by key scale S' query; P the weights, S = P (g value' - sum of g out)"""
    size = query.shape[-1]
    factor = ("a0*a1/sqrt(c0)", size) if scale is None else ("c0*a0*a1", scale)
    scores = _masked(b, b.equation("nhqd,nhkd->nhqk", factor[0], query, key, factor[1]), attn_mask, causal)
    # SymPy's real symbols are finite, so infinity is a constant beside the body.
    seen = "Piecewise((exp(a0 - a1), a0 > -c0), (0, True))"
    weights = b.equation("nhqk,nhq->nhqk", seen, scores, log_total, float("inf"))
    total = b.equation("nhqd,nhqd->nhq", "a0*a1", g, out)
    reached = b.equation("nhqd,nhkd->nhqk", "a0*a1", g, value)
    moved = b.equation("nhqk,nhqk,nhq->nhqk", "a0*(a1 - a2)", weights, reached, total)
    by_value = b.equation("nhqk,nhqd->nhkd", "a0*a1", weights, g)
    by_query = b.equation("nhqk,nhkd->nhqd", factor[0], moved, key, factor[1])
    return by_query, b.equation("nhqk,nhqd->nhkd", factor[0], moved, query, factor[1]), by_value


def _masked(b: Builder, scores: Array, mask: MaybeArray, causal: bool) -> Array:
    if causal:
        rows, columns = scores.shape[-2:]
        seen = b.constant(np.tri(rows, columns, dtype=bool))
        scores = b.pointwise("Piecewise((a0, a1 > 0), (-oo, True))", scores, seen)
    if mask is None:
        return scores
    return b.pointwise("a0 + a1" if mask.is_real else "Piecewise((a0, a1 > 0), (-oo, True))", scores, mask)
