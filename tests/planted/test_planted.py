"""Faults that people make when they derive gradients by hand, planted one by one in right formulas.

Each function has its right formulas, which must pass, and wrong ones, which must be convicted: by exact verdict, in
float32 and in float64, at generic inputs of ordinary size. Most are the right formula with one thing changed, so the
two stand side by side.
"""

import inspect

import pytest
import torch

from symcheck import Verdict, check
from tests.planted.arrays import CUMSUM, DIFFERENCE, EMBEDDING, PROD
from tests.planted.layers import ATTENTION, CONVOLUTION, GATED, GELU
from tests.planted.linear import MSE, PRODUCT, QUADRATIC
from tests.planted.losses import BINARY, CROSS_ENTROPY, HUBER, KL
from tests.planted.normalisation import BATCH_NORM, LAYER_NORM, NORM, NORMALISE, VARIANCE

PASSES = {Verdict.OK, Verdict.ROUNDING}
FUNCTIONS = {
    "linear layer, squared error": MSE,
    "matrix product": PRODUCT,
    "quadratic form": QUADRATIC,
    "cross-entropy": CROSS_ENTROPY,
    "Kullback-Leibler divergence": KL,
    "layer norm": LAYER_NORM,
    "batch norm": BATCH_NORM,
    "attention": ATTENTION,
    "convolution": CONVOLUTION,
    "gated cell": GATED,
    "cumulative sum": CUMSUM,
    "product": PROD,
    "variance": VARIANCE,
    "norm": NORM,
    "normalisation": NORMALISE,
    "GELU": GELU,
    "binary cross-entropy": BINARY,
    "Huber loss": HUBER,
    "embedding": EMBEDDING,
    "differences": DIFFERENCE,
}
FAULTS = [(name, fault) for name, planted in FUNCTIONS.items() for fault in planted.wrong]
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def call(formula, inputs, cotangent):
    """What a formula returns, its parameters given by name, without symcheck."""
    given = inputs | {"cotangent": cotangent}
    return formula(**{name: given[name] for name in inspect.signature(formula).parameters})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_formulas_are_what_they_are_called(name):
    """By plain float64: right ones are autograd's gradient to 1e-12, and wrong ones differ by 1e-7 or more."""
    planted = FUNCTIONS[name]
    inputs = planted.inputs(torch.float64)
    leaves = {key: x.clone().requires_grad_(x.is_floating_point()) for key, x in inputs.items()}
    output = planted.function(**leaves)
    cotangent = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)
    for by, formula in [*planted.right.items(), *planted.wrong.values()]:
        needed = "cotangent" in inspect.signature(formula).parameters
        weights = cotangent if needed else torch.ones_like(output)
        exact = torch.autograd.grad(output, leaves[by], weights, retain_graph=True)[0]
        given = call(formula, inputs, cotangent)
        is_right = given.shape == exact.shape and bool((given - exact).abs().max() <= 1e-12 * exact.abs().max())
        is_wrong = given.shape != exact.shape or bool((given - exact).abs().max() >= 1e-7 * exact.abs().max())
        assert is_right if formula in planted.right.values() else is_wrong


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_right_formulas_pass(name, dtype):
    planted = FUNCTIONS[name]
    report = check(planted.function, planted.inputs(dtype), formulas=planted.right)
    for finding in report.findings:
        if finding.candidate != "finite differences":
            assert finding.verdict in PASSES, f"{finding.candidate} {finding.input}: {finding.reason}"


@DTYPES
@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=[f"{name}: {fault}" for name, fault in FAULTS])
def test_a_planted_fault_is_convicted(name, fault, dtype):
    planted = FUNCTIONS[name]
    by, formula = planted.wrong[fault]
    report = check(planted.function, planted.inputs(dtype), by, {by: formula}, budget=0)
    assert report["formula", by].verdict is Verdict.FORMULA, report["formula", by].reason
    assert report["autograd", by].verdict in PASSES
