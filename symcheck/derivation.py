"""From a program to its adjoint program: reverse accumulation in which SymPy differentiates every body.

For the equation out[i, o] = sum over k of body(x[i, k], w[o, k]) and the adjoint g of `out`,

    x_bar[i, k] += sum over o of  g[i, o] * d body / d x

which is an equation again, so the rule is closed: deriving the derived program gives second derivatives. Each read is
its own symbol, so an array read twice contributes twice. Reshape, Gather and Scatter are linear, and each one's
adjoint is another; positions have no derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeAlias

import sympy as sp

from symcheck.building import Builder
from symcheck.functions import constant_symbol, differentiate, read_symbol
from symcheck.program import Array, Constant, Equation, Gather, Program, Read, Reshape, Scatter, Statement

__all__ = ["active_arrays", "derive"]

Jitter: TypeAlias = Callable[[], float]


def derive(
    program: Program, wrt: Sequence[str], *, prefix: str = "d", keep: bool = False, jitter: Jitter | None = None
) -> Program:
    """The program of the vector-Jacobian product: the gradient of sum(cotangent * output) by the named inputs.

    Args:
        program: the primal; every real output gets a cotangent.
        wrt: names of real inputs of the primal, or of its results: the gradient by what a statement gives, as if it
            were free.
        prefix: names the derived arrays; deriving a derived program needs another one.
        keep: put the primal's own outputs behind the gradients.
        jitter: draws by what part of f(x) / (1 + |x|) the slope of each elementary function f is moved; for `noise`,
            which measures what rounding does to a backward. None for the derivative itself.

    Returns:
        A program whose inputs are the primal's and one cotangent for each real output, named `prefix` followed by
        ``_cotangent0``, ``_cotangent1`` ..., and whose outputs are the gradients in the order of `wrt`. An input that
        no output depends on gets an absent gradient.
    """
    builder = Builder.extending(program, prefix)
    active = active_arrays(program, wrt)
    adjoints: dict[Array, list[Array]] = {}
    for position, output in enumerate(array for array in program.outputs if array.is_real):
        seed = builder.input(f"{prefix}_cotangent{position}", output.shape, output.dtype)
        adjoints.setdefault(output, []).append(seed)
    for statement in reversed(program.statements):
        contributions = adjoints.get(statement.out)
        if contributions and statement.out in active:
            builder.source, builder.operator = statement.source, statement.operator
            total = builder.add(contributions)
            adjoints[statement.out] = [total]
            for array, contribution in _pull_back(builder, statement, total, active, jitter):
                adjoints.setdefault(array, []).append(contribution)
    builder.source = builder.operator = ""
    by_name = {array.name: array for array in (*program.inputs, *(s.out for s in program.statements))}
    gradients = [
        builder.add(adjoints[array]) if adjoints.get(array) else builder.absent(array.shape, array.dtype)
        for array in (by_name[name] for name in wrt)
    ]
    return builder.program([*gradients, *(program.outputs if keep else ())], program.notes)


def active_arrays(program: Program, wrt: Sequence[str]) -> frozenset[Array]:
    """The real arrays that are named, or depend through real arrays on those."""
    named = frozenset(wrt)
    active = {array for array in program.inputs if array.name in named and array.is_real}
    for statement in program.statements:
        depends = statement.out.name in named or any(array in active for array in _differentiable(statement))
        if statement.out.is_real and depends:
            active.add(statement.out)
    return frozenset(active)


def _differentiable(statement: Statement) -> tuple[Array, ...]:
    if isinstance(statement, Equation):
        return tuple(read.array for read in statement.reads if read.array.is_real and not read.held)
    if isinstance(statement, Gather):
        return statement.sources
    if isinstance(statement, Reshape | Scatter):
        return (statement.array,)
    return ()


def _pull_back(
    builder: Builder, statement: Statement, adjoint: Array, active: frozenset[Array], jitter: Jitter | None
) -> list[tuple[Array, Array]]:
    """What one statement adds to the adjoints of the arrays it reads."""
    if isinstance(statement, Equation):
        return _pull_back_equation(builder, statement, adjoint, active, jitter)
    if isinstance(statement, Reshape):
        return [(statement.array, builder.reshape(adjoint, statement.array.shape))]
    if isinstance(statement, Scatter):
        gathered = builder.gather((adjoint,), statement.positions, statement.array.dtype, statement.offset)
        return [(statement.array, gathered)]
    if isinstance(statement, Gather):
        starts = accumulate((array.size for array in statement.sources), initial=statement.offset)
        return [
            (array, builder.scatter(adjoint, statement.positions, array.shape, start))
            for array, start in zip(statement.sources, starts, strict=False)
            if array in active
        ]
    return []


def _pull_back_equation(
    builder: Builder, equation: Equation, adjoint: Array, active: frozenset[Array], jitter: Jitter | None
) -> list[tuple[Array, Array]]:
    contributions = []
    for position, read in enumerate(equation.reads):
        if read.held or read.array not in active:
            continue
        symbol, constants = read_symbol(position), equation.constants
        slope = differentiate(equation.body, symbol)
        if jitter is not None and _is_elementary(equation.body, symbol):
            slope += constant_symbol(len(constants)) * equation.body / (1 + sp.Abs(symbol))
            constants = (*constants, jitter())
        if slope != 0:
            contributions.append((read.array, _adjoint_of_read(builder, equation, read, slope, adjoint, constants)))
    return contributions


def _is_elementary(body: sp.Expr, symbol: sp.Symbol) -> bool:
    """Whether a body applies an elementary function to a read, rather than arithmetic and choices alone."""
    return any(f.has(symbol) and not isinstance(f, sp.Piecewise | sp.Abs) for f in body.atoms(sp.Function))


def _adjoint_of_read(
    builder: Builder,
    equation: Equation,
    read: Read,
    slope: sp.Expr,
    adjoint: Array,
    constants: tuple[Constant, ...],
) -> Array:
    """sum over the axes that the read does not have of adjoint * slope, shaped like the array that was read."""
    own = [axis for axis in read.axes if axis is not None]
    rest = [axis for axis in range(len(equation.sizes)) if axis not in own]
    # The new equation's axes: one for each axis of the array (of size 1 where index 0 was read), then the rest.
    fresh = {axis: position for position, axis in enumerate(read.axes) if axis is not None}
    fresh |= {axis: len(read.axes) + position for position, axis in enumerate(rest)}
    sizes = (*read.array.shape, *(equation.sizes[axis] for axis in rest))

    def moved(axes: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if axis is None else fresh[axis] for axis in axes)

    used = [n for n in range(len(equation.reads)) if slope.has(read_symbol(n))]
    renaming = {read_symbol(n): read_symbol(1 + place) for place, n in enumerate(used)}
    outer = Read(adjoint, moved(tuple(range(len(equation.out.shape)))))
    reads = (outer, *(Read(r.array, moved(r.axes), r.held) for r in (equation.reads[n] for n in used)))
    body = read_symbol(0) * slope.xreplace(renaming)
    return builder.append_equation(read.array.shape, read.array.dtype, sizes, body, reads, constants)
