"""Joining programs into one, so that what they have in common is evaluated once.

Statements are value-numbered: two that compute the same thing from the same arrays become one. Relabellings (a
transpose, a broadcast, an axis of size 1 added or dropped) are read through, elementwise steps are written out down to
what they start from and expanded, and the reads of a body are put in one order, so that the same computation is
recognised in whichever way it was written. What is evaluated stays as it was written: expanding would cancel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import sympy as sp

from symcheck.building import Builder
from symcheck.functions import constant_symbol, read_symbol
from symcheck.program import (
    Array,
    Constant,
    Equation,
    Gather,
    Inversion,
    Program,
    Read,
    Reshape,
    Scatter,
    Selection,
    Statement,
)

__all__ = ["join"]

EXACT_BITS = 27  # significant bits up to which a literal is the number that it stands for
WRITTEN_OUT = 24  # operations in a body with the steps before it put in, above which it stays as it is


def join(programs: Sequence[Program]) -> Program:
    """One program with the outputs of all, in order; inputs of the same name are one.

    Args:
        programs: inputs of one name must have one shape.
    """
    numbering = _Numbering()
    outputs = [array for program in programs for array in numbering.enter(program)]
    return numbering.builder.program(outputs)


@dataclass(frozen=True, slots=True)
class _Form:
    """What an equation computes: its body, constants included, over reads in one order."""

    sizes: tuple[int, ...]
    body: sp.Expr
    reads: tuple[Read, ...]
    constants: tuple[sp.Expr, ...] = ()  # of a body that stays as it is


class _Numbering:
    """The joint program as it grows."""

    def __init__(self) -> None:
        self.builder = Builder("j")
        self.known: dict[Any, Array] = {}
        self.views: dict[Array, Read] = {}  # arrays that only relabel another one's axes
        self.unshaped: dict[Array, Array] = {}  # what a reshape reads
        self.forms: dict[Array, _Form] = {}  # of elementwise steps
        self.rank: dict[Array, int] = {}  # in the order of their appearance

    def enter(self, program: Program) -> list[Array]:
        """Add a program; its outputs as arrays of the joint one."""
        own: dict[Array, Array] = {}
        for array in program.inputs:
            own[array] = self._shared(("input", array.name), lambda array=array: self._input(array))
        for array, value in program.constants.items():
            values = np.asarray(value)
            key = ("constant", array.shape, array.is_real, str(values.dtype), values.tobytes())
            if values.dtype == object:
                key = ("constant", array.shape, array.is_real, tuple(values.reshape(-1).tolist()))  # type: ignore[assignment]
            own[array] = self._shared(key, lambda values=values, array=array: self._constant(values, array))
        for statement in program.statements:
            own[statement.out] = self._add(statement, own)
        return [own[array] for array in program.outputs]

    def _input(self, array: Array) -> Array:
        return self.builder.input(array.name, array.shape, array.dtype)

    def _constant(self, values: Any, array: Array) -> Array:
        fresh = self.builder.fresh(array.shape, array.dtype)
        self.builder.constants[fresh] = values
        return fresh

    def _shared(self, key: Any, make: Any) -> Array:
        if key not in self.known:
            array = make()
            self.known[key] = array
            self.rank[array] = len(self.rank)
        return self.known[key]

    def _append(self, key: Any, statement: Statement) -> Array:
        def make() -> Array:
            out = self.builder.fresh(statement.out.shape, statement.out.dtype)
            self.builder.statements.append(replace(statement, out=out))
            return out

        return self._shared((type(statement).__name__, statement.out.shape, statement.out.is_real, key), make)

    def _add(self, statement: Statement, own: dict[Array, Array]) -> Array:
        if isinstance(statement, Equation):
            return self._add_equation(statement, own)
        if isinstance(statement, Reshape):
            return self._add_reshape(statement, own[statement.array])
        if isinstance(statement, Gather):
            sources, positions = tuple(own[array] for array in statement.sources), own[statement.positions]
            moved = replace(statement, sources=sources, positions=positions)
            return self._append((sources, positions, statement.offset), moved)
        if isinstance(statement, Scatter):
            array, positions = own[statement.array], own[statement.positions]
            moved_scatter = replace(statement, array=array, positions=positions)
            return self._append((array, positions, statement.offset), moved_scatter)
        if isinstance(statement, Selection):
            array = own[statement.array]
            return self._append((array, statement.rule), replace(statement, array=array))
        assert isinstance(statement, Inversion)
        positions = own[statement.positions]
        return self._append(positions, replace(statement, positions=positions))

    # -- reshapes and relabellings --------------------------------------------------------------------------------

    def _add_reshape(self, statement: Reshape, array: Array) -> Array:
        array = self.unshaped.get(array, array)  # a reshape of a reshape is one of what that one reads
        if array.shape == statement.out.shape:
            return array
        out = self._append(array, replace(statement, array=array))
        self.unshaped[out] = array
        long = [axis for axis, size in enumerate(statement.out.shape) if size != 1]
        if [statement.out.shape[axis] for axis in long] == [size for size in array.shape if size != 1]:
            axes = iter(long)
            self._note_view(out, Read(array, tuple(None if size == 1 else next(axes) for size in array.shape)))
        return out

    def _note_view(self, out: Array, read: Read) -> None:
        """Remember that out[i, j ...] is `read`, whose axes are those of `out`."""
        through = self.views.get(read.array)
        self.views[out] = read if through is None else Read(through.array, _through(read.axes, through))

    def _add_equation(self, equation: Equation, own: dict[Array, Array]) -> Array:
        reads = tuple(self._read_through(Read(own[read.array], read.axes, read.held)) for read in equation.reads)
        if _is_copy(equation, reads):
            return reads[0].array
        sizes, reads, body = self._ordered(equation, reads)
        same = Equation(
            equation.out, sizes, body, reads, equation.constants, equation.source, equation.operator
        )  # checked anew: the reads changed
        form = self._written_out(same)
        turned = self._transposed(same)
        if turned is not None:
            return turned
        out = self._append(form, same)
        if not same.summed and out.is_real and out not in self.forms and not form.body.has(sp.Piecewise):
            self.forms[out] = form
        if body == read_symbol(0) and not same.summed and out.is_real == reads[0].array.is_real and not reads[0].held:
            self._note_view(out, reads[0])
        return out

    def _written_out(self, equation: Equation) -> _Form:
        """An equation's body with the elementwise steps that it reads put in, down to what they start from."""
        reads: dict[Read, int] = {}
        parts: list[tuple[sp.Expr, tuple[int, ...]]] = []
        for read in equation.reads:
            form = None if read.held or not equation.out.is_real else self.forms.get(read.array)
            inner = (read,) if form is None else tuple(_moved(own, read.axes) for own in form.reads)
            places = tuple(reads.setdefault(own, len(reads)) for own in inner)
            parts.append((read_symbol(0) if form is None else form.body, places))
        constants = tuple(map(_constant, equation.constants))
        body = _put_together(equation.body, constants, tuple(parts))
        if body is None:
            return _Form(equation.sizes, equation.body, equation.reads, constants)
        used = [read for read, place in reads.items() if body.has(read_symbol(place))]
        order = sorted(used, key=lambda r: (self.rank[r.array], r.held, tuple(-1 if a is None else a for a in r.axes)))
        renaming = {read_symbol(reads[read]): read_symbol(n) for n, read in enumerate(order)}
        return _Form(equation.sizes, body.xreplace(renaming), tuple(order))

    def _transposed(self, equation: Equation) -> Array | None:
        """The result as the transpose of one that is known; None if there is none."""
        rank = len(equation.out.shape)
        if rank < 2 or not equation.summed:
            return None
        swap = {rank - 2: rank - 1, rank - 1: rank - 2}
        axes = tuple(swap.get(axis, axis) for axis in range(len(equation.sizes)))
        sizes = tuple(equation.sizes[axis] for axis in axes)
        turned = Equation(
            replace(equation.out, shape=sizes[:rank]),
            sizes,
            equation.body,
            tuple(_moved(read, axes) for read in equation.reads),
            equation.constants,
        )
        ordered = self._ordered(turned, turned.reads)
        other = self._written_out(replace(turned, sizes=ordered[0], reads=ordered[1], body=ordered[2]))
        known = self.known.get(("Equation", sizes[:rank], equation.out.is_real, other))
        if known is None:
            return None
        read = Read(known, axes[:rank])
        return self._add_equation(
            replace(equation, sizes=equation.out.shape, body=read_symbol(0), reads=(read,), constants=()),
            {known: known},
        )

    def _read_through(self, read: Read) -> Read:
        view = self.views.get(read.array)
        return read if view is None else Read(view.array, _through(read.axes, view), read.held)

    def _ordered(self, equation: Equation, reads: tuple[Read, ...]) -> tuple[tuple[int, ...], tuple[Read, ...], Any]:
        """Equal reads merged, the reads in one order, and the summed axes numbered as they appear in it."""
        kept = len(equation.out.shape)

        def rank(read: Read) -> Any:
            seen = tuple(-2 if axis is None else axis if axis < kept else -1 for axis in read.axes)
            return self.rank[read.array], seen, read.held

        order = sorted(dict.fromkeys(reads), key=rank)
        renaming = {read_symbol(n): read_symbol(order.index(read)) for n, read in enumerate(reads)}
        axes = [axis for read in order for axis in read.axes if axis is not None and axis >= kept]
        rest = [axis for axis in equation.summed if axis not in axes]
        fresh = {axis: kept + place for place, axis in enumerate(dict.fromkeys([*axes, *rest]))}
        fresh |= {axis: axis for axis in range(kept)}
        sizes = tuple(equation.sizes[axis] for axis in sorted(fresh, key=lambda axis: fresh[axis]))
        moved = tuple(
            Read(read.array, tuple(None if axis is None else fresh[axis] for axis in read.axes), read.held)
            for read in order
        )
        return sizes, moved, equation.body.xreplace(renaming)


