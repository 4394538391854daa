"""Verdicts end to end, each with a slightly wrong twin: gradients in closed form, and what may not accuse or acquit."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from symcheck import Verdict, check

FLOATS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def tensor(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


def random(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def judged(function, inputs, name, formula, **options):
    return check(function, inputs, formulas={name: formula}, budget=0, **options)["formula", name]


def of_autograd(function, inputs, name, **options):
    return check(function, inputs, budget=0, **options)["autograd", name]


# -- limits: the exact gradient where its formula is undefined

# function, x, gradient by x with a cotangent
LIMITS = {
    "sqrt(x)^2": (lambda x: x.sqrt() ** 2, tensor(0, 1.5, 2), lambda x: torch.ones_like(x)),
    "x^2/x": (lambda x: x**2 / x, tensor(0, 1.5, -2), lambda x: torch.ones_like(x)),
    "exp(log x)": (lambda x: x.log().exp(), tensor(0, 1.5, 2), lambda x: torch.ones_like(x)),
    "sin(x)/x": (
        lambda x: x.sin() / x,
        tensor(0, 1.5, -2),
        lambda x: torch.where(x == 0, 0 * x, x.cos() / x - x.sin() / x**2),
    ),
    "logaddexp(log x, log q)": (
        lambda x: torch.logaddexp(x.log(), tensor(0.5, 0.25, 0.125).log()),
        tensor(0, 0.25, 0.75),
        lambda x: 1 / (x + tensor(0.5, 0.25, 0.125)),
    ),
    "a mixture with a weight of 0": (
        lambda x: torch.logsumexp(x.log() - tensor(0.5, 1, 2), 0),
        tensor(0, 0.25, 0.75),
        lambda x: tensor(-0.5, -1, -2).exp() / (x * tensor(-0.5, -1, -2).exp()).sum(),
    ),
}


@pytest.mark.parametrize(("function", "x", "gradient"), LIMITS.values(), ids=list(LIMITS))
def test_a_removable_singularity_has_its_limit(function, x, gradient):
    right = judged(function, {"x": x}, "x", lambda x, cotangent: cotangent * gradient(x))
    assert right.verdict is Verdict.OK
    assert "limit" in right.reason
    wrong = judged(function, {"x": x}, "x", lambda x, cotangent: cotangent * (gradient(x) + 1e-9 * (x == 0)))
    assert wrong.verdict is Verdict.FORMULA
    assert "limit" in wrong.reason
    assert wrong.worst.index == (0,)


@pytest.mark.parametrize(("function", "x"), [row[:2] for row in LIMITS.values()], ids=list(LIMITS))
def test_torch_returns_nan_at_a_removable_singularity(function, x):
    found = of_autograd(function, {"x": x}, "x")
    assert found.verdict is Verdict.INSTABILITY
    assert found.operation.startswith("aten.")


MASK = torch.tensor([[True, True, True], [True, False, False]])


def masked_softmax(z):
    return torch.softmax(z.masked_fill(MASK, -math.inf), 1).masked_fill(MASK, 0)


def by_masked_softmax(z, cotangent):
    weights = z.exp() * ~MASK
    p = weights / weights.sum(1, keepdim=True).clamp(min=2.0**-100)
    return p * (cotangent - (cotangent * p).sum(1, keepdim=True))


@FLOATS
@pytest.mark.parametrize("extra", [0, 2.0**-30])
def test_a_masked_softmax_passes_even_where_a_whole_row_is_masked(dtype, extra):
    z = random(2, 3, dtype=dtype)
    assert of_autograd(masked_softmax, {"z": z}, "z").verdict is Verdict.OK
    found = judged(masked_softmax, {"z": z}, "z", lambda z, cotangent: by_masked_softmax(z, cotangent) + extra * MASK)
    assert found.verdict is (Verdict.FORMULA if extra else Verdict.OK)


# -- infinities and NaN


def half_root(x):
    return 1 / (2 * x.sqrt())


def test_an_infinite_derivative_is_a_kink_and_nan_is_no_answer():
    x = tensor(0, 1.5, 2)
    infinite = judged(lambda x: x.sqrt().sum(), {"x": x}, "x", half_root)
    assert infinite.verdict is Verdict.NONSMOOTH
    nan = judged(lambda x: x.sqrt().sum(), {"x": x}, "x", lambda x: torch.where(x == 0, math.nan, half_root(x)))
    assert nan.verdict is Verdict.INSTABILITY
    finite = judged(lambda x: x.sqrt().sum(), {"x": x}, "x", lambda x: torch.where(x == 0, 7, half_root(x)))
    assert finite.verdict is Verdict.UNDECIDED
    wrong = judged(lambda x: x.sqrt().sum(), {"x": x}, "x", lambda x: half_root(x) * (1 + 2.0**-40))
    assert wrong.verdict is Verdict.FORMULA


def masked_after(x):
    root = x.sqrt()
    return torch.where(x > 0, root, 0).sum()


def masked_before(x):
    return torch.where(x > 0, torch.where(x > 0, x, 1).sqrt(), 0).sum()


@FLOATS
def test_a_nan_that_is_masked_after_is_unstable_and_its_origin_is_named(dtype):
    x = tensor(-1, 2, 3, dtype=dtype)
    found = of_autograd(masked_after, {"x": x}, "x")
    assert found.verdict is Verdict.INSTABILITY
    assert "sqrt" in found.operation
    assert "root = x.sqrt()" in found.operation
    assert of_autograd(masked_before, {"x": x}, "x").verdict is Verdict.OK


def test_the_variance_of_one_sample_is_undefined_and_not_the_formula():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert of_autograd(lambda x: x.var(), {"x": tensor(2)}, "x").verdict is Verdict.OTHER
    assert of_autograd(lambda x: x.var(), {"x": tensor(2, 3)}, "x").verdict is Verdict.OK


def test_what_overflows_as_the_exact_gradient_does_is_rounded_and_what_need_not_is_unstable():
    """3 (10^30)^2 is beyond float32, and 1000 exp(12) beyond float16: infinity is their rounding."""
    cube = judged(lambda x: (x**3).sum(), {"x": tensor(1e30, 1, dtype=torch.float32)}, "x", lambda x: 3 * x**2)
    assert cube.verdict is Verdict.OK
    twice = judged(lambda x: (x**3).sum(), {"x": tensor(1e30, 1, dtype=torch.float32)}, "x", lambda x: 6 * x**2)
    assert twice.verdict is Verdict.FORMULA
    half = of_autograd(lambda x: (1000 * x.exp()).sum(), {"x": tensor(12, 1, dtype=torch.float16)}, "x")
    assert half.verdict is Verdict.OK
    big = tensor(2.0**100, 1, dtype=torch.float32)
    needless = judged(lambda x: (x * 2.0**100).sum(), {"x": big}, "x", lambda x: x * 2.0**100 / x)
    assert needless.verdict is Verdict.INSTABILITY


# -- constants


def tanh_gelu_slope(scale, factor=1.0):
    def gradient(x):
        t = torch.tanh(scale * (x + 0.044715 * x**3))
        return factor * ((1 + t) / 2 + x * (1 - t**2) * scale * (1 + 3 * 0.044715 * x**2) / 2)

    return gradient


ROOT = math.sqrt(2 / math.pi)
CONSTANTS = [
    (ROOT, 1.0, Verdict.OK),
    (2 / math.sqrt(math.pi) * math.sqrt(0.5), 1.0, Verdict.OK),
    (0.79788, 1.0, Verdict.FORMULA),
    (ROOT, 1 + 1e-6, Verdict.FORMULA),
]


@FLOATS
@pytest.mark.parametrize(("scale", "factor", "verdict"), CONSTANTS)
def test_a_constant_is_acquitted_to_its_own_precision_only(scale, factor, verdict, dtype):
    x = tensor(0.3, -1.2, 2, dtype=dtype)
    found = judged(lambda x: F.gelu(x, approximate="tanh").sum(), {"x": x}, "x", tanh_gelu_slope(scale, factor))
    assert found.verdict is verdict


def deep(x):
    for _ in range(20):
        x = torch.sin(0.7 * x) + 0.1 * x
    return x.sum()


def deep_slope(factor):
    def gradient(x):
        slope = torch.ones_like(x)
        for layer in range(20):
            slope = slope * (0.7 * torch.cos(0.7 * x) + 0.1) * (factor if layer == 7 else 1)
            x = torch.sin(0.7 * x) + 0.1 * x
        return slope

    return gradient


@pytest.mark.parametrize(("factor", "verdict"), [(1, Verdict.OK), (1 + 1e-6, Verdict.FORMULA)])
def test_a_constant_shared_by_many_layers_hides_no_fault(factor, verdict):
    assert judged(deep, {"x": tensor(0.3, -1.2)}, "x", deep_slope(factor)).verdict is verdict


@FLOATS
def test_where_constants_are_exact_nothing_is_too_small(dtype):
    x = tensor(0.3, -1.2, 2, dtype=dtype)
    assert judged(lambda x: (x**3).sum(), {"x": x}, "x", lambda x: 2 * x * x + x**2).verdict is Verdict.OK
    for wrong in (lambda x: 3 * x**2 + 2.0**-83, lambda x: 3 * x**2 * 1 + x**2 * 2.0**-83):
        assert judged(lambda x: (x**3).sum(), {"x": x}, "x", wrong).verdict is Verdict.FORMULA


# -- what is right where it is used


@FLOATS
def test_probabilities_that_sum_to_1_up_to_rounding_do_not_accuse(dtype):
    inputs = {"z": random(4, 5, dtype=dtype), "p": random(4, 5, dtype=dtype, seed=1).softmax(1)}
    right = judged(F.cross_entropy, inputs, "z", lambda z, p: (z.softmax(1) - p) / 4, wrt=["z"])
    assert right.verdict is Verdict.OK
    for wrong in (
        lambda z, p: (z.softmax(1) - p) / 4 * (1 + 2.0**-20),
        lambda z, p: (z.softmax(1) - (1 + 2.0**-20) * p) / 4,
    ):
        assert judged(F.cross_entropy, inputs, "z", wrong, wrt=["z"]).verdict is Verdict.FORMULA


def one_hot(dtype):
    return F.one_hot(torch.tensor([0, 3, 1, 1]), 5).to(dtype)


def symmetric(dtype):
    a = random(4, 4, dtype=dtype)
    return a + a.T


# function of x and a, a in each dtype, the formula by x, and an a at which it is wrong
USED = {
    "p - y at one-hot y": (
        lambda x, a: F.cross_entropy(x, a),
        (4, 5),
        one_hot,
        lambda x, a: (x.softmax(1) - a) / 4,
        lambda dtype: 0.5 * one_hot(dtype),
    ),
    "2 A x at symmetric A": (
        lambda x, a: x @ a @ x,
        (4,),
        symmetric,
        lambda x, a: 2 * a @ x,
        lambda dtype: symmetric(dtype) + 2.0**-18 * torch.ones(4, 4, dtype=dtype).triu(1),
    ),
    "a mask for its square": (
        lambda x, a: ((a * x) ** 2).sum(),
        (4,),
        lambda dtype: tensor(1, 0, 1, 0, dtype=dtype),
        lambda x, a: 2 * a * x,
        lambda dtype: tensor(0.5, 0, 1, 0, dtype=dtype),
    ),
}


@FLOATS
@pytest.mark.parametrize(("function", "shape", "data", "formula", "others"), USED.values(), ids=list(USED))
def test_what_is_right_of_such_data_is_right_there_only(function, shape, data, formula, others, dtype):
    x = random(*shape, dtype=dtype)
    assert judged(function, {"x": x, "a": data(dtype)}, "x", formula, wrt=["x"]).verdict is Verdict.OK
    assert judged(function, {"x": x, "a": others(dtype)}, "x", formula, wrt=["x"]).verdict is Verdict.FORMULA


# function, inputs, which is differentiated by; a formula that is right, and one that only looks it at these inputs
HIDDEN = {
    "a weight of 1": (
        lambda w, x: ((w * x) ** 2).sum(),
        lambda dtype: {"w": torch.ones(4, dtype=dtype), "x": random(4, dtype=dtype)},
        lambda w, x, cotangent: cotangent * 2 * w * x**2,
        lambda w, x, cotangent: cotangent * 2 * x**2,
    ),
    "zeros": (
        lambda w: w.sin().sum(),
        lambda dtype: {"w": torch.zeros(4, dtype=dtype)},
        lambda w, cotangent: cotangent * w.cos(),
        lambda w, cotangent: cotangent * torch.ones_like(w),
    ),
    "a cotangent of ones": (
        lambda w: w**2,
        lambda dtype: {"w": random(4, dtype=dtype)},
        lambda w, cotangent: cotangent * 2 * w,
        lambda w, cotangent: cotangent**2 * 2 * w,
    ),
}


@FLOATS
@pytest.mark.parametrize(("function", "inputs", "right", "wrong"), HIDDEN.values(), ids=list(HIDDEN))
def test_what_hides_an_error_at_the_input_does_not_hide_it_nearby(function, inputs, right, wrong, dtype):
    given = inputs(dtype)
    ones = torch.ones_like(function(**given))
    assert judged(function, given, "w", right, cotangent=ones).verdict is Verdict.OK
    found = judged(function, given, "w", wrong, cotangent=ones)
    assert found.verdict is Verdict.FORMULA
    assert "at this input only" in found.reason


# -- kinks


@FLOATS
@pytest.mark.parametrize(
    ("slope", "verdict"),
    [(0, Verdict.NONSMOOTH), (1, Verdict.NONSMOOTH), (0.5, Verdict.NONSMOOTH), (1 + 2.0**-7, Verdict.FORMULA)],
)
def test_a_kink_admits_the_slopes_between_its_sides(slope, verdict, dtype):
    x = tensor(0, 1.5, -2, dtype=dtype)
    formula = lambda x: torch.where(x == 0, slope + 0 * x, (x > 0).to(dtype))  # noqa: E731
    assert judged(lambda x: x.relu().sum(), {"x": x}, "x", formula).verdict is verdict


@FLOATS
def test_a_fault_beside_a_kink_is_convicted(dtype):
    x = tensor(0, 1.5, -2, dtype=dtype)
    found = judged(lambda x: x.relu().sum(), {"x": x}, "x", lambda x: (x > 0).to(dtype) * (1 + 1e-9))
    assert found.verdict is Verdict.FORMULA
    assert found.worst.index == (1,)


def layer(X, W, b):
    a = torch.relu(X @ W.T + b)
    return (a**2 + a).sum()


def by_bias(factor, dtype):
    def gradient(X, W, b):
        h = X @ W.T + b
        return factor * ((2 * torch.relu(h) + 1) * (h > 0).to(dtype)).sum(0)

    return gradient


@FLOATS
def test_a_fault_in_a_bias_whose_every_entry_touches_a_kink_is_convicted(dtype):
    """Two rows of padding put every unit on its kink, and a slope of 1e-9 there would explain the fault."""
    X = torch.cat([random(2, 3, dtype=dtype), torch.zeros(2, 3, dtype=dtype)])
    inputs = {"X": X, "W": random(5, 3, dtype=dtype, seed=1), "b": torch.zeros(5, dtype=dtype)}
    assert of_autograd(layer, inputs, "b").verdict is Verdict.NONSMOOTH
    right = judged(layer, inputs, "b", by_bias(1, dtype))
    assert right.verdict is Verdict.NONSMOOTH
    assert "smooth here" not in right.reason
    assert judged(layer, inputs, "b", by_bias(1 + 1e-9, dtype)).verdict is Verdict.FORMULA


def distances(x):
    return (x[:, None] - x[None]).abs().sum()


def by_first(x):
    """Each of a pair that ties gives way to the later one."""
    sign = torch.where(x[:, None] >= x[None], 1.0, -1.0).double().triu(1)
    return 2 * (sign.sum(1) - sign.sum(0))


@pytest.mark.parametrize("seed", range(3))
def test_slopes_that_add_up_to_what_is_written_are_kinks(seed):
    """Of three equal values one is always in the middle, where its two slopes cancel as they do at the tie."""
    x = tensor(1, 1, 1, 2, 2, 2)
    assert judged(distances, {"x": x}, "x", by_first, seed=seed).verdict is Verdict.NONSMOOTH
    beyond = judged(distances, {"x": x}, "x", lambda x: by_first(x) * 1.5, seed=seed)
    assert beyond.verdict is Verdict.FORMULA


def test_a_tie_that_stays_where_the_input_may_move_convicts_nothing():
    """A mask of zeros and ones does not move, nor does a symmetric matrix lose its ties."""
    mask, weights = tensor(1, 0, 1), tensor(1, 2, 3)
    hinge = lambda x: (x.relu() * weights).sum()  # noqa: E731
    assert judged(hinge, {"x": mask}, "x", lambda x: weights * (x >= 0)).verdict is Verdict.NONSMOOTH
    assert judged(hinge, {"x": mask}, "x", lambda x: weights * 1.01 * (x >= 0)).verdict is Verdict.FORMULA
    first = lambda x: torch.zeros_like(x).reshape(-1).index_fill(0, x.argmax(), 1).reshape(x.shape)  # noqa: E731
    assert judged(lambda x: x.amax(), {"x": tensor((1, 3), (3, 2))}, "x", first).verdict is Verdict.NONSMOOTH


def test_a_function_that_is_smooth_at_its_kinks_says_so():
    x = tensor(0, 1.5, -2)
    identity = lambda x: (x.relu() - (-x).relu()).sum()  # noqa: E731
    found = of_autograd(identity, {"x": x}, "x")
    assert found.verdict is Verdict.NONSMOOTH
    assert "its true derivative is 1" in found.reason
    right = judged(identity, {"x": x}, "x", lambda x: torch.ones_like(x) + 0 * x)
    assert right.verdict is Verdict.OK
    assert right.formula_error == 0


@pytest.mark.parametrize("seed", range(2))
def test_decisions_that_float32_turns_accuse_nobody(seed):
    """Pairs one or two ulps apart, or none, whose images float32 puts in another order."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(6, generator=generator) + 0.5
    x = torch.cat([x, x * (1 + 2.0**-23 * torch.randint(-2, 3, (6,), generator=generator))])
    weights = torch.arange(1.0, 13)
    for function in (
        lambda x: ((x * x / 3 + x).sort().values * weights).sum(),
        lambda x: (x * x / 3 + x).max(),
        lambda x: torch.maximum(x[:6] ** 2 / 3, x[6:] ** 2 / 3).sum(),
    ):
        assert of_autograd(function, {"x": x}, "x").verdict in (Verdict.OK, Verdict.ROUNDING, Verdict.NONSMOOTH)


