"""What the checks of one function share: what was traced and derived, and what of it was verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import Formula
from symcheck.errors import SymcheckError
from symcheck.intended import Intended, trace_candidates
from symcheck.reference import Derived, derive_reference, numeric
from symcheck.separation import Key

__all__ = ["Memory"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]


class Memory:
    """Of one function with its formulas: traced and derived once per set of shapes, dtypes and branches."""

    def __init__(self, binding: Binding, formulas: Sequence[Formula], *, cotangent: Any = None, seed: int = 0) -> None:
        self.binding, self.formulas = binding, tuple(formulas)
        self.cotangent, self.seed = cotangent, seed
        self.confirmed: dict[tuple[int, Key], bool] = {}  # whether a candidate's program is what it runs
        self.generic: set[tuple[int, Key]] = set()  # programs that were held against the gradient's at a generic input
        self.unremarkable = 0  # checks in which nothing was noticed of how the candidates behave
        self._intended: dict[int, Intended] = {}
        self.verified: set[Derived] = set()  # references that were held against the function at an input nearby
        self._derived: dict[tuple[Any, ...], list[Derived | SymcheckError]] = {}

    def derived(self, tensors: Tensors) -> Derived | SymcheckError:
        """The reference at the shapes, the dtypes and the branches of some tensors, or why there is none."""
        key = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
        known = self._derived.setdefault(key, [])
        for derived in known:
            if isinstance(derived, SymcheckError) or derived.follows(numeric(tensors)):
                return derived
        try:
            known.append(derive_reference(self.binding, tensors))
        except SymcheckError as error:
            known.append(error)
        return known[-1]

    def intended(self, derived: Derived, tensors: Tensors, cotangents: Sequence[Floats]) -> Intended:
        """The candidates' programs that go with a reference."""
        if id(derived) not in self._intended:
            self._intended[id(derived)] = trace_candidates(self.binding, tensors, derived, self.formulas, cotangents)
        return self._intended[id(derived)]
