"""Index equations and the programs made of them: what a traced function means, as data.

A program is a list of statements, each computing one new array from earlier ones. Most are equations

    out[i, o] = sum over k of  body( x[i, k], w[o, k], ... )

and the rest move elements about without arithmetic. Every statement is checked when it is built, so an ill-formed
program cannot exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from typing import TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.errors import IllFormed
from symcheck.functions import constant_symbol, read_symbol

__all__ = [
    "Array",
    "Constant",
    "Equation",
    "Gather",
    "Inversion",
    "Program",
    "Read",
    "Reshape",
    "Scatter",
    "Selection",
    "Statement",
]

Constant: TypeAlias = int | float | Fraction

REAL_DTYPES = frozenset({"float64", "float32", "float16", "bfloat16"})
DISCRETE_DTYPES = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64"})
RULES = frozenset({"argmax", "argmin", "argsort", "argsort descending", "cumargmax", "cumargmin"})


@dataclass(frozen=True, slots=True)
class Array:
    """A named array: an input, a constant or the result of one statement.

    Attributes:
        name: unique within its program.
        shape: its sizes, outermost first.
        dtype: what torch held it in, such as ``"float32"``; exact evaluation reads only whether it is real.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in REAL_DTYPES and self.dtype not in DISCRETE_DTYPES:
            raise IllFormed(f"{self.name} has the dtype {self.dtype}; symcheck knows real, integer and bool arrays")

    @property
    def is_real(self) -> bool:
        """Whether it holds real numbers, which have derivatives, rather than integers or truth values."""
        return self.dtype in REAL_DTYPES

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Read:
    """One read of an array by an equation: which of the equation's axes runs along each axis of the array.

    Attributes:
        array: what is read.
        axes: the equation's axis number for each axis of the array; None reads index 0 of an axis of size 1.
        held: True if the read counts as a constant when the equation is differentiated, such as the shift of a
            softmax, on which its value does not depend.
    """

    array: Array
    axes: tuple[int | None, ...]
    held: bool = False


def _index(axes: tuple[int | None, ...]) -> str:
    return ", ".join("0" if axis is None else _letter(axis) for axis in axes)


def _letter(axis: int) -> str:
    return "ijklmnopqrstuvwxyz"[axis] if axis < 18 else f"i{axis}"


@dataclass(frozen=True, slots=True)
class Equation:
    """out[first axes] = sum over the other axes of body(reads, constants).

    Attributes:
        out: the result; its axes are the equation's axes 0 .. ndim-1.
        sizes: the size of every axis, summed ones last.
        body: a scalar expression in `read_symbol(n)` for the reads and `constant_symbol(n)` for the constants.
        reads: what is read, in the order of the symbols.
        constants: sizes and literals, beside the body so that bodies are shared across shapes.
        source: the user's source line, or ``""``.
        operator: the traced operator that this came from, or ``""``.
    """

    out: Array
    sizes: tuple[int, ...]
    body: sp.Expr
    reads: tuple[Read, ...]
    constants: tuple[Constant, ...] = ()
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.sizes[: len(self.out.shape)] != self.out.shape:
            raise IllFormed(f"{self.out} cannot be the result of axes of sizes {self.sizes}")
        for read in self.reads:
            self._check(read)
        allowed = {read_symbol(n) for n in range(len(self.reads))}
        allowed |= {constant_symbol(n) for n in range(len(self.constants))}
        if not self.body.free_symbols <= allowed:
            raise IllFormed(f"the body {self.body} uses symbols beyond its reads and constants")

    def _check(self, read: Read) -> None:
        named = [axis for axis in read.axes if axis is not None]
        if len(read.axes) != len(read.array.shape) or len(set(named)) != len(named):
            raise IllFormed(f"{read.array} read with axes {read.axes}")
        for axis, size in zip(read.axes, read.array.shape, strict=True):
            if size != (1 if axis is None else self.sizes[axis]):
                raise IllFormed(f"{read.array} read with axes {read.axes} of sizes {self.sizes}")

    @property
    def summed(self) -> tuple[int, ...]:
        """The axes summed over."""
        return tuple(range(len(self.out.shape), len(self.sizes)))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read, in order, with repetition."""
        return tuple(read.array for read in self.reads)

    def __str__(self) -> str:
        reads = {read_symbol(n): f"{r.array.name}[{_index(r.axes)}]" for n, r in enumerate(self.reads)}
        values = {constant_symbol(n): str(value) for n, value in enumerate(self.constants)}
        names = {symbol: sp.Symbol(text) for symbol, text in {**reads, **values}.items()}
        total = f"sum over {', '.join(map(_letter, self.summed))} of " if self.summed else ""
        left = f"{self.out.name}[{_index(tuple(range(len(self.out.shape))))}]"
        return f"{left} = {total}{self.body.xreplace(names)}"


@dataclass(frozen=True, slots=True)
class Reshape:
    """out holds the elements of array in the same row-major order, in another shape."""

    out: Array
    array: Array
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.out.size != self.array.size:
            raise IllFormed(f"{self.array} reshaped to {self.out}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read."""
        return (self.array,)

    def __str__(self) -> str:
        return f"{self.out.name} = reshape {self.array.name} to {self.out.shape}"


