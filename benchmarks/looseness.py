"""How much larger rounding bounds are than the rounding: `python -m benchmarks.looseness [--seeds N] [--depth N]`.

Random compositions of layers run backward in each dtype. Printed are the quantiles of bound / |computed - intended|
over all elements that rounded at all, how many elements have no bound, and how many exceed theirs, which none may.
Gradients of compositions of three layers, 150 seeds: 500, 280, 150 and 110 at the median in float64, float32, bfloat16
and float16, no bound at 2 to 7 %, none exceeded.
"""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from benchmarks.programs import DTYPES, random_run
from symcheck.arithmetic.ball import Ball, enclosures, to_ball, working_precision
from symcheck.errors import UnknownOperator
from symcheck.evaluation import evaluate
from symcheck.rounding import rounding_bounds

__all__ = ["errors_and_bounds"]

Floats = NDArray[np.float64]


def errors_and_bounds(seed: int, dtype: str, depth: int, size: int = 1) -> list[tuple[Floats, Floats]]:
    """|computed - intended| and its bound, for each gradient of a random composition.

    `intended` is the program in float64; for float64 itself it is the program in balls.
    """
    run = random_run(seed, dtype, depth, size=size)
    bounded = rounding_bounds(run.program, run.given)
    if dtype != "float64":
        return [(np.abs(c - b.values), b.bounds) for c, b in zip(run.computed, bounded, strict=True)]
    with working_precision(128):
        exact = evaluate(run.program, run.given, Ball(), moving=())
        errors = [enclosures(to_ball(c) - e)[0] for c, e in zip(run.computed, exact, strict=True)]
    return [(np.abs(error), b.bounds) for error, b in zip(errors, bounded, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--depth", type=int, default=3)
    options = parser.parse_args()
    print(f"{'dtype':10}{'median':>10}{'10 %':>10}{'90 %':>10}{'no bound':>10}{'exceeded':>10}{'elements':>10}")
    for dtype in DTYPES:
        pairs = []
        for seed in range(options.seeds):
            try:
                pairs += errors_and_bounds(seed, dtype, options.depth)
            except UnknownOperator:
                continue
        errors, bounds = (np.concatenate([pair[n].reshape(-1) for pair in pairs]) for n in (0, 1))
        known = np.isfinite(bounds) & np.isfinite(errors)
        some = known & (errors > 0)
        ratios = bounds[some] / errors[some]
        low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
        exceeded = int((errors[known] > bounds[known]).sum())
        print(f"{dtype:10}{middle:10.3g}{low:10.3g}{high:10.3g}{1 - known.mean():10.2%}{exceeded:10}{errors.size:10}")


if __name__ == "__main__":
    main()
