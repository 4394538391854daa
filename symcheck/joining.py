"""Joining programs into one, so that what they have in common is evaluated once.

Statements are value-numbered: two that compute the same thing from the same arrays become one. Relabellings (a
transpose, a broadcast, an axis of size 1 added or dropped) are read through, and the reads of a body are put in one
order, so that the same computation is recognised in whichever way it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symcheck.building import Builder
from symcheck.functions import read_symbol
from symcheck.program import Array, Equation, Gather, Inversion, Program, Read, Reshape, Scatter, Selection, Statement

__all__ = ["join"]


def join(programs: Sequence[Program]) -> Program:
    """One program with the outputs of all, in order; inputs of the same name are one.

    Args:
        programs: inputs of one name must have one shape.
    """
    numbering = _Numbering()
    outputs = [array for program in programs for array in numbering.enter(program)]
    return numbering.builder.program(outputs)


class _Numbering:
    """The joint program as it grows."""

    def __init__(self) -> None:
        self.builder = Builder("j")
        self.known: dict[Any, Array] = {}
        self.views: dict[Array, Read] = {}  # arrays that only relabel another one's axes
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
        if array.shape == statement.out.shape:
            return array
        out = self._append(array, replace(statement, array=array))
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
        key = (sizes, body, tuple((read.array, read.axes, read.held) for read in reads), _typed(equation.constants))
        out = self._append(key, same)
        if body == read_symbol(0) and not same.summed and out.is_real == reads[0].array.is_real and not reads[0].held:
            self._note_view(out, reads[0])
        return out

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


def _typed(constants: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple((type(value).__name__, value) for value in constants)
