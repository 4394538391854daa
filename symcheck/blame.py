"""Which operation contributed most of the rounding error of one element: a first-order error analysis.

The local rounding of every statement, as its kernel ran it, is carried to the element by the adjoint of the
candidate's own program: contribution = sum over elements of |d output / d result| * |local rounding|.

Reference:
    Linnainmaa, Taylor expansion of the accumulated rounding error, BIT 16 (1976).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.arithmetic.double import Double
from symcheck.arithmetic.formats import PRECISIONS
from symcheck.building import Builder
from symcheck.derivation import derive
from symcheck.errors import SymcheckError
from symcheck.evaluation import Values, evaluate, evaluate_statement
from symcheck.program import Equation, Program, Statement
from symcheck.rounding import local_roundings
from symcheck.widening import is_moved

__all__ = ["Blame", "Cancellation", "blame"]

Floats: TypeAlias = NDArray[np.float64]

STATEMENTS = 4000  # above which a program is not analysed
CANCELS = 4.0  # terms this many times larger than their sum are said to cancel
TELLING = 3.0  # bits lost, below which a cancellation is not worth telling


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A sum whose terms nearly cancel.

    Attributes:
        operator: the traced operator.
        source: the user's line, or "".
        factor: sum of |terms| / |sum|, at the element that matters most.
    """

    operator: str
    source: str
    factor: float

    def __str__(self) -> str:
        return f"{_place(self.operator, self.source)}, whose terms are {self.factor:.1g} times their sum"


@dataclass(frozen=True, slots=True)
class Blame:
    """Where the rounding error of one element comes from, to first order.

    Attributes:
        operator: the traced operator whose own rounding contributed most.
        source: the user's line that it came from, or "".
        share: what part of all contributions is its.
        amplification: its contribution, in units of the element's own rounding.
        cancellation: the sum downstream, or the operator itself, that loses most digits; None if none cancels.
        bits_lost: log2 of the error in units of the element's own rounding: of the error that is given, else of the
            root of the sum of squared contributions.
    """

    operator: str
    source: str
    share: float
    amplification: float
    cancellation: Cancellation | None
    bits_lost: float

    @property
    def operation(self) -> str:
        """The operator and line that is to be changed: where digits are lost, else whose rounding is largest."""
        if self.cancellation is None or self.bits_lost < TELLING:
            return _place(self.operator, self.source)
        return _place(self.cancellation.operator, self.cancellation.source)

    def __str__(self) -> str:
        lost = f"{self.share:.0%} of the rounding is that of {_place(self.operator, self.source)}"
        if self.cancellation is None or self.bits_lost < TELLING:
            return lost
        return f"{lost}; digits are lost in {self.cancellation}"


def _place(operator: str, source: str) -> str:
    return " at ".join(part for part in (operator, source) if part)


def blame(
    program: Program,
    given: Mapping[str, NDArray[np.generic]],
    output: int,
    index: tuple[int, ...],
    *,
    error: float | None = None,
) -> Blame | None:
    """Name the operation that contributed most of the rounding error of one element of an output.

    Args:
        program: the candidate's own, as for `rounding_bounds`.
        given: its inputs.
        output: which of the program's outputs.
        index: the element.
        error: how far the computed element is off; None if that is not known.

    Returns:
        None where nothing rounds, the value is not finite, SymPy has no derivative, or the program is too long.
    """
    array = program.outputs[output]
    element, value = _element(program, array.name, int(np.ravel_multi_index(index, array.shape)) if index else 0)
    rounding = [s.out.name for s in element.statements if s.out.is_real and not is_moved(s)]
    if not rounding or len(element.statements) > STATEMENTS:
        return None
    try:
        slopes = _slopes(element, given, rounding)
    except SymcheckError:
        return None
    analysis = _Analysis(slopes)
    local_roundings(element, given, analysis.visit)
    total = analysis.value_of(value)
    return analysis.verdict(total, PRECISIONS[array.dtype].unit, error)


def _element(program: Program, name: str, flat: int) -> tuple[Program, str]:
    """The program of one element, as a scalar; and the scalar's name."""
    builder = Builder.extending(program, "element")
    array = next(a for a in program.outputs if a.name == name)
    out = builder.gather((array,), np.asarray(flat))
    return builder.program([out]), out.name


