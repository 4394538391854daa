"""Piecewise-constant functions: their values matter, their derivative is 0 wherever it exists."""

from __future__ import annotations

from typing import Any

import sympy as sp

__all__ = ["STEPS", "Step", "floordiv", "truncdiv"]


class Step(sp.Function):  # type: ignore[misc]
    """A function that is constant between its jumps."""

    nargs: Any = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """0: off the jumps."""
        return sp.S.Zero


class isnan(Step):
    """1 where the argument is NaN, else 0."""


class isposinf(Step):
    """1 where the argument is infinity, else 0."""


class isneginf(Step):
    """1 where the argument is minus infinity, else 0."""


class floor(Step):
    """The largest integer that does not exceed the argument."""


class ceiling(Step):
    """The smallest integer that the argument does not exceed."""


class trunc(Step):
    """The argument rounded towards zero."""


class rint(Step):
    """The argument rounded to the nearest integer, halves to even."""


class binary_exponent(Step):
    """The integer e with 2^(e - 1) <= |x| < 2^e; 0 at 0."""


class floordiv(Step):
    """x / y rounded down; exact for integers."""

    nargs = 2


class truncdiv(Step):
    """x / y rounded towards zero; exact for integers."""

    nargs = 2


class bitand(Step):
    """The bitwise and of two integers."""

    nargs = 2


class bitor(Step):
    """The bitwise or of two integers."""

    nargs = 2


class bitxor(Step):
    """The bitwise exclusive or of two integers."""

    nargs = 2


STEPS: dict[str, type[Step]] = {cls.__name__: cls for cls in Step.__subclasses__()}
