"""The scalar level: the symbols of bodies, reading a body from text, and its derivative by SymPy."""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from symcheck.definitions import DEFINED, IDENTITIES, tidy
from symcheck.errors import UnknownOperator
from symcheck.steps import STEPS

__all__ = ["DEFINED", "IDENTITIES", "constant_symbol", "differentiate", "parse", "read_symbol", "tidy"]


@cache
def read_symbol(position: int) -> sp.Symbol:
    """The symbol that stands for a statement's read number `position` in its body."""
    return sp.Symbol(f"a{position}", real=True)


@cache
def constant_symbol(position: int) -> sp.Symbol:
    """The symbol that stands for a statement's constant number `position` in its body."""
    return sp.Symbol(f"c{position}", real=True)


@cache
def parse(text: str, names: tuple[str, ...] = ()) -> sp.Expr:
    """Read an expression of our own tables (never a user's): its names are real symbols and the functions here."""
    symbols: dict[str, Any] = {name: sp.Symbol(name, real=True) for name in names}
    symbols |= {f"a{n}": read_symbol(n) for n in range(10)} | {f"c{n}": constant_symbol(n) for n in range(10)}
    return sp.sympify(text, locals=dict(DEFINED) | dict(STEPS) | symbols)


@cache
def differentiate(body: sp.Expr, symbol: sp.Symbol) -> sp.Expr:
    """SymPy's derivative of a scalar body by one of its symbols, tidied and remembered.

    The cache makes deriving cost the same at every shape: bodies do not contain sizes.
    """
    slope = sp.diff(body, symbol)
    if slope.has(sp.Derivative, sp.Subs):
        raise UnknownOperator(str(slope), detail="SymPy has no closed form for this derivative")
    return tidy(slope)
