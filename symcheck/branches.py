"""Bodies whose open comparisons are given weights: which branch holds where a comparison ties, or a mean of branches.

A comparison asks for the sign of a difference. Where that is open the difference could be below, at or above zero; a
weight for each of these three *arms* says how the branches are mixed:

    sum over the arms of  weight[arm] * body(the comparison as it stands on that arm)

The result is an equation again, so every number system evaluates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import sympy as sp
from sympy.core.relational import Relational

from symcheck.functions import read_symbol
from symcheck.program import Array, Equation, Read

__all__ = ["ARMS", "Difference", "differences_of", "mixed", "slope_part", "weighted"]

ARMS = (-1, 0, 1)  # the signs of a difference

Axes: TypeAlias = tuple[int, ...]

_TRUTH = {
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "==": lambda sign: sign == 0,
    "!=": lambda sign: sign != 0,
}


@dataclass(frozen=True, slots=True)
class Difference:
    """What one or more comparisons of a body ask the sign of.

    Attributes:
        left, right: the two sides; it is left - right.
        relations: the comparisons, each with 1 if it compares left with right, -1 if right with left.
        reads: positions of the reads that it depends on.
    """

    left: sp.Expr
    right: sp.Expr
    relations: tuple[tuple[Relational, int], ...]
    reads: tuple[int, ...]

    def on(self, arm: int) -> dict[Relational, sp.Basic]:
        """Each comparison's truth on an arm."""
        return {
            relation: sp.true if _TRUTH[relation.rel_op](arm * side) else sp.false for relation, side in self.relations
        }


@cache
def differences_of(body: sp.Expr, reads: int) -> tuple[Difference, ...]:
    """The differences whose signs a body asks for, in a fixed order."""
    found: dict[sp.Expr, list[tuple[Relational, int]]] = {}
    sides: dict[sp.Expr, tuple[sp.Expr, sp.Expr]] = {}
    for relation in sorted(body.atoms(Relational), key=str):
        apart = relation.lhs - relation.rhs
        if apart in found or -apart not in found:
            found.setdefault(apart, []).append((relation, 1))
            sides.setdefault(apart, (relation.lhs, relation.rhs))
        else:
            found[-apart].append((relation, -1))
    result = []
    for apart, relations in found.items():
        used = tuple(n for n in range(reads) if apart.has(read_symbol(n)))
        if used:
            result.append(Difference(*sides[apart], tuple(relations), used))
    return tuple(result)


@cache
def slope_part(body: sp.Expr) -> tuple[sp.Expr, sp.Expr]:
    """A body as a product of what compares and of the rest."""
    parts = sp.Mul.make_args(body)
    comparing = [part for part in parts if part.has(Relational)]
    return sp.Mul(*comparing), sp.Mul(*(part for part in parts if part not in comparing))


def mixed(equation: Equation, differences: Sequence[tuple[Difference, Axes, str, tuple[int, ...]]]) -> Equation:
    """The equation with some of its differences given weights.

    Args:
        equation: its body compares.
        differences: each with the axes that it runs over, a name and the sizes of those axes. What is read in
            addition is, for each arm, the array ``name weight arm``, and the integer array ``name use arm``, which is
            0 where the arm has no part, whatever the branch is; and ``name open``, 0 where the comparison stands.
    """
    comparing, rest = slope_part(equation.body)
    reads = list(equation.reads)
    for difference, axes, name, shape in differences:
        place = len(reads)
        comparing = _mixed_body(comparing, difference, place)
        reads.append(Read(Array(f"{name} open", shape, "int64"), axes))
        for arm in ARMS:
            reads.append(Read(Array(f"{name} use {arm}", shape, "int64"), axes))
            reads.append(Read(Array(f"{name} weight {arm}", shape, "float64"), axes))
    body = comparing * rest
    return Equation(
        equation.out, equation.sizes, body, tuple(reads), equation.constants, equation.source, equation.operator
    )


@cache
def _mixed_body(body: sp.Expr, difference: Difference, place: int) -> sp.Expr:
    total = sp.S.Zero
    for number, arm in enumerate(ARMS):
        use, weight = read_symbol(place + 1 + 2 * number), read_symbol(place + 2 + 2 * number)
        # literal zeros are absent, so that an arm without a part in it may be infinite
        part = sp.Piecewise((weight, sp.Ne(use, 0)), (0, True), evaluate=False)
        total += part * body.xreplace(difference.on(arm))
    return sp.Piecewise((body, sp.Eq(read_symbol(place), 0)), (total, True), evaluate=False)


def weighted(equation: Equation, weights: Sequence[tuple[str, tuple[int | None, ...], tuple[int, ...]]]) -> Equation:
    """The equation with factors: arrays ``name weight``, absent where the integers ``name use`` are 0."""
    reads, body = list(equation.reads), equation.body
    for name, axes, shape in weights:
        place = len(reads)
        reads.append(Read(Array(f"{name} use", shape, "int64"), axes))
        reads.append(Read(Array(f"{name} weight", shape, "float64"), axes))
        body *= sp.Piecewise((read_symbol(place + 1), sp.Ne(read_symbol(place), 0)), (0, True), evaluate=False)
    return Equation(
        equation.out, equation.sizes, body, tuple(reads), equation.constants, equation.source, equation.operator
    )
