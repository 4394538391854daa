"""Ties among balls: which elements of a row are proved to be in order, and which are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import differences

__all__ = ["tied_ranks"]


def tied_ranks(row: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in the order of a row of balls; the same number where a chain of balls overlaps."""
    zero = np.zeros_like(row)
    middles, _, _ = differences(row, zero)
    order = np.argsort(middles, kind="stable")
    ranks = np.zeros(len(row))
    _, _, apart = differences(row[order[1:]], row[order[:-1]])
    equal = middles[order[1:]] == middles[order[:-1]]  # the same infinity
    ranks[order[1:]] = np.cumsum(apart | (~equal & ~np.isfinite(middles[order[1:]])))
    return ranks
