"""The exact gradient where its formula is undefined: its limit, in high precision.

sqrt(x)^2 at 0 has the derivative 1, though 2 sqrt(x) * 1/(2 sqrt(x)) is 0 * inf there. So the program is evaluated at
x +- t d for t = 2^-300 and 2^-600 along random d. Where all that is defined agrees to 40 bits, that is the value,
by limit and not proved; where sides differ there is a kink; where it grows it is infinite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, difference_quotient, from_ball, moved_balls, working_precision
from symcheck.evaluation import evaluate
from symcheck.program import Program

__all__ = ["GROWING", "KINK", "NOWHERE", "SMOOTH", "Limit", "difference_limit", "find_limits", "join_limits"]

Floats: TypeAlias = NDArray[np.float64]
Given: TypeAlias = Mapping[str, NDArray[np.generic]]

STEPS = (300, 600)  # t = 2^-step
BITS = 1600  # holds x + 2^-600 d, and the cancellation beside it
DIRECTIONS = 3
AGREEMENT = 2.0**-40  # of float64 values; those at 2^-300 and 2^-600 differ by far less where there is a limit
GROWTH = 1.5  # from 2^-300 to 2^-600 beside the point, of what grows without bound: a logarithm doubles
SMOOTH, KINK, GROWING, NOWHERE = 0, 1, 2, 3  # one value from all sides, several, infinite, defined nowhere nearby


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """The behaviour of one output near a point.

    Attributes:
        values: the limit, where it is one; the infinity it grows to; nan elsewhere. float64.
        kinds: SMOOTH, KINK, GROWING or NOWHERE for each element.
        low, high: the least and the greatest value approached from any side.
    """

    values: Floats
    kinds: NDArray[np.int64]
    low: Floats
    high: Floats


def find_limits(
    program: Program,
    given: Given,
    outputs: Sequence[int],
    moving: Sequence[str],
    generator: np.random.Generator,
) -> list[Limit]:
    """Approach a point from random sides.

    Args:
        program: what to evaluate.
        given: its inputs there.
        outputs: which of its outputs.
        moving: the inputs that move.
        generator: draws the directions.
    """
    kept = replace(program, outputs=tuple(program.outputs[place] for place in outputs))
    sides: list[list[tuple[Floats, Floats]]] = [[] for _ in outputs]  # near and nearer, for each side
    with working_precision(BITS):
        for _ in range(DIRECTIONS):
            directions = {name: _direction(np.shape(given[name]), generator) for name in moving}
            for sign in (1, -1):
                runs = []
                for step in STEPS:
                    there = {**given, **{n: moved_balls(given[n], d, sign, step) for n, d in directions.items()}}
                    runs.append([from_ball(v) for v in evaluate(kept, there, Ball())])
                for place, (near, nearer) in enumerate(zip(*runs, strict=True)):
                    sides[place].append((near, nearer))
    return [_limit(approached) for approached in sides]


def _direction(shape: tuple[int, ...], generator: np.random.Generator) -> NDArray[Any]:
    magnitude = generator.integers(64, 128, size=shape) / 64.0
    return np.asarray(magnitude * generator.choice([-1.0, 1.0], size=shape))


def _limit(sides: Sequence[tuple[Floats, Floats]]) -> Limit:
    near = np.stack([side[0] for side in sides])
    nearer = np.stack([side[1] for side in sides])
    defined = ~np.isnan(near) & ~np.isnan(nearer)
    finite = np.isfinite(near) & np.isfinite(nearer)
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(near), np.abs(nearer))
        steady = finite & (np.abs(near - nearer) <= AGREEMENT * size + 2.0**-140)
        grows = defined & ~steady & ((np.abs(nearer) > GROWTH * np.abs(near)) | np.isinf(nearer))
        low = np.min(nearer, axis=0, where=steady, initial=np.inf)
        high = np.max(nearer, axis=0, where=steady, initial=-np.inf)
        spread = high - low
        largest = np.maximum(np.abs(high), np.abs(low))
        some, settled = steady.any(axis=0), (steady | ~defined).all(axis=0)
        smooth = some & settled & (spread <= AGREEMENT * largest + 2.0**-140)
        growing = grows.any(axis=0) & (grows | ~defined).all(axis=0)
        kinds = np.where(smooth, SMOOTH, np.where(growing, GROWING, np.where(defined.any(axis=0), KINK, NOWHERE)))
        up = (np.where(grows, nearer, -np.inf) > 0).any(axis=0)
        down = (np.where(grows, nearer, np.inf) < 0).any(axis=0)
        infinite = np.where(up & down, np.nan, np.where(up, np.inf, -np.inf))
        # A value at t = 2^-600 that is itself of the order of a small power of t is 0 in the limit.
        value = np.where(np.abs(low) < 2.0**-140, 0.0, low)
    values = np.where(smooth, value, np.where(growing, infinite, np.nan))
    bounded = some & settled
    return Limit(values, kinds, np.where(bounded, low, -np.inf), np.where(bounded, high, np.inf))


def join_limits(first: Limit, second: Limit) -> Limit:
    """What two samples of sides say together: where several kinks meet, their slopes add up to the same by chance."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(first.values - second.values) > AGREEMENT * np.abs(first.values) + 2.0**-140
    kink = (first.kinds == SMOOTH) & ((second.kinds == KINK) | ((second.kinds == SMOOTH) & apart))
    kinds, values = np.where(kink, KINK, first.kinds), np.where(kink, np.nan, first.values)
    both = kink & np.isfinite(second.low) & np.isfinite(second.high)
    low = np.where(both, np.minimum(first.low, second.low), first.low)
    return Limit(values, kinds, low, np.where(both, np.maximum(first.high, second.high), first.high))


def difference_limit(primal: Program, given: Given, name: str, element: int, weights: Sequence[NDArray[Any]]) -> float:
    """The derivative by one element as the limit of difference quotients; nan where there is none from both sides.

    For where the program of the gradient is defined nowhere nearby, such as a slope through 1/0 of what is constant.

    Args:
        primal: its first outputs are the function's.
        given: its inputs.
        name: the input.
        element: flat position in it.
        weights: the cotangent of each output.
    """
    direction = np.zeros(np.shape(given[name]))
    direction.reshape(-1)[element] = 1.0
    kept = replace(primal, outputs=primal.outputs[: len(weights)])
    quotients = []
    with working_precision(BITS):
        here = evaluate(kept, given, Ball())
        for step in STEPS:
            for sign in (1, -1):
                there = {**given, name: moved_balls(given[name], direction, sign, step)}
                quotient = difference_quotient(evaluate(kept, there, Ball()), here, weights, step)
                quotients.append(2 * sign * quotient)
    if not np.isfinite(quotients).all() or np.ptp(quotients) > AGREEMENT * max(map(abs, quotients)) + 2.0**-140:
        return float("nan")
    return float(quotients[-1])
