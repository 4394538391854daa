"""Ties among balls: which elements of a row are proved to be in order, and which are not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import differences, from_ball

__all__ = ["tied_ranks"]


def tied_ranks(row: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers in the order of a row of balls, NaN last; the same number where a chain of balls overlaps."""
    middles = from_ball(row)
    order = np.argsort(middles, kind="stable")
    above, below = order[1:], order[:-1]
    _, _, apart = differences(row[above], row[below])
    infinite = ~(np.isfinite(middles[above]) & np.isfinite(middles[below]))
    ranks = np.zeros(len(row))
    ranks[above] = np.cumsum(apart | (infinite & (middles[above] != middles[below])))
    return ranks