# -- gradients that are zero, and odd shapes


@FLOATS
def test_a_bias_before_batch_norm_has_no_gradient_and_passes(dtype):
    inputs = {"x": random(4, 2, dtype=dtype), "b": random(2, dtype=dtype, seed=1)}
    function = lambda x, b: F.batch_norm(x + b, None, None, None, None, True).pow(3).mean()  # noqa: E731
    for formula, verdict in ((lambda x, b: 0 * b, Verdict.OK), (lambda x, b: 2.0**-30 * b, Verdict.FORMULA)):
        report = check(function, inputs, ["b"], {"b": formula}, budget=0)
        assert report["autograd", "b"].verdict in (Verdict.OK, Verdict.ROUNDING)
        assert report["formula", "b"].verdict is verdict


@FLOATS
def test_integers_scalars_and_empty_tensors(dtype):
    x, n = tensor(1, 2, 3, dtype=dtype), torch.tensor([0, 0, 2])
    counted = tensor(2, 0, 1, dtype=dtype)
    for factor, verdict in ((1, Verdict.OK), (1 + 2.0**-20, Verdict.FORMULA)):
        by_index = lambda x, n, factor=factor: factor * 2 * x * counted  # noqa: E731
        assert judged(lambda x, n: (x[n] ** 2).sum(), {"x": x, "n": n}, "x", by_index).verdict is verdict
        cube = lambda x, factor=factor: factor * 3 * x**2  # noqa: E731
        assert judged(lambda x: x**3, {"x": torch.tensor(2.0, dtype=dtype)}, "x", cube).verdict is verdict
    empty = torch.zeros(0, 3, dtype=dtype)
    assert judged(lambda x: (x**2).sum(), {"x": empty}, "x", lambda x: 2 * x).verdict is Verdict.OK


