"""How the half-precision kernels of a program work: in float32 until their end, or rounding on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from symcheck.arithmetic.kernels import ADDS_IN_HALF, ADDS_ROWS_IN_HALF, KEEPS_FLOAT32, ROUNDS_IN_HALF, ROWS_IN_HALF
from symcheck.program import Equation, Program, Scatter, Statement
from symcheck.widening import HALF, is_moved

__all__ = ["Habit", "half_habits", "rounds_on_the_way"]


@dataclass(frozen=True, slots=True)
class Habit:
    """How a half-precision kernel works.

    Attributes:
        dtype: what it reads or returns, ``"float16"`` or ``"bfloat16"``.
        rounds: whether it rounds after every operation that is no sum.
        adds: whether it adds in its dtype.
    """

    dtype: str
    rounds: bool
    adds: bool


def half_habits(program: Program) -> dict[str, Habit]:
    """How each kernel works that reads or returns half precision, by the names of its statements' results.

    A kernel is a run of statements of one operator and line.
    """
    found: dict[str, Habit] = {}
    for (operator, _), run in groupby(program.statements, key=lambda s: (s.operator, s.source)):
        statements = list(run)
        dtypes = {array.dtype for s in statements for array in (s.out, *s.arrays)} & HALF
        if dtypes:
            habit = _habit(min(dtypes), operator.rpartition(".")[0], statements)
            found |= {statement.out.name: habit for statement in statements}
    return found


def _habit(dtype: str, name: str, statements: Sequence[Statement]) -> Habit:
    if name in ADDS_IN_HALF or (name in ROWS_IN_HALF and any(map(_adds_rows, statements))):
        return Habit(dtype, True, True)
    if name in ROUNDS_IN_HALF:
        return Habit(dtype, True, False)
    several = any(s.out.dtype == "float32" and not is_moved(s) for s in statements)
    return Habit(dtype, several and name not in KEEPS_FLOAT32, False)


def rounds_on_the_way(statement: Statement, habit: Habit) -> bool:
    """Whether a half-precision kernel rounds to it after every operation of a statement."""
    if isinstance(statement, Scatter):  # adds into the tensor itself
        return True
    if isinstance(statement, Equation) and statement.summed:
        rows = statement.operator.rpartition(".")[0] in ADDS_ROWS_IN_HALF and _adds_rows(statement)
        return habit.adds or rows
    return habit.rounds


def _adds_rows(statement: Statement) -> bool:
    """Whether a statement sums over axes before the last: rows added to a buffer, rather than a row's elements."""
    if not isinstance(statement, Equation) or not statement.summed:
        return False
    return not any(read.axes[-1] in statement.summed for read in statement.reads if read.axes)
