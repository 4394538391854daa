"""One check at one input: the stages from the user's function to its findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.candidates import (
    Formula,
    Gradient,
    describe_error,
    is_same,
    repeats,
    run_autograd,
    run_formula,
    to_float64,
)
from symcheck.certification import Certification
from symcheck.conduct import note_casts, note_missing, observe, with_problems
from symcheck.differences import Differences
from symcheck.differencing import Differencing
from symcheck.errors import Misuse, NonDeterministic, SymcheckError
from symcheck.estimates import compare_with_differences, judge_differences, report_differences
from symcheck.evidence import Errors
from symcheck.facts import Fact, notes_of, with_facts
from symcheck.findings import Finding, Verdict
from symcheck.judgement import judge, undecided
from symcheck.ladder import Ladder
from symcheck.memory import Memory
from symcheck.points import choose_cotangents
from symcheck.separation import Key
from symcheck.stops import find_stops
from symcheck.trials import Trials

__all__ = ["Check", "Outcome"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]
Run: TypeAlias = Callable[[torch.dtype | None], Gradient]
Rerun: TypeAlias = Callable[[torch.dtype | None, Tensors], Floats | None]
Outputs: TypeAlias = "list[Floats] | None"  # None where the function raised

DIFFERENCES = "finite differences"
UNREMARKABLE = 8  # checks of a session in which nothing is noticed of how candidates behave, and then no more is looked


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a check at one input found; the attributes are those of `Report`."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    gradients: Mapping[str, Floats]
    cotangents: tuple[Floats, ...]
    errors: Mapping[Key, Errors]


class _Blocked(NamedTuple):
    """Why a check has no reference, or must not trust it."""

    reason: str
    verdict: Verdict = Verdict.UNDECIDED
    operation: str = ""
    advice: str = ""


class Check:
    """One check at one input."""

    def __init__(self, memory: Memory, tensors: dict[str, Tensor], budget: int) -> None:
        self.memory, self.tensors, self.budget = memory, tensors, budget
        self.binding, self.wrt, self.formulas = memory.binding, memory.binding.wrt, memory.formulas
        self.generator = np.random.default_rng(memory.seed)
        self.notes: list[str] = []
        self.first = self._first_run()
        shapes = [output.shape for output in self.first]
        self.cotangents = choose_cotangents(memory.cotangent, shapes, self.generator)
        self.ones = tuple(np.ones(shape) for shape in shapes)
        self.is_scalar = not any(shapes)
        if not self.is_scalar and memory.cotangent is None:
            self.notes.append(f"the output is not a scalar: judged with a random cotangent (seed {memory.seed})")

    def _first_run(self) -> list[Floats]:
        """The real outputs of one run as the user would do it, so that the function's own errors come first."""
        copies = {name: t.detach().requires_grad_(name in self.wrt).clone() for name, t in self.tensors.items()}
        try:
            with torch.enable_grad():
                outputs = self.binding.call(copies)
        except SymcheckError:
            raise
        except Exception as error:
            raise Misuse(describe_error(self.binding.name, error)) from error
        self.positions = tuple(place for place, output in enumerate(outputs) if output.is_floating_point())
        is_complex = [place for place, output in enumerate(outputs) if output.is_complex()]
        if not self.positions and not is_complex:
            kinds = ", ".join(str(output.dtype).removeprefix("torch.") for output in outputs)
            raise Misuse(f"{self.binding.name} returns {kinds}, which has no derivative; return real tensors")
        if self.positions and is_complex:
            self.notes.append(f"left out, as they are complex: outputs {', '.join(map(str, is_complex))}")
        for name in list(self.tensors)[: self.binding.arguments]:
            if not is_same(copies[name], self.tensors[name]):
                self.notes.append(f"the function writes to its input {name}, which autograd refuses of a leaf")
        return [to_float64(outputs[place]) for place in self.positions]

    # -- the stages -----------------------------------------------------------------------------------------------

    def outcome(self) -> Outcome:
        blocked = self._blocked()
        if blocked is None:
            findings = [self._judge_autograd(name) for name in self.wrt]
            findings += map(self._judge_formula, self.formulas)
            jumps = {name for name in self.ladder.point.jumps if self._trials.certification.jumps(name)}
            findings = [_without_pass(finding) if finding.input in jumps else finding for finding in findings]
            judged, blocked = self._judge_differences(findings)
            if blocked is None:
                gradients = {name: exact.values for name, exact in self.ladder.point.gradients.items()}
                return self._outcome([*findings, *judged], gradients)
        return self._outcome(self._without_reference(blocked), {})

    def _outcome(self, findings: Sequence[Finding], gradients: Mapping[str, Floats]) -> Outcome:
        facts = list(self.conduct)
        if gradients:
            intended = self._trials.intended
            facts = [*with_problems(facts, intended.problems), *note_missing(self._native[0], gradients)]
            facts += note_casts(intended, self.tensors)
            self.notes += self._trials.certification.notes
        notes = (*self.notes, *notes_of(facts))
        errors = self._trials.errors if gradients else {}
        return Outcome(tuple(with_facts(findings, facts)), notes, gradients, self.cotangents, errors)

    @cached_property
    def conduct(self) -> tuple[Fact, ...]:
        """How the candidates behave when they are run again; nothing where the function itself is another each time."""
        native, outputs = self._native
        unsteady = outputs is not None and not all(map(repeats, self.first, outputs))
        if unsteady or self.memory.unremarkable >= UNREMARKABLE:
            return ()
        formulas = [(formula, self._weights(formula)) for formula in self.formulas]
        facts = observe(self.binding, self.tensors, self.positions, native, self.cotangents, formulas, self._seconds)
        self.memory.unremarkable += not facts
        return facts

    def _blocked(self) -> _Blocked | None:
        derived = self.memory.derived(self.tensors)
        if isinstance(derived, SymcheckError):
            verdict = Verdict.OTHER if isinstance(derived, NonDeterministic) else Verdict.UNDECIDED
            return _Blocked(str(derived), verdict, getattr(derived, "operator", ""))
        if not self.positions:
            return _Blocked("the output is complex, which has no meaning yet")
        outputs = self._native[1]
        if outputs is not None and not all(map(repeats, self.first, outputs)):
            return _Blocked(
                f"{self.binding.name} returns something else each time it is run: it is not a function of its inputs",
                Verdict.OTHER,
                advice="draw its random numbers and read its state outside, and give them as inputs",
            )
        self.ladder = Ladder(
            self.binding,
            self.tensors,
            derived,
            self.memory.derived,
            lambda: self._wide[1],
            self.cotangents,
            self.generator,
        )
        problem = self.ladder.mismatch(self.first)
        if not problem and self.ladder.high not in self.memory.verified:
            problem = self.ladder.mismatch_nearby()
            if not problem:
                self.memory.verified.add(self.ladder.high)
        return _Blocked(problem) if problem else None

    # -- autograd -------------------------------------------------------------------------------------------------

    def _autograd(self, target: torch.dtype | None, tensors: Tensors) -> tuple[dict[str, Gradient], Outputs]:
        try:
            return run_autograd(self.binding, tensors, self.wrt, self.cotangents, self.positions, target)
        except Exception as error:
            reason = describe_error("autograd", error)
            return {name: Gradient(None, problem=reason) for name in self.wrt}, None

    @cached_property
    def _native(self) -> tuple[dict[str, Gradient], Outputs]:
        start = time.perf_counter()
        found = self._autograd(None, self.tensors)
        self._seconds = time.perf_counter() - start
        return found

    @cached_property
    def _wide(self) -> tuple[dict[str, Gradient], Outputs]:
        return self._autograd(torch.float64, self.tensors)

    def _judge_autograd(self, name: str) -> Finding:
        gradient = self._native[0][name]
        if gradient.values is None:
            return undecided("autograd", name, gradient.problem, dtype=gradient.dtype)

        def run(target: torch.dtype | None, tensors: Tensors) -> Floats | None:
            here = target is torch.float64 and tensors is self.tensors
            return (self._wide if here else self._autograd(target, tensors))[0][name].values

        def remarks() -> str:
            said = ["autograd returns None: it sees no path to this input"] if gradient.missing else []
            return "; ".join([*said, *self._stops])

        return self._judge(("autograd", name), gradient, run, self.cotangents, remarks)

    @cached_property
    def _trials(self) -> Trials:
        derived, generator = self.ladder.derived, self.generator

        intended = self.memory.intended(derived, self.tensors, self.cotangents)
        fixed = self.cotangents if self.is_scalar else self.ones
        certification = Certification(
            derived,
            intended,
            self.tensors,
            lambda plain: self.ladder.point_at(fixed if plain else self.cotangents),
            lambda plain: fixed if plain else self.cotangents,
            self.memory.generic,
            generator,
        )
        return Trials(self.ladder, intended, certification, self.memory.confirmed)

    def _judge(
        self, key: Key, gradient: Gradient, run: Rerun, cotangents: Sequence[Floats], remarks: Callable[[], str]
    ) -> Finding:
        """By its own program in balls; by the precision ladder where that cannot be had, and the finding says so."""
        judged = self._trials.judge(key, gradient, run, remarks)
        if isinstance(judged, Finding):
            return judged
        found = judge(self.ladder.evidence(*key, gradient, run, cotangents, remarks))
        return replace(found, reason=f"{found.reason}; judged by the precision ladder: {judged}")

    @cached_property
    def _stops(self) -> list[str]:
        """Where autograd is stopped, as one remark, or none."""
        leaves = {name: t.detach().requires_grad_(name in self.wrt).clone() for name, t in self.tensors.items()}
        stops = find_stops(self.binding.call, leaves)
        return [f"autograd is stopped by {', '.join(stops)}"] if stops else []

    # -- formulas -------------------------------------------------------------------------------------------------

    def _formula(self, formula: Formula, target: torch.dtype | None, tensors: Tensors) -> Gradient:
        try:
            return run_formula(formula, tensors, self._weights(formula), target)
        except Exception as error:
            return Gradient(None, problem=describe_error(f"the formula for {formula.input}", error))

    def _weights(self, formula: Formula) -> tuple[Floats, ...]:
        return self.cotangents if formula.takes_cotangent or self.is_scalar else self.ones

    def _judge_formula(self, formula: Formula) -> Finding:
        gradient = self._formula(formula, None, self.tensors)
        if gradient.values is None:
            return _unusable(formula, gradient)

        def run(target: torch.dtype | None, tensors: Tensors) -> Floats | None:
            return self._formula(formula, target, tensors).values

        return self._judge(("formula", formula.input), gradient, run, self._weights(formula), lambda: "")

    # -- finite differences ---------------------------------------------------------------------------------------

    @cached_property
    def _differencing(self) -> Differencing:
        return Differencing(self.binding, self.tensors, self.positions, self.generator, self.budget)

    def _judge_differences(self, findings: Sequence[Finding]) -> tuple[list[Finding], _Blocked | None]:
        """Finite differences beside the reference; where they contradict it, nothing is decided."""
        worst = {f.input: f.worst.index for f in findings if f.worst is not None}
        judged: list[Finding] = []
        blocked = None
        for name, found in self._differencing.by_each(self.cotangents, worst).items():
            if isinstance(found, str):
                judged.append(undecided(DIFFERENCES, name, found))
                continue
            finding, contradicts = judge_differences(name, found, self.ladder.wide_exact(name))
            if contradicts and self.ladder.is_too_fine(name, finding.worst, found):
                more = "so do those of the program itself, but not one in high precision: float64 is too coarse"
                judged.append(replace(finding, reason=f"{finding.reason}; {more}"))
                continue
            judged.append(finding)
            if contradicts:
                blocked = _Blocked("finite differences contradict the traced program, which may not be the function")
        return judged, blocked

    # -- where there is no reference ------------------------------------------------------------------------------

    def _without_reference(self, blocked: _Blocked) -> list[Finding]:
        """Every finding says why nothing is decided, and what finite differences of the function itself say."""
        found, at_ones = self._differences_alone(blocked)
        findings = []
        for candidate, name, weights, run in self._candidates():
            differences = (at_ones if weights is self.ones else found).get(name)
            if isinstance(differences, Differences):
                found_alone = _compare(blocked, candidate, name, run, differences)
                stops = self._stops if candidate == "autograd" else []
                findings.append(replace(found_alone, reason="; ".join([found_alone.reason, *stops])))
            else:
                findings.append(_undecided(blocked, candidate, name))
        for name in self.wrt:
            differences = found.get(name)
            if isinstance(differences, Differences):
                findings.append(report_differences(name, differences, blocked.reason))
            elif self.budget:
                findings.append(_undecided(blocked, DIFFERENCES, name, differences or ""))
        return findings

    def _differences_alone(self, blocked: _Blocked) -> tuple[dict[str, Differences | str], ...]:
        """Finite differences with the cotangents and with ones, where a function has any."""
        if blocked.verdict is Verdict.OTHER or not self.positions:
            return {}, {}
        found = self._differencing.by_each(self.cotangents)
        plain = any(self._weights(formula) is self.ones for formula in self.formulas)
        return found, self._differencing.by_each(self.ones) if plain else found

    def _candidates(self) -> Iterator[tuple[str, str, Sequence[Floats], Run]]:
        """Each candidate, its input, the cotangents that it is run with, and how to run it in a dtype."""
        for name in self.wrt:
            yield "autograd", name, self.cotangents, partial(self._autograd_by, name)
        for formula in self.formulas:
            run = partial(self._formula, formula, tensors=self.tensors)
            yield "formula", formula.input, self._weights(formula), run

    def _autograd_by(self, name: str, target: torch.dtype | None) -> Gradient:
        return (self._native if target is None else self._wide)[0][name]


