"""The two readings of a program's inexact constants.

A literal such as 0.1 is a binary number as the program runs, and 1/10 as its author meant it. A formula is right under
either; the reading must be the same in the whole program, so it is a program of its own.

    reading A   the binary value
    reading B   the fraction with a denominator up to 4096 that rounds to it, else the shortest decimal that does

Literals of at most 27 significant bits are exact under both, unless they are a short decimal rounded to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.program import Array, Constant, Equation, Program

__all__ = ["as_meant", "half_meant", "inexact", "is_short", "perturbed"]

EXACT_BITS = 27  # significant bits up to which a literal is taken at its word
DENOMINATOR = 4096
DIGITS = 6  # of a decimal that float32 always keeps: a literal that needs more was not written as a float32 decimal
SINGLES = 2  # distinct values up to which an array holds constants, whatever they are, such as a root of 2
FEW = 64  # distinct values up to which an array is taken for constants that a person wrote, rather than data


def as_meant(program: Program) -> Program | None:
    """The program under reading B; None if both readings are the same."""
    if not inexact(program):
        return None
    return _with(program, lambda value, is_single: meant(value, is_single))


def perturbed(program: Program, factors: Callable[[float], Fraction]) -> Program:
    """The program with every inexact constant multiplied by a factor, drawn by its value."""
    return _with(program, lambda value, is_single: Fraction(value) * factors(value))


def half_meant(program: Program, factors: Callable[[float], Fraction]) -> Program:
    """Constants of few digits as a person meant them, and every other inexact one multiplied by a factor."""

    def read(value: float, is_single: bool) -> Fraction:
        return meant(value, is_single) if is_short(value, is_single) else Fraction(value) * factors(value)

    return _with(program, read)


def inexact(program: Program) -> frozenset[float]:
    """The values of the inexact constants."""
    found = {
        float(value)
        for statement in program.statements
        if isinstance(statement, Equation)
        for value in statement.constants
        if is_inexact(value, DIGITS)
    }
    for array, values in program.constants.items():
        if _is_written(array, values):
            found.update(value for value in np.unique(values).tolist() if is_inexact(value, _digits(array)))
    return frozenset(found)


def is_inexact(value: Constant, digits: int | None = None) -> bool:
    """Whether a constant has more digits than a person would write in binary.

    Args:
        value: the constant.
        digits: the longest decimal for which a float32 value is taken; None for any, as in a float32 tensor.
    """
    if not isinstance(value, float) or not np.isfinite(value):
        return False
    numerator = value.as_integer_ratio()[0]
    return (abs(numerator) // (numerator & -numerator or 1)).bit_length() > EXACT_BITS or _is_single_rounded(
        value, digits
    )


def _is_single_rounded(value: float, digits: int | None) -> bool:
    """Whether a float32 value is that of a short decimal or a small fraction it cannot hold, such as 0.1."""
    if _single(value) != value or Fraction(value).denominator <= DENOMINATOR:
        return False
    intended = meant(value, True)
    is_short = digits is None or _length(value, True) <= digits
    return intended != Fraction(value) and (is_short or intended.denominator <= DENOMINATOR)


@lru_cache(maxsize=65536)
def meant(value: float, is_single: bool) -> Fraction:
    """What a person who wrote this constant meant.

    Args:
        value: the binary value.
        is_single: whether it was rounded to float32, rather than to float64.
    """
    kind: Any = np.float32 if is_single and _single(value) == value else np.float64
    simple = Fraction(value).limit_denominator(DENOMINATOR)
    if float(kind(float(simple))) == value:
        return simple
    return Fraction(str(kind(value)) if kind is np.float64 else _decimal(value))


def _decimal(value: float) -> str:
    """The shortest decimal that rounds to a float32 value, such as 1e-01."""
    return str(np.format_float_scientific(np.float32(value), unique=True, trim="-"))


def _is_written(array: Array, values: NDArray[Any]) -> bool:
    """Whether a constant array may hold literals, such as a full one or the weights of a stencil."""
    if not array.is_real or values.size == 0 or values.dtype == object:
        return False
    distinct = np.unique(values[np.isfinite(values)].reshape(-1)[: 4 * FEW])
    if values.size > FEW and distinct.size > SINGLES:
        return False
    return distinct.size <= SINGLES or all(is_short(value, array.dtype != "float64") for value in distinct.tolist())


def is_short(value: float, is_single: bool) -> bool:
    """Whether a value is a small fraction or a decimal of few digits, as a person writes: data are neither."""
    intended = meant(value, is_single)
    return intended.denominator <= DENOMINATOR or _length(value, is_single) <= DIGITS


def _length(value: float, is_single: bool) -> int:
    text = _decimal(value) if is_single else np.format_float_scientific(value, unique=True, trim="-")
    return len(text.split("e")[0].strip("-").replace(".", ""))


def _digits(array: Array) -> int | None:
    """The longest decimal for which an array's float32 values are taken: any, if float32 is what held it."""
    return DIGITS if array.dtype == "float64" else None


def _single(value: float) -> float:
    """The nearest float32 value."""
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _with(program: Program, new: Callable[[float, bool], Fraction]) -> Program:
    def changed(value: Constant, digits: int | None) -> Constant:
        if not isinstance(value, float) or not is_inexact(value, digits):
            return value
        return new(value, _single(value) == value)

    statements = tuple(
        replace(statement, constants=tuple(changed(value, DIGITS) for value in statement.constants))
        if isinstance(statement, Equation) and statement.constants
        else statement
        for statement in program.statements
    )
    constants = {
        array: _fractions(values, partial(changed, digits=_digits(array))) if _is_written(array, values) else values
        for array, values in program.constants.items()
    }
    return Program(program.inputs, constants, statements, program.outputs, program.notes)


def _fractions(values: NDArray[Any], changed: Callable[[Constant], Constant]) -> NDArray[Any]:
    """The array with its inexact values replaced; as it is if there are none."""
    found = {value: changed(value) for value in np.unique(values).tolist()}
    if all(value is new for value, new in found.items()):
        return values
    out = np.empty(values.shape, dtype=object)
    out.reshape(-1)[:] = [found.get(value, value) for value in values.reshape(-1).tolist()]
    return out
