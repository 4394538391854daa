"""Sweeps judge every seed, and derive once."""

import pytest
import torch

from symcheck import Verdict, memory, sweep
from symcheck.errors import Misuse


def function(x, y):
    return (x**2 * y).sum()


def make(seed):
    draw = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(3, generator=draw), "y": torch.randn(3, generator=draw)}


def test_a_sweep_derives_once_and_differentiates_once(monkeypatch):
    derived = []
    original = memory.derive_reference
    monkeypatch.setattr(memory, "derive_reference", lambda *args: derived.append(1) or original(*args))
    seen = []
    found = sweep(function, make, range(20), {"x": lambda x, y: 2 * x * y}, ["x"], progress=seen.append)
    assert found.ok
    assert len(derived) == 1
    assert seen == list(range(20)) == list(found.reports)
    assert set(found.count("formula", "x")) <= {Verdict.OK, Verdict.ROUNDING}
    assert 0 < found.largest("formula", "x", "rounding_error") < 1e-5
    with_differences = [s for s, r in found.reports.items() if len(r.findings) > 2]
    assert with_differences == [0]


def test_a_fault_is_found_on_every_seed():
    found = sweep(function, make, range(20), {"x": lambda x, y: 2 * x * y * (1 + 1e-6)}, "x")
    assert found.count("formula", "x") == {Verdict.FORMULA: 20}
    assert not found.ok


def test_seeds_may_have_shapes_of_their_own():
    found = sweep(lambda x: (x**2).sum(), lambda seed: (torch.ones(1 + seed % 3),), range(6), {"x": lambda x: 2 * x})
    assert found.ok


def test_a_constant_that_changes_between_seeds_is_noticed():
    scale = {"now": 1.0}

    def changing(x):
        return (x * scale["now"]).sum()

    def inputs(seed):
        scale["now"] = 1.0 + seed
        return (torch.ones(2),)

    found = sweep(changing, inputs, range(2))
    verdicts = [report["autograd", "x"].verdict for report in found.reports.values()]
    assert verdicts == [Verdict.OK, Verdict.UNDECIDED]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((make, range(0)), "there are no seeds"),
        ((lambda seed: {"x": torch.ones(3), ("y", "z")[seed]: torch.ones(3)}, range(2)), "seed 1 has the inputs x, z"),
    ],
)
def test_misuse(arguments, message):
    with pytest.raises(Misuse, match=message):
        sweep(function, *arguments)


def test_every_seed_meets_the_tolerance():
    """The bound of each seed covers what was seen there; the largest covers all."""
    found = sweep(function, make, range(20), {"x": lambda x, y: 2 * x * y}, "x")
    tolerance = found.tolerance("formula", "x")
    assert found.largest("formula", "x", "rounding_error") <= tolerance < 1e-4
    for seed, report in found.reports.items():
        given = make(seed)
        computed = 2 * given["x"] * given["y"]
        assert torch.allclose(computed.double(), torch.from_numpy(report.gradients["x"]), rtol=0, atol=tolerance)


def test_a_sweep_prints_what_fell_how_often():
    text = str(sweep(function, make, range(20), {"x": lambda x, y: 3 * x * y}, "x"))
    assert "function at 20 seeds" in text
    assert "20 FORMULA" in text
    assert "20 OK" in text
    assert "by the factor 3/2" in text
