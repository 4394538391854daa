"""The command `symcheck`."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING

from symcheck import __version__
from symcheck.errors import Misuse, SymcheckError

if TYPE_CHECKING:
    from symcheck.cases import Case
    from symcheck.checking import Report

__all__ = ["main"]

RIGHT, WRONG, MISUSED = 0, 1, 2  # exit codes
EPILOG = """\
exit code:
  0  every gradient is right
  1  a gradient is wrong, useless in floating point, or could not be decided
  2  the command cannot be carried out as it was given
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0 all right, 1 something wrong, 2 misuse."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot write is no crash
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    try:
        return _check(options)
    except Misuse as error:
        _complain(str(error))
        print("usage: symcheck check FILE[::NAME]   (see symcheck check --help)", file=sys.stderr)
        return MISUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="symcheck", description="Exact checking of PyTorch gradients: wrong formula, or only floating point?"
    )
    parser.add_argument("--version", action="version", version=f"symcheck {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    check = commands.add_parser(
        "check",
        help="check the gradients that a Python file defines",
        description="Check the gradients that a Python file defines: `function` and `inputs()`, optionally "
        "`formulas` and `WRT`, or symcheck.Case objects. The file is run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("target", metavar="FILE[::NAME]", help="the file, and the one case in it to check")
    check.add_argument("--json", action="store_true", help="print the findings as JSON")
    check.add_argument("--no-color", action="store_true", help="print without colours, as NO_COLOR does")
    check.add_argument("--traceback", action="store_true", help="show where an error was raised")
    return parser


def _check(options: argparse.Namespace) -> int:
    # Here and not above: --help, --version and a mistyped option answer without loading torch.
    from symcheck.cases import load_cases

    path, separator, name = options.target.partition("::")
    cases = load_cases(path, name if separator else None)
    outcomes = [(case.name, _outcome(case, options, titled=len(cases) > 1)) for case in cases]
    if options.json:
        listed = [{"name": name, **_data(outcome)} for name, outcome in outcomes]
        print(json.dumps({"symcheck": __version__, "cases": listed}, indent=2))
    return max(_exit_code(outcome) for _, outcome in outcomes)


def _outcome(case: Case, options: argparse.Namespace, *, titled: bool) -> Report | str:
    """Check one case and print its report, or print why it could not be checked and give that."""
    try:
        report = case.check()
    except Exception as error:
        # The user's function or inputs() raised, most likely; one case's error does not stop the others.
        if options.traceback:
            traceback.print_exception(error)
        why = str(error) if isinstance(error, SymcheckError) else f"{type(error).__name__}: {error}"
        hint = "" if options.traceback else "\n(--traceback shows where this was raised)"
        _complain(f"{case.name} could not be checked: {why}{hint}")
        return why
    if not options.json:
        if titled:
            print(f"== {case.name}")
        _print_report(report, color=not options.no_color)
    return report


def _exit_code(outcome: Report | str) -> int:
    if isinstance(outcome, str):
        return MISUSED
    return RIGHT if outcome.ok else WRONG


def _data(outcome: Report | str) -> dict[str, object]:
    if isinstance(outcome, str):
        return {"ok": False, "error": outcome}
    return {"ok": outcome.ok, **outcome.to_dict()}


def _print_report(report: Report, *, color: bool) -> None:
    from rich.console import Console

    from symcheck.report.text import render_plain, renderable

    console = Console()
    if color and console.is_terminal and not console.no_color:
        console.print(renderable(report.function, report.findings, report.notes))
    else:
        print(render_plain(report.function, report.findings, report.notes))
    print()


def _complain(message: str) -> None:
    print(f"symcheck: {message}", file=sys.stderr)
