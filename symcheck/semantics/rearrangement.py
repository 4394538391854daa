"""Rearrangements: operators that only move elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning


@meaning("aten.view", "aten._unsafe_view", "aten.reshape", "aten.unsqueeze", "aten.squeeze", "aten.flatten")
def view(b: Builder, x: Array, *_: Any) -> Array:
    """out = x in another shape, row-major"""
    return b.reshape(x, b.result_shape)


@meaning("aten.clone", "aten.alias", "aten.detach", "aten.lift_fresh_copy", "aten.contiguous", "aten.lift_fresh")
def clone(b: Builder, x: Array, **_: Any) -> Array:
    """out = x"""
    return x


@meaning("aten.permute")
def permute(b: Builder, x: Array, dims: Sequence[int]) -> Array:
    """out[i_p0, i_p1 ...] = x[i0, i1 ...]"""
    return b.permute(x, dims)


@meaning("aten.t", "aten.transpose")
def transpose(b: Builder, x: Array, first: int = 0, second: int = 1) -> Array:
    """out[..., j, i] = x[..., i, j]"""
    order = list(range(len(x.shape)))
    if len(order) > 1:
        order[first], order[second] = order[second], order[first]
    return b.permute(x, order)


@meaning("aten.expand")
def expand(b: Builder, x: Array, *_: Any, **__: Any) -> Array:
    """out[j, i] = x[i]"""
    return b.expand(x, b.result_shape)
