"""Evaluating a program in a number system: one pass over its statements, releasing what is no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.compiling import compile_body
from symcheck.arithmetic.factoring import Factor, factor
from symcheck.arithmetic.layout import Numbers, align, contraction
from symcheck.errors import Misuse
from symcheck.program import Array, Equation, Gather, Inversion, Program, Reshape, Scatter, Selection, Statement

__all__ = ["TILE", "Values", "evaluate", "evaluate_statement"]

TILE = 1 << 16  # elements of an elementwise grid worked on at once, so that intermediates stay in the cache

Values: TypeAlias = dict[str, Any]
Step: TypeAlias = "Callable[[Statement, Values, Numbers[Any]], Any]"


def evaluate(
    program: Program,
    inputs: Mapping[str, NDArray[np.generic]],
    numbers: Numbers[Any],
    *,
    moving: Sequence[str] | None = None,
    visit: Callable[[Statement, Any], Any] | None = None,
    step: Step | None = None,
) -> list[Any]:
    """Evaluate a program at given inputs.

    Args:
        program: what to evaluate.
        inputs: one array per input, by name, shape as declared.
        numbers: the number system.
        moving: the inputs that a derivative moves; ties among the others are no kinks. All real ones by default.
        visit: given each statement and its value, returns the value to go on with.
        step: evaluates one statement from the values so far; `evaluate_statement` by default.

    Returns:
        One value of the number system per output, in order.

    Raises:
        Misuse: an input is missing or has another shape than declared.
    """
    values: Values = {}
    for array in program.inputs:
        active = array.is_real and (moving is None or array.name in moving)
        values[array.name] = numbers.lift(_given(array, inputs), real=array.is_real, active=active)
    for array, constant in program.constants.items():
        values[array.name] = numbers.lift(constant, real=array.is_real, active=False)
    last = _last_uses(program)
    step = step or evaluate_statement
    with np.errstate(all="ignore"):
        for position, statement in enumerate(program.statements):
            value = step(statement, values, numbers)
            values[statement.out.name] = value if visit is None else visit(statement, value)
            for name in last.get(position, ()):
                values.pop(name, None)
    return [values[array.name] for array in program.outputs]


def _given(array: Array, inputs: Mapping[str, NDArray[np.generic]]) -> NDArray[np.generic]:
    if array.name not in inputs:
        raise Misuse(f"no value for the input {array.name}; given: {', '.join(inputs) or 'nothing'}")
    value = np.asarray(inputs[array.name])
    if value.shape != array.shape:
        raise Misuse(f"the input {array.name} has the shape {value.shape}; the program was traced at {array.shape}")
    return value


def _last_uses(program: Program) -> dict[int, list[str]]:
    ends: dict[str, int] = {}
    for position, statement in enumerate(program.statements):
        ends[statement.out.name] = position
        for array in statement.arrays:
            ends[array.name] = position
    for array in program.outputs:
        ends.pop(array.name, None)
    released: dict[int, list[str]] = {}
    for name, position in ends.items():
        released.setdefault(position, []).append(name)
    return released


def evaluate_statement(statement: Statement, values: Values, numbers: Numbers[Any]) -> Any:
    """The value of one statement, from the values of the arrays that it reads."""
    if isinstance(statement, Equation):
        return _evaluate_equation(statement, values, numbers)
    if isinstance(statement, Reshape):
        shape = statement.out.shape
        return numbers.map_arrays(lambda array: array.reshape(shape), values[statement.array.name])
    if isinstance(statement, Gather):
        sources = [values[array.name] for array in statement.sources]
        positions = values[statement.positions.name]
        return numbers.gather(sources, positions, statement.offset, real=statement.out.is_real)
    if isinstance(statement, Scatter):
        value, positions = values[statement.array.name], values[statement.positions.name]
        return numbers.scatter(value, positions, statement.offset, statement.out.shape)
    if isinstance(statement, Selection):
        return numbers.select(values[statement.array.name], statement.rule)
    assert isinstance(statement, Inversion)
    return numbers.invert(values[statement.positions.name], statement.out.shape)


def _evaluate_equation(equation: Equation, values: Values, numbers: Numbers[Any]) -> Any:
    reads = [values[read.array.name] for read in equation.reads]
    # The result does not depend on what is held, so any one number serves, the computed one as well as the exact.
    reads = [numbers.hold(value) if read.held else value for read, value in zip(equation.reads, reads, strict=True)]
    return numbers.in_every_world(
        lambda world: _evaluate_body(equation, world, numbers), reads, real=equation.out.is_real
    )


def _evaluate_body(equation: Equation, reads: Sequence[Any], numbers: Numbers[Any]) -> Any:
    axes_of_reads = tuple(read.axes for read in equation.reads)
    factors = factor(equation.body, axes_of_reads, len(equation.constants))
    kept = frozenset(range(len(equation.out.shape)))
    sizes = equation.sizes
    terms = []
    for position, part in enumerate(factors):
        elsewhere = {axis for n, other in enumerate(factors) if n != position for axis in other.axes}
        terms.append(_evaluate_factor(equation, part, reads, numbers, kept | elsewhere))
    terms.sort(key=lambda term: prod(sizes[axis] for axis in term[1]))
    value, axes = terms[0]
    for position, (other, other_axes) in enumerate(terms[1:], start=2):
        needed = kept.union(*(term[1] for term in terms[position:]))
        value, axes = _multiply(value, axes, other, other_axes, needed, sizes, numbers)
    repeated = prod(sizes[axis] for axis in equation.summed if not any(axis in part.axes for part in factors))
    if repeated != 1:
        value = numbers.times(value, numbers.constant(repeated))
    if not equation.reads:
        value = numbers.settle(value, real=equation.out.is_real)
    order = list(range(len(equation.out.shape)))
    shape = equation.out.shape
    lay = align(axes, order)
    value = numbers.map_arrays(lambda array: _broadcast(lay(array), shape), value)
    return numbers.settle(value, real=equation.out.is_real)


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    return array if array.shape == shape else np.broadcast_to(array, shape)  # a broadcast view cannot be written to


def _multiply(
    left: Any,
    left_axes: tuple[int, ...],
    right: Any,
    right_axes: tuple[int, ...],
    needed: frozenset[int],
    sizes: Sequence[int],
    numbers: Numbers[Any],
) -> tuple[Any, tuple[int, ...]]:
    """The product of two values, summed over the axes that nothing needs any more."""
    if any(axis in right_axes and axis not in needed for axis in left_axes):
        plan = contraction(left_axes, right_axes, needed, sizes)
        return numbers.contract(left, right, plan), plan.axes
    axes = tuple(sorted({*left_axes, *right_axes}))
    product = numbers.times(
        numbers.map_arrays(align(left_axes, axes), left), numbers.map_arrays(align(right_axes, axes), right)
    )
    return product, axes


def _evaluate_factor(
    equation: Equation, part: Factor, values: Sequence[Any], numbers: Numbers[Any], needed: frozenset[int]
) -> tuple[Any, tuple[int, ...]]:
    """One factor's value, already summed over the axes that only it has and the result does not."""
    reads = [equation.reads[n] for n in part.reads]
    own = [values[n] for n in part.reads]
    own_sum = tuple(place for place, axis in enumerate(part.axes) if axis not in needed)
    left = tuple(axis for axis in part.axes if axis in needed)
    lays = [align(read.axes, part.axes) for read in reads]
    laid = [numbers.map_arrays(lay, value) for lay, value in zip(lays, own, strict=True)]
    if part.is_read:
        return (numbers.sum(laid[0], own_sum) if own_sum else laid[0]), left
    function = compile_body(part.body, len(part.reads), len(part.constants), numbers.namespace)
    constants = [numbers.constant(equation.constants[n]) for n in part.constants]
    grid = tuple(equation.sizes[axis] for axis in part.axes)

    def work(pieces: Sequence[Any]) -> Any:
        result = function(*pieces, *constants)
        return numbers.sum(numbers.settle(result, real=True), own_sum) if own_sum else result

    if prod(grid) <= 2 * TILE or not laid:
        return work(laid), left
    return _tiled(work, laid, grid, own_sum, numbers), left


def _tiled(
    work: Any, laid: Sequence[Any], grid: tuple[int, ...], own_sum: tuple[int, ...], numbers: Numbers[Any]
) -> Any:
    """Work through a large grid in slices of its longest axis, joining or adding the parts."""
    axis = max(range(len(grid)), key=lambda place: grid[place])
    step = max(1, TILE * grid[axis] // prod(grid))
    parts = []
    for start in range(0, grid[axis], step):
        parts.append(work([_slice(value, axis, start, start + step, numbers) for value in laid]))
        if axis in own_sum and len(parts) == 2:
            parts = [numbers.plus(parts[0], parts[1])]
    if axis in own_sum:
        return parts[0]
    return numbers.concatenate(parts, axis - sum(place < axis for place in own_sum))


def _slice(value: Any, axis: int, start: int, stop: int, numbers: Numbers[Any]) -> Any:
    if numbers.shape(value)[axis] == 1:
        return value
    return numbers.map_arrays(lambda array: array[(slice(None),) * axis + (slice(start, stop),)], value)
