"""Rearrangements: operators that only move elements, or fill arrays with constants."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from symcheck.building import Builder
from symcheck.errors import UnknownOperator
from symcheck.program import Array
from symcheck.semantics.table import meaning

Positions = NDArray[np.int64]


@meaning(
    "aten.view",
    "aten._unsafe_view",
    "aten.reshape",
    "aten.unsqueeze",
    "aten.squeeze",
    "aten.flatten",
    "aten._reshape_alias",
    "aten._reshape_alias_copy",
    "aten.view_copy",
    "aten.unsqueeze_copy",
    "aten.squeeze_copy",
)
def view(b: Builder, x: Array, *_: Any) -> Array:
    """out = x in another shape, row-major"""
    if b.operator.endswith(".dtype") and b.result_dtype != x.dtype:
        raise UnknownOperator(b.operator, detail="it reads the bits of a number as another type")
    return b.reshape(x, b.result_shape)


@meaning(
    "aten.clone",
    "aten.alias",
    "aten.alias_copy",
    "aten.detach",
    "aten.detach_copy",
    "aten.lift_fresh_copy",
    "aten.contiguous",
    "aten.lift_fresh",
    "aten.lift",
)
def clone(b: Builder, x: Array, **_: Any) -> Array:
    """out = x"""
    return x


@meaning("aten.permute", "aten.permute_copy")
def permute(b: Builder, x: Array, dims: Sequence[int]) -> Array:
    """out[i_p0, i_p1 ...] = x[i0, i1 ...]"""
    return b.permute(x, dims)


@meaning("aten.t", "aten.transpose", "aten.t_copy", "aten.transpose_copy")
def transpose(b: Builder, x: Array, first: int = 0, second: int = 1) -> Array:
    """out[..., j, i] = x[..., i, j]"""
    order = list(range(len(x.shape)))
    if len(order) > 1:
        order[first], order[second] = order[second], order[first]
    return b.permute(x, order)


@meaning("aten.expand", "aten.expand_copy")
def expand(b: Builder, x: Array, *_: Any, **__: Any) -> Array:
    """out[j, i] = x[i]"""
    return b.expand(x, b.result_shape)


@meaning("aten.copy")
def copy(b: Builder, x: Array, source: Array, *_: Any) -> Array:
    """out[j, i] = source[i], in the dtype of x"""
    return b.expand(b.cast(source, b.result_dtype), b.result_shape)


# -- by running the operator on positions ---------------------------------------------------------------------------


class _Sources:
    """The arrays among an operator's arguments, each replaced by the positions of its elements plus 1.

    So whatever the operator fills with 0 comes out as the position -1: absent. Positions are exact in float64, which
    every operator accepts.
    """

    def __init__(self, b: Builder) -> None:
        self.builder, self.arrays, self.size = b, [], 0  # type: tuple[Builder, list[Array], int]

    def positions(self, argument: Any) -> Any:
        if isinstance(argument, list | tuple):
            return [self.positions(part) for part in argument]
        if not isinstance(argument, Array):
            return argument
        self.arrays.append(self.builder.cast(argument, self.builder.result_dtype))
        start, self.size = self.size, self.size + argument.size
        return torch.arange(start + 1, self.size + 1, dtype=torch.float64).reshape(argument.shape)

    def gather(self, moved: torch.Tensor) -> Array:
        return self.builder.gather(self.arrays, _flat(moved), self.builder.result_dtype)


def _flat(moved: torch.Tensor) -> Positions:
    return np.asarray(moved.to(torch.int64).numpy()) - 1


def _traced_operator(b: Builder) -> Any:
    _, packet, overload = b.operator.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


@meaning(
    "aten.slice",
    "aten.slice_copy",
    "aten.narrow",
    "aten.narrow_copy",
    "aten.select",
    "aten.select_copy",
    "aten.split",
    "aten.split_copy",
    "aten.split_with_sizes",
    "aten.split_with_sizes_copy",
    "aten.unsafe_split",
    "aten.unsafe_split_with_sizes",
    "aten.chunk",
    "aten.unsafe_chunk",
    "aten.unbind",
    "aten.unbind_copy",
    "aten.cat",
    "aten.stack",
    "aten.block_diag",
    "aten.reflection_pad1d",
    "aten.reflection_pad2d",
    "aten.reflection_pad3d",
    "aten.replication_pad1d",
    "aten.replication_pad2d",
    "aten.replication_pad3d",
    "aten._pad_circular",
    "aten.flip",
    "aten.roll",
    "aten.rot90",
    "aten.repeat",
    "aten.tile",
    "aten.unfold",
    "aten.unfold_copy",
    "aten.im2col",
    "aten.diagonal",
    "aten.diagonal_copy",
    "aten.diag_embed",
    "aten.tril",
    "aten.triu",
    "aten.slice_scatter",
    "aten.select_scatter",
    "aten.diagonal_scatter",
    "aten.pixel_shuffle",
    "aten.pixel_unshuffle",
    "aten.channel_shuffle",
    "aten.native_channel_shuffle",
    "aten.repeat_interleave.self_int",
    formula="out[i] = one element of the arguments, or 0: where each comes from is found by moving positions",
)
def moved(b: Builder, *args: Any, **kwargs: Any) -> Array | tuple[Array, ...]:
    """One gather for each result."""
    sources = _Sources(b)
    result = _traced_operator(b)(*(sources.positions(argument) for argument in args), **kwargs)
    if isinstance(result, torch.Tensor):
        return sources.gather(result)
    return tuple(map(sources.gather, result))


@meaning("aten.constant_pad_nd")
def constant_pad(b: Builder, x: Array, pad: Sequence[int], value: float = 0) -> Array:
    """out[i] = x[i - before] within x, the value outside"""
    sources = _Sources(b)
    positions = _flat(torch.ops.aten.constant_pad_nd.default(sources.positions(x), list(pad), 0))
    if value == 0:
        return b.gather((x,), positions)
    filling = b.constant(np.asarray(value, dtype=np.float64 if x.is_real else np.int64), x.dtype)
    return b.gather((x, filling), np.where(positions < 0, x.size, positions))


@meaning("aten.as_strided", "aten.as_strided_copy", "aten.as_strided_scatter")
def as_strided(b: Builder, x: Array, *args: Any, **kwargs: Any) -> Array:
    """out[i] = the element of x's memory at offset + the sum of i * strides"""
    sources = _Sources(b)
    strides, starts_memory = b.layouts[0]
    if not starts_memory:
        raise UnknownOperator(b.operator, detail="it reads the memory of a view, which may start anywhere")
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, strides, strict=True)) if x.size else 0
    memory = torch.zeros(reach + 1, dtype=torch.float64)
    laid = memory.as_strided(x.shape, strides, 0)
    laid.copy_(sources.positions(x))
    rest = [sources.positions(argument) for argument in args]
    try:
        result = _traced_operator(b)(laid, *rest, **kwargs)
    except RuntimeError as error:
        raise UnknownOperator(b.operator, detail="it reads memory beyond its tensor") from error
    if result.numel() and float(result.min()) == 0:
        raise UnknownOperator(b.operator, detail="it reads memory between the elements of its tensor")
    return sources.gather(result)


