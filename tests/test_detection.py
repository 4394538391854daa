"""The benchmark of planted errors: its formulas are right, its plants what they say, and a sweep tells both."""

import pytest
import torch

from benchmarks.detection import count_symcheck, is_passed
from benchmarks.problems import exaggerated, problems

BOTH = [*problems(), *problems(exact=True)]
CASES = pytest.mark.parametrize("problem", BOTH, ids=lambda problem: problem.name)


@CASES
def test_the_hand_formulas_are_autograds_gradient(problem):
    inputs = problem.inputs(0, torch.float64)
    leaves = {name: x.requires_grad_(x.is_floating_point()) for name, x in inputs.items()}
    output = problem.function(**leaves)
    cotangent = torch.linspace(0.5, 1.5, output.numel(), dtype=output.dtype).reshape(output.shape)
    gradients = problem.gradients(**leaves, cotangent=cotangent)
    expected = torch.autograd.grad(output, [leaves[name] for name in problem.shapes], cotangent)
    assert set(gradients) == set(problem.shapes)
    for name, gradient in zip(problem.shapes, expected, strict=True):
        assert (gradients[name] - gradient).abs().max() <= 1e-13 * gradient.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_plant_below_the_resolution_changes_no_bit(dtype):
    gradient = torch.tensor([1.0, -0.3, 7.5], dtype=dtype)
    assert torch.equal(exaggerated(gradient, 1e-25), gradient)
    assert not torch.equal(exaggerated(gradient, 1e-6), gradient)


@pytest.mark.parametrize(("dtype", "plant"), [(torch.float32, 1e-6), (torch.float64, 1e-12), (torch.float64, 1e-25)])
@pytest.mark.parametrize("place", range(5), ids=[problem.name for problem in problems()])
def test_a_plant_is_convicted_and_the_right_gradient_passes(place, dtype, plant):
    problem = BOTH[place + 5 * (plant < 1e-12)]
    for strength in (0.0, plant):
        assert all(count.is_met for count in count_symcheck(problem, dtype, strength, 2))


def test_gradcheck_does_not_see_it():
    assert is_passed(BOTH[2], 0.0, 0)
    assert is_passed(BOTH[2], 1e-6, 0)
    assert not is_passed(BOTH[2], 0.1, 0)
