"""What inputs are called, how functions are called with them, and what a module brings along."""

import functools

import pytest
import torch
from torch import nn

from symcheck import check
from symcheck.binding import bind, restored
from symcheck.errors import Misuse

A, B = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])


def product(x, y):
    return (x * y).sum()


def only_by_keyword(*, x, y):
    return (x * y).sum()


def only_by_position(x, y, /):
    return (x * y).sum()


def any_number(*tensors):
    return (tensors[0] * tensors[1]).sum()


def any_keywords(**tensors):
    return (tensors["x"] * tensors["y"]).sum()


def one_and_any(x, *rest):
    return (x * rest[0]).sum()


class Scale:
    scale = B

    def method(self, x):
        return (self.scale * x).sum()

    def __call__(self, x):
        return self.method(x)


@pytest.mark.parametrize(
    ("function", "inputs", "names"),
    [
        (product, (A, B), ["x", "y"]),
        (product, [A, B], ["x", "y"]),
        (product, {"y": B, "x": A}, ["y", "x"]),
        (product, {"left": A, "right": B}, ["left", "right"]),  # names of the user's own: by position
        (only_by_keyword, {"x": A, "y": B}, ["x", "y"]),
        (only_by_position, (A, B), ["x", "y"]),
        (only_by_position, {"x": A, "y": B}, ["x", "y"]),
        (any_number, (A, B), ["x0", "x1"]),
        (any_keywords, {"x": A, "y": B}, ["x", "y"]),
        (one_and_any, (A, B), ["x", "x1"]),
        (functools.partial(only_by_keyword, y=B), {"x": A}, ["x"]),
        (functools.partial(product, y=B), (A,), ["x"]),
        (functools.partial(product, B), (A,), ["y"]),
        (lambda u: (u * B).sum(), A, ["u"]),
        (Scale().method, (A,), ["x"]),
        (Scale(), (A,), ["x"]),
        (torch.dot, (A, B), ["x0", "x1"]),  # a builtin tells nothing of its parameters
    ],
)
def test_names_and_calls(function, inputs, names):
    binding = bind(function, inputs)
    assert list(binding.inputs) == names
    assert binding.wrt == tuple(names)
    (value,) = binding.call(binding.inputs)
    assert float(value) == 13.0


@pytest.mark.parametrize(
    "formula",
    [
        lambda x, y: y,
        lambda y: y,
        lambda a, b: b,  # in the function's order
        lambda *tensors: tensors[1],
        lambda **tensors: tensors["y"],
        lambda y, cotangent: y * cotangent,
        lambda a, b, cotangent: b * cotangent,
        lambda y, factor=1: y * factor,
        lambda y, *, x: y,
    ],
)
def test_formulas_take_inputs_by_name_or_in_order(formula):
    assert check(product, (A, B), formulas={"x": formula}, budget=0).ok


@pytest.mark.parametrize("formula", [lambda q: q, lambda y, q: q, lambda a, b, c: c])
def test_a_formula_that_cannot_be_called(formula):
    with pytest.raises(Misuse, match=r"its parameters must be inputs \(x, y\) or cotangent"):
        check(product, (A, B), formulas={"x": formula})


def test_wrt():
    assert bind(product, (A, B), "y").wrt == ("y",)
    assert bind(product, (A, B), ["y", "x", "y"]).wrt == ("y", "x")
    assert bind(product, (A, torch.tensor([1, 2]))).wrt == ("x",)


def test_by_keyword_is_what_a_keyword_only_function_needs():
    with pytest.raises(Misuse, match="to pass inputs by keyword, give"):
        bind(only_by_keyword, (A, B))


def test_a_module_brings_its_parameters_and_buffers():
    norm = nn.BatchNorm1d(2)
    binding = bind(norm, (torch.ones(3, 2),))
    state = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(binding.inputs) == ["input", *state]
    assert binding.wrt == ("input", "weight", "bias")
    assert binding.arguments == 1
    assert bind(norm, (torch.ones(3, 2),), "running_mean").wrt == ("running_mean",)


class Clashing(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([2.0, 2.0]))

    def forward(self, x):
        return (self.x**2 * x).sum()


def test_a_parameter_named_like_an_argument():
    report = check(Clashing(), (A,), formulas={"module.x": lambda x, **state: 2 * state["module.x"] * x})
    assert {f.input for f in report.findings} == {"x", "module.x"}
    assert report.ok, str(report)


def test_a_tied_parameter_is_one_input():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    report = check(nn.Sequential(first, second), (torch.ones(1, 2),))
    assert {f.input for f in report.findings} == {"input", "0.weight"}
    assert report.ok, str(report)


@pytest.mark.parametrize("held", ["closure", "list", "partial", "default", "method"])
def test_buffers_of_a_module_that_is_closed_over_are_inputs(held):
    norm = nn.BatchNorm1d(2)
    nets = [norm]

    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def run(self, x):
            return self.norm(x)

    def by_default(x, net=norm):
        return net(x)

    functions = {
        "closure": lambda x: norm(x),
        "list": lambda x: nets[0](x),
        "partial": functools.partial(lambda net, x: net(x), norm),
        "default": by_default,
        "method": Holder().run,
    }
    binding = bind(functions[held], (torch.randn(3, 2),))
    assert any(name.endswith("running_mean") for name in binding.inputs)
    assert binding.wrt == ("x",)
    before = norm.running_mean.clone()
    binding.call({name: tensor.clone() for name, tensor in binding.inputs.items()})
    assert torch.equal(norm.running_mean, before)


def test_modes_and_gradients_are_restored():
    net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
    x = torch.ones(1, 2, requires_grad=True)
    binding = bind(net, (x,))

    def disturb():
        with restored(binding):
            net.eval()
            x.grad = torch.ones(1, 2)
            torch.rand(1)
            raise RuntimeError("inside")

    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="inside"):
        disturb()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(module.training for module in net.modules())
    assert x.grad is None
