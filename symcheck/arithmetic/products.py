"""How far the float64 product of two matrices may be from the exact one."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from symcheck.arithmetic.bounded import Bounded, growth_of
from symcheck.arithmetic.formats import working

__all__ = ["COARSE", "peak_of", "product_error"]

Floats: TypeAlias = NDArray[np.float64]

SHARP_PRODUCT = 1 << 18  # multiplications up to which a product's bound is a product itself
COARSE = 1 << 18  # elements of a product above which one bound serves all of them


def product_error(a: Bounded, b: Bounded, terms: int) -> Floats:
    """Bound the error of batches of matrix products a b, each sum of `terms` terms.

    Term by term where that is cheap. Elsewhere by norms: a large matrix times a small one by its largest element
    (Hoelder), and others by the 2-norms of rows and columns (Cauchy-Schwarz). A large result gets one bound for all.
    """
    lost = terms * working().tiny
    growth, shape = growth_of(terms), (a.value.shape[0], a.value.shape[1], b.value.shape[2])
    if a.value.size * b.value.shape[2] <= SHARP_PRODUCT:
        return _termwise(a, b, growth) + lost
    if a.value.size > max(COARSE, 8 * b.value.size):
        return np.asarray(_by_peak(a, b, growth, 1) + lost)
    if b.value.size > max(COARSE, 8 * a.value.size):
        return np.asarray(_by_peak(b, a, growth, 2) + lost)
    rows, columns = _norms(a.value, 2), _norms(b.value, 1)
    off_rows = np.zeros(()) if a.error is None else _norms(np.broadcast_to(a.error, a.value.shape), 2)
    off_columns = np.zeros(()) if b.error is None else _norms(np.broadcast_to(b.error, b.value.shape), 1)
    if shape[0] * shape[1] * shape[2] > COARSE:
        rows, columns, off_rows, off_columns = (
            np.asarray(np.max(part, initial=0.0)) for part in (rows, columns, off_rows, off_columns)
        )
    return np.asarray(growth * rows * columns + rows * off_columns + off_rows * (columns + off_columns) + lost)


def _termwise(a: Bounded, b: Bounded, growth: float) -> Floats:
    left, right = np.abs(a.value), np.abs(b.value)
    sharp = growth * np.matmul(left, right)
    if b.error is not None:
        sharp = sharp + np.matmul(left, np.broadcast_to(b.error, right.shape))
    if a.error is not None:
        lifted = right if b.error is None else right + b.error
        sharp = sharp + np.matmul(np.broadcast_to(a.error, left.shape), lifted)
    return np.asarray(sharp)


def _by_peak(large: Bounded, small: Bounded, growth: float, summed: int) -> Floats:
    """|sum of large * small| is at most the largest |large| times the sum of |small|, along small's axis `summed`."""
    peak = peak_of(large.value) if large.peak is None else large.peak
    off = 0.0 if large.error is None else float(np.max(large.error, initial=0.0))
    total = np.sum(np.abs(small.value), axis=summed, keepdims=True)
    wobble = np.zeros(())
    if small.error is not None:
        wobble = np.sum(np.broadcast_to(small.error, small.value.shape), axis=summed, keepdims=True)
    slack = 1 + growth_of(small.value.shape[summed] + 4)
    return np.asarray(slack * (growth * peak * total + peak * wobble + off * (total + wobble)))


def peak_of(values: Floats) -> float:
    """The largest magnitude in an array, in one pass where it is contiguous; NaN elements may be passed over."""
    if values.size == 0:
        return 0.0
    if values.flags.c_contiguous and values.dtype == np.float64:
        flat = values.reshape(-1)
        return abs(float(flat[blas.idamax(flat)]))
    return float(max(np.max(values), -np.min(values)))


def _norms(matrices: Floats, axis: int) -> Floats:
    """The 2-norms along an axis, kept; scaled so that they neither overflow nor vanish."""
    scale = float(np.max(np.abs(matrices), initial=0.0))
    if scale == 0.0 or not np.isfinite(scale):
        return np.full([1 if place == axis else size for place, size in enumerate(matrices.shape)], scale)
    scaled = matrices if 1e-100 < scale < 1e100 else matrices / scale
    unit = scale if scaled is matrices else 1.0
    spec = "bij,bij->bi" if axis == 2 else "bij,bij->bj"
    squares = np.expand_dims(np.einsum(spec, scaled, scaled), axis)
    # squares below the smallest normal number are lost: at most sqrt(n) * 2^-500 of the largest element
    lost = np.sqrt(matrices.shape[axis]) * 2.0**-500 * unit
    result = (np.sqrt(squares) + lost) * (1 + growth_of(matrices.shape[axis] + 4))
    return np.asarray(result if scaled is matrices else result * scale)
