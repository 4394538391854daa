"""From evidence to a verdict: is what a candidate computed off by rounding, or by its formula?

`exact` is the derived gradient in float64 with a running bound; `intended` is the candidate re-run in float64. By the
precision ladder, rounding shrinks with the unit roundoff from one dtype to the next while a formula error stays, so

    |intended - exact| > bound of exact + LADDER * (u64 / u_low) * (largest error of the low run + u_low * scale)

is too much for rounding. A conviction must repeat at generic inputs nearby, where no luck of the digits is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.factors import advise_by_factor, describe_factor
from symcheck.findings import Finding, Verdict, Worst
from symcheck.reference import Exact

__all__ = [
    "ATOL",
    "BOUNDARY",
    "COMPUTED_INFINITE",
    "INFINITE",
    "RTOL",
    "UNIT64",
    "Evidence",
    "Neighbour",
    "Rung",
    "count_ulps",
    "judge",
    "undecided",
]

Floats: TypeAlias = NDArray[np.float64]

LADDER = 64.0  # by how much the low run may have been lucky
UNIT64 = 2.0**-53
ZERO = 2.0**-30  # of the running bound: a tensor whose largest element is smaller is zero but for rounding
USEFUL = 1e-3  # a reference known less well than this, relative to its largest element, decides nothing
STEADY = 1 / 8  # by what part of itself a formula's error may change from one input to one close to it
FLOAT32 = 2.0**-22  # by how much of the largest element a result that was rounded to float32 may be off
RTOL, ATOL = 1e-5, 1e-8  # torch.allclose at its defaults

# Why an element is left out though nothing is amiss with the comparison: the point itself is the cause.
BOUNDARY = "there is a branch boundary, where the derivative may jump,"
INFINITE = "the reference is not finite"
COMPUTED_INFINITE = "the candidate is not finite, and the exact gradient is,"


@dataclass(frozen=True, slots=True, eq=False)
class Rung:
    """One step of the ladder: the candidate in a low and in a high precision, beside the reference.

    Attributes:
        low: the candidate as computed in the lower precision; None if it could not run.
        low_exact: the reference at the input that the low run had.
        low_roundoff: its unit roundoff.
        high: the candidate in float64; None if it could not run.
        exact: the reference at the input that the float64 run had.
    """

    low: Floats | None
    low_exact: Exact
    low_roundoff: float
    high: Floats | None
    exact: Exact

    def allowance(self) -> float | None:
        """What rounding may contribute to |high - exact|; None where the low run says nothing."""
        if self.low is None:
            return None
        known = np.isfinite(self.low) & np.isfinite(self.low_exact.values) & np.isfinite(self.low_exact.errors)
        if not known.any():
            return None
        scale = float(np.abs(self.low_exact.values[known]).max())
        error = float((np.abs(self.low - self.low_exact.values) + self.low_exact.errors)[known].max())
        return LADDER * UNIT64 / self.low_roundoff * (error + self.low_roundoff * scale)


@dataclass(frozen=True, slots=True, eq=False)
class Neighbour:
    """The candidate in float64 at an input nearby, beside the reference there.

    Attributes:
        values: the candidate; None if it could not run.
        exact: the reference.
        is_close: so near that a formula's error must be much the same; rounding's is not, even in float32.
    """

    values: Floats | None
    exact: Exact
    is_close: bool


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Everything that one verdict rests on.

    Attributes:
        candidate: ``"autograd"`` or ``"formula"``.
        input: the input's name.
        computed: the candidate's values as it ran.
        dtype: what it ran in.
        roundoff: the unit roundoff of that dtype.
        coarsest: the largest unit roundoff among the dtypes on the way from the inputs to the outputs.
        exact: the reference.
        intended: the candidate in float64; None if it could not be run so.
        rung: the ladder at this input, run only when needed.
        noise: what rounding may do to each element in float64, by jitter; measured only when needed.
        nearby: the candidate at generic inputs nearby, run only when needed.
        remarks: what else is known, such as where autograd was stopped; asked for only at a conviction.
        blocked: why no conviction may be made, such as constants that depend on the dtype; ``""`` if it may.
    """

    candidate: str
    input: str
    computed: Floats
    dtype: str
    roundoff: float
    coarsest: float
    exact: Exact
    intended: Floats | None
    rung: Callable[[], Rung]
    noise: Callable[[], Floats]
    nearby: Callable[[], Sequence[Neighbour]]
    remarks: Callable[[], str]
    blocked: str = ""


def undecided(candidate: str, name: str, reason: str, *, verdict: Verdict = Verdict.UNDECIDED, **facts: Any) -> Finding:
    """A finding without numbers: nothing could be compared, for the reason given."""
    return Finding(candidate, name, verdict, reason, **facts)


