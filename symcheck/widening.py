"""What a half-precision kernel computes on the way: float32, rounded to its dtype only in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

import sympy as sp

from symcheck.building import Builder
from symcheck.functions import read_symbol
from symcheck.program import Array, Equation, Gather, Inversion, Reshape, Scatter, Selection, Statement

__all__ = ["HALF", "is_moved", "widen"]

HALF = frozenset({"float16", "bfloat16"})
BARE: sp.Expr = read_symbol(0)


def is_moved(statement: Statement) -> bool:
    """Whether a statement only hands on elements of its result's dtype, their negatives, or literals cast to it."""
    if any(array.is_real and array.dtype != statement.out.dtype for array in statement.arrays):
        return False
    if not isinstance(statement, Equation):
        return not isinstance(statement, Scatter)
    handed = None if statement.summed else _handed_on(statement.body)
    if handed is None:
        return False
    integers = {read_symbol(n) for n, read in enumerate(statement.reads) if not read.array.is_real}
    return not (statement.out.is_real and handed & integers)


@cache
def _handed_on(body: sp.Expr) -> frozenset[sp.Symbol] | None:
    """The symbols whose values a body may be, up to their signs; None if it computes anything."""
    if isinstance(body, sp.Piecewise):
        parts = [_handed_on(value) for value, _ in body.args]
        return None if None in parts else frozenset().union(*(part for part in parts if part is not None))
    if isinstance(body, sp.Abs):
        return _handed_on(body.args[0])
    if body.is_Mul and body.args[0] == -1 and len(body.args) == 2:
        return _handed_on(body.args[1])
    if body.is_Symbol:
        return frozenset({body})
    return frozenset() if body in (0, 1, -1) or body in (sp.oo, -sp.oo) else None


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
    wide: dict[Array, Array] = {}
    for statement in own:
        out = statement.out
        if out.dtype in HALF and (out in reread or out not in results) and not _is_half(statement, made, wide):
            wide[out] = replace(out, dtype="float32")
    builder.statements[start:] = [_renamed(statement, lambda array: wide.get(array, array)) for statement in own]
    return [
        array if array is None or array not in wide else builder.cast(wide[array], array.dtype) for array in results
    ]


def _is_half(statement: Statement, made: set[Array], wide: Mapping[Array, Array]) -> bool:
    """Whether a result is of half precision: moved from such, cast from what was given, or added into a tensor."""
    if isinstance(statement, Scatter):
        return True
    if is_moved(statement) and not any(array in wide for array in statement.arrays):
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
