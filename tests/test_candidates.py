"""Running the candidates in a chosen precision, and where autograd was stopped."""

import numpy as np
import pytest
import torch

from symcheck.binding import bind
from symcheck.candidates import Formula, describe_error, run_autograd, run_formula, run_function
from symcheck.stops import find_stops

X = torch.tensor([0.1, 0.2, 0.7])
ONE = (np.ones(()),)


class Third(torch.autograd.Function):
    """x^3, whose backward asks for float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * torch.tensor(3.0, dtype=torch.float32) * x.float() ** 2


def through_float32(x):
    """Every way of asking for float32 that a function has."""
    half = torch.tensor(0.5, dtype=torch.float32) * torch.ones(3, dtype=torch.float32)
    y = x.float() + x.to(torch.float32) + x.to(dtype=torch.float32) + x.type(torch.float32)
    return (y * half * torch.full((3,), 1.0).to(x)).exp().sum()


@pytest.mark.parametrize("target", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_tensor_is_in_the_dtype_asked_for(target):
    seen = []

    def function(x):
        y = through_float32(x)
        seen.extend([x.dtype, y.dtype, torch.zeros(1).dtype])
        return y

    run_function(bind(function, (X,)), {"x": X}, (0,), target)
    assert set(seen) == {target}
    assert torch.zeros(1).dtype is torch.float32


def test_a_run_in_float64_has_its_digits():
    (value,) = run_function(bind(through_float32, (X,)), {"x": X}, (0,), torch.float64)
    assert value == pytest.approx(float(torch.exp(2 * X.double()).sum()), rel=1e-15)
    gradients, outputs = run_autograd(bind(through_float32, (X,)), {"x": X}, ("x",), ONE, (0,), torch.float64)
    exact = 2 * torch.exp(2 * X.double())
    assert np.allclose(gradients["x"].values, exact.numpy(), rtol=1e-15, atol=0)
    assert outputs[0] == value


def test_a_custom_backward_runs_in_float64_too():
    binding = bind(lambda x: Third.apply(x).sum(), (X,))
    gradients, _ = run_autograd(binding, {"x": X}, ("x",), ONE, (0,), torch.float64)
    assert np.allclose(gradients["x"].values, 3 * X.double().numpy() ** 2, rtol=1e-15, atol=0)


def test_a_gradient_taken_inside_is_in_float64_too():
    def function(x):
        return torch.autograd.grad(Third.apply(x).sum(), x, create_graph=True)[0].sum()

    def by_backward(x):
        leaf = x.detach().requires_grad_()
        Third.apply(leaf).sum().backward()
        return leaf.grad.sum()

    for inner in (function, by_backward):
        (value,) = run_function(bind(inner, (X,)), {"x": X}, (0,), torch.float64)
        assert value == pytest.approx(3 * float((X.double() ** 2).sum()), rel=1e-15)


def test_in_its_own_precision_nothing_changes():
    gradients, outputs = run_autograd(bind(through_float32, (X,)), {"x": X}, ("x",), ONE, (0,))
    leaf = X.clone().requires_grad_()
    through_float32(leaf).backward()
    assert np.array_equal(gradients["x"].values, leaf.grad.double().numpy())
    assert (gradients["x"].dtype, gradients["x"].shape) == ("float32", (3,))
    assert outputs[0] == float(through_float32(X))


def test_integers_stay_integers():
    def function(x, k):
        assert k.dtype is torch.int64
        return (x * k.to(torch.float32)).sum()

    k = torch.arange(3)
    (value,) = run_function(bind(function, (X, k)), {"x": X, "k": k}, (0,), torch.float64)
    assert value == float((X.double() * k).sum())


def test_a_missing_gradient_is_zero_and_known():
    binding = bind(lambda x, y: x.sum() + y.detach().sum(), (X, X))
    gradients, _ = run_autograd(binding, binding.inputs, ("x", "y"), ONE, (0,))
    assert (gradients["x"].missing, gradients["y"].missing) == (False, True)
    assert not gradients["y"].values.any()


def test_a_formula_runs_in_float64_and_may_use_autograd():
    binding = bind(lambda x: (x**3).sum(), (X,))

    def by_autograd(x):
        (gradient,) = torch.autograd.grad((x.requires_grad_() ** 3).sum(), x)
        return gradient

    for formula in (lambda x: 3 * x.float() ** 2, by_autograd):
        found = run_formula(Formula.of("x", formula, binding), {"x": X}, ONE, torch.float64)
        assert np.allclose(found.values, 3 * X.double().numpy() ** 2, rtol=1e-15, atol=0)
    assert not X.requires_grad


def test_errors_are_told_in_the_users_lines():
    def fails():
        raise ValueError("first line\nsecond line")

    try:
        fails()
    except ValueError as error:
        told = describe_error("f", error)
    line = fails.__code__.co_firstlineno + 1
    assert told == f"f raised ValueError at test_candidates.py:{line}: first line"
    assert describe_error("f", ValueError()) == "f raised ValueError: no message"


def stops(function, *inputs):
    binding = bind(function, inputs)
    return find_stops(binding.call, {n: t.detach().requires_grad_() for n, t in binding.inputs.items()})


def test_stops_are_found_in_order_once_each():
    def function(x):
        with torch.no_grad():
            a = x.sum()
            b = a.exp()
        c = [x.detach() for _ in range(2)]
        return x.data.sum() + b + c[0].sum()

    found = stops(function, X)
    line = function.__code__.co_firstlineno
    assert [stop.partition(":")[0] for stop in found] == [
        "no_grad at test_candidates.py", "detach at test_candidates.py", ".data at test_candidates.py",
    ]  # fmt: skip
    assert [int(stop.split(":")[1]) - line for stop in found] == [1, 4, 5]


def test_what_stops_nothing_is_no_stop():
    constant = torch.ones(3)

    def function(x):
        with torch.no_grad():
            scale = constant * 2
        return (x * scale * constant.detach() * constant.data).sum()

    assert stops(function, X) == ()
    assert torch.is_grad_enabled()
