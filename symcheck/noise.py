"""How much rounding an ordinary float64 backward may have: measured by jittering the derived program.

The reference's slopes keep digits that an ordinary backward loses: the slope of tanh at 20 is 1.7e-17, and
1 - tanh^2 is 0 in float64. So each slope of a function f at x is moved by a part of |f(x)| / (1 + |x|) as well, the
size of what it is usually computed from, and each result by a part of itself. The parts are 2^-40; what they do is
scaled to 2^-53.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.double import Double
from symcheck.arithmetic.jittered import Jittered
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.program import Program

__all__ = ["noise_levels"]

Floats: TypeAlias = NDArray[np.float64]

SIZE = 2.0**-40  # far above float64's own rounding, and small enough to act linearly
RUNS = 4
SAFETY = 64.0  # a kernel may round many times where the program has one statement


def noise_levels(
    primal: Program, wrt: Sequence[str], given: Mapping[str, NDArray[np.generic]], generator: np.random.Generator
) -> dict[str, Floats]:
    """What float64 rounding may do to each element of each gradient, in a backward that keeps no digits on purpose.

    Args:
        primal: the traced function.
        wrt: names to differentiate by.
        given: inputs and cotangents of the derived program.
        generator: draws the noise.

    Returns:
        By input, in the gradient's unit; inf where a run is not finite.
    """
    plain = evaluate(derive(primal, wrt), given, Double())
    levels = {name: np.zeros(np.shape(value)) for name, value in zip(wrt, plain, strict=True)}
    for _ in range(RUNS):
        program = derive(
            primal, wrt, jitter=lambda: float(SIZE * generator.uniform(0.5, 1.0) * generator.choice([-1, 1]))
        )
        moved = evaluate(program, given, Jittered(generator, SIZE))
        for name, still, value in zip(wrt, plain, moved, strict=True):
            levels[name] = np.maximum(levels[name], np.abs(value - still))
    return {name: np.where(np.isnan(level), np.inf, SAFETY * 2.0**-53 / SIZE * level) for name, level in levels.items()}
