"""Joining programs: what is the same becomes one whichever way it was written, what is not stays apart."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from symcheck.arithmetic.double import Double
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.joining import join
from symcheck.tracing import trace

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = {name: torch.randn(3, 3, dtype=torch.float64, generator=GENERATOR) for name in "xwb"}
INPUTS["v"] = torch.randn(3, dtype=torch.float64, generator=GENERATOR)


def traced(function):
    return trace(lambda given: (function(**given),), INPUTS).program


def values(program):
    return evaluate(program, {name: value.numpy() for name, value in INPUTS.items()}, Double())


# one computation, written otherwise, and another
WRITTEN = {
    "a product": (lambda x, w, **_: x * w, lambda x, w, **_: w * x, lambda x, w, **_: w * w),
    "a transpose": (lambda x, **_: x.exp(), lambda x, **_: x.T.T.exp(), lambda x, **_: x.T.exp()),
    "a transpose within": (
        lambda x, w, **_: (x * w).T.exp() + w,
        lambda x, w, **_: w + (w.T.T * x).T.exp(),
        lambda x, w, **_: (x * w).exp() + w,
    ),
    "a kept axis": (
        lambda x, **_: x - x.sum(1, keepdim=True),
        lambda x, **_: x - x.sum(1)[:, None],
        lambda x, **_: x - x.sum(1)[None],
    ),
    "a broadcast": (
        lambda x, v, **_: x * v,
        lambda x, v, **_: x * v.expand(3, 3),
        lambda x, v, **_: x * v[:, None],
    ),
    "a broadcast by another name": (
        lambda x, v, **_: x * v[:, None],
        lambda x, v, **_: v.expand(3, 3).T * x,
        lambda x, v, **_: x.T * v[:, None],
    ),
    "a matrix product": (
        lambda x, w, **_: x @ w.T,
        lambda x, w, **_: F.linear(x.T.T, w),
        lambda x, w, **_: x @ w,
    ),
    "an axis of size 1": (
        lambda x, v, **_: x + v.exp(),
        lambda x, v, **_: x + v[None].unsqueeze(0).squeeze(0).squeeze(0).exp(),
        lambda x, v, **_: x + v[:, None].exp(),
    ),
    "a constant": (
        lambda x, **_: x * 0.1,
        lambda x, **_: 0.1 * x.T.T,
        lambda x, **_: x * float(np.nextafter(0.1, 1)),
    ),
    "a tensor of constants": (
        lambda x, **_: x * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
        lambda x, **_: torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * x,
        lambda x, **_: x * torch.tensor([1.0, 2.0, 3.0 + 2.0**-50], dtype=torch.float64),
    ),
    "a gather": (lambda x, **_: x[[0, 2]], lambda x, **_: x.T.T[[0, 2]], lambda x, **_: x[[2, 0]]),
    "a sort": (
        lambda x, **_: x.sort(1).values,
        lambda x, **_: x.T.T.sort(1).values,
        lambda x, **_: x.sort(1, descending=True).values,
    ),
    "a softmax": (lambda x, **_: x.softmax(1), lambda x, **_: x.softmax(-1), lambda x, **_: x.softmax(0)),
    "a square": (lambda x, **_: x * x, lambda x, **_: x.T.T * x, lambda x, **_: x * x.T),
}


@pytest.mark.parametrize("rows", WRITTEN.values(), ids=list(WRITTEN))
def test_one_computation_is_one_statement_and_another_is_not(rows):
    programs = [traced(row) for row in rows]
    joint = join(programs)
    first, same, other = joint.outputs
    assert same == first
    assert other != first
    for found, program in zip(values(joint), programs, strict=True):
        assert np.abs(found - values(program)[0]).max() <= 2.0**-48 * np.abs(found).max()


def test_a_program_joined_with_itself_is_no_longer():
    program = traced(lambda x, w, b, v: F.layer_norm(torch.tanh(x @ w + b), (3,)) * v)
    once, twice = join([program]), join([program, program])
    assert len(twice.statements) == len(once.statements)
    assert twice.outputs[0] == twice.outputs[1]


UNARY = [
    torch.sin,
    torch.tanh,
    torch.relu,
    lambda a: a.T,
    lambda a: a * 0.3,
    lambda a: a.softmax(1),
    lambda a: a - a.mean(0, keepdim=True),
    lambda a: a.flip(0),
    lambda a: a.cumsum(1),
    lambda a: a.reshape(9).reshape(3, 3),
    lambda a: a[[1, 2, 0]],
    lambda a: a.sort(1).values,
    lambda a: a.amax(1, keepdim=True).expand(3, 3),
    lambda a: a.sum(0)[:, None].expand(3, 3),
]
BINARY = [
    torch.add,
    torch.mul,
    torch.matmul,
    torch.maximum,
    lambda a, b: a @ b.T,
    lambda a, b: torch.where(a > b, a, b),
]


def drawn(generator):
    """A random function of the inputs; few leaves and operators, so that parts recur."""
    steps = [(int(generator.integers(2)), *generator.integers(1 << 20, size=3)) for _ in range(6)]

    def function(x, w, b, v):
        known = [x, w, b, x * v]
        for binary, which, first, second in steps:
            a, c = known[-1 - first % 3], known[second % len(known)]
            known.append(BINARY[which % len(BINARY)](a, c) if binary else UNARY[which % len(UNARY)](a))
        return known[-1].tanh()

    return function


@pytest.mark.parametrize("seed", range(12))
def test_the_joint_program_computes_what_each_does(seed):
    """Outputs are at most 1 in size, or gradients with cotangents of ones; sums of three may change their order."""
    generator = np.random.default_rng(seed)
    functions = [drawn(generator) for _ in range(2)]
    programs = [traced(function) for function in functions]
    gradients = [derive(program, ["x", "w"]) for program in programs]
    given = {name: value.numpy() for name, value in INPUTS.items()} | {"d_cotangent0": np.ones((3, 3))}
    members = [*programs, *gradients]
    joint = evaluate(join(members), given, Double())
    separate = [output for member in members for output in evaluate(member, given, Double())]
    assert len(joint) == len(separate)
    for found, expected in zip(joint, separate, strict=True):
        scale = np.abs(expected).max(initial=1.0)
        assert np.abs(found - expected).max() <= 2.0**-40 * scale


@pytest.mark.parametrize("seed", range(5))
def test_outputs_that_differ_are_never_one(seed):
    """A function and the same with one entry of an input read off: they differ, and so must their outputs."""
    function = drawn(np.random.default_rng(seed))
    other = traced(lambda x, w, b, v: function(x.roll(1, 0), w, b, v))
    first, second = traced(function), other
    joint = join([first, second])
    if not np.allclose(values(first)[0], values(second)[0]):
        assert joint.outputs[0] != joint.outputs[1]
