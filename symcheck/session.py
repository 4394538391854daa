"""A session checks one function at any number of inputs, deriving once per set of shapes, dtypes and branches."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from symcheck.checks import Check, Outcome
from symcheck.memory import Memory

__all__ = ["Session"]


class Session(Memory):
    """Checks of one function."""

    def run(self, tensors: Mapping[str, Tensor], *, budget: int = 256) -> Outcome:
        """Check at these inputs, which must have the names of the binding's.

        Args:
            tensors: the inputs; never written to.
            budget: evaluations of the function for finite differences; 0 for none.

        Raises:
            Misuse: the function raises at these inputs, or returns nothing to differentiate.
        """
        return Check(self, dict(tensors), budget).outcome()
