"""Selections: gathers whose positions depend on values, such as max, sort, topk and median."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.folding import extreme, from_last, kept_shape, to_last
from symcheck.semantics.table import meaning

RUN_STARTS = "Piecewise((1, Eq(a0, 0)), (0, Eq(a1, a2)), (1, True))"  # in sorted order, where a value differs


def _rule(b: Builder) -> str:
    return "argmin" if "min" in b.operator.split(".")[1] else "argmax"


def _taken(b: Builder, x: Array, last: Array, index: Array, dim: int | None, keepdim: bool) -> tuple[Array, Array]:
    """last[i, index[i]] and the index, in the shape of x reduced along an axis."""
    shape = kept_shape(x, dim, keepdim)
    return b.reshape(b.take_last(last, index), shape), b.reshape(index, shape)


def _every_taken(b: Builder, x: Array, last: Array, index: Array, dim: int) -> tuple[Array, Array]:
    """last[i, index[i, k]] and the index, with its last axis put where it came from in x."""
    return from_last(b, b.take_last(last, index), x, dim), from_last(b, index, x, dim)


def _first(b: Builder, index: Array, count: int) -> Array:
    return b.rearrange(index, lambda positions: positions[..., :count])


# -- extremes -------------------------------------------------------------------------------------------------------


@meaning("aten.max.dim", "aten.min.dim")
def extreme_along(b: Builder, x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """out[i] = x[i, k*], index[i] = k*, the k of the largest or smallest x[i, k]"""
    last = to_last(b, x, dim)
    return _taken(b, x, last, b.select(last, _rule(b)), dim, keepdim)


@meaning("aten.max.default", "aten.min.default", "aten.amax", "aten.amin")
def extreme_over(b: Builder, x: Array, dim: Sequence[int] = (), keepdim: bool = False) -> Array:
    """out[i] = the largest or smallest x[i, k] over k"""
    return b.reshape(extreme(b, x, dim, _rule(b)), kept_shape(x, dim, keepdim))


@meaning("aten.aminmax")
def both_extremes(b: Builder, x: Array, *, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    """out[i] = the smallest and the largest x[i, k] over k"""
    shape = kept_shape(x, dim, keepdim)
    return b.reshape(extreme(b, x, dim, "argmin"), shape), b.reshape(extreme(b, x, dim, "argmax"), shape)


@meaning("aten.argmax", "aten.argmin")
def position_of_extreme(b: Builder, x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """out[i] = the first k of the largest or smallest x[i, k]"""
    return b.reshape(b.select(to_last(b, x, dim), _rule(b)), kept_shape(x, dim, keepdim))


@meaning("aten.cummax", "aten.cummin")
def running_extreme(b: Builder, x: Array, dim: int) -> tuple[Array, Array]:
    """out[i, j] = the largest or smallest of x[i, 0] ... x[i, j], and the last position that holds it"""
    last = to_last(b, x, dim)
    return _every_taken(b, x, last, b.select(last, f"cum{'argmin' if 'min' in b.operator else 'argmax'}"), dim)


# -- by order -------------------------------------------------------------------------------------------------------


def _order(b: Builder, last: Array, descending: bool = False) -> Array:
    return b.select(last, "argsort descending" if descending else "argsort")


def _sorted(b: Builder, x: Array, dim: int, descending: bool) -> tuple[Array, Array]:
    last = to_last(b, x, dim)
    return _every_taken(b, x, last, _order(b, last, descending), dim)


@meaning("aten.sort.default")
def sort(b: Builder, x: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """out[i, j] = x[i, order[i, j]], a stable order along the axis"""
    return _sorted(b, x, dim, descending)


@meaning("aten.sort.stable")
def stable_sort(
    b: Builder, x: Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    """out[i, j] = x[i, order[i, j]], a stable order along the axis"""
    return _sorted(b, x, dim, descending)


@meaning("aten.argsort.default")
def argsort(b: Builder, x: Array, dim: int = -1, descending: bool = False) -> Array:
    """out[i, j] = order[i, j], a stable order along the axis"""
    return _sorted(b, x, dim, descending)[1]


@meaning("aten.topk")
def top(b: Builder, x: Array, k: int, dim: int = -1, largest: bool = True, ordered: bool = True) -> tuple[Array, Array]:
    """out[i, j] = the j-th largest or smallest x[i, k] over k"""
    last = to_last(b, x, dim)
    return _every_taken(b, x, last, _first(b, _order(b, last, largest), k), dim)


def _ranked(b: Builder, last: Array, rank: Array) -> Array:
    """Where the element of a given rank is, along the last axis."""
    return b.take_last(_order(b, last), rank)


def _constant_rank(b: Builder, last: Array, rank: int) -> Array:
    return b.constant(np.full(last.shape[:-1], rank))


@meaning("aten.kthvalue")
def kth_value(b: Builder, x: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """out[i] = the k-th smallest x[i, j] over j"""
    last = to_last(b, x, dim)
    return _taken(b, x, last, _ranked(b, last, _constant_rank(b, last, k - 1)), dim, keepdim)


@meaning("aten.median.dim", "aten.median.default")
def median(b: Builder, x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    """out[i] = the lower median of x[i, k] over k; NaN if any is, as NaN sorts last"""
    last = to_last(b, x, dim)
    size = last.shape[-1]
    order = _order(b, last)
    greatest = b.take_last(last, b.take_last(order, _constant_rank(b, last, size - 1)))
    rank = b.pointwise(
        "Piecewise((c0, Eq(isnan(a0), 0)), (c1, True))", greatest, (size - 1) // 2, size - 1, dtype="int64"
    )
    return _median(b, x, last, b.take_last(order, rank), dim, keepdim)


@meaning("aten.nanmedian.dim", "aten.nanmedian.default")
def median_of_numbers(b: Builder, x: Array, dim: int | None = None, keepdim: bool = False) -> Any:
    """out[i] = the lower median of those x[i, k] that are not NaN"""
    last = to_last(b, x, dim)
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(last.shape)]
    numbers = b.equation(f"{letters}->{letters[:-1]}", "1 - isnan(a0)", last, dtype="int64")
    middle = b.constant(np.maximum(np.arange(last.shape[-1] + 1) - 1, 0) // 2)
    return _median(b, x, last, _ranked(b, last, b.gather((middle,), numbers)), dim, keepdim)


def _median(b: Builder, x: Array, last: Array, index: Array, dim: int | None, keepdim: bool) -> Any:
    results = _taken(b, x, last, index, dim, keepdim)
    return results[0] if b.operator.endswith(".default") else results


@meaning("aten.mode")
def mode(b: Builder, x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """out[i] = the smallest of the most frequent x[i, k] over k; index = the last k that holds it"""
    last = to_last(b, x, dim)
    order = _order(b, last)
    rows = b.take_last(last, order)
    before = b.rearrange(rows, lambda positions: np.concatenate([positions[..., :1], positions[..., :-1]], axis=-1))
    place = b.constant(np.arange(last.shape[-1]))
    starts = b.pointwise(RUN_STARTS, place, rows, before, dtype="int64")
    length = b.pointwise("a0 - a1", place, b.select(starts, "cumargmax"), dtype="int64")
    rank = b.select(length, "argmax")
    return _taken(b, x, last, b.take_last(order, rank), dim, keepdim)
