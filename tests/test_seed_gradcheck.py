"""The functions of the gradcheck tutorial, with its own inputs: right without loosening anything, wrong when wrong."""

import functools

import pytest
import torch

from symcheck import Verdict, check


def sum_of_squares(x):
    return (x**2).sum()


class CustomLinear(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(out_features, in_features))
        self.bias = torch.nn.Parameter(torch.randn(out_features))

    def forward(self, x):
        return torch.mm(x, self.weight.t()) + self.bias


def complex_func(x, y):
    return (x**3).sum() + (y**2).sum()


def first_gradient(x):
    """What gradgradcheck differentiates: the gradient of the quadratic function."""
    (gradient,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    return gradient


def power_func(x):
    return (x**4).sum()


torch.manual_seed(0)
LAYER = CustomLinear(3, 2)
X = torch.randn(2, 3, requires_grad=True)


def test_func(x):
    return LAYER(x)


test_func.__test__ = False  # the tutorial's name for a function to check

THREE, TWO, OTHER = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
CASES = {
    "sum_of_squares": (sum_of_squares, (THREE.requires_grad_(),), {"x": lambda x: 2 * x}),
    "custom layer": (test_func, (X,), {"x": lambda x, cotangent: cotangent @ LAYER.weight}),
    "layer itself": (LAYER, (X,), {"weight": lambda x, weight, bias, cotangent: cotangent.t() @ x}),
    "complex_func": (complex_func, (TWO, OTHER), {"x": lambda x: 3 * x**2, "y": lambda x, y: 2 * y}),
    "gradgradcheck": (first_gradient, (THREE,), {"x": lambda x, cotangent: 2 * cotangent}),
    "power_func": (power_func, (torch.tensor([0.5, 1.5, 2.5]),), {"x": lambda x: 4 * x**3}),
}


@pytest.mark.parametrize("double", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_right(name, double):
    function, inputs, formulas = CASES[name]
    if double and name == "layer itself":
        function = CustomLinear(3, 2).double()
    elif double and name == "custom layer":
        pytest.skip("a float32 layer refuses float64")
    report = check(function, tuple(x.double() for x in inputs) if double else inputs, formulas=formulas)
    assert report.ok, str(report)
    assert {finding.verdict for finding in report.findings} <= {Verdict.OK, Verdict.ROUNDING}
    assert {finding.candidate for finding in report.findings} == {"autograd", "formula", "finite differences"}


@pytest.mark.parametrize("fault", [1e-3, 1e-6])
@pytest.mark.parametrize("name", CASES)
def test_slightly_wrong(name, fault):
    function, inputs, formulas = CASES[name]

    def spoilt(formula):
        @functools.wraps(formula)
        def wrong(*args, **kwargs):
            return formula(*args, **kwargs) * (1 + fault)

        return wrong

    report = check(function, inputs, formulas={key: spoilt(formula) for key, formula in formulas.items()}, budget=0)
    assert not report.ok
    for finding in report.findings:
        right = {Verdict.OK, Verdict.ROUNDING}
        assert finding.verdict in ({Verdict.FORMULA} if finding.candidate == "formula" else right), str(report)


def test_the_documents_inputs_stay_as_they_were():
    before = THREE.detach().clone()
    check(sum_of_squares, (THREE,))
    assert THREE.requires_grad
    assert THREE.grad is None
    assert torch.equal(THREE.detach(), before)
