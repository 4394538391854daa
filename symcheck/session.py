"""A session checks one function at any number of inputs, deriving once per set of shapes, dtypes and branches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import (
    Formula,
    Gradient,
    describe_error,
    is_same,
    repeats,
    run_autograd,
    run_formula,
    run_function,
    to_float64,
)
from symcheck.certification import Certification
from symcheck.conduct import note_casts, note_missing, observe, with_problems
from symcheck.differences import MOST_EVALUATIONS, Differences, differentiate
from symcheck.errors import Misuse, NonDeterministic, SymcheckError
from symcheck.estimates import compare_with_differences, judge_differences, report_differences
from symcheck.facts import Fact, notes_of, with_facts
from symcheck.findings import Finding, Verdict
from symcheck.intended import Intended, trace_candidates
from symcheck.judgement import judge, undecided
from symcheck.ladder import Ladder
from symcheck.points import choose_cotangents
from symcheck.reference import Derived, derive_reference, numeric
from symcheck.separation import Key
from symcheck.stops import find_stops
from symcheck.trials import Trials

__all__ = ["Outcome", "Session"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]
Run: TypeAlias = Callable[[torch.dtype | None], Gradient]
Run2: TypeAlias = Callable[[torch.dtype | None, Tensors], Floats | None]
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


class Session:
    """Checks of one function."""

    def __init__(self, binding: Binding, formulas: Sequence[Formula], *, cotangent: Any = None, seed: int = 0) -> None:
        self.binding, self.formulas = binding, tuple(formulas)
        self.cotangent, self.seed = cotangent, seed
        self.confirmed: dict[tuple[int, Key], bool] = {}  # whether a candidate's program is what it runs
        self.generic: set[tuple[int, Key]] = set()  # programs that were held against the gradient's at a generic input
        self.unremarkable = 0  # checks in which nothing was noticed of how the candidates behave
        self._intended: dict[int, Intended] = {}
        self.verified: set[Derived] = set()  # references that were held against the function at an input nearby
        self._derived: dict[tuple[Any, ...], list[Derived | SymcheckError]] = {}

    def run(self, tensors: Tensors, *, budget: int = 256) -> Outcome:
        """Check at these inputs, which must have the names of the binding's.

        Args:
            tensors: the inputs; never written to.
            budget: evaluations of the function for finite differences; 0 for none.

        Raises:
            Misuse: the function raises at these inputs, or returns nothing to differentiate.
        """
        return _Check(self, dict(tensors), budget).outcome()

    def derived(self, tensors: Tensors) -> Derived | SymcheckError:
        """The reference at the shapes, the dtypes and the branches of some tensors, or why there is none."""
        key = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
        known = self._derived.setdefault(key, [])
        for derived in known:
            if isinstance(derived, SymcheckError) or derived.follows(numeric(tensors)):
                return derived
        try:
            known.append(derive_reference(self.binding, tensors))
        except SymcheckError as error:
            known.append(error)
        return known[-1]

    def intended(self, derived: Derived, tensors: Tensors, cotangents: Sequence[Floats]) -> Intended:
        """The candidates' programs that go with a reference."""
        if id(derived) not in self._intended:
            self._intended[id(derived)] = trace_candidates(self.binding, tensors, derived, self.formulas, cotangents)
        return self._intended[id(derived)]


class _Blocked(NamedTuple):
    """Why a check has no reference, or must not trust it."""

    reason: str
    verdict: Verdict = Verdict.UNDECIDED
    operation: str = ""
    advice: str = ""