# -- what has no program


def by_numpy(x):
    return 3 * x * torch.from_numpy(x.detach().numpy().copy())


BLACK_BOXES = {
    "NumPy": (lambda x: (x**3).sum(), by_numpy, "froze"),
    "a number read out": (lambda x: x.sum() ** 2, lambda x: 2 * x.sum().item() * torch.ones_like(x), "reads the value"),
    "a branch": (
        lambda x: x.relu().sum(),
        lambda x: torch.stack([1 + 0 * v if v > 0 else 0 * v for v in x]),
        "looks at a value",
    ),
}


@FLOATS
@pytest.mark.parametrize(("function", "formula", "reason"), BLACK_BOXES.values(), ids=list(BLACK_BOXES))
def test_what_has_no_program_is_judged_by_the_ladder_and_says_so(function, formula, reason, dtype):
    x = tensor(0.5, -1, 2, dtype=dtype)
    for factor, verdict in ((1, Verdict.OK), (1.001, Verdict.FORMULA)):
        found = judged(function, {"x": x}, "x", lambda x, factor=factor: factor * formula(x))
        assert found.verdict is verdict
        assert "judged by the precision ladder" in found.reason
        assert reason in found.reason


class BackwardByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, cotangent):
        (x,) = ctx.saved_tensors
        return cotangent * torch.from_numpy(np.cos(x.detach().numpy()))


