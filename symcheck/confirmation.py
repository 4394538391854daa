"""Confirming candidates nearby: a formula must hold at generic inputs too, and a program be what its candidate runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from symcheck.arithmetic.bound import Bound
from symcheck.certification import Certification, is_value, name_of, restricted
from symcheck.evaluation import evaluate
from symcheck.neighbours import generic
from symcheck.reference import numeric
from symcheck.separation import Given, Joint, Key

__all__ = ["Confirmation"]

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Tensors: TypeAlias = Mapping[str, Tensor]

QUICK = 0.5  # seconds up to which generic inputs are evaluated in balls, and in float64 with its running bound above
MOVES = (2.0**-10, 2.0**-20)  # how far the inputs are at which a formula must hold too
SIDES = 3  # how often each is tried beside a kink
NEARBY = 2.0**-20  # how well a program must give the values of the candidate that it was traced from
SLACK = 64.0  # the same, in running bounds


class Confirmation:
    """Candidates at generic inputs near a certification's."""

    def __init__(self, at: Certification) -> None:
        self.at = at
        self._mismatches: dict[bool, dict[Key, str]] = {}

    def mismatch(self, key: Key) -> str:
        """Where the candidate's program fails at generic inputs nearby; "" if it holds there."""
        plain, joint = self.at.joint(key)
        if plain not in self._mismatches:
            self._mismatches[plain] = {}
            keys = [
                key
                for key in joint.members
                if not self.at.problem(key)
                and not joint.is_same(key)
                and (id(joint), key) not in self.at.verified
                and not self._is_convicted(key)
                and not is_value(joint.program, joint.members[key])
            ]
            if keys:
                self._mismatches[plain] = self._confirm(joint, plain, keys)
        return self._mismatches[plain].get(key, "")

    def _is_convicted(self, key: Key) -> bool:
        """Whether it is wrong at the input itself, other than at kinks, where a choice of slopes may explain it."""
        apart = self.at.separation(key).apart
        return bool(apart.any()) and bool((apart & ~self._at_kinks(key)).any())

    def _confirm(self, joint: Joint, plain: bool, keys: Sequence[Key]) -> dict[Key, str]:
        moving = [*self.at.derived.wrt, *(() if plain else self._seeds)]
        there = generic(self.at.given(plain), moving, self.at.generator, MOVES[0], self.at.roundoffs)
        if joint.seconds > QUICK:
            apart = {key: joint.differs_in_float64(there, key) for key in keys}
        else:
            apart = {key: bool(mask.any()) for key, mask in self._apart(joint, there, keys).items()}
        mismatches = {}
        for key in keys:
            if not apart[key]:
                self.at.verified.add((id(joint), key))
            elif self._fails_everywhere(joint, plain, key):
                mismatches[key] = f"{name_of(key)} fails at generic inputs nearby, down to 2^-20 away"
            elif not self._at_kinks(key).any():
                self.at.note(f"{name_of(key)} is right at these inputs, but not where the others move")
        return mismatches

    def _at_kinks(self, key: Key) -> Mask:
        exact = self.at.resolved(key)
        return exact.open | exact.kink | exact.smooth

    def _fails_everywhere(self, joint: Joint, plain: bool, key: Key) -> bool:
        """Whether some element fails wherever the input under test moves; beside a kink it may hold on one side."""
        kinks = self._at_kinks(key)
        failing = np.ones(kinks.shape, dtype=bool)
        for size in MOVES * SIDES if kinks.any() else MOVES:
            failing &= self._failing(joint, plain, key, size)
            if not failing.any():
                return False
        return True

    def _failing(self, joint: Joint, plain: bool, key: Key, size: float) -> Mask:
        """Where a candidate's program fails at one generic input nearby, by more than the data explain."""
        moving = [key[1], *(() if plain else self._seeds)]
        there = generic(self.at.given(plain), moving, self.at.generator, size, self.at.roundoffs)
        apart = self._apart(joint, there, [key])[key]
        if (apart & self._at_kinks(key)).any():  # masks do not move, and a symmetric matrix keeps its ties
            exact = restricted(joint.program, [joint.wrt.index(key[1])])
            still = evaluate(exact, there, Bound(), moving=self.at.derived.wrt)[0].open
            apart = apart if still is None else apart & ~still
        return np.asarray(apart)

    def _apart(self, joint: Joint, there: Given, keys: Sequence[Key]) -> dict[Key, Mask]:
        """Where programs and the gradient differ at some inputs, even if these keep their laws exactly."""
        found = joint.separate(there, keys, self.at.generator)
        apart = {key: found[key].apart for key in keys}
        suspects = [key for key in keys if apart[key].any()]
        if suspects:
            for key, ideal in self.at.compare_ideally(joint, there, suspects).items():
                apart[key] = np.asarray(apart[key] & (ideal.apart | ~np.isfinite(ideal.radius)))
        return apart

    @cached_property
    def _seeds(self) -> tuple[str, ...]:
        return tuple(f"d_cotangent{n}" for n in range(len(self.at.cotangents(False))))

    def is_what_runs(self, key: Key, there: Tensors, values: Floats, relative: float = NEARBY) -> bool:
        """Whether a program gives what the candidate itself returned at an input nearby, to a part of the largest."""
        plain, joint = self.at.joint(key)
        given = {**numeric(there), **{f"d_cotangent{n}": c for n, c in enumerate(self.at.cotangents(plain))}}
        own = evaluate(restricted(joint.program, [joint.members[key]]), given, Bound())[0]
        errors = np.asarray(0.0 if own.error is None else own.error)
        known = np.isfinite(values) & np.isfinite(own.value) & np.isfinite(errors)
        scale = float(np.max(np.abs(own.value), initial=0.0, where=known))
        with np.errstate(invalid="ignore"):
            apart = np.abs(values - own.value) > SLACK * errors + relative * scale
        return not bool((apart & known).any())
