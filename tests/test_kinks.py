"""Which gradients a kink admits: expected values are the slopes of each function, by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from symcheck.arithmetic.ball import Ball, enclosures, working_precision
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.kinks import explain
from symcheck.tracing import trace, trace_backward


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def explained(function, /, _gradient=None, **inputs):
    """How torch's gradient, or one given by input, is explained; cotangents are 1, 2, 3 ..."""
    names = list(inputs)

    def call(given):
        return (function(**given),)

    output = function(**inputs)
    cotangent = torch.arange(1, output.numel() + 1, dtype=torch.float64).reshape(output.shape)
    given = {name: value.numpy() for name, value in inputs.items()} | {"d_cotangent0": cotangent.numpy()}
    backward = trace_backward(call, inputs, names, [cotangent], [0]).program
    with working_precision(192):
        pairs = [enclosures(value) for value in evaluate(backward, given, Ball())]
    values = {name: value for name, (value, _) in zip(names, pairs, strict=True)}
    errors = {name: error for name, (_, error) in zip(names, pairs, strict=True)}
    for name, value in (_gradient or {}).items():
        made = value(values[name]) if callable(value) else value
        values[name] = np.asarray(made, dtype=np.float64).reshape(values[name].shape)
        errors[name] = 2.0**-52 * np.abs(values[name])
    return explain(derive(trace(call, inputs).program, names), given, names, values, errors, names)


def largest_by_index(x):
    return torch.zeros(2).double().scatter_reduce(0, torch.tensor([0, 0, 1]), x, "amax", include_self=False)


ONES = torch.ones(2, 3, dtype=torch.float64)
TORCH = [
    ("relu", torch.relu, {"x": tensor(0, 1, 0)}, "as written"),
    ("abs", torch.abs, {"x": tensor(0, 1, -2)}, "the mean of both sides"),
    ("clamp", lambda x: x.clamp(0, 1), {"x": tensor(0, 1, 0.5)}, "as written"),
    ("maximum", torch.maximum, {"input": tensor(0, 1), "other": tensor(0, 2)}, "the mean of both sides"),
    ("minimum", torch.minimum, {"input": tensor(0, 1), "other": tensor(0, 2)}, "the mean of both sides"),
    ("amax", lambda x: x.amax(1), {"x": ONES}, "shared among ties"),
    ("amin", lambda x: x.amin(1), {"x": ONES}, "shared among ties"),
    ("max along", lambda x: x.max(1).values, {"x": ONES}, "as written"),
    ("sort", lambda x: x.sort(1).values, {"x": ONES}, "as written"),
    ("topk", lambda x: x.topk(2, 1).values, {"x": ONES}, "as written"),
    ("median along", lambda x: x.median(1).values, {"x": ONES}, "as written"),
    ("median", lambda x: x.median(), {"x": ONES}, "shared among ties"),
    ("cummax", lambda x: x.cummax(0).values, {"x": tensor(0, 0, 1, 1)}, "as written"),
    ("pooling", lambda x: F.max_pool2d(x, 2), {"x": torch.ones(1, 1, 4, 4, dtype=torch.float64)}, "as written"),
    ("padded pooling", lambda x: F.max_pool2d(x, 2, padding=1), {"x": torch.ones(1, 1, 4, 4).double()}, "as written"),
    ("largest of an index", lambda x: largest_by_index(x), {"x": tensor(1, 1, 3)}, "shared among ties"),
    ("norm", lambda x: x.norm(dim=1), {"x": torch.zeros(2, 3, dtype=torch.float64)}, "as written"),
    ("largest norm", lambda x: x.norm(p=float("inf")), {"x": tensor(1, 1, -1)}, "shared among ties"),
    ("sum norm", lambda x: x.norm(p=1), {"x": tensor(1, 0, -1)}, "the mean of both sides"),
    ("hinge", lambda x: (1 - x).clamp(min=0).sum(), {"x": tensor(1, 0, 2)}, "as written"),
    ("leaky relu", F.leaky_relu, {"input": tensor(0, 1, -2)}, "as written"),
    ("an identity in two parts", lambda x: torch.relu(x) - torch.relu(-x), {"x": tensor(0, 1)}, "as written"),
    ("where", lambda x: torch.where(x > 0, 3 * x, x), {"x": tensor(0, 1)}, "as written"),
    ("x|x|", lambda x: x * x.abs(), {"x": tensor(0, 1)}, "as written"),
]


