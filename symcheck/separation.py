"""Separating formula error from rounding: the exact gradient and a candidate's own program, in ball arithmetic.

    intended   what the candidate's program gives in exact arithmetic
    exact      the gradient, in exact arithmetic

Disjoint balls prove a formula error. Overlapping ones at a tiny radius are evidence that there is none; a program that
is the gradient's by algebra, is proved right. A ball that is not finite proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, differences, enclosures, working_precision
from symcheck.arithmetic.bound import Bound
from symcheck.evaluation import evaluate
from symcheck.joining import join
from symcheck.program import Program
from symcheck.readings import as_meant, half_meant, inexact, is_short, perturbed
from symcheck.refinement import ball_seconds

__all__ = ["Given", "Joint", "Separation", "Values", "join_candidates"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Given: TypeAlias = Mapping[str, NDArray[np.generic]]
Key: TypeAlias = tuple[str, str]  # candidate, input

PRECISIONS = (192, 384, 768, 1536, 3072, 4096)  # bits; the last is the cap
SHARP = 2.0**-100  # radius below which an overlap counts, beside the tensor's largest element
NOTHING = 2.0**-240  # the same for a tensor that is zero but for its radius, beside the cotangent
CHEAP = 0.25  # seconds: up to here a tensor that looks like zero is followed down to what float64 holds
SUBNORMAL = 2.0**-1074
HOPELESS = 2.0**20  # how many times the effect of a few moves an error is that more of them will not explain
MOST_SECONDS = 20.0  # of one evaluation, up to which the precision is raised
ULPS, MOVES = 16, 6  # how far constants are moved together at most, and how often


@dataclass(frozen=True, slots=True, eq=False)
class Separation:
    """A candidate's program beside the exact gradient by one input, at one point.

    Attributes:
        exact: the gradient, rounded to float64; nan or inf where it is undefined.
        exact_error: bound on |exact - gradient|; inf where undefined.
        intended: the candidate's program in exact arithmetic, likewise.
        difference: intended - exact, rounded to float64; nan where either is undefined.
        formula_error: an upper bound on |intended - exact|; nan where either is undefined.
        radius: how far the difference of the two is known.
        apart: where the two are proved to differ, under both readings of the constants.
        loose: where they overlap, but at a radius that says too little.
        same: whether both are the very same computation.
        bits: the precision of the balls; 0 where nothing had to be evaluated.
        sampled: where they differ by no more than the precision of the constants, which was sampled.
        meant: where they are held against each other with the constants as meant, not as they run; None for nowhere.
    """

    exact: Floats
    exact_error: Floats
    intended: Floats
    difference: Floats
    formula_error: Floats
    radius: Floats
    apart: Mask
    loose: Mask
    same: bool
    bits: int
    sampled: Mask
    meant: Mask | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """The outputs of a joint program in balls."""

    outputs: Sequence[NDArray[Any]]
    bits: int
    undecided: int


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """The exact gradient's program and those of candidates, joined.

    Attributes:
        program: their outputs, first the gradients by `wrt`, then the primal's, then each candidate's.
        wrt: the inputs differentiated by.
        members: the output of each candidate by each input.
        meant: the same with constants as a person meant them; None if there are none inexact.
        same: the candidates that compute the gradient as the reference does, under either reading.
        seconds: about how long an evaluation in balls takes.
    """

    program: Program
    wrt: tuple[str, ...]
    members: Mapping[Key, int]
    meant: Program | None
    same: frozenset[Key]
    seconds: float
    prefers_meant: set[Key] = field(default_factory=set)  # right under reading B, and not under A, at some input

    def is_same(self, key: Key) -> bool:
        """Whether a candidate's program computes the gradient as the reference does."""
        return key in self.same

    def separate(self, given: Given, keys: Sequence[Key], generator: np.random.Generator) -> dict[Key, Separation]:
        """Compare candidates with the exact gradient at one point, at a precision raised until they are decided.

        Args:
            given: the inputs and the cotangents, as exact binary numbers.
            keys: which candidates, by which inputs.
            generator: draws the moves of the constants.
        """
        keys = list(keys)
        cotangent = max((_largest(v) for n, v in given.items() if n.startswith("d_cotangent")), default=1.0)
        found = self._under_preferred(given, keys, cotangent)
        rest = [key for key in keys if key not in found]
        found |= self._sharpened(given, rest, cotangent, PRECISIONS[0], None) if rest else {}
        suspects = [key for key in keys if found[key].apart.any()]
        if suspects and self.meant is not None:
            found |= self._under_other_readings(given, suspects, found, cotangent, generator)
        return found

    def differs_in_float64(self, given: Given, key: Key) -> bool:
        """Whether a candidate's program and the gradient differ by more than their running bounds in float64."""
        outputs = [self.program.outputs[place] for place in (self.wrt.index(key[1]), self.members[key])]
        first, second = evaluate(replace(self.program, outputs=tuple(outputs)), given, Bound())
        errors = sum((part.error for part in (first, second) if part.error is not None), start=np.zeros(()))
        with np.errstate(invalid="ignore"):
            return bool((np.abs(first.value - second.value) > errors).any())

    def evaluate(self, given: Given, bits: int, program: Program | None = None) -> Values:
        """The outputs in balls of so many bits."""
        with working_precision(bits):
            Ball.undecided = 0
            outputs = evaluate(program or self.program, given, Ball())
            return Values(outputs, bits, Ball.undecided)

    def _compare(self, values: Values, key: Key, cotangent: float) -> Separation:
        first = values.outputs[self.wrt.index(key[1])]
        second = values.outputs[self.members[key]]
        with working_precision(values.bits):
            exact, exact_error = _snapped(*enclosures(first))
            if self.is_same(key):
                zero = np.zeros(exact.shape)
                finite = np.isfinite(exact_error)
                known = np.where(finite, 0.0, np.nan)
                no = np.zeros(exact.shape, dtype=bool)
                return Separation(exact, exact_error, exact, known, known, zero, no, no, True, values.bits, no)
            middle, radius, apart = differences(second, first)
            intended = exact + middle if np.isfinite(middle).all() else _snapped(*enclosures(second))[0]
        with np.errstate(invalid="ignore", over="ignore"):
            size = np.maximum(np.abs(exact), np.abs(intended))
            known_size = np.where(np.isfinite(size), size, 0.0)
            scale = float(np.max(known_size, initial=0.0))
            if scale <= 2.0**10 * float(np.max(radius, initial=0.0, where=np.isfinite(radius))):
                # It may be small rather than zero: 1e-130 is the slope of a sigmoid at 300.
                enough = np.full(exact.shape, NOTHING * cotangent if self.seconds > CHEAP else 0.0)
            else:
                enough = SHARP * np.maximum(known_size, scale)
            loose = np.isfinite(radius) & ~apart & (radius > np.maximum(enough, SUBNORMAL))
            error = np.abs(middle) + radius
        none = np.zeros(exact.shape, dtype=bool)
        return Separation(exact, exact_error, intended, middle, error, radius, apart, loose, False, values.bits, none)

    def _under_other_readings(
        self,
        given: Given,
        keys: Sequence[Key],
        found: Mapping[Key, Separation],
        cotangent: float,
        generator: np.random.Generator,
    ) -> dict[Key, Separation]:
        """What stays apart when the constants are read as meant, and is more than their own precision."""
        bits = max(found[key].bits for key in keys)
        under_meant = self._sharpened(given, keys, cotangent, bits, self.meant)
        result: dict[Key, Separation] = {}
        sampled: dict[Key, Mask] | None = None
        for key in keys:
            other = under_meant[key]
            apart = found[key].apart & (other.apart | ~np.isfinite(other.radius))
            explained = np.zeros(apart.shape, dtype=bool)
            if apart.any():
                sampled = sampled or self._sampled(given, keys, found, bits, cotangent, generator)
                explained = apart & sampled[key]
            result[key] = _settled(found[key], other, apart & ~explained, explained)
            if not (apart.any() or result[key].loose.any()):
                self.prefers_meant.add(key)
        return result

    def _under_preferred(self, given: Given, keys: Sequence[Key], cotangent: float) -> dict[Key, Separation]:
        """Candidates that were right of the constants as meant before: where they are again, one reading is enough."""
        preferred = [key for key in keys if key in self.prefers_meant]
        if not preferred:
            return {}
        found = self._sharpened(given, preferred, cotangent, PRECISIONS[0], self.meant)
        return {
            key: replace(one, meant=np.ones(one.apart.shape, dtype=bool))
            for key, one in found.items()
            if not (one.apart.any() or one.loose.any() or not np.isfinite(one.radius).all())
        }

    def _sampled(
        self,
        given: Given,
        keys: Sequence[Key],
        found: Mapping[Key, Separation],
        bits: int,
        cotangent: float,
        generator: np.random.Generator,
    ) -> dict[Key, Mask]:
        """Where intended - exact is no more than moves of the constants by some of their ulps explain.

        All of them by ulps of float64; or those that are no short decimal, such as a root, by ulps of their own dtype,
        with the short ones as meant: 0.1 in float32 is 1/10, and its rounding hides nothing.
        """
        # What is an input as well, such as a weight that a formula closes over, is data: it cannot move by itself.
        data = frozenset().union(*(np.unique(value).tolist() for value in given.values() if value.dtype.kind == "f"))
        values = {value: float(np.float32(value)) == value for value in sorted(inexact(self.program) - data)}
        long = {value: is_single for value, is_single in values.items() if not is_short(value, is_single)}
        finely = {value: Fraction(2) ** -52 for value in values}
        coarsely = {value: Fraction(2) ** (-23 if is_single else -52) for value, is_single in long.items()}
        result = {key: np.zeros(found[key].apart.shape, dtype=bool) for key in keys}
        for make, ulps in ((perturbed, finely), (half_meant, coarsely)):
            if not ulps or (make is half_meant and coarsely == finely):
                continue
            still = self._compare_program(given, keys, make(self.program, lambda _: Fraction(1)), bits, cotangent)
            spread = self._spread(given, keys, still, bits, cotangent, generator, make, ulps)
            for key in keys:
                with np.errstate(invalid="ignore"):
                    result[key] |= still[key].formula_error <= spread[key]
        return result

    def _compare_program(
        self, given: Given, keys: Sequence[Key], program: Program, bits: int, cotangent: float
    ) -> dict[Key, Separation]:
        values = self.evaluate(given, bits, program)
        return {key: self._compare(values, key, cotangent) for key in keys}

    def _sharpened(
        self, given: Given, keys: Sequence[Key], cotangent: float, least: int, program: Program | None
    ) -> dict[Key, Separation]:
        """Compare at a precision raised, from the least one on, until every overlap is tight."""
        found: dict[Key, Separation] = {}
        left = list(keys)
        for bits in PRECISIONS:
            if bits < least:
                continue
            if found and self.seconds * bits / PRECISIONS[0] > MOST_SECONDS:
                break
            values = self.evaluate(given, bits, program)
            found |= {key: self._compare(values, key, cotangent) for key in left}
            left = [key for key in left if found[key].loose.any() or values.undecided]
            if not left:
                break
        return found

    def _spread(
        self,
        given: Given,
        keys: Sequence[Key],
        still: Mapping[Key, Separation],
        bits: int,
        cotangent: float,
        generator: np.random.Generator,
        make: Callable[[Program, Callable[[float], Fraction]], Program],
        ulps: Mapping[float, Fraction],
    ) -> dict[Key, Floats]:
        """How far intended - exact moves when constants are moved by some ulps, all at once and each by its own."""
        spread = {key: np.zeros(still[key].exact.shape) for key in keys}
        for _ in range(MOVES):
            moves = {
                value: 1 + int(generator.choice([-1, 1]) * generator.integers(ULPS // 2, ULPS + 1)) * ulp
                for value, ulp in ulps.items()
            }
            program = make(self.program, lambda value, moves=moves: moves.get(value, Fraction(1)))  # type: ignore[misc]
            moved = self._compare_program(given, keys, program, bits, cotangent)
            for key in keys:
                with np.errstate(invalid="ignore"):
                    change = np.abs(moved[key].difference - still[key].difference)
                spread[key] = np.fmax(spread[key], change)
            if all(_hopeless(still[key], spread[key]) for key in keys):
                break
        return spread


def _snapped(values: Floats, errors: Floats) -> tuple[Floats, Floats]:
    """What may be zero is taken for zero: a midpoint smaller than its radius says nothing."""
    zero = np.isfinite(errors) & (np.abs(values) <= errors) & (values != 0) & (np.abs(values) > SUBNORMAL)
    return np.where(zero, 0.0, values), np.where(zero, np.abs(values) + errors, errors)


def _hopeless(found: Separation, spread: Floats) -> bool:
    """Whether no further move could explain what is apart: some of it exceeds the moves so far by far."""
    with np.errstate(invalid="ignore"):
        return bool((found.apart & (found.formula_error > HOPELESS * spread)).any())


def _settled(first: Separation, other: Separation, apart: Mask, sampled: Mask) -> Separation:
    """A separation under the reading that explains each element."""
    meant = first.apart & ~apart & ~sampled
    gap = np.where(meant, other.difference, first.difference)
    error = np.where(meant, other.formula_error, np.where(sampled, 0.0, first.formula_error))
    radius = np.where(meant, other.radius, first.radius)
    loose = np.where(meant, other.loose, first.loose)
    return Separation(
        first.exact,
        first.exact_error,
        np.where(meant, first.exact + gap, first.intended),
        gap,
        error,
        radius,
        apart,
        loose,
        False,
        max(first.bits, other.bits),
        sampled,
        meant,
    )


def _largest(values: NDArray[np.generic]) -> float:
    array = np.abs(np.asarray(values, dtype=np.float64))
    return float(np.max(array, initial=0.0, where=np.isfinite(array)))


def join_candidates(
    gradient: Program, wrt: Sequence[str], primal: int, candidates: Sequence[tuple[str, Program, Sequence[str]]]
) -> Joint:
    """Join the exact gradient's program with those of candidates.

    Args:
        gradient: its outputs are the gradients by `wrt`, then `primal` outputs, then others.
        wrt: names.
        primal: how many of the primal's outputs to keep.
        candidates: for each its name, its program, and the input that each of its outputs is a gradient by.
    """
    kept = Program(gradient.inputs, gradient.constants, gradient.statements, gradient.outputs[: len(wrt) + primal])
    programs = [kept, *(program for _, program, _ in candidates)]
    program = join(programs)
    read_otherwise = [as_meant(one) for one in programs]
    meant = (
        join([new or old for new, old in zip(read_otherwise, programs, strict=True)]) if any(read_otherwise) else None
    )
    members, place = {}, len(wrt) + primal
    for name, _, inputs in candidates:
        for input_name in inputs:
            members[name, input_name] = place
            place += 1
    same = frozenset(
        key
        for key, place in members.items()
        for one in (program, meant)
        if one is not None and one.outputs[place] == one.outputs[tuple(wrt).index(key[1])]
    )
    return Joint(program, tuple(wrt), members, meant, same, ball_seconds(program))
