"""Scatter-reductions: sums, products, means and extremes of the elements that share a target."""

from __future__ import annotations

from math import inf, prod
from typing import Any

import numpy as np

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.folding import from_last, product_of_last, to_last
from symcheck.semantics.table import meaning

NAMES = {"add": "sum", "multiply": "prod", "max": "amax", "min": "amin"}
NEUTRAL = {"sum": 0, "mean": 0, "prod": 1, "amax": -inf, "amin": inf}
MEMBER = "Piecewise((a0, Eq(a1, a2)), (c0, True))"  # an element where its group is the target, else neutral
DIVIDED = "Piecewise((a0/(a1 + c0), a1 + c0 > 0), (a0, True))"
STARTED = "Piecewise((1, a0 <= a1), (0, True))"
COUNTED = "Piecewise((1, Eq(a0, a1)), (0, True))"


# -- groups along the last axis -------------------------------------------------------------------------------------


def _reduce_groups(
    b: Builder, start: Array | None, source: Array, group: Array, targets: int, reduce: str
) -> tuple[Array, Array]:
    """out[o, d] = start[o, d] with the source[o, k] of group[o, k] = d reduced into it, and how many those are."""
    slots = b.constant(np.arange(targets))
    count = b.equation("ok,d->od", COUNTED, group, slots, dtype="int64")
    if reduce in ("sum", "mean"):
        total = b.equation("ok,ok,d->od", MEMBER, source, group, slots, 0)
        total = total if start is None else b.add([start, total])
        if reduce == "mean":
            total = b.pointwise(DIVIDED, total, count, 0 if start is None else 1)
        return total, count
    members = b.equation("ok,ok,d->odk", MEMBER, source, group, slots, NEUTRAL[reduce])
    if start is not None:
        members = _appended(b, members, start)
    if reduce == "prod":
        return product_of_last(b, members), count
    return b.take_last(members, b.select(members, "argmax" if reduce == "amax" else "argmin")), count


def _appended(b: Builder, rows: Array, extra: Array) -> Array:
    """Each row with one more element."""
    own = np.arange(rows.size).reshape(rows.shape)
    more = rows.size + np.arange(extra.size).reshape(*extra.shape, 1)
    return b.gather((rows, extra), np.concatenate([own, more], axis=-1))


def _scatter_reduced(b: Builder, x: Array, dim: int, index: Array, source: Array, reduce: str, include: bool) -> Array:
    """x with source[i, k, j] reduced into [i, index[i, k, j], j]; untouched elements keep their value."""
    reduce = NAMES.get(reduce, reduce)
    x1 = x if x.shape else b.reshape(x, [1])
    index1 = index if index.shape else b.reshape(index, [1])
    source1 = source if source.shape else b.reshape(source, [1])
    dim = dim % len(x1.shape)
    corner = tuple(slice(None) if axis == dim else slice(size) for axis, size in enumerate(index1.shape))
    covered = b.rearrange(x1, lambda places: places[corner])
    cut = b.rearrange(source1, lambda places: places[tuple(slice(size) for size in index1.shape)])
    rows, width = prod(index1.shape) // max(1, index1.shape[dim]), x1.shape[dim]
    own = b.reshape(to_last(b, covered, dim), [rows, width])
    flat = [b.reshape(to_last(b, part, dim), [rows, index1.shape[dim]]) for part in (cut, index1)]
    out, count = _reduce_groups(b, own if include else None, flat[0], flat[1], width, reduce)
    if not include:
        out = b.pointwise("Piecewise((a0, a1 > 0), (a2, True))", out, count, own)
    others = [size for axis, size in enumerate(covered.shape) if axis != dim]
    out = from_last(b, b.reshape(out, [*others, width]), covered, dim)
    if covered.shape != x1.shape:
        out = b.overwrite(x1, np.arange(x1.size).reshape(x1.shape)[corner], out)
    return b.reshape(out, x.shape)


