"""Backwards that lose their digits: never called wrong, while wrong formulas beside them are."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import symcheck
from symcheck import Verdict

SATURATED = {
    "tanh": (torch.tanh, [20.0, 19.0, 18.7]),
    "sigmoid": (torch.sigmoid, [40.0, 38.0]),
    "expm1": (torch.expm1, [-40.0, -38.0]),
    "1 - sigmoid": (lambda x: 1 - torch.sigmoid(x), [40.0, 41.0]),
    "log sigmoid": (lambda x: torch.log(torch.sigmoid(x)), [40.0, 50.0]),
    "confident cross-entropy": (lambda x: F.cross_entropy(x[None], torch.tensor([0])), [60.0, 0.0, 1.0]),
    "negative log of a softmax": (lambda x: -torch.log(torch.softmax(x, 0)[0]), [60.0, 0.0, 1.0]),
    "tanh of exponentials": (lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()), [20.0, 25.0]),
    "norm of equal values": (lambda x: F.layer_norm(torch.tanh(x), (3,)) ** 2, [20.0, 21.0, 22.0]),
}


def vjp(function):
    return lambda x, cotangent: torch.func.vjp(function, x)[1](cotangent)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SATURATED)
def test_a_right_gradient_without_digits_is_never_called_wrong(name, dtype):
    function, values = SATURATED[name]
    report = symcheck.check(lambda x: function(x), (torch.tensor(values, dtype=dtype),), formulas={"x": vjp(function)})
    for candidate in ("autograd", "formula"):
        assert report[candidate, "x"].verdict is not Verdict.FORMULA


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fault", [-1.0, 0.5, 1 + 1e-5])
def test_a_wrong_formula_beside_saturated_elements_is_convicted(fault, dtype):
    x = torch.tensor([20.0, 0.5, -19.0, 1.25], dtype=dtype)
    right = symcheck.check(torch.tanh, {"input": x}, formulas={"input": lambda input: 1 - torch.tanh(input) ** 2})
    assert right["formula", "input"].verdict in (Verdict.OK, Verdict.ROUNDING)
    wrong = symcheck.check(
        torch.tanh, {"input": x}, formulas={"input": lambda input: fault * (1 - torch.tanh(input) ** 2)}
    )
    assert wrong["formula", "input"].verdict is Verdict.FORMULA


def test_random_compositions_are_never_called_wrong():
    """The right gradient of what random smooth functions compose to; its twin off by 1e-5 or 1e-8 is convicted."""
    parts = (
        torch.tanh, torch.sin, F.softplus, F.gelu, torch.sigmoid, torch.atan, torch.erf,
        lambda x: torch.softmax(x, -1), lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: x - x.mean(-1, keepdim=True),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 0.1), lambda x: x * x.roll(1, -1), lambda x: (x + 100) - 100,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    convicted = 0
    for round_ in range(60):
        chain = [parts[place] for place in generator.integers(len(parts), size=int(generator.integers(2, 6)))]
        dtype, fault = [(torch.float32, 1e-5), (torch.float64, 1e-8)][round_ % 2]
        x = torch.from_numpy(generator.normal(size=(3, 5)) * generator.choice([0.1, 1.0, 4.0])).to(dtype)

        def function(x, chain=chain):
            for part in chain:
                x = part(x)
            return x

        def wrong(x, cotangent, function=function, fault=fault):
            return (1 + fault) * vjp(function)(x, cotangent)

        report = symcheck.check(function, {"x": x}, formulas={"x": vjp(function)}, budget=0)
        assert report["formula", "x"].verdict is not Verdict.FORMULA, report
        if report["formula", "x"].verdict in (Verdict.OK, Verdict.ROUNDING):
            twin = symcheck.check(function, {"x": x}, formulas={"x": wrong}, budget=0)["formula", "x"]
            assert twin.verdict in (Verdict.FORMULA, Verdict.UNDECIDED), twin
            convicted += twin.verdict is Verdict.FORMULA
    assert convicted >= 50
