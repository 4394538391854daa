"""Deriving is closed: twice gives Hessians, three times third derivatives, against torch's own in float64."""

import numpy as np
import pytest
import torch

from symcheck.arithmetic.ball import Ball, from_ball, working_precision
from symcheck.arithmetic.double import Double
from symcheck.derivation import active_arrays, derive
from symcheck.evaluation import evaluate
from symcheck.lowering import to_numpy
from symcheck.tracing import trace


def drawn(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W, B, TARGET = drawn(4, 3, seed=4), drawn(4, seed=5), drawn(2, 4, seed=6)

FUNCTIONS = {
    "cubes": (lambda x: (x**3).sum(), (4,)),
    "mse of a layer": (lambda x: torch.nn.functional.mse_loss(x @ W.t() + B, TARGET), (2, 3)),
    "softmax cross-entropy": (lambda x: -(torch.log_softmax(x, 1) * torch.softmax(TARGET, 1)).sum(), (2, 4)),
    "layer norm": (lambda x: (torch.nn.functional.layer_norm(x, (4,)) * TARGET).sum(), (2, 4)),
    "two layers": (lambda x: (torch.tanh(torch.tanh(x @ W.t() + B) @ W) ** 2).sum(), (2, 3)),
    "a Gram matrix": (lambda x: ((x @ x.t()) ** 2).sum(), (2, 3)),
    "gathered": (lambda x: (x[:, [0, 2, 2]].cumsum(1) * x.roll(1, 1) ** 2).sum(), (2, 3)),
    "attention": (
        lambda x: torch.nn.functional.scaled_dot_product_attention(x[None], x[None] * 2, x[None] ** 2).sum(),
        (3, 2),
    ),
    "log-sum-exp": (lambda x: torch.logsumexp(x, 0).sum(), (3, 2)),
    "norm": (lambda x: torch.linalg.vector_norm(x, 3), (4,)),
}  # fmt: skip


def traced(function, x):
    return trace(lambda tensors: (function(tensors["x"]),), {"x": x}).program


def values(program, numbers=None, **given):
    return evaluate(program, {name: np.asarray(value) for name, value in given.items()}, numbers or Double())


def hessian_columns(program, x, numbers=None):
    """Row k is the gradient of element k of the gradient, by deriving the derived program."""
    first = derive(program, ["x"])
    second = derive(first, ["x"], prefix="dd")
    rows = []
    for k in range(x.numel()):
        unit = np.zeros(tuple(x.shape))
        unit.flat[k] = 1.0
        rows.append(values(second, numbers, x=to_numpy(x), d_cotangent0=1.0, dd_cotangent0=unit)[0])
    return rows


@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians(name):
    function, shape = FUNCTIONS[name]
    x = drawn(*shape)
    derived = np.array(hessian_columns(traced(function, x), x)).reshape(x.numel(), x.numel())
    expected = torch.autograd.functional.hessian(function, x).reshape(x.numel(), x.numel()).numpy()
    # both round at 1.1e-16 over sums of at most some hundred terms, a few of which cancel
    assert np.abs(derived - expected).max() <= 1e-13 * max(1.0, np.abs(expected).max())
    assert np.abs(derived - derived.T).max() <= 1e-13 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("name", ["softmax cross-entropy", "layer norm", "a Gram matrix"])
def test_hessians_are_symmetric_in_balls(name):
    """To 300 bits: no rounding can hide an asymmetry of 1e-60."""
    function, shape = FUNCTIONS[name]
    x = drawn(*shape)
    with working_precision(300):
        rows = np.array(hessian_columns(traced(function, x), x, Ball())).reshape(x.numel(), x.numel())
        asymmetry = from_ball(rows - rows.T)
    assert np.abs(asymmetry).max() <= 1e-60


def test_third_derivatives():
    x = drawn(3)
    program = derive(derive(derive(traced(lambda x: (x**4).sum(), x), ["x"]), ["x"], prefix="dd"), ["x"], prefix="ddd")
    ones = np.ones(3)
    third = values(program, x=to_numpy(x), d_cotangent0=1.0, dd_cotangent0=ones, ddd_cotangent0=ones)[0]
    assert np.allclose(third, 24 * x.numpy(), rtol=1e-14, atol=0)


def test_an_array_read_twice_contributes_twice():
    x = drawn(2, 3)
    program = traced(lambda x: (x * x).sum(), x)
    assert np.allclose(values(derive(program, ["x"]), x=to_numpy(x), d_cotangent0=1.0)[0], 2 * x.numpy(), rtol=1e-15)


def test_the_gradient_by_an_input_that_does_not_matter_is_zero():
    x, y = drawn(3), drawn(3, seed=7)
    program = trace(lambda t: ((t["x"] ** 2).sum(), t["y"]), {"x": x, "y": y}).program
    gradient, _ = values(derive(program, ["y", "x"]), x=x, y=y, d_cotangent0=1.0, d_cotangent1=np.zeros(3))
    assert not gradient.any()
    only = trace(lambda t: ((t["x"] ** 2).sum(),), {"x": x, "y": y}).program
    assert not values(derive(only, ["y"]), x=x, y=y, d_cotangent0=1.0)[0].any()


def test_only_what_leads_from_the_inputs_is_active():
    x = drawn(3)
    program = trace(lambda t: ((t["x"] * torch.exp(t["y"])).sum(),), {"x": x, "y": x}).program
    assert active_arrays(program, ["x"]) < active_arrays(program, ["x", "y"])


def test_outputs_may_be_kept():
    x = drawn(3)
    gradient, output = values(derive(traced(lambda x: (x**2).sum(), x), ["x"], keep=True), x=x, d_cotangent0=3.0)
    assert np.allclose(gradient, 6 * x.numpy(), rtol=1e-15)
    assert output == pytest.approx(float((x**2).sum()), rel=1e-15)
