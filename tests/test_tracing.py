"""What tracing must get right, and what it must refuse or notice: never silently wrong."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from symcheck import Verdict, check, sweep
from symcheck.arithmetic.double import Double
from symcheck.evaluation import evaluate
from symcheck.lowering import to_numpy
from symcheck.tracing import trace

RIGHT = {Verdict.OK, Verdict.ROUNDING}


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def verdict(function, *inputs, budget=512, **options):
    report = check(function, inputs, budget=budget, **options)
    return report["autograd", report.findings[0].input].verdict, report.findings[0]


# -- in-place writes and aliases


def writes(x):
    y = x.clone()
    y.mul_(x)
    y += 1
    y[0] = 0.0
    y[1:] *= 2
    return y.sum()


def writes_through_a_view(x):
    y = x * 1
    y.view(-1)[::2].copy_(x.flatten()[::2] ** 2)
    return (y**2).sum()


def adds_the_other(x, y):
    z = x * 1
    z.add_(y)
    return (z * y).sum()


@pytest.mark.parametrize("function", [writes, writes_through_a_view])
def test_in_place_writes_are_functional(function):
    x = drawn(5)
    traced = trace(lambda tensors: (function(tensors["x"]),), {"x": x})
    (value,) = evaluate(traced.program, {"x": to_numpy(x)}, Double())
    assert value == pytest.approx(float(function(x)), rel=1e-14)
    assert verdict(function, x)[0] in RIGHT


def test_aliased_inputs_are_apart():
    x = drawn(3)
    right = {"x": lambda x, y: y, "y": lambda x, y: x + 2 * y}
    assert check(adds_the_other, (x, x), formulas=right).ok
    wrong = check(adds_the_other, (x, x), formulas={"x": lambda x, y: x + 3 * y})
    assert wrong["formula", "x"].verdict is Verdict.FORMULA


def test_constants_from_closures():
    scale, shift = drawn(3, seed=2), 0.1
    right = {"x": lambda x: scale}
    assert check(lambda x: (x * scale + shift).sum(), (drawn(3),), formulas=right).ok
    wrong = check(lambda x: (x * scale + shift).sum(), (drawn(3),), formulas={"x": lambda x: scale + 1e-9})
    assert wrong["formula", "x"].verdict is Verdict.FORMULA


# -- branches on data


def branches(x):
    if (x > 0).all():
        return (x**2).sum()
    return (x**3).sum()


@pytest.mark.parametrize(("point", "slope"), [([1.0, 2.0], lambda x: 2 * x), ([-1.0, 2.0], lambda x: 3 * x**2)])
def test_a_strict_branch_is_followed(point, slope):
    x = torch.tensor(point, dtype=torch.float64)
    assert check(branches, (x,), formulas={"x": slope}).ok
    assert not check(branches, (x,), formulas={"x": lambda x: slope(x) * (1 + 1e-9)}).ok


def sums_to(x):
    return (x**2).sum() if x.sum() > 0.6 else x.sum()


@pytest.mark.parametrize(
    ("function", "point"), [(branches, [0.0, 2.0]), (sums_to, [0.1] * 6)], ids=["tie", "within rounding"]
)
def test_a_branch_that_is_not_decided_is_undecided_and_named(function, point):
    x = torch.tensor(point, dtype=torch.float64)
    found, finding = verdict(function, x)
    assert found is Verdict.UNDECIDED
    assert f"test_tracing.py:{function.__code__.co_firstlineno + 1}: " in finding.reason


def test_a_sweep_follows_the_branch_of_each_seed():
    def make(seed):
        return {"x": torch.tensor([1.0, 2.0 if seed % 2 else -2.0], dtype=torch.float64)}

    def slope(x):
        return 2 * x if (x > 0).all() else 3 * x**2

    found = sweep(branches, make, range(4), {"x": slope})
    assert set(found.count("formula", "x")) <= RIGHT
    wrong = sweep(branches, make, range(4), {"x": lambda x: 2 * x})
    assert [r["formula", "x"].verdict is Verdict.FORMULA for r in wrong.reports.values()] == [True, False, True, False]


def test_an_integer_that_python_reads_is_a_decision_too():
    def prefix(x, lengths):
        return (x[: int(lengths.max())] ** 2).sum()

    found = sweep(prefix, lambda seed: (drawn(5), torch.tensor([1, 2 + seed])), range(3), wrt="x", budget=0)
    assert set(found.count("autograd", "x")) <= RIGHT
    assert [int((r.gradients["x"] != 0).sum()) for r in found.reports.values()] == [2, 3, 4]


# -- values that leave torch


def reads_an_item(x):
    return (x * x.sum().item()).sum()


def reads_a_float(x):
    return (x * float(x.sum())).sum()


def reads_a_list(x):
    return (x * torch.tensor(x.tolist(), dtype=x.dtype)).sum()


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("function", [reads_an_item, reads_a_float, reads_a_list])
def test_a_value_that_python_reads_is_refused_and_named(function):
    found, finding = verdict(function, drawn(3), budget=0)
    assert found is Verdict.UNDECIDED
    assert f"test_tracing.py:{function.__code__.co_firstlineno + 1}: " in finding.reason
    assert "which freezes it" in finding.reason


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.exp(x.detach().numpy()))

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent * ctx.saved_tensors[0].exp()


NUMPY = {
    "from_numpy": lambda x: (x * torch.from_numpy(x.detach().numpy() * 2)).sum(),
    "as_tensor": lambda x: (x * torch.as_tensor(np.cos(x.detach().numpy()))).sum(),
    "a number": lambda x: (x * float(np.sum(x.detach().numpy()))).sum(),
    "a right custom function": lambda x: ByNumpy.apply(x),
}


@pytest.mark.parametrize("budget", [0, 512])
@pytest.mark.parametrize("name", NUMPY)
def test_a_numpy_round_trip_is_noticed(name, budget):
    report = check(NUMPY[name], (drawn(3),), budget=budget)
    finding = report["autograd", "x"]
    assert finding.verdict is Verdict.UNDECIDED
    assert "froze" in finding.reason
    if budget:
        said = "agree with it" if name == "a right custom function" else "contradict it"
        assert said in finding.reason


def test_numpy_of_a_constant_is_harmless():
    scale = np.array([1.0, 2.0, 3.0])
    assert check(lambda x: (x * torch.from_numpy(scale)).sum(), (drawn(3),)).ok


# -- random numbers

RANDOM = {
    "aten.bernoulli.p": lambda x: torch.nn.functional.dropout(x, 0.5).sum(),
    "aten.rand.default": lambda x: (x * torch.rand(3)).sum(),
    "aten.randn_like.default": lambda x: (x * torch.randn_like(x)).sum(),
    "aten.bernoulli.default": lambda x: (x * torch.bernoulli(torch.full((3,), 0.5))).sum(),
    "aten.normal_functional.default": lambda x: (x * torch.empty(3).normal_()).sum(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_operator_is_other_and_named(name):
    found, finding = verdict(RANDOM[name], drawn(3), formulas={"x": lambda x: x})
    assert found is Verdict.OTHER
    assert finding.operation == name
    assert "test_tracing.py" in finding.reason


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_random_numbers_from_elsewhere_are_other(draw):
    found, finding = verdict(lambda x: (x * draw()).sum(), drawn(3))
    assert found is Verdict.OTHER
    assert "something else each time it is run" in finding.reason


def test_random_numbers_that_do_not_matter():
    assert verdict(lambda x: (torch.rand(3), (x**2).sum())[1], drawn(3))[0] in RIGHT
    assert check(nn.Dropout().eval(), (drawn(3),)).ok


# -- a module that is closed over


def test_a_buffer_is_an_input_and_may_be_written_to():
    norm = nn.BatchNorm1d(3).double()
    x = drawn(4, 3)
    before = norm.running_mean.clone()
    report = check(lambda x: norm(x).sum(0), (x,))
    assert report.ok
    assert torch.equal(norm.running_mean, before)
