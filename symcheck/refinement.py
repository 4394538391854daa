"""Sharpening a reference in balls, where its float64 bound says too little.

A running bound grows with every layer, whatever the rounding does; balls grow as fast, from a smaller start.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray
from sympy.core.relational import Relational
from sympy.logic.boolalg import BooleanFunction

from symcheck.arithmetic.ball import Ball, enclosures, working_precision
from symcheck.arithmetic.factoring import factor
from symcheck.evaluation import evaluate
from symcheck.program import Equation, Program

__all__ = ["ball_seconds", "evaluate_sharply"]

Floats: TypeAlias = NDArray[np.float64]

PRECISIONS = (128, 256, 512, 1024)  # bits, tried until every radius is below the rounding of float64
SHARP = 2.0**-60  # of a tensor's largest element
# Seconds: for one operation on one element, by its kind; for one term of a contraction and one entry of its matrices.
FUNCTION, COMPARISON, ARITHMETIC, MOVE = 1.2e-6, 0.7e-6, 0.08e-6, 0.05e-6
TERM, ENTRY = 6e-9, 0.3e-6


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
        _equation_seconds(statement) if isinstance(statement, Equation) else statement.out.size * MOVE
        for statement in program.statements
    )


def _equation_seconds(equation: Equation) -> float:
    factors = factor(equation.body, tuple(read.axes for read in equation.reads), len(equation.constants))
    grids = [prod(equation.sizes[axis] for axis in part.axes) for part in factors]
    apart = sum(grid * _body_seconds(part.body) for grid, part in zip(grids, factors, strict=True) if not part.is_read)
    everything = prod(equation.sizes)
    if len(factors) > 1 and equation.summed:
        return apart + everything * TERM + (sum(grids) + equation.out.size) * ENTRY
    return apart + everything * ARITHMETIC


@lru_cache(maxsize=65536)
def _body_seconds(body: sp.Expr) -> float:
    """For one element: what each node of the expression costs."""
    total = MOVE
    for node in sp.preorder_traversal(body):
        if isinstance(node, sp.Piecewise | Relational | BooleanFunction):
            total += COMPARISON
        elif isinstance(node, sp.Function) or (isinstance(node, sp.Pow) and not node.exp.is_Integer):
            total += FUNCTION
        elif isinstance(node, sp.Add | sp.Mul | sp.Pow):
            total += ARITHMETIC * len(node.args)
    return total