@pytest.mark.parametrize(("function", "inputs", "name"), [row[1:] for row in TORCH], ids=[row[0] for row in TORCH])
def test_the_conventions_of_torch(function, inputs, name):
    found = explained(function, **inputs)
    assert (found.kind, found.name) == ("convention", name), found


MAXIMUM = {"input": tensor(0, 1, 2), "other": tensor(0, 1, 3)}  # cotangents 1, 2, 3
BOTH_SIDES = [
    ("relu at 1/2", torch.relu, {"x": tensor(0, 1)}, {"x": [0.5, 2]}, "convention"),
    ("relu at 0.3", torch.relu, {"x": tensor(0, 1)}, {"x": [0.3, 2]}, "slopes"),
    ("relu above 1", torch.relu, {"x": tensor(0, 1)}, {"x": [1.2, 2]}, "infeasible"),
    ("relu below 0", torch.relu, {"x": tensor(0, 1)}, {"x": [-0.1, 2]}, "infeasible"),
    ("relu wrong off the kink", torch.relu, {"x": tensor(0, 1)}, {"x": [0.3, 2 + 2e-9]}, "infeasible"),
    ("each element its own", torch.relu, {"x": tensor(0, 0)}, {"x": [0.3, 1.4]}, "slopes"),
    ("maximum, adding up to 1", torch.maximum, MAXIMUM, {"input": [0.3, 2, 0], "other": [0.7, 0, 3]}, "slopes"),
    ("maximum, to 1.1", torch.maximum, MAXIMUM, {"input": [0.3, 2, 0], "other": [0.8, 0, 3]}, "infeasible"),
    ("max, adding up to 1", lambda x: x.max(), {"x": tensor(1, 1, 0)}, {"x": [0.2, 0.8, 0]}, "slopes"),
    ("max, to 1.1", lambda x: x.max(), {"x": tensor(1, 1, 0)}, {"x": [0.3, 0.8, 0]}, "infeasible"),
    ("max, an element below", lambda x: x.max(), {"x": tensor(1, 1, 0)}, {"x": [0.3, 0.6, 0.1]}, "infeasible"),
    ("sort, another order", lambda x: x.sort().values, {"x": tensor(1, 1, 1)}, {"x": [1, 3, 2]}, "slopes"),
    ("sort, no order", lambda x: x.sort().values, {"x": tensor(1, 1, 1)}, {"x": [1, 1, 4]}, "infeasible"),
    ("topk, the last", lambda x: x.topk(1).values, {"x": tensor(1, 1, 1)}, {"x": [0, 0, 1]}, "convention"),
    ("median", lambda x: x.median(0).values, {"x": tensor(1, 1, 3)}, {"x": [0.2, 0.8, 0]}, "slopes"),
    ("pooling", lambda x: F.max_pool1d(x[None], 2)[0], {"x": tensor(1, 1, 3, 2)}, {"x": [0.2, 0.8, 2, 0]}, "slopes"),
    ("of an index", largest_by_index, {"x": tensor(1, 1, 3)}, {"x": [0.2, 0.8, 2]}, "slopes"),
    ("of an index, to 1.1", largest_by_index, {"x": tensor(1, 1, 3)}, {"x": [0.3, 0.8, 2]}, "infeasible"),
    ("where", lambda x: torch.where(x > 0, 3 * x, x), {"x": tensor(0, 1)}, {"x": [1.6, 6]}, "slopes"),
    ("where beyond", lambda x: torch.where(x > 0, 3 * x, x), {"x": tensor(0, 1)}, {"x": [3.3, 6]}, "infeasible"),
    ("a mask of numbers", lambda x: x * (x > 0).double(), {"x": tensor(0, 1)}, {"x": [0.3, 2]}, "slopes"),
    ("two layers", lambda x: torch.relu(2 * torch.relu(x)), {"x": tensor(0, 1)}, {"x": [0.6, 4]}, "slopes"),
    ("two layers beyond", lambda x: torch.relu(2 * torch.relu(x)), {"x": tensor(0, 1)}, {"x": [2.1, 4]}, "infeasible"),
]


