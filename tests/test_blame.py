"""Blame: the operation that rounds most, and the sum that cancels, are named by operator and line."""

import numpy as np
import pytest
import torch

from benchmarks.programs import run_backward
from symcheck.blame import blame
from symcheck.rounding import rounding_bounds


def one_pass(x):
    squares = (x * x).mean()
    return torch.sqrt(squares - x.mean() ** 2)


def two_passes(x):
    centred = x - x.mean()
    return torch.sqrt((centred * centred).mean())


def tail(x):
    y = torch.tanh(x)
    return y * 2


def coarse(x):
    low = x.bfloat16().float()
    return low * torch.exp(x)


def blamed(function, dtype=torch.float32, shift=0.0, count=16):
    x = (torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + shift).to(dtype)
    run = run_backward("case", lambda x: function(x), {"x": x}, torch.Generator().manual_seed(0))
    errors = np.abs(run.computed[0] - rounding_bounds(run.program, run.given)[0].values)
    index = tuple(int(n) for n in np.unravel_index(np.argmax(errors), errors.shape))
    return blame(run.program, run.given, 0, index, error=float(errors[index]))


def test_a_one_pass_variance():
    """Its mean of squares is 1e6, the difference 0.8: 20 bits go in the subtraction, on its own line."""
    found = blamed(one_pass, shift=1000.0)
    assert found.operator == "aten.mean.default"
    assert found.cancellation.operator == "aten.sub.Tensor"
    assert "squares - x.mean() ** 2" in found.cancellation.source
    assert 1e5 < found.cancellation.factor < 1e8
    assert 15 < found.bits_lost < 24
    assert "digits are lost in aten.sub.Tensor at test_blame.py" in str(found)
    assert found.operation.startswith("aten.sub.Tensor at test_blame.py")


def test_two_passes_lose_little():
    """The right twin: x - mean cancels as well, and harmlessly, for x is exact."""
    found = blamed(two_passes, shift=1000.0)
    assert found.bits_lost < 6
    assert not found.operation.startswith("aten.sub")


def test_a_tail_is_blamed_on_the_forward_line_of_its_derivative():
    """1 - tanh(6)^2 is 2.5e-5 of its terms."""
    found = blamed(tail, shift=6.0)
    assert found.operator in ("aten.tanh.default", "aten.tanh_backward.default")
    assert found.cancellation.operator == "aten.tanh_backward.default"
    assert "y = torch.tanh(x)" in found.cancellation.source


def test_a_cast_is_blamed():
    """bfloat16 rounds 65,536 times as coarsely as the rest."""
    found = blamed(coarse)
    assert found.operator == "aten._to_copy.default"
    assert found.share > 0.99
    assert 10 < found.bits_lost < 18
    assert found.amplification > 1000


def test_the_shares_are_of_all_rounding():
    found = blamed(lambda x: torch.exp(x) * 3)
    assert 0.2 < found.share <= 1.0
    assert found.cancellation is None
    assert found.bits_lost < 3


def test_nothing_rounds():
    assert blamed(lambda x: x.flip(0) * 1) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_first_order_estimate_is_of_the_size_of_the_error(dtype):
    """Without the error, bits_lost estimates it, and stays below the bound that covers the worst case."""
    x = (torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2).to(dtype)
    run = run_backward("case", lambda x: torch.softmax(x, 0), {"x": x}, torch.Generator().manual_seed(0))
    (bound,) = rounding_bounds(run.program, run.given)
    for place in range(16):
        found = blame(run.program, run.given, 0, (place,))
        unit = {torch.float64: 2.0**-53, torch.bfloat16: 2.0**-8}[dtype]
        estimate = 2.0**found.bits_lost * unit * abs(bound.values[place])
        assert bound.bounds[place] / 500 < estimate < bound.bounds[place] * 2
