"""Bringing candidates to trial: each one's evidence assembled, with what each part costs paid once a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.blame import Blame, blame
from symcheck.candidates import Gradient, unit_roundoff
from symcheck.certification import Certification, is_value
from symcheck.certified import judge_certified
from symcheck.confirmation import Confirmation
from symcheck.evidence import Choice, Errors, Trial, choose_by_sides, errors_of
from symcheck.findings import Finding, Verdict
from symcheck.intended import Intended
from symcheck.kinks import Explanation, explain
from symcheck.ladder import MOVES, Ladder
from symcheck.origins import first_nonfinite
from symcheck.points import moved, rounded
from symcheck.rounding import Rounded, rounding_bounds
from symcheck.separation import Given, Key

__all__ = ["Trials"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]
Run: TypeAlias = Callable[[torch.dtype | None, Tensors], Floats | None]

VALUE = (
    "it is a value that no input enters, and it differs from the gradient by no more than rounding may do to its "
    "computation, which a value does not show"
)
FAR = 8.0  # how many times smaller a bound must be for its form to be advised
LARGE = 1 << 22  # elements in all of a program's arrays, above which no rounding bound is computed


class Trials:
    """The candidates of one check at one input."""

    def __init__(
        self,
        ladder: Ladder,
        intended: Intended,
        certification: Certification,
        confirmed: dict[tuple[int, Key], bool],
    ) -> None:
        self.ladder, self.intended, self.certification = ladder, intended, certification
        self.confirmation = Confirmation(certification)
        self.errors: dict[Key, Errors] = {}
        self._confirmed = confirmed  # whether a program is what runs, by joint program and candidate

    def judge(self, key: Key, gradient: Gradient, run: Run, remarks: Callable[[], str]) -> Finding | str:
        """The verdict on a candidate by its own program; or why it has none that can be used.

        Args:
            key: the candidate and the input.
            gradient: the candidate as it ran.
            run: runs it again in a dtype, at some tensors.
            remarks: as in `Trial`.
        """
        problem = self.certification.problem(key)
        if problem:
            return problem
        if key[0] == "autograd" and key[1] in self.intended.missing and not gradient.missing:
            return "its traced backward gives no gradient by this input, and the one that ran does"
        if not self._is_what_runs(key, run):
            return "its traced program does not give what it returns at an input nearby: the trace froze something"
        trial = self._trial(key, gradient, remarks)
        self.errors[key] = errors_of(trial)
        found = judge_certified(trial)
        if found.verdict is Verdict.FORMULA and self._may_be_rounded(key, trial):
            return replace(found, verdict=Verdict.UNDECIDED, reason=VALUE, advice="give the formula, not its result")
        return found

    def _may_be_rounded(self, key: Key, trial: Trial) -> bool:
        """Whether a candidate is a value, and off by no more than rounding may do to computing the gradient."""
        joint = self.certification.joint(key)[1]
        if key[0] == "autograd" or not is_value(joint.program, joint.members[key]):
            return False
        derived, found = self.ladder.derived, trial.separation
        if (found.apart & (trial.exact.open | trial.exact.kink)).any():
            return False  # the bound covers both branches there, which differ by more than rounding
        bounds = rounding_bounds(derived.gradient, self._given(key))[derived.wrt.index(key[1])].bounds
        return bool((np.abs(found.difference) <= bounds)[found.apart].all())

    def _resolution(self, key: Key) -> float:
        """How well the candidate's intended gradient is known, relative: a value may be rounded to its dtype."""
        joint = self.certification.joint(key)[1]
        value = key[0] == "formula" and is_value(joint.program, joint.members[key])
        return max(2.0**-52, 2 * self.certification.roundoffs.get(key[1], 0.0) if value else 0.0)

    def _is_what_runs(self, key: Key, run: Run) -> bool:
        found = self.intended.joint_of(key)
        assert found is not None
        place = (id(found[1]), key)
        if place not in self._confirmed:
            self._confirmed[place] = self._confirm(key, run)
        return self._confirmed[place]

    def _confirm(self, key: Key, run: Run) -> bool:
        ladder, names = self.ladder, self.ladder.binding.wrt
        there = dict(ladder.wide)
        for name in names:
            there[name] = moved(there[name], ladder.generator, MOVES[0], zeros=False)
        values = run(torch.float64, there) if ladder.high is ladder.derived else None
        if values is not None:
            return self.confirmation.is_what_runs(key, there, values)
        own = {name: rounded(tensor, ladder.tensors[name].dtype, keep=True) for name, tensor in there.items()}
        values = run(None, own)
        return values is not None and self.confirmation.is_what_runs(key, own, values, ladder.roundoff ** (1 / 3))

    def _trial(self, key: Key, gradient: Gradient, remarks: Callable[[], str]) -> Trial:
        assert gradient.values is not None
        separation, exact = self.certification.separation(key), self.certification.resolved(key)
        computed = gradient.values

        return Trial(
            *key,
            gradient.values,
            gradient.dtype,
            max(self.ladder.roundoff, unit_roundoff(gradient.dtype)),
            separation,
            exact,
            self.confirmation.mismatch(key),
            self._undefined_value,
            lambda: self.certification.conditioning(key),
            lambda: self._choose(key),
            lambda: self.certification.intended_limit(key),
            lambda: self._origin(key),
            self._bounds(key),
            lambda index: self._blame(key, index, abs(float(computed[index]) - float(exact.values[index]))),
            remarks,
            lambda index: self._better(key, index),
        )

    # -- kinks ----------------------------------------------------------------------------------------------------

    def _choose(self, key: Key) -> Choice:
        """Whether one choice at the kinks explains a candidate's whole gradient, by all of its inputs at once."""
        names = [name for candidate, name in self.intended.programs if candidate == key[0] == "autograd"] or [key[1]]
        place = (key[0], tuple(names))
        if place not in self._explanations:
            self._explanations[place] = self._explain(key, names)
        found = self._explanations[place]
        if found.is_refuted and found.element is not None and found.element[0] != key[1]:
            found = self._explain(key, [key[1]])  # another input's element fits no choice: is this one right by itself?
        if found.kind in ("none", "undecided"):
            exact, intended = self.certification.resolved(key), self.certification.separation(key).intended
            return choose_by_sides(intended, exact, exact.open | exact.kink | exact.smooth)
        return _choice(found)

    def _explain(self, key: Key, names: Sequence[str]) -> Explanation:
        intended, errors = {}, {}
        for name in self.ladder.derived.wrt:
            other = (key[0], name)
            shape = self.ladder.tensors[name].shape
            intended[name], errors[name] = np.zeros(shape), np.full(shape, np.inf)
            if name in names and not self.certification.problem(other):
                found, exact = self.certification.separation(other), self.certification.resolved(other)
                with np.errstate(invalid="ignore"):
                    error = self._resolution(other) * np.abs(found.intended) + np.where(
                        np.isfinite(found.radius), found.radius, np.inf
                    )
                wrong = found.apart & ~(exact.open | exact.kink | exact.smooth)
                usable = np.isfinite(found.intended) & ~wrong & ~exact.limit
                intended[name] = np.where(usable, found.intended, 0.0)
                errors[name] = np.where(usable, error, np.inf)
        derived = self.ladder.derived
        return explain(derived.gradient, self._given(key), derived.wrt, intended, errors, derived.wrt)

    @cached_property
    def _explanations(self) -> dict[tuple[str, tuple[str, ...]], Explanation]:
        return {}

    # -- rounding -------------------------------------------------------------------------------------------------

    def _blame(self, key: Key, index: tuple[int, ...], error: float) -> Blame | None:
        program, place = self.intended.programs[key]
        return blame(program, self._given(key), place, index, error=error)

    def _better(self, key: Key, index: tuple[int, ...]) -> str:
        """The exact gradient as it was derived, where rounding can move it far less than the candidate."""
        own, derived = self._bounds(key), self.ladder.derived
        if own is None or sum(statement.out.size for statement in derived.gradient.statements) > LARGE:
            return ""
        place = derived.wrt.index(key[1])
        bound = rounding_bounds(derived.gradient, self._given(key))[place].bounds[index]
        if not np.isfinite(bound) or bound <= 0 or own.bounds[index] < FAR * bound:
            return ""
        last = {array.name: number for number, array in enumerate(derived.gradient.outputs)}
        written = [str(s) for s in derived.gradient.statements if last.get(s.out.name) == place]
        many = own.bounds[index] / bound
        times = f"{many:.2g} times less" if np.isfinite(many) else "and the bound of this one is infinite"
        return f"as derived, rounding moves it by at most {bound:.1e}, {times}{f': {written[0]}' if written else ''}"

    @cached_property
    def _undefined_value(self) -> bool:
        return any(bool(np.isnan(output.values).any()) for output in self.ladder.point.outputs)

    def _given(self, key: Key) -> Given:
        found = self.intended.joint_of(key)
        assert found is not None
        return self.certification.given(found[0])

    def _origin(self, key: Key) -> str:
        return first_nonfinite(self.intended.programs[key][0], self._given(key))

    def _bounds(self, key: Key) -> Rounded | None:
        program, place = self.intended.programs[key]
        if sum(statement.out.size for statement in program.statements) > LARGE:
            return None
        number = (id(program), key[0] == "formula")
        if number not in self._known_bounds:
            self._known_bounds[number] = rounding_bounds(program, self._given(key))
        return self._known_bounds[number][place]

    @cached_property
    def _known_bounds(self) -> dict[tuple[int, bool], list[Rounded]]:
        return {}


def _choice(found: Explanation) -> Choice:
    """What an explanation of a kink means for the verdict."""
    if found.kind == "convention":
        return Choice(Verdict.NONSMOOTH, f"its convention is {found.name!r}")
    if found.kind == "slopes":
        slopes = ", ".join(
            f"{', '.join(f'{w:.4g}' for w in weights)} for {what}" for what, _, weights in found.decisions[:3]
        )
        more = f" and {len(found.decisions) - 3} more" if len(found.decisions) > 3 else ""
        return Choice(Verdict.NONSMOOTH, f"an admissible choice of slopes gives it: {slopes}{more}")
    if found.kind == "not excluded":
        return Choice(Verdict.NONSMOOTH, "it lies among the branches, with too many open decisions to say more")
    if found.is_refuted:
        return Choice(Verdict.FORMULA, found.reason or "no admissible choice of slopes gives it")
    return Choice(Verdict.UNDECIDED, found.reason)