@pytest.mark.parametrize(
    ("function", "inputs", "gradient", "kind"), [row[1:] for row in BOTH_SIDES], ids=[row[0] for row in BOTH_SIDES]
)
def test_slopes_between_the_sides_and_no_others(function, inputs, gradient, kind):
    assert explained(function, _gradient=gradient, **inputs).kind == kind


def test_the_slopes_found_are_named():
    found = explained(torch.relu, _gradient={"x": [0.3, 1.4]}, x=tensor(0, 0))
    assert [slope for _, _, (slope,) in found.decisions] == pytest.approx([0.3, 0.7], rel=1e-14)
    assert all("relu" not in text and "x" in text for text, _, _ in found.decisions)


def test_two_calls_are_two_decisions():
    """relu(x) w + relu(x) v by hand, with the slope 0.3 in one and 0.8 in the other: seen by x, w and v alike."""
    one = {"x": tensor(0), "w": tensor(2), "v": tensor(3)}
    first = explained(lambda x, w, v: torch.relu(x) * w + torch.relu(x) * v, _gradient={"x": 0.3 * 2 + 0.8 * 3}, **one)
    assert first.kind == "slopes"
    pair = {"input": tensor(0), "other": tensor(0)}
    both = {"input": [0.8], "other": [1.2]}  # the slopes of the maximum and of the minimum are not tied together
    found = explained(
        lambda input, other: torch.maximum(input, other) + torch.minimum(input, other), _gradient=both, **pair
    )
    assert found.kind == "slopes"
    wrong = {"input": [0.8], "other": [1.3]}  # but max(a, b) + min(a, b) is a + b
    found = explained(
        lambda input, other: torch.maximum(input, other) + torch.minimum(input, other), _gradient=wrong, **pair
    )
    assert found.kind == "infeasible"


def network(x, w, b, v, c):
    return torch.relu(torch.relu(x @ w + b) @ v + c).sum(1)


def padded():
    """A two-layer network at initialisation with two rows of zeros: all its units are at their kinks there."""
    generator = torch.Generator().manual_seed(1)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((2, 3), (3, 4), (4, 2))]
    return {
        "x": torch.cat([drawn[0], torch.zeros(2, 3, dtype=torch.float64)]),
        "w": drawn[1],
        "b": torch.zeros(4, dtype=torch.float64),
        "v": drawn[2],
        "c": torch.zeros(2, dtype=torch.float64),
    }


def test_padded_rows_put_a_network_on_kinks():
    inputs = padded()
    gradient = {}
    found = explained(network, _gradient=gradient, **inputs)
    assert (found.kind, found.name) == ("convention", "as written")
    assert len(found.decisions) == 2 * 4 + 2 * 2


@pytest.mark.parametrize("name", ["w", "b"])
def test_a_fault_beside_kinks_that_multiply_is_not_swallowed(name):
    found = explained(network, _gradient={name: lambda value: value * (1 + 1e-9)}, **padded())
    assert found.kind == "infeasible"
    assert found.element[0] == name


def test_a_mask_that_is_squared_is_not_refuted():
    """With the slope 0.3 for the mask m, x m a + x m m b has the gradients 0.3 a + 0.09 b by x."""

    def function(x, a, b):
        mask = (x > 0).double()
        return x * mask * a + x * mask * mask * b

    inputs = {"x": tensor(0, 0), "a": tensor(1, 0), "b": tensor(0, 1)}
    assert explained(function, _gradient={"x": [0.3, 2 * 0.09]}, **inputs).kind in ("slopes", "undecided")
    assert explained(function, _gradient={"x": [1.3, 0]}, **inputs).kind in ("infeasible", "undecided")


def test_a_fault_beside_a_kink():
    wrong = {"b": lambda value: value * (1 + 1e-9)}
    found = explained(lambda x, b: torch.relu(x + b), _gradient=wrong, x=tensor(0, 1, 2), b=tensor(0, 0, 0))
    assert found.kind == "infeasible"


