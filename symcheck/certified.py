"""The verdict on a candidate whose own program was compared with the exact gradient in ball arithmetic.

    computed - exact = (computed - intended) + (intended - exact) = rounding error + formula error

A formula is right where its formula error is zero, however large the rounding; the worst element decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.blame import Blame
from symcheck.evidence import Choice, Trial, round_to, smallest_number
from symcheck.factors import advise_by_factor, describe_factor
from symcheck.findings import Finding, Verdict, Worst
from symcheck.judgement import ATOL, BOUNDARY, INFINITE, RTOL, count_ulps

__all__ = ["judge_certified"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


def judge_certified(trial: Trial) -> Finding:
    """The verdict on one candidate by one input."""
    with np.errstate(invalid="ignore", over="ignore"):
        if trial.computed.size == 0:
            reason = "the input is empty: there is nothing to differentiate"
            return Finding(trial.candidate, trial.input, Verdict.OK, reason, 0.0, 0.0, 0.0, 0.0, dtype=trial.dtype)
        parts = _sort(trial)
        return (
            _convicted(trial, parts)
            or _undefined(trial, parts)
            or _undecided(trial, parts)
            or _unstable(trial, parts)
            or _at_kinks(trial, parts)
            or _passed(trial, parts)
        )


@dataclass(slots=True, eq=False)
class _Parts:
    """The elements by what is to be said of them."""

    wrong: Mask  # the intended value is not the exact one
    open: Mask  # depends on open decisions, and is not plainly right
    undecided: dict[str, Mask]  # by the reason
    nonfinite: Mask  # computed is NaN or infinite where the exact gradient has a finite value
    known: Mask  # has an exact value to compare with
    choice: Choice | None = None


def _sort(trial: Trial) -> _Parts:
    s, e, c = trial.separation, trial.exact, trial.computed
    intended = np.isfinite(s.intended)
    kink = e.open | e.kink
    known = np.isfinite(e.values) & ~kink
    by_limit = known & (e.limit | e.smooth)
    near = np.abs(s.intended - e.values) <= 4 * e.errors + 2.0**-40 * np.abs(e.values)
    wrong = (known & ~by_limit & s.apart) | (by_limit & ~e.smooth & intended & ~near)
    opened = (kink | (e.smooth & ~near)) & ~e.infinite
    # At a kink NaN is no slope; where an infinite slope is asked for, it is no answer either.
    nonfinite = ~np.isfinite(c) & (known | kink) & ~_is_rounded(c, e.values, trial.dtype)
    undecided = {INFINITE: ~np.isfinite(e.values) & ~kink & ~e.undefined & ~e.infinite}
    loose = known & ~by_limit & s.loose & ~s.apart
    undecided[f"ball arithmetic is too coarse at {s.bits} bits"] = loose
    lost = known & ~intended & np.isfinite(c)
    if lost.any():
        limit = trial.intended_limit()
        settled = np.zeros(c.shape, dtype=bool)
        if limit is not None:
            settled = np.abs(limit.values - e.values) <= 2.0**-38 * np.abs(e.values) + 4 * e.errors
        undecided["its own program is undefined"] = lost & ~settled
    infinite = e.infinite & ~((c == e.values) | (np.isinf(c) & np.isnan(e.values)))
    undecided["the exact gradient is infinite and the candidate is not"] = infinite & np.isfinite(c)
    nonfinite |= infinite & np.isnan(c)
    return _Parts(wrong, opened & ~nonfinite, undecided, nonfinite, known | opened)


def _is_rounded(computed: Floats, exact: Floats, dtype: str) -> Mask:
    """Where an infinite value is what the exact one rounds to in its dtype."""
    return np.asarray((computed == round_to(exact, dtype)) & np.isinf(computed))


# -- the verdicts, from worst to best -----------------------------------------------------------------------------


def _convicted(trial: Trial, parts: _Parts) -> Finding | None:
    s, e = trial.separation, trial.exact
    if parts.wrong.any():
        count, size = int(parts.wrong.sum()), parts.wrong.size
        by_limit = bool((parts.wrong & e.limit).any()) and not bool((parts.wrong & ~e.limit).any())
        how = "by the gradient's limit there" if by_limit else f"proved by disjoint balls at {s.bits} bits"
        usable = np.isfinite(s.intended) & np.isfinite(e.values) & ~e.open & ~e.kink
        factor = describe_factor(s.intended, e.values, usable, s.difference)
        reason = f"{count} of {size} elements are wrong{factor}; {how}"
        return _finding(
            trial,
            parts,
            Verdict.FORMULA,
            _with(reason, trial.remarks()),
            parts.wrong,
            advise_by_factor(s.intended, e.values, usable),
        )
    if trial.mismatch:
        reason = f"it is the gradient at this input only: {trial.mismatch}, proved by disjoint balls"
        advice = "what it leaves out is hidden here, as by a weight of 1 or a zero; try it at random inputs"
        return _finding(trial, parts, Verdict.FORMULA, _with(reason, trial.remarks()), parts.known, advice)
    if parts.open.any():
        parts.choice = trial.choose()
        if parts.choice.verdict is Verdict.FORMULA:
            reason = f"it is not the gradient at a kink: {parts.choice.text}"
            return _finding(trial, parts, Verdict.FORMULA, _with(reason, trial.remarks()), parts.open)
    return None


def _undefined(trial: Trial, parts: _Parts) -> Finding | None:
    undefined = trial.exact.undefined
    if not undefined.any() or not trial.undefined_value:
        return None
    reason = f"the function itself is undefined at this input, and so is its gradient at {_count(undefined)}"
    return _finding(trial, parts, Verdict.OTHER, reason, undefined, "check it where the function has a value")


def _undecided(trial: Trial, parts: _Parts) -> Finding | None:
    reasons = {**parts.undecided, "the exact gradient is defined nowhere nearby": trial.exact.undefined}
    if parts.choice is not None and parts.choice.verdict is Verdict.UNDECIDED:
        reasons[f"{BOUNDARY.rstrip(',')}, and {parts.choice.text},"] = parts.open
    left_out = tuple((reason, int(mask.sum())) for reason, mask in reasons.items() if mask.any())
    if not left_out:
        return None
    barred = np.logical_or.reduce(list(reasons.values()))
    reason = "; ".join(f"{why} at {count} of {barred.size} elements" for why, count in left_out)
    found = _finding(trial, parts, Verdict.UNDECIDED, reason, barred)
    return replace(found, compared=barred.size - int(barred.sum()), left_out=left_out)


def _unstable(trial: Trial, parts: _Parts) -> Finding | None:
    if parts.nonfinite.any():
        kind = "not NaN" if (parts.nonfinite & trial.exact.infinite).any() else "finite"
        origin = trial.origin()
        reason = (
            f"it returns NaN or infinity at {_count(parts.nonfinite)}, "
            f"where the exact gradient is {kind}{f'; first at {origin}' if origin else ''}"
        )
        found = _finding(
            trial,
            parts,
            Verdict.INSTABILITY,
            reason,
            parts.nonfinite,
            "mask the inputs before the operator that gives it, not its result after",
        )
        return replace(found, operation=origin)
    lost = _digits_lost(trial, parts)
    if not lost.any():
        return None
    if trial.rounded is not None and trial.rounded.open[lost].all():
        # The program may decide differently in floating point than in exact arithmetic, which the bound covers.
        reason = f"rounding may decide a branch otherwise than exact arithmetic, at {_count(lost)}: a kink is near"
        return _finding(trial, parts, Verdict.NONSMOOTH, _with(_right(trial), reason), lost)
    where = _worst(trial, lost)
    blame = trial.blame(where)
    value = abs(float(trial.exact.values[where]))
    error = abs(float(trial.computed[where]) - float(trial.exact.values[where]))
    bits = -np.log2(trial.roundoff) + min(0.0, float(np.log2(error / value))) if value else -np.log2(trial.roundoff)
    reason = (
        f"rounding leaves fewer than a third of the bits at {_count(lost)}: "
        f"{bits:.0f} of {-np.log2(trial.roundoff):.0f} are lost at the worst, needlessly"
    )
    found = _finding(trial, parts, Verdict.INSTABILITY, _with(reason, _said(blame)), lost, trial.better(where))
    return replace(found, operation="" if blame is None else blame.operation)


def _digits_lost(trial: Trial, parts: _Parts) -> Mask:
    """Where error > M / T and error > T max(S, u |exact|): docs/design.md, verdicts."""
    e = trial.exact
    usable = np.isfinite(e.values) & np.isfinite(trial.computed) & ~e.open & ~e.kink & ~e.smooth
    largest = float(np.max(np.abs(e.values), initial=0.0, where=usable))
    error = np.where(usable, np.abs(trial.computed - e.values), 0.0)
    third = 2.0 ** (-np.log2(trial.roundoff) / 3)
    smallest = smallest_number(trial.dtype)  # a gradient below it cannot be held: 0 is then its right rounding
    suspect = (
        (error > smallest)
        & (error > largest / third)
        & (error > third * trial.roundoff * np.abs(e.values))
        & (largest > 0)
    )
    return np.asarray(suspect & (error > third * trial.conditioning()) if suspect.any() else suspect)


def _at_kinks(trial: Trial, parts: _Parts) -> Finding | None:
    infinite = trial.exact.infinite
    if parts.open.any() and parts.choice is not None:
        remark = ""
        if (trial.exact.smooth & parts.open).any():
            where = _worst(trial, trial.exact.smooth & parts.open)
            remark = f"the function is smooth here, its true derivative is {float(trial.exact.values[where]):.6g}"
        reason = f"at a kink, at {_count(parts.open)}: {parts.choice.text}"
        return _finding(trial, parts, Verdict.NONSMOOTH, _with(reason, remark), parts.open)
    if infinite.any():
        reason = f"the derivative is infinite, and so is the candidate's, at {_count(infinite)}"
        return _finding(trial, parts, Verdict.NONSMOOTH, reason, infinite)
    return None


def _passed(trial: Trial, parts: _Parts) -> Finding:
    exact = round_to(trial.exact.values, trial.dtype)
    error = np.abs(trial.computed - exact)
    usual = (error <= ATOL + RTOL * np.abs(exact)) | (trial.computed == exact)
    everywhere = np.ones(usual.shape, dtype=bool)
    if usual.all():
        return _finding(trial, parts, Verdict.OK, _right(trial), everywhere)
    reason = f"{_right(trial)}; torch.allclose would reject {int((~usual).sum())} of {usual.size} elements"
    blame = trial.blame(_worst(trial, ~usual))
    advice = _with(_tolerance(trial, error), trial.better(_worst(trial, ~usual)))
    found = _finding(trial, parts, Verdict.ROUNDING, _with(reason, _said(blame)), everywhere, advice)
    return replace(found, operation="" if blame is None else blame.operation)


def _said(blame: Blame | None) -> str:
    return "" if blame is None else str(blame)


def _right(trial: Trial) -> str:
    s = trial.separation
    if s.same:
        return "the formula is right: its program is the exact gradient's, by algebra"
    if s.sampled.any():
        return "the formula is right to the precision of its constants, which was sampled and not proved"
    compared = np.isfinite(s.formula_error) & ~trial.exact.limit & ~trial.exact.smooth & ~trial.exact.open
    largest = float(np.max(s.formula_error, initial=0.0, where=compared))
    limit = ", by its limit where it is undefined" if trial.exact.limit.any() else ""
    return (
        f"the formula is right: in exact arithmetic it is the gradient to within {largest:.1e} ({s.bits} bits){limit}"
    )


def _tolerance(trial: Trial, error: Floats) -> str:
    from_bound = trial.bounds is not None and bool(np.isfinite(trial.bounds).all())
    largest = float(np.max(trial.bounds)) if from_bound and trial.bounds is not None else float(np.max(error))
    covers = "bounds all rounding at this input" if from_bound else "covers what was seen at this input"
    return f"accept it with rtol=0, atol={_round_up(largest)}, which {covers}"


# -- the evidence -------------------------------------------------------------------------------------------------


def _finding(trial: Trial, parts: _Parts, verdict: Verdict, reason: str, among: Mask, advice: str = "") -> Finding:
    s, e, c = trial.separation, trial.exact, trial.computed
    index = _worst(trial, among)
    value = float(e.values[index])
    off = np.where(np.isfinite(s.formula_error), s.formula_error, np.abs(s.intended - e.values))
    off = np.where((np.abs(s.difference) <= s.radius) & ~s.loose, 0.0, off)  # the reason names the radius
    if e.limit.any() or e.smooth.any():
        off = np.where(e.limit | e.smooth, np.maximum(np.abs(s.intended - e.values) - 4 * e.errors, 0.0), off)
    rounding = np.abs(c - np.where(np.isfinite(s.intended), s.intended, e.values))
    beyond = _beyond_bound(trial, rounding)
    return Finding(
        trial.candidate,
        trial.input,
        verdict,
        _with(reason, beyond),
        formula_error=_largest(off),
        rounding_error=_largest(rounding),
        bound=float(trial.bounds[index]) if trial.bounds is not None else float("inf"),
        error_ulps=count_ulps(abs(float(c[index]) - value), value, trial.roundoff),
        worst=Worst(index, float(c[index]), float(s.intended[index]), value),
        advice=advice,
        dtype=trial.dtype,
        shape=c.shape,
        compared=c.size,
        tolerance=float(np.max(trial.bounds)) if trial.bounds is not None else float("nan"),
    )


def _beyond_bound(trial: Trial, rounding: Floats) -> str:
    """A note where a kernel is less accurate than its formula, or its constants than they are meant."""
    if trial.bounds is None:
        return ""
    resolution = 2.0**-51 * np.abs(trial.separation.intended)  # of float64, in which the values are held here
    beyond = np.isfinite(rounding) & (rounding > 1.001 * trial.bounds + np.nan_to_num(resolution))
    meant = trial.separation.meant
    if meant is not None and (beyond & meant).any():  # the bound is of the constants as they run
        moved = float(np.max(rounding[beyond & meant]))
        return f"it is right with its constants as meant; as they run they are rounded, which moves it by {moved:.1e}"
    if not beyond.any():
        return ""
    ratio = float(np.max(rounding[beyond] / np.maximum(trial.bounds[beyond], 5e-324)))
    return f"a kernel is less accurate than its formula: rounding exceeds its bound {min(ratio, 1e300):.2g}-fold"


def _worst(trial: Trial, among: Mask) -> tuple[int, ...]:
    """The index of the element, among some, that is furthest off; those that cannot be compared come first."""
    distance = np.abs(trial.computed - trial.exact.values)
    apart = np.abs(trial.separation.intended - trial.exact.values)
    distance = np.fmax(distance, apart) if not among.all() else distance
    distance = np.where(np.isnan(distance), np.inf, distance)
    flat = int(np.argmax(np.where(among, distance, -1.0)))
    return tuple(int(place) for place in np.unravel_index(flat, among.shape))


def _largest(values: Floats) -> float:
    known = np.isfinite(values)
    return float(np.max(values, initial=0.0, where=known)) if known.any() else float("nan")


def _count(mask: Mask) -> str:
    return f"{int(mask.sum())} of {mask.size} elements"


def _with(reason: str, more: str) -> str:
    return f"{reason}; {more}" if more else reason


def _round_up(value: float) -> str:
    exponent = int(np.floor(np.log10(value))) if value > 0 else 0
    return f"{int(np.ceil(value / 10.0**exponent))}e{exponent:+03d}"
