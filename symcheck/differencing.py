"""Finite differences of the function itself by each input, within a budget of evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import describe_error, run_function
from symcheck.differences import MOST_EVALUATIONS, Differences, differentiate
from symcheck.reference import numeric

__all__ = ["Differencing"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]


class Differencing:
    """A function at one input, to be differenced in float64.

    Attributes:
        positions: which of the function's tensors are its real outputs.
        budget: evaluations of the function, for all inputs together; 0 for none.
    """

    def __init__(
        self,
        binding: Binding,
        tensors: Tensors,
        positions: Sequence[int],
        generator: np.random.Generator,
        budget: int,
    ) -> None:
        self.binding, self.tensors, self.positions = binding, tensors, positions
        self.generator, self.budget = generator, budget

    def by_each(
        self, cotangents: Sequence[Floats], worst: Mapping[str, tuple[int, ...]] | None = None
    ) -> dict[str, Differences | str]:
        """Differences by each input, or why there are none; the smallest inputs first, as they leave budget over."""
        if not self.budget:
            return {}
        found: dict[str, Differences | str] = {}
        left = self.budget
        order = sorted(self.binding.wrt, key=lambda name: self.tensors[name].numel())
        for place, name in enumerate(order):
            share = max(MOST_EVALUATIONS, left // (len(order) - place))
            result = self._difference(name, cotangents, share, (worst or {}).get(name, ()))
            found[name] = result
            left -= 0 if isinstance(result, str) else result.evaluations
        return {name: found[name] for name in self.binding.wrt}

    def _difference(
        self, name: str, cotangents: Sequence[Floats], share: int, worst: tuple[int, ...]
    ) -> Differences | str:
        tensor = self.tensors[name]
        shape = tuple(tensor.shape)
        if tensor.is_complex():
            return f"{name} is complex, which has no meaning yet"

        def contributions(values: Floats) -> Floats:
            there = {**self.tensors, name: torch.from_numpy(np.asarray(values, dtype=np.float64).reshape(shape))}
            outputs = run_function(self.binding, there, self.positions, torch.float64)
            weighted = [(c * o).reshape(-1) for c, o in zip(cotangents, outputs, strict=True)]
            return np.concatenate(weighted) if weighted else np.zeros(0)

        first = [int(np.ravel_multi_index(worst, shape))] if worst else []
        try:
            return differentiate(
                contributions,
                np.asarray(numeric({name: tensor})[name], dtype=np.float64),
                generator=self.generator,
                budget=share,
                worst=np.array(first, dtype=np.int64),
            )
        except Exception as error:
            return describe_error(self.binding.name, error)