def _through(axes: tuple[int | None, ...], view: Read) -> tuple[int | None, ...]:
    """The axes at which what is behind a view is read, where the view is read at `axes`."""
    return tuple(None if axis is None else axes[axis] for axis in view.axes)


def _is_copy(equation: Equation, reads: tuple[Read, ...]) -> bool:
    """Whether an equation only copies an array, such as a cast between real dtypes."""
    return (
        equation.body == read_symbol(0)
        and len(reads) == 1
        and not reads[0].held
        and reads[0].array.is_real == equation.out.is_real
        and reads[0].array.shape == equation.out.shape == equation.sizes
        and reads[0].axes == tuple(range(len(equation.sizes)))
    )


def _moved(read: Read, axes: tuple[int | None, ...]) -> Read:
    """A read of axes that are themselves read at `axes`."""
    return Read(read.array, _through(axes, read), read.held)


def _constant(value: Constant) -> sp.Expr:
    """A constant of a body: what is exact itself, any other as a symbol of its value."""
    if isinstance(value, int):
        return sp.Integer(value)
    short = isinstance(value, float) and np.isfinite(value) and _bits(Fraction(value)) <= EXACT_BITS
    if isinstance(value, Fraction) or short:
        exact = Fraction(value)
        return sp.Rational(exact.numerator, exact.denominator)
    return sp.Symbol(f"c_{float(value).hex()}", real=True)


