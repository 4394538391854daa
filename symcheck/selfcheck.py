"""Checking a derivation without any derivative: directional differences of the primal in ball arithmetic.

Two evaluations of the primal at x +- h d, with h = 2^-80 at 400 bits, give the directional derivative to about 2^-160
of relative truncation; the derived gradient's component along d, in balls as well, must agree to many digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, difference_quotient, from_ball, moved_balls, to_ball, working_precision
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.program import Equation, Program

__all__ = ["Agreement", "directional_agreement", "work"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """One directional derivative computed twice.

    Attributes:
        quotient: the high-precision difference quotient of the primal along the direction.
        derived: the derived gradient's component along the direction.
        scale: sum over the elements of |gradient * direction|, what cancellation is measured against.
    """

    quotient: float
    derived: float
    scale: float

    @property
    def relative_error(self) -> float:
        """|quotient - derived| relative to the scale; nan where either is not finite."""
        gap = abs(self.quotient - self.derived)
        return gap / self.scale if self.scale > 0 else gap


def directional_agreement(
    program: Program,
    wrt: Sequence[str],
    inputs: Mapping[str, NDArray[np.generic]],
    generator: np.random.Generator,
    *,
    gradient: Program | None = None,
    bits: int = 400,
    step: int = 80,
) -> Agreement:
    """Compare the derived gradient with a directional difference of the primal, both in balls.

    Args:
        program: the primal; its real outputs are contracted with random cotangents.
        wrt: the inputs moved, all together, along one random direction of dyadic numbers.
        inputs: values of all the primal's inputs; read as exact.
        generator: draws the direction and the cotangents.
        gradient: the program to be judged, such as `derive` gives; by default, what it gives.
        bits: the working precision.
        step: the difference's half step is 2^-step.
    """
    with working_precision(bits):
        directions = {name: _dyadic(np.shape(inputs[name]), generator) for name in wrt}
        real = [array for array in program.outputs if array.is_real]
        cotangents = {f"d_cotangent{n}": _dyadic(array.shape, generator) for n, array in enumerate(real)}
        sides = []
        for sign in (1, -1):
            moved = {name: moved_balls(inputs[name], directions[name], sign, step) for name in wrt}
            outputs = evaluate(program, {**inputs, **moved}, Ball())
            sides.append([value for value, array in zip(outputs, program.outputs, strict=True) if array.is_real])
        quotient = difference_quotient(sides[0], sides[1], list(cotangents.values()), step)
        gradients = evaluate(gradient or derive(program, wrt), {**inputs, **cotangents}, Ball())
        derived = sum((np.sum(g * to_ball(directions[n])) for g, n in zip(gradients, wrt, strict=True)), start=0)
        sizes = [np.sum(np.abs(from_ball(g) * directions[n])) for g, n in zip(gradients, wrt, strict=True)]
        return Agreement(quotient, float(from_ball(np.asarray(derived * to_ball(np.ones(()))[()]))), float(sum(sizes)))


def work(program: Program) -> int:
    """How many scalar operations an evaluation of a program takes, roughly: what balls are too slow for."""
    return sum(
        prod(statement.sizes) * max(1, len(statement.reads)) if isinstance(statement, Equation) else statement.out.size
        for statement in program.statements
    )


def _dyadic(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[np.float64]:
    """Random numbers of magnitude 1/2 to 2 with 7 significant bits: exact in every dtype."""
    magnitude = generator.integers(64, 128, size=shape) / 64.0 * 2.0 ** generator.integers(-1, 1, size=shape)
    return np.asarray(magnitude * generator.choice([-1.0, 1.0], size=shape))
