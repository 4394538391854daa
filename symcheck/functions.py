"""Scalar functions that SymPy lacks or differentiates into forms that cancel, with the identities that mend them.

Each function is stated by its definition; SymPy differentiates the definition, and `tidy` rewrites the result by
algebraic identities. No derivative is written here: an identity equates two expressions of the same value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sympy as sp

__all__ = ["DEFINED", "IDENTITIES", "constant_symbol", "differentiate", "parse", "read_symbol", "tidy"]


@lru_cache(maxsize=None)
def read_symbol(position: int) -> sp.Symbol:
    """The symbol that stands for a statement's read number `position` in its body."""
    return sp.Symbol(f"a{position}", real=True)


@lru_cache(maxsize=None)
def constant_symbol(position: int) -> sp.Symbol:
    """The symbol that stands for a statement's constant number `position` in its body."""
    return sp.Symbol(f"c{position}", real=True)


class Defined(sp.Function):  # type: ignore[misc]
    """A function given by a definition; SymPy differentiates that definition."""

    nargs: Any = 1
    is_real = True

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        """The function written in SymPy's own functions."""
        raise TypeError(f"{cls.__name__} has no definition")

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """SymPy's derivative of the definition, tidied."""
        return _derivative_of_definition(type(self), argindex).xreplace(
            dict(zip(_formals(len(self.args)), self.args, strict=True))
        )


def _formals(count: int) -> tuple[sp.Symbol, ...]:
    return tuple(sp.Symbol(f"t{position}", real=True) for position in range(count))


@lru_cache(maxsize=None)
def _derivative_of_definition(function: type[Defined], argindex: int) -> sp.Expr:
    formals = _formals(function.nargs if isinstance(function.nargs, int) else max(function.nargs))
    return tidy(sp.diff(function.definition(*formals), formals[argindex - 1]))


class sigmoid(Defined):
    """1 / (1 + exp(-x)), accurate in both tails."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return 1 / (1 + sp.exp(-arguments[0]))


class softplus(Defined):
    """log(1 + exp(x)), accurate in both tails."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(1 + sp.exp(arguments[0]))


class log1p(Defined):
    """log(1 + x), accurate near 0."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(1 + arguments[0])


class expm1(Defined):
    """exp(x) - 1, accurate near 0."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(arguments[0]) - 1


class sech(Defined):
    """1 / cosh(x)."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return 1 / sp.cosh(arguments[0])


class erfcx(Defined):
    """exp(x^2) erfc(x), accurate where the two factors overflow and vanish."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(arguments[0] ** 2) * sp.erfc(arguments[0])


class log_ndtr(Defined):
    """The logarithm of the normal distribution function."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(sp.erfc(-arguments[0] / sp.sqrt(2)) / 2)


class xlogy(Defined):
    """x log y, and 0 where x is 0: the limit from inside the domain."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return arguments[0] * sp.log(arguments[1])


class isnan(sp.Function):  # type: ignore[misc]
    """1 where the argument is NaN, else 0; its derivative is 0 wherever it has one."""

    nargs = 1
    is_real = True

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        return sp.S.Zero


class trunc(isnan):
    """The argument rounded towards zero."""


class rint(isnan):
    """The argument rounded to the nearest integer, halves to even."""


DEFINED: dict[str, type[Defined]] = {
    cls.__name__: cls for cls in (sigmoid, softplus, log1p, expm1, sech, erfcx, log_ndtr, xlogy)
}

STEPS: dict[str, type[sp.Function]] = {cls.__name__: cls for cls in (isnan, trunc, rint)}


@lru_cache(maxsize=None)
def parse(text: str, names: tuple[str, ...] = ()) -> sp.Expr:
    """Read an expression of our own tables (never a user's): its names are real symbols and the functions here."""
    symbols: dict[str, Any] = {name: sp.Symbol(name, real=True) for name in names}
    symbols |= {f"a{n}": read_symbol(n) for n in range(10)} | {f"c{n}": constant_symbol(n) for n in range(10)}
    return sp.sympify(text, locals=dict(DEFINED) | dict(STEPS) | symbols)


_u = sp.Wild("u")

# (expression, the same value written without cancellation or overflow); tested numerically at 50 digits
IDENTITIES: tuple[tuple[sp.Expr, sp.Expr], ...] = (
    (1 - sp.tanh(_u) ** 2, sech(_u) ** 2),
    (sp.exp(-_u) / (1 + sp.exp(-_u)) ** 2, sigmoid(_u) * sigmoid(-_u)),
    (sp.exp(_u) / (1 + sp.exp(_u)), sigmoid(_u)),
    (sp.exp(_u**2) * sp.erfc(_u), erfcx(_u)),
    (sp.exp(-(_u**2) / 2) / sp.erfc(-sp.sqrt(2) * _u / 2), 1 / erfcx(-sp.sqrt(2) * _u / 2)),
)


def tidy(expression: sp.Expr) -> sp.Expr:
    """Rewrite an expression by `IDENTITIES` and by combining powers of one base; its value is unchanged."""
    for pattern, replacement in IDENTITIES:
        if expression.has(*(type(f) for f in pattern.atoms(sp.Function))):
            expression = expression.replace(pattern, replacement)
    return _combine_powers(expression)


def _combine_powers(expression: sp.Expr) -> sp.Expr:
    # SymPy writes d/dx x^y as x^y*y/x, which is 0/0 at x = 0; powsimp makes it y*x^(y - 1).
    if any(not power.exp.is_number for power in expression.atoms(sp.Pow)):
        expression = sp.powsimp(expression, combine="exp")
        x, y = sp.Wild("x"), sp.Wild("y")
        expression = expression.replace(x**y * sp.log(x), xlogy(x**y, x))
    return expression


@lru_cache(maxsize=None)
def differentiate(body: sp.Expr, symbol: sp.Symbol) -> sp.Expr:
    """SymPy's derivative of a scalar body by one of its symbols, tidied and remembered.

    The cache makes deriving cost the same at every shape: bodies do not contain sizes.
    """
    return tidy(sp.diff(body, symbol))
