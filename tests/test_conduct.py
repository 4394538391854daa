"""What is not a function of its inputs is told apart and named; what is one is never accused."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from symcheck import Verdict, check
from symcheck.binding import bind
from symcheck.candidates import run_autograd
from symcheck.checking import bind_formulas
from symcheck.conduct import observe
from symcheck.facts import Kind
from symcheck.points import choose_cotangents


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def seen(function, inputs, formulas=None, wrt=None, seconds=0.0):
    """What is noticed, as {(kind, candidate, inputs): verdict}, and the facts themselves."""
    binding = bind(function, inputs, wrt)
    bound = bind_formulas(formulas, binding)
    outputs = binding.call({name: tensor.detach().clone() for name, tensor in binding.inputs.items()})
    cotangents = choose_cotangents(None, [tuple(output.shape) for output in outputs], np.random.default_rng(0))
    positions = range(len(outputs))
    native, _ = run_autograd(binding, binding.inputs, binding.wrt, cotangents, positions)
    ones = [np.ones(tuple(output.shape)) for output in outputs]
    pairs = [(formula, cotangents if formula.takes_cotangent else ones) for formula in bound]
    facts = observe(binding, binding.inputs, positions, native, cotangents, pairs, seconds)
    return {(fact.kind, fact.candidate, fact.inputs): fact.verdict for fact in facts}, facts


def custom(backward, forward=lambda x: x**3, save=lambda x, y: (x,)):
    """y = x^3 with a backward of its own, which is given what was saved and the cotangent."""

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = forward(x)
            ctx.save_for_backward(*save(x, y))
            return y

        @staticmethod
        def backward(ctx, g):
            return backward(*ctx.saved_tensors, g)

    return Cube.apply


def by_storage(g):
    """The elements of a tensor read as if it were contiguous, as an extension that takes a pointer does."""
    stride = [int(np.prod(g.shape[place + 1 :])) for place in range(g.dim())]
    reach = 1 + sum((size - 1) * step for size, step in zip(g.shape, stride, strict=True))
    return g.as_strided(g.shape, stride) if g.untyped_storage().nbytes() >= reach * g.element_size() else g * 0


# -- right ones, of which nothing is said


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Dropout(0.5)).double()

    def forward(self, x):
        return self.layers(x)


def by_checkpoint(x, w):
    return checkpoint(lambda a: torch.tanh(a @ w), x, use_reentrant=False).sum(0)


class Recomputed(nn.Module):
    """A batch norm in a checkpoint: the backward runs it again, and so updates its statistics once more."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4).double()

    def forward(self, x):
        return checkpoint(lambda a: torch.tanh(self.norm(a)), x, use_reentrant=False)


def in_place(x):
    y = x * 2
    y[0] += x[1]
    F.relu(y, inplace=True)
    return y


def with_views(x):
    return x.view(-1)[:6] * x.t().reshape(-1)[6:]


