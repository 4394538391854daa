"""Which samples of torch's OpInfo database reach which row of the table of meanings.

    python -m tests.semantics.reaching

traces samples of every operator and writes `reaching.json`, row -> names of samples, which `test_rows.py` reads. Run it
after adding a row; it takes some minutes.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.samples import OpSample, differentiable_operators, full_name, samples
from symcheck.arithmetic.bound import Bound
from symcheck.binding import bind
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.lowering import Traced, to_numpy
from symcheck.program import Program
from symcheck.selfcheck import directional_agreement
from symcheck.semantics import TABLE
from symcheck.tracing import trace

FILE = Path(__file__).with_name("reaching.json")
LARGEST = 500  # elements of the inputs of a sample at most; small ones are preferred
TRIED, KEPT = 10, 2  # samples looked at for each operator; kept for each row


@dataclass(frozen=True)
class Call:
    """A traced call."""

    name: str
    traced: Traced
    wrt: tuple[str, ...]
    inputs: dict[str, np.ndarray[Any, Any]]
    outputs: list[np.ndarray[Any, Any]]
    rows: frozenset[str]

    @property
    def program(self) -> Program:
        return self.traced.program


@contextmanager
def recorded() -> Iterator[set[str]]:
    """Collect the rows of the table that are used."""
    used: set[str] = set()
    kept = dict(TABLE)

    def lower(name: str, *args: Any, **kwargs: Any) -> Any:
        used.add(name)
        return kept[name].lower(*args, **kwargs)

    TABLE.update({name: replace(row, lower=partial(lower, name)) for name, row in kept.items()})
    try:
        yield used
    finally:
        TABLE.update(kept)


def traced_call(sample: OpSample) -> Call:
    """Trace a sample, and run it with torch."""
    binding = bind(sample.function, tuple(sample.inputs.values()), sample.wrt or None)
    with recorded() as used, torch.random.fork_rng(devices=[]):
        traced = trace(binding.call, binding.inputs)
    with torch.no_grad():
        everything = binding.call({name: tensor.clone() for name, tensor in binding.inputs.items()})
    outputs = [to_numpy(everything[place]) for place in traced.positions]
    inputs = {name: to_numpy(tensor) for name, tensor in binding.inputs.items()}
    return Call(sample.name, traced, binding.wrt, inputs, outputs, frozenset(used))


@cache
def operators() -> dict[str, Any]:
    """The operators of the database by name."""
    return {full_name(op): op for op in differentiable_operators()}


def sample_named(name: str) -> OpSample:
    """A sample by its name, such as ``"nn.functional.conv2d[3]"``."""
    operator, _, place = name.removesuffix("]").rpartition("[")
    return list(samples(operators()[operator], int(place) + 1))[-1]


def slope_here(call: Call) -> str:
    """The derivative at this input: "smooth", "flat" (zero), "open" (or infinite), or "none" of discrete outputs."""
    if not any(array.is_real for array in call.program.outputs):
        return "none"
    gradient = derive(call.program, call.wrt)
    cotangents = [array for array in gradient.inputs if "cotangent" in array.name]
    # Unequal ones: what moves nothing but differences has no slope at equal ones.
    seeds = {array.name: 1.0 + np.arange(array.size).reshape(array.shape) for array in cotangents}
    values = evaluate(gradient, {**call.inputs, **seeds}, Bound(), moving=call.wrt)
    if any((g.open is not None and g.open.any()) or not np.isfinite(g.value).all() for g in values):
        return "open"
    return "smooth" if any(g.value.any() for g in values) else "flat"


def _worth_keeping(call: Call) -> bool:
    """Whether the derivative can be checked at this input."""
    if slope_here(call) != "smooth":
        return False
    agreement = directional_agreement(call.program, call.wrt, call.inputs, np.random.default_rng(0))
    return bool(np.isfinite(agreement.relative_error)) and agreement.scale > 0


def _found() -> Iterator[Call]:
    for place, (name, op) in enumerate(operators().items()):
        print(f"\r{place:4} {name:60.60}", end="", file=sys.stderr, flush=True)
        try:
            drawn = list(samples(op, TRIED))
        except Exception:
            continue
        for sample in drawn:
            if sum(tensor.numel() for tensor in sample.inputs.values()) <= LARGEST:
                try:
                    yield traced_call(sample)
                except Exception:
                    continue


def _cost(row: str, call: Call) -> tuple[bool, bool, int]:
    """Small, but neither empty nor a scalar; the operator that the row is named after first."""
    size = max((np.size(value) for value in call.inputs.values()), default=0)
    named = row.split(".")[1].strip("_") in call.name
    return size < 4, not named, sum(statement.out.size for statement in call.program.statements)


def find() -> dict[str, list[str]]:
    """For each row, the names of some samples that reach it."""
    calls: dict[str, list[Call]] = defaultdict(list)
    for call in _found():
        for row in call.rows:
            calls[row].append(call)
    keep = cache(lambda name: _worth_keeping(by_name[name]))
    by_name = {call.name: call for found in calls.values() for call in found}
    result = {}
    for row in sorted(calls):
        ranked = [call.name for call in sorted(calls[row], key=partial(_cost, row))]
        kept = [name for name in ranked[:12] if keep(name)][:KEPT]
        result[row] = kept or ranked[:KEPT]
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    rows = find()
    FILE.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\n{len(rows)} of {len(TABLE)} rows; without: {', '.join(sorted(set(TABLE) - set(rows)))}")
