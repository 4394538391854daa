"""Rounding bounds: never exceeded by sound kernels, exceeded by less accurate ones, and finite where rounding is."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from benchmarks.looseness import errors_and_bounds
from benchmarks.programs import LAYERS, run_backward
from symcheck.arithmetic.bounded import growth_of
from symcheck.arithmetic.formats import PRECISIONS, working_in
from symcheck.arithmetic.kernels import kernel_format
from symcheck.errors import UnknownOperator
from symcheck.lowering import to_numpy
from symcheck.rounding import rounding_bounds
from symcheck.tracing import trace

DTYPES = ["float64", "float32", "bfloat16", "float16"]
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def drawn(*shape, dtype="float64", seed=0, scale=1.0):
    return (scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))).to(getattr(torch, dtype))


def forward(function, **tensors):
    """What a function returned, and the bound on its program."""
    traced = trace(lambda given: (function(**given),), tensors)
    bound = rounding_bounds(traced.program, {name: to_numpy(tensor) for name, tensor in tensors.items()})[0]
    return to_numpy(function(**tensors)), bound


def exceeds(computed, bound):
    return np.abs(computed - bound.values) > bound.bounds


# -- random programs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_random_programs_stay_within_their_bounds(dtype):
    compared = 0
    for seed in range(1000, 1006):
        try:
            pairs = errors_and_bounds(seed, dtype, depth=3)
        except UnknownOperator:
            continue
        for errors, bounds in pairs:
            known = np.isfinite(bounds) & np.isfinite(errors)
            assert not (errors[known] > bounds[known]).any(), f"seed {seed}"
            compared += int(known.sum())
    assert compared > 300


# Flash attention keeps the logarithm of its sums; in bfloat16 the bound on a sum reaches the sum itself.
UNBOUNDED = {"sdpa"}


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_every_layer_stays_within_its_bound_and_the_bound_is_finite(dtype):
    x, w = drawn(12, 12, dtype=dtype), drawn(12, 12, dtype=dtype, seed=1)
    for name, layer in LAYERS.items():
        try:
            run = run_backward(name, layer, {"x": x, "w": w}, torch.Generator().manual_seed(0))
        except UnknownOperator:
            continue
        for computed, bound in zip(run.computed, rounding_bounds(run.program, run.given), strict=True):
            assert not exceeds(computed, bound).any(), name
            assert name in UNBOUNDED or np.isfinite(bound.bounds).mean() > 0.9, name


# -- what must be found, and what must not ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_layer_norm_in_half_precision(dtype):
    """Finite and within: by x to a few roundings; by weight and bias to one for each row, as its kernel adds them."""
    x, w, b = drawn(16, 32, dtype=dtype), drawn(32, dtype=dtype, seed=1), drawn(32, dtype=dtype, seed=2)
    run = run_backward(
        "layer norm",
        lambda x, w, b: F.layer_norm(x, (32,), w, b),
        {"x": x, "w": w, "b": b},
        torch.Generator().manual_seed(0),
    )
    for computed, bound, roundings in zip(
        run.computed, rounding_bounds(run.program, run.given), (16, 40, 40), strict=True
    ):
        assert not exceeds(computed, bound).any()
        assert bound.bounds.max() < roundings * UNIT[dtype] * np.abs(computed).max()


def test_a_layer_norm_with_rounded_statistics_is_beyond_its_bound():
    """Half-precision statistics are not what the kernel's program does."""
    x = drawn(16, 32, dtype="bfloat16") + 8
    _, bound = forward(lambda x: F.layer_norm(x, (32,)), x=x)
    centred = x - x.mean(-1, keepdim=True)
    assert exceeds(to_numpy(centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)), bound).any()