def judge(evidence: Evidence) -> Finding:
    """The verdict on one candidate by one input; the worst element decides."""
    with np.errstate(invalid="ignore"):  # infinities are barred, not compared
        return _judge(evidence)


def _judge(evidence: Evidence) -> Finding:
    exact, computed = evidence.exact, evidence.computed
    if computed.size == 0:
        return _finding(evidence, Verdict.OK, "the input is empty: there is nothing to differentiate", None)
    barred, reasons = _undecidable(evidence)
    intended = computed if evidence.intended is None else evidence.intended
    gap = np.where(barred, 0.0, np.abs(intended - exact.values))
    if (gap > exact.errors).any():
        convicted = _convicted(evidence, barred)
        if isinstance(convicted, Finding):
            return convicted
    if barred.any():
        reason = "; ".join(f"{why} at {count} of {computed.size} elements" for why, count in reasons)
        found = _finding(evidence, Verdict.UNDECIDED, reason, _worst(evidence, barred))
        return replace(found, compared=computed.size - int(barred.sum()), left_out=reasons)
    where = _worst(evidence, np.ones(computed.shape, dtype=bool))
    usual = np.abs(computed - exact.values) <= ATOL + RTOL * np.abs(exact.values)
    if usual.all():
        return _finding(evidence, Verdict.OK, _right(evidence), where)
    count = int((~usual).sum())
    atol = _round_up(float(np.abs(computed - exact.values).max()))
    return _finding(
        evidence,
        Verdict.ROUNDING,
        f"{_right(evidence)}; torch.allclose would reject {count} of {computed.size} elements",
        where,
        advice=f"accept it with atol={atol}, which covers this input",
    )


def _right(evidence: Evidence) -> str:
    resolution = float(np.max(evidence.exact.errors, initial=0.0))
    return f"the formula is right to within {resolution:.1e}, the accuracy of the float64 reference"


def _undecidable(evidence: Evidence) -> tuple[NDArray[np.bool_], tuple[tuple[str, int], ...]]:
    """Elements that float64 cannot decide; and why not, each counted for the first reason that holds."""
    exact, computed = evidence.exact, evidence.computed
    scale = float(np.max(np.abs(exact.values), initial=0.0, where=np.isfinite(exact.values)))
    known_badly = (exact.errors > USEFUL * scale) & (
        scale > np.max(exact.errors, initial=0.0, where=exact.errors < np.inf)
    )
    tests = [
        (exact.open, BOUNDARY),
        (~np.isfinite(exact.values), INFINITE),
        (~np.isfinite(computed), COMPUTED_INFINITE),
        (np.isinf(exact.errors), "the reference has no error bound"),
        (known_badly, "the float64 reference is too inaccurate"),
    ]
    if evidence.intended is not None:
        # Rounding may be all there is of a gradient that is zero: it is then as large as the running bound says.
        noise = np.where(scale <= ZERO * exact.running, exact.running, exact.errors)
        apart = np.abs(computed - evidence.intended) > np.maximum(
            scale * evidence.coarsest ** (1 / 3), noise * evidence.coarsest / UNIT64
        )
        tests.append(
            (
                ~np.isfinite(evidence.intended) | (apart & (scale > 0)),
                f"{evidence.candidate} differs between its own precision and float64 by more than two thirds of its "
                "digits, so that a decision may have fallen differently,",
            )
        )
    barred = np.zeros(computed.shape, dtype=bool)
    reasons = []
    for mask, reason in tests:
        count = int((mask & ~barred).sum())
        if count:
            reasons.append((reason, count))
        barred |= mask
    return barred, tuple(reasons)


def _convicted(evidence: Evidence, barred: NDArray[np.bool_]) -> Finding | None:
    """A conviction, or an abstention where there was reason for one; None if rounding explains all."""
    rung = evidence.rung()
    allowance = rung.allowance()
    if allowance is None or rung.high is None:
        return _finding(
            evidence,
            Verdict.UNDECIDED,
            f"{evidence.candidate} differs from the reference by more than its bound, and could not be run in a second "
            "precision that would tell rounding from a formula error",
            _worst(evidence, ~barred),
        )
    excess = _excess(rung.high, rung.exact, allowance) & ~barred
    if not excess.any():
        return None
    unsteady = excess & (np.abs(rung.high - rung.exact.values) <= evidence.noise())
    if (unsteady == excess).all():
        reason = (
            "it differs from the exact gradient, but by no more than rounding does to a backward that loses its digits "
            "here, so that a formula error cannot be told from it in float64"
        )
        return _finding(evidence, Verdict.UNDECIDED, reason, _worst(evidence, excess))
    excess &= ~unsteady
    where = _worst(evidence, excess)
    doubt = evidence.blocked or _doubt(rung, excess, evidence.nearby(), allowance)
    if doubt:
        return _finding(evidence, Verdict.UNDECIDED, f"it differs from the exact gradient here, but {doubt}", where)
    remarks = evidence.remarks()
    pair = (evidence.computed if evidence.intended is None else evidence.intended, evidence.exact.values, ~barred)
    reason = f"it is not the gradient: {int(excess.sum())} of {excess.size} elements are off by more than rounding"
    return _finding(
        evidence,
        Verdict.FORMULA,
        f"{reason}{describe_factor(*pair)}{f'; {remarks}' if remarks else ''}",
        where,
        advice=advise_by_factor(*pair),
    )


