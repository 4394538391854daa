"""What a verdict by a candidate's own program rests on, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from symcheck.blame import Blame
from symcheck.certification import Resolved
from symcheck.findings import Verdict
from symcheck.limits import Limit
from symcheck.rounding import Rounded
from symcheck.separation import Separation

__all__ = ["Choice", "Errors", "Trial", "choose_by_sides", "errors_of", "round_to", "smallest_number"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Errors:
    """The two errors of one candidate by one input at every element: computed - exact = rounding + formula.

    Attributes:
        exact: the gradient, rounded to float64; float64 array of the input's shape, as are the others.
        formula: intended - exact, in exact arithmetic and then rounded: 0 where they are the same to within the
            radius of the balls, nan where either is undefined.
        rounding: computed - intended; nan where intended is undefined.
        bound: on |rounding|; inf where there is none.
    """

    exact: Floats
    formula: Floats
    rounding: Floats
    bound: Floats


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether some choice of slopes at the kinks makes a candidate the gradient.

    Attributes:
        verdict: NONSMOOTH if one does, FORMULA if none can, UNDECIDED if that is not known.
        text: the convention, or why none fits.
    """

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Everything that one verdict rests on; what is a function is asked only when it is needed.

    Attributes:
        candidate, input: as in `Finding`.
        computed: the candidate's values as it ran.
        dtype: what it came in.
        roundoff: the unit roundoff of the coarsest dtype on the way.
        separation: its program beside the gradient.
        exact: the gradient, its undefined and open elements resolved.
        mismatch: where its program fails at generic inputs nearby, or "".
        undefined_value: whether the function itself is undefined at this input.
        conditioning: the largest change of each exact element under moves of the data by one ulp.
        choose: explains the elements that depend on open decisions.
        intended_limit: what its program tends to where it is undefined.
        origin: the operator and source line that first gave an infinity or NaN, or "".
        rounded: how far rounding can have moved each element; None where that was not asked.
        blame: the operation that contributed most of the rounding of an element; None where that is not known.
        remarks: what else is known of a wrong gradient, such as where autograd was stopped.
        better: advice on a form that loses less, or "".
    """

    candidate: str
    input: str
    computed: Floats
    dtype: str
    roundoff: float
    separation: Separation
    exact: Resolved
    mismatch: str
    undefined_value: bool
    conditioning: Callable[[], Floats]
    choose: Callable[[], Choice]
    intended_limit: Callable[[], Limit | None]
    origin: Callable[[], str]
    rounded: Rounded | None
    blame: Callable[[tuple[int, ...]], Blame | None]
    remarks: Callable[[], str]
    better: Callable[[tuple[int, ...]], str]

    @property
    def bounds(self) -> Floats | None:
        """On the rounding error of each element; None where that was not asked."""
        return None if self.rounded is None else self.rounded.bounds


def errors_of(trial: Trial) -> Errors:
    """The errors of every element, apart."""
    s, e = trial.separation, trial.exact
    with np.errstate(invalid="ignore"):
        formula = np.where(e.limit | e.smooth, s.intended - e.values, s.difference)
        formula = np.where(np.abs(formula) <= np.where(e.limit | e.smooth, 4 * e.errors, s.radius), 0.0, formula)
        rounding = trial.computed - s.intended
    bound = np.full(rounding.shape, np.inf) if trial.bounds is None else np.array(trial.bounds)
    return Errors(np.array(e.values), formula, rounding, bound)


def round_to(values: Floats, dtype: str) -> Floats:
    """Float64 values rounded to a dtype of torch's."""
    if dtype == "float64":
        return values
    return np.asarray(torch.from_numpy(np.array(values)).to(getattr(torch, dtype)).to(torch.float64).numpy())


def smallest_number(dtype: str) -> float:
    """The smallest subnormal number of a dtype."""
    info = torch.finfo(getattr(torch, dtype))
    return float(info.smallest_normal * info.eps)


def choose_by_sides(intended: Floats, exact: Resolved, opened: Mask) -> Choice:
    """A choice at kinks that come from no comparison: whether each value lies among what the sides approach."""
    with np.errstate(invalid="ignore"):
        inside = np.abs(intended) <= np.maximum(np.abs(exact.low), np.abs(exact.high))
    if inside[opened].all():
        return Choice(Verdict.NONSMOOTH, "its value lies among those that the gradient approaches: not excluded")
    return Choice(Verdict.UNDECIDED, "its value lies beyond those that the gradient approaches from the sides tried")
