"""Kinks whose sides have no finite slope, such as a norm at 0, where any vector of a ball is a slope.

Moved by t u and by -t u, where u is the candidate's gradient itself, the exact gradient approaches a limit on each
side. A mean of the two is admissible, as it lies in the hull of limits. For a Euclidean norm these are u/|u| and
-u/|u|, so that every vector of the unit ball is found to be admissible; what is not such a mean stays undecided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import working_precision
from symcheck.mixtures import Weights
from symcheck.slopes import MARGIN, Target, unit

__all__ = ["lies_between_opposites"]

Mask: TypeAlias = NDArray[np.bool_]

BITS = 1000
STEP = 200  # the move is 2^-STEP, and what it changes besides is of its order


def lies_between_opposites(
    target: Target, weights: Weights, names: Sequence[str], elements: Mask, to_explain: Mask
) -> bool:
    """Whether what depends on kinks without slopes is a mean of the limits from two opposite sides.

    Args:
        target: what to explain.
        weights: what explains everything else.
        names: the inputs, in the order of the flat elements.
        elements: those that depend on kinks without finite slopes.
        to_explain: those of them that the weights do not explain.
    """
    singular = [key for key in target.keys if target.openings.decisions[key].singular]
    away = {**weights, **{key: unit(target.count(key), 2) for key in singular}}
    direction = np.where(elements & target.usable, target.intended, 0.0)
    direction = direction / max(float(np.max(np.abs(direction), initial=0.0)), 2.0**-1000)
    with working_precision(BITS):
        above, below = (target.beside(away, names, direction, sign, STEP) for sign in (1, -1))
    base = target.at(weights)[0]
    taken: Mask = np.zeros_like(elements)
    for key in singular:
        there = target.at({**weights, key: unit(target.count(key), 2)})[0]
        own = ~(np.isfinite(there) & (there == base)) & target.usable
        if (own & taken).any():
            return False
        taken |= own
        if (own & to_explain).any() and not _is_mean(target, own, above, below):
            return False
    return not (to_explain & ~taken).any()


def _is_mean(target: Target, own: Mask, above: NDArray[np.float64], below: NDArray[np.float64]) -> bool:
    whole, part = (above - below)[own], (target.intended - below)[own]
    if not (np.isfinite(whole).all() and np.isfinite(part).all() and whole.any()):
        return False
    share = float(whole @ part / (whole @ whole))
    slack = MARGIN * target.errors[own] + 2.0**-48 * (np.abs(above) + np.abs(below))[own] + 2.0**-100
    return bool((np.abs(part - share * whole) <= slack).all()) and -1e-14 <= share <= 1 + 1e-14
