"""What several families share: axes brought last, extremes, products by trees, scans, and norms of any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import inf, prod

import numpy as np

from symcheck.building import Builder, Held
from symcheck.program import Array

__all__ = [
    "axes",
    "exact_order",
    "extreme",
    "finish_norm",
    "from_last",
    "kept_shape",
    "log_weights",
    "norm_of_last",
    "norm_terms",
    "product_of_last",
    "scan_last",
    "shift_of",
    "to_last",
]

Combine = Callable[[Array, Array], Array]


def axes(x: Array, dim: Sequence[int] | int | None) -> tuple[int, ...]:
    """The axes that `dim` names, ascending: all of them for none or an empty list; a scalar has none."""
    rank = len(x.shape)
    dims = (dim,) if isinstance(dim, int) else tuple(dim or range(rank))
    return tuple(sorted({d % rank for d in dims})) if rank else ()


def to_last(b: Builder, x: Array, dim: Sequence[int] | int | None) -> Array:
    """x[kept axes ..., the named axes as one]"""
    chosen = axes(x, dim)
    kept = [axis for axis in range(len(x.shape)) if axis not in chosen]
    moved = b.permute(x, [*kept, *chosen])
    return b.reshape(moved, [*(x.shape[a] for a in kept), prod(x.shape[a] for a in chosen)])


def from_last(b: Builder, y: Array, x: Array, dim: int) -> Array:
    """y, whose last axis is the axis `dim` of x, with its axes in the order of x."""
    rank = len(x.shape)
    if rank == 0:
        return b.reshape(y, ())
    order = list(range(rank - 1))
    order.insert(dim % rank, rank - 1)
    return b.permute(y, order)


def kept_shape(x: Array, dim: Sequence[int] | int | None, keepdim: bool) -> tuple[int, ...]:
    """The shape of x reduced over the named axes."""
    chosen = axes(x, dim)
    if keepdim:
        return tuple(1 if axis in chosen else size for axis, size in enumerate(x.shape))
    return tuple(size for axis, size in enumerate(x.shape) if axis not in chosen)


def extreme(b: Builder, x: Array, dim: Sequence[int] | int | None, rule: str = "argmax") -> Array:
    """out[i] = the largest (argmax) or smallest (argmin) of x[i, k] over k, kept as axes of size 1"""
    last = to_last(b, x, dim)
    best = b.take_last(last, b.select(last, rule))
    return b.reshape(best, kept_shape(x, dim, keepdim=True))


def shift_of(b: Builder, x: Array, dim: Sequence[int] | int | None) -> Held:
    """The largest of x[i, k] over k, or 0 where that is infinite: what exponentials are shifted by.

    It is read as a constant: the value that is shifted does not depend on it, so a tie is no kink.
    """
    if x.size == 0:
        return Held(b.constant(np.zeros(kept_shape(x, dim, keepdim=True)), x.dtype))
    # SymPy's real symbols are finite, so infinity is a constant beside the body.
    finite = "Piecewise((a0, (a0 < c0) & (a0 > -c0)), (0, True))"
    return Held(b.pointwise(finite, extreme(b, x, dim), inf))


def log_weights(b: Builder, x: Array, dim: int) -> Array:
    """out[i, j] = x[i, j] - log(sum over k of exp(x[i, k]))"""
    shifted = b.pointwise("a0 - a1", x, shift_of(b, x, dim))
    return b.pointwise("a0 - log(a1)", shifted, b.sum(shifted, axes(x, dim), True, "exp(a0)"))


def product_of_last(b: Builder, x: Array) -> Array:
    """out[i] = product over k of x[i, k], by a balanced tree of products; so zeros are no exception"""
    if x.shape[-1] == 0:
        return b.expand(b.constant(np.ones(()), x.dtype), x.shape[:-1])
    while x.shape[-1] > 1:
        half = x.shape[-1] // 2
        pairs = b.pointwise("a0*a1", _piece(b, x, 0, half), _piece(b, x, half, 2 * half))
        x = pairs if x.shape[-1] == 2 * half else _joined(b, pairs, _piece(b, x, 2 * half, 2 * half + 1))
    return b.reshape(x, x.shape[:-1])


def scan_last(b: Builder, x: Array, combine: Combine) -> Array:
    """out[i, j] = x[i, 0] o x[i, 1] o ... o x[i, j], in log2 n steps of an associative combination"""
    step = 1
    while step < x.shape[-1]:
        size = x.shape[-1]
        later = combine(_piece(b, x, 0, size - step), _piece(b, x, step, size))
        x = _joined(b, _piece(b, x, 0, step), later)
        step *= 2
    return x


def _piece(b: Builder, x: Array, start: int, stop: int) -> Array:
    return b.rearrange(x, lambda positions: positions[..., start:stop])


def _joined(b: Builder, left: Array, right: Array) -> Array:
    first = np.arange(left.size).reshape(left.shape)
    second = left.size + np.arange(right.size).reshape(right.shape)
    return b.gather((left, right), np.concatenate([first, second], axis=-1))


def norm_terms(order: float) -> str:
    """The body whose sum a norm of a finite order takes a root of, in the elements a0 and their negatives a1.

    The negatives are read on their own because SymPy's derivative of (-x)^p divides by x.
    """
    if order == 0:
        return "Piecewise((0, Eq(a0, 0)), (1, True))"
    if order % 2 == 0:
        return "a0**c0"
    return "Piecewise((a0**c0, a0 >= 0), (a1**c0, True))"


def finish_norm(b: Builder, total: Array, order: float) -> Array:
    """The root of the sum of a norm's terms: at 0 a norm has a kink, as |x| has."""
    if order in (0, 1):
        return total
    if order < 0:
        return b.pointwise("a0**(1/c0)", total, exact_order(order))
    return b.pointwise("Piecewise((0, Eq(a0, 0)), (a0**(1/c0), True))", total, exact_order(order))


def exact_order(order: float) -> int | Fraction:
    """The order as an exact number, an integer where it is one."""
    return int(order) if float(order).is_integer() else Fraction(order)


def norm_of_last(b: Builder, x: Array, order: float) -> Array:
    """out[i] = (sum over k of |x[i, k]|^p)^(1/p); the largest |x| at p = inf, the smallest at -inf, the count at 0"""
    if abs(order) == inf:
        size = b.pointwise("Piecewise((a0, a0 >= 0), (-a0, True))", x)
        return b.take_last(size, b.select(size, "argmax" if order > 0 else "argmin"))
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(x.shape)]
    body = norm_terms(order)
    reads = (x, b.pointwise("-a0", x)) if "a1" in body else (x,)
    terms = ",".join([letters] * len(reads))
    total = b.equation(f"{terms}->{letters[:-1]}", body, *reads, exact_order(order))
    return finish_norm(b, total, order)