def test_many_decisions():
    zeros, steps = torch.zeros(80, dtype=torch.float64), np.arange(1, 81)
    assert explained(torch.relu, _gradient={"x": np.linspace(0, 1, 80) * steps}, x=zeros).kind == "slopes"
    found = explained(torch.relu, _gradient={"x": np.linspace(0, 1.01, 80) * steps}, x=zeros)
    assert (found.kind, found.element) == ("infeasible", ("x", 79))


def test_too_many_decisions_are_judged_by_the_box():
    zeros, steps = torch.zeros(3000, dtype=torch.float64), np.arange(1, 3001)
    assert explained(torch.relu, x=zeros).kind == "convention"
    assert explained(torch.relu, _gradient={"x": np.linspace(0, 1, 3000) * steps}, x=zeros).kind == "not excluded"
    found = explained(torch.relu, _gradient={"x": np.linspace(0, 1.01, 3000) * steps}, x=zeros)
    assert (found.kind, found.element[0]) == ("outside", "x")


def test_where_nothing_is_open():
    assert explained(torch.relu, x=tensor(1, -1)).kind == "none"
    assert explained(lambda x: F.elu(x), x=tensor(0, 1)).kind == "none"  # both sides have the slope 1
    assert explained(lambda x: F.softmax(x, 0), x=tensor(1, 1)).kind == "none"


def test_a_tie_that_rounding_hides_or_makes():
    """0.1 + 0.2 exceeds 0.3 by less than rounding shows of the sum; in exact arithmetic it is no tie."""
    function = lambda x, y, z: torch.relu(x + y - z)  # noqa: E731
    assert explained(function, x=tensor(0.1), y=tensor(0.2), z=tensor(0.3)).kind == "none"
    assert explained(function, x=tensor(0.25), y=tensor(0.5), z=tensor(0.75)).kind == "convention"


def test_a_jump_is_not_judged():
    found = explained(lambda x: torch.relu(x) * torch.floor(x), _gradient={"x": [0.5, 2]}, x=tensor(0, 1.5))
    assert found.kind == "undecided"
    assert "jump" in found.reason


def test_a_kink_beside_a_norm_at_zero():
    function = lambda x, y: x.norm() + torch.relu(y).sum()  # noqa: E731
    inputs = {"x": tensor(0, 0), "y": tensor(0, 1)}
    assert explained(function, _gradient={"y": [0.3, 1]}, **inputs).kind == "slopes"
    assert explained(function, _gradient={"y": [1.2, 1]}, **inputs).kind == "infeasible"


@pytest.mark.parametrize(("slope", "kind"), [(0.3, "slopes"), (1.2, "infeasible"), (0.3 + 1e-9, "slopes")])
def test_large_programs_are_judged_in_float64_with_its_bound(monkeypatch, slope, kind):
    monkeypatch.setattr("symcheck.kinks.SECONDS", -1.0)
    assert explained(torch.relu, _gradient={"x": [slope, 2]}, x=tensor(0, 1)).kind == kind
    found = explained(network, _gradient={"b": lambda value: value * (1 + 1e-9)}, **padded())
    assert found.kind == "infeasible"


UNIT_BALL = [
    ("inside", [[0.3, 0.2, 0.1], [0.5, 1.0, 1.5]], "slopes"),
    ("on the sphere", [[0, 0.6, 0.8], [1.2, 0, 1.6]], "slopes"),
    ("one row as written", [[0, 0, 0], [1.2, 0, 1.6]], "slopes"),
    ("outside", [[0, 0.7, 0.8], [1.2, 0, 1.6]], "undecided"),
]


@pytest.mark.parametrize(("slopes", "kind"), [row[1:] for row in UNIT_BALL], ids=[row[0] for row in UNIT_BALL])
def test_the_slopes_of_a_norm_at_zero_are_a_ball(slopes, kind):
    """With the cotangents 1 and 2, the rows lie in balls of these radii."""
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    assert explained(lambda x: x.norm(dim=1), _gradient={"x": slopes}, x=zeros).kind == kind