RIGHT = {
    "contiguous first": (custom(lambda x, g: 3 * x**2 * g.contiguous().view(-1).view(g.shape)), (drawn(3, 4),)),
    "by shape": (custom(lambda x, g: (3 * x.reshape(-1) ** 2 * g.reshape(-1)).view(x.shape)), (drawn(3, 4),)),
    "expanded cotangent": (lambda x: custom(lambda x, g: 3 * x**2 * g)(x).sum(), (drawn(3, 4),)),
    "scalar": (lambda x: (x**3).sum(), (drawn(5),)),
    "batch norm": (Scaled().train(True).layers[:3], (drawn(8, 4),)),
    "degenerate batch norm": (
        lambda x: F.batch_norm(x, None, None, training=True).sum(),
        (drawn(8, 3, dtype=torch.float32) * 4 + 20,),
    ),
    "variance far off": (lambda x: (x**2).mean() - x.mean() ** 2, (drawn(50, dtype=torch.float32) + 4000,)),
    "dropout in evaluation": (Scaled().eval(), (drawn(8, 4),)),
    "in place": (in_place, (drawn(3, 4),)),
    "views": (with_views, (drawn(3, 4),)),
    "checkpoint": (by_checkpoint, (drawn(3, 4), drawn(4, 2, seed=1))),
    "batch norm in a checkpoint": (Recomputed(), (drawn(8, 4),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v),
        tuple(drawn(2, 5, 4, seed=seed, dtype=torch.float32) for seed in range(3)),
    ),
    "half": (
        lambda x, w: torch.softmax(x @ w, -1),
        (drawn(4, 8, dtype=torch.float16), drawn(8, 8, dtype=torch.float16)),
    ),
    "bfloat16": (lambda x: F.layer_norm(x, (64,)), (drawn(4, 64, dtype=torch.bfloat16),)),
    "convolution": (lambda x, w: F.conv2d(x, w), (drawn(2, 3, 6, 6), drawn(4, 3, 3, 3, seed=1))),
    "embedding": (lambda w: F.embedding(torch.tensor([0, 2, 2, 1]), w), (drawn(4, 3),)),
    "sorting": (lambda x: x.sort(-1).values.cumsum(-1), (drawn(3, 5),)),
    "reversal of the gradient": (custom(lambda x, g: -g), (drawn(3, 4),)),
    "zero": (custom(lambda x, g: torch.zeros_like(g)), (drawn(3, 4),)),
    "the same output twice": (lambda x: [x * 2] * 2, (drawn(3),)),
    "an input returned": (lambda x: x, (drawn(3, 2),)),
    "infinite": (lambda x: 1 / x, (torch.tensor([0.0, 1.0]),)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_said_of_what_is_right(name):
    assert seen(*RIGHT[name])[1] == ()


@pytest.mark.parametrize("seed", range(20))
def test_rounding_in_another_order_is_no_layout(seed):
    """Gradients that are zero but for rounding change altogether with the order of sums."""

    def function(x):
        return torch.softmax(F.batch_norm(x, None, None, training=True).sum() + (x - x.mean(0)).sum(), 0)

    assert seen(function, (drawn(16, 5, seed=seed, dtype=torch.float32) * 3 + 100,))[1] == ()


# -- nondeterminism


RANDOM = {
    "torch": custom(lambda x, g: 3 * x**2 * g * (1 + 1e-3 * torch.randn_like(g))),
    "python": custom(lambda x, g: 3 * x**2 * g * random.uniform(0.9, 1.1)),
    "numpy": custom(lambda x, g: 3 * x**2 * g + 0.1 * torch.from_numpy(np.random.rand(*g.shape)).to(g.dtype)),
    "dropped": custom(lambda x, g: F.dropout(3 * x**2 * g, 0.5)),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_random_backward(name, dtype):
    found, _ = seen(RANDOM[name], (drawn(3, 4, dtype=dtype),))
    assert found == {(Kind.NONDETERMINISM, "autograd", ("x0",)): Verdict.OTHER}


def test_what_differs_now_and_then_is_called_nothing_else():
    """One run in two shows it; then five more tell it from a backward that ignores its cotangent."""
    turned = custom(lambda x, g: 3 * x**2 * g * random.choice([1, -1]))
    found = []
    for seed in range(10):
        random.seed(seed)
        found += seen(turned, (drawn(3, 4),))[0]
    assert set(found) == {(Kind.NONDETERMINISM, "autograd", ("x0",))}


def test_a_random_backward_is_other_and_says_so():
    found = check(RANDOM["python"], (drawn(3, 4),), budget=0)["autograd", "x0"]
    assert found.verdict is Verdict.OTHER
    assert "gives another gradient by x0 each time" in found.reason
    named = check(RANDOM["torch"], (drawn(3, 4),), budget=0)["autograd", "x0"]
    assert named.verdict is Verdict.OTHER
    assert "aten.randn_like" in named.reason


def test_a_random_formula():
    formulas = {"x": lambda x: 2 * x * (1 + 0.01 * torch.rand_like(x))}
    found, _ = seen(lambda x: (x**2).sum(), (drawn(3),), formulas)
    assert found == {(Kind.NONDETERMINISM, "formula", ("x",)): Verdict.OTHER}
    report = check(lambda x: (x**2).sum(), (drawn(3),), formulas=formulas, budget=0)
    assert report["formula", "x"].verdict is Verdict.OTHER
    assert report["autograd", "x"].verdict is Verdict.OK


def test_only_the_input_whose_gradient_is_random_is_named():
    noisy = RANDOM["torch"]
    found, _ = seen(lambda x, y: noisy(x) * y.detach() + y, (drawn(3), drawn(3, seed=1)))
    assert found == {(Kind.NONDETERMINISM, "autograd", ("x",)): Verdict.OTHER}


# -- the cotangent


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_backward_that_ignores_its_cotangent(dtype):
    found, (fact,) = seen(custom(lambda x, g: 3 * x**2), (drawn(3, 4, dtype=dtype),))
    assert found == {(Kind.COTANGENT, "autograd", ("x0",)): Verdict.FORMULA}
    assert "ignores its cotangent" in fact.sentence


def test_a_scalar_backward_that_ignores_its_cotangent():
    mean = custom(lambda x, g: torch.full_like(x, 1 / x.numel()), forward=torch.mean)
    found, _ = seen(mean, (drawn(3, 4),))
    assert found == {(Kind.COTANGENT, "autograd", ("x0",)): Verdict.FORMULA}


def test_a_backward_that_clips_its_cotangent():
    found, (fact,) = seen(custom(lambda x, g: 3 * x**2 * g.clamp(-0.9, 0.9)), (drawn(3, 4),))
    assert found == {(Kind.COTANGENT, "autograd", ("x0",)): Verdict.FORMULA}
    assert "not linear" in fact.sentence


def test_a_formula_that_ignores_its_cotangent():
    cube = lambda x: x**3  # noqa: E731
    found, _ = seen(cube, (drawn(3),), {"x": lambda x, cotangent: 3 * x**2})
    assert found == {(Kind.COTANGENT, "formula", ("x",)): Verdict.FORMULA}
    assert seen(cube, (drawn(3),), {"x": lambda x, cotangent: 3 * x**2 * cotangent})[1] == ()
    assert seen(cube, (drawn(3),), {"x": lambda x: 3 * x**2})[1] == ()


def test_the_conviction_names_the_ignored_cotangent():
    found = check(custom(lambda x, g: 3 * x**2), (drawn(3, 4),), budget=0)["autograd", "x0"]
    assert found.verdict is Verdict.FORMULA
    assert "autograd's backward ignores its cotangent" in found.reason


# -- memory layout


BY_STORAGE = custom(lambda x, g: 3 * x**2 * by_storage(g))


@pytest.mark.parametrize("shape", [(3, 4), (5,)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_backward_that_reads_memory(shape, dtype):
    found, _ = seen(BY_STORAGE, (drawn(*shape, dtype=dtype),))
    assert found[Kind.LAYOUT, "autograd", ("x0",)] is Verdict.OTHER


def test_a_backward_that_reads_memory_is_other_where_its_gradient_is_right():
    found = check(BY_STORAGE, (drawn(3, 4),), budget=0)["autograd", "x0"]
    assert found.verdict is Verdict.OTHER
    assert "assumes a memory layout" in found.reason
    assert "contiguous" in found.advice


def test_a_backward_inside_that_reads_memory_is_a_note_where_that_is_contiguous():
    found, facts = seen(lambda x, w: (BY_STORAGE(x) * w).sum(), (drawn(3, 4), drawn(3, 4, seed=1)))
    assert found == {(Kind.LAYOUT, "autograd", ("x",)): None}
    assert "Cube" in facts[0].sentence


def test_a_backward_inside_that_reads_memory_where_that_is_not_contiguous():
    found, _ = seen(lambda x, w: (BY_STORAGE(x).t() * w).sum(), (drawn(3, 4), drawn(4, 3, seed=1)))
    assert found == {(Kind.LAYOUT, "autograd", ("x",)): Verdict.OTHER}


def test_a_backward_that_fails_for_what_is_not_contiguous():
    found, facts = seen(custom(lambda x, g: (3 * x.view(-1) ** 2 * g.view(-1)).view(x.shape)), (drawn(3, 4),))
    assert set(found.values()) == {None}
    assert "fails for a cotangent that is not contiguous" in facts[0].sentence


def test_a_formula_that_reads_memory():
    formulas = {"x": lambda x, cotangent: 3 * x**2 * by_storage(cotangent)}
    found, _ = seen(lambda x: x**3, (drawn(3, 4),), formulas)
    assert found == {(Kind.LAYOUT, "formula", ("x",)): Verdict.OTHER}


def diagonals(x):
    return x.as_strided((2, 3), (5, 1)) ** 2


def test_a_function_that_reads_memory_is_a_note_unless_its_input_lies_so():
    found, _ = seen(diagonals, (drawn(3, 4),))
    assert found == {(Kind.LAYOUT, "autograd", ("x",)): None}
    assert check(diagonals, (drawn(3, 4),), budget=0)["autograd", "x"].verdict is Verdict.OK
    found, _ = seen(diagonals, (drawn(4, 3).t(),))
    assert found[Kind.LAYOUT, "autograd", ("x",)] is None  # a transposed copy keeps its strides
    found, _ = seen(diagonals, (drawn(24)[::2],))  # a copy does not, so that autograd at these tensors is another
    assert found == {(Kind.LAYOUT, "autograd", ("x",)): Verdict.OTHER}


def test_a_function_that_differentiates_inside():
    """torch.func refuses that what is saved be followed; everything else is looked at."""
    inside = lambda f: lambda x: torch.func.grad(lambda y: f(y).sum())(x)  # noqa: E731
    assert seen(inside(lambda y: y**3), (drawn(3, 4),))[1] == ()
    found, _ = seen(inside(lambda y: y.as_strided((2, 3), (5, 1)) ** 3), (drawn(3, 4),))
    assert found == {(Kind.LAYOUT, "autograd", ("x",)): None}


# -- what is overwritten


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_backward_that_overwrites_its_cotangent(dtype):
    found, _ = seen(custom(lambda x, g: g.mul_(3 * x**2)), (drawn(3, 4, dtype=dtype),))
    assert found == {(Kind.WRITES, "autograd", ("x0",)): Verdict.OTHER}
    assert seen(custom(lambda x, g: g.clone().mul_(3 * x**2)), (drawn(3, 4, dtype=dtype),))[1] == ()


def test_a_backward_that_overwrites_its_input():
    found, facts = seen(custom(lambda x, g: x.square_().mul_(3).mul(g)), (drawn(3, 4),))
    assert found == {(Kind.WRITES, "autograd", ("x0",)): Verdict.OTHER}
    assert "overwrites its input x0" in facts[0].sentence


def test_a_backward_that_overwrites_what_it_saved_for_itself_is_a_note():
    scratch = custom(lambda s, g: s.mul_(3).mul_(g), save=lambda x, y: (x**2,))
    found, _ = seen(scratch, (drawn(3, 4),))
    assert found == {(Kind.WRITES, "autograd", ("x0",)): None}
    assert check(scratch, (drawn(3, 4),), budget=0)["autograd", "x0"].verdict is Verdict.OK


def test_a_formula_that_overwrites_its_input():
    square = lambda x: (x**2).sum()  # noqa: E731
    found, _ = seen(square, (drawn(3),), {"x": lambda x: x.mul_(2)})
    assert found == {(Kind.WRITES, "formula", ("x",)): Verdict.OTHER}
    found, _ = seen(lambda x: F.relu(x).sum(), (drawn(4),), {"x": lambda x: (x.relu_() > 0).double()})
    assert found == {(Kind.WRITES, "formula", ("x",)): None}
    assert seen(square, (drawn(3),), {"x": lambda x: x.clone().mul_(2)})[1] == ()


def test_the_inputs_stay_as_they_are():
    x = drawn(3, 4).requires_grad_()
    kept = x.detach().clone()
    seen(custom(lambda x, g: x.square_().mul_(3).mul(g)), (x,))
    seen(lambda x: (x**2).sum(), (x,), {"x": lambda x: x.mul_(2)})
    assert torch.equal(x.detach(), kept)
    assert x.grad is None


def test_a_module_that_is_run_again_in_the_backward_keeps_its_state():
    net = Recomputed()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert check(net, (drawn(8, 4),), budget=0).ok
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


# -- inputs that hang together


def dot(x, y):
    return (x * y).sum()


def test_an_input_computed_from_another():
    x = drawn(3).requires_grad_()
    found, (fact,) = seen(dot, {"x": x, "y": 3 * x})
    assert found == {(Kind.DEPENDENCE, "autograd", ("x",)): Verdict.OTHER}
    assert "y was computed from x" in fact.sentence
    formulas = {"x": lambda x, y: y, "y": lambda x, y: x}
    report = check(dot, {"x": x, "y": 3 * x}, formulas=formulas, budget=0)
    verdicts = {(f.candidate, f.input): f.verdict for f in report.findings}
    assert verdicts == {
        ("autograd", "x"): Verdict.OTHER,
        ("autograd", "y"): Verdict.OK,
        ("formula", "x"): Verdict.OK,
        ("formula", "y"): Verdict.OK,
    }
    assert x.grad is None


def test_a_dependence_counts_where_a_gradient_flows():
    x = drawn(3).requires_grad_()
    middle = 2 * x
    assert seen(dot, {"x": x, "y": (3 * x).detach()})[1] == ()
    assert seen(dot, {"x": x, "y": torch.floor(3 * x)})[1] == ()
    assert seen(lambda x, y: (x**2).sum() + 0 * y.detach().sum(), {"x": x, "y": 3 * x})[1] == ()
    assert set(seen(dot, {"x": middle, "y": middle.exp()})[0]) == {(Kind.DEPENDENCE, "autograd", ("x",))}
    assert set(seen(dot, {"x": x, "y": 3 * x}, wrt="x")[0]) == {(Kind.DEPENDENCE, "autograd", ("x",))}
    assert seen(dot, {"x": x, "y": 3 * x}, wrt="y")[1] == ()
    left, right = (2 * drawn(6).requires_grad_()).chunk(2)
    assert Kind.DEPENDENCE not in {fact.kind for fact in seen(dot, {"x": left, "y": right})[1]}


def test_shared_memory_is_a_note():
    x = drawn(6)
    for other, said in ((x, "are the same tensor"), (x.flip(0).flip(0), ""), (x.view(2, 3).view(6), "share memory")):
        _, facts = seen(dot, {"x": x, "y": other})
        assert (said in facts[0].sentence) if said else facts == ()
    assert seen(dot, {"x": x[::2], "y": x[1::2]})[1] == ()
    found, _ = seen(dot, {"x": x[:4], "y": x[2:]})
    assert found == {(Kind.OVERLAP, "", ("x", "y")): None}
    found, _ = seen(dot, {"x": drawn(1).expand(6), "y": x})
    assert found == {(Kind.OVERLAP, "", ("x",)): None}


def test_a_function_that_writes_to_inputs_that_share_memory():
    def doubled(x, y):
        return (x.mul_(2) * y).sum()

    x = drawn(6)
    kept = x.clone()
    assert seen(doubled, {"x": x, "y": x})[0][Kind.OVERLAP, "autograd", ("x", "y")] is Verdict.OTHER
    assert seen(doubled, {"x": x[:4], "y": x[2:]})[0][Kind.OVERLAP, "autograd", ("x", "y")] is Verdict.OTHER
    assert seen(doubled, {"x": x[:3], "y": x[3:]})[1] == ()
    assert set(seen(dot, {"x": x, "y": x})[0].values()) == {None}
    assert torch.equal(x, kept)


# -- casts, and gradients of None


def test_a_cast_inside_is_noted_with_its_line():
    def function(x):
        return (x.float() ** 2).sum()

    def mixed(x, w):
        return (x * w.double()).sum()

    report = check(function, (drawn(3),), formulas={"x": lambda x: 2 * x}, budget=0)
    assert report["formula", "x"].verdict is Verdict.OK
    (note,) = report.notes
    line = function.__code__.co_firstlineno + 1
    assert note.startswith(f"autograd's gradient by x passes through float32 at test_conduct.py:{line}")
    assert "expect 7 significant digits" in note
    assert check(mixed, (drawn(3), drawn(3, dtype=torch.float32)), budget=0).notes == ()
    assert check(lambda x: (x.double() ** 2).sum(), (drawn(3, dtype=torch.float32),), budget=0).notes == ()


def test_half_precision_under_autocast_and_in_a_custom_backward():
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, w)

    single = torch.float32
    notes = " ".join(check(function, (drawn(2, 3, dtype=single), drawn(4, 3, dtype=single)), budget=0).notes)
    assert "by x, w passes through bfloat16 at test_conduct.py" in notes
    halved = custom(lambda x, g: (3 * x**2 * g).to(torch.float16).to(x.dtype))
    assert "passes through float16" in " ".join(check(halved, (drawn(3),), budget=0).notes)
    kept = check(lambda x: F.layer_norm(x, (8,)).sum(), (drawn(2, 8, dtype=torch.bfloat16),), budget=0)
    assert "passes through" not in " ".join(kept.notes)


def test_a_gradient_of_none_is_noted_where_it_is_zero():
    report = check(lambda x, y: (x**2).sum(), (drawn(3), drawn(3, seed=1)), budget=0)
    assert report.notes == ("autograd returns None for y, which counts as zero, and zero it is",)
    assert report.ok
    wrong = check(lambda x, y: (x**2 + y.detach()).sum(), (drawn(3), drawn(3, seed=1)), budget=0)
    assert wrong["autograd", "y"].verdict is Verdict.FORMULA
    assert wrong.notes == ()


# -- budget


def test_what_takes_long_is_not_run_again_and_that_is_said():
    found, _ = seen(RANDOM["torch"], (drawn(3),), seconds=60.0)
    assert found == {(Kind.UNCHECKED, "", ()): None}
