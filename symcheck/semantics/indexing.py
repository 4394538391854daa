"""Indexing: gathers and scatters whose positions come from integer or bool tensors, static or given as inputs.

Positions are flat and row-major: the sum over the axes of index * stride, as integer equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.building import Builder
from symcheck.errors import UnknownOperator
from symcheck.functions import constant_symbol, read_symbol
from symcheck.program import Array
from symcheck.semantics.table import meaning

Index = Array | None


# -- where an indexing expression reads -----------------------------------------------------------------------------


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _ramp(size: int, stride: int, axis: int, rank: int) -> NDArray[np.int64]:
    """index * stride along one of `rank` axes."""
    return (np.arange(size) * stride).reshape([size if place == axis else 1 for place in range(rank)])


def _offset(b: Builder, base: NDArray[np.int64], terms: Sequence[tuple[Array, int, int]]) -> Array:
    """base + the sum of stride * index over (index, stride, size), where index counts from the end if negative."""
    body: sp.Expr = read_symbol(0)
    constants: list[int] = []
    for place, (_, stride, size) in enumerate(terms):
        index, step, length = read_symbol(1 + place), constant_symbol(2 * place), constant_symbol(2 * place + 1)
        body += step * sp.Piecewise((index + length, index < 0), (index, True))
        constants += [stride, size]
    arrays = [b.cast(index, "int64") for index, _, _ in terms]
    return b.pointwise(body, b.constant(base), *arrays, *constants, dtype="int64")


class _Expression:
    """x[indices]: its axes, once masks are replaced by the coordinates of their elements.

    Attributes:
        first: the first axis of the result that the index tensors make.
        rank: how many axes they make together.
        trailing: how many axes of x follow them.
    """

    def __init__(self, x: Array, indices: Sequence[Index]) -> None:
        self.x, self.indices = x, list(indices)
        self.axes: list[tuple[Array, int, int]] = []  # tensor, which of its coordinates, axis of x
        axis = 0
        for index in indices:
            if index is None:
                axis += 1
                continue
            for coordinate in range(len(index.shape) if index.dtype in ("bool", "uint8") else 1):
                self.axes.append((index, coordinate, axis))
                axis += 1
        used = [axis for _, _, axis in self.axes]
        self.rest = [axis for axis in range(len(x.shape)) if axis not in used]
        self.rank = max(1 if is_mask(index) else len(index.shape) for index, _, _ in self.axes)
        adjacent = used == list(range(used[0], used[0] + len(used)))
        self.first = used[0] if adjacent else 0
        self.trailing = len(self.rest) - self.first

    def positions(self, b: Builder, count: int) -> Array:
        """The flat positions in x that are read; `count` elements of each mask are set."""
        rank, strides = self.rank + len(self.rest), _strides(self.x.shape)
        base = np.zeros([1] * rank, dtype=np.int64)
        for place, axis in enumerate(self.rest):
            out_axis = place if place < self.first else place + self.rank
            base = base + _ramp(self.x.shape[axis], strides[axis], out_axis, rank)
        found: dict[Array, Array] = {}
        terms = []
        for index, coordinate, axis in self.axes:
            tensor = index
            if is_mask(index):
                if index not in found:
                    found[index] = b.nonzero(index, count)
                tensor = _coordinate(b, index, coordinate, found[index])
            laid = b.reshape(tensor, [*tensor.shape, *[1] * self.trailing])
            terms.append((laid, strides[axis], self.x.shape[axis]))
        return _offset(b, base, terms)


def is_mask(index: Array) -> bool:
    """Whether an index tensor selects by truth values."""
    return index.dtype in ("bool", "uint8")


def _coordinate(b: Builder, array: Array, axis: int, flat: Array) -> Array:
    """The coordinate along an axis of elements given by their flat positions."""
    return b.gather((b.constant(np.indices(array.shape)[axis].reshape(-1)),), flat)


@meaning("aten.index", "aten._unsafe_index")
def index(b: Builder, x: Array, indices: Sequence[Index]) -> Array:
    """out[i, j] = x[index0[i], index1[i], j]"""
    expression = _Expression(x, indices)
    if expression.rank == 0:
        return b.gather((x,), expression.positions(b, 0))
    return b.gather((x,), expression.positions(b, b.result_shape[expression.first + expression.rank - 1]))


@meaning("aten.index_put", "aten._unsafe_index_put", "aten._index_put_impl")
def index_put(
    b: Builder, x: Array, indices: Sequence[Index], values: Array, accumulate: bool = False, *_: Any
) -> Array:
    """out = x with out[index0[i], index1[i], j] = values[i, j], or increased by them"""
    values = b.cast(values, x.dtype)
    expression = _Expression(x, indices)
    place = len(values.shape) - 1 - expression.trailing
    count = values.shape[place] if place >= 0 else 1
    if len({tensor for tensor, _, _ in expression.axes}) == 1 and is_mask(expression.axes[0][0]) and count == 1:
        return _put_where(b, expression, values, accumulate)
    if count == 1:
        sizes = [tensor.shape[-1] for tensor, _, _ in expression.axes if not is_mask(tensor) and tensor.shape]
        count = max(sizes, default=1)
        if count == 1 and any(is_mask(tensor) for tensor, _, _ in expression.axes):
            raise UnknownOperator(b.operator, detail="how many elements its mask selects is not known")
    return _put(b, x, expression.positions(b, count), values, accumulate)


def _put(b: Builder, x: Array, positions: Array, values: Array, accumulate: bool) -> Array:
    values = b.expand(values, positions.shape)
    if accumulate:
        return b.add([x, b.scatter(values, positions, x.shape)])
    return b.overwrite(x, positions, values)


def _put_where(b: Builder, expression: _Expression, values: Array, accumulate: bool) -> Array:
    """One value for every element of a mask: no need to know how many there are."""
    mask = expression.axes[0][0]
    trailing = values.shape[len(values.shape) - expression.trailing :] if expression.trailing else ()
    leading = values.shape[: max(0, len(values.shape) - expression.trailing - 1)]
    value = b.reshape(values, [*leading, *[1] * len(mask.shape), *trailing])
    where = b.reshape(mask, [*mask.shape, *[1] * expression.trailing])
    new = "a0 + a1" if accumulate else "a1"
    return b.pointwise(f"Piecewise(({new}, Ne(a2, 0)), (a0, True))", expression.x, value, where)


# -- along one axis -------------------------------------------------------------------------------------------------


def _lines(b: Builder, x: Array, dim: int, index: Array) -> Array:
    """The flat positions [i, k, j] -> [i, index[i, k, j], j] in x."""
    if not x.shape:
        return b.reshape(b.pointwise("0*a0", index, dtype="int64"), index.shape)
    rank = len(x.shape)
    dim, index = dim % rank, index if index.shape else b.reshape(index, [1])
    strides = _strides(x.shape)
    base = np.zeros([1] * rank, dtype=np.int64)
    for axis in range(rank):
        if axis != dim:
            base = base + _ramp(index.shape[axis], strides[axis], axis, rank)
    return _offset(b, base, [(index, strides[dim], x.shape[dim])])


def _slabs(b: Builder, x: Array, dim: int, index: Array) -> Array:
    """The flat positions [i, k, j] -> [i, index[k], j] in x."""
    if not x.shape:
        return b.reshape(b.pointwise("0*a0", index, dtype="int64"), ())
    dim = dim % len(x.shape)
    laid = b.reshape(index, [max(1, index.size) if not index.shape else index.shape[0]])
    return _Expression(x, [*[None] * dim, laid]).positions(b, 0)


def _as_shape_of(b: Builder, source: Array, positions: Array) -> Array:
    """The leading corner of `source` that the positions cover."""
    if source.shape == positions.shape or source.size == positions.size:
        return b.reshape(source, positions.shape)
    corner = tuple(slice(size) for size in positions.shape)
    return b.rearrange(source, lambda places: places[corner])


@meaning("aten.index_select")
def index_select(b: Builder, x: Array, dim: int, index: Array) -> Array:
    """out[i, k, j] = x[i, index[k], j]"""
    return b.reshape(b.gather((x,), _slabs(b, x, dim, index)), b.result_shape)


@meaning("aten.embedding")
def embedding(b: Builder, weight: Array, indices: Array, *_: Any) -> Array:
    """out[i, d] = weight[indices[i], d]; the padding row has its derivative, which autograd leaves out"""
    return b.gather((weight,), _Expression(weight, [indices]).positions(b, 0))


@meaning("aten.gather")
def gather(b: Builder, x: Array, dim: int, index: Array, **_: Any) -> Array:
    """out[i, k, j] = x[i, index[i, k, j], j]"""
    return b.reshape(b.gather((x,), _lines(b, x, dim, index)), b.result_shape)


@meaning("aten.take")
def take(b: Builder, x: Array, index: Array) -> Array:
    """out[i] = x.flat[index[i]]"""
    return b.gather((x,), _flat_positions(b, x, index))


def _flat_positions(b: Builder, x: Array, index: Array) -> Array:
    return _offset(b, np.zeros([1] * len(index.shape), dtype=np.int64), [(index, 1, x.size)])


@meaning("aten.put")
def put(b: Builder, x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """out = x with out.flat[index[i]] = source[i], or increased by it"""
    return _put(b, x, _flat_positions(b, x, index), b.reshape(source, index.shape), accumulate)


@meaning("aten.scatter.src", "aten.scatter.value")
def scatter(b: Builder, x: Array, dim: int, index: Array, source: Any) -> Array:
    """out = x with out[i, index[i, k, j], j] = source[i, k, j]"""
    positions = _lines(b, x, dim, index)
    return b.overwrite(x, positions, _source(b, x, source, positions))


def _source(b: Builder, x: Array, source: Any, positions: Array) -> Array:
    if isinstance(source, Array):
        return _as_shape_of(b, b.cast(source, x.dtype), positions)
    return b.expand(b.constant(np.asarray(source, np.float64 if x.is_real else np.int64), x.dtype), positions.shape)


@meaning("aten.scatter_add")
def scatter_add(b: Builder, x: Array, dim: int, index: Array, source: Array) -> Array:
    """out[p] = x[p] + sum of source[i, k, j] over [i, index[i, k, j], j] = p"""
    positions = _lines(b, x, dim, index)
    return b.add([x, b.scatter(_as_shape_of(b, source, positions), positions, x.shape)])


@meaning("aten.index_add")
def index_add(b: Builder, x: Array, dim: int, index: Array, source: Array, *, alpha: float = 1) -> Array:
    """out[p] = x[p] + alpha * sum of source[i, k, j] over [i, index[k], j] = p"""
    positions = _slabs(b, x, dim, index)
    added = b.scatter(b.reshape(source, positions.shape), positions, x.shape)
    return b.pointwise("a0 + c0*a1", x, added, alpha)


@meaning("aten.index_copy")
def index_copy(b: Builder, x: Array, dim: int, index: Array, source: Array) -> Array:
    """out = x with out[i, index[k], j] = source[i, k, j]"""
    positions = _slabs(b, x, dim, index)
    return b.overwrite(x, positions, b.reshape(source, positions.shape))


# -- by masks -------------------------------------------------------------------------------------------------------


@meaning("aten.nonzero")
def nonzero(b: Builder, x: Array) -> Array:
    """out[n, a] = the coordinate along axis a of the n-th element that is not 0"""
    count = b.result_shape[0]
    flat = b.nonzero(x, count)
    if not x.shape:
        return b.constant(np.zeros(b.result_shape, dtype=np.int64))
    rank = len(x.shape)
    table = np.moveaxis(np.indices(x.shape), 0, -1).reshape(-1)
    places = b.equation("n,a->na", "c0*a0 + a1", flat, b.constant(np.arange(rank)), rank, dtype="int64")
    return b.gather((b.constant(table),), places)


@meaning("aten.masked_select")
def masked_select(b: Builder, x: Array, mask: Array) -> Array:
    """out[n] = x at the n-th element of the mask that is set"""
    shape = np.broadcast_shapes(x.shape, mask.shape)
    return b.gather((b.expand(x, shape),), b.nonzero(b.expand(mask, shape), b.result_shape[0]))


@meaning("aten.masked_scatter")
def masked_scatter(b: Builder, x: Array, mask: Array, source: Array) -> Array:
    """out = x with its n-th element that the mask sets replaced by source.flat[n]"""
    x, mask = b.expand(x, b.result_shape), b.expand(mask, b.result_shape)
    rank = b.reshape(_rank_of_set(b, mask), x.shape)
    own = b.constant(np.arange(x.size).reshape(x.shape))
    where = "Piecewise((a0, Ne(a1, 0)), (a2 + c0, True))"
    return b.gather((source, x), b.pointwise(where, rank, mask, own, source.size, dtype="int64"))


def _rank_of_set(b: Builder, mask: Array) -> Array:
    """How many elements before it are set, for each element of a mask that is."""
    last = b.pointwise("Piecewise((1, Eq(a0, 0)), (0, True))", b.reshape(mask, [mask.size]), dtype="int64")
    return b.invert(b.select(last, "argsort"), [mask.size])


@meaning("aten.masked_scatter_backward")
def masked_scatter_backward(b: Builder, g: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """out.flat[n] = g at the n-th element of the mask that is set"""
    mask = b.expand(mask, g.shape)
    ranks = _rank_of_set(b, mask)
    kept = b.pointwise("Piecewise((a0, Ne(a1, 0)), (-1, True))", ranks, b.reshape(mask, [mask.size]), dtype="int64")
    return b.scatter(b.reshape(g, [g.size]), kept, sizes)


# -- counting -------------------------------------------------------------------------------------------------------


@meaning("aten.repeat_interleave.Tensor")
def repeat_interleave(b: Builder, repeats: Array, **_: Any) -> Array:
    """out[j] = how many runs have ended by j, run i being repeats[i] long"""
    b.guards.append((repeats, b.source))
    size = repeats.shape[0]
    below = b.constant(np.tril(np.ones((size, size), dtype=np.int64)))
    ends = b.equation("ik,k->i", "a0*a1", below, repeats, dtype="int64")
    place = b.constant(np.arange(b.result_shape[0]))
    return b.equation("i,j->j", "Piecewise((1, a0 <= a1), (0, True))", ends, place, dtype="int64")


@meaning("aten.searchsorted", "aten.bucketize")
def searchsorted(
    b: Builder, first: Array, second: Any, *, right: bool = False, side: str | None = None, **kw: Any
) -> Array:
    """out[i] = how many boundaries are below x[i], or at most x[i] from the right"""
    bounds, x = (first, second) if "searchsorted" in b.operator else (second, first)
    if kw.get("sorter") is not None:
        raise UnknownOperator(b.operator, detail="a sorter has no meaning yet")
    if not isinstance(x, Array):
        x = b.constant(np.asarray(x, dtype=np.float64), "float64")
    body = f"Piecewise((1, a0 {'<=' if right or side == 'right' else '<'} a1), (0, True))"
    if len(bounds.shape) == 1:
        flat = b.equation("k,n->n", body, bounds, b.reshape(x, [x.size]), dtype="int64")
        return b.reshape(flat, b.result_shape)
    rows = prod(bounds.shape[:-1])
    lines, points = b.reshape(bounds, [rows, bounds.shape[-1]]), b.reshape(x, [rows, x.size // max(1, rows)])
    return b.reshape(b.equation("rk,rn->rn", body, lines, points, dtype="int64"), b.result_shape)
