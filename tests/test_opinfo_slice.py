"""A slice of the conformance run, and that the run itself convicts and forgives as it says."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks import opinfo
from benchmarks.samples import OpSample, differentiable_operators, full_name

EVERY = 12


def test_slice_of_the_database() -> None:
    torch.manual_seed(0)
    slice_of = differentiable_operators()[::EVERY]
    results = [opinfo.check_operator(op, 2) for op in slice_of]
    printed = io.StringIO()
    unexplained = opinfo.print_summary(results, Console(file=printed, width=160))
    assert not unexplained, printed.getvalue()
    failed = [s for operator in results for s in operator.samples if s.outcome in ("crash", "timeout")]
    assert not failed, failed
    decided = sum(operator.decided for operator in results)
    assert decided >= len(results) * opinfo.ENOUGH / opinfo.ALL, printed.getvalue()


def test_explanations_are_of_operators_in_the_database() -> None:
    assert set(opinfo.EXPLAINED) <= {full_name(op) for op in differentiable_operators()}


class Doubled(torch.autograd.Function):
    """x**2 with a backward that is wrong by 1e-6."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2 * ctx.saved_tensors[0] * (1 + 1e-6)


def slowly(x: torch.Tensor) -> torch.Tensor:
    time.sleep(2)
    return x


def never(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("never")


@pytest.mark.parametrize(
    ("function", "outcome", "edges"),
    [
        (torch.tanh, "compared", 0),
        (torch.abs, "compared", 0),
        (lambda x: torch.abs(x - x.new_tensor([0.3, 0.0, -1.2])), "compared", 0),
        (torch.nn.functional.dropout, "random", 0),
        (torch.fft.fft, "undecided", 0),
        (never, "undecided", 0),
        (Doubled.apply, "disagreement", 0),
        (slowly, "timeout", 0),
    ],
)
def test_outcomes(function: Callable[..., Any], outcome: str, edges: int) -> None:
    x = torch.tensor([0.3, 0.0, -1.2], dtype=torch.float64)
    sample = OpSample("planted", lambda *tensors: function(*tensors), {"x0": x}, ("x0",))
    found = opinfo.check_sample(sample, limit=1.0 if function is slowly else 60.0)
    assert (found.outcome, found.edges) == (outcome, edges), found


def test_unexplained_disagreements_are_counted() -> None:
    bad = opinfo.Operator("planted", (opinfo.Sample("planted[0]", "disagreement", "off by 1"),))
    known = opinfo.Operator("as_strided_scatter", (opinfo.Sample("as_strided_scatter[0]", "disagreement"),))
    printed = io.StringIO()
    assert opinfo.print_summary([bad, known], Console(file=printed, width=160)) == 1
    assert "planted[0]: off by 1" in printed.getvalue()
    assert "UNEXPLAINED" in printed.getvalue()
