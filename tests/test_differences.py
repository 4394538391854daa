"""Finite differences: the error estimate covers the truth, is small enough to be of use, and counts its calls."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import special

from symcheck.differences import LEAST_EVALUATIONS, MOST_EVALUATIONS, Estimate, differentiate, directional
from symcheck.errors import Misuse

f32 = np.float32
TWO_PI = 2 * np.pi


def between(low: float, high: float) -> Callable[[np.random.Generator], float]:
    return lambda g: g.uniform(low, high)


def scales(low: float, high: float) -> Callable[[np.random.Generator], float]:
    return lambda g: 10 ** g.uniform(low, high)


def signed_scales(low: float, high: float) -> Callable[[np.random.Generator], float]:
    return lambda g: 10 ** g.uniform(low, high) * g.choice([-1, 1])


def beside(edge: float, low: float, high: float, side: int) -> Callable[[np.random.Generator], float]:
    return lambda g: edge + side * 10 ** g.uniform(low, high)


class Case(NamedTuple):
    function: Callable[[Any], Any]
    derivative: Callable[[Any], Any]
    draw: Callable[[np.random.Generator], float]
    useful: float = np.inf  # largest error / |derivative|, or error where the derivative is 0, at every point


CASES = {
    # smooth and well scaled
    "line": Case(lambda x: 3 * x + 1, lambda x: 3.0, signed_scales(-13, 3), 1e-11),
    "square": Case(lambda x: x * x, lambda x: 2 * x, signed_scales(-3, 20), 1e-10),
    "sin": Case(np.sin, np.cos, between(-1.4, 1.4), 1e-10),
    "exp": Case(np.exp, np.exp, between(-20, 20), 1e-10),
    "tanh": Case(np.tanh, lambda x: 1 / np.cosh(x) ** 2, between(-3, 3), 1e-8),
    "cosh": Case(np.cosh, np.sinh, between(0.1, 10), 1e-8),
    "softplus": Case(lambda x: np.log1p(np.exp(x)), special.expit, between(-30, 30), 1e-8),
    "gelu": Case(
        lambda x: x * special.ndtr(x),
        lambda x: special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(TWO_PI),
        between(0, 6),
        1e-8,
    ),
    "polynomial": Case(lambda x: x**7 - x**5 + x, lambda x: 7 * x**6 - 5 * x**4 + 1, between(-2, 2), 1e-9),
    "1 - cos": Case(lambda x: 1 - np.cos(x), np.sin, signed_scales(-6, 0)),
    "erf": Case(special.erf, lambda x: 2 / np.sqrt(np.pi) * np.exp(-x * x), between(-5, 5)),
    # scales
    "log": Case(np.log, lambda x: 1 / x, scales(-13, 20), 1e-8),
    "sqrt": Case(np.sqrt, lambda x: 0.5 / np.sqrt(x), scales(-13, 20), 1e-8),
    "reciprocal": Case(lambda x: 1 / x, lambda x: -1 / x**2, signed_scales(-13, 20), 1e-8),
    "cube": Case(lambda x: x**3, lambda x: 3 * x * x, signed_scales(-13, 20)),
    "cube root": Case(np.cbrt, lambda x: 1 / (3 * np.cbrt(x) ** 2), signed_scales(-13, 3), 1e-8),
    "log gamma": Case(special.gammaln, special.psi, scales(-6, 0), 1e-6),
    "near overflow": Case(np.exp, np.exp, between(600, 709), 1e-8),
    "large values": Case(lambda x: 1e200 * np.sin(x), lambda x: 1e200 * np.cos(x), between(-1.4, 1.4), 1e-8),
    "subnormal values": Case(lambda x: 1e-310 * np.sin(x), lambda x: 1e-310 * np.cos(x), between(-4, 4)),
    "narrow": Case(lambda x: x / (x + 1e-6), lambda x: 1e-6 / (x + 1e-6) ** 2, scales(-9, 0), 1e-5),
    "narrow peak": Case(lambda x: 1 / (1 + 1e4 * x * x), lambda x: -2e4 * x / (1 + 1e4 * x * x) ** 2, between(-1, 1)),
    # oscillation
    "sin(1e4 x)": Case(lambda x: np.sin(1e4 * x), lambda x: 1e4 * np.cos(1e4 * x), between(-4, 4)),
    "sin(1e6 x)": Case(lambda x: np.sin(1e6 * x), lambda x: 1e6 * np.cos(1e6 * x), between(-4, 4)),
    "period 1/64": Case(
        lambda x: np.sin(TWO_PI * 64 * x), lambda x: TWO_PI * 64 * np.cos(TWO_PI * 64 * x), between(-4, 4)
    ),
    "small and fast": Case(
        lambda x: x + 1e-9 * np.sin(1e6 * x), lambda x: 1 + 1e-3 * np.cos(1e6 * x), between(-4, 4), 1e-6
    ),
    "sin at large x": Case(np.sin, np.cos, signed_scales(0, 6)),
    "sin beyond its ulp": Case(np.sin, np.cos, signed_scales(17, 20)),
    "sin(1/x)": Case(lambda x: np.sin(1 / x), lambda x: -np.cos(1 / x) / x**2, scales(-3, 1)),
    # edges of a domain
    "log(1 - x)": Case(lambda x: np.log(1 - x), lambda x: -1 / (1 - x), beside(1, -9, 0, -1)),
    "arcsin": Case(np.arcsin, lambda x: 1 / np.sqrt((1 - x) * (1 + x)), beside(1, -9, 0, -1)),
    # kinks and stairs
    "abs": Case(np.abs, np.sign, signed_scales(-13, 3), 1e-10),
    "abs beside its kink": Case(lambda x: np.abs(x - 1e-5), lambda x: np.sign(x - 1e-5), signed_scales(-13, -3), 1e-8),
    "relu with an offset": Case(lambda x: 1 + np.maximum(x, 0), lambda x: float(x > 0), signed_scales(-13, 3)),
    "relu beside its kink": Case(lambda x: np.maximum(x - 1, 0), lambda x: float(x > 1), beside(1, -12, 0, 1)),
    "huber": Case(
        lambda x: np.where(abs(x) < 1, 0.5 * x * x, abs(x) - 0.5), lambda x: np.clip(x, -1, 1), between(0.1, 3), 1e-8
    ),
    "x|x|": Case(lambda x: x * abs(x), lambda x: 2 * abs(x), signed_scales(-13, 1)),
    "|x|^1.5": Case(lambda x: abs(x) ** 1.5, lambda x: 1.5 * np.sqrt(abs(x)) * np.sign(x), signed_scales(-13, 1), 1e-8),
    "round": Case(np.round, lambda x: 0.0, between(-4, 4)),
    "floor and line": Case(lambda x: np.floor(x) + x, lambda x: 1.0, between(-4, 4)),
    # round-off and noise
    "constant": Case(lambda x: 7 + 0 * x, lambda x: 0.0, signed_scales(-13, 20), 1e-13),
    "small on large": Case(lambda x: 1e7 + 1e-6 * np.sin(x), lambda x: 1e-6 * np.cos(x), between(-4, 4)),
    "below an ulp": Case(lambda x: 1e7 + 1e-9 * x, lambda x: 1e-9, between(-4, 4)),
    "contributions": Case(
        lambda x: np.array([1e7, np.sin(x), 1e3 * np.cos(x), np.exp(x)]),
        lambda x: np.cos(x) - 1e3 * np.sin(x) + np.exp(x),
        between(0.1, 3),
        1e-8,
    ),
    "noise 1e-6": Case(lambda x: np.sin(x) + 1e-6 * np.sin(1e15 * np.sin(1e9 * x)), np.cos, between(-4, 4)),
    "noise 1e-10": Case(lambda x: np.sin(x) + 1e-10 * np.sin(1e15 * np.sin(1e9 * x)), np.cos, between(-4, 4)),
    "float16 sin": Case(lambda x: np.sin(np.float16(x)), np.cos, between(-4, 4)),
    "float32 sin": Case(lambda x: np.sin(f32(x)), np.cos, between(-1.4, 1.4), 1e-1),
    "float32 sum": Case(lambda x: f32(100) + np.tanh(f32(x)), lambda x: 1 / np.cosh(x) ** 2, between(-4, 4)),
    "hidden float32 sin": Case(lambda x: float(np.sin(f32(x))), np.cos, between(-1.4, 1.4), 1e-1),
    "hidden float32 exp": Case(lambda x: float(np.exp(f32(x))), np.exp, between(-20, 20), 1e-2),
    "hidden float32 sigmoid": Case(
        lambda x: float(1 / (1 + np.exp(-f32(x)))), lambda x: special.expit(x) * special.expit(-x), between(-8, 8)
    ),
    "hidden float32 polynomial": Case(
        lambda x: float(f32(x) ** 3 - f32(2) * f32(x)), lambda x: 3 * x * x - 2, between(-4, 4)
    ),
    "hidden float32 sum": Case(
        lambda x: float(f32(100) + np.tanh(f32(x))), lambda x: 1 / np.cosh(x) ** 2, between(-4, 4)
    ),
}


def along_one(function: Callable[[Any], Any], x: float) -> Estimate:
    return directional(function, np.array(x), np.array(1.0))


@pytest.mark.parametrize("name", CASES)
def test_the_error_covers_the_truth_and_is_of_use(name: str) -> None:
    case, generator = CASES[name], np.random.default_rng(sum(name.encode()))
    for x in (case.draw(generator) for _ in range(60)):
        estimate, truth = along_one(case.function, x), float(case.derivative(np.float64(x)))
        assert abs(estimate.value - truth) <= estimate.error, (x, truth, estimate)
        assert estimate.error <= case.useful * (abs(truth) or 1), (x, truth, estimate)
        assert estimate.one_sided <= 2 * estimate.error
        assert LEAST_EVALUATIONS <= estimate.evaluations <= MOST_EVALUATIONS


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.useful <= 1e-8])
def test_a_slightly_wrong_derivative_is_outside_the_error(name: str) -> None:
    case, generator = CASES[name], np.random.default_rng(1)
    for x in (case.draw(generator) for _ in range(20)):
        truth = float(case.derivative(np.float64(x)))
        wrong = truth * (1 + 1e-6) if truth else 1e-6
        estimate = along_one(case.function, x)
        assert abs(estimate.value - wrong) > estimate.error, (x, estimate)


def test_directions_through_a_network() -> None:
    generator = np.random.default_rng(2)
    for _ in range(40):
        w, x, v, way = (generator.normal(size=s) for s in ((5, 7), (4, 5), 7, (5, 7)))
        hidden = np.tanh(x @ w)
        smooth = directional(lambda w, x=x, v=v: np.tanh(x @ w) @ v, w, way)
        truth = float(np.vdot(way, x.T @ ((1 - hidden**2) * v)))
        assert abs(smooth.value - truth) <= smooth.error < 1e-8
        kinked = directional(lambda w, x=x, v=v: np.maximum(x @ w, 0) @ v, w, way)
        assert abs(kinked.value - np.vdot(way, x.T @ ((x @ w > 0) * v))) <= kinked.error


def test_a_direction_is_not_made_a_unit() -> None:
    point, way = np.array([1.0, 2.0]), np.array([3.0, -1e-9])
    estimate = directional(lambda x: x[0] ** 2 * x[1], point, way)
    assert abs(estimate.value - (3 * 4 - 1e-9)) <= estimate.error < 1e-10


def test_at_a_kink_the_slopes_disagree_and_the_error_says_so() -> None:
    kink = along_one(np.abs, 0.0)
    assert kink.value == 0
    assert kink.one_sided == pytest.approx(2)
    assert kink.error >= 1
    assert along_one(np.sin, 0.7).one_sided < 1e-10


def test_where_nothing_can_be_said_the_error_is_infinite() -> None:
    for function in (lambda x: np.nan, lambda x: np.inf, lambda x: np.where(x == 1, 1.0, np.nan)):
        estimate = along_one(function, 1.0)
        assert np.isnan(estimate.value)
        assert estimate.error == np.inf
    for function, x in ((np.sqrt, 0.0), (np.cbrt, 0.0), (np.round, 0.5)):
        assert along_one(function, x).error == np.inf


def test_round_off_of_a_constant_is_reported() -> None:
    assert 1e-17 < along_one(lambda x: 7.0, 1.0).error < 1e-13


def test_a_declared_roundoff_widens_the_error() -> None:
    narrow = along_one(np.sin, 0.7)
    wide = directional(np.sin, np.array(0.7), np.array(1.0), unit_roundoff=2.0**-24)
    assert wide.error > 1e4 * narrow.error


def test_a_function_may_spoil_its_input_and_reuse_its_buffer() -> None:
    buffer, point = np.zeros(3), np.array([0.1, 0.2, 0.3])

    def function(x: Any) -> Any:
        np.sin(x, out=buffer)
        x[:] = np.nan
        return buffer

    found = differentiate(function, point, generator=np.random.default_rng(3))
    assert (np.abs(found.values - np.cos([0.1, 0.2, 0.3])) <= found.errors).all()
    assert point.tolist() == [0.1, 0.2, 0.3]


def linear_model(generator: np.random.Generator) -> tuple[Callable[[Any], Any], Any, Any]:
    a, y, p = generator.normal(size=(20, 10)), generator.normal(size=20), generator.normal(size=11)

    def residual(p: Any) -> Any:
        return a @ p[:10] + p[10] - y

    gradient = np.append(a.T @ residual(p), residual(p).sum()) * 2 / 20
    return lambda p: residual(p) @ residual(p) / 20, p, gradient


def test_all_elements_of_a_linear_model_fast() -> None:
    generator = np.random.default_rng(4)
    loss, p, gradient = linear_model(generator)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        found = differentiate(loss, p, generator=generator)
        seconds.append(time.perf_counter() - start)
    assert (np.abs(found.values - gradient) <= found.errors).all()
    assert (np.abs(found.values - gradient * (1 + 1e-6)) > found.errors).all()
    assert found.complete
    assert found.description == "all 11 elements"
    assert found.directions == ()
    assert found.evaluations == 11 * LEAST_EVALUATIONS
    assert min(seconds) < 0.05  # 2.5 ms where measured; slack for a busy machine


def test_a_large_input_is_sampled_within_the_budget() -> None:
    generator, calls = np.random.default_rng(5), 0
    point, worst = generator.normal(size=(100, 50)), np.array([7, 7, 4999, 0])

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return x**3 - np.sin(x)

    found = differentiate(function, point, generator=generator, budget=1000, worst=worst)
    truth = 3 * point**2 - np.cos(point)
    assert found.evaluations == calls <= 1000
    assert not found.complete
    assert len(set(found.sampled.tolist())) == found.sampled.size > 30
    assert set(worst.tolist()) <= set(found.sampled.tolist())
    rest = found.sampled.size - 3
    assert found.description == f"the 3 worst and {rest} sampled of 5,000 elements and 4 random directions"
    tried = np.isin(np.arange(5000), found.sampled).reshape(point.shape)
    assert np.isfinite(found.values[tried]).all()
    assert np.isnan(found.values[~tried]).all()
    assert np.isinf(found.errors[~tried]).all()
    assert (np.abs(found.values - truth)[tried] <= found.errors[tried]).all()
    for way, estimate in found.directions:
        assert abs(estimate.value - np.vdot(way, truth)) <= estimate.error < 1e-6


def test_the_same_seed_gives_the_same_sample() -> None:
    found = [differentiate(np.sin, np.ones(500), generator=np.random.default_rng(6), budget=500) for _ in range(2)]
    assert found[0].sampled.tolist() == found[1].sampled.tolist()
    assert np.array_equal(found[0].values, found[1].values, equal_nan=True)


def test_elements_that_are_not_finite_are_skipped() -> None:
    point = np.array([1.0, np.nan, 2.0, np.inf])
    found = differentiate(lambda x: np.nan_to_num(x, posinf=0) ** 2, point, generator=np.random.default_rng(7))
    assert np.isnan(found.values).tolist() == [False, True, False, True]
    assert np.isinf(found.errors).tolist() == [False, True, False, True]
    assert found.complete
    many = np.append(point, np.ones(400))
    sampled = differentiate(lambda x: np.nan_to_num(x, posinf=0) ** 2, many, generator=np.random.default_rng(8))
    assert all(way[1] == way[3] == 0 for way, _ in sampled.directions)
    assert all(np.isfinite(estimate.error) for _, estimate in sampled.directions)


def test_empty_and_single_inputs() -> None:
    generator = np.random.default_rng(9)
    empty = differentiate(lambda x: 0.0, np.zeros((0, 3)), generator=generator)
    assert (empty.values.shape, empty.complete, empty.evaluations) == ((0, 3), True, 0)
    assert differentiate(np.sin, np.array(1.0), generator=generator).description == "the only element"


def test_misuse_is_refused() -> None:
    generator, sizes = np.random.default_rng(10), iter(range(1, 9))
    one = np.array(1.0)
    with pytest.raises(Misuse, match="same shape"):
        directional(np.sin, np.ones(2), np.ones(3))
    for bad in (0.0, np.nan):
        with pytest.raises(Misuse, match="not zero"):
            directional(np.sin, one, np.array(bad))
    with pytest.raises(Misuse, match="one shape"):
        directional(lambda x: np.ones(next(sizes)), one, one)
    with pytest.raises(Misuse, match="budget is 10"):
        differentiate(np.sin, one, generator=generator, budget=10)
    for index in (-1, 1):
        with pytest.raises(Misuse, match="flat indices"):
            differentiate(np.sin, one, generator=generator, worst=np.array([index]))
