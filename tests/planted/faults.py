"""A function with right formulas for its gradient, and with wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Formula = Callable[..., Any]


@dataclass(frozen=True)
class Planted:
    """A function with right formulas and wrong ones.

    Attributes:
        function: of the inputs.
        shapes: of the real inputs.
        right: the formula by each input that has one.
        wrong: what the fault is called, the input, and the faulty formula.
        integers: integer and boolean inputs.
    """

    function: Callable[..., torch.Tensor]
    shapes: Mapping[str, tuple[int, ...]]
    right: Mapping[str, Formula]
    wrong: Mapping[str, tuple[str, Formula]]
    integers: Mapping[str, torch.Tensor] | None = None

    def inputs(self, dtype):
        generator = torch.Generator().manual_seed(3)
        drawn = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in self.shapes.items()
        }
        return {name: x.to(dtype) for name, x in drawn.items()} | dict(self.integers or {})
