"""Losses: elementwise penalties and class scores, averaged, summed or left as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from symcheck.building import Builder, Operand
from symcheck.program import Array
from symcheck.semantics.folding import log_weights
from symcheck.semantics.table import meaning

NONE, MEAN = 0, 1
REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _reduced(b: Builder, penalty: Array, reduction: int) -> Array:
    if reduction == NONE:
        return penalty
    return b.mean(penalty) if reduction == MEAN else b.sum(penalty)


@meaning("aten.mse_loss")
def mse(b: Builder, x: Array, y: Array, reduction: int = MEAN) -> Array:
    """the mean of (x - y)^2"""
    return _reduced(b, b.pointwise("(a0 - a1)**2", x, y), reduction)


@meaning("aten.smooth_l1_loss")
def smooth_l1(b: Builder, x: Array, y: Array, reduction: int = MEAN, beta: float = 1.0) -> Array:
    """the mean of d^2 / (2 beta) where |d| < beta, else |d| - beta/2, for d = x - y"""
    body = "Piecewise((a0**2/(2*c0), (a0 < c0) & (a0 > -c0)), (a0 - c0/2, a0 >= 0), (-a0 - c0/2, True))"
    if beta == 0:
        body = "Piecewise((a0, a0 >= 0), (-a0, True))"
    return _reduced(b, b.pointwise(body, b.pointwise("a0 - a1", x, y), beta), reduction)


@meaning("aten.huber_loss")
def huber(b: Builder, x: Array, y: Array, reduction: int = MEAN, delta: float = 1.0) -> Array:
    """the mean of d^2 / 2 where |d| <= delta, else delta (|d| - delta/2), for d = x - y"""
    body = "Piecewise((a0**2/2, (a0 <= c0) & (a0 >= -c0)), (c0*(a0 - c0/2), a0 >= 0), (c0*(-a0 - c0/2), True))"
    return _reduced(b, b.pointwise(body, b.pointwise("a0 - a1", x, y), delta), reduction)


@meaning("aten.soft_margin_loss")
def soft_margin(b: Builder, x: Array, y: Array, reduction: int = MEAN) -> Array:
    """the mean of log(1 + exp(-y x))"""
    return _reduced(b, b.pointwise("softplus(-a1*a0)", x, y), reduction)


def _weighted(b: Builder, penalty: Array, weight: Array | None) -> Array:
    return penalty if weight is None else b.pointwise("a0*a1", penalty, weight)


@meaning("aten.binary_cross_entropy")
def binary_cross_entropy(b: Builder, x: Array, y: Array, weight: Array | None = None, reduction: int = MEAN) -> Array:
    """the mean of -w (y log x + (1 - y) log(1 - x)), each logarithm at least -100"""
    # exp(-100) is where the logarithm is cut off.
    first = b.pointwise("Piecewise((log(a0), a0 > exp(-100)), (-100, True))", x)
    second = b.pointwise("Piecewise((log1p(-a0), 1 - a0 > exp(-100)), (-100, True))", x)
    penalty = b.pointwise("-(a0*a1 + (1 - a0)*a2)", y, first, second)
    return _reduced(b, _weighted(b, penalty, weight), reduction)


@meaning("aten.binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    b: Builder,
    x: Array,
    y: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """the mean of w ((1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)))"""
    if pos_weight is None:
        penalty = b.pointwise("(1 - a1)*a0 + softplus(-a0)", x, y)
    else:
        penalty = b.pointwise("(1 - a1)*a0 + (1 + (a2 - 1)*a1)*softplus(-a0)", x, y, pos_weight)
    return _reduced(b, _weighted(b, penalty, weight), reduction)


# -- classes ----------------------------------------------------------------------------------------------------------


def _class_weights(b: Builder, weight: Array | None, target: Array, ignore: int, dtype: str) -> Array:
    """out[n] = weight[target[n]], 1 without weights; 0 where the target is ignored"""
    if weight is None:
        return b.pointwise("Piecewise((0, Eq(a0, c0)), (1, True))", target, ignore, dtype=dtype)
    return b.pointwise("Piecewise((0, Eq(a1, c0)), (a0, True))", b.gather((weight,), target), target, ignore)


def _negative_log_likelihood(
    b: Builder, x: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
    """(loss, total weight) from log-probabilities x[..., c] and classes target[...]"""
    classes = b.pointwise("Piecewise((0, Eq(a0, c0)), (a0, True))", target, ignore, dtype="int64")
    share = _class_weights(b, weight, target, ignore, x.dtype)
    picked = b.take_last(x, classes)
    penalty = b.pointwise("Piecewise((0, Eq(a2, c0)), (-a0*a1, True))", picked, share, target, ignore)
    if reduction == NONE:
        return penalty, b.constant(np.zeros(()), x.dtype)
    whole = b.sum(share)
    loss = b.sum(penalty)
    return (b.pointwise("a0/a1", loss, whole) if reduction == MEAN else loss), whole


@meaning("aten.nll_loss_forward.default")
def nll_loss(
    b: Builder, x: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
    """out = sum over n of -w[target[n]] x[n, target[n]] / sum over n of w[target[n]], ignored targets left out"""
    return _negative_log_likelihood(b, x, target, weight, reduction, ignore)


@meaning("aten.nll_loss2d_forward.default")
def nll_loss2d(
    b: Builder, x: Array, target: Array, weight: Array | None, reduction: int, ignore: int
) -> tuple[Array, Array]:
    """as nll_loss_forward, with x[n, c, i, j] and target[n, i, j]"""
    return _negative_log_likelihood(b, b.permute(x, (0, 2, 3, 1)), target, weight, reduction, ignore)


@meaning("aten.multi_margin_loss")
def multi_margin(
    b: Builder,
    x: Array,
    target: Array,
    p: float = 1,
    margin: float = 1,
    weight: Array | None = None,
    reduction: int = MEAN,
) -> Array:
    """out[n] = sum over j other than y of w[y] max(0, margin - x[n, y] + x[n, j])^p / classes, for y = target[n]"""
    classes = x.shape[-1] if x.shape else 1
    rows = b.reshape(x, (x.size // classes, classes))
    labels = b.reshape(target, (rows.shape[0],))
    excess = b.equation("nj,n->nj", "a0 - a1 + c0", rows, b.take_last(rows, labels), margin)
    body = f"Piecewise((0, Eq(a1, a2)), (a0**{int(p)}/c0, a0 > 0), (0, True))"
    penalty = b.equation("nj,n,j->n", body, excess, labels, b.constant(np.arange(classes)), classes)
    if weight is not None:
        penalty = b.pointwise("a0*a1", penalty, b.gather((weight,), labels))
    return b.reshape(_reduced(b, penalty, reduction), b.result_shape)


@meaning("aten.multilabel_margin_loss_forward.default")
def multilabel_margin(b: Builder, x: Array, target: Array, reduction: int = MEAN) -> tuple[Array, Array]:
    """out[n] = sum over labels y and others i of max(0, 1 - x[n, y] + x[n, i]) / number of classes"""
    classes = x.shape[-1] if x.shape else 1
    rows = b.reshape(x, (x.size // classes, classes))
    labels = b.reshape(target, rows.shape)
    # The labels of a row end at the first negative one.
    negative = b.pointwise("Piecewise((1, a0 < 0), (0, True))", labels, dtype="int64")
    past = b.equation("ts,ns->nt", "a0*a1", b.constant(np.tri(classes, dtype=np.int64)), negative)
    index = b.constant(np.arange(classes))
    hit = "Piecewise((1, Eq(a0, 0) & Eq(a1, a2)), (0, True))"
    is_label = b.equation("nt,nt,i->ni", hit, past, labels, index)
    scores = b.take_last(rows, b.pointwise("Piecewise((0, a0 < 0), (a0, True))", labels, dtype="int64"))
    excess = b.equation("ni,nt->nti", "1 - a1 + a0", rows, scores)
    counted = "Piecewise((a0/c0, (a0 > 0) & Eq(a1, 0) & Eq(a2, 0)), (0, True))"
    penalty = b.equation("nti,nt,ni->n", counted, excess, past, is_label, classes)
    loss = b.reshape(_reduced(b, penalty, reduction), b.result_shape)
    return loss, b.reshape(b.cast(is_label, x.dtype), target.shape)


# -- linear layer and cross entropy in one ----------------------------------------------------------------------------


def _cross_entropy_of_linear(
    b: Builder,
    x: Array,
    weight: Array,
    target: Array,
    bias: Array | None,
    class_weight: Array | None,
    reduction: int,
    ignore: int,
    smoothing: float,
) -> Array:
    scores = b.equation("nk,ck->nc", "a0*a1", x, weight)
    if bias is not None:
        scores = b.pointwise("a0 + a1", scores, bias)
    logs = log_weights(b, scores, -1)
    loss, whole = _negative_log_likelihood(b, logs, target, class_weight, reduction, ignore)
    if smoothing == 0:
        return loss
    # Label smoothing mixes in the mean over all classes.
    spread = "Piecewise((0, Eq(a1, c0)), (-a0*a2/c1, True))"
    weights = class_weight if class_weight is not None else b.constant(np.ones(()), x.dtype)
    letters = "nc,n,c->n" if class_weight is not None else "nc,n,->n"
    smooth: Array = b.equation(letters, spread, logs, target, weights, ignore, scores.shape[1])
    if reduction != NONE:
        smooth = b.sum(smooth)
    if reduction == MEAN:
        smooth = b.pointwise("a0/a1", smooth, whole)
    mixture: tuple[Operand, ...] = (loss, smooth, smoothing)
    return b.pointwise("(1 - c0)*a0 + c0*a1", *mixture)


@meaning("torch_nn._linear_cross_entropy_batch_chunked")
def linear_cross_entropy(
    b: Builder,
    x: Array,
    weight: Array,
    target: Array,
    bias: Array | None,
    class_weight: Array | None,
    reduction: str,
    ignore: int,
    smoothing: float,
    *_: Any,
) -> tuple[Array, None, None, None]:
    """out = the cross entropy of x weight^T + bias; the gradients that torch computes beside it have no meaning"""
    kind = REDUCTIONS[reduction]
    loss = _cross_entropy_of_linear(b, x, weight, target, bias, class_weight, kind, ignore, smoothing)
    return loss, None, None, None


@meaning("torch_nn._linear_cross_entropy_batch_chunked_no_reduction")
def linear_cross_entropy_each(
    b: Builder,
    x: Array,
    weight: Array,
    target: Array,
    bias: Array | None,
    class_weight: Array | None,
    ignore: int,
    *_: Any,
) -> Array:
    """out[n] = the cross entropy of x[n] weight^T + bias"""
    return _cross_entropy_of_linear(b, x, weight, target, bias, class_weight, NONE, ignore, 0.0)