@meaning("aten.scatter_reduce")
def scatter_reduce(
    b: Builder, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """out[i, d, j] = the sum, product, mean or extreme of x[i, d, j] and every source[i, k, j] of index[i, k, j] = d"""
    if index.size == 0:
        return x
    return _scatter_reduced(b, x, dim, index, source, reduce, include_self)


@meaning("aten.scatter.reduce", "aten.scatter.value_reduce")
def scatter_by(b: Builder, x: Array, dim: int, index: Array, source: Any, *, reduce: str) -> Array:
    """out[i, d, j] = x[i, d, j] increased or multiplied by every source[i, k, j] of index[i, k, j] = d"""
    if index.size == 0:
        return x
    if not isinstance(source, Array):
        source = b.expand(b.constant(np.asarray(source, np.float64 if x.is_real else np.int64), x.dtype), index.shape)
    return _scatter_reduced(b, x, dim, index, source, reduce, include=True)


@meaning("aten.index_reduce")
def index_reduce(
    b: Builder, x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """out[i, d, j] = the product, mean or extreme of x[i, d, j] and every source[i, k, j] of index[k] = d"""
    if index.size == 0 or source.size == 0:
        return x
    shape = [1] * len(source.shape)
    if shape:
        shape[dim % len(shape)] = index.size
    spread = b.expand(b.reshape(index, shape), source.shape)
    return _scatter_reduced(b, x, dim, spread, source, reduce, include_self)


# -- bags and segments ----------------------------------------------------------------------------------------------


@meaning("aten._embedding_bag", "aten._embedding_bag_forward_only")
def embedding_bag(
    b: Builder,
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Array | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> tuple[Array | None, ...]:
    """out[s, d] = sum, mean or maximum of p[n] * weight[indices[n], d] over the n from offsets[s] to the next"""
    bags, width = b.result_shape
    group = _bag_of(b, indices, b.rearrange(offsets, lambda places: places[:bags]), padding)
    if indices.size == 0:
        return b.constant(np.zeros((bags, width)), weight.dtype), None, None, None
    places = b.equation("n,d->dn", "c0*a0 + a1", indices, b.constant(np.arange(width)), width, dtype="int64")
    rows = b.gather((weight,), places)
    if weights is not None:
        rows = b.pointwise("a0*a1", rows, weights)
    group = b.expand(group, (width, indices.size))
    out, count = _reduce_groups(b, None, rows, group, bags, "mean" if mode == 1 else "sum")
    if mode == 2:  # chosen by the index, so that a row that occurs twice does not tie with itself
        members = b.equation("ok,ok,d->odk", MEMBER, rows, group, b.constant(np.arange(bags)), -inf)
        out = b.gather((weight,), b.take_last(places, b.select(members, "argmax")))
    if mode:
        out = b.pointwise("Piecewise((a0, a1 > 0), (0, True))", out, count)
    return b.permute(out, [1, 0]), None, None, None


def _bag_of(b: Builder, indices: Array, offsets: Array, padding: int) -> Array:
    """The bag that each index belongs to: the last that starts by there; -1 for padding."""
    place = b.constant(np.arange(indices.size))
    started = b.equation("s,n->n", STARTED, offsets, place, dtype="int64")
    return b.pointwise("Piecewise((-1, Eq(a1, c0)), (a0 - 1, True))", started, indices, padding, dtype="int64")


@meaning("aten.segment_reduce")
def segment_reduce(
    b: Builder,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Array:
    """out[o, s, j] = sum, mean, product or extreme of data[o, k, j] over the k of segment s"""
    name = NAMES.get(reduce, reduce)
    lead, size = data.shape[:axis], data.shape[axis]
    rows, inner = prod(lead), prod(data.shape[axis + 1 :])
    ends = _ends(b, lengths, offsets, rows)
    group = b.equation("rs,k->rk", STARTED, ends, b.constant(np.arange(size)), dtype="int64")
    laid = b.reshape(b.permute(b.reshape(data, [rows, size, inner]), [0, 2, 1]), [rows * inner, size])
    spread = b.equation("rk,j->rjk", "a0 + 0*a1", group, b.constant(np.zeros(inner, dtype=np.int64)), dtype="int64")
    group, targets = b.reshape(spread, [rows * inner, size]), ends.shape[1]
    start = None
    if initial is not None:
        start = b.constant(np.full((rows * inner, targets), float(initial)), data.dtype)
    out, count = _reduce_groups(b, start, laid, group, targets, "sum" if name == "mean" else name)
    if name == "mean":
        empty = np.nan if initial is None else float(initial)
        out = b.pointwise("Piecewise((a0/a1, a1 > 0), (c0, True))", out, count, empty)
    return b.reshape(b.permute(b.reshape(out, [rows, inner, targets]), [0, 2, 1]), b.result_shape)


def _ends(b: Builder, lengths: Array | None, offsets: Array | None, rows: int) -> Array:
    """Where each segment ends, by row."""
    if offsets is not None:
        flat = b.reshape(offsets, [rows, offsets.size // rows])
        return b.rearrange(flat, lambda places: places[:, 1:])
    assert lengths is not None
    flat = b.reshape(lengths, [rows, lengths.size // rows])
    before = b.constant(np.tril(np.ones((flat.shape[1], flat.shape[1]), dtype=np.int64)))
    return b.equation("st,rt->rs", "a0*a1", before, flat, dtype="int64")