def test_a_backward_that_froze_an_array_is_not_certified_by_its_program():
    found = of_autograd(lambda x: BackwardByNumpy.apply(x).sum(), {"x": tensor(0.5, -1, 2)}, "x")
    assert found.verdict is Verdict.OK
    assert "judged by the precision ladder" in found.reason


def test_constants_rounded_to_float32_are_not_blamed_on_a_kernel():
    """0.1 in float32 is 1.5e-9 from 1/10, which is beyond the rounding of 2 x 0.1 in float64."""
    slope = torch.tensor(0.1)
    found = judged(lambda x: (0.1 * x * x).sum(), {"x": tensor(1, 2, 3)}, "x", lambda x: 2 * x * slope.to(x.dtype))
    assert found.verdict is Verdict.OK
    assert "as they run they are rounded, which moves it by" in found.reason
    assert "less accurate" not in found.reason


@pytest.mark.parametrize(("factor", "verdict"), [(1, Verdict.OK), (1 + 2.0**-20, Verdict.FORMULA)])
def test_attention_whose_first_row_is_masked_altogether(factor, verdict):
    """softmax of -inf alone is 0 in torch's attention, and so is all that flows back from it."""
    mask = torch.tensor([[False, False], [True, True]])
    values = tensor(0.5, 1)[:, None]

    def attend(q):
        return torch.nn.functional.scaled_dot_product_attention(*(3 * [q[None, None]]), attn_mask=mask)[0, 0, 1, 0]

    def by_hand(q):
        (a, b), p = q[:, 0], torch.softmax(q[:, 0] * q[1, 0], 0)
        slope = p[0] * p[1] * (a - b)
        return factor * torch.stack([p[0] + slope * b, p[1] + slope * (a - 2 * b)])[:, None]

    assert of_autograd(attend, {"q": values}, "q").verdict is Verdict.OK
    assert judged(attend, {"q": values}, "q", by_hand).verdict is verdict
