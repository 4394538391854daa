"""Whether a candidate's gradient at a kink is one that the kink admits.

Where a comparison ties, or a selection does, the gradient depends on the side that is taken. First the conventions are
tried, each for all open decisions at once. Then one slope is looked for, the same for the whole gradient: a weight for
each side of every open comparison, and for each element that ties in a selection, that add up to 1. The gradient is
linear in the weights of each decision, so a least-squares problem with weights of at least 0 finds them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from symcheck.arithmetic.ball import Ball, enclosures, working_precision
from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.evaluation import evaluate
from symcheck.mixtures import Mixture, Weights
from symcheck.openings import Decision, Key, Openings, find_openings
from symcheck.program import Program
from symcheck.refinement import ball_seconds

__all__ = ["Explanation", "explain"]

Floats: TypeAlias = NDArray[np.float64]
Given: TypeAlias = Mapping[str, NDArray[np.generic]]

MOST = 64  # open decisions for which slopes are looked for
BITS = 192
SECONDS = 0.25  # for one evaluation in balls; longer ones are made in float64 with a bound
ROUNDING = 2.0**-50  # of what the branches differ by: the weights are float64 numbers
ROUNDS = 12  # linearisations where decisions multiply
CORNERS = 256  # combinations of branches up to which all are tried
MARGIN = 4.0  # of what rounding explains, in the least-squares norm, that a misfit must exceed

CONVENTIONS = (
    ("as written", "tie", "first"),
    ("low", "below", "first"),
    ("high", "above", "first"),
    ("the mean of both sides", "mean", "first"),
    ("shared among ties", "tie", "shared"),
    ("shared among ties, and the mean of both sides", "mean", "shared"),
    ("shared among ties, and low", "below", "shared"),
    ("shared among ties, and high", "above", "shared"),
    ("the first among ties", "tie", "lowest"),
    ("the last among ties", "tie", "highest"),
)
SIDES = {"below": (1.0, 0.0, 0.0), "tie": (0.0, 1.0, 0.0), "above": (0.0, 0.0, 1.0), "mean": (0.5, 0.0, 0.5)}


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """Whether a gradient is admissible at a kink.

    Attributes:
        kind: ``"convention"`` or ``"slopes"`` if it is, by the name or the weights; ``"infeasible"`` or ``"outside"``
            if it is not, whatever the weights; ``"not excluded"`` if it lies among the branches, above `MOST`
            decisions; ``"undecided"``, for the reason given; ``"none"`` if no decision is open.
        name: the convention.
        reason: why it is undecided, or what does not fit.
        decisions: what is compared and where, with the slopes found: the part of the upper side of a comparison, or
            the part of each of the elements that tie.
        misfit: how far the gradient is from the nearest admissible one found, in parts of what rounding explains.
        element: the name and flat element that fits worst, where something does not.
    """

    kind: str
    name: str = ""
    reason: str = ""
    decisions: tuple[tuple[str, str, tuple[float, ...]], ...] = ()
    misfit: float = float("nan")
    element: tuple[str, int] | None = None

    @property
    def is_admissible(self) -> bool:
        """Whether an admissible choice was found that gives the gradient."""
        return self.kind in ("convention", "slopes")


def explain(
    gradient: Program,
    given: Given,
    names: Sequence[str],
    intended: Mapping[str, Floats],
    errors: Mapping[str, Floats],
    moving: Sequence[str],
) -> Explanation:
    """Look for one admissible choice at the open decisions that makes the exact gradient equal to a candidate's.

    Args:
        gradient: the exact adjoint program; its first outputs are the gradients by `names`.
        given: its inputs, cotangents included.
        names: the inputs differentiated by, in the order of the outputs.
        intended: by name, the candidate's own program in exact arithmetic, rounded to float64.
        errors: how far those may be off; where not finite, an element is left out.
        moving: the inputs that a derivative moves.
    """
    kept = replace(gradient, outputs=gradient.outputs[: len(names)])
    sharp = ball_seconds(kept) <= SECONDS
    openings = find_openings(kept, given, moving, sharpen=sharp)
    if not openings.decisions:
        return Explanation("none", reason="no decision is open")
    search = _Search(
        Mixture(kept, given, moving, openings, Ball() if sharp else Bound()),
        openings,
        tuple(names),
        np.concatenate([np.asarray(intended[name], dtype=np.float64).reshape(-1) for name in names]),
        np.concatenate([np.asarray(errors[name], dtype=np.float64).reshape(-1) for name in names]),
        [int(np.size(intended[name])) for name in names],
    )
    with working_precision(BITS):
        found = search.convention()
        if found is not None:
            return found
        if len(openings.decisions) > MOST:
            return search.box(evaluate(kept, given, Bound(), moving=moving))
        return search.slopes()


class _Search:
    """A search for the weights that give one gradient. Flat vectors run over the elements of all inputs."""

    def __init__(
        self,
        mixture: Mixture,
        openings: Openings,
        names: tuple[str, ...],
        intended: Floats,
        errors: Floats,
        sizes: Sequence[int],
    ) -> None:
        self._mixture, self._openings = mixture, openings
        self._names, self._sizes = names, sizes
        self._intended, self._errors = intended, errors
        self._usable = np.isfinite(errors) & np.isfinite(intended)
        self._keys = sorted(openings.decisions, key=str)
        self._doubtful = False

    # -- evaluation -----------------------------------------------------------------------------------------------

    def _at(self, weights: Weights) -> tuple[Floats, Floats]:
        """The exact gradient with some weights, and how far rounding may have put it off."""
        values, errors = [], []
        for output in self._mixture.at(weights):
            if isinstance(output, Bounded):
                value = output.value
                error = np.broadcast_to(np.zeros(()) if output.error is None else output.error, value.shape)
            else:
                value, error = enclosures(output)
            values.append(np.asarray(value, dtype=np.float64).reshape(-1))
            errors.append(np.asarray(error, dtype=np.float64).reshape(-1))
        self._doubtful |= self._mixture.doubtful
        return np.concatenate(values), np.concatenate(errors)

    def _excess(self, value: Floats, error: Floats, spread: Floats | float = 0.0) -> Floats:
        """|value - intended| in parts of what rounding explains; inf where it is not finite, 0 where left out."""
        with np.errstate(all="ignore"):
            allowance = self._errors + error + ROUNDING * spread + 2.0**-1070
            part = np.abs(value - self._intended) / allowance
        part = np.where(np.isfinite(value) & np.isfinite(error), part, np.inf)
        return np.where(self._usable, part, 0.0)

    def _worst(self, excess: Floats) -> tuple[str, int]:
        flat = int(np.argmax(excess))
        for name, size in zip(self._names, self._sizes, strict=True):
            if flat < size:
                return name, flat
            flat -= size
        raise AssertionError("beyond the last element")

    # -- conventions ----------------------------------------------------------------------------------------------

    def convention(self) -> Explanation | None:
        """The first convention by which all elements agree."""
        tried = set()
        for name, side, among in CONVENTIONS:
            weights = {key: _conventional(self._openings.decisions[key], side, among) for key in self._keys}
            if tuple(weights.values()) in tried:
                continue
            tried.add(tuple(weights.values()))
            value, error = self._at(weights)
            thirds = np.abs(value) if among == "shared" else 0.0
            if (self._excess(value, error, thirds) <= 1).all() and not self._mixture.doubtful:
                return Explanation("convention", name, decisions=self._described(weights))
        return None

    def _described(self, weights: Weights) -> tuple[tuple[str, str, tuple[float, ...]], ...]:
        rows = []
        for key in self._keys:
            decision, own = self._openings.decisions[key], weights[key]
            if decision.is_comparison:
                own = (own[2] + own[1] / 2,)
            rows.append((decision.text, decision.source, tuple(map(float, own))))
        return tuple(rows)

    # -- slopes ---------------------------------------------------------------------------------------------------

    def slopes(self) -> Explanation:
        """Weights by least squares; where decisions multiply, again from where the last ones led."""
        weights = {key: _conventional(self._openings.decisions[key], "mean", "shared") for key in self._keys}
        affine = True
        best = np.inf
        value, error = self._at(weights)
        for _ in range(ROUNDS):
            columns, spread = self._columns(weights, value)
            solution, misfit = self._solve(weights, value, columns, error, spread)
            predicted = value + columns @ _flat(solution, self._keys) - columns @ _flat(weights, self._keys)
            weights = _normalised(solution, self._openings)
            value, error = self._at(weights)
            excess = self._excess(value, error, spread)
            if (excess <= MARGIN).all() and not self._doubtful:
                return Explanation("slopes", decisions=self._described(weights), misfit=float(excess.max()))
            affine = affine and _agree(predicted, value, error + ROUNDING * spread, self._usable)
            if affine or not excess.max() < 0.999 * best:
                break
            best = float(excess.max())
        return self._misfit(excess, misfit, affine)

    def _misfit(self, excess: Floats, misfit: float, affine: bool) -> Explanation:
        element = self._worst(excess)
        facts: dict[str, Any] = {"misfit": float(excess.max()), "element": element}
        doubt = ""
        if not np.isfinite(excess).all():
            doubt = "the slopes are not finite on one side of a kink"
        elif any(self._openings.decisions[key].singular for key in self._keys):
            doubt = "a branch has no finite slope at the kink"
        elif self._doubtful:
            doubt = "several open choices meet in one place"
        elif not affine:
            hull = self._hull_misfit()
            if hull is None:
                doubt = "kinks of several layers multiply, and no slopes were found that explain it"
            else:
                misfit = hull
        if not doubt and misfit <= MARGIN:
            doubt = "it is within rounding of what the kinks admit"
        if doubt:
            return Explanation("undecided", reason=doubt, **facts)
        return Explanation("infeasible", reason="no choice of slopes at the kinks gives this gradient", **facts)

    def _arms(self, key: Key) -> Sequence[int]:
        """The places of the arms that a search may use."""
        decision = self._openings.decisions[key]
        return (1,) if decision.singular else range(len(decision.arms))

    def _columns(self, weights: Weights, value: Floats) -> tuple[Floats, Floats]:
        """The gradient with each arm taken in turn, and how much all of them change it by."""
        columns = []
        spread = np.abs(value)
        for key in self._keys:
            arms = self._arms(key)
            for place in range(len(self._openings.decisions[key].arms)):
                column = self._at({**weights, key: _pure(weights[key], place)})[0] if place in arms else value
                columns.append(column)
                spread = spread + np.abs(column - value)
        return np.stack(columns, axis=1), spread

    def _solve(
        self, weights: Weights, value: Floats, columns: Floats, error: Floats, spread: Floats
    ) -> tuple[dict[Key, tuple[float, ...]], float]:
        """The weights that fit best, and the least-squares misfit in parts of what rounding explains."""
        offset = value - columns @ _flat(weights, self._keys)
        rows = self._usable & np.isfinite(columns).all(axis=1) & np.isfinite(value)
        with np.errstate(all="ignore"):
            allowance = (self._errors + error + ROUNDING * spread)[rows] + 2.0**-1000
        scale = np.maximum(np.maximum(np.abs(self._intended), spread)[rows], 2.0**-900)
        sums, ones = self._equalities()
        matrix = np.concatenate([columns[rows] / scale[:, None], sums])
        target = np.concatenate([(self._intended - offset)[rows] / scale, ones])
        usable_arms = np.concatenate(
            [[place in self._arms(key) for place in range(self._count(key))] for key in self._keys]
        )
        solution = np.zeros(matrix.shape[1])
        solution[usable_arms], misfit = nnls(matrix[:, usable_arms], target, maxiter=50 * matrix.shape[1])
        explained = float(np.linalg.norm(allowance / scale)) + 2.0**-46
        return self._unflat(solution), float(misfit) / explained

    def _count(self, key: Key) -> int:
        return len(self._openings.decisions[key].arms)

    def _unflat(self, flat: Floats) -> dict[Key, tuple[float, ...]]:
        result, start = {}, 0
        for key in self._keys:
            stop = start + self._count(key)
            result[key], start = tuple(flat[start:stop].tolist()), stop
        return result

    def _equalities(self) -> tuple[Floats, Floats]:
        """Rows that say that weights add up to 1."""
        starts = dict(zip(self._keys, np.cumsum([0, *map(self._count, self._keys)])[:-1].tolist(), strict=True))
        total = sum(map(self._count, self._keys))
        rows = []
        for key in self._keys:
            row = np.zeros(total)
            row[starts[key] : starts[key] + self._count(key)] = 1.0
            rows.append(row)
        for group in self._openings.together:
            row = np.zeros(total)
            for key, arm in group:
                row[starts[key] + arm] = 1.0
            rows.append(row)
        return np.stack(rows), np.ones(len(rows))

    def _hull_misfit(self) -> float | None:
        """The misfit to the hull of all combinations of branches, which holds all slopes; None if too many."""
        choices = [self._arms(key) for key in self._keys]
        if prod(map(len, choices)) > CORNERS:
            return None
        corners, errors = [], []
        for places in product(*choices):
            pairs = zip(self._keys, places, strict=True)
            value, error = self._at({key: _unit(self._count(key), place) for key, place in pairs})
            corners.append(value)
            errors.append(error)
        columns = np.stack(corners, axis=1)
        spread = np.abs(columns).sum(axis=1)
        rows = self._usable & np.isfinite(columns).all(axis=1)
        scale = np.maximum(np.maximum(np.abs(self._intended), spread)[rows], 2.0**-900)
        matrix = np.concatenate([columns[rows] / scale[:, None], np.ones((1, columns.shape[1]))])
        misfit = nnls(matrix, np.concatenate([self._intended[rows] / scale, np.ones(1)]))[1]
        allowance = (self._errors + np.max(errors, axis=0) + ROUNDING * spread)[rows]
        return float(misfit / (np.linalg.norm(allowance / scale) + 2.0**-46))

    # -- the box --------------------------------------------------------------------------------------------------

    def box(self, outputs: Sequence[Any]) -> Explanation:
        """Whether every element lies among the branches, each element for itself."""
        value = np.concatenate([np.asarray(output.value).reshape(-1) for output in outputs])
        error = np.concatenate(
            [np.broadcast_to(0.0 if o.error is None else o.error, o.value.shape).reshape(-1) for o in outputs]
        )
        known = np.isfinite(value) & np.isfinite(error) & self._usable
        excess = np.where(known, self._excess(value, error), 0.0)
        if (excess > MARGIN).any():
            reason = "it is outside of what all branches at the kinks give"
            return Explanation("outside", reason=reason, misfit=float(excess.max()), element=self._worst(excess))
        reason = f"{len(self._keys)} decisions are open: too many to look for slopes"
        return Explanation("not excluded", reason=reason)


def _conventional(decision: Decision, side: str, among: str) -> tuple[float, ...]:
    count = len(decision.arms)
    if decision.is_comparison:
        return SIDES["tie" if decision.singular else side]
    if among == "shared":
        return (1.0 / count,) * count
    return _unit(count, {"lowest": 0, "highest": count - 1}.get(among, decision.chosen))


def _unit(count: int, place: int) -> tuple[float, ...]:
    return tuple(float(n == place) for n in range(count))


def _pure(weights: Sequence[float], place: int) -> tuple[float, ...]:
    return _unit(len(weights), place)


def _flat(weights: Weights, keys: Sequence[Key]) -> Floats:
    return np.concatenate([np.asarray(weights[key], dtype=np.float64) for key in keys])


def _normalised(weights: Weights, openings: Openings) -> dict[Key, tuple[float, ...]]:
    """Weights that add up to 1 as exactly as float64 can."""
    result = {}
    for key, own in weights.items():
        values = np.clip(np.asarray(own), 0.0, 1.0)
        if openings.decisions[key].singular or values.sum() == 0:
            result[key] = _unit(len(own), openings.decisions[key].chosen)
        else:
            values = values / values.sum()
            result[key] = tuple(values.tolist())
    return result


def _agree(predicted: Floats, value: Floats, slack: Floats, usable: NDArray[np.bool_]) -> bool:
    known = usable & np.isfinite(predicted) & np.isfinite(value)
    return bool((np.abs(predicted - value)[known] <= (2.0**-30 * np.abs(value) + MARGIN * slack)[known]).all())
