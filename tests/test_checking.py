"""`symcheck.check` as its user meets it: exact verdicts, each with a slightly wrong twin, and what bad input says."""

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from symcheck import Verdict, assert_gradients, check
from symcheck.errors import Misuse

RIGHT = {Verdict.OK, Verdict.ROUNDING}


def drawn(*shape, dtype=torch.float64, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def verdicts(report):
    return {(finding.candidate, finding.input): finding.verdict for finding in report.findings}


def square(x):
    return (x**2).sum()


class IgnoresCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x


class UsesCotangent(IgnoresCotangent):
    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


# -- formulas in every dtype


def tanh_layer(x, w):
    return (torch.tanh(x @ w.t()) ** 2).sum()


def by_x(x, w):
    t = torch.tanh(x @ w.t())
    return (2 * t * (1 - t**2)) @ w


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_right_formula_passes_and_its_twin_does_not(dtype):
    given = (drawn(4, 3, dtype=dtype), drawn(2, 3, dtype=dtype, seed=2))
    right = check(tanh_layer, given, formulas={"x": by_x})
    assert right.ok, str(right)
    assert right["formula", "x"].verdict in RIGHT
    faults = [1e-3, 1e-6] if dtype is torch.float32 else [1e-3, 1e-9] if dtype is torch.float64 else [1e-3]
    for fault in faults:
        wrong = check(tanh_layer, given, formulas={"x": lambda x, w, fault=fault: by_x(x, w) * (1 + fault)}, budget=0)
        assert verdicts(wrong)["formula", "x"] is Verdict.FORMULA
        assert verdicts(wrong)["autograd", "x"] in RIGHT
        assert not wrong


def test_one_wrong_element_is_the_worst():
    def wrong(x):
        gradient = 2 * x
        gradient[1, 2] += 1e-5
        return gradient

    found = check(square, (drawn(3, 4),), formulas={"x": wrong})["formula", "x"]
    assert (found.verdict, found.worst.index) == (Verdict.FORMULA, (1, 2))
    assert found.formula_error == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_right_formula_that_hides_float32_inside_is_never_called_wrong(dtype):
    def hidden(x):
        return torch.from_numpy(np.cos(x.numpy().astype(np.float32)))

    for seed in range(200):
        given = (drawn(1 + seed % 4, dtype=dtype, seed=seed),)
        report = check(lambda x: torch.sin(x).sum(), given, formulas={"x": hidden}, budget=0)
        assert verdicts(report)["formula", "x"] is not Verdict.FORMULA, str(report)
        twice = {"x": lambda x: hidden(x).double() * 0.3 / 0.3}  # float64 again
        report = check(lambda x: torch.sin(x).sum(), given, formulas=twice, budget=0)
        assert verdicts(report)["formula", "x"] is not Verdict.FORMULA, str(report)
    wrong = {"x": lambda x: hidden(x) * 1.001}
    report = check(lambda x: torch.sin(x).sum(), (drawn(4, dtype=dtype),), formulas=wrong, budget=0)
    assert verdicts(report)["formula", "x"] is Verdict.FORMULA


# -- autograd


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_backward_that_ignores_its_cotangent_is_wrong(dtype):
    assert verdicts(check(IgnoresCotangent.apply, (drawn(3, dtype=dtype),)))["autograd", "x0"] is Verdict.FORMULA
    assert check(UsesCotangent.apply, (drawn(3, dtype=dtype),)).ok


def test_ones_alone_do_not_hide_it():
    report = check(IgnoresCotangent.apply, (drawn(3),), cotangent=torch.ones(3))
    assert verdicts(report)["autograd", "x0"] is Verdict.FORMULA
    assert "generic inputs nearby" in report["autograd", "x0"].reason
    assert check(UsesCotangent.apply, (drawn(3),), cotangent=torch.ones(3)).ok


def detached(x):
    scale = x.detach().sum()
    return (x * scale).sum()


def by_data(x):
    return (x * x.data.sum()).sum()


def without_grad(x):
    with torch.no_grad():
        scale = x.sum()
    return (x * scale).sum()


@pytest.mark.parametrize(
    ("function", "stop"),
    [
        (detached, "detach at test_checking.py:{}: scale = x.detach().sum()"),
        (by_data, ".data at test_checking.py:{}: return (x * x.data.sum()).sum()"),
        (without_grad, "no_grad at test_checking.py:{}: with torch.no_grad():"),
    ],
)
def test_a_stopped_gradient_is_wrong_and_the_stop_is_named(function, stop):
    report = check(function, (drawn(3),), formulas={"x": lambda x: 2 * x.sum() + 0 * x})
    line = function.__code__.co_firstlineno + 1
    assert verdicts(report)["autograd", "x"] is Verdict.FORMULA
    assert verdicts(report)["formula", "x"] in RIGHT
    assert stop.format(line) in report["autograd", "x"].reason


def test_a_detach_that_stops_nothing_is_not_blamed():
    def function(x, y):
        return (IgnoresCotangent.apply(x) * y.detach()).sum()

    report = check(function, (drawn(3), drawn(3, seed=2)), wrt="x")
    assert verdicts(report)["autograd", "x"] is Verdict.FORMULA
    assert "stopped" not in report["autograd", "x"].reason


def test_a_gradient_of_none_counts_as_zero():
    def function(x, y):
        return (x**2).sum() + y.detach().sum()

    report = check(function, (drawn(3), drawn(3)))
    assert verdicts(report)["autograd", "x"] in RIGHT
    assert verdicts(report)["autograd", "y"] is Verdict.FORMULA
    assert "returns None" in report["autograd", "y"].reason


def test_an_output_that_does_not_depend_on_an_input():
    formulas = {"y": lambda y: torch.zeros_like(y)}
    report = check(lambda x, y: (x**2).sum(), (drawn(3), drawn(3)), formulas=formulas)
    assert set(verdicts(report).values()) == {Verdict.OK}
    assert not report.gradients["y"].any()
    wrong = check(lambda x, y: (x**2).sum(), (drawn(3), drawn(3)), formulas={"y": lambda y: 1e-9 + 0 * y})
    assert verdicts(wrong)["formula", "y"] is Verdict.FORMULA


# -- modules


def test_a_module_is_checked_by_its_parameters():
    report = check(nn.Linear(3, 2), (drawn(4, 3, dtype=torch.float32),))
    assert {f.input for f in report.findings} == {"input", "weight", "bias"}
    assert report.ok


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("closed_over", [True, False])
def test_batch_norm_keeps_its_state(training, closed_over):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh()).train(training)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    report = check((lambda x: net(x).sum(1)) if closed_over else net, (drawn(5, 3, dtype=torch.float32),))
    assert report.ok, str(report)
    assert {name for name, _ in verdicts(report)} == {"autograd", "finite differences"}
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(module.training is training for module in net.modules())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_loss_module_and_its_targets():
    assert check(nn.MSELoss(), (drawn(5), drawn(5, seed=2))).ok
    report = check(nn.CrossEntropyLoss(), (drawn(4, 3), torch.tensor([0, 1, 2, 1])))
    assert set(verdicts(report)) == {("autograd", "input"), ("finite differences", "input")}
    assert report.ok