def _excess(values: Floats, exact: Exact, allowance: float) -> NDArray[np.bool_]:
    """Where a float64 run differs from the reference by more than rounding explains."""
    decidable = np.isfinite(values) & np.isfinite(exact.values) & ~exact.open
    return decidable & (np.abs(values - exact.values) > exact.errors + allowance)


def _doubt(rung: Rung, excess: NDArray[np.bool_], nearby: Sequence[Neighbour], allowance: float) -> str:
    """Why an error that is too large for rounding need not be the formula's; "" if it must be."""
    assert rung.high is not None
    error = rung.high - rung.exact.values
    noise = "by noise, as if something in it were computed in less than float64"
    scale = np.max(np.abs(rung.exact.values[excess]))
    if (rung.high == rung.high.astype(np.float32))[excess].all() and np.abs(error[excess]).max() <= FLOAT32 * scale:
        return noise
    if not nearby:
        return "there is no input nearby where it could be confirmed"
    for there in nearby:
        if there.values is None or not _excess(there.values, there.exact, allowance).any():
            return "not at inputs nearby"
        if there.is_close:
            usable = excess & np.isfinite(there.values) & np.isfinite(there.exact.values) & ~there.exact.open
            change = (there.values - there.exact.values - error)[usable]
            if not usable.any() or float(np.linalg.norm(change)) > STEADY * float(np.linalg.norm(error[usable])):
                return noise
    return ""


def _worst(evidence: Evidence, among: NDArray[np.bool_]) -> tuple[int, ...]:
    """The index of the element, among some, that is furthest off; those that cannot be compared come first."""
    distance = np.abs(evidence.computed - evidence.exact.values)
    if evidence.intended is not None and among.any() and not among.all():
        distance = np.maximum(distance, np.abs(evidence.intended - evidence.exact.values))
    distance = np.where(np.isnan(distance), np.inf, distance)
    flat = int(np.argmax(np.where(among, distance, -1.0)))
    return tuple(int(place) for place in np.unravel_index(flat, evidence.computed.shape))


def _finding(
    evidence: Evidence, verdict: Verdict, reason: str, index: tuple[int, ...] | None, advice: str = ""
) -> Finding:
    shape, dtype = evidence.computed.shape, evidence.dtype
    if index is None:
        return Finding(
            evidence.candidate, evidence.input, verdict, reason, 0.0, 0.0, 0.0, 0.0, None, "", advice, dtype, shape
        )
    exact = evidence.exact
    computed, value = float(evidence.computed[index]), float(exact.values[index])
    known = evidence.intended is not None
    intended = evidence.intended if evidence.intended is not None else evidence.computed
    usable = np.isfinite(intended) & np.isfinite(exact.values) & np.isfinite(evidence.computed)
    off = np.abs(intended - exact.values)
    formula_error = _largest(off, usable) if known or verdict is Verdict.FORMULA else np.nan
    rounding = np.abs(evidence.computed - (intended if known else exact.values))
    return Finding(
        evidence.candidate,
        evidence.input,
        verdict,
        reason,
        formula_error=formula_error,
        rounding_error=np.nan if verdict is Verdict.FORMULA and not known else _largest(rounding, usable),
        bound=float(exact.errors[index]),
        error_ulps=count_ulps(abs(computed - value), value, evidence.roundoff),
        worst=Worst(index, computed, float(intended[index]) if known else float("nan"), value),
        advice=advice,
        dtype=dtype,
        shape=shape,
        compared=evidence.computed.size,
    )


def _largest(values: Floats, where: NDArray[np.bool_]) -> float:
    return float(np.max(values, initial=0.0, where=where)) if where.any() else float("nan")


def count_ulps(error: float, value: float, roundoff: float) -> float:
    """An error in units in the last place of `value` in a dtype; nan at zero, which has none."""
    if error == 0:
        return 0.0
    if value == 0 or not np.isfinite(value):
        return float("nan")
    return float(error / (2 * roundoff * 2.0 ** np.floor(np.log2(abs(value)))))


def _round_up(value: float) -> str:
    exponent = int(np.floor(np.log10(value))) if value > 0 else 0
    return f"{int(np.ceil(value / 10.0**exponent))}e{exponent:+03d}"
