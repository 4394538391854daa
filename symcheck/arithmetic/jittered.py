"""Float64 with random relative noise on every real result: a model of what rounding does to a whole program."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.double import Double

__all__ = ["Jittered"]


class Jittered(Double):
    """The number system of float64 arrays whose every real result is moved by up to `size` of itself."""

    def __init__(self, generator: np.random.Generator, size: float) -> None:
        self.generator, self.size = generator, size

    def settle(self, value: Any, *, real: bool) -> NDArray[Any]:
        plain = super().settle(value, real=real)
        if not real:
            return plain
        return np.asarray(plain * (1.0 + self.size * self.generator.uniform(-1.0, 1.0, size=plain.shape)))