class ThroughFloat32(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.float().exp().double()


def test_a_cast_inside_a_backward_is_seen():
    x = drawn(40)
    run = run_backward("cast", ThroughFloat32.apply, {"x": x}, torch.Generator().manual_seed(0))
    (bound,) = rounding_bounds(run.program, run.given)
    errors = np.abs(run.computed[0] - bound.values)
    assert not exceeds(run.computed[0], bound).any()
    assert errors.max() > 2.0**-27 * np.abs(bound.values).max()  # a rounding of float32, not of float64
    assert (bound.bounds < 16 * UNIT["float32"] * np.abs(bound.values)).all()


def test_float32_in_a_float64_program_is_beyond_the_bound():
    """The same function, with a cast that the program does not have."""
    x = drawn(40)
    computed, bound = forward(lambda x: torch.exp(x), x=x)
    assert not exceeds(computed, bound).any()
    assert exceeds(to_numpy(x.float().exp().double()), bound).any()


def test_a_constant_of_float32_in_a_float64_kernel_is_beyond_the_bound():
    x = drawn(40)
    computed, bound = forward(lambda x: x / 6, x=x)
    assert not exceeds(computed, bound).any()
    assert exceeds(to_numpy(x * float(np.float32(1 / 6))), bound).any()


def test_torch_kernels_of_lesser_accuracy_are_found():
    """A Bessel function is off by 5e-10 at 3.7; the slope of a hard sigmoid is the float32 number nearest 1/6."""
    x = torch.full((16,), 3.7, dtype=torch.float64)
    computed, bound = forward(lambda x: torch.special.bessel_j0(x), x=x)
    assert exceeds(computed, bound).all()
    run = run_backward("hard sigmoid", lambda x: F.hardsigmoid(x), {"x": x / 4}, torch.Generator().manual_seed(0))
    assert exceeds(run.computed[0], rounding_bounds(run.program, run.given)[0]).all()


def test_a_slip_of_two_roundings_is_found():
    """The bound of an elementwise product in float32 is one rounding."""
    x, y = drawn(50, dtype="float32"), drawn(50, dtype="float32", seed=1)
    computed, bound = forward(lambda x, y: x * y, x=x, y=y)
    assert not exceeds(computed, bound).any()
    assert exceeds(computed * (1 + 4 * UNIT["float32"]), bound).all()


# -- what the bound charges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_moving_elements_rounds_nothing(dtype):
    _, bound = forward(lambda x: torch.where(x > 0, -x.T, x.flip(0)).abs()[1:], x=drawn(5, 5, dtype=dtype))
    assert (bound.bounds == 0).all()


def test_integers_beyond_a_dtypes_digits_are_rounded():
    """257 has nine bits; bfloat16 holds eight."""
    x = drawn(2, dtype="bfloat16")
    n = torch.tensor([257, 2**24 + 1])
    for dtype in (torch.bfloat16, torch.float32):
        computed, bound = forward(lambda x, n, dtype=dtype: n.to(dtype) + 0 * x.sum(), x=x, n=n)
        assert not exceeds(computed, bound).any()
    assert computed[1] != 2**24 + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_literal_is_off_by_one_rounding(dtype):
    """x * 0.1: the literal, the product, and in half precision what is kept; the literal 0.5 is exact."""
    x = drawn(20, dtype=dtype)
    size = np.abs(to_numpy(x))
    for literal, roundings in ((0.1, 3.1), (0.5, 1.1)):
        computed, bound = forward(lambda x, literal=literal: x * literal, x=x)
        assert not exceeds(computed, bound).any()
        assert (bound.bounds <= roundings * UNIT[dtype] * size * literal + PRECISIONS[dtype].tiny * 2).all()


def test_sums_are_bounded_in_any_order_and_beyond_half():
    with working_in(kernel_format("bfloat16", "aten.rsqrt.default")):  # rounds to bfloat16 after every operation
        u = UNIT["bfloat16"]
        assert growth_of(64) == pytest.approx(64 * u / (1 - 64 * u))
        assert growth_of(1000) == pytest.approx((1 + u) ** 1000 - 1)


def test_rows_added_in_half_precision():
    """1 + 2^-12 + ... in float16 stays 1: each addition is lost, and the bound says so."""
    x = torch.zeros(1, dtype=torch.float16)
    y = torch.tensor([1.0, *[2.0**-12] * 400], dtype=torch.float16)
    computed, bound = forward(lambda x, y: x.index_add(0, torch.zeros(401, dtype=torch.long), y), x=x, y=y)
    assert abs(computed[0] - bound.values[0]) > 0.09
    assert not exceeds(computed, bound).any()


def test_an_open_decision_is_covered_on_both_sides():
    """x * 3 - y is 0 to within its rounding: either branch may be the computed one."""
    x = torch.tensor([0.1], dtype=torch.float32)
    _, bound = forward(lambda x, y: torch.where(x * 3 - y > 0, 1.0, -1.0) * x, x=x, y=x * 3)
    assert bound.bounds[0] >= 0.2
    _, strict = forward(lambda x, y: torch.where(x * 3 - y > 0, 1.0, -1.0) * x, x=x, y=x * 3 - 1)
    assert strict.bounds[0] < 1e-7


def test_a_tie_of_exact_values_is_decided():
    _, bound = forward(lambda x: torch.relu(x) * 3, x=torch.zeros(3, dtype=torch.float32))
    assert (bound.bounds < 1e-40).all()


@pytest.mark.parametrize(
    ("function", "value", "dtype"),
    [
        (lambda x: x * x, 300.0, "float16"),  # overflows
        (lambda x: torch.log(x - x), 1.0, "float32"),
        (lambda x: 1 / (x * 3 - 0.3), 0.1, "float32"),  # 0 to within its rounding
        (lambda x: torch.tan(x * 1000), 1.5, "bfloat16"),  # a pole within reach
    ],
)
def test_no_finite_bound_is_no_bound(function, value, dtype):
    _, bound = forward(function, x=torch.tensor([value], dtype=getattr(torch, dtype)))
    assert np.isinf(bound.bounds).all()
