"""The weights at open decisions by which an exact gradient comes nearest to a candidate's.

The gradient is linear in the weights of each decision. Where no two decisions multiply, a least-squares problem with
weights of at least 0 decides whether there are any. Where they do, it is repeated from where the last one led; and that
there are none is shown by what holds all slopes: the combinations of branches, in groups of decisions that multiply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from symcheck.arithmetic.ball import enclosures
from symcheck.arithmetic.bound import Bounded
from symcheck.mixtures import Mixture, Weights
from symcheck.openings import Key, Openings

__all__ = ["MARGIN", "Fit", "Target", "TooLong", "enclose", "fit_slopes", "hull_misfit", "unit", "useful_arms"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

ROUNDING = 2.0**-50  # of what the branches differ by: the weights are float64 numbers
USEFUL = 2.0**-20  # of the largest element: what is known less well is not known
ROUNDS = 12  # linearisations where decisions multiply
STAY = 1e-3  # how much staying near counts beside fitting, where decisions multiply
CORNERS = 256  # combinations of branches up to which a group of decisions is tried
PAIRS = 1000  # pairs of decisions that are looked at for whether they multiply
REFINEMENTS = 2  # of its solution, which is less accurate than what it solves
SOLVER = 2.0**-46  # how far the least-squares solver may be off, for each row of size 1
MARGIN = 4.0  # of what rounding explains, that a misfit must exceed


class TooLong(Exception):
    """A search that would take too long."""


class Target:
    """A candidate's gradient, and the exact one at any weights. Flat vectors run over the elements of all inputs.

    Attributes:
        keys: the open decisions, in a fixed order.
        usable: the elements to explain.
        doubtful: whether an evaluation met weights that it could not carry.
    """

    def __init__(
        self, mixture: Mixture, openings: Openings, intended: Floats, errors: Floats, *, evaluations: int = 1 << 30
    ) -> None:
        self._mixture, self.openings, self._left = mixture, openings, evaluations
        self.intended, self.errors = intended, errors
        self.keys = sorted(openings.decisions, key=str)
        self.usable: Mask = np.isfinite(errors) & np.isfinite(intended)
        self.doubtful = False

    def count(self, key: Key) -> int:
        """How many arms a decision has."""
        return len(self.openings.decisions[key].arms)

    def at(self, weights: Weights) -> tuple[Floats, Floats]:
        """The exact gradient with some weights, and how far rounding may have put it off.

        Raises:
            TooLong: there have been too many evaluations.
        """
        self._left -= 1
        if self._left < 0:
            raise TooLong
        pairs = [enclose(output) for output in self._mixture.at(weights)]
        self.doubtful |= self._mixture.doubtful
        return _joined(pairs)

    def beside(self, weights: Weights, names: Sequence[str], direction: Floats, sign: int, step: int) -> Floats:
        """The exact gradient at inputs moved by sign * 2^-step * direction, a flat vector over the inputs named."""
        directions, start = {}, 0
        for name in names:
            shape = self._mixture.shape_of(name)
            stop = start + prod(shape)
            directions[name], start = direction[start:stop].reshape(shape), stop
        return _joined([enclose(output) for output in self._mixture.beside(weights, directions, sign, step)])[0]

    def bounds(self) -> tuple[Floats, Floats]:
        """The exact gradient, with errors that cover all branches."""
        return _joined([enclose(output, covering=True) for output in self._mixture.bounds()])

    def excess(self, value: Floats, error: Floats, spread: Floats | float = 0.0) -> Floats:
        """|value - intended| in parts of what rounding explains; inf where it is not known, 0 where left out."""
        with np.errstate(all="ignore"):
            part = np.abs(value - self.intended) / (self.errors + error + ROUNDING * spread + 2.0**-1070)
        scale = float(np.max(np.abs(value), initial=0.0, where=np.isfinite(value)))
        known = np.isfinite(value) & (error <= USEFUL * scale + 2.0**-1000)
        part = np.where(known, part, np.inf)
        return np.where(self.usable, part, 0.0)


def enclose(output: object, *, covering: bool = False) -> tuple[Floats, Floats]:
    """Values in float64 with a bound on their errors, from balls or bounded numbers.

    Where bounded numbers are open still, as at a jump, they have no error unless it may cover all branches.
    """
    if not isinstance(output, Bounded):
        return enclosures(np.asarray(output, dtype=object))
    error = np.zeros(()) if output.error is None else output.error
    if output.open is not None and not covering:
        error = np.where(output.open, np.inf, error)
    return np.asarray(output.value, dtype=np.float64), np.broadcast_to(error, output.value.shape)


def _joined(pairs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    values, errors = zip(*pairs, strict=True)
    return np.concatenate([v.reshape(-1) for v in values]), np.concatenate([e.reshape(-1) for e in errors])


def unit(count: int, place: int) -> tuple[float, ...]:
    """All weight on one arm."""
    return tuple(float(n == place) for n in range(count))


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """The best weights found.

    Attributes:
        weights: one for each arm of every decision.
        excess: how far off each element is then, in parts of what rounding explains.
        misfit: no weights at all bring the elements nearer than this, in the least-squares norm and in parts of what
            rounding explains; good only where `affine`.
        affine: whether no two decisions multiply.
    """

    weights: dict[Key, tuple[float, ...]]
    excess: Floats
    misfit: float
    affine: bool


def fit_slopes(target: Target, start: Weights, arms: Mapping[Key, Sequence[int]]) -> Fit:
    """Least squares, again from where the last ones led as long as that comes nearer.

    Args:
        target: what to explain.
        start: the first weights.
        arms: the places of the arms that may have weight.
    """
    weights = dict(start)
    value, error = target.at(weights)
    affine, best = True, None
    for turn in range(ROUNDS):
        changes, spread = _changes(target, weights, value, arms)
        slack = error + ROUNDING * spread
        if turn == 0:
            affine = _is_affine(target, weights, value, changes, slack, arms)
        found, misfit = _solve(target, weights, value, changes, slack, spread, arms, 0.0 if affine else STAY)
        weights = {key: _normalised(own, target.openings.decisions[key].chosen) for key, own in found.items()}
        value, error = target.at(weights)
        fit = Fit(
            {key: tuple(own) for key, own in weights.items()}, target.excess(value, error, spread), misfit, affine
        )
        if best is not None and not fit.excess.max() < 0.999 * best.excess.max():
            break
        best = fit
        if affine or fit.excess.max(initial=0.0) <= 1:
            break
    assert best is not None
    return best


def _changes(
    target: Target, weights: Weights, value: Floats, arms: Mapping[Key, Sequence[int]]
) -> tuple[Floats, Floats]:
    """How much the gradient changes with each arm taken in turn, a column each; and by how much in all."""
    columns = []
    spread = np.abs(value)
    for key in target.keys:
        count = target.count(key)
        for place in range(count):
            there = target.at({**weights, key: unit(count, place)})[0] if place in arms[key] else value
            columns.append(there - value)
            spread = spread + np.abs(there - value)
    return np.stack(columns, axis=1), spread


def _generic(target: Target, arms: Mapping[Key, Sequence[int]], seed: int) -> dict[Key, tuple[float, ...]]:
    """Weights without any pattern."""
    generator = np.random.default_rng(seed)
    drawn = {}
    for key in target.keys:
        draw = generator.uniform(0.1, 1.0, target.count(key))
        draw *= np.isin(np.arange(target.count(key)), arms[key])
        drawn[key] = _normalised(draw.tolist(), 0)
    return drawn


def _is_affine(
    target: Target, weights: Weights, value: Floats, changes: Floats, slack: Floats, arms: Mapping[Key, Sequence[int]]
) -> bool:
    """Whether no two decisions multiply: a generic point is where the linearisation says."""
    somewhere = _generic(target, arms, 0)
    there, error = target.at(somewhere)
    with np.errstate(all="ignore"):
        predicted = value + changes @ (_flat(target, somewhere) - _flat(target, weights))
        apart = np.abs(predicted - there) > MARGIN * (slack + error)
    return not (apart & np.isfinite(predicted) & np.isfinite(there) & target.usable).any()


def useful_arms(target: Target) -> dict[Key, Sequence[int]]:
    """The places of the arms that a search needs: what holds exactly at a tie mostly lies between both sides.

    Where a side has no finite slope, only what holds exactly at the tie is left.
    """
    decisions = target.openings.decisions
    arms: dict[Key, Sequence[int]] = {
        key: (1,) if decisions[key].singular else range(target.count(key)) for key in target.keys
    }
    base = _generic(target, arms, 3)
    for key in target.keys:
        if decisions[key].singular or not decisions[key].is_comparison:
            continue
        (below, *_), (tie, error), (above, _) = (target.at({**base, key: unit(3, place)}) for place in range(3))
        if _is_between(below, tie, above, error, target.usable):
            arms[key] = (0, 2)
    return arms


def _is_between(below: Floats, tie: Floats, above: Floats, error: Floats, usable: Mask) -> bool:
    """Whether one vector is a mean of two others."""
    known = usable & np.isfinite(below) & np.isfinite(tie) & np.isfinite(above)
    whole, part = (above - below)[known], (tie - below)[known]
    size = float(np.max(np.abs(whole), initial=0.0))
    share = float((whole / size) @ (part / size) / ((whole / size) @ (whole / size))) if size > 0 else 0.0
    slack = MARGIN * error[known] + ROUNDING * (np.abs(below) + np.abs(tie) + np.abs(above))[known]
    return bool((np.abs(part - share * whole) <= slack).all()) and -1e-12 <= share <= 1 + 1e-12


def _solve(
    target: Target,
    weights: Weights,
    value: Floats,
    changes: Floats,
    slack: Floats,
    spread: Floats,
    arms: Mapping[Key, Sequence[int]],
    stay: float,
) -> tuple[dict[Key, tuple[float, ...]], float]:
    """The weights that fit best where the gradient is linearised, and how well.

    A little of `stay` keeps them near where they are as far as the fit leaves them free, since the linearisation holds
    there.
    """
    offset = value - changes @ _flat(target, weights)
    rows = target.usable & np.isfinite(changes).all(axis=1) & np.isfinite(value)
    scale = np.maximum(np.maximum(np.abs(target.intended), spread)[rows], 2.0**-900)
    sums = _equalities(target)
    matrix = np.concatenate([changes[rows] / scale[:, None], sums])
    wanted = np.concatenate([(target.intended - offset)[rows] / scale, np.ones(len(sums))])
    allowed = np.concatenate([np.isin(np.arange(target.count(key)), arms[key]) for key in target.keys])
    if stay:
        matrix = np.concatenate([matrix, stay * np.eye(matrix.shape[1])])
        wanted = np.concatenate([wanted, stay * _flat(target, weights)])
    flat = np.zeros(matrix.shape[1])
    flat[allowed], misfit = _least_squares(matrix[:, allowed], wanted)
    explained = float(np.linalg.norm((target.errors + slack)[rows] / scale)) + SOLVER * float(np.sqrt(len(wanted)))
    return _unflat(target, flat), misfit / explained


def _least_squares(matrix: Floats, wanted: Floats) -> tuple[Floats, float]:
    """The solution of least squares without negative numbers, refined among those that are not zero."""
    solution, misfit = nnls(matrix, wanted, maxiter=50 * matrix.shape[1])
    support = solution > 0
    for _ in range(REFINEMENTS):
        correction = np.linalg.lstsq(matrix[:, support], wanted - matrix @ solution, rcond=None)[0]
        solution[support] = np.maximum(solution[support] + correction, 0.0)
    return solution, float(misfit)


def _equalities(target: Target) -> Floats:
    """Rows of what adds up to 1."""
    starts = dict(zip(target.keys, np.cumsum([0, *map(target.count, target.keys)])[:-1].tolist(), strict=True))
    total = sum(map(target.count, target.keys))
    groups = [[(key, place) for place in range(target.count(key))] for key in target.keys]
    rows = np.zeros((len(groups) + len(target.openings.together), total))
    for row, group in zip(rows, [*groups, *target.openings.together], strict=True):
        for key, place in group:
            row[starts[key] + place] = 1.0
    return rows


def _flat(target: Target, weights: Weights) -> Floats:
    return np.concatenate([np.asarray(weights[key], dtype=np.float64) for key in target.keys])


def _unflat(target: Target, flat: Floats) -> dict[Key, tuple[float, ...]]:
    ends = np.cumsum([target.count(key) for key in target.keys])[:-1]
    return {key: tuple(part.tolist()) for key, part in zip(target.keys, np.split(flat, ends), strict=True)}


def _normalised(weights: Sequence[float], chosen: int) -> tuple[float, ...]:
    """Weights that add up to 1 as exactly as float64 can."""
    values = np.clip(np.asarray(weights), 0.0, 1.0)
    return tuple((values / values.sum()).tolist()) if values.sum() > 0 else unit(len(values), chosen)


# -- decisions that multiply ------------------------------------------------------------------------------------------


def hull_misfit(target: Target, arms: Mapping[Key, Sequence[int]]) -> float | None:
    """The misfit to what holds all slopes; None if there are too many combinations of branches.

    With f = f0 + the sum over groups of (f with the group at some weights, the rest at generic ones, - f0), each term
    lies in the hull of the group's combinations of branches.
    """
    base = _generic(target, arms, 1)
    groups = _groups(target, base, arms)
    if groups is None or any(prod(len(arms[key]) for key in group) > CORNERS for group in groups):
        return None
    value, error = target.at(base)
    columns, sums = [], []
    for number, group in enumerate(groups):
        for corner in _corners(target, group, arms):
            column, off = target.at({**base, **corner})
            columns.append(column - value)
            error = np.maximum(error, off)
            sums.append(unit(len(groups), number))
    matrix = np.stack(columns, axis=1)
    spread = np.abs(value) + np.abs(matrix).sum(axis=1)
    rows = target.usable & np.isfinite(matrix).all(axis=1) & np.isfinite(value)
    scale = np.maximum(np.maximum(np.abs(target.intended), spread)[rows], 2.0**-900)
    wanted = np.concatenate([(target.intended - value)[rows] / scale, np.ones(len(groups))])
    _, misfit = _least_squares(np.concatenate([matrix[rows] / scale[:, None], np.transpose(sums)]), wanted)
    allowance = (target.errors + (2 * len(groups) + 1) * error + ROUNDING * spread)[rows]
    return float(misfit) / (float(np.linalg.norm(allowance / scale)) + SOLVER * float(np.sqrt(len(wanted))))


def _corners(
    target: Target, group: Sequence[Key], arms: Mapping[Key, Sequence[int]]
) -> Iterator[dict[Key, tuple[float, ...]]]:
    for places in product(*(arms[key] for key in group)):
        yield {key: unit(target.count(key), place) for key, place in zip(group, places, strict=True)}


def _groups(target: Target, base: Weights, arms: Mapping[Key, Sequence[int]]) -> list[list[Key]] | None:
    """The decisions, those together that multiply; None if there are too many pairs, or one multiplies with itself."""
    if len(target.keys) * (len(target.keys) - 1) // 2 > PAIRS:
        return None
    other = _generic(target, arms, 2)
    value, error = target.at(base)
    single = {key: target.at({**base, key: other[key]}) for key in target.keys}
    if not all(_is_mean_of_arms(target, base, key, other[key], single[key], arms[key]) for key in target.keys):
        return None
    group_of = {key: [key] for key in target.keys}
    for one, two in combinations(target.keys, 2):
        if group_of[one] is group_of[two]:
            continue
        both, off = target.at({**base, one: other[one], two: other[two]})
        with np.errstate(all="ignore"):
            (x, dx), (y, dy) = single[one], single[two]
            slack = off + dx + dy + error + ROUNDING * (np.abs(both) + np.abs(x) + np.abs(y) + np.abs(value))
            multiply = ~(np.abs(both - x - y + value) <= slack) & target.usable & np.isfinite(value)
        if multiply.any():
            joined = group_of[one] + group_of[two]
            group_of.update(dict.fromkeys(joined, joined))
    return list({id(group): group for group in group_of.values()}.values())


def _is_mean_of_arms(
    target: Target,
    base: Weights,
    key: Key,
    weights: Sequence[float],
    mean: tuple[Floats, Floats],
    arms: Sequence[int],
) -> bool:
    """Whether a decision comes in once only; a mask may be squared, and is then not linear in its weights."""
    value, slack = mean
    total, size = np.zeros_like(value), np.abs(value)
    for place in arms:
        there, error = target.at({**base, key: unit(target.count(key), place)})
        total, size, slack = total + weights[place] * there, size + np.abs(there), slack + error
    with np.errstate(all="ignore"):
        return not ((np.abs(total - value) > slack + ROUNDING * size) & target.usable).any()
