"""Sharpening a reference in balls, where its float64 bound says too little.

A running bound grows with every layer, whatever the rounding does; balls grow as fast, from a smaller start.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, enclosures, working_precision
from symcheck.arithmetic.factoring import factor
from symcheck.evaluation import evaluate
from symcheck.program import Equation, Program

__all__ = ["ball_seconds", "evaluate_sharply"]

Floats: TypeAlias = NDArray[np.float64]

PRECISIONS = (128, 256, 512, 1024)  # bits, tried until every radius is below the rounding of float64
SHARP = 2.0**-60  # of a tensor's largest element
MULTIPLICATION, CALL = 3e-8, 1e-6  # seconds for a term of a contraction and for an operation on one element


def evaluate_sharply(program: Program, inputs: Mapping[str, NDArray[np.generic]]) -> list[tuple[Floats, Floats]]:
    """Evaluate in balls, at a precision raised until they are as sharp as float64 can show.

    Returns:
        For each real output its values rounded to float64, and a bound on |value - exact|: nan and inf where a ball
        is not finite, and everywhere if a decision stays undecided at the highest precision.
    """
    results: list[tuple[Floats, Floats]] = []
    for bits in PRECISIONS:
        with working_precision(bits):
            Ball.undecided = 0
            balls = evaluate(program, inputs, Ball())
            results = [enclosures(value) for value, array in zip(balls, program.outputs, strict=True) if array.is_real]
        if Ball.undecided == 0 and all(_is_sharp(values, errors) for values, errors in results):
            return results
    if Ball.undecided:
        return [(np.full_like(values, np.nan), np.full_like(errors, np.inf)) for values, errors in results]
    return results


def _is_sharp(values: Floats, errors: Floats) -> bool:
    known = np.isfinite(errors)
    scale = np.max(np.abs(values), initial=0.0, where=known)
    return bool((errors[known] <= 2.0**-52 * np.abs(values[known]) + SHARP * scale).all())


def ball_seconds(program: Program) -> float:
    """About how long an evaluation in balls takes, on one core of a machine of 2025."""
    return sum(
        _equation_seconds(statement) if isinstance(statement, Equation) else statement.out.size * CALL
        for statement in program.statements
    )


def _equation_seconds(equation: Equation) -> float:
    factors = factor(equation.body, tuple(read.axes for read in equation.reads), len(equation.constants))
    apart = sum(
        prod(equation.sizes[axis] for axis in part.axes) * (1 + int(sp.count_ops(part.body))) * CALL
        for part in factors
        if not part.is_read
    )
    return apart + prod(equation.sizes) * (MULTIPLICATION if len(factors) > 1 and equation.summed else CALL)
