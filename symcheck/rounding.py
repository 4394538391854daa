"""How far rounding can move what a program computed in its own dtypes: a running forward-error bound.

Every statement is charged as the kernel that ran it: in its dtype, or in float32 where that is narrower, by the ulps of
torch's own functions; half precision rounds once more where a tensor is kept. Sums are bounded in any order, literals
are off by one rounding to the dtype, and where a decision is open both branches are covered.

Reference:
    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1-3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.arithmetic.formats import PRECISIONS, Format, Precision, working, working_in
from symcheck.arithmetic.kernels import FURTHER, kernel_format
from symcheck.evaluation import Values, evaluate, evaluate_statement
from symcheck.habits import Habit, half_habits, rounds_on_the_way
from symcheck.program import Array, Program, Selection, Statement
from symcheck.widening import is_moved

__all__ = ["Rounded", "local_roundings", "rounding_bounds"]

Floats: TypeAlias = NDArray[np.float64]

Visit: TypeAlias = "Callable[[Statement, Floats, Floats, Values], None]"

SECOND_ORDER = 64  # roundings of one statement that may act on its operands' errors


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """One output of a program, free of rounding, and how far rounding can have moved it.

    Attributes:
        values: the program in exact arithmetic, to the accuracy of float64; the output's shape.
        bounds: on |computed - exact|, in the output's own unit; inf where there is no bound.
        open: where rounding may make a decision fall differently; the bound covers both branches.
    """

    values: Floats
    bounds: Floats
    open: NDArray[np.bool_]


def rounding_bounds(program: Program, given: Mapping[str, NDArray[np.generic]]) -> list[Rounded]:
    """Bound how far rounding can move each output of a traced program from its exact value.

    For every element |computed - exact| <= bound, where `computed` is what torch returned and `exact` the same program
    in exact arithmetic, provided that each kernel keeps to its entry in the table of ulps.

    Args:
        program: the candidate's own, with the dtypes that torch held every array in.
        given: one array per input, by name, shape as declared; read as exact binary numbers.

    Returns:
        One for each real output, in order.

    Raises:
        Misuse: an input is missing or has another shape than declared.
    """
    step = partial(_run_kernel, half_habits(program))
    outputs = evaluate(program, given, _KernelBound(), moving=(), step=step)
    pairs = zip(program.outputs, outputs, strict=True)
    return [_rounded(value) for array, value in pairs if array.is_real]


def local_roundings(program: Program, given: Mapping[str, NDArray[np.generic]], visit: Visit) -> None:
    """Show `visit` every real statement with its value, how far its own kernel may be off, and the values it read."""
    habits = half_habits(program)

    def step(statement: Statement, values: Values, numbers: Any) -> Any:
        held = {array.name: numbers.hold(values[array.name]) for array in statement.arrays}
        value = _run_kernel(habits, statement, held, numbers)
        if statement.out.is_real:
            error = np.zeros(()) if value.error is None else value.error
            read = {name: part.value for name, part in held.items()}
            visit(statement, value.value, np.broadcast_to(error, value.value.shape), read)
        return value

    evaluate(program, given, _KernelBound(), moving=(), step=step)


def _rounded(value: Bounded) -> Rounded:
    error = np.zeros(()) if value.error is None else value.error
    bounds = np.broadcast_to(error, value.value.shape)
    known = np.isfinite(value.value) & np.isfinite(bounds)
    opened = np.broadcast_to(False if value.open is None else value.open, value.value.shape)
    return Rounded(np.array(value.value, dtype=np.float64), np.where(known, bounds, np.inf), opened)


class _KernelBound(Bound):
    """The number system of bounds on kernels: a literal that its dtype cannot hold is off by one rounding."""

    def constant(self, value: Any) -> Any:
        plain = super().constant(value)
        held = working().held
        if isinstance(value, float) and not np.isfinite(value):
            return plain
        if _is_exact(Fraction(value), held):
            return plain
        return Bounded(np.asarray(float(value)), np.asarray(held.unit * abs(float(value)) + held.tiny))


def _is_exact(value: Fraction, held: Precision) -> bool:
    """Whether a literal is the same number in a dtype, under either reading of it: see DESIGN on constants."""
    odd = value.numerator
    while odd and odd % 2 == 0:
        odd //= 2
    binary = value.denominator & (value.denominator - 1) == 0
    return binary and abs(odd).bit_length() <= min(held.digits, 27) and abs(value) <= held.largest


def _run_kernel(habits: Mapping[str, Habit], statement: Statement, values: Values, numbers: Any) -> Any:
    form = _format_of(statement, habits.get(statement.out.name))
    with working_in(form):
        read = {array.name: _as_read(values[array.name], array, form) for array in statement.arrays}
        if isinstance(statement, Selection) and statement.rule.startswith("argsort"):  # ties fall as they may
            read[statement.array.name] = replace(read[statement.array.name], active=True)
        value = evaluate_statement(statement, read, numbers)
    if not statement.out.is_real:
        return value
    further = FURTHER.get(statement.operator.rpartition(".")[0], 0)
    return _kept(_cast(value, further * form.unit, 0.0) if further else value, statement, form)


def _format_of(statement: Statement, habit: Habit | None) -> Format:
    """The format of the kernel that ran a statement; of one that decides, by the widest of what it reads."""
    dtype = statement.out.dtype
    if not statement.out.is_real:
        real = [array.dtype for array in statement.arrays if array.is_real]
        dtype = max(real, key=lambda name: PRECISIONS[name].digits, default="float64")
    form = kernel_format(dtype, statement.operator)
    if habit is None or dtype == "float64":
        return form
    held = PRECISIONS[habit.dtype]
    if rounds_on_the_way(statement, habit):
        return replace(form, unit=held.unit, tiny=held.tiny, lost=held.normal, held=held)
    return replace(form, held=held) if habit.rounds else form  # a sum in float32, kept in half precision


def _as_read(value: Bounded, array: Array, form: Format) -> Bounded:
    """A value as the kernel reads it: cast where it is wider than what the kernel computes in."""
    wider = array.is_real and PRECISIONS[array.dtype].unit < form.unit
    large = not array.is_real and value.value.size and np.abs(value.value).max() > 1 / form.unit
    if not (wider or large):
        return value
    return _cast(value, form.unit, form.tiny)


def _kept(value: Bounded, statement: Statement, form: Format) -> Bounded:
    """The result as a tensor of its dtype."""
    held = form.held
    error = value.error
    if error is not None:
        error = error * (1 + SECOND_ORDER * form.unit)
        value = replace(value, error=error)
    if held.unit > form.unit and not is_moved(statement):
        value = _cast(value, held.unit, held.tiny)
    size = np.abs(value.value) if value.error is None else np.abs(value.value) + value.error
    over = (size > held.largest) & np.isfinite(value.value)
    if not over.any():
        return value
    error = np.zeros(()) if value.error is None else value.error
    return replace(value, error=np.where(over, np.inf, error))


def _cast(value: Bounded, unit: float, tiny: float) -> Bounded:
    size = np.where(np.isfinite(value.value), np.abs(value.value), 0.0)
    if value.error is None:
        error: Any = unit * size + tiny * (size > 0)
    else:
        error = value.error + unit * (size + value.error) + tiny * ((size > 0) | (value.error > 0))
    return replace(value, error=error)
