"""References sharpened in balls where a running bound says too little."""

import mpmath
import numpy as np
import pytest
import torch

import symcheck
from symcheck import Verdict
from symcheck.arithmetic.ball import enclosures, to_ball, working_precision
from symcheck.binding import bind
from symcheck.reference import LOOSE, derive_reference, numeric
from symcheck.refinement import ball_seconds, evaluate_sharply

STEPS = 30


def recurrence(x, w):
    for _ in range(STEPS):
        x = torch.tanh(w * x + 0.5 * torch.sin(3 * x))
    return x


def by_mpmath(x, w):
    """The derivative of the recurrence by w at 60 digits, by the chain rule."""
    with mpmath.workdps(60):
        x, w, slope = mpmath.mpf(x), mpmath.mpf(w), mpmath.mpf(0)
        for _ in range(STEPS):
            inner = w * x + mpmath.sin(3 * x) / 2
            slope = (x + (w + 1.5 * mpmath.cos(3 * x)) * slope) / mpmath.cosh(inner) ** 2
            x = mpmath.tanh(inner)
        return slope


@pytest.mark.parametrize(("x", "w"), [(0.25, 1.5), (0.75, -0.875), (-0.125, 2.25)])
def test_a_long_recurrence_is_known_to_float64(x, w):
    inputs = {"x": torch.tensor(x, dtype=torch.float64), "w": torch.tensor(w, dtype=torch.float64)}
    binding = bind(recurrence, inputs, "w")
    exact = derive_reference(binding, inputs).at(numeric(inputs), [np.ones(())]).gradients["w"]
    truth = by_mpmath(x, w)
    assert abs(mpmath.mpf(float(exact.values)) - truth) <= float(exact.errors)
    assert float(exact.errors) <= LOOSE * abs(float(truth))


def test_sharp_values_are_within_their_errors_and_errors_are_sharp():
    inputs = {"x": torch.tensor(0.25, dtype=torch.float64), "w": torch.tensor(1.5, dtype=torch.float64)}
    derived = derive_reference(bind(recurrence, inputs, "w"), inputs)
    given = {**numeric(inputs), "d_cotangent0": np.ones(())}
    values, errors = evaluate_sharply(derived.gradient, given)[0]
    truth = by_mpmath(0.25, 1.5)
    assert abs(mpmath.mpf(float(values)) - truth) <= float(errors) <= 2.0**-52 * abs(float(values))
    assert abs(mpmath.mpf(float(values)) * (1 + mpmath.mpf(2) ** -50) - truth) > float(errors)


def test_enclosures_round_outwards():
    with working_precision(128):
        balls = to_ball(np.array([1.0, -3.0])) / 7
        values, errors = enclosures(np.asarray(balls, dtype=object))
    for value, error, numerator in zip(values, errors, (1, -3), strict=True):
        with mpmath.workdps(60):
            assert 0 < abs(mpmath.mpf(float(value)) - mpmath.mpf(numerator) / 7) <= float(error)


def test_large_programs_are_left_to_float64():
    inputs = {"x": torch.zeros(1000, 1000), "w": torch.zeros(1000, 1000)}
    derived = derive_reference(bind(lambda x, w: torch.tanh(x @ w).sum(), inputs), inputs)
    assert ball_seconds(derived.gradient) > 3.0


def two_layers(dtype):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype)


@pytest.mark.parametrize(("dtype", "fault"), [(torch.float32, 1e-6), (torch.float64, 1e-9)])
def test_a_transformer_is_decided_and_its_wrong_twin_is_convicted(dtype, fault):
    encoder = two_layers(dtype)

    def formula(scale):
        def by_input(src, cotangent):
            leaf = src.detach().requires_grad_()
            state = {name: value.to(src.dtype) for name, value in encoder.state_dict().items()}
            output = torch.func.functional_call(encoder, state, (leaf,))
            return scale * torch.autograd.grad(output, leaf, cotangent)[0]

        return by_input

    src = torch.randn(2, 3, 8, dtype=dtype)
    right = symcheck.check(encoder, (src,), wrt="src", formulas={"src": formula(1)})
    assert right["autograd", "src"].verdict in (Verdict.OK, Verdict.ROUNDING)
    assert right["formula", "src"].verdict in (Verdict.OK, Verdict.ROUNDING)
    wrong = symcheck.check(encoder, (src,), wrt="src", formulas={"src": formula(1 + fault)})
    assert wrong["formula", "src"].verdict is Verdict.FORMULA


def test_what_overflows_in_float64_is_known_in_balls():
    """-log(1 - sigmoid(x)) has the slope sigmoid(x); at 50, float64 has log(0)."""
    x = torch.tensor([0.5, 20.0, 50.0])
    function = lambda x: -torch.log(1 - torch.sigmoid(x)).sum()  # noqa: E731
    right = symcheck.check(function, (x,), formulas={"x": torch.sigmoid})
    assert right["formula", "x"].verdict is Verdict.OK
    wrong = symcheck.check(function, (x,), formulas={"x": lambda x: torch.sigmoid(x) * (1 + 1e-5)})
    assert wrong["formula", "x"].verdict is Verdict.FORMULA


def test_balls_do_not_settle_a_kink():
    """At 0 the norm has no gradient, though each of its branches has a value there."""
    report = symcheck.check(lambda x: x.norm(), (torch.zeros(3),))
    assert report["autograd", "x"].verdict is Verdict.NONSMOOTH
    assert report["autograd", "x"].reason.startswith("at a kink")
