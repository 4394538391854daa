"""Contractions: products summed over shared axes."""

from __future__ import annotations

from collections.abc import Sequence

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning


@meaning("aten.mm")
def mm(b: Builder, x: Array, y: Array) -> Array:
    """out[i, j] = sum over k of x[i, k] y[k, j]"""
    return b.equation("ik,kj->ij", "a0*a1", x, y)


@meaning("aten.mv")
def mv(b: Builder, x: Array, y: Array) -> Array:
    """out[i] = sum over k of x[i, k] y[k]"""
    return b.equation("ik,k->i", "a0*a1", x, y)


@meaning("aten.bmm")
def bmm(b: Builder, x: Array, y: Array) -> Array:
    """out[n, i, j] = sum over k of x[n, i, k] y[n, k, j]"""
    return b.equation("nik,nkj->nij", "a0*a1", x, y)


@meaning("aten.dot", "aten.vdot")
def dot(b: Builder, x: Array, y: Array) -> Array:
    """out = sum over k of x[k] y[k]"""
    return b.equation("k,k->", "a0*a1", x, y)


@meaning("aten.outer", "aten.ger")
def outer(b: Builder, x: Array, y: Array) -> Array:
    """out[i, j] = x[i] y[j]"""
    return b.equation("i,j->ij", "a0*a1", x, y)


def _plus(b: Builder, bias: Array, product: Array, beta: float, alpha: float) -> Array:
    """beta bias + alpha product; torch leaves the bias unread, NaN or not, when beta is 0."""
    if beta == 0:
        return b.pointwise("c0*a0", product, alpha)
    return b.pointwise("c0*a0 + c1*a1", bias, product, beta, alpha)


@meaning("aten.addmm.default")
def addmm(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[i, j] = beta bias[i, j] + alpha sum over k of x[i, k] y[k, j]"""
    return _plus(b, bias, mm(b, x, y), beta, alpha)


@meaning("aten.addmv")
def addmv(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[i] = beta bias[i] + alpha sum over k of x[i, k] y[k]"""
    return _plus(b, bias, mv(b, x, y), beta, alpha)


@meaning("aten.addr")
def addr(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[i, j] = beta bias[i, j] + alpha x[i] y[j]"""
    return _plus(b, bias, outer(b, x, y), beta, alpha)


@meaning("aten.baddbmm.default")
def baddbmm(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[n, i, j] = beta bias[n, i, j] + alpha sum over k of x[n, i, k] y[n, k, j]"""
    return _plus(b, bias, bmm(b, x, y), beta, alpha)


@meaning("aten.addbmm")
def addbmm(b: Builder, bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """out[i, j] = beta bias[i, j] + alpha sum over n, k of x[n, i, k] y[n, k, j]"""
    return _plus(b, bias, b.equation("nik,nkj->ij", "a0*a1", x, y), beta, alpha)


@meaning("aten._trilinear")
def trilinear(
    b: Builder,
    x: Array,
    y: Array,
    z: Array,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Array:
    """out[kept] = sum over the axes `sumdim` of x y z, each with the axes that it is expanded along left out"""
    rank = len(x.shape) + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:rank]
    terms = ["".join(c for n, c in enumerate(letters) if n not in dims) for dims in (expand1, expand2, expand3)]
    kept = "".join(c for n, c in enumerate(letters) if n not in sumdim)
    return b.equation(f"{','.join(terms)}->{kept}", "a0*a1*a2", x, y, z)
