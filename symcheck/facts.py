"""What a check notices about how the function and its candidates behave, beside whether a gradient is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from symcheck.findings import Finding, Verdict

__all__ = ["Fact", "Kind", "notes_of", "with_facts"]


class Kind(Enum):
    """What a fact is about."""

    NONDETERMINISM = "a gradient that differs between two runs"
    COTANGENT = "a backward that is not linear in its cotangent"
    LAYOUT = "a result that depends on how values lie in memory"
    WRITES = "a backward or a formula that overwrites what it is given"
    DEPENDENCE = "an input that was computed from another"
    OVERLAP = "inputs, or elements of one, that share memory"
    CAST = "a computation in a narrower dtype than its inputs"
    MISSING = "a gradient of None"
    UNCHECKED = "what was not looked at"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing noticed.

    Attributes:
        kind: what it is about.
        candidate: whose gradient it concerns, as in `Finding`; "" for the inputs themselves.
        inputs: the names concerned.
        sentence: what was seen.
        advice: what to do; "" if there is nothing to do.
        verdict: what the findings on that candidate by those inputs are at best; None for a mere note.
    """

    kind: Kind
    candidate: str
    inputs: tuple[str, ...]
    sentence: str
    advice: str = ""
    verdict: Verdict | None = None


def with_facts(findings: Sequence[Finding], facts: Sequence[Fact]) -> list[Finding]:
    """The findings with what the facts make of them: a worse verdict, or one more reason for it."""
    return [_with_facts(finding, facts) for finding in findings]


def _with_facts(finding: Finding, facts: Sequence[Fact]) -> Finding:
    for fact in facts:
        if fact.verdict is None or fact.candidate != finding.candidate or finding.input not in fact.inputs:
            continue
        # What differs from run to run has no formula that could be wrong.
        if fact.kind is Kind.NONDETERMINISM or fact.verdict.severity > finding.verdict.severity:
            undecided = finding.verdict is Verdict.UNDECIDED
            reason = f"{fact.sentence}; {finding.reason}" if undecided else fact.sentence
            finding = replace(finding, verdict=fact.verdict, reason=reason, advice=fact.advice)
        else:
            finding = replace(finding, reason=f"{finding.reason}; {fact.sentence}")
    return finding


def notes_of(facts: Sequence[Fact]) -> Iterator[str]:
    """The facts that change no verdict, one sentence each."""
    for fact in facts:
        if fact.verdict is None:
            yield f"{fact.sentence}; {fact.advice}" if fact.advice else fact.sentence
