"""Contractions: products summed over shared axes."""

from __future__ import annotations

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning


@meaning("aten.mm")
def mm(b: Builder, x: Array, y: Array) -> Array:
    """out[i, j] = sum over k of x[i, k] y[k, j]"""
    return b.equation("ik,kj->ij", "a0*a1", x, y)


@meaning("aten.addmm")
def addmm(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[i, j] = beta bias[i, j] + alpha sum over k of x[i, k] y[k, j]"""
    return b.pointwise("c0*a0 + c1*a1", bias, mm(b, x, y), beta, alpha)
