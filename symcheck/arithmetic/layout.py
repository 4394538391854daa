"""How the axes of arrays are lined up for elementwise work and for contraction; the same in every number system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Contraction", "Numbers", "align", "contraction"]

T = TypeVar("T")


class Numbers(Protocol[T]):
    """A number system: how values of type T (one a program array) are made, moved and combined.

    `map_arrays` applies a function that only moves elements to every component of a value.
    """

    namespace: ClassVar[dict[str, Any]]

    def lift(self, values: NDArray[np.generic], *, real: bool, active: bool) -> T:
        """The value of an input or constant array."""

    def constant(self, value: Any) -> T | Any:
        """The value of a body's constant."""

    def hold(self, value: T) -> T:
        """The computed value as an exact number, without its error."""

    def shape(self, value: T) -> tuple[int, ...]:
        """The shape of a value."""

    def map_arrays(self, function: Callable[[NDArray[Any]], NDArray[Any]], value: T) -> T:
        """Apply a function that only moves elements."""

    def concatenate(self, values: Sequence[T], axis: int) -> T:
        """Join values along an axis."""

    def sum(self, value: T, axes: tuple[int, ...]) -> T:
        """The sum over some axes."""

    def plus(self, left: T, right: T) -> T:
        """The elementwise sum."""

    def times(self, left: T, right: T) -> T:
        """The elementwise product, broadcasting."""

    def contract(self, left: T, right: T, plan: Contraction) -> T:
        """The product of two values, summed over the axes that the plan says."""

    def settle(self, value: Any, *, real: bool) -> T:
        """The result of a body as the value of a program array."""

    def gather(self, sources: Sequence[T], positions: T, offset: int, *, real: bool) -> T:
        """out.flat[p] = concatenated sources.flat[positions.flat[p] - offset]."""

    def scatter(self, value: T, positions: T, offset: int, shape: tuple[int, ...]) -> T:
        """out.flat[positions.flat[p] - offset] += value.flat[p]."""

    def select(self, value: T, rule: str) -> T:
        """Positions along the last axis by a selection rule."""

    def invert(self, positions: T, shape: tuple[int, ...]) -> T:
        """The last writer of every element."""

    def in_every_world(self, function: Callable[[Sequence[T]], T], values: Sequence[T], *, real: bool) -> T:
        """The function of the values; where their discrete ones are open, under each of the choices."""


def align(axes: Sequence[int | None], target: Sequence[int]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """A function that lays an array, whose axes are named, along the target axes; missing ones get size 1."""
    named = [(axis, place) for place, axis in enumerate(axes) if axis is not None]
    order = [place for axis, place in sorted(named, key=lambda pair: target.index(pair[0]))]
    present = {axis for axis, _ in named}
    dropped = tuple(place for place, axis in enumerate(axes) if axis is None)

    def apply(array: NDArray[Any]) -> NDArray[Any]:
        moved = array.transpose([*order, *dropped])
        sizes = iter(moved.shape[: len(order)])
        return moved.reshape([next(sizes) if axis in present else 1 for axis in target])

    return apply


@dataclass(frozen=True, slots=True)
class Contraction:
    """How two arrays with named axes are brought to batches of matrices, and their product back.

    Attributes:
        left: to the shape (batch, rows, summed).
        right: to the shape (batch, summed, columns).
        back: from (batch, rows, columns) to the axes of the result.
        summed: how many terms each sum has.
        axes: the result's axes.
    """

    left: Callable[[NDArray[Any]], NDArray[Any]]
    right: Callable[[NDArray[Any]], NDArray[Any]]
    back: Callable[[NDArray[Any]], NDArray[Any]]
    summed: int
    axes: tuple[int, ...]


def contraction(
    left: tuple[int, ...], right: tuple[int, ...], kept: frozenset[int], sizes: Sequence[int]
) -> Contraction:
    """Plan the product of two arrays, summed over every shared axis that is not kept."""
    shared = [axis for axis in left if axis in right]
    batch = [axis for axis in shared if axis in kept]
    summed = [axis for axis in shared if axis not in kept]
    rows = [axis for axis in left if axis not in right]
    columns = [axis for axis in right if axis not in left]
    extent = [prod(sizes[axis] for axis in group) for group in (batch, rows, summed, columns)]
    axes = (*batch, *rows, *columns)
    left_order = [left.index(axis) for axis in (*batch, *rows, *summed)]
    right_order = [right.index(axis) for axis in (*batch, *summed, *columns)]
    result = [sizes[axis] for axis in axes]
    return Contraction(
        lambda array: array.transpose(left_order).reshape(extent[0], extent[1], extent[2]),
        lambda array: array.transpose(right_order).reshape(extent[0], extent[2], extent[3]),
        lambda array: array.reshape(result),
        extent[2],
        axes,
    )
