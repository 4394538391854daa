"""The one table of meanings: what each ATen operator computes, stated as statements of a program.

A meaning is a function that receives a `Builder` and the operator's arguments, arrays in place of tensors, and appends
the statements. Families register theirs here; a name is registered once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import sympy as sp

from symcheck.building import Builder, Held
from symcheck.errors import IllFormed
from symcheck.functions import constant_symbol, parse, read_symbol
from symcheck.program import Array

__all__ = ["TABLE", "Lowering", "Meaning", "meaning", "pointwise_row"]

Lowering = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one operator means.

    Attributes:
        operator: its ATen name: ``aten.mm`` for all overloads, ``aten.sum.dim_IntList`` for one.
        family: the module that states it.
        formula: the index equation or a sentence, for the documentation.
        lower: appends the statements; called with a builder, then the operator's own arguments.
    """

    operator: str
    family: str
    formula: str
    lower: Lowering


TABLE: dict[str, Meaning] = {}


def meaning(*operators: str, formula: str = "") -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the meaning of some operators; its docstring is the formula by default."""

    def register(lower: Lowering) -> Lowering:
        text = formula or (lower.__doc__ or "").strip().splitlines()[0]
        for operator in operators:
            if operator in TABLE:
                raise IllFormed(f"{operator} has a meaning already, in {TABLE[operator].family}")
            TABLE[operator] = Meaning(operator, lower.__module__.rpartition(".")[2], text, lower)
        return lower

    return register


def pointwise_row(family: str, operator: str, parameters: str, body: str) -> None:
    """Register an elementwise operator by its parameters and its body.

    Args:
        family: the module that states it.
        operator: its ATen name.
        parameters: names separated by spaces, in the operator's order; ``name=literal`` gives a default.
        body: an expression in those names; a comparison means 1 where it holds and 0 elsewhere.
    """
    names = [part.partition("=")[0] for part in parameters.split()]
    defaults = {
        name: float(value) if "." in value else int(value)
        for name, _, value in (part.partition("=") for part in parameters.split())
        if value
    }

    def lower(b: Builder, *args: Any, **kwargs: Any) -> Array:
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        operands = [given[name] for name in names]
        arrays = tuple(isinstance(operand, Array | Held) for operand in operands)
        expression = _bind(body, tuple(names), arrays, b.result_dtype == "bool")
        return b.pointwise(expression, *operands, dtype=b.result_dtype)

    if operator in TABLE:
        raise IllFormed(f"{operator} has a meaning already, in {TABLE[operator].family}")
    TABLE[operator] = Meaning(operator, family, f"out = {body}", lower)


@cache
def _bind(body: str, names: tuple[str, ...], arrays: tuple[bool, ...], truth: bool) -> sp.Expr:
    """The body with its parameters numbered as reads or as constants; 0 or 1 where a truth value is wanted."""
    expression = parse(body, names)
    if truth and not isinstance(expression, sp.logic.boolalg.Boolean):
        expression = sp.Ne(expression, 0)
    if isinstance(expression, sp.logic.boolalg.Boolean):
        expression = sp.Piecewise((1, expression), (0, True))
    reads = iter(range(len(names)))
    constants = iter(range(len(names)))
    numbered = {
        sp.Symbol(name, real=True): read_symbol(next(reads)) if is_array else constant_symbol(next(constants))
        for name, is_array in zip(names, arrays, strict=True)
    }
    return expression.xreplace(numbered)