def _without_pass(finding: Finding) -> Finding:
    """A finding at an input where the function itself may jump: what would pass has nothing to be right about."""
    if finding.verdict not in (Verdict.OK, Verdict.ROUNDING):
        return finding
    reason = "the function may jump at this input: its value depends on a decision that could fall either way"
    return replace(finding, verdict=Verdict.UNDECIDED, reason=reason, advice="")


def _undecided(blocked: _Blocked, candidate: str, name: str, more: str = "") -> Finding:
    reason = f"{blocked.reason}; {more}" if more else blocked.reason
    return Finding(candidate, name, blocked.verdict, reason, operation=blocked.operation, advice=blocked.advice)


def _compare(blocked: _Blocked, candidate: str, name: str, run: Run, differences: Differences) -> Finding:
    native = run(None)
    if native.values is None:
        return _undecided(blocked, candidate, name, native.problem)
    wide = run(torch.float64).values
    found = compare_with_differences(candidate, name, native.values, wide, native.dtype, differences, blocked.reason)
    return replace(found, operation=blocked.operation)


def _unusable(formula: Formula, gradient: Gradient) -> Finding:
    """The finding on a formula that gives no gradient: of the wrong shape it is wrong, else nothing is known."""
    verdict = Verdict.UNDECIDED if gradient.shape is None else Verdict.FORMULA
    return undecided("formula", formula.input, gradient.problem, verdict=verdict, shape=gradient.shape or ())
