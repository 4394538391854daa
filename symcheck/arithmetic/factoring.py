"""Splitting a body into factors by the axes they run over, so that a sum of products is a contraction.

A body is never expanded into monomials: that cancels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import sympy as sp

from symcheck.functions import constant_symbol, read_symbol

__all__ = ["Factor", "factor"]


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a body: a scalar expression of its own reads and constants, over its own axes.

    Attributes:
        body: in `read_symbol(n)` for reads[n] and `constant_symbol(n)` for constants[n].
        reads: positions of its reads among the equation's.
        constants: positions of its constants among the equation's.
        axes: the equation's axes that its reads run over, ascending.
    """

    body: sp.Expr
    reads: tuple[int, ...]
    constants: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def is_read(self) -> bool:
        """Whether it is one bare read, which needs no evaluation."""
        return self.body == read_symbol(0) and len(self.reads) == 1


@lru_cache(maxsize=65536)
def factor(body: sp.Expr, axes_of_reads: tuple[tuple[int | None, ...], ...], constants: int) -> tuple[Factor, ...]:
    """Group the factors of a body by the set of axes that their reads run over.

    Factors over no axes (constants, scalars) join the first group, so that no group is a bare number unless all are.
    """
    reads = {read_symbol(n): n for n in range(len(axes_of_reads))}
    groups: dict[tuple[int, ...], list[sp.Expr]] = {}
    for part in sp.Mul.make_args(body):
        axes = {
            axis
            for symbol in part.free_symbols
            if symbol in reads
            for axis in axes_of_reads[reads[symbol]]
            if axis is not None
        }
        groups.setdefault(tuple(sorted(axes)), []).append(part)
    if len(groups) > 1 and () in groups:
        scalars = groups.pop(())
        smallest = min(groups, key=len)
        groups[smallest] = [*scalars, *groups[smallest]]
    return tuple(
        _factor(sp.Mul(*parts), axes, tuple(reads), tuple(map(constant_symbol, range(constants))))
        for axes, parts in groups.items()
    )


def _factor(
    body: sp.Expr, axes: tuple[int, ...], reads: tuple[sp.Symbol, ...], constants: tuple[sp.Symbol, ...]
) -> Factor:
    used = [n for n, symbol in enumerate(reads) if body.has(symbol)]
    beside = [n for n, symbol in enumerate(constants) if body.has(symbol)]
    renaming = {reads[n]: read_symbol(place) for place, n in enumerate(used)}
    renaming |= {constants[n]: constant_symbol(place) for place, n in enumerate(beside)}
    return Factor(body.xreplace(renaming), tuple(used), tuple(beside), axes)