@dataclass(frozen=True, slots=True)
class Gather:
    """out.flat[p] = concatenation(sources).flat[positions.flat[p] - offset], absent where that lies outside.

    Absent is zero whatever it is multiplied by. Its adjoint is Scatter.
    """

    out: Array
    sources: tuple[Array, ...]
    positions: Array
    offset: int = 0
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.positions.shape != self.out.shape or self.positions.is_real:
            raise IllFormed(f"{self.out} gathered by positions {self.positions}")
        if any(array.is_real != self.out.is_real for array in self.sources):
            raise IllFormed(f"{self.out} gathered from {', '.join(map(str, self.sources))}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read, positions last."""
        return (*self.sources, self.positions)

    def __str__(self) -> str:
        shift = f" - {self.offset}" if self.offset else ""
        names = ", ".join(array.name for array in self.sources)
        return f"{self.out.name} = gather ({names}) at {self.positions.name}{shift}"


@dataclass(frozen=True, slots=True)
class Scatter:
    """out.flat[positions.flat[p] - offset] += array.flat[p], from absent; positions outside are dropped.

    Its adjoint is Gather.
    """

    out: Array
    array: Array
    positions: Array
    offset: int = 0
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.positions.shape != self.array.shape or self.positions.is_real:
            raise IllFormed(f"{self.array} scattered to positions {self.positions}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read, positions last."""
        return (self.array, self.positions)

    def __str__(self) -> str:
        shift = f" - {self.offset}" if self.offset else ""
        return f"{self.out.name} = scatter-add {self.array.name} to {self.positions.name}{shift}"


@dataclass(frozen=True, slots=True)
class Selection:
    """out holds integer positions along the last axis of array, chosen by its values.

    argmax, argmin: the first such position, the last axis dropped. argsort: a stable permutation of it.
    cumargmax, cumargmin: at each position, the last position so far that holds the extreme so far.
    """

    out: Array
    array: Array
    rule: str
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise IllFormed(f"no selection rule {self.rule!r}; there are {', '.join(sorted(RULES))}")
        expected = self.array.shape[:-1] if self.rule in ("argmax", "argmin") else self.array.shape
        if self.out.shape != expected or self.out.is_real:
            raise IllFormed(f"{self.out} selected by {self.rule} from {self.array}")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read."""
        return (self.array,)

    def __str__(self) -> str:
        return f"{self.out.name} = {self.rule} of {self.array.name} along its last axis"


@dataclass(frozen=True, slots=True)
class Inversion:
    """out.flat[q] = the last p with positions.flat[p] == q, or -1: who wrote q."""

    out: Array
    positions: Array
    source: str = ""
    operator: str = ""

    def __post_init__(self) -> None:
        if self.out.is_real or self.positions.is_real:
            raise IllFormed(f"{self.out} inverts {self.positions}: both must be integers")

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays read."""
        return (self.positions,)

    def __str__(self) -> str:
        return f"{self.out.name} = inverse of the positions {self.positions.name}"


Statement: TypeAlias = Equation | Reshape | Gather | Scatter | Selection | Inversion


@dataclass(frozen=True, slots=True)
class Program:
    """Inputs, constants, statements in order, and outputs.

    Attributes:
        inputs: what must be given to evaluate it.
        constants: arrays with their values: closed-over tensors, static positions.
        statements: each reads only inputs, constants and earlier results.
        outputs: any of those arrays.
    """

    inputs: tuple[Array, ...]
    constants: Mapping[Array, NDArray[np.generic]]
    statements: tuple[Statement, ...]
    outputs: tuple[Array, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        known: dict[str, Array] = {}
        for array in (*self.inputs, *self.constants):
            self._define(known, array)
        for statement in self.statements:
            for array in statement.arrays:
                self._require(known, array)
            self._define(known, statement.out)
        for array in self.outputs:
            self._require(known, array)

    @staticmethod
    def _define(known: dict[str, Array], array: Array) -> None:
        if array.name in known:
            raise IllFormed(f"{array.name} is defined twice")
        known[array.name] = array

    @staticmethod
    def _require(known: dict[str, Array], array: Array) -> None:
        if known.get(array.name) != array:
            raise IllFormed(f"{array} is read before it is defined")

    def __str__(self) -> str:
        lines = [f"inputs: {', '.join(map(str, self.inputs))}"]
        if self.constants:
            lines.append(f"constants: {', '.join(map(str, self.constants))}")
        lines += [str(statement) for statement in self.statements]
        return "\n".join([*lines, f"outputs: {', '.join(array.name for array in self.outputs)}"])