class _Check:
    """One check at one input."""

    def __init__(self, session: Session, tensors: dict[str, Tensor], budget: int) -> None:
        self.session, self.tensors, self.budget = session, tensors, budget
        self.binding, self.wrt, self.formulas = session.binding, session.binding.wrt, session.formulas
        self.generator = np.random.default_rng(session.seed)
        self.notes: list[str] = []
        self.first = self._first_run()
        shapes = [output.shape for output in self.first]
        self.cotangents = choose_cotangents(session.cotangent, shapes, self.generator)
        self.ones = tuple(np.ones(shape) for shape in shapes)
        self.is_scalar = not any(shapes)
        if not self.is_scalar and session.cotangent is None:
            self.notes.append(f"the output is not a scalar: judged with a random cotangent (seed {session.seed})")

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
        notes = (*self.notes, *notes_of(facts))
        return Outcome(tuple(with_facts(findings, facts)), notes, gradients, self.cotangents)

    @cached_property
    def conduct(self) -> tuple[Fact, ...]:
        """How the candidates behave when they are run again; nothing where the function itself is another each time."""
        native, outputs = self._native
        unsteady = outputs is not None and not all(map(repeats, self.first, outputs))
        if unsteady or self.session.unremarkable >= UNREMARKABLE:
            return ()
        formulas = [(formula, self._weights(formula)) for formula in self.formulas]
        facts = observe(self.binding, self.tensors, self.positions, native, self.cotangents, formulas, self._seconds)
        self.session.unremarkable += not facts
        return facts

    def _blocked(self) -> _Blocked | None:
        derived = self.session.derived(self.tensors)
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
            self.session.derived,
            lambda: self._wide[1],
            self.cotangents,
            self.generator,
        )
        problem = self.ladder.mismatch(self.first)
        if not problem and self.ladder.high not in self.session.verified:
            problem = self.ladder.mismatch_nearby()
            if not problem:
                self.session.verified.add(self.ladder.high)
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

        intended = self.session.intended(derived, self.tensors, self.cotangents)
        fixed = self.cotangents if self.is_scalar else self.ones
        certification = Certification(
            derived,
            intended,
            self.tensors,
            lambda plain: self.ladder.point_at(fixed if plain else self.cotangents),
            lambda plain: fixed if plain else self.cotangents,
            self.session.generic,
            generator,
        )
        return Trials(self.ladder, intended, certification, self.session.confirmed)

    def _judge(
        self, key: Key, gradient: Gradient, run: Run2, cotangents: Sequence[Floats], remarks: Callable[[], str]
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

    def _judge_differences(self, findings: Sequence[Finding]) -> tuple[list[Finding], _Blocked | None]:
        """Finite differences beside the reference; where they contradict it, nothing is decided."""
        worst = {f.input: f.worst.index for f in findings if f.worst is not None}
        judged: list[Finding] = []
        blocked = None
        for name, found in self._differences(self.cotangents, worst).items():
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

    def _differences(
        self, cotangents: Sequence[Floats], worst: Mapping[str, tuple[int, ...]] | None = None
    ) -> dict[str, Differences | str]:
        """Differences by each input, or why there are none; the smallest inputs first, as they leave budget over."""
        if not self.budget:
            return {}
        found: dict[str, Differences | str] = {}
        left = self.budget
        order = sorted(self.wrt, key=lambda name: self.tensors[name].numel())
        for place, name in enumerate(order):
            share = max(MOST_EVALUATIONS, left // (len(order) - place))
            result = self._difference(name, cotangents, share, (worst or {}).get(name, ()))
            found[name] = result
            left -= 0 if isinstance(result, str) else result.evaluations
        return {name: found[name] for name in self.wrt}

    def _difference(
        self, name: str, cotangents: Sequence[Floats], share: int, worst: tuple[int, ...]
    ) -> Differences | str:
        tensor = self.tensors[name]
        shape = tuple(tensor.shape)
        if tensor.is_complex():
            return f"{name} is complex, which has no meaning yet"

        def contributions(values: Floats) -> Floats:
            there = {**self.tensors, name: torch.from_numpy(np.asarray(values, dtype=np.float64).reshape(shape))}
            outputs = run_function(self.binding, there, self.positions, torch.float64)
            weighted = [(c * o).reshape(-1) for c, o in zip(cotangents, outputs, strict=True)]
            return np.concatenate(weighted) if weighted else np.zeros(0)

        first = [int(np.ravel_multi_index(worst, shape))] if worst else []
        try:
            return differentiate(
                contributions,
                np.asarray(numeric({name: tensor})[name], dtype=np.float64),
                generator=self.generator,
                budget=share,
                worst=np.array(first, dtype=np.int64),
            )
        except Exception as error:
            return describe_error(self.binding.name, error)

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
        found = self._differences(self.cotangents)
        plain = any(self._weights(formula) is self.ones for formula in self.formulas)
        return found, self._differences(self.ones) if plain else found

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
