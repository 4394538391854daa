"""How far the float64 product of two matrices may be from the exact one."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.bounded import TINY, Bounded, growth_of

__all__ = ["product_error"]

Floats: TypeAlias = NDArray[np.float64]

SHARP_PRODUCT = 1 << 21  # multiplications up to which a product's bound is a product itself


def product_error(a: Bounded, b: Bounded, terms: int) -> Floats:
    """A bound on the error of a matrix product, term by term where it is cheap, by norms (Cauchy-Schwarz) elsewhere."""
    growth = growth_of(terms)
    if a.value.size * b.value.shape[-1] <= SHARP_PRODUCT:
        left, right = np.abs(a.value), np.abs(b.value)
        sharp = growth * np.matmul(left, right) + terms * TINY
        if b.error is not None:
            sharp = sharp + np.matmul(left, np.broadcast_to(b.error, right.shape))
        if a.error is not None:
            lifted = right if b.error is None else right + b.error
            sharp = sharp + np.matmul(np.broadcast_to(a.error, left.shape), lifted)
        return np.asarray(sharp)
    rows, columns = _norms(a.value, 2), _norms(b.value, 1)
    error = growth * rows * columns + terms * TINY
    if b.error is not None:
        wobble = _norms(np.broadcast_to(b.error, b.value.shape), 1)
        error = error + rows * wobble
        columns = columns + wobble
    if a.error is not None:
        error = error + _norms(np.broadcast_to(a.error, a.value.shape), 2) * columns
    return np.asarray(error)


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
