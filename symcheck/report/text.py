"""Findings as text for people: a table of all, then a message for each that is not OK, worst first."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from symcheck.findings import Finding, Verdict, Worst

__all__ = ["render", "render_plain", "renderable"]

PLAIN_WIDTH = 100

STYLES = {
    Verdict.FORMULA: "bold red",
    Verdict.OTHER: "bold magenta",
    Verdict.UNDECIDED: "bold yellow",
    Verdict.INSTABILITY: "red",
    Verdict.NONSMOOTH: "cyan",
    Verdict.ROUNDING: "cyan",
    Verdict.OK: "green",
}

SUBJECTS = {
    "autograd": "Autograd's gradient by {input}",
    "formula": "The formula for {input}",
    "finite differences": "The finite-difference gradient by {input}",
}

HEADLINES = {
    Verdict.FORMULA: "{subject} is wrong: it is not the gradient of {function}.",
    Verdict.OTHER: "{subject} is not well defined here.",
    Verdict.UNDECIDED: "{subject} could not be decided.",
    Verdict.INSTABILITY: "{subject} is right, but floating point makes it useless here.",
    Verdict.NONSMOOTH: "{subject} is admissible: {function} has a kink here.",
    Verdict.ROUNDING: "{subject} is right: what differs is only rounding.",
    Verdict.OK: "{subject} is right.",
}


def render_plain(function: str, findings: Sequence[Finding], notes: Sequence[str] = ()) -> str:
    """Give the report as plain text, the same wherever it runs: no colour, 100 columns, no trailing blanks."""
    return render(function, findings, notes, width=PLAIN_WIDTH, color=False)


def render(
    function: str,
    findings: Sequence[Finding],
    notes: Sequence[str] = (),
    *,
    width: int | None = None,
    color: bool = False,
) -> str:
    """Give the report as text.

    Args:
        function: the name of the function whose gradient was checked.
        findings: in the order in which the table lists them.
        notes: remarks on the whole check.
        width: columns to wrap at; None for 100.
        color: whether to mark verdicts with ANSI sequences.

    Returns:
        Lines without trailing blanks, no newline at the end. Text of the user's appears literally: it is not read
        as markup, and its control characters are shown escaped, such as ``\\x1b``.
    """
    console = Console(
        file=StringIO(),
        width=width or PLAIN_WIDTH,
        color_system="standard" if color else None,
        force_terminal=color,
        force_jupyter=False,
        no_color=not color,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as capture:
        console.print(renderable(function, findings, notes))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).rstrip("\n")


def renderable(function: str, findings: Sequence[Finding], notes: Sequence[str] = ()) -> RenderableType:
    """Give the report as something that a rich console prints at its own width and in its own colours."""
    parts: list[RenderableType] = [_summary(function, findings)]
    if findings:
        parts += [Text(), Padding(_table(findings), (0, 0, 0, 2))]
    if notes:
        parts += [Text(), _aligned([("note:", _shown(note)) for note in notes], indent=0)]
    for finding in sorted(findings, key=_order):
        if finding.verdict is not Verdict.OK:
            parts += [Text(), _headline(function, finding), _aligned(list(_facts(finding)), indent=2)]
    return Group(*parts)


def _order(finding: Finding) -> tuple[bool, int]:
    """Worst first; finite differences last, as they judge nothing."""
    return finding.candidate == "finite differences", -finding.verdict.severity


def _summary(function: str, findings: Sequence[Finding]) -> Text:
    text = Text(f"Gradient of {_shown(function)}: ", style="bold")
    if not findings:
        return text.append("nothing was checked", STYLES[Verdict.UNDECIDED])
    verdicts = [finding.verdict for finding in findings]
    counts = [(verdict, verdicts.count(verdict)) for verdict in Verdict if verdict in verdicts]
    for position, (verdict, count) in enumerate(counts):
        text.append(", " if position else "", "not bold").append(f"{count} {verdict.name}", STYLES[verdict])
    return text


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("\ncandidate", no_wrap=True)
    table.add_column("\ninput", overflow="fold", min_width=8)  # only this gives way on a narrow terminal
    table.add_column("\nverdict", no_wrap=True)
    for heading in ("formula\nerror", "rounding\nerror", "error\nin ulps"):
        table.add_column(heading, justify="right", no_wrap=True)
    for finding in findings:
        table.add_row(
            Text(_shown(finding.candidate)),
            Text(_shown(finding.input)),
            Text(finding.verdict.name, STYLES[finding.verdict]),
            _size(finding.formula_error) if finding.formula_error else "none",
            _rounding_size(finding),
            _size(finding.error_ulps),
        )
    return table


def _headline(function: str, finding: Finding) -> Text:
    name, candidate = _shown(finding.input), _shown(finding.candidate)
    subject = SUBJECTS.get(finding.candidate, "The {candidate} gradient by {input}")
    subject = subject.format(candidate=candidate, input=name)
    headline = HEADLINES[finding.verdict].format(subject=subject, function=_shown(function))
    return Text(headline, STYLES[finding.verdict])


def _facts(finding: Finding) -> Iterator[tuple[str, str]]:
    """Yield each fact's label and text, the advice last."""
    if finding.reason:
        yield "why:", _shown(finding.reason)
    if finding.worst is not None:
        yield from _worst_facts(finding, finding.worst)
    if not math.isnan(finding.formula_error):
        yield "formula:", _formula(finding)
    if not math.isnan(finding.rounding_error):
        yield "rounding:", _rounding(finding)
    if finding.operation and _shown(finding.operation) not in _shown(finding.reason):
        yield "operation:", _shown(finding.operation)
    if finding.advice:
        yield "try:", _shown(finding.advice)