def _bits(value: Fraction) -> int:
    odd = abs(value.numerator)
    return (odd // (odd & -odd or 1)).bit_length()


@lru_cache(maxsize=65536)
def _put_together(
    body: sp.Expr, constants: tuple[sp.Expr, ...], parts: tuple[tuple[sp.Expr, tuple[int, ...]], ...]
) -> sp.Expr | None:
    """A body with bodies in the place of its reads, multiplied out; None if it would be too large, or has branches.

    Args:
        body: of an equation.
        constants: their values.
        parts: for each read a body, and which reads of the result its own are.
    """
    if int(body.count_ops()) + sum(int(part.count_ops()) for part, _ in parts) > WRITTEN_OUT:
        return None
    if any(part.has(sp.Piecewise) for part in (body, *(part for part, _ in parts))):
        return None  # SymPy rearranges conditions at every substitution, and may never end
    values: dict[sp.Symbol, sp.Expr] = {constant_symbol(n): value for n, value in enumerate(constants)}
    for n, (part, places) in enumerate(parts):
        renaming = {read_symbol(own): read_symbol(place) for own, place in enumerate(places)}
        values[read_symbol(n)] = part.xreplace(renaming)
    return sp.expand(body.xreplace(values), power_base=False, power_exp=False, log=False, basic=False)
