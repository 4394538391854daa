"""Whether outputs depend on memory that was allocated but never written, as torch.empty leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.double import Double
from symcheck.evaluation import evaluate
from symcheck.program import Array, Program

__all__ = ["ALLOCATIONS", "reaches_output"]

# operators that leave memory as it was
ALLOCATIONS = frozenset(
    f"aten.{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)

FILLINGS = (1, -3)


def reaches_output(program: Program, unset: Iterable[Array], inputs: Mapping[str, NDArray[np.generic]]) -> bool:
    """Whether any output at these inputs changes with what the `unset` constants of a program hold."""
    present = [array for array in unset if array in program.constants]
    if not present:
        return False
    results = []
    for filling in FILLINGS:
        filled = {array: np.full(array.shape, filling, program.constants[array].dtype) for array in present}
        results.append(evaluate(replace(program, constants={**program.constants, **filled}), inputs, Double()))
    return not all(np.array_equal(one, other, equal_nan=True) for one, other in zip(*results, strict=True))