# -- what is judged, and how it is given


def test_a_formula_with_a_cotangent_and_one_without():
    formulas = {"x": lambda x, cotangent: 3 * x**2 * cotangent}
    assert check(lambda x: x**3, (drawn(3),), formulas=formulas).ok
    assert check(lambda x: x**3, (drawn(3),), formulas={"x": lambda x: 3 * x**2}).ok
    wrong = check(lambda x: x**3, (drawn(3),), formulas={"x": lambda x, cotangent: 3 * x**2})
    assert verdicts(wrong)["formula", "x"] is Verdict.FORMULA


def test_several_outputs():
    def function(x):
        return x**2, {"total": x.sum(), "places": torch.arange(3)}

    def formula(x, cotangent):
        return 2 * x * cotangent[0] + cotangent[1]

    assert check(function, (drawn(3),), formulas={"x": formula}).ok
    assert check(function, (drawn(3),), formulas={"x": lambda x: 2 * x + 1}).ok
    wrong = check(function, (drawn(3),), formulas={"x": lambda x, cotangent: 2 * x * cotangent[0]})
    assert verdicts(wrong)["formula", "x"] is Verdict.FORMULA


def test_a_given_cotangent_is_used():
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    report = check(lambda x: x**2, {"x": weights}, cotangent=weights)
    assert np.allclose(report.gradients["x"], 2 * weights**2, rtol=1e-15, atol=0)


def test_the_same_tensor_twice():
    x = drawn(3)
    right = {"x": lambda x, y: y**2, "y": lambda x, y: 2 * x * y}
    assert check(lambda x, y: (x * y**2).sum(), (x, x), formulas=right).ok


