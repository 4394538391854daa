"""Whether a candidate's gradient at a kink is one that the kink admits.

Where a comparison ties, or a selection does, the gradient depends on the side that is taken. First the conventions are
tried, each for all open decisions at once. Then one slope is looked for, the same for the whole gradient: a weight for
each side of every open comparison, and for each element that ties in a selection, that add up to 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, working_precision
from symcheck.arithmetic.bound import Bound
from symcheck.mixtures import Mixture, Weights
from symcheck.openings import Decision, Key, Openings, find_openings
from symcheck.opposites import lies_between_opposites
from symcheck.program import Program
from symcheck.refinement import ball_seconds
from symcheck.slopes import MARGIN, Fit, Target, TooLong, enclose, fit_slopes, hull_misfit, unit, useful_arms

__all__ = ["Explanation", "explain", "indifferent"]

Floats: TypeAlias = NDArray[np.float64]
Given: TypeAlias = Mapping[str, NDArray[np.generic]]
Arms: TypeAlias = Mapping[Key, Sequence[int]]

MOST = 64  # open decisions, of up to four arms, for which slopes are looked for, however long one evaluation takes
MOST_ARMS = 1000  # for which they are looked for at all
BITS = 192
SECONDS = 0.25  # for one evaluation in balls; longer ones are made in float64 with a bound
SEARCH_SECONDS = 10.0  # for a whole search
STATEMENT_SECONDS = 4e-4
FEWEST = 500  # evaluations in a search
NARROW = 2.0**-40  # relative width of a range that is one value

JUMP = "a piecewise-constant function is at a jump there"
SINGULAR = "a branch has no finite slope at the kink, as a norm at 0 has none"

# name, side of every comparison, which element of every tie
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
            if it is not, whatever the weights; ``"not excluded"`` if each element lies among the branches, where there
            are too many decisions to look for slopes; ``"undecided"``, for the reason given; ``"none"`` if no decision
            is open.
        name: the convention.
        reason: why it is undecided, or what does not fit.
        decisions: what is compared, where, and the slopes found: the part of the upper side of a comparison (none
            where it is taken as written), or the part of each of the elements that tie.
        misfit: how far off the worst element is, in parts of what rounding explains.
        element: the name and flat element that fits worst, where something does not.
    """

    kind: str
    name: str = ""
    reason: str = ""
    decisions: tuple[tuple[str, str, tuple[float, ...]], ...] = ()
    misfit: float = float("nan")
    element: tuple[str, int] | None = None

    @property
    def is_refuted(self) -> bool:
        """Whether no admissible choice gives the gradient."""
        return self.kind in ("infeasible", "outside")


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
    seconds = ball_seconds(kept)
    openings = find_openings(kept, given, moving, sharpen=seconds <= SECONDS)
    if not openings.decisions:
        if openings.jumps:
            return Explanation("undecided", reason=f"{JUMP}, {openings.jumps[0]}")
        return Explanation("none", reason="no decision is open")
    numbers = Ball() if seconds <= SECONDS else Bound()
    flat, slack = (_flattened(part, names) for part in (intended, errors))
    once = 3 * seconds + STATEMENT_SECONDS * len(kept.statements)
    target = Target(
        Mixture(kept, given, moving, openings, numbers),
        openings,
        flat,
        slack,
        evaluations=max(FEWEST, int(SEARCH_SECONDS / once)),
    )
    search = _Search(target, openings, [(name, int(np.size(intended[name]))) for name in names])
    with working_precision(BITS):
        found = search.convention()
        if found is not None:
            return found
        arms = sum(len(decision.arms) for decision in openings.decisions.values())
        if arms > MOST_ARMS or (arms > 4 * MOST and 2 * arms * once > SEARCH_SECONDS):
            return search.box()
        try:
            return search.slopes()
        except TooLong:
            return search.box()


def indifferent(
    gradient: Program, given: Given, names: Sequence[str], moving: Sequence[str]
) -> list[NDArray[np.bool_]]:
    """The elements of a gradient that are the same whichever way the open decisions fall, as that of x|x| is at 0.

    Args:
        gradient, given, names, moving: as in `explain`.
    """
    kept = replace(gradient, outputs=gradient.outputs[: len(names)])
    openings = find_openings(kept, given, moving, sharpen=ball_seconds(kept) <= SECONDS)
    if openings.jumps:
        return [np.zeros(output.shape, dtype=bool) for output in kept.outputs]
    ranges = Mixture(kept, given, moving, openings, Bound()).bounds()
    pairs = [enclose(output, covering=True) for output in ranges]
    return [np.isfinite(error) & (error <= NARROW * np.abs(value)) for value, error in pairs]


def _flattened(arrays: Mapping[str, Floats], names: Sequence[str]) -> Floats:
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).reshape(-1) for name in names])