def _worst_facts(finding: Finding, worst: Worst) -> Iterator[tuple[str, str]]:
    element = _shown(finding.input) + (str(list(worst.index)) if worst.index else "")
    among = f"   (of {finding.compared:,} compared, in {_shown(finding.dtype or 'its own dtype')})"
    yield "worst:", element + (among if finding.compared > 1 else "")
    exact, intended, computed = _side_by_side(worst.exact, worst.intended, worst.computed)
    what = "the formula" if finding.candidate == "formula" else _shown(finding.candidate)
    if not math.isnan(worst.exact):
        yield "exact:", exact
    if not math.isnan(worst.intended):
        yield "intended:", f"{intended}   ({what} in exact arithmetic)"
    ulps = "" if math.isnan(finding.error_ulps) else f"   ({_size(finding.error_ulps)} ulps from exact)"
    yield "computed:", computed + ulps


def _formula(finding: Finding) -> str:
    if not finding.formula_error:
        return "no error found"
    if finding.verdict is Verdict.NONSMOOTH:
        return f"{_size(finding.formula_error)} at most from the slope that the function as written has there"
    return f"off by {_size(finding.formula_error)} at most"


def _is_ruined(finding: Finding) -> bool:
    """Whether the worst element came out NaN or infinite where it means a finite value."""
    worst = finding.worst
    return worst is not None and math.isfinite(worst.exact) and not math.isfinite(worst.computed)


def _rounding_size(finding: Finding) -> str:
    if finding.worst is not None and _is_ruined(finding):
        return str(float(finding.worst.computed))
    return _size(finding.rounding_error) if finding.rounding_error else "none"


def _rounding(finding: Finding) -> str:
    size = f"{_size(finding.rounding_error)} at most" if finding.rounding_error else "none"
    if math.isinf(finding.rounding_error):
        size = "infinite"
    elif _is_ruined(finding):
        size += " among the values that are finite"
    if math.isinf(finding.bound):
        return f"{size}; no bound is known"
    if math.isnan(finding.bound):
        return size
    if not finding.rounding_error:
        return size
    # The error is the largest of all elements, the bound that of the worst one: only "within" follows.
    if finding.rounding_error <= finding.bound:
        return f"{size}, within the bound {_size(finding.bound)}"
    return f"{size}; the bound at the worst element is {_size(finding.bound)}"


def _aligned(rows: Sequence[tuple[str, str]], indent: int) -> Padding:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label, "bold" if label == "try:" else "dim"), Text(value))
    return Padding(grid, (0, 0, 0, indent))


def _size(value: float) -> str:
    """Give a magnitude in three digits; nan is what is not known."""
    if math.isnan(value):
        return "?"
    return f"{value:,.0f}" if 100 <= value < 1e6 else f"{value:.3g}"


def _side_by_side(*values: float) -> list[str]:
    """Write numbers one below the other, in as few digits (at least 9) as tell all that differ apart."""
    sign = " " if any(math.copysign(1.0, value) < 0 for value in values) else ""
    distinct = len({str(float(value)) for value in values})
    for digits in range(9, 18):
        written = [f"{float(value):{sign}#.{digits}g}" for value in values]
        if len(set(written)) == distinct:
            break
    return written


def _shown(text: str) -> str:
    """Give text on one line, with every control and formatting character escaped."""
    return "".join(character if _is_visible(character) else _escaped(character) for character in " ".join(text.split()))


def _is_visible(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
