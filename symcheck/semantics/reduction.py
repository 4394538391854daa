"""Reductions: sums, means and norms over axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning


@meaning("aten.sum")
def total(b: Builder, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = sum over k of x[i, k]"""
    return b.sum(b.cast(x, b.result_dtype), dim, keepdim)


@meaning("aten.mean")
def mean(b: Builder, x: Array, dim: Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = sum over k of x[i, k] / n"""
    return b.mean(b.cast(x, b.result_dtype), dim, keepdim)
