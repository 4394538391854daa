"""Conformance of backwards: autograd's own program, evaluated in float64, on torch's OpInfo database.

    python -m benchmarks.backward [NAME ...] [--samples 2] [--jobs 2] [--dtype float64]

Each sample's backward is traced, lowered and evaluated at the sample with random cotangents, and compared with what
autograd returns there. What a backward operator means is judged, so the values must agree to the working precision of
the dtype; NaN matches NaN. A sample ends as one of

    matches       every gradient agrees.
    unknown       an operator without a meaning, which is named.
    random        an operator draws random numbers.
    untraceable   torch, or symcheck, says why.
    mismatch      a gradient differs.
    timeout       not done within half a minute.
    crash         any other exception.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor
from torch.utils import _pytree as pytree

from benchmarks.samples import OpSample, differentiable_operators, full_name, samples
from symcheck.arithmetic.double import Double
from symcheck.errors import NonDeterministic, SymcheckError, UnknownOperator
from symcheck.evaluation import evaluate
from symcheck.lowering import to_numpy
from symcheck.tracing import trace_backward

__all__ = ["Outcome", "compare_operator", "compare_sample", "main"]

TIMEOUT = 30.0  # seconds per sample
BITS = 0.6  # of those of the dtype that must agree, relative to the largest element of the gradient


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one sample: its name, how it ended, and why."""

    name: str
    kind: str
    reason: str = ""


class _TooLong(BaseException):
    """Not an Exception, so that no handler takes it for an error of the function."""


def _stop(*_: object) -> None:
    raise _TooLong


def compare_sample(sample: OpSample) -> Outcome:
    """Compare one sample's backward, evaluated from its program, with autograd's within a time limit."""
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reason = _compare(sample)
        return Outcome(sample.name, "mismatch" if reason else "matches", reason)
    except _TooLong:
        return Outcome(sample.name, "timeout", f"not done in {TIMEOUT:.0f} s")
    except UnknownOperator as error:
        return Outcome(sample.name, "unknown", str(error))
    except NonDeterministic as error:
        return Outcome(sample.name, "random", str(error))
    except SymcheckError as error:
        return Outcome(sample.name, "untraceable", str(error))
    except Exception as error:
        return Outcome(sample.name, "crash", f"{type(error).__name__}: {str(error)[:160]}")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _compare(sample: OpSample) -> str:
    """What differs, or an empty text."""

    def call(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        flat = pytree.tree_leaves(sample.function(*(given[name] for name in sample.inputs)))
        return tuple(item for item in flat if isinstance(item, Tensor))

    leaves = {name: x.detach().clone().requires_grad_(name in sample.wrt) for name, x in sample.inputs.items()}
    outputs = call({name: leaf.clone() for name, leaf in leaves.items()})
    positions = [place for place, out in enumerate(outputs) if out.requires_grad]
    generator = torch.Generator().manual_seed(1)
    cotangents = [torch.randn(outputs[n].shape, generator=generator).to(outputs[n].dtype) for n in positions]
    backward = trace_backward(call, sample.inputs, sample.wrt, cotangents, positions)
    given = {**sample.inputs, **{f"d_cotangent{n}": cotangent for n, cotangent in enumerate(cotangents)}}
    program = backward.program
    values = evaluate(program, {array.name: to_numpy(given[array.name]) for array in program.inputs}, Double())
    wanted = torch.autograd.grad(
        [outputs[n] for n in positions], [leaves[name] for name in sample.wrt], cotangents, allow_unused=True
    )
    for name, value, grad in zip(sample.wrt, values, wanted, strict=True):
        if grad is not None:
            if name in backward.missing:
                return f"by {name}: the traced backward gives no gradient, autograd one"
            reason = _difference(np.asarray(value, dtype=np.float64), grad)
            if reason:
                return f"by {name}: {reason}"
    return ""


def _difference(value: Any, grad: Tensor) -> str:
    dense = (grad.to_dense() if grad.layout is torch.sparse_coo else grad).detach()
    dense = torch.zeros(dense.shape, dtype=dense.dtype) if dense._is_zerotensor() else dense
    wanted = to_numpy(dense).astype(np.float64)
    with np.errstate(all="ignore"):
        finite = np.abs(wanted[np.isfinite(wanted)])
        allowance = torch.finfo(dense.dtype).eps ** BITS * max(1.0, float(finite.max(initial=0.0)))
        same = (value == wanted) | (np.isnan(value) & np.isnan(wanted)) | (np.abs(value - wanted) <= allowance)
    if same.all():
        return ""
    place = tuple(int(n) for n in np.argwhere(~same)[0])
    return f"{int((~same).sum())} of {same.size} differ, at {place}: {value[place]!r}, autograd {wanted[place]!r}"


def compare_operator(op: Any, count: int, dtype: torch.dtype) -> list[Outcome]:
    """Compare the first samples of an operator."""
    try:
        drawn = list(samples(op, count, dtype))
    except Exception as error:
        return [Outcome(full_name(op), "crash", f"its samples: {error!r:.200}")]
    return [compare_sample(sample) for sample in drawn if sample.wrt]


def _compare_by_place(place: int, count: int, dtype: torch.dtype) -> list[Outcome]:
    torch.set_num_threads(1)
    return compare_operator(differentiable_operators(dtype)[place], count, dtype)


def _print_outcomes(results: Mapping[str, list[Outcome]], console: Console) -> None:
    blocked: dict[tuple[str, str], set[str]] = defaultdict(set)
    for name, outcomes in results.items():
        for outcome in outcomes:
            if outcome.kind != "matches":
                reason = outcome.reason if outcome.kind != "mismatch" else f"{outcome.name} {outcome.reason}"
                blocked[outcome.kind, reason].add(name)
    table = Table("outcome", "blocks", "reason", "operators", title="Backwards", title_justify="left")
    for (kind, reason), names in sorted(blocked.items(), key=lambda item: (-len(item[1]), item[0])):
        table.add_row(kind, str(len(names)), reason, ", ".join(sorted(names)))
    console.print(table, markup=False)
    kinds = Counter(outcome.kind for outcomes in results.values() for outcome in outcomes)
    console.print(f"samples: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    good = sum(bool(outcomes) and all(o.kind == "matches" for o in outcomes) for outcomes in results.values())
    console.print(f"operators whose backwards all match: {good} of {len(results)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code is 1 if a backward differs from autograd's."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backward", description=str(__doc__).splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="operators, by a part of their name; all by default")
    parser.add_argument("--samples", type=int, default=2, help="how many samples of each operator")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    options = parser.parse_args(arguments)
    console, dtype = Console(), getattr(torch, options.dtype)
    names = [full_name(op) for op in differentiable_operators(dtype)]
    places = [n for n, name in enumerate(names) if not options.names or any(part in name for part in options.names)]
    results: dict[str, list[Outcome]] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=spawn) as pool, Progress(console=console) as progress:
        task = progress.add_task("tracing", total=len(places))
        futures = {pool.submit(_compare_by_place, place, options.samples, dtype): place for place in places}
        for future in as_completed(futures):
            results[names[futures[future]]] = future.result()
            progress.update(task, advance=1)
    _print_outcomes(results, console)
    return int(any(outcome.kind == "mismatch" for outcomes in results.values() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
