"""Which positions a selection could have chosen instead, where values are closer than their errors.

Alternatives are stacked along a new first axis, one *world* each. Together they name every position that an open
choice could, so that whatever could move a result is seen to be open.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["alternative_selections"]

Floats: TypeAlias = NDArray[np.float64]
Positions: TypeAlias = NDArray[np.int64]

ORDERS = 1 << 22  # elements of alternative orders kept; longer runs of ties are only sampled


def alternative_selections(values: Floats, error: Floats, rule: str, chosen: Positions) -> Positions | None:
    """The other choices by a rule of `Selection`; None where every choice is strict.

    Args:
        values: selected along the last axis.
        error: a bound for each of them.
        rule: as in `Selection`.
        chosen: what was selected.
    """
    if values.shape[-1] < 2 or values.size == 0:
        return None
    error = np.where(np.isnan(error), np.inf, error)
    signed = values if rule in ("argmax", "cumargmax", "argsort") else -values
    if rule.startswith("argsort"):
        return _orders(signed, error, chosen)
    if rule.startswith("cum"):
        return _running_extremes(signed, error, chosen)
    return _extremes(signed, error, chosen)


def _extremes(values: Floats, error: Floats, chosen: Positions) -> Positions | None:
    """Every position that could hold the greatest, in turn."""
    own = chosen[..., None]
    best = np.take_along_axis(values, own, -1)
    least = np.fmax.reduce(values - error, axis=-1, keepdims=True)
    near = (values + error >= least) & ~np.isnan(best)  # NaN counts as the greatest, and is chosen strictly
    np.put_along_axis(near, own, True, -1)
    count = near.sum(axis=-1)
    most = int(count.max())
    if most < 2:
        return None
    ranked = np.argsort(~near, axis=-1, kind="stable")
    return np.stack([np.take_along_axis(ranked, (world % count)[..., None], -1)[..., 0] for world in range(most)])


def _orders(values: Floats, error: Floats, chosen: Positions) -> Positions | None:
    """Every run of places that could change hands, rotated, so that each element comes to each of its places."""
    own = np.take_along_axis(values, chosen, -1)
    slack = np.take_along_axis(error, chosen, -1)
    highest = np.fmax.accumulate(own + slack, axis=-1)
    lowest = np.fmin.accumulate((own - slack)[..., ::-1], axis=-1)[..., ::-1]
    joined = highest[..., :-1] >= lowest[..., 1:]
    if not joined.any():
        return None
    place = np.broadcast_to(np.arange(values.shape[-1]), values.shape)
    edge = np.zeros((*values.shape[:-1], 1), dtype=bool)
    start = np.maximum.accumulate(np.where(np.concatenate([edge, joined], -1), 0, place), axis=-1)
    last = np.where(np.concatenate([joined, edge], -1), values.shape[-1] - 1, place)
    stop = np.minimum.accumulate(last[..., ::-1], axis=-1)[..., ::-1] + 1
    length = stop - start
    worlds = range(1, int(length.max()))
    if len(worlds) * values.size > ORDERS:
        worlds = worlds[:: -(-len(worlds) * values.size // ORDERS)]
    return np.stack([np.take_along_axis(chosen, start + (place - start + w) % length, -1) for w in worlds])


def _running_extremes(values: Floats, error: Floats, chosen: Positions) -> Positions | None:
    """The first and the last position so far that could hold the greatest so far; each is the last one at itself."""
    high, low = values + error, np.fmax.accumulate(values - error, axis=-1)
    first, last = chosen.copy(), chosen.copy()
    for place in range(values.shape[-1]):
        near = high[..., : place + 1] >= low[..., place, None]
        found = near.any(axis=-1)
        first[..., place] = np.where(found, near.argmax(axis=-1), chosen[..., place])
        last[..., place] = np.where(found, place - near[..., ::-1].argmax(axis=-1), chosen[..., place])
    if np.array_equal(first, chosen) and np.array_equal(last, chosen):
        return None
    return np.stack([first, last])
