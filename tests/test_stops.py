"""What stops autograd is named, with its line; what stops nothing is not."""

import warnings

import pytest
import torch
from torch import nn

from symcheck import Verdict, check
from symcheck.stops import find_stops


class KeepsSecond(torch.autograd.Function):
    """x * y whose backward forgets y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def stops(function, *tensors):
    names = [f"x{place}" for place in range(len(tensors))]
    copies = {n: t.detach().requires_grad_(t.requires_grad).clone() for n, t in zip(names, tensors, strict=True)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.tensor of a tensor warns
        return find_stops(lambda given: (function(*given.values()),), copies)


def needing(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


STOPS = {
    "detach": lambda x: x * x.detach(),
    "detach_": lambda x: x * x.clone().detach_(),
    ".data": lambda x: x * x.data,
    "no_grad": lambda x: x * torch.no_grad()(torch.exp)(x),
    "torch.tensor": lambda x: x * torch.tensor(x),
    "new_tensor": lambda x: x * x.new_tensor(x),
    "item": lambda x: x * x.sum().item(),
    "float": lambda x: x * float(x.sum()),
    "tolist": lambda x: x * torch.tensor(x.tolist()),
    "autograd.grad without create_graph=True": lambda x: x * torch.autograd.grad((x**3).sum(), x)[0],
}


@pytest.mark.parametrize("what", STOPS)
def test_a_stop_is_named_with_its_line(what):
    found = stops(STOPS[what], needing(0.5, -2.0))
    assert [stop.partition(" at ")[0] for stop in found] == [what]
    assert f"test_stops.py:{STOPS[what].__code__.co_firstlineno}" in found[0]


@pytest.mark.parametrize("what", STOPS)
def test_it_stops_nothing_where_no_gradient_is_needed(what):
    if what.startswith("autograd"):
        second = lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]  # noqa: E731
        assert stops(second, needing(0.5, -2.0)) == ()
    else:
        assert stops(STOPS[what], needing(0.5, -2.0).detach()) == ()


def test_a_backward_that_returns_none():
    x, y = needing(1.0, 2.0), needing(3.0, 4.0)
    assert stops(KeepsSecond.apply, x, y) == ("the backward of KeepsSecond, which returns None",)
    assert stops(KeepsSecond.apply, x, y.detach()) == ()
    report = check(lambda x, y: KeepsSecond.apply(x, y).sum(), (x.detach(), y.detach()), budget=0)
    assert report["autograd", "x"].verdict is Verdict.OK
    assert report["autograd", "y"].verdict is Verdict.FORMULA
    assert "the backward of KeepsSecond, which returns None" in report["autograd", "y"].reason


def test_what_cannot_be_traced_has_its_stops_named_too():
    found = check(lambda x: (x * x.detach().sum().item()).sum(), (needing(0.5, 2.0).detach(),))["autograd", "x"]
    assert found.verdict is Verdict.UNDECIDED
    assert "autograd is stopped by detach at test_stops.py" in found.reason


@pytest.mark.parametrize(("rows", "expected"), [([0, 1], True), ([1, 1], False)])
def test_an_embedding_gives_its_padding_row_no_gradient(rows, expected):
    table = nn.Embedding(2, 1, padding_idx=0, dtype=torch.float64)
    found = stops(lambda w: nn.functional.embedding(torch.tensor(rows), w, padding_idx=0), needing(2.0, 3.0)[:, None])
    assert [stop.partition(" at ")[0] for stop in found] == (["the padding_idx of embedding"] if expected else [])
    finding = check(table, (torch.tensor(rows),), budget=0)["autograd", "weight"]
    assert finding.verdict is (Verdict.FORMULA if expected else Verdict.OK)
    assert ("stopped by the padding_idx" in finding.reason) is expected


def test_modules_that_stop_nothing():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double().eval()
    assert stops(net, torch.randn(4, 2, dtype=torch.float64, requires_grad=True)) == ()
