"""The factor by which a wrong gradient is off, where it is the same everywhere: the commonest slip, and its cure."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["advise_by_factor", "describe_factor"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

CLOSE = 1e-12  # a factor nearer to 1 than this is taken from the difference itself


def describe_factor(intended: Floats, exact: Floats, usable: Mask, difference: Floats | None = None) -> str:
    """The end of a sentence that names the factor; "" where there is none.

    Args:
        intended: the candidate.
        exact: the gradient.
        usable: the elements to look at.
        difference: intended - exact, where it is known better than from the two; optional.
    """
    ratio = _ratio(intended, exact, usable)
    if ratio is None:
        return ""
    if ratio == 0:
        return ": it is zero everywhere"
    if abs(ratio - 1) < CLOSE:
        small = _excess(exact, usable, difference)
        return f", by the factor {small} everywhere" if small else ""
    return f", by the factor {_nice(ratio)} everywhere"


def advise_by_factor(intended: Floats, exact: Floats, usable: Mask) -> str:
    """What to do about it."""
    ratio = _ratio(intended, exact, usable)
    if ratio is None or abs(ratio - 1) < CLOSE:
        return "compare it with report.gradients, element by element, from the worst one on"
    if ratio == 0:
        return "a path from the input to the output is missing"
    return f"multiply it by {_nice(1 / ratio)}"


def _ratio(intended: Floats, exact: Floats, usable: Mask) -> float | None:
    """intended / exact, where it is the same at every element."""
    used = usable & (np.abs(exact) > 1e-6 * np.max(np.abs(exact[usable]), initial=0.0)) & (exact != 0)
    if not used.any():
        return None
    ratios = intended[used] / exact[used]
    ratio = float(np.median(ratios))
    resolution = abs(ratio - 1) * 1e-3  # how well the elements must agree on it
    rest = np.abs(intended - ratio * exact)[usable] <= resolution * np.max(np.abs(exact[used]))
    return ratio if rest.all() and np.ptp(ratios) <= resolution else None


def _excess(exact: Floats, usable: Mask, difference: Floats | None) -> str | None:
    """A factor too close to 1 for float64, from the difference itself."""
    if difference is None or difference[usable & (exact == 0)].any():
        return None
    used = usable & (exact != 0)
    parts = difference[used] / exact[used]
    part = float(np.median(parts)) if parts.size else 0.0
    if part == 0 or np.ptp(parts) > 1e-3 * abs(part):
        return None
    return f"(1 {'+' if part > 0 else '-'} {abs(part):.3g})"


def _nice(value: float) -> str:
    """A factor as people write it: a fraction, 1 + a little, or a decimal."""
    near = Fraction(value).limit_denominator(4096)
    # Any number has a fraction of denominator q within 1 / q^2: one much closer is meant.
    close = min(1e-5, 1e-3 * abs(value - 1), 1e-3 / (near.denominator**2 * abs(value)))
    if near not in (0, 1) and abs(float(near) / value - 1) < close:
        return str(near)
    return f"(1 {'+' if value > 1 else '-'} {abs(value - 1):.3g})" if abs(value - 1) < 1e-3 else f"{value:.6g}"
