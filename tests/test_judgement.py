"""The truth under stress: formulas that lose most of their digits are never called wrong, wrong ones always are."""

import numpy as np
import pytest
import torch

from symcheck.findings import Verdict
from symcheck.judgement import Evidence, Neighbour, Rung, judge
from symcheck.reference import Exact
from symcheck.sweeping import sweep

SEEDS, FAULTY_SEEDS = 300, 60


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny products are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def three_terms(weight, bias, x, y):
    """The hand-derived gradient of the seed: three matrix terms that cancel."""
    ones = torch.ones((x.shape[0], 1), dtype=x.dtype)
    total = -2 * x.t() @ y + 2 * x.t() @ ones * bias + 2 * x.t() @ x @ weight.t()
    return (total / float(x.shape[0])).t()


def mse(weight, bias, x, y):
    return torch.nn.functional.mse_loss(torch.nn.functional.linear(x, weight, bias), y)


def mse_inputs(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    shapes = {"weight": (1, 4), "bias": (1,), "x": (20, 4), "y": (20, 1)}
    return {name: torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype) for name, shape in shapes.items()}


def one_pass_variance(x):
    return (x * x).mean() - x.mean() ** 2


def one_pass_gradient(x):
    """2 x / n - 2 mean / n: a difference of large numbers far from zero."""
    return 2 * x / len(x) - 2 * x.sum() / len(x) / len(x)


