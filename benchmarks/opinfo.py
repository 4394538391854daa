"""Conformance: `symcheck.check` on every differentiable float64 operator of torch's own OpInfo database.

    python -m benchmarks.opinfo [NAME ...] [--samples 2] [--jobs 2] [--json FILE]

Each sample, differentiated by the tensors that the database marks so, ends as one of

    compared      autograd and exact were compared at every element by every input. Elements left out because the
                  sample lies on a branch boundary, or because a gradient is not finite there, do not count against
                  it as long as some element of the sample was compared; how many there are is printed.
    random        an operator that draws random numbers was named as such.
    undecided     anything else that says so: an operator without a meaning, no error bound, a complex output ...
    disagreement  autograd was called wrong, or finite differences or the function's own values contradict the
                  traced program.
    timeout       not done within a minute.
    crash         an exception that is none of symcheck's own.

An operator is *decided* if all its samples are compared or random. The exit code is 1 if fewer than 420 operators are
decided, or if a disagreement is not explained below as torch's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.samples import OpSample, differentiable_operators, full_name, samples
from symcheck.checking import Report, check
from symcheck.errors import Misuse
from symcheck.findings import Finding, Verdict
from symcheck.judgement import BOUNDARY, COMPUTED_INFINITE, INFINITE

__all__ = ["EXPLAINED", "Operator", "Sample", "check_operator", "check_sample", "main"]

ALL, ENOUGH = 540, 420  # differentiable float64 operators of torch 2.13; how many must be decided
BUDGET = 160  # evaluations for finite differences, per sample
TIMEOUT = 60.0  # seconds per sample
EDGES = frozenset({BOUNDARY, INFINITE, COMPUTED_INFINITE})
DECIDED = frozenset({"compared", "random"})

UNPOOL = (
    "the sample's windows overlap, so that several inputs are written to one place and the last stays; autograd gives "
    "each of them the cotangent, where the gradient by those overwritten is 0, as differences find"
)

# operator -> why a disagreement is torch's own, with the numbers
EXPLAINED: dict[str, str] = {
    "as_strided_scatter": "src replaces every element of the input, so the gradient by the input is 0; autograd gives "
    "the cotangent, 1.84375, and torch.autograd.gradcheck rejects it too",
    "digamma": "its float64 trigamma is 3.7e-11 off, relative to the value at -0.6047, found by mpmath",
    "nn.functional.ctc_loss": "its backward takes log_probs for the output of log_softmax and gives the gradient plus "
    "exp(log_probs) times the cotangent: torch's less that is the gradient to 2e-13, which differences find as well",
    "nn.functional.hardsigmoid": "its float64 backward multiplies by float32(1/6): 3e-8 relative",
    "nn.functional.max_unpool1d": UNPOOL,
    "nn.functional.max_unpool2d": UNPOOL,
    "nn.functional.max_unpool3d": UNPOOL,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What came of one sample.

    Attributes:
        name: the operator's with the number of the sample.
        outcome: as listed above.
        reason: why, unless compared.
        edges: elements left out on branch boundaries or because they are not finite.
        seconds: how long the check took.
    """

    name: str
    outcome: str
    reason: str = ""
    edges: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Operator:
    """What came of one operator."""

    name: str
    samples: tuple[Sample, ...]

    @property
    def decided(self) -> bool:
        """Whether all samples are compared or random; an operator without samples is not."""
        return bool(self.samples) and all(sample.outcome in DECIDED for sample in self.samples)

    @property
    def disagreements(self) -> tuple[Sample, ...]:
        """The samples that disagree."""
        return tuple(sample for sample in self.samples if sample.outcome == "disagreement")

    @property
    def reason(self) -> str:
        """Why it is not decided: of its first sample that is not."""
        return next((s.reason or s.outcome for s in self.samples if s.outcome not in DECIDED), "it has no samples")

    @property
    def seconds(self) -> float:
        """How long its slowest sample took."""
        return max((sample.seconds for sample in self.samples), default=0.0)


class _TooLong(BaseException):
    """Not an Exception, so that no handler takes it for an error of the function."""


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_operator(op: Any, count: int) -> Operator:
    """Check the first samples of an operator."""
    try:
        drawn = list(samples(op, count))
    except Exception as error:
        return Operator(full_name(op), (Sample(full_name(op), "crash", f"its samples: {error!r:.200}"),))
    return Operator(full_name(op), tuple(check_sample(sample) for sample in drawn))