@pytest.mark.parametrize("x", [drawn(3, 4).t(), drawn(1, 4).expand(3, 4), drawn(6, 4)[::2]], ids=str)
def test_memory_of_any_layout(x):
    formula = {"x": lambda x, cotangent: 3 * x**2 * cotangent[:, None]}
    assert check(lambda x: (x**3).sum(1), (x,), formulas=formula).ok


def test_a_function_that_writes_to_its_input():
    def function(x):
        x.mul_(2)
        return (x**2).sum()

    x = drawn(3)
    before = x.clone()
    report = check(function, (x,), formulas={"x": lambda x: 8 * x})
    assert report.ok, str(report)
    assert "writes to its input x" in " ".join(report.notes)
    assert torch.equal(x, before)


# -- nothing is left behind


def test_the_tensors_stay_as_they_were():
    x = drawn(3).requires_grad_()
    square(x).backward()
    grad, values = x.grad, x.detach().clone()
    kept = grad.clone()
    check(square, (x,), formulas={"x": lambda x: x.mul_(2)})
    assert x.grad is grad
    assert torch.equal(grad, kept)
    assert torch.equal(x.detach(), values)
    assert x.requires_grad
    assert x.grad_fn is None


def draws(x):
    random.random()
    np.random.rand()
    torch.rand(3)
    return square(x)


def fails(x):
    draws(x)
    raise ValueError("boom")


@pytest.mark.parametrize("function", [draws, fails])
def test_random_state_and_default_dtype_stay(function):
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate(), torch.get_default_dtype()
    try:
        check(function, (drawn(3, dtype=torch.float32),))
    except Misuse:
        assert function is fails
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    assert random.getstate() == before[2]
    assert torch.get_default_dtype() is before[3]
    assert torch.is_grad_enabled()


# -- at kinks


@pytest.mark.parametrize(
    ("function", "slope", "point"),
    [
        (lambda x: torch.relu(x).sum(), lambda x: (x > 0).to(x.dtype), [0.0, 1.0, -1.0]),
        (lambda x: x.amax(), lambda x: (x == x.max()).to(x.dtype) / 2, [1.0, 1.0, -1.0]),
        (lambda x: x.amax(0).sum(), lambda x: (x == x.amax(0)) / (x == x.amax(0)).sum(0), [[1.0, 3.0], [1.0, 2.0]]),
        (lambda x: x.abs().sum(), torch.sign, [0.0, 2.0]),
    ],
    ids=["relu", "max", "max by columns", "abs"],
)
def test_at_a_kink_torch_has_a_convention_and_the_other_elements_still_convict(function, slope, point):
    x = torch.tensor(point, dtype=torch.float64)
    report = check(function, (x,), formulas={"x": slope})
    assert verdicts(report)["autograd", "x"] is verdicts(report)["formula", "x"] is Verdict.NONSMOOTH
    assert report.ok
    wrong = check(function, (x,), formulas={"x": lambda x: slope(x) + 1e-6})
    assert verdicts(wrong)["formula", "x"] is Verdict.FORMULA
    assert verdicts(wrong)["autograd", "x"] is Verdict.NONSMOOTH


# -- where there is no reference


def spectrum(x):
    return torch.fft.fft(x).abs().sum()


def reads_a_value(x):
    return (x * x.sum().item()).sum()


@pytest.mark.parametrize("function", [spectrum, reads_a_value])
def test_differences_speak_where_there_is_no_reference(function):
    def right(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            total = spectrum(x) if function is spectrum else (x.sum() ** 2)
            return torch.autograd.grad(total, x)[0]

    for formula, said in [(right, "agree with it"), (lambda x: right(x) * (1 + 1e-6), "contradict it")]:
        report = check(function, (drawn(4),), formulas={"x": formula})
        assert set(verdicts(report).values()) == {Verdict.UNDECIDED}
        found = report["formula", "x"]
        assert f"finite differences {said} (all 4 elements)" in found.reason
        assert "with an estimated error of" in found.reason
        assert math.isfinite(found.bound)
        assert found.worst is not None
        assert not report.ok
    by_differences = report["finite differences", "x"]
    assert by_differences.bound < 1e-6
    assert "test_checking.py" in by_differences.reason


def test_differences_may_be_left_out():
    report = check(spectrum, (drawn(4),), budget=0)
    assert set(verdicts(report)) == {("autograd", "x")}


# -- bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wrt": ["z"]}, "wrt names 'z', which is not an input; the inputs are x, k"),
        ({"wrt": []}, "wrt is empty; name at least one of the inputs: x, k"),
        ({"wrt": 0}, "wrt is of type int; give names of inputs"),
        ({"wrt": "k"}, "wrt names 'k', a tensor of int64: only floating-point tensors have derivatives"),
        ({"formulas": {"z": square}}, "a formula for 'z', which is not differentiated by; there are x"),
        ({"formulas": {"k": square}}, "a formula for 'k', which is not differentiated by; there are x"),
        ({"formulas": {"x": lambda q, r, s: q}}, "its parameters must be inputs (x, k) or cotangent"),
        ({"formulas": {"x": 3}}, "the formula for 'x' is"),
        ({"formulas": [square]}, "formulas is of type list; give {input name: formula}"),
        ({"cotangent": torch.ones(2)}, "the cotangent has the shape (2,), the output ()"),
        ({"cotangent": "a"}, "cotangent is of type str"),
        ({"budget": -1}, "budget is -1; give an integer that is not negative"),
        ({"seed": "a"}, "seed is 'a'; give an integer that is not negative"),
        ({"allow": 3}, "allow is 3; give members of symcheck.Verdict"),
    ],
)
def test_misuse_says_what_was_given_and_what_to_do(arguments, message):
    with pytest.raises(Misuse) as caught:
        check(lambda x, k: (x * k).sum(), (drawn(3), torch.arange(3)), **arguments)
    assert message in str(caught.value)


