"""Evaluating a program with weights on its open decisions: one branch of each, or a mean of branches.

A real value is the mean of what the branches give. A discrete one, such as a mask or the position of a maximum, has
no mean: it is carried as *worlds*, each with a weight for every element, and what real is read through it is the mean
over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, moved_balls
from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.arithmetic.double import Double
from symcheck.arithmetic.layout import Numbers, align
from symcheck.branches import ARMS, mixed, weighted
from symcheck.evaluation import Values, evaluate, evaluate_statement
from symcheck.functions import read_symbol
from symcheck.openings import Comparison, Decision, Key, Openings
from symcheck.program import Array, Equation, Gather, Program, Read, Reshape, Scatter, Selection, Statement

__all__ = ["Mixture", "Weights"]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Weights: TypeAlias = Mapping[Key, Sequence[float]]


@dataclass(frozen=True, slots=True, eq=False)
class Worlds:
    """A discrete array that is several at once: for each world, a weight and a value of every element."""

    worlds: tuple[tuple[Floats, Integers], ...]

    @property
    def likeliest(self) -> Integers:
        """The value of the greatest weight at every element."""
        weights = np.stack([weight for weight, _ in self.worlds])
        values = np.stack([value for _, value in self.worlds])
        return np.asarray(np.take_along_axis(values, np.argmax(weights, axis=0)[None], 0)[0])

    @property
    def is_mixed(self) -> bool:
        """Whether some element has more than one value."""
        return any(((weight > 0) & (weight < 1)).any() for weight, _ in self.worlds)


class Mixture:
    """A program at a point, with its open decisions.

    Attributes:
        doubtful: whether the last evaluation met weights that it could not carry: the result then stands for the
            branches of the greatest weights.
    """

    def __init__(
        self,
        program: Program,
        given: Mapping[str, NDArray[np.generic]],
        moving: Sequence[str],
        openings: Openings,
        numbers: Numbers[Any],
    ) -> None:
        self._program, self._given, self._moving = program, given, moving
        self._openings, self._numbers = openings, numbers
        self._weights: Weights = {}
        self._as_ranges = False
        self.doubtful = False

    def at(self, weights: Weights) -> list[Any]:
        """The outputs with some weights, one for each arm of every open decision."""
        self._weights, self.doubtful = weights, False
        return evaluate(self._program, self._given, self._numbers, moving=self._moving, step=self._step)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of an input."""
        return np.shape(self._given[name])

    def bounds(self) -> list[Bounded]:
        """The outputs with errors that cover every branch of the open decisions."""
        numbers, self._numbers, self._as_ranges = self._numbers, Bound(), True
        try:
            outputs: list[Bounded] = self.at({key: _any(d) for key, d in self._openings.decisions.items()})
        finally:
            self._numbers, self._as_ranges = numbers, False
        if self.doubtful:
            return evaluate(self._program, self._given, Bound(), moving=self._moving)
        return outputs

    def beside(self, weights: Weights, directions: Mapping[str, Floats], sign: int, step: int) -> list[Any]:
        """The outputs in balls at inputs moved by sign * 2^-step * direction, with the weights of where they are."""
        given, numbers = self._given, self._numbers
        moved = {name: moved_balls(given[name], direction, sign, step) for name, direction in directions.items()}
        self._given, self._numbers = {**given, **moved}, Ball()
        try:
            return self.at(weights)
        finally:
            self._given, self._numbers = given, numbers

    # -- statements -----------------------------------------------------------------------------------------------

    def _step(self, statement: Statement, values: Values, numbers: Numbers[Any]) -> Any:
        open_ones = {array.name for array in statement.arrays if isinstance(values[array.name], Worlds)}
        if isinstance(statement, Equation):
            return self._equation(statement, values, open_ones)
        if isinstance(statement, Selection):
            return self._selection(statement, self._collapsed(values, open_ones))
        if not open_ones:
            return self._plainly(statement, values)
        if isinstance(statement, Reshape):
            shape = statement.out.shape
            parts = values[statement.array.name].worlds
            return Worlds(tuple((weight.reshape(shape), value.reshape(shape)) for weight, value in parts))
        if isinstance(statement, Gather):
            return self._gather(statement, values, open_ones)
        if isinstance(statement, Scatter) and open_ones == {statement.positions.name} and statement.out.is_real:
            return self._scatter(statement, values)
        return self._plainly(statement, self._collapsed(values, open_ones))

    def _plainly(self, statement: Statement, values: Values) -> Any:
        """Its value, where no decision of its own is open."""
        value = evaluate_statement(statement, values, self._numbers)
        return value if statement.out.is_real else self._lift(self._integers(value))

    def _collapsed(self, values: Values, names: set[str]) -> Values:
        """The values with the likeliest of the worlds of some of them."""
        if any(values[name].is_mixed for name in names):
            self.doubtful = True
        return {**values, **{name: self._lift(values[name].likeliest) for name in names}}

    def _lift(self, values: NDArray[Any]) -> Any:
        if self._as_ranges and values.dtype.kind == "f":  # any part from 0 to 1, where it is neither
            spread = np.where((values > 0) & (values < 1), np.maximum(values, 1 - values), 0.0)
            return Bounded(values, spread)
        return self._numbers.lift(values, real=values.dtype.kind == "f", active=False)

    @staticmethod
    def _integers(value: Any) -> Integers:
        return np.asarray(getattr(value, "value", value))

    def _in_worlds(self, values: Values, names: set[str]) -> Iterator[tuple[dict[str, Floats], Values]]:
        """Every combination of worlds: the weights by name, and the values."""
        ordered = sorted(names)
        if len(ordered) > 1 and any(values[name].is_mixed for name in ordered):
            self.doubtful = True  # they may depend on the same decision
        for combination in product(*(values[name].worlds for name in ordered)):
            weights = {name: weight for name, (weight, _) in zip(ordered, combination, strict=True)}
            chosen = {name: self._lift(value) for name, (_, value) in zip(ordered, combination, strict=True)}
            yield weights, {**values, **chosen}

    def _scaled(self, value: Any, weight: Floats, shape: tuple[int, ...]) -> Any:
        """Real values times weights, absent where these are zero."""
        part = Array("part", shape, "float64")
        axes = tuple(range(len(shape)))
        identity = Equation(Array("scaled", shape, "float64"), shape, read_symbol(0), (Read(part, axes),))
        extra = {"part use": self._lift((weight != 0).astype(np.int64)), "part weight": self._lift(weight)}
        return evaluate_statement(weighted(identity, [("part", axes, shape)]), {"part": value, **extra}, self._numbers)

    def _total(self, parts: Sequence[Any]) -> Any:
        total = parts[0]
        for part in parts[1:]:
            total = self._numbers.plus(total, part)
        return total

    # -- equations ------------------------------------------------------------------------------------------------

    def _equation(self, equation: Equation, values: Values, names: set[str]) -> Any:
        outer = len(equation.out.shape)
        axes = {name: {read.axes for read in equation.reads if read.array.name == name} for name in names}
        lost = {name for name in names if len(axes[name]) > 1}
        if not equation.out.is_real:
            lost |= {name for name in names if any(a is not None and a >= outer for g in axes[name] for a in g)}
        if lost:
            values = self._collapsed(values, lost)
        names = names - lost
        if not names:
            return self._own_equation(equation, values)
        results: list[Any] = []
        for weights, there in self._in_worlds(values, names):
            where = {name: next(iter(axes[name])) for name in names}
            if equation.out.is_real:
                parts = [(name, where[name], weights[name].shape) for name in sorted(names)]
                extra = {f"{name} weight": self._lift(weight) for name, weight in weights.items()}
                extra |= {f"{name} use": self._lift((w != 0).astype(np.int64)) for name, w in weights.items()}
                results.append(self._own_equation(weighted(equation, parts), {**there, **extra}))
                continue
            total = np.ones(equation.out.shape)
            for name, weight in weights.items():
                total = total * align(where[name], range(outer))(weight)
            own = self._own_equation(equation, there)
            inner = own.worlds if isinstance(own, Worlds) else ((np.ones(()), self._integers(own)),)
            results += [(np.broadcast_to(total * weight, equation.out.shape), value) for weight, value in inner]
        return self._total(results) if equation.out.is_real else _worlds(results)

    def _own_equation(self, equation: Equation, values: Values) -> Any:
        """The equation with the decisions of its own, no read being open."""
        comparisons = self._openings.comparisons.get(equation.out.name, [])
        comparisons = [c for c in comparisons if c.open or c.settled]
        if not comparisons:
            return self._plainly(equation, values)
        arms = [self._arms(c) for c in comparisons]
        if equation.out.is_real:
            return self._mixed(equation, comparisons, arms, values)
        results = []
        for combination in product(ARMS, repeat=len(comparisons)):
            weight: Floats = np.ones(equation.out.shape)
            pure = []
            for comparison, own, arm in zip(comparisons, arms, combination, strict=True):
                single, factor = self._one_arm(equation, comparison, own, arm)
                pure.append(single)
                weight = weight * factor
            if weight.any():
                value = self._integers(self._mixed(equation, comparisons, pure, values))
                results.append((weight, value))
        return _worlds(results) if len(results) > 1 else self._lift(results[0][1])

    def _arms(self, comparison: Comparison) -> Floats:
        """The weight of each arm at every element; all zero where the comparison stands as it is."""
        weights = np.zeros((len(ARMS), prod(comparison.shape)))
        for flat, key in comparison.open.items():
            weights[:, flat] = self._weights[key]
        for flat, sign in comparison.settled.items():
            weights[ARMS.index(sign), flat] = 1.0
        return weights

    def _one_arm(self, equation: Equation, comparison: Comparison, weights: Floats, arm: int) -> tuple[Floats, Floats]:
        """The weights that put all open elements on one arm; and how much of the result is in that world."""
        place, outer = ARMS.index(arm), len(equation.out.shape)
        opened = weights.any(axis=0)
        factor = np.where(opened, weights[place], float(arm == ARMS[0]))
        if any(axis >= outer for axis in comparison.axes):
            if ((weights > 0) & (weights < 1)).any():
                self.doubtful = True
            likeliest = np.argmax(weights, axis=0)
            single = np.where(opened, np.arange(len(ARMS))[:, None] == likeliest, 0.0)
            return single, np.full(equation.out.shape, float(arm == ARMS[0]))
        single = np.zeros_like(weights)
        single[place, opened] = 1.0
        laid = align(comparison.axes, range(outer))(factor.reshape(comparison.shape))
        return single, np.asarray(laid)

    def _mixed(
        self, equation: Equation, comparisons: Sequence[Comparison], arms: Sequence[Floats], values: Values
    ) -> Any:
        extra: dict[str, Any] = {}
        parts = []
        for number, (comparison, weights) in enumerate(zip(comparisons, arms, strict=True)):
            name, shape = f"comparison {number}", comparison.shape
            extra[f"{name} open"] = self._lift(weights.any(axis=0).astype(np.int64).reshape(shape))
            for arm, weight in zip(ARMS, weights, strict=True):
                extra[f"{name} use {arm}"] = self._lift((weight != 0).astype(np.int64).reshape(shape))
                extra[f"{name} weight {arm}"] = self._lift(weight.reshape(shape))
            parts.append((comparison.difference, comparison.axes, name, shape))
        return self._plainly(mixed(equation, parts), {**values, **extra})

    # -- selections and what they select --------------------------------------------------------------------------

    def _selection(self, selection: Selection, values: Values) -> Any:
        keys = self._openings.selections.get(selection.out.name, {})
        value = values[selection.array.name]
        plain = self._numbers.select(value, selection.rule)
        chosen = self._integers(plain)
        if not keys:
            return self._lift(chosen)
        count = max(len(self._openings.decisions[key].arms) for key in keys.values())
        results = []
        for world in range(count):
            weight = np.full(chosen.size, float(world == 0))
            positions = chosen.reshape(-1).copy()
            for flat, key in keys.items():
                arms = self._openings.decisions[key].arms
                weight[flat] = self._weights[key][world] if world < len(arms) else 0.0
                positions[flat] = arms[min(world, len(arms) - 1)]
            if weight.any():
                results.append((weight.reshape(chosen.shape), positions.reshape(chosen.shape)))
        return _worlds(results)

    def _gather(self, gather: Gather, values: Values, names: set[str]) -> Any:
        results: list[Any] = []
        for weights, there in self._in_worlds(values, names):
            value = self._plainly(gather, there)
            total = weights.get(gather.positions.name, np.ones(gather.out.shape))
            if gather.out.is_real:
                results.append(self._scaled(value, total, gather.out.shape))
                continue
            if any(array.name in weights for array in gather.sources):
                sources = [weights.get(array.name, np.ones(array.shape)) for array in gather.sources]
                positions = self._integers(there[gather.positions.name])
                total = total * Double().gather(sources, positions, gather.offset, real=True)
            results.append((total, self._integers(value)))
        return self._total(results) if gather.out.is_real else _worlds(results)

    def _scatter(self, scatter: Scatter, values: Values) -> Any:
        results = []
        for weights, there in self._in_worlds(values, {scatter.positions.name}):
            part = self._scaled(there[scatter.array.name], weights[scatter.positions.name], scatter.array.shape)
            results.append(self._plainly(scatter, {**there, scatter.array.name: part}))
        return self._total(results)


def _any(decision: Decision) -> tuple[float, ...]:
    """Weights of all arms that count."""
    if not decision.is_comparison or decision.singular or not decision.between:
        return (1.0 / len(decision.arms),) * len(decision.arms)
    return (0.5, 0.0, 0.5)


def _worlds(parts: Sequence[tuple[Floats, Integers]]) -> Worlds:
    """Worlds whose weights add up to 1; an element that is in none, as it is read from nowhere, is in the first."""
    kept = [(weight, value) for weight, value in parts if weight.any()] or [parts[0]]
    rest = sum(weight for weight, _ in kept) == 0
    first = np.where(rest, 1.0, kept[0][0])
    return Worlds(((first, kept[0][1]), *kept[1:]))
