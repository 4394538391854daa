"""What a check finds: a verdict for each candidate and input, with its evidence, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Verdict", "Worst"]


class Verdict(Enum):
    """The judgement on one candidate gradient by one input. Its value says what it means.

    Members are ordered from worst to best: where several hold among the elements of a tensor, the first decides.
    """

    FORMULA = "the formula is wrong: in exact arithmetic it is not the gradient"
    OTHER = "not a function of its inputs here: nondeterministic, detached, undefined ..."
    UNDECIDED = "could not be decided, for the reason given; never counts as a pass"
    INSTABILITY = "the formula is right, and floating point makes it useless here"
    NONSMOOTH = "at a kink, with an admissible choice of slope"
    ROUNDING = "the formula is right; the difference is rounding, though a usual tolerance test would fail it"
    OK = "the formula is right, and a usual tolerance test passes"

    @property
    def severity(self) -> int:
        """Rank among the verdicts: 0 for OK, and the larger the worse."""
        return len(Verdict) - 1 - list(Verdict).index(self)


@dataclass(frozen=True, slots=True)
class Worst:
    """The element of a gradient where the candidate is furthest from the reference.

    Attributes:
        index: position in the input's shape; ``()`` for a scalar.
        computed: the candidate's value there, as it ran.
        intended: what its own program gives there in exact arithmetic; by the precision ladder, what it gives in
            float64; nan where neither is known.
        exact: the gradient there, by its limit where its formula is undefined; nan where it is not known. At a kink
            it is that of the side that the function's own comparisons take.
    """

    index: tuple[int, ...]
    computed: float
    intended: float
    exact: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one candidate's gradient by one input, and the evidence for it.

    Attributes:
        candidate: ``"autograd"``, ``"formula"`` or ``"finite differences"``.
        input: the input's name.
        verdict: the judgement.
        reason: one sentence: why this verdict.
        formula_error: largest |intended - exact| over the elements, in the gradient's own unit; nan if unknown. In
            balls an upper bound, and 0 where the two are one to within the radius of the balls.
        rounding_error: largest |computed - intended| over the elements where it is finite, in the gradient's own
            unit; nan if unknown.
        bound: on |computed - intended| at the worst element, in the same unit: how far rounding can move it, by the
            kernels of the candidate's own program; inf if there is none. By the precision ladder and of finite
            differences, what the error was judged against.
        error_ulps: |computed - exact| at the worst element, in units in the last place of the candidate's dtype.
        worst: that element; None where nothing was compared.
        operation: the operator and source line that the reason is about: the one that rounded most, or that first
            gave a NaN or infinity, or that has no meaning; ``""`` if there is none.
        advice: one sentence: what to do next; ``""`` if there is nothing to do.
        dtype: what the candidate computed in, such as ``"float32"``.
        shape: the input's shape.
        compared: how many of its elements were compared.
        left_out: why elements were not compared, and how many for each reason.
        tolerance: an absolute tolerance that any rounding of the candidate at this input meets: its largest bound over
            the elements, in the gradient's own unit; inf if there is none, nan if it was not computed.
    """

    candidate: str
    input: str
    verdict: Verdict
    reason: str
    formula_error: float = float("nan")
    rounding_error: float = float("nan")
    bound: float = float("inf")
    error_ulps: float = float("nan")
    worst: Worst | None = None
    operation: str = ""
    advice: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    compared: int = 0
    left_out: tuple[tuple[str, int], ...] = ()
    tolerance: float = float("nan")