def returns_none(x):
    return None


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (3, (drawn(3),), "function is of type int; give a callable"),
        (square, None, "inputs is of type NoneType"),
        (square, "x", "inputs is of type str"),
        (square, (), "inputs is empty"),
        (square, (3.0,), "the input 'x' is of type float, not a tensor"),
        (square, (np.ones(3),), "the input 'x' is of type ndarray, not a tensor"),
        (square, (drawn(3), drawn(3)), "square(x) cannot take the inputs x, x1: too many positional arguments"),
        (tanh_layer, (drawn(3),), "tanh_layer(x, w) cannot take the inputs x: missing a required argument: 'w'"),
        (square, (torch.arange(3),), "no input has a derivative (x: int64)"),
        (returns_none, (drawn(3),), "returns_none returned None; it must return a tensor"),
        (lambda x: "a", (drawn(3),), "returned an object of type str"),
        (lambda x: 3, (drawn(3),), "returned an object of type int"),
        (lambda x: (x > 0).long(), (drawn(3),), "returns int64, which has no derivative"),
        (fails, (drawn(3),), f"fails raised ValueError at test_checking.py:{fails.__code__.co_firstlineno + 2}: boom"),
    ],
)
def test_a_function_or_inputs_that_cannot_be(function, inputs, message):
    with pytest.raises(Misuse) as caught:
        check(function, inputs)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("formula", "verdict", "reason"),
    [
        (lambda x, b: torch.ones(4, 3), Verdict.FORMULA, "a sum over the broadcast axes is missing"),
        (lambda x, b: torch.ones(2), Verdict.FORMULA, "it has the shape (2,); the gradient by b has the shape (3,)"),
        (lambda x, b: 4.0, Verdict.FORMULA, "it has the shape (); the gradient by b has the shape (3,)"),
        (lambda x, b: None, Verdict.UNDECIDED, "the formula for b returned None"),
        (lambda x, b: "4", Verdict.UNDECIDED, "the formula for b returned an object of type str"),
        (lambda x, b: 1 / 0, Verdict.UNDECIDED, "the formula for b raised ZeroDivisionError at test_checking.py"),
        (lambda x, b: b + 0j, Verdict.UNDECIDED, "the formula for b is complex"),
        (lambda x, b: torch.full((3,), 4), Verdict.OK, ""),  # integers are numbers
        (lambda x, b: np.full(3, 4.0), Verdict.OK, ""),
        (lambda x, b: torch.full((1, 3), 4.0), Verdict.OK, ""),  # axes of size 1 do not matter
    ],
)
def test_what_a_formula_may_return(formula, verdict, reason):
    report = check(lambda x, b: (x + b).sum(), (drawn(4, 3), drawn(3)), formulas={"b": formula}, budget=0)
    assert report["formula", "b"].verdict is verdict
    assert reason in report["formula", "b"].reason


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_empty_inputs(shape):
    report = check(lambda x, y: x.sum() * y.sum(), (torch.ones(shape), drawn(2)), formulas={"x": lambda x: 2 * x})
    assert report.ok
    assert "empty" in report["formula", "x"].reason
    assert check(lambda x: x * 2, (torch.ones(shape),)).ok
    assert check(lambda x: x[:0] * 2, (drawn(3),)).ok


