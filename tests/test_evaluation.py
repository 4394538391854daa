"""Programs evaluated: large grids by tiles, factors never expanded, inputs as declared."""

import numpy as np
import pytest
import torch

from symcheck.arithmetic.bound import Bound
from symcheck.arithmetic.double import Double
from symcheck.derivation import derive
from symcheck.errors import Misuse
from symcheck.evaluation import TILE, evaluate
from symcheck.lowering import to_numpy
from symcheck.tracing import trace


def drawn(*shape, seed=3):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def traced(function, **tensors):
    return trace(lambda given: (function(**given),), tensors).program


@pytest.mark.parametrize("numbers", [Double(), Bound()], ids=["double", "bound"])
@pytest.mark.parametrize("shape", [(3, TILE + 5), (TILE + 5, 3), (5 * TILE + 1,)])
def test_large_grids_are_tiled(shape, numbers):
    x = drawn(*shape)
    program = traced(lambda x: torch.exp(torch.sin(x)).sum(0), x=x)
    (value,) = evaluate(program, {"x": to_numpy(x)}, numbers)
    expected = torch.exp(torch.sin(x)).sum(0).numpy()
    found = getattr(value, "value", value)
    assert np.allclose(found, expected, rtol=1e-12, atol=0)


def test_a_body_that_is_no_product_has_its_whole_grid():
    x, y = drawn(300, 7), drawn(400, 7, seed=4)
    program = traced(lambda x, y: torch.exp(-((x[:, None] - y[None]) ** 2)).sum((1, 2)), x=x, y=y)
    (value,) = evaluate(program, {"x": to_numpy(x), "y": to_numpy(y)}, Double())
    assert np.allclose(value, torch.exp(-((x[:, None] - y[None]) ** 2)).sum((1, 2)).numpy(), rtol=1e-13)


def test_factors_are_never_expanded():
    """A variance at offset 1e8 keeps its digits: expanded into monomials it came out 6.0 instead of 0.956."""
    x = 1e8 + drawn(50)
    program = traced(lambda x: ((x - x.mean()) ** 2).mean(), x=x)
    (value,) = evaluate(program, {"x": to_numpy(x)}, Double())
    centred = x.numpy() - 1e8  # exact
    assert value == pytest.approx(np.var(centred), rel=1e-6)
    gradient, _ = evaluate(derive(program, ["x"], keep=True), {"x": to_numpy(x), "d_cotangent0": np.ones(())}, Double())
    assert np.allclose(gradient, 2 * (centred - centred.mean()) / 50, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "no value for the input x; given: nothing"), ({"x": np.ones(4)}, r"the input x has the shape \(4,\)")],
)
def test_misuse(given, message):
    with pytest.raises(Misuse, match=message):
        evaluate(traced(lambda x: x.exp(), x=drawn(3)), given, Double())