def check_sample(sample: OpSample, limit: float = TIMEOUT) -> Sample:
    """Check one sample within a time limit."""
    start, report = time.perf_counter(), None
    outcome, reason = "", ""
    try:
        with _time_limit(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = check(sample.function, tuple(sample.inputs.values()), sample.wrt or None, budget=BUDGET)
    except _TooLong:
        outcome, reason = "timeout", f"not done in {limit:.0f} s"
    except Misuse as error:
        outcome, reason = "undecided", str(error)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        outcome, reason = "crash", f"{type(error).__name__} at {where}: {str(error)[:160]}"
    edges = 0
    if report is not None:
        outcome, reason, edges = judge_report(report)
    return Sample(sample.name, outcome, reason, edges, time.perf_counter() - start)


def judge_report(report: Report) -> tuple[str, str, int]:
    """Outcome, reason and number of elements on edges."""
    autograd = [finding for finding in report.findings if finding.candidate == "autograd"]
    differences = [finding for finding in report.findings if finding.candidate == "finite differences"]
    for finding in autograd:
        if finding.verdict is Verdict.FORMULA:
            return "disagreement", f"autograd by {finding.input}: {finding.reason}; {_numbers(finding)}", 0
    for finding in differences:
        if "contradict" in finding.reason:
            return "disagreement", f"differences by {finding.input}: {finding.reason}; {_numbers(finding)}", 0
    if any("is not the function" in finding.reason for finding in autograd):
        return "disagreement", autograd[0].reason, 0
    if all(finding.verdict is Verdict.OTHER for finding in autograd):
        return "random", _reason(autograd[0]), 0
    edges = sum(count for finding in autograd for why, count in finding.left_out if why in EDGES)
    for finding in autograd:
        if finding.verdict is Verdict.UNDECIDED and not _only_edges(finding):
            return "undecided", _reason(finding), edges
    if edges and not any(finding.compared for finding in autograd):
        return "undecided", f"no element could be compared: {autograd[0].reason}", edges
    return "compared", "", edges


def _reason(finding: Finding) -> str:
    """The reason without the source line, which is always the one in `samples`, and without what differences say."""
    head, _, rest = finding.reason.partition(" (called at ")
    return (head + rest.partition("))")[2]).partition("; finite differences")[0]


def _only_edges(finding: Finding) -> bool:
    return bool(finding.left_out) and all(why in EDGES for why, _ in finding.left_out)


def _numbers(finding: Finding) -> str:
    if finding.worst is None:
        return "no element"
    worst = finding.worst
    return f"{worst.computed!r} where exact is {worst.exact!r}, bound {finding.bound:.2g}"


# -- all of them ------------------------------------------------------------------------------------------------------


def _check_by_place(place: int, count: int) -> Operator:
    torch.set_num_threads(1)
    return check_operator(differentiable_operators()[place], count)


def check_all(places: Sequence[int], *, count: int, jobs: int, console: Console) -> list[Operator]:
    """Check operators by their places in the database, in several processes."""
    spawn = multiprocessing.get_context("spawn")
    done: dict[int, Operator] = {}
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool, Progress(console=console) as progress:
        task = progress.add_task("checking", total=len(places))
        futures = {pool.submit(_check_by_place, place, count): place for place in places}
        for future in as_completed(futures):
            done[futures[future]] = future.result()
            progress.update(task, advance=1, description=done[futures[future]].name[:40])
    return [done[place] for place in sorted(done)]


def _print_undecided(results: Sequence[Operator], console: Console) -> None:
    groups: dict[str, list[str]] = defaultdict(list)
    for operator in results:
        if not operator.decided and not operator.disagreements:
            groups[operator.reason].append(operator.name)
    table = Table("undecided", "reason", title="Undecided operators", title_justify="left", show_lines=True)
    for reason, names in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        table.add_row(", ".join(names), reason)
    if groups:
        console.print(table)


def _print_disagreements(results: Sequence[Operator], console: Console) -> int:
    """Print every disagreement and return how many operators have one without an explanation."""
    unexplained = 0
    for operator in results:
        for sample in operator.disagreements:
            why = EXPLAINED.get(operator.name)
            console.print(f"disagreement: {sample.name}: {sample.reason}", soft_wrap=True, markup=False)
            console.print(f"  {'torch: ' + why if why else 'UNEXPLAINED'}", soft_wrap=True, markup=False)
        unexplained += bool(operator.disagreements) and operator.name not in EXPLAINED
    return unexplained


def print_summary(results: Sequence[Operator], console: Console) -> int:
    """Print what came of all operators; returns how many disagreements are unexplained."""
    _print_undecided(results, console)
    unexplained = _print_disagreements(results, console)
    outcomes = Counter(sample.outcome for operator in results for sample in operator.samples)
    edges = [sample.edges for operator in results for sample in operator.samples if sample.edges]
    slow = sorted(results, key=lambda operator: -operator.seconds)[:8]
    console.print(f"slowest: {', '.join(f'{o.name} {o.seconds:.1f} s' for o in slow)}", soft_wrap=True)
    console.print(f"samples: {', '.join(f'{count} {name}' for name, count in outcomes.most_common())}")
    console.print(f"compared but for {sum(edges)} elements on branch boundaries or not finite, in {len(edges)} samples")
    disagreeing = sum(bool(operator.disagreements) for operator in results)
    console.print(f"disagreements: {disagreeing} operators, {unexplained} unexplained")
    console.print(f"decided: {sum(operator.decided for operator in results)} of {len(results)} operators")
    return unexplained


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.opinfo", description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, by a part of their name; all by default")
    parser.add_argument("--samples", type=int, default=2, help="how many samples of each operator")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes here")
    options = parser.parse_args(arguments)
    console = Console()
    names = [full_name(op) for op in differentiable_operators()]
    places = [n for n, name in enumerate(names) if not options.names or any(part in name for part in options.names)]
    results = check_all(places, count=options.samples, jobs=options.jobs, console=console)
    unexplained = print_summary(results, console)
    if options.json:
        options.json.write_text(json.dumps([asdict(operator) for operator in results], indent=1) + "\n")
    decided = sum(operator.decided for operator in results)
    return int(unexplained > 0 or (not options.names and decided < ENOUGH * len(results) / ALL))


if __name__ == "__main__":
    sys.exit(main())