def _slopes(program: Program, given: Mapping[str, NDArray[np.generic]], names: Sequence[str]) -> dict[str, Floats]:
    """The derivative of a scalar program by every element of some of its results."""
    derived = derive(program, names, prefix="slope")
    inputs = {array.name for array in derived.inputs}
    seeds = {name: np.ones(()) for name in inputs if name.startswith("slope_cotangent")}
    values = evaluate(derived, {**given, **seeds}, Double())
    return dict(zip(names, values, strict=True))


class _Analysis:
    """Contributions and cancellations, gathered statement by statement."""

    def __init__(self, slopes: Mapping[str, Floats]) -> None:
        self.slopes = slopes
        self.values: dict[str, float] = {}
        self.parts: list[tuple[Statement, float, float]] = []  # contribution, the sum of its squares
        self.cancelled: list[tuple[float, float, Statement]] = []  # |slope| * sum of |terms|, the factor

    def visit(self, statement: Statement, value: Floats, error: Floats, values: Values) -> None:
        """Take one statement in: its value, its own rounding, and what it read."""
        if value.shape == ():
            self.values[statement.out.name] = float(value)
        slope = self.slopes.get(statement.out.name)
        if slope is None:
            return
        slope = np.abs(slope)
        carried = np.where(slope == 0, 0.0, slope * error)
        carried = np.where(np.isfinite(carried), carried, 0.0)
        self.parts.append((statement, float(carried.sum()), float((carried**2).sum())))
        if isinstance(statement, Equation) and (statement.summed or statement.body.has(sp.Add)):
            self._weigh(statement, value, slope, values)

    def _weigh(self, equation: Equation, value: Floats, slope: Floats, values: Values) -> None:
        sizes = evaluate_statement(_magnitudes(equation), values, Double())
        weight = np.where(np.isfinite(sizes * slope) & (value != 0), sizes * slope, 0.0)
        if weight.size and weight.max() > 0:
            place = int(np.argmax(weight))
            factor = float(sizes.reshape(-1)[place] / abs(value.reshape(-1)[place]))
            self.cancelled.append((float(weight.max()), factor, equation))

    def value_of(self, name: str) -> float:
        return self.values.get(name, float("nan"))

    def verdict(self, value: float, unit: float, error: float | None) -> Blame | None:
        total = sum(part for _, part, _ in self.parts)
        if not np.isfinite(value) or total == 0:
            return None
        groups: dict[tuple[str, str], float] = {}
        for statement, part, _ in self.parts:
            key = (statement.operator, statement.source)
            groups[key] = groups.get(key, 0.0) + part
        worst = max(groups, key=lambda key: groups[key])
        own = unit * abs(value) if value else float("inf")
        off = float(np.sqrt(sum(square for _, _, square in self.parts))) if error is None else error
        lost = max(0.0, float(np.log2(off / own))) if off and value else 0.0
        return Blame(*worst, groups[worst] / total, groups[worst] / own, self._cancellation(), lost)

    def _cancellation(self) -> Cancellation | None:
        lossy = [found for found in self.cancelled if found[1] >= CANCELS]
        if not lossy:
            return None
        _, factor, statement = max(lossy, key=lambda found: found[0])
        return Cancellation(statement.operator, statement.source, factor)


def _magnitudes(equation: Equation) -> Equation:
    """The equation of the sum of |terms|."""
    return Equation(equation.out, equation.sizes, _magnitude(equation.body), equation.reads, equation.constants)


@cache
def _magnitude(body: sp.Expr) -> sp.Expr:
    """A body with every sum replaced by that of its terms' magnitudes."""
    if isinstance(body, sp.Add):
        return sp.Add(*map(_magnitude, body.args), evaluate=False)
    if isinstance(body, sp.Mul):
        return sp.Mul(*map(_magnitude, body.args))
    if isinstance(body, sp.Pow) and body.exp.is_Integer and body.exp > 0:
        return _magnitude(body.base) ** body.exp
    if isinstance(body, sp.Piecewise):
        return sp.Piecewise(*((_magnitude(value), condition) for value, condition in body.args), evaluate=False)
    return sp.Abs(body)