@meaning("aten.col2im")
def fold(
    b: Builder,
    x: Array,
    size: Sequence[int],
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """out[p] = sum of x[k, o] over the taps k and windows o that lie at p"""
    image = torch.arange(1, prod(b.result_shape) + 1, dtype=torch.float64).reshape(b.result_shape)
    windows = torch.ops.aten.im2col.default(image, list(kernel), list(dilation), list(padding), list(stride))
    return b.scatter(x, _flat(windows).reshape(x.shape), b.result_shape)


@meaning(
    "aten.reflection_pad1d_backward",
    "aten.reflection_pad2d_backward",
    "aten.reflection_pad3d_backward",
    "aten.replication_pad1d_backward",
    "aten.replication_pad2d_backward",
    "aten.replication_pad3d_backward",
)
def pad_backward(b: Builder, g: Array, x: Array, padding: Sequence[int]) -> Array:
    """out[p] = sum of g[i] over the places i that were filled from p"""
    packet = b.operator.split(".")[1].removesuffix("_backward")
    positions = torch.arange(1, x.size + 1, dtype=torch.float64).reshape(x.shape)
    return b.scatter(g, _flat(getattr(torch.ops.aten, packet).default(positions, list(padding))), x.shape)


# -- constants ------------------------------------------------------------------------------------------------------


@meaning("aten.full_like", "aten.new_full", "aten.fill")
def full(b: Builder, first: Any, *rest: Any, **kwargs: Any) -> Array:
    """out[i] = the value"""
    value = rest[-1] if rest else kwargs.get("fill_value", kwargs.get("value"))
    if isinstance(value, Array):
        return b.expand(b.cast(value, b.result_dtype), b.result_shape)
    return _filled(b, value)


@meaning("aten.zeros_like", "aten.new_zeros")
def zeros(b: Builder, *_: Any, **__: Any) -> Array:
    """out[i] = 0"""
    return _filled(b, 0)


@meaning("aten.ones_like", "aten.new_ones")
def ones(b: Builder, *_: Any, **__: Any) -> Array:
    """out[i] = 1"""
    return _filled(b, 1)


def _filled(b: Builder, value: Any) -> Array:
    dtype = b.result_dtype
    real = dtype.startswith(("float", "bfloat"))
    held = torch.full((), value, dtype=getattr(torch, dtype)).to(torch.float64 if real else torch.int64)
    return b.constant(np.full(b.result_shape, held.item(), dtype=np.float64 if real else np.int64), dtype)


@meaning(
    "aten.empty",
    "aten.empty_like",
    "aten.empty_strided",
    "aten.empty_permuted",
    "aten.new_empty",
    "aten.new_empty_strided",
)
def empty(b: Builder, *_: Any, **__: Any) -> Array:
    """out[i] = whatever the memory held: refused where an output depends on it"""
    return b.uninitialised(b.result_shape, b.result_dtype)
