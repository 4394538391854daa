"""What symcheck and gradcheck see of relative errors planted in right gradients, and what they say of the right ones.

python -m benchmarks.detection              1,000 seeds of each right gradient, 20 of each plant, 10 for gradcheck
python -m benchmarks.detection --quick      20 seeds, 5 of each plant, and less of gradcheck
python -m benchmarks.detection --json FILE  every count as data, too

symcheck judges every hand formula and autograd by every input, each with its plant. gradcheck judges the same formulas
as the backward of a custom `autograd.Function`, in float64: as it is, in its fast mode, and with the step and the
tolerance that serve each function best while the right gradient still passes; and as it is in float32.

A plant of 1e-6 or 1e-12 is the factor 1 + 1e-6 or 1 + 1e-12. Below the dtype's resolution it is an added power of two
times the gradient, which the program holds though its result is lost when it is added; its functions have sizes whose
constants are exact, at which the right gradients are judged too. The exit code is 1 if symcheck misses a plant or does
not pass a right gradient.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch.autograd import gradcheck

import symcheck
from benchmarks.problems import Plant, Problem, as_custom, exaggerated, in_autograd, in_formulas, problems
from symcheck import Verdict

__all__ = ["Count", "count_gradcheck", "count_symcheck", "main", "tune"]

STRENGTHS = (1e-6, 1e-12, 1e-25)
DTYPES = (torch.float32, torch.float64)
PASSES = (Verdict.OK, Verdict.ROUNDING)
STEPS = tuple(10.0**-n for n in range(1, 8))
TOLERANCES = tuple(10 ** (-n / 4) for n in range(8, 57))  # four to a decade, from 1e-2 to 1e-14
CAPTION = "how many gradients were called wrong: symcheck judges one by every input, gradcheck all together"

Judge: TypeAlias = Callable[[Problem, float, int], bool]  # a problem, the error planted, the seed: whether it passes


@dataclass(frozen=True, slots=True)
class Amounts:
    """How many seeds: of right gradients, and of each plant, for symcheck; of either for gradcheck."""

    seeds: int
    plants: int
    checks: int


@dataclass(slots=True)
class Count:
    """What a tool said of one plant in one function.

    Attributes:
        problem, tool: what was judged, and by what.
        plant: the relative error planted; 0 for the right gradient.
        seeds: how many inputs it was asked about.
        judged: how many gradients: at each, one by every input for symcheck, and all together for gradcheck.
        convicted: how many were called wrong.
        passed: how many were called right; what is neither was not decided.
        seconds: in all.
        note: the setting of a tuned tool.
    """

    problem: str
    tool: str
    plant: float
    seeds: int = 0
    judged: int = 0
    convicted: int = 0
    passed: int = 0
    seconds: float = 0.0
    note: str = ""

    @property
    def undecided(self) -> int:
        """How many were neither."""
        return self.judged - self.convicted - self.passed

    @property
    def is_met(self) -> bool:
        """Whether the tool was right on all."""
        return (self.convicted if self.plant else self.passed) == self.judged


def count_symcheck(
    problem: Problem, dtype: torch.dtype, plant: float, seeds: int, advance: Callable[[int], None] | None = None
) -> list[Count]:
    """What symcheck says of the hand formulas and of autograd, each with a plant, at the inputs of some seeds."""
    function, formulas = problem.function, problem.formulas()
    if plant:
        wrong: Plant = partial(exaggerated, relative=plant)
        function, formulas = in_autograd(problem, wrong), in_formulas(problem, wrong)
    start = time.perf_counter()
    make = partial(problem.inputs, dtype=dtype)
    found = symcheck.sweep(function, make, range(seeds), formulas, list(problem.shapes), progress=advance)
    seconds = time.perf_counter() - start
    counts = []
    for candidate in ("formula", "autograd"):
        tool = f"symcheck {str(dtype).removeprefix('torch.')} {candidate}"
        count = Count(problem.name, tool, plant, seeds, seconds=seconds / 2)
        for name in problem.shapes:
            verdicts = found.count(candidate, name)
            count.judged += verdicts.total()
            count.convicted += verdicts[Verdict.FORMULA]
            count.passed += sum(verdicts[verdict] for verdict in PASSES)
        counts.append(count)
    return counts


def is_passed(
    problem: Problem,
    plant: float,
    seed: int,
    *,
    dtype: torch.dtype = torch.float64,
    step: float = 1e-6,
    absolute: float = 1e-5,
    relative: float = 1e-3,
    fast: bool = False,
) -> bool:
    """Whether gradcheck passes a problem's hand formulas with a plant in them."""
    function = as_custom(problem, partial(exaggerated, relative=plant) if plant else lambda gradient: gradient)
    torch.manual_seed(seed)
    leaves = [x.requires_grad_(x.is_floating_point()) for x in problem.inputs(seed, dtype).values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of float32
        return gradcheck(
            function, leaves, eps=step, atol=absolute, rtol=relative, raise_exception=False, fast_mode=fast
        )


def tune(given: Sequence[Problem], seeds: int) -> tuple[float, float]:
    """The step, and the smallest tolerance, absolute and relative, at which right formulas pass at some seeds."""
    best_step, best = STEPS[0], 0  # a place in TOLERANCES: the further, the stricter

    def passes(step: float, place: int, seed: int) -> bool:
        tolerance = TOLERANCES[place]
        return all(
            is_passed(problem, 0.0, seed, step=step, absolute=tolerance, relative=tolerance) for problem in given
        )

    for step in STEPS:
        strictest = len(TOLERANCES) - 1  # that this step may still reach
        for seed in range(seeds):
            if strictest <= best or not passes(step, best + 1, seed):
                strictest = best
                break
            low, high = best + 1, strictest
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if passes(step, middle, seed) else (low, middle - 1)
            strictest = low
        if strictest > best:
            best_step, best = step, strictest
    return best_step, TOLERANCES[best]


def count_gradcheck(
    tool: str, problem: Problem, plant: float, seeds: int, judge: Judge, advance: Callable[[], None], note: str = ""
) -> Count:
    """What gradcheck says of the hand formulas with a plant."""
    count = Count(problem.name, tool, plant, note=note)
    for seed in range(seeds):
        start = time.perf_counter()
        passed = judge(problem, plant, seed)
        count.seconds += time.perf_counter() - start
        count.seeds += 1
        count.judged += 1
        count.passed += passed
        count.convicted += not passed
        advance()
    return count


def resolution(dtype: torch.dtype) -> float:
    """The relative error below which a factor 1 + error is 1."""
    return float(torch.finfo(dtype).eps)


def run(amounts: Amounts, progress: Progress) -> list[Count]:
    """Every count."""
    counts: list[Count] = []
    given, exact = problems(), problems(exact=True)
    each = 2 * (amounts.seeds + 4 * amounts.plants) + 4 * 5 * amounts.checks
    bar = progress.add_task("", total=len(given) * each)
    advance = partial(progress.advance, bar)
    for problem, twin in zip(given, exact, strict=True):
        for dtype in DTYPES:
            progress.update(bar, description=f"{problem.name}: symcheck in {dtype}")
            for chosen, plant in planted(problem, twin, resolution(dtype)):
                amount = amounts.plants if plant or chosen is twin else amounts.seeds
                counts += count_symcheck(chosen, dtype, plant, amount, lambda _: advance())
        progress.update(bar, description=f"{problem.name}: gradcheck, being tuned")
        for tool, judge, note in gradchecks(problem, twin, amounts.checks):
            progress.update(bar, description=f"{problem.name}: {tool}")
            for chosen, plant in planted(problem, twin, resolution(torch.float64)):
                counts.append(count_gradcheck(tool, chosen, plant, amounts.checks, judge, advance, note))
    return totals(counts, lambda count: count.problem)


def planted(problem: Problem, twin: Problem, finest: float) -> list[tuple[Problem, float]]:
    """What to judge: the right gradient, at exact sizes too, and each plant, at exact sizes if it is below `finest`."""
    return [(problem, 0.0), (twin, 0.0), *((twin if plant < finest else problem, plant) for plant in STRENGTHS)]


def gradchecks(problem: Problem, twin: Problem, seeds: int) -> list[tuple[str, Judge, str]]:
    """The ways to call gradcheck: what each is called, how it judges, and its setting."""
    step, tolerance = tune((problem, twin), seeds)

    def tuned(problem: Problem, plant: float, seed: int) -> bool:
        return is_passed(problem, plant, seed, step=step, absolute=tolerance, relative=tolerance)

    return [
        ("gradcheck", is_passed, ""),
        ("gradcheck fast", partial(is_passed, fast=True), ""),
        ("gradcheck tuned", tuned, f"eps {step:.0e}, tol {tolerance:.1e}"),
        ("gradcheck float32", partial(is_passed, dtype=torch.float32), ""),
    ]


def cell(count: Count) -> str:
    """One count in a table: red where the tool was wrong, yellow where it did not decide."""
    text = f"{count.convicted:,} of {count.judged:,}" + (f", {count.undecided:,} undecided" if count.undecided else "")
    wrong = count.passed if count.plant else count.convicted
    return f"[{'red' if wrong else 'green' if count.is_met else 'yellow'}]{text}[/]"


def table(counts: list[Count], title: str) -> Table:
    """A row for each tool and function."""
    shown = Table(title=title, caption=CAPTION)
    for heading in ("function", "tool", "right", *(f"off by {strength:.0e}" for strength in STRENGTHS), "ms, right"):
        shown.add_column(heading, justify="left" if heading in ("function", "tool") else "right", no_wrap=True)
    for problem in dict.fromkeys(count.problem for count in counts):
        for tool in dict.fromkeys(count.tool for count in counts):
            row = {count.plant: count for count in counts if (count.problem, count.tool) == (problem, tool)}
            if not row:
                continue
            note = next(iter(row.values())).note
            name = f"{tool} ({note})" if note else tool
            shown.add_row(problem, name, *(cell(row[plant]) for plant in (0.0, *STRENGTHS)), f"{per_seed(row):.1f}")
        shown.add_section()
    return shown


def per_seed(row: dict[float, Count]) -> float:
    """Milliseconds for the right gradients at a seed, by all inputs together, derivation included."""
    return 1e3 * row[0.0].seconds / row[0.0].seeds


def totals(counts: list[Count], named: Callable[[Count], str]) -> list[Count]:
    """The counts of the same tool, plant and name together."""
    found: dict[tuple[str, str, float], Count] = {}
    for count in counts:
        name = named(count)
        total = found.setdefault((name, count.tool, count.plant), Count(name, count.tool, count.plant))
        total.note = count.note if name == count.problem else ""
        for field in ("seeds", "judged", "convicted", "passed", "seconds"):
            setattr(total, field, getattr(total, field) + getattr(count, field))
    return list(found.values())


def main(arguments: list[str] | None = None) -> int:
    """Count, print the tables, and say whether symcheck was right on all."""
    parser = argparse.ArgumentParser(description="What symcheck and gradcheck see of planted errors.")
    parser.add_argument("--seeds", type=int, default=1000, help="inputs for each right gradient")
    parser.add_argument("--quick", action="store_true", help="20 seeds, 5 for each plant")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every count as JSON")
    options = parser.parse_args(arguments)
    seeds = options.seeds
    amounts = Amounts(20, 5, 2) if options.quick else Amounts(seeds, min(seeds, 20), min(seeds, 10))
    console = Console(width=150 if not sys.stdout.isatty() else None)
    columns = (TextColumn("{task.description:40}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        counts = run(amounts, progress)
    console.print(table(counts, "Relative errors planted in the gradient of five functions"))
    console.print(table(totals(counts, lambda _: "all"), "In all"))
    if options.json:
        options.json.write_text(json.dumps([asdict(count) for count in counts], indent=1))
    return 0 if all(count.is_met for count in counts if count.tool.startswith("symcheck")) else 1


if __name__ == "__main__":
    sys.exit(main())
