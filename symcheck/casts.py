"""Where a program computes in a narrower dtype than the input that it differentiates by."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from symcheck.arithmetic.formats import PRECISIONS
from symcheck.facts import Fact, Kind
from symcheck.program import Array, Program, Statement

__all__ = ["cast_fact", "narrowings"]

Places: TypeAlias = Mapping[str, tuple[str, ...]]

SHOWN = 3  # source lines that are named


def narrowings(program: Program, output: Array, dtype: str, given: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """The narrower dtypes that an output passed through, with the places where values were cast to them.

    Args:
        program: traced in the dtypes that torch holds everything in.
        output: one of its outputs.
        dtype: what counts as wide.
        given: inputs that came in another dtype than they are used in, such as cotangents.

    Returns:
        By dtype, such as ``{"float32": ("model.py:12: y = x.float()",)}``; a place without a source line is left out.
    """
    found: dict[str, dict[str, None]] = {}
    if not any(_narrows(statement, dtype, given) for statement in program.statements):  # as in most programs
        return {}
    for statement in _needed(program, output):
        if _narrows(statement, dtype, given):
            places = found.setdefault(statement.out.dtype, {})
            if statement.source:
                places[statement.source] = None
    return {narrow: tuple(places) for narrow, places in found.items()}


def _narrows(statement: Statement, dtype: str, given: Collection[str]) -> bool:
    out = statement.out
    if not out.is_real or PRECISIONS[out.dtype].digits >= PRECISIONS[dtype].digits:
        return False
    digits = PRECISIONS[out.dtype].digits
    wider = [array for array in statement.arrays if array.is_real and PRECISIONS[array.dtype].digits > digits]
    return any(array.name not in given for array in wider)


def _needed(program: Program, output: Array) -> Sequence[Statement]:
    """The statements that an output depends on."""
    needed, kept = {output.name}, []
    for statement in reversed(program.statements):
        if statement.out.name in needed:
            kept.append(statement)
            needed |= {array.name for array in statement.arrays}
    return kept[::-1]


def cast_fact(candidate: str, names: tuple[str, ...], dtype: str, found: Places) -> Fact:
    """The note on casts on the way to the gradients by inputs of a dtype."""
    narrowest = min(found, key=lambda name: PRECISIONS[name].digits)
    places = list(dict.fromkeys(place for several in found.values() for place in several))
    more = f" and {len(places) - SHOWN} more lines" if len(places) > SHOWN else ""
    where = f" at {'; '.join(places[:SHOWN])}{more}" if places else ""
    what = "autograd's gradient" if candidate == "autograd" else "the formula"
    digits = int(PRECISIONS[narrowest].digits * 0.30103)
    has, wide = int(PRECISIONS[dtype].digits * 0.30103), ", ".join(names)
    return Fact(
        Kind.CAST,
        candidate,
        names,
        f"{what} by {wide} passes through {' and '.join(sorted(found))}{where}: expect {digits} significant digits "
        f"of it at best, not the {has} of {dtype}",
    )
