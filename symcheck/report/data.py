"""Findings as plain data, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence

from symcheck.findings import Finding, Worst

__all__ = ["to_dict"]


def to_dict(function: str, findings: Sequence[Finding], notes: Sequence[str] = ()) -> dict[str, object]:
    """Give a report as dictionaries, lists, strings and numbers that `json.dumps` takes as they are.

    JSON has no number for nan and the infinities, so these become the strings ``"nan"``, ``"inf"`` and ``"-inf"``:
    `float` of any number in the result gives back what the finding holds, bit for bit.

    Args:
        function: the name of the function whose gradient was checked.
        findings: in the order in which they are to appear.
        notes: remarks on the whole check.

    Returns:
        ``{"function", "verdicts", "findings", "notes"}``, where ``verdicts`` counts the findings by verdict, worst
        first, and each finding has the attributes of `Finding` by name; a verdict is its name, such as ``"FORMULA"``.
    """
    ranked = sorted((finding.verdict for finding in findings), key=lambda verdict: -verdict.severity)
    return {
        "function": function,
        "verdicts": {verdict.name: ranked.count(verdict) for verdict in ranked},
        "findings": [_finding(finding) for finding in findings],
        "notes": list(notes),
    }


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "candidate": finding.candidate,
        "input": finding.input,
        "verdict": finding.verdict.name,
        "reason": finding.reason,
        "formula_error": _number(finding.formula_error),
        "rounding_error": _number(finding.rounding_error),
        "bound": _number(finding.bound),
        "error_ulps": _number(finding.error_ulps),
        "worst": None if finding.worst is None else _worst(finding.worst),
        "operation": finding.operation,
        "advice": finding.advice,
        "dtype": finding.dtype,
        "shape": list(finding.shape),
        "compared": finding.compared,
        "left_out": dict(finding.left_out),
        "tolerance": _number(finding.tolerance),
    }


def _worst(worst: Worst) -> dict[str, object]:
    return {
        "index": list(worst.index),
        "computed": _number(worst.computed),
        "intended": _number(worst.intended),
        "exact": _number(worst.exact),
    }


def _number(value: float) -> float | str:
    value = float(value)  # a NumPy scalar is no JSON number
    return value if math.isfinite(value) else str(value)
