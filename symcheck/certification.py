"""Certifying candidates at one input: their own programs beside the exact gradient, in balls.

Everything that a verdict rests on is collected here, each part when it is first asked for; `certified` judges.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from symcheck.candidates import unit_roundoff
from symcheck.intended import Intended
from symcheck.kinks import indifferent
from symcheck.limits import GROWING, KINK, NOWHERE, SMOOTH, Limit, difference_limit, find_limits, join_limits
from symcheck.neighbours import idealised, nudged
from symcheck.program import Array, Program
from symcheck.readings import as_meant, perturbed
from symcheck.reference import Derived, Point, numeric
from symcheck.refinement import evaluate_sharply
from symcheck.separation import Given, Joint, Key, Separation

__all__ = ["SECONDS", "Certification", "Resolved", "is_value", "name_of", "restricted"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Tensors: TypeAlias = Mapping[str, Tensor]


SECONDS = 8.0  # of ball arithmetic that one evaluation at the input may take
MORE_SECONDS = 30.0  # that everything else may take: neighbours, limits, conditioning
NUDGES = 6  # moves by one ulp whose largest effect is the conditioning
SHARP = 2.0**-32  # of the tensor's largest element: a float64 bound that is enough for a formula that is proved
CHEAP, ENOUGH = 0.02, 2.0**-26  # seconds above which a coarser one is, for a formula that needs no proof
QUOTIENTS = 8  # elements whose derivative is found from difference quotients, where nothing else defines it
ALIKE = 2.0**-40  # relative distance of two limits in float64 that are one


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """The exact gradient by one input, undefined and open elements resolved where a limit does.

    Attributes:
        values: float64; nan where there is no value.
        errors: bound on |values - exact|; for a limit its resolution.
        limit: where the value is a limit, not proved.
        kink: where sides differ.
        infinite: where it grows without bound; `values` holds the infinity.
        undefined: where it is defined nowhere nearby.
        smooth: where a decision is open, and yet all sides agree: `values` is the true derivative.
        low, high: of kinks, the least and greatest value approached.
        open: where it depends on a decision that could fall either way, other than `smooth` ones.
    """

    values: Floats
    errors: Floats
    limit: Mask
    kink: Mask
    infinite: Mask
    undefined: Mask
    smooth: Mask
    low: Floats
    high: Floats
    open: Mask


class Certification:
    """The candidates of one check at one input.

    Attributes:
        notes: what was found on the way that changes no verdict.
    """

    def __init__(
        self,
        derived: Derived,
        intended: Intended,
        tensors: Tensors,
        points: Callable[[bool], Point],
        cotangents: Callable[[bool], Sequence[Floats]],
        verified: set[tuple[int, Key]],
        generator: np.random.Generator,
    ) -> None:
        self.derived, self.intended, self.tensors = derived, intended, tensors
        self.points, self.cotangents = points, cotangents
        self.verified, self.generator = verified, generator
        self.arrays = numeric(tensors)
        self.notes: list[str] = []
        self._separations: dict[bool, dict[Key, Separation]] = {}
        self._limits: dict[bool, dict[str, Limit]] = {}
        self._unmoved: dict[bool, dict[str, Mask]] = {}
        self._resolved: dict[tuple[bool, str], Resolved] = {}
        self._conditioning: dict[tuple[bool, str], Floats] = {}

    def problem(self, key: Key) -> str:
        """Why a candidate cannot be certified; "" if it can."""
        found = self.intended.joint_of(key)
        if found is None:
            return self.intended.problems.get(key, "it has no program")
        joint = found[1]
        if joint.seconds > SECONDS and not joint.is_same(key):
            return f"ball arithmetic would take about {joint.seconds:.0f} s, and {SECONDS:.0f} s are allowed"
        return ""

    def joint(self, key: Key) -> tuple[bool, Joint]:
        found = self.intended.joint_of(key)
        assert found is not None
        return found

    def given(self, plain: bool) -> Given:
        """The inputs and the cotangents of the joint programs."""
        return {**self.arrays, **{f"d_cotangent{n}": c for n, c in enumerate(self.cotangents(plain))}}

    # -- at the input ---------------------------------------------------------------------------------------------

    def separation(self, key: Key) -> Separation:
        """The candidate's program beside the gradient at the input."""
        plain, joint = self.joint(key)
        if plain not in self._separations:
            keys = [key for key in joint.members if not self.problem(key)]
            self._separations[plain] = self._separate(joint, plain, keys)
        return self._separations[plain][key]

    def _separate(self, joint: Joint, plain: bool, keys: Sequence[Key]) -> dict[Key, Separation]:
        point = self.points(plain)
        if all(joint.is_same(key) and self._is_sharp(joint, point, key[1]) for key in keys):
            return {key: _identical(point, key[1]) for key in keys}
        found = joint.separate(self.given(plain), keys, self.generator)
        for key in keys:
            if key[0] == "formula" and found[key].apart.any() and is_value(joint.program, joint.members[key]):
                found[key] = self._as_value(key, found[key])
        suspects = [key for key in keys if found[key].apart.any()]
        if suspects:
            ideal = self.compare_ideally(joint, self.given(plain), suspects)
            for key, other in ideal.items():
                explained = found[key].apart & ~other.apart & np.isfinite(other.radius)
                if explained.any():
                    self.note(f"{name_of(key)} is right of data that keep a law exactly, which these do up to rounding")
                    found[key] = replace(
                        found[key],
                        apart=found[key].apart & ~explained,
                        difference=np.where(explained, other.difference, found[key].difference),
                        formula_error=np.where(explained, other.formula_error, found[key].formula_error),
                        radius=np.where(explained, other.radius, found[key].radius),
                        loose=np.where(explained, other.loose, found[key].loose),
                    )
        return found

    def _is_sharp(self, joint: Joint, point: Point, name: str) -> bool:
        """Whether float64 knows the gradient well enough, where the formula needs no proof."""
        exact = point.gradients[name]
        if not (np.isfinite(exact.errors) & np.isfinite(exact.values)).all():
            return False
        if joint.seconds > SECONDS:
            return True
        scale = float(np.max(np.abs(exact.values), initial=0.0))
        if joint.seconds > CHEAP:
            return bool(np.max(exact.errors, initial=0.0) <= ENOUGH * scale)
        narrow = max(self.roundoffs.values(), default=0.0) > 2.0**-53
        return narrow and bool((exact.errors <= SHARP * scale).all())

    def _as_value(self, key: Key, found: Separation) -> Separation:
        """A candidate that no input enters is a value, not a formula: it may be rounded to its dtype."""
        self.note(f"{name_of(key)} is a value that no input enters: judged at this input only, to its own precision")
        # It may have been rounded to float32 on the way.
        single = bool((found.intended == found.intended.astype(np.float32)).all())
        roundoff = max(self.roundoffs.get(key[1], 2.0**-53), 2.0**-24 if single else 2.0**-53)
        rounded = found.apart & (np.abs(found.difference) <= 2 * roundoff * np.abs(found.exact))
        return replace(found, apart=found.apart & ~rounded)

    def compare_ideally(self, joint: Joint, given: Given, keys: Sequence[Key]) -> dict[Key, Separation]:
        """Compare where the data keep exactly what laws they keep up to rounding; empty where they keep none.

        Rows of probabilities sum to 1 only up to rounding, and so p - y is the gradient only up to it.
        """
        constants = {array.name: value for array, value in joint.program.constants.items() if array.is_real}
        roundoffs = {a.name: unit_roundoff(a.dtype) for a in joint.program.constants if a.is_real}
        laws = idealised(given, self.roundoffs)
        beside = idealised({name: value for name, value in constants.items() if value.dtype != object}, roundoffs)
        if not laws and not beside:
            return {}
        changed = {array: beside.get(array.name, value) for array, value in joint.program.constants.items()}
        program = replace(joint.program, constants=changed)
        ideal = replace(joint, program=program, meant=as_meant(program))
        return ideal.separate({**given, **laws}, keys, self.generator)

    def _nudged(self, program: Program, plain: bool) -> tuple[Program, Given]:
        """The inputs and the constants of a program, every inexact number moved by one ulp of its dtype."""
        given = nudged(self.given(plain), self.generator, self.roundoffs)
        constants = dict(program.constants)
        for array, value in program.constants.items():
            if array.is_real and value.dtype != object:
                one = {array.name: unit_roundoff(array.dtype)}
                constants[array] = nudged({array.name: value}, self.generator, one)[array.name]
        signs: dict[float, int] = {}

        def by_one_ulp(value: float) -> Fraction:
            ulp = Fraction(2) ** (-23 if float(np.float32(value)) == value else -52)
            return 1 + signs.setdefault(value, int(self.generator.choice([-1, 1]))) * ulp

        return perturbed(replace(program, constants=constants), by_one_ulp), given

    # -- undefined and open elements ------------------------------------------------------------------------------

    def resolved(self, key: Key) -> Resolved:
        """The exact gradient that a candidate is held against."""
        plain, joint = self.joint(key)
        place = (plain, key[1])
        if place not in self._resolved:
            self._resolved[place] = self._resolve(joint, plain, key)
        return self._resolved[place]

    def _resolve(self, joint: Joint, plain: bool, key: Key) -> Resolved:
        found, name = self.separation(key), key[1]
        opened = np.array(self.points(plain).gradients[name].open)
        undefined = ~np.isfinite(found.exact_error)
        shape = found.exact.shape
        none = np.zeros(shape, dtype=bool)
        plainly = Resolved(
            found.exact, found.exact_error, none, none, none, undefined, none, found.exact, found.exact, opened
        )
        if not (opened.any() or undefined.any()):
            return plainly
        if joint.seconds * 24 > MORE_SECONDS:  # limits are not looked for: nothing is said of what has no value
            return replace(plainly, undefined=none)
        limit = self._limit(joint, plain)[name]
        if ((opened | undefined) & (limit.kinds == SMOOTH)).any():
            limit = self._sampled_again(joint, plain, name, limit)
        with np.errstate(invalid="ignore"):
            same = np.abs(limit.values - found.exact) <= ALIKE * np.abs(found.exact) + found.exact_error
        settled = opened & ~undefined & (limit.kinds == SMOOTH) & same
        if settled.any():
            settled &= self._indifferent(plain)[name]
        smooth = opened & (limit.kinds == SMOOTH) & ~settled
        by_limit = (undefined | smooth) & (limit.kinds == SMOOTH)
        values = np.where(by_limit, limit.values, found.exact)
        errors = np.where(by_limit, ALIKE * np.abs(limit.values) + 2.0**-140, found.exact_error)
        infinite = undefined & (limit.kinds == GROWING) & np.isfinite(np.asarray(self.arrays[name], dtype=np.float64))
        values = np.where(infinite, limit.values, values)
        nowhere = undefined & (limit.kinds == NOWHERE)
        for element in np.flatnonzero(nowhere)[:QUOTIENTS]:
            quotient = self._quotient(plain, name, int(element))
            if np.isfinite(quotient):
                values.reshape(-1)[element] = quotient
                errors.reshape(-1)[element] = ALIKE * abs(quotient)
                nowhere.reshape(-1)[element] = False
                by_limit.reshape(-1)[element] = True
        kink = (undefined | opened) & (limit.kinds == KINK)
        return Resolved(
            values,
            errors,
            by_limit,
            kink,
            infinite,
            nowhere,
            smooth,
            limit.low,
            limit.high,
            opened & ~settled & ~smooth,
        )

    def _limit(self, joint: Joint, plain: bool) -> dict[str, Limit]:
        if plain not in self._limits:
            wrt = self.derived.wrt
            found = find_limits(joint.program, self.given(plain), range(len(wrt)), wrt, self.generator)
            self._limits[plain] = dict(zip(wrt, found, strict=True))
        return self._limits[plain]

    def _sampled_again(self, joint: Joint, plain: bool, name: str, limit: Limit) -> Limit:
        """A limit held against more sides, among them those where this input alone moves."""
        for moving in (self.derived.wrt, [name]):
            place = [joint.wrt.index(name)]
            limit = join_limits(limit, find_limits(joint.program, self.given(plain), place, moving, self.generator)[0])
        return limit

    def _indifferent(self, plain: bool) -> dict[str, Mask]:
        """The elements that are the same whichever way the open decisions fall, by input."""
        if plain not in self._unmoved:
            wrt = self.derived.wrt
            found = indifferent(self.derived.gradient, self.given(plain), wrt, wrt)
            self._unmoved[plain] = dict(zip(wrt, found, strict=True))
        return self._unmoved[plain]

    def _quotient(self, plain: bool, name: str, element: int) -> float:
        primal = self.derived.traced.program
        return difference_limit(primal, self.arrays, name, element, self.cotangents(plain))

    def jumps(self, name: str) -> bool:
        """Whether the function itself jumps at this input, where a decision of its value is open."""
        outputs = [value.values for value in self.points(False).outputs]
        joint = next(iter(self.intended.joints.values()), None)
        if joint is None or joint.seconds * 24 > MORE_SECONDS:
            return True
        first = len(self.derived.wrt)
        places = range(first, first + len(outputs))
        limits = find_limits(joint.program, self.given(False), places, [name], self.generator)
        with np.errstate(invalid="ignore"):
            return not all(
                ((limit.kinds == SMOOTH) & (np.abs(limit.values - value) <= ALIKE * np.abs(value) + 2.0**-140)).all()
                for limit, value in zip(limits, outputs, strict=True)
            )

    def intended_limit(self, key: Key) -> Limit | None:
        """What a candidate's own program tends to, where it is undefined at the input; None if that takes too long."""
        plain, joint = self.joint(key)
        if joint.seconds * 24 > MORE_SECONDS:
            return None
        place = joint.members[key]
        return find_limits(joint.program, self.given(plain), [place], self.derived.wrt, self.generator)[0]

    @cached_property
    def roundoffs(self) -> dict[str, float]:
        """The unit roundoff of each real input."""
        return {
            name: unit_roundoff(str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self.tensors.items()
            if tensor.is_floating_point()
        }

    # -- conditioning ---------------------------------------------------------------------------------------------

    def conditioning(self, key: Key) -> Floats:
        """The largest change of each element of the exact gradient over random moves of all data by one ulp."""
        plain, joint = self.joint(key)
        place = (plain, key[1])
        if place not in self._conditioning:
            self._conditioning[place] = self._measure_conditioning(joint, plain, key)
        return self._conditioning[place]

    def _measure_conditioning(self, joint: Joint, plain: bool, key: Key) -> Floats:
        here = self.separation(key).exact
        if joint.seconds * NUDGES > MORE_SECONDS:
            return np.full(here.shape, np.inf)
        only = restricted(joint.program, [joint.wrt.index(key[1])])
        change = np.zeros(here.shape)
        for _ in range(NUDGES):
            moved = evaluate_sharply(*self._nudged(only, plain))[0][0]
            with np.errstate(invalid="ignore"):
                change = np.maximum(change, np.abs(moved - here))
        return np.where(np.isnan(change), np.inf, change)  # what is not known to be well-conditioned is not accused

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def is_value(program: Program, place: int) -> bool:
    """Whether an output depends on no input."""
    needed = restricted(program, [place])
    names = {array.name for array in program.inputs}
    read = {array.name for statement in needed.statements for array in statement.arrays}
    return not names & {*read, program.outputs[place].name}


def restricted(program: Program, places: Sequence[int]) -> Program:
    """The part of a program that some of its outputs need."""
    outputs: tuple[Array, ...] = tuple(program.outputs[place] for place in places)
    needed = {array.name for array in outputs}
    kept = []
    for statement in reversed(program.statements):
        if statement.out.name in needed:
            kept.append(statement)
            needed.update(array.name for array in statement.arrays)
    constants = {array: value for array, value in program.constants.items() if array.name in needed}
    return Program(program.inputs, constants, tuple(reversed(kept)), outputs)


def _identical(point: Point, name: str) -> Separation:
    exact = point.gradients[name]
    zero, no = np.zeros(exact.values.shape), np.zeros(exact.values.shape, dtype=bool)
    return Separation(exact.values, exact.errors, exact.values, zero, zero, zero, no, no, True, 0, no)


def name_of(key: Key) -> str:
    return "autograd" if key[0] == "autograd" else f"the formula for {key[1]}"
