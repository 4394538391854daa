"""What a half-precision kernel computes on the way: float32, rounded to its dtype only in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy as sp

from symcheck.building import Builder
from symcheck.functions import read_symbol
from symcheck.program import Array, Equation, Gather, Inversion, Reshape, Scatter, Selection, Statement

__all__ = ["HALF", "widen"]

HALF = frozenset({"float16", "bfloat16"})
BARE: sp.Expr = read_symbol(0)


def widen(builder: Builder, start: int, results: Sequence[Array | None]) -> list[Array | None]:
    """Let the half-precision internals of one operator carry float32, as its kernel computes them.

    Args:
        builder: holds the operator's statements from position `start` on.
        start: where they begin.
        results: what the operator returns, in the dtypes that torch holds it in.

    Returns:
        The results. One that the operator reads again gets a rounded copy: the kernel goes on with what it has.
    """
    own = builder.statements[start:]
    if not any(statement.out.dtype in HALF for statement in own):
        return list(results)
    made = {statement.out for statement in own}
    reread = {array for statement in own for array in statement.arrays}
    wide = {
        statement.out: replace(statement.out, dtype="float32")
        for statement in own
        if statement.out.dtype in HALF
        and (statement.out in reread or statement.out not in results)
        and not _rounds(statement, made)
    }
    builder.statements[start:] = [_renamed(statement, lambda array: wide.get(array, array)) for statement in own]
    return [
        array if array is None or array not in wide else builder.cast(wide[array], array.dtype) for array in results
    ]


def _rounds(statement: Statement, made: set[Array]) -> bool:
    """Whether half precision is meant: a cast of what the operator was given, or additions into a tensor of it."""
    if isinstance(statement, Scatter):
        return True
    bare = isinstance(statement, Equation) and statement.body == BARE and not statement.summed
    return bare and statement.arrays[0] not in made and statement.arrays[0].dtype not in HALF


def _renamed(statement: Statement, renamed: Callable[[Array], Array]) -> Statement:
    out = renamed(statement.out)
    if isinstance(statement, Equation):
        return replace(statement, out=out, reads=tuple(replace(r, array=renamed(r.array)) for r in statement.reads))
    if isinstance(statement, Gather):
        return replace(statement, out=out, sources=tuple(map(renamed, statement.sources)))
    if isinstance(statement, Reshape | Scatter | Selection):
        return replace(statement, out=out, array=renamed(statement.array))
    assert isinstance(statement, Inversion)
    return statement
