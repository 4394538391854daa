"""A sweep as text: for each candidate and input how often each verdict fell, the largest errors, and a tolerance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from io import StringIO
from typing import Protocol

from rich.console import Console
from rich.table import Table

from symcheck.findings import Finding, Verdict

__all__ = ["render_sweep"]

WIDTH = 100


class Reported(Protocol):
    """A report of one seed."""

    @property
    def function(self) -> str:
        """What the function is called."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found."""


def render_sweep(reports: Mapping[int, Reported]) -> str:
    """Give a sweep as plain text of 100 columns: a table, then the seeds whose verdict is not a pass."""
    rows: dict[tuple[str, str], list[tuple[int, Finding]]] = {}
    for seed, report in reports.items():
        for finding in report.findings:
            rows.setdefault((finding.candidate, finding.input), []).append((seed, finding))
    function = next(iter(reports.values())).function
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title, justify in (("candidate", "left"), ("input", "left"), ("verdicts", "left")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for title in ("formula error", "rounding error", "tolerance"):
        table.add_column(title, justify="right")
    for (candidate, name), found in rows.items():
        counted = Counter(finding.verdict for _, finding in found)
        verdicts = ", ".join(f"{counted[verdict]:,} {verdict.name}" for verdict in Verdict if counted[verdict])
        numbers = (_largest(found, key) for key in ("formula_error", "rounding_error", "tolerance"))
        table.add_row(candidate, name, verdicts, *numbers)
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False)
    console.print(f"{function} at {len(reports):,} seeds; the largest of each number\n", markup=False, highlight=False)
    console.print(table)
    for (candidate, name), found in rows.items():
        failing = [(seed, finding) for seed, finding in found if finding.verdict not in (Verdict.OK, Verdict.ROUNDING)]
        if failing:
            seed, worst = max(failing, key=lambda pair: pair[1].verdict.severity)
            text = f"\n{candidate} by {name}, seed {seed}: {worst.verdict.name}: {worst.reason}"
            console.print(text, markup=False, highlight=False)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def _largest(found: list[tuple[int, Finding]], attribute: str) -> str:
    values = [float(getattr(finding, attribute)) for _, finding in found]
    known = [value for value in values if value == value]
    return f"{max(known):.2e}" if known else "?"