def far_inputs(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    offset = 10.0 ** (seed % 4)
    return {"x": (offset + torch.randn(6, generator=draw, dtype=torch.float64)).to(dtype)}


def logsumexp(x):
    return torch.log(torch.exp(x).sum())


def softmax_by_logs(x):
    """exp(x - log sum exp x): the error of x - lse is the gradient's relative one."""
    return torch.exp(x - logsumexp(x))


def logits(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    return {"x": (10 * torch.randn(8, generator=draw, dtype=torch.float64)).to(dtype)}


def difference_of_squares(x):
    return ((x + 1) ** 3 - x**3).sum()


def uncancelled(x):
    """3 (x + 1)^2 - 3 x^2, which is 6 x + 3."""
    return 3 * (x + 1) ** 2 - 3 * x**2


def large_inputs(seed, dtype):
    draw = torch.Generator().manual_seed(seed)
    return {"x": (1e4 * torch.randn(5, generator=draw, dtype=torch.float64)).to(dtype)}


STRESSES = {
    "three terms": (mse, mse_inputs, "weight", three_terms),
    "one-pass variance": (one_pass_variance, far_inputs, "x", one_pass_gradient),
    "softmax by logarithms": (logsumexp, logits, "x", softmax_by_logs),
    "uncancelled squares": (difference_of_squares, large_inputs, "x", uncancelled),
}


def swept(name, dtype, scale, seeds):
    function, make, by, formula = STRESSES[name]
    given = {by: lambda **named: formula(**named) * scale}
    found = sweep(function, lambda seed: make(seed, dtype), range(seeds), given, [by], budget=0)
    return found.count("formula", by), found.count("autograd", by)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", STRESSES)
def test_a_right_formula_is_right_on_every_seed(name, dtype):
    for counted in swept(name, dtype, 1, SEEDS):
        assert set(counted) <= {Verdict.OK, Verdict.ROUNDING}, counted


@pytest.mark.parametrize(
    ("dtype", "fault"), [(torch.float64, 1e-9), (torch.float32, 1e-6), (torch.float32, 1e-3)], ids=str
)
@pytest.mark.parametrize("name", STRESSES)
def test_a_formula_slightly_wrong_is_wrong_on_every_seed(name, dtype, fault):
    formula, autograd = swept(name, dtype, 1 + fault, FAULTY_SEEDS)
    assert set(formula) == {Verdict.FORMULA}, formula
    assert Verdict.FORMULA not in autograd


# One element, judged by hand-made evidence.

RIGHT = np.array([1.0, 2.0])
SURE = Exact(RIGHT, np.full(2, 1e-15), np.zeros(2, dtype=bool), np.full(2, 1e-15))


def evidence(computed, *, intended=None, dtype="float64", exact=SURE, nearby=None, noise=0.0):
    computed = np.array(computed)
    intended = None if intended is None else np.array(intended)
    high = computed if intended is None else intended
    roundoff = 2.0**-53 if dtype == "float64" else 2.0**-24
    rung = Rung(exact.values * (1 + 3e-8), exact, 2.0**-24, high, exact)
    return Evidence(
        "formula", "x", computed, dtype, roundoff, roundoff, exact, intended, lambda: rung,
        lambda: np.full(computed.shape, noise),
        lambda: [Neighbour(high, exact, True)] if nearby is None else nearby, lambda: "",
    )  # fmt: skip


def test_within_the_bound_is_right():
    assert judge(evidence(RIGHT * (1 + 2e-16))).verdict is Verdict.OK


def test_beyond_rounding_is_wrong():
    found = judge(evidence(RIGHT * (1 + 1e-9)))
    assert found.verdict is Verdict.FORMULA
    assert "by the factor (1 + 1e-09) everywhere" in found.reason
    assert found.advice == "multiply it by (1 - 1e-09)"


@pytest.mark.parametrize(("factor", "said", "advice"), [(0.5, "1/2", "2"), (-1, "-1", "-1"), (3.7, "37/10", "10/37")])
def test_a_common_factor_is_named(factor, said, advice):
    found = judge(evidence(RIGHT * factor))
    assert f"by the factor {said} everywhere" in found.reason
    assert found.advice == f"multiply it by {advice}"


def test_a_gradient_that_is_zero_is_a_missing_path():
    found = judge(evidence(RIGHT * 0))
    assert "zero everywhere" in found.reason
    assert "a path" in found.advice


def test_no_common_factor_is_claimed_of_one_wrong_element():
    found = judge(evidence(RIGHT + np.array([0, 1e-6])))
    assert found.verdict is Verdict.FORMULA
    assert "1 of 2 elements" in found.reason
    assert "factor" not in found.reason


def test_what_does_not_repeat_nearby_is_undecided():
    for nearby in ([Neighbour(RIGHT, SURE, False)], [Neighbour(None, SURE, False)], []):
        found = judge(evidence(RIGHT * (1 + 1e-9), nearby=nearby))
        assert (found.verdict, "nearby" in found.reason) == (Verdict.UNDECIDED, True)


def test_an_error_that_changes_like_noise_is_undecided():
    found = judge(evidence(RIGHT * (1 + 1e-9), nearby=[Neighbour(RIGHT * (1 - 1e-9), SURE, True)]))
    assert (found.verdict, "noise" in found.reason) == (Verdict.UNDECIDED, True)
    assert judge(evidence(RIGHT * (1 + 1e-9), nearby=[Neighbour(RIGHT * 1.1, SURE, False)])).verdict is Verdict.FORMULA


def test_open_elements_are_left_out_and_the_others_still_convict():
    exact = Exact(RIGHT, np.full(2, 1e-15), np.array([True, False]), np.full(2, 1e-15))
    assert judge(evidence([5.0, 2.0], exact=exact)).verdict is Verdict.UNDECIDED
    assert judge(evidence([1.0, 2.1], exact=exact)).verdict is Verdict.FORMULA


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(value):
    assert judge(evidence([value, 2.0])).verdict is Verdict.UNDECIDED
    exact = Exact(np.array([value, 2.0]), np.zeros(2), np.zeros(2, dtype=bool), np.zeros(2))
    assert judge(evidence([value, 2.0], exact=exact)).verdict is Verdict.UNDECIDED


def test_a_large_rounding_error_is_rounding_and_advice_covers_it():
    found = judge(evidence(RIGHT + np.array([0, 3e-5]), intended=RIGHT, dtype="float32"))
    assert found.verdict is Verdict.ROUNDING
    assert found.formula_error == 0.0
    assert float(found.advice.split("atol=")[1].split(",")[0]) >= 3e-5


def test_what_rounding_may_do_to_a_backward_is_no_conviction():
    wrong = RIGHT * (1 + 1e-9)
    size = float(np.abs(wrong - RIGHT).max())
    assert judge(evidence(wrong, noise=2 * size)).verdict is Verdict.UNDECIDED
    assert judge(evidence(wrong, noise=size / 4)).verdict is Verdict.FORMULA
