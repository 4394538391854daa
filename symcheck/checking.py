"""Checking a gradient: one call from a function and its inputs to a report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.binding import Binding, bind, restored
from symcheck.candidates import Formula
from symcheck.checks import Outcome
from symcheck.errors import Misuse
from symcheck.evidence import Errors
from symcheck.findings import Finding, Verdict
from symcheck.report import data, text
from symcheck.session import Session

__all__ = ["Report", "assert_gradients", "bind_formulas", "check"]

Floats = NDArray[np.float64]
PASSES = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.NONSMOOTH})


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a check found.

    Attributes:
        function: the name of the function checked.
        findings: one per candidate and input.
        notes: what else there is to know, such as the seed of the cotangent.
        gradients: the reference gradient of sum(cotangent * output) by input, float64; empty if there is none.
        cotangents: the cotangent of each output, float64.
        allow: verdicts that count as passes beyond OK, ROUNDING and NONSMOOTH.
        errors: by (candidate, input), the formula error and the rounding error of every element; only of those whose
            own program was compared with the gradient's.
    """

    function: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    gradients: Mapping[str, Floats] = field(default_factory=dict)
    cotangents: tuple[Floats, ...] = ()
    allow: frozenset[Verdict] = frozenset()
    errors: Mapping[tuple[str, str], Errors] = field(default_factory=dict)

    @classmethod
    def of(cls, function: str, outcome: Outcome, allow: frozenset[Verdict] = frozenset()) -> Report:
        """The report on what a session found about the function of that name."""
        found = (outcome.findings, outcome.notes, outcome.gradients, outcome.cotangents)
        return cls(function, *found, allow, outcome.errors)

    @property
    def ok(self) -> bool:
        """Whether every autograd and formula finding is OK, ROUNDING or NONSMOOTH, or else allowed."""
        judged = [finding for finding in self.findings if finding.candidate != "finite differences"]
        return all(finding.verdict in PASSES | self.allow for finding in judged)

    def __bool__(self) -> bool:
        return self.ok

    def __getitem__(self, key: tuple[str, str]) -> Finding:
        """The finding on a candidate by an input: report["autograd", "w"]."""
        for finding in self.findings:
            if (finding.candidate, finding.input) == key:
                return finding
        known = ", ".join(f"[{f.candidate!r}, {f.input!r}]" for f in self.findings)
        raise KeyError(f"no finding for {key}; there are {known}")

    def __str__(self) -> str:
        return text.render_plain(self.function, self.findings, self.notes)

    def __rich__(self) -> Any:
        return text.renderable(self.function, self.findings, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return data.to_dict(self.function, self.findings, self.notes)


def check(
    function: Callable[..., Any],
    inputs: Any,
    wrt: Collection[str] | str | None = None,
    formulas: Mapping[str, Any] | None = None,
    *,
    cotangent: Any = None,
    seed: int = 0,
    budget: int = 256,
    allow: Verdict | Collection[Verdict] = (),
) -> Report:
    """Judge autograd, hand-derived formulas and finite differences against the exact gradient of a function.

    For an output that is not a scalar, the gradient of sum(cotangent * output) is judged.

    Args:
        function: a callable on tensors, or an `nn.Module`, whose parameters and buffers become inputs by their names.
        inputs: {name: tensor}, or a tuple in the function's order, named by its parameters (x0, x1 ... for ``*args``).
        wrt: the names to differentiate by; every real input and parameter by default.
        formulas: {input name: callable}. A formula takes inputs by their names, or all of them in the function's
            order. With a parameter ``cotangent`` it gets the cotangent; without, it is compared at ones.
        cotangent: weights of the output, a tensor of its shape (a tuple for several outputs). By default ones for a
            scalar, else random numbers with 7 significant bits and magnitude in [1/2, 2].
        seed: draws the cotangent, the sampled differences and the inputs nearby.
        budget: how often finite differences may evaluate the function; 0 leaves them out.
        allow: verdicts that count as passes in `Report.ok` beyond OK, ROUNDING and NONSMOOTH.

    Returns:
        A report with a finding for each candidate and input.

    Raises:
        Misuse: the arguments cannot mean anything, or the function raises on these inputs.

    >>> import torch, symcheck
    >>> symcheck.check(lambda x: (x**2).sum(), (torch.ones(3),), formulas={"x": lambda x: 2 * x}).ok
    True
    """
    _require_natural("seed", seed)
    _require_natural("budget", budget)
    allowed = _verdicts(allow)
    binding = bind(function, inputs, wrt)
    session = Session(binding, bind_formulas(formulas, binding), cotangent=cotangent, seed=seed)
    with restored(binding):
        return Report.of(binding.name, session.run(binding.inputs, budget=budget), allowed)


def _require_natural(name: str, value: Any) -> None:
    if not isinstance(value, int) or value < 0:
        raise Misuse(f"{name} is {value!r}; give an integer that is not negative")


def _verdicts(allow: Any) -> frozenset[Verdict]:
    verdicts = [allow] if isinstance(allow, Verdict) else allow
    if not isinstance(verdicts, Collection) or not all(isinstance(verdict, Verdict) for verdict in verdicts):
        raise Misuse(f"allow is {allow!r}; give members of symcheck.Verdict, such as (Verdict.UNDECIDED,)")
    return frozenset(verdicts)


def assert_gradients(function: Callable[..., Any], inputs: Any, *args: Any, **options: Any) -> Report:
    """As `check`, raising where the report is not ok.

    Raises:
        AssertionError: with the report as its message.
    """
    report = check(function, inputs, *args, **options)
    if not report.ok:
        raise AssertionError(f"\n{report}")
    return report


def bind_formulas(formulas: Mapping[str, Any] | None, binding: Binding) -> tuple[Formula, ...]:
    """The formulas of a call, each bound to the function's inputs.

    Raises:
        Misuse: a formula is for a name that is not differentiated by, or cannot be called with the inputs.
    """
    if formulas is None:
        return ()
    if not isinstance(formulas, Mapping):
        raise Misuse(f"formulas is of type {type(formulas).__name__}; give {{input name: formula}}")
    for name in formulas:
        if name not in binding.wrt:
            known = ", ".join(binding.wrt)
            raise Misuse(f"there is a formula for {name!r}, which is not differentiated by; there are {known}")
    return tuple(Formula.of(name, formula, binding) for name, formula in formulas.items())