class _Search:
    """The ways to explain one gradient, in turn."""

    def __init__(self, target: Target, openings: Openings, sizes: Sequence[tuple[str, int]]) -> None:
        self._target, self._openings, self._sizes = target, openings, sizes

    def convention(self) -> Explanation | None:
        """The first convention by which all elements agree."""
        tried = set()
        for name, side, among in CONVENTIONS:
            weights = self._conventional(side, among)
            if tuple(weights.values()) in tried:
                continue
            tried.add(tuple(weights.values()))
            self._target.doubtful = False
            value, error = self._target.at(weights)
            inexact = np.abs(value) if among == "shared" else 0.0  # thirds are rounded
            if (self._target.excess(value, error, inexact) <= 1).all() and not self._target.doubtful:
                return Explanation("convention", name, decisions=self._described(weights))
        self._target.doubtful = False
        return None

    def _conventional(self, side: str, among: str) -> dict[Key, tuple[float, ...]]:
        return {key: _conventional(self._openings.decisions[key], side, among) for key in self._target.keys}

    def slopes(self) -> Explanation:
        """One set of weights for the whole gradient; or that there is none."""
        target = self._target
        start = self._conventional("mean", "shared")
        singular = self._singular_elements(start)
        target.usable, everything = target.usable & ~singular, target.usable
        arms = useful_arms(target)
        fit = fit_slopes(target, start, arms)
        if not _fits(fit) or target.doubtful:
            return self._refuted(fit, arms)
        target.usable = everything
        value, error = target.at(fit.weights)
        beyond = np.where(singular, target.excess(value, error, np.abs(value)), 0.0)
        names = [name for name, _ in self._sizes]
        if (beyond > MARGIN).any() and not lies_between_opposites(
            target, fit.weights, names, singular, beyond > MARGIN
        ):
            return self._without("undecided", SINGULAR, beyond)
        return Explanation("slopes", decisions=self._described(fit.weights), misfit=float(fit.excess.max()))

    def _singular_elements(self, weights: Weights) -> NDArray[np.bool_]:
        """The elements that depend on a decision with a branch that has no finite slope, as a norm at 0."""
        base = self._target.at(weights)[0]
        touched = np.zeros(base.shape, dtype=bool)
        singular = [key for key in self._target.keys if self._openings.decisions[key].singular]
        for place in (0, 2) if singular else ():
            there = self._target.at({**weights, **{key: unit(3, place) for key in singular}})[0]
            touched |= ~(np.isfinite(there) & (there == base))
        return touched

    def _refuted(self, fit: Fit, arms: Arms) -> Explanation:
        """Why no slopes fit: there are none, or it is not known."""
        doubt, misfit = "", fit.misfit
        if self._openings.jumps:
            doubt = f"{JUMP}, {self._openings.jumps[0]}"
        elif not np.isfinite(fit.excess).all():
            doubt = "the slopes at the kinks are not finite, or not known well enough"
        elif self._target.doubtful:
            doubt = "several open choices meet in one place"
        elif not fit.affine:
            hull = hull_misfit(self._target, arms)
            misfit = float(self._beyond_box().max()) if hull is None else hull
            if misfit <= MARGIN:
                doubt = "kinks of several layers multiply, and no slopes were found that explain it"
        elif misfit <= MARGIN:
            doubt = "it is within rounding of what the kinks admit"
        if doubt:
            return self._without("undecided", doubt, fit.excess)
        return self._without("infeasible", "no choice of slopes at the kinks gives this gradient", fit.excess)

    def box(self) -> Explanation:
        """Whether every element lies among the branches, each element for itself."""
        excess = self._beyond_box()
        if (excess > MARGIN).any() and not self._openings.jumps:
            return self._without("outside", "it is outside of what all branches at the kinks give", excess)
        count = sum(map(self._target.count, self._target.keys))
        return Explanation("not excluded", reason=f"open decisions leave {count} choices: too many to look for slopes")

    def _beyond_box(self) -> Floats:
        """How far each element is outside of what all branches give, in parts of what rounding explains."""
        value, error = self._target.bounds()
        with np.errstate(all="ignore"):
            beyond = np.abs(value - self._target.intended) - error * (1 + 2.0**-40)
            slack = self._target.errors + 2.0**-50 * (np.abs(value) + error) + 2.0**-1070
        known = np.isfinite(value) & np.isfinite(error) & self._target.usable
        return np.where(known & (beyond > 0), beyond / slack, 0.0)

    def _without(self, kind: str, reason: str, excess: Floats) -> Explanation:
        flat = int(np.argmax(excess))
        misfit, start = float(excess[flat]), 0
        for name, size in self._sizes:
            if flat < start + size:
                return Explanation(kind, reason=reason, misfit=misfit, element=(name, flat - start))
            start += size
        raise AssertionError("beyond the last element")

    def _described(self, weights: Weights) -> tuple[tuple[str, str, tuple[float, ...]], ...]:
        rows: list[tuple[str, str, Any]] = []
        for key in self._target.keys:
            decision, own = self._openings.decisions[key], tuple(weights[key])
            if decision.is_comparison:
                own = () if own[1] == 1 else (own[2] + own[1] / 2,)
            rows.append((decision.text, decision.source, own))
        return tuple(rows)


def _fits(fit: Fit) -> bool:
    return bool((fit.excess <= MARGIN).all())


def _conventional(decision: Decision, side: str, among: str) -> tuple[float, ...]:
    count = len(decision.arms)
    if decision.is_comparison:
        return SIDES["tie" if decision.singular else side]
    if among == "shared":
        return (1.0 / count,) * count
    return unit(count, {"lowest": 0, "highest": count - 1}.get(among, decision.chosen))
