"""Building a program, statement by statement: names, broadcasting, and the shorthand that meanings are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.errors import IllFormed
from symcheck.functions import constant_symbol, parse, read_symbol
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

__all__ = ["Builder", "Held", "Operand"]


class Held:
    """An array to be read as a constant: differentiation passes it by."""

    def __init__(self, array: Array) -> None:
        self.array = array


Operand: TypeAlias = "Array | Held | Constant"

LITERALS = (-2, -1, 0, 0.5, 1, 2, 3)


class Builder:
    """Collects statements; each method appends what it needs and returns the resulting array.

    Attributes:
        source: the user's source line, written into every statement appended while it is set.
        operator: the traced operator, likewise.
        results: the shape and dtype of each result that the traced operator had; a meaning may consult them.
        layouts: of each tensor that the traced operator read: its strides, and whether it starts its memory.
        guards: discrete arrays that a shape depends on, with the source lines; they must be decided strictly.
        unset: constants that stand for memory never written; no output may depend on them.
    """

    def __init__(self, prefix: str = "t") -> None:
        self.inputs: list[Array] = []
        self.constants: dict[Array, NDArray[np.generic]] = {}
        self.statements: list[Statement] = []
        self.source = self.operator = ""
        self.results: tuple[tuple[tuple[int, ...], str], ...] = ()
        self.layouts: tuple[tuple[tuple[int, ...], bool], ...] = ()
        self.guards: list[tuple[Array, str]] = []
        self.unset: list[Array] = []
        self._prefix, self._count = prefix, 0
        self._interned: dict[tuple[tuple[int, ...], str, bytes], Array] = {}

    @classmethod
    def extending(cls, program: Program, prefix: str) -> Builder:
        """A builder that starts with everything in a program; `prefix` names what is added."""
        builder = cls(prefix)
        builder.inputs, builder.constants = list(program.inputs), dict(program.constants)
        builder.statements = list(program.statements)
        return builder

    def program(self, outputs: Sequence[Array], notes: tuple[str, ...] = ()) -> Program:
        """What was built, without the statements and constants that no output depends on."""
        needed = {array.name for array in outputs}
        kept: list[Statement] = []
        for statement in reversed(self.statements):
            if statement.out.name in needed:
                kept.append(statement)
                needed.update(array.name for array in statement.arrays)
        constants = {array: value for array, value in self.constants.items() if array.name in needed}
        return Program(tuple(self.inputs), constants, tuple(reversed(kept)), tuple(outputs), notes)

    @property
    def result_dtype(self) -> str:
        """The dtype of the first result that the traced operator had."""
        return self.results[0][1]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the first result that the traced operator had."""
        return self.results[0][0]

    # -- arrays ---------------------------------------------------------------------------------------------------

    def fresh(self, shape: Sequence[int], dtype: str) -> Array:
        """A new array with a name of its own."""
        self._count += 1
        return Array(f"{self._prefix}{self._count}", tuple(map(int, shape)), dtype)

    def input(self, name: str, shape: Sequence[int], dtype: str) -> Array:
        """Declare an input."""
        array = Array(name, tuple(map(int, shape)), dtype)
        self.inputs.append(array)
        return array

    def constant(self, value: Any, dtype: str | None = None) -> Array:
        """An array with a fixed value; equal small ones are shared."""
        values = np.asarray(value)
        dtype = dtype or str(values.dtype)
        key = (values.shape, dtype, values.tobytes()) if values.size <= 4096 else None
        if key is not None and key in self._interned:
            return self._interned[key]
        array = self.fresh(values.shape, dtype)
        self.constants[array] = values
        if key is not None:
            self._interned[key] = array
        return array

    def uninitialised(self, shape: Sequence[int], dtype: str) -> Array:
        """Memory that was never written."""
        array = self.fresh(shape, dtype)
        self.constants[array] = np.zeros(array.shape, dtype=np.float64 if array.is_real else np.int64)
        self.unset.append(array)
        return array

    def absent(self, shape: Sequence[int], dtype: str) -> Array:
        """Zeros that stay zero whatever they are multiplied by."""
        return self.gather((), np.full(tuple(shape), -1), dtype)

    def value_of(self, array: Array) -> NDArray[np.generic] | None:
        """The value of a constant array; None for any other."""
        return self.constants.get(array)

    # -- equations ------------------------------------------------------------------------------------------------

    def equation(
        self, spec: str, body: sp.Expr | str, *operands: Operand, dtype: str | None = None, sizes: Any = None
    ) -> Array:
        """Append an equation in the notation of einsum, with any scalar body.

        Args:
            spec: one letter an axis, such as ``"ik,jk->ij"``; letters missing on the right are summed. An axis of
                size 1 whose letter has another size elsewhere is read at index 0.
            body: an expression in a0, a1 ... for the arrays and c0, c1 ... for the plain numbers among `operands`,
                each counted from 0 in their order.
            operands: arrays, `Held` arrays, and numbers.
            dtype: of the result; that of the first array by default.
            sizes: {letter: size} for letters that no array has.
        """
        left, right = spec.split("->")
        arrays = [operand for operand in operands if isinstance(operand, Array | Held)]
        constants = tuple(operand for operand in operands if not isinstance(operand, Array | Held))
        terms = left.split(",") if arrays else []
        if len(terms) != len(arrays):
            raise IllFormed(f"{spec!r} has {len(terms)} terms for {len(arrays)} arrays")
        extent: dict[str, int] = dict(sizes or {})
        for term, operand in zip(terms, arrays, strict=True):
            array = operand.array if isinstance(operand, Held) else operand
            if len(term) != len(array.shape):
                raise IllFormed(f"the term {term!r} of {spec!r} for {array}")
            for letter, size in zip(term, array.shape, strict=True):
                if extent.get(letter, 1) == 1:
                    extent[letter] = size
        order = [*right, *sorted(set(extent) - set(right))]
        reads = tuple(self._read(term, operand, order, extent) for term, operand in zip(terms, arrays, strict=True))
        expression = parse(body) if isinstance(body, str) else body
        expression, constants = _inline_literals(expression, constants)
        shape = [extent[letter] for letter in right]
        first = dtype or (reads[0].array.dtype if reads else "float64")
        return self.append_equation(shape, first, [extent[letter] for letter in order], expression, reads, constants)

    def append_equation(
        self,
        shape: Sequence[int],
        dtype: str,
        sizes: Sequence[int],
        body: sp.Expr,
        reads: tuple[Read, ...],
        constants: tuple[Constant, ...],
    ) -> Array:
        """Append an equation whose axes are already numbered; constants that the body lacks are left out."""
        used = [n for n in range(len(constants)) if body.has(constant_symbol(n))]
        if len(used) < len(constants):
            body = body.xreplace({constant_symbol(n): constant_symbol(place) for place, n in enumerate(used)})
        kept = tuple(constants[n] for n in used)
        out = self.fresh(shape, dtype)
        return self._append(Equation(out, tuple(sizes), body, reads, kept, self.source, self.operator))

    @staticmethod
    def _read(term: str, operand: Array | Held, order: list[str], extent: dict[str, int]) -> Read:
        held = isinstance(operand, Held)
        array = operand.array if isinstance(operand, Held) else operand
        axes = tuple(
            order.index(letter) if size == extent[letter] else None
            for letter, size in zip(term, array.shape, strict=True)
        )
        return Read(array, axes, held)

    def pointwise(self, body: sp.Expr | str, *operands: Operand, dtype: str | None = None) -> Array:
        """Append an elementwise equation; arrays broadcast from the right, as torch does."""
        arrays = [o.array if isinstance(o, Held) else o for o in operands if isinstance(o, Array | Held)]
        rank = max((len(array.shape) for array in arrays), default=0)
        letters = _letters(rank)
        terms = ",".join(letters[rank - len(array.shape) :] for array in arrays)
        return self.equation(f"{terms}->{letters}", body, *operands, dtype=dtype)

    def cast(self, array: Array, dtype: str) -> Array:
        """The same values in another dtype: exact between real dtypes, truncation from real to integer."""
        if array.dtype == dtype:
            return array
        if dtype == "bool":
            return self.pointwise("Piecewise((1, Ne(a0, 0)), (0, True))", array, dtype=dtype)
        if array.is_real and dtype in ("uint8", "int8", "int16", "int32", "int64"):
            return self.pointwise("trunc(a0)", array, dtype=dtype)
        return self.pointwise("a0", array, dtype=dtype)

    def sum(self, array: Array, dims: Sequence[int] | None = None, keepdim: bool = False, body: str = "a0") -> Array:
        """The sum of body(element) over some axes, all by default; `body` may use c0, the number of summands."""
        rank = len(array.shape)
        chosen = range(rank) if dims is None or (len(dims) == 0) else [dim % rank for dim in dims] if rank else []
        letters = _letters(rank)
        kept = "".join(letter for axis, letter in enumerate(letters) if axis not in chosen)
        count = prod(array.shape[axis] for axis in chosen)
        operands: tuple[Operand, ...] = (array, count) if "c0" in body else (array,)
        out = self.equation(f"{letters}->{kept}", body, *operands)
        if not keepdim:
            return out
        return self.reshape(out, [1 if axis in chosen else size for axis, size in enumerate(array.shape)])

    def mean(self, array: Array, dims: Sequence[int] | None = None, keepdim: bool = False) -> Array:
        """The mean over some axes, all by default."""
        return self.sum(array, dims, keepdim, "a0/c0")

    def expand(self, array: Array, shape: Sequence[int]) -> Array:
        """Broadcast to a shape, new axes first."""
        letters = _letters(len(shape))
        sizes = dict(zip(letters, map(int, shape), strict=True))
        return self.equation(f"{letters[len(shape) - len(array.shape) :]}->{letters}", "a0", array, sizes=sizes)

    def permute(self, array: Array, dims: Sequence[int]) -> Array:
        """The axes in another order."""
        letters, rank = _letters(len(array.shape)), len(array.shape)
        order = [dim % rank for dim in dims]
        if order == list(range(rank)):
            return array
        return self.equation(f"{letters}->{''.join(letters[dim] for dim in order)}", "a0", array)

    def add(self, arrays: Sequence[Array]) -> Array:
        """The sum of arrays of one shape."""
        if len(arrays) == 1:
            return arrays[0]
        return self.pointwise(sp.Add(*(read_symbol(n) for n in range(len(arrays)))), *arrays)

    # -- moving elements ------------------------------------------------------------------------------------------

    def reshape(self, array: Array, shape: Sequence[int]) -> Array:
        """The same elements in row-major order, in another shape."""
        if tuple(shape) == array.shape:
            return array
        return self._append(Reshape(self.fresh(shape, array.dtype), array, self.source, self.operator))

    def gather(
        self,
        sources: Sequence[Array],
        positions: NDArray[np.generic] | Array,
        dtype: str | None = None,
        offset: int = 0,
    ) -> Array:
        """Elements of the concatenated flat sources; -1 is absent."""
        where = positions if isinstance(positions, Array) else self.constant(np.asarray(positions, dtype=np.int64))
        out = self.fresh(where.shape, dtype or sources[0].dtype)
        return self._append(Gather(out, tuple(sources), where, offset, self.source, self.operator))

    def scatter(
        self, array: Array, positions: NDArray[np.generic] | Array, shape: Sequence[int], offset: int = 0
    ) -> Array:
        """Add elements at flat positions of a zero array of the given shape; positions outside are dropped."""
        where = positions if isinstance(positions, Array) else self.constant(np.asarray(positions, dtype=np.int64))
        out = self.fresh(shape, array.dtype)
        return self._append(Scatter(out, array, where, offset, self.source, self.operator))

    def rearrange(self, array: Array, operator: Callable[[NDArray[np.int64]], Any]) -> Array:
        """Apply an operator that only moves elements, by applying it to the positions."""
        return self.gather((array,), np.asarray(operator(np.arange(array.size).reshape(array.shape))))

    def select(self, array: Array, rule: str) -> Array:
        """Positions along the last axis, chosen by value: see `Selection`."""
        shape = array.shape[:-1] if rule in ("argmax", "argmin") else array.shape
        return self._append(Selection(self.fresh(shape, "int64"), array, rule, self.source, self.operator))

    def take_last(self, array: Array, index: Array) -> Array:
        """array[..., index[...]]: elements at integer positions along the last axis.

        `index` has the leading shape of `array`, and one more axis if several are taken from each row.
        """
        rows = prod(array.shape[:-1])
        several = len(index.shape) == len(array.shape)
        start = np.arange(rows).reshape(array.shape[:-1]) * array.shape[-1]
        base = self.constant(start[..., None] if several else start)
        return self.gather((array,), self.pointwise("a0 + a1", index, base, dtype="int64"))

    def invert(self, positions: Array, shape: Sequence[int]) -> Array:
        """For every element of `shape`, the last flat position that names it, or -1."""
        return self._append(Inversion(self.fresh(shape, "int64"), positions, self.source, self.operator))

    def overwrite(self, array: Array, positions: NDArray[np.generic] | Array, values: Array) -> Array:
        """`array` with array.flat[positions] replaced by `values`, which has the shape of `positions`."""
        where = positions if isinstance(positions, Array) else self.constant(np.asarray(positions, dtype=np.int64))
        writer = self.invert(where, array.shape)
        own = self.constant(np.arange(array.size).reshape(array.shape))
        chosen = self.pointwise("Piecewise((a1, a0 < 0), (a0 + c0, True))", writer, own, array.size, dtype="int64")
        return self.gather((array, values), chosen)

    def nonzero(self, mask: Array, count: int) -> Array:
        """The flat positions of the `count` elements that are not 0, ascending; their number becomes a guard."""
        self.guards.append((mask, self.source))
        last = self.pointwise("Piecewise((1, Eq(a0, 0)), (0, True))", self.reshape(mask, [mask.size]), dtype="int64")
        order = self.select(last, "argsort")
        return self.rearrange(order, lambda positions: positions[:count])

    def _append(self, statement: Statement) -> Array:
        self.statements.append(statement)
        return statement.out


def _letters(count: int) -> str:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    if count > len(letters):
        raise IllFormed(f"an array of {count} axes; at most {len(letters)} can be named")
    return letters[:count]


def _inline_literals(body: sp.Expr, constants: tuple[Constant, ...]) -> tuple[sp.Expr, tuple[Constant, ...]]:
    # Small literals shape the derivative (x**2, 1 - x), so they stand in the body; all others stay beside it.
    # An exponent always does: a derivative by x of x**n must not keep log(x).
    kept: list[Constant] = []
    replacement: dict[sp.Symbol, sp.Expr] = {}
    exponents = {s for power in body.atoms(sp.Pow) for s in power.exp.free_symbols}
    for position, value in enumerate(constants):
        symbol = constant_symbol(position)
        if isinstance(value, bool):
            value = int(value)
        if value in LITERALS or (symbol in exponents and np.isfinite(float(value))):
            replacement[symbol] = sp.Rational(value) if isinstance(value, int | float) else sp.Rational(str(value))
        else:
            replacement[symbol] = constant_symbol(len(kept))
            kept.append(value)
    return body.xreplace(replacement), tuple(kept)
