"""Finite differences as evidence: against the reference, and in its place where there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.differences import Differences
from symcheck.findings import Finding, Verdict, Worst
from symcheck.judgement import ATOL, RTOL, UNIT64, count_ulps, undecided
from symcheck.reference import Exact

__all__ = ["compare_with_differences", "judge_differences", "report_differences"]

Floats: TypeAlias = NDArray[np.float64]

CANDIDATE = "finite differences"
ERRORS = 4.0  # how many of their error estimates differences may be off by: no estimate is a bound
KINKS = "kinks, or values that are not finite"


@dataclass(frozen=True, slots=True, eq=False)
class _Comparison:
    """Differences beside a gradient, flat: where both are known, how far apart they are and may be."""

    gap: Floats
    allowance: Floats
    usable: NDArray[np.bool_]
    directions: int
    contradicted_along: bool

    @property
    def nothing(self) -> bool:
        return not self.usable.any() and not self.directions

    @property
    def contradiction(self) -> bool:
        return bool((self.gap > self.allowance).any()) or self.contradicted_along

    @property
    def worst(self) -> int:
        """Where the two are furthest apart: among the contradictions, if there is one."""
        return int(np.argmax(np.where(self.gap > self.allowance, self.gap, self.gap / 2)))


def _compare(found: Differences, gradient: Exact) -> _Comparison:
    value, error = found.values.reshape(-1), found.errors.reshape(-1)
    reference, bound = gradient.values.reshape(-1), gradient.errors.reshape(-1)
    usable = np.isfinite(value) & np.isfinite(error) & np.isfinite(reference) & np.isfinite(bound)
    usable &= ~gradient.open.reshape(-1)
    gap = np.where(usable, np.abs(value - reference), 0.0)
    allowance = np.where(usable, ERRORS * error + bound, np.inf)
    contradicted, count = _along_directions(found, gradient)
    return _Comparison(gap, allowance, usable, count, contradicted)


def _along_directions(found: Differences, gradient: Exact) -> tuple[bool, int]:
    """Whether a random direction contradicts a gradient, and how many could be compared."""
    if gradient.open.any() or not np.isfinite(gradient.values).all() or not np.isfinite(gradient.errors).all():
        return False, 0
    contradicted, compared = False, 0
    summing = gradient.values.size * UNIT64 * np.abs(gradient.values)
    for direction, estimate in found.directions:
        if not (np.isfinite(estimate.value) and np.isfinite(estimate.error)):
            continue
        along = float(np.sum(direction * gradient.values))
        bound = float(np.sum(np.abs(direction) * (gradient.errors + summing)))
        compared += 1
        contradicted |= abs(estimate.value - along) > ERRORS * estimate.error + bound
    return contradicted, compared


def judge_differences(name: str, found: Differences, exact: Exact) -> tuple[Finding, bool]:
    """The verdict on finite differences, and whether they contradict the reference.

    They contradict it where the two are further apart than both error estimates allow, away from kinks.
    """
    shape = exact.values.shape
    if exact.values.size == 0:
        reason = "the input is empty: there is nothing to differentiate"
        return Finding(CANDIDATE, name, Verdict.OK, reason, 0.0, 0.0, 0.0, 0.0, dtype="float64", shape=shape), False
    seen = _compare(found, exact)
    facts: dict[str, Any] = {"dtype": "float64", "shape": shape, "compared": int(seen.usable.sum())}
    if seen.nothing:
        reason = f"nothing could be compared ({found.description}): {KINKS}"
        return undecided(CANDIDATE, name, reason, **facts), False
    if seen.usable.any():
        index, value, reference = _at(seen.worst, found, exact)
        facts |= {
            "rounding_error": float(seen.gap.max()),
            "bound": float(seen.allowance[seen.worst]),
            "error_ulps": count_ulps(abs(value - reference), reference, UNIT64),
            "worst": Worst(index, value, float("nan"), reference),
        }
    if seen.contradiction:
        reason = f"they contradict the traced program beyond their own error estimate ({found.description})"
        return undecided(CANDIDATE, name, reason, **facts), True
    reason = f"they agree within their own error estimate ({found.description})"
    skipped = int((~seen.usable[found.sampled]).sum())
    if skipped:
        return undecided(CANDIDATE, name, f"{reason}; {skipped} could not be compared: {KINKS}", **facts), False
    near = seen.gap <= ATOL + RTOL * np.abs(exact.values.reshape(-1))
    verdict = Verdict.OK if near[seen.usable].all() else Verdict.ROUNDING
    return Finding(CANDIDATE, name, verdict, reason, **facts), False


def report_differences(name: str, found: Differences, why: str) -> Finding:
    """What finite differences found where there is no reference to judge them by."""
    size, usable = found.values.size, np.isfinite(found.values) & np.isfinite(found.errors)
    facts: dict[str, Any] = {"dtype": "float64", "shape": found.values.shape, "compared": int(usable.sum())}
    if not usable.any():
        said = f"they say nothing ({found.description}): {KINKS}" if size else "the input is empty"
        return undecided(CANDIDATE, name, f"{why}; {said}", **facts)
    index = tuple(map(int, np.unravel_index(np.argmax(np.where(usable, found.errors, -1.0)), found.values.shape)))
    value, error = float(found.values[index]), float(found.errors[index])
    said = f"they were taken all the same ({found.description}), to within {error:.1e} by their own estimate"
    facts |= {"bound": error, "worst": Worst(index, value, float("nan"), float("nan"))}
    return undecided(CANDIDATE, name, f"{why}; {said}", **facts)


def compare_with_differences(
    candidate: str, name: str, computed: Floats, intended: Floats | None, dtype: str, found: Differences, why: str
) -> Finding:
    """What finite differences say of a candidate where there is no reference: never enough for a pass.

    Args:
        candidate: ``"autograd"`` or ``"formula"``.
        name: the input.
        computed: the candidate's values as it ran.
        intended: its values in float64, which are compared if there are any.
        dtype: what it ran in.
        found: the differences.
        why: why there is no reference.
    """
    gradient = computed if intended is None else intended
    roundoff = UNIT64 if intended is not None or dtype == "float64" else float(np.spacing(np.float32(1)))
    scale = float(np.max(np.abs(gradient), initial=0.0, where=np.isfinite(gradient)))
    allowed = np.full(gradient.shape, 64 * gradient.size * roundoff * scale)
    stand_in = Exact(gradient, allowed, np.zeros(gradient.shape, dtype=bool), allowed)
    seen = _compare(found, stand_in)
    facts: dict[str, Any] = {"dtype": dtype, "shape": gradient.shape, "compared": int(seen.usable.sum())}
    if seen.nothing:
        return undecided(candidate, name, f"{why}; finite differences have nothing to compare ({KINKS})", **facts)
    said = f"finite differences {'contradict it' if seen.contradiction else 'agree with it'} ({found.description})"
    if seen.usable.any():
        index, value, own = _at(seen.worst, found, stand_in)
        error = float(found.errors.reshape(-1)[seen.worst])
        place = f"{name}{list(index)}" if index else name
        said += f": at {place} they give {value:.10g} with an estimated error of {error:.1e}, it gives {own:.10g}"
        facts |= {"bound": float(seen.allowance[seen.worst])}
        facts |= {"worst": Worst(index, float(computed[index]), own if intended is not None else np.nan, np.nan)}
    return undecided(candidate, name, f"{why}; {said}", **facts)


def _at(flat: int, found: Differences, gradient: Exact) -> tuple[tuple[int, ...], float, float]:
    index = tuple(map(int, np.unravel_index(flat, found.values.shape)))
    return index, float(found.values[index]), float(gradient.values[index])