def test_numbers():
    x = torch.tensor(3.0)
    assert check(lambda x: x**2, (x,), formulas={"x": lambda x: 6.0}).ok
    assert not check(lambda x: x**2, (x,), formulas={"x": lambda x: 6.0001}).ok


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inputs_that_are_not_finite(value):
    x = torch.tensor([1.0, value])
    report = check(square, (x,), formulas={"x": lambda x: 2 * x})
    expected = Verdict.OTHER if math.isnan(value) else Verdict.UNDECIDED
    assert verdicts(report)["autograd", "x"] is verdicts(report)["formula", "x"] is expected
    assert f"{'undefined' if math.isnan(value) else 'not finite'}" in report["autograd", "x"].reason
    assert verdicts(check(square, (x,), formulas={"x": lambda x: 3 * x}))["formula", "x"] is Verdict.FORMULA


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x * x.conj()).real.sum(), torch.ones(3, dtype=torch.complex128)),
        (lambda x: x * (1 + 2j), drawn(3)),
        (lambda x: (x * (1 + 2j)).abs().sum(), drawn(3)),
    ],
    ids=["input", "output", "inside"],
)
def test_complex_numbers_are_undecided(function, x):
    report = check(function, (x,), formulas={"x": lambda x: 2 * x})
    assert set(verdicts(report).values()) == {Verdict.UNDECIDED}
    assert "complex" in report["autograd", "x"].reason


def test_a_side_output_that_is_complex_is_left_out():
    report = check(lambda x: (square(x), x * 1j), (drawn(3),))
    assert report.ok
    assert "left out, as they are complex: outputs 1" in report.notes


# -- the report


def test_the_report():
    report = check(square, (drawn(3),), formulas={"x": lambda x: 3 * x})
    assert not report
    assert report["formula", "x"].advice == "multiply it by 2/3"
    assert report.to_dict()
    with pytest.raises(KeyError, match="'formula', 'x'"):
        report["formula", "y"]
    with pytest.raises(AssertionError, match="multiply it by 2/3"):
        assert_gradients(square, (drawn(3),), formulas={"x": lambda x: 3 * x})
    assert assert_gradients(square, (drawn(3),)).ok
    assert check(square, (drawn(3),), formulas={"x": lambda x: 3 * x}, allow=Verdict.FORMULA).ok


def test_the_two_errors_of_every_element_are_reported_apart():
    x = torch.tensor([0.1, 0.2, 0.3])
    report = check(square, (x,), formulas={"x": lambda x: 2 * x * torch.tensor([1.0, 1.0, 1.5])})
    errors = report.errors["formula", "x"]
    exact = 2 * x.double().numpy()
    np.testing.assert_array_equal(errors.formula, [0, 0, exact[2] / 2])
    assert (np.abs(errors.rounding) <= errors.bound).all()
    computed = (2 * x * torch.tensor([1.0, 1.0, 1.5])).double().numpy()
    np.testing.assert_allclose(errors.rounding + errors.formula, computed - exact, rtol=0, atol=1e-16)
    np.testing.assert_array_equal(report.errors["autograd", "x"].formula, 0)


def test_a_gradient_given_as_a_value_is_no_formula():
    """A precomputed tensor shows no rounding of its own: what rounding may explain is not called wrong."""
    x = torch.linspace(0.1, 3, 200)
    function = lambda x: torch.sin(x * x).sum()  # noqa: E731
    value = 2 * x * torch.cos(x * x)
    exact = check(function, (x,)).gradients["x"]
    assert check(function, (x,), formulas={"x": lambda x: value})["formula", "x"].verdict is Verdict.UNDECIDED
    nearest = torch.from_numpy(exact).float()
    assert check(function, (x,), formulas={"x": lambda x: nearest})["formula", "x"].verdict is Verdict.OK
    wrong = value * 1.001
    assert check(function, (x,), formulas={"x": lambda x: wrong})["formula", "x"].verdict is Verdict.FORMULA


def largest_two(x):
    return x.topk(2).values.mean() / 3


@pytest.mark.parametrize(("value", "expected"), [(1 / 12, Verdict.NONSMOOTH), (1 / 6, Verdict.FORMULA)])
def test_a_value_at_a_kink_is_no_nearer_for_the_branches_that_the_bound_covers(value, expected):
    """Four equal elements, of which two are taken: each has 1/12 where they share, and all four never have 1/6."""
    report = check(largest_two, (torch.ones(4),), formulas={"x": lambda x: torch.full_like(x, value)}, budget=0)
    assert report["formula", "x"].verdict is expected
