"""Half-precision operators compute in float32 and round what they return; what only moves elements does not."""

import torch
from torch.nn import functional as F

from symcheck.lowering import to_numpy
from symcheck.rounding import rounding_bounds
from symcheck.tracing import trace, trace_backward
from symcheck.widening import is_moved

HALF = torch.bfloat16


def traced(function, *tensors):
    names = [f"x{n}" for n in range(len(tensors))]
    return trace(
        lambda given: tuple(function(*(given[name] for name in names))), dict(zip(names, tensors, strict=True))
    )


def dtypes(program):
    return [
        statement.out.dtype for statement in program.statements if statement.out.is_real and not is_moved(statement)
    ]


def test_internals_carry_float32_and_results_their_dtype():
    program = traced(lambda x: (x.softmax(-1),), torch.ones(3, 4, dtype=HALF)).program
    *inside, last = dtypes(program)
    assert set(inside) == {"float32"}
    assert last == "bfloat16"
    assert program.outputs[0].dtype == "bfloat16"


def test_each_operator_rounds():
    """exp(tanh(x)) keeps a tensor between its kernels."""
    assert dtypes(traced(lambda x: (torch.exp(torch.tanh(x)),), torch.ones(3, dtype=HALF)).program) == ["bfloat16"] * 2


def test_a_result_that_is_read_again_gets_a_rounded_copy():
    """A layer norm returns its mean and reciprocal deviation rounded, and goes on with what it has."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(HALF)
    found = traced(lambda x: torch.native_layer_norm(x, (4,), None, None, 1e-5), x).program
    assert [array.dtype for array in found.outputs] == ["bfloat16"] * 3
    out, mean, inverse = rounding_bounds(found, {"x0": to_numpy(x)})
    for part in (out, mean, inverse):
        assert (part.bounds <= 1.01 * 2.0**-8 * abs(part.values) + 1e-6).all()


def test_moves_stay_in_half_precision():
    program = traced(lambda x: (x.T.flip(0).relu().amax(0),), torch.ones(3, 4, dtype=HALF)).program
    real = [statement for statement in program.statements if statement.out.is_real]
    assert all(is_moved(statement) and statement.out.dtype == "bfloat16" for statement in real)


def test_a_cast_that_the_operator_was_asked_for_rounds_first():
    """sum(dtype=bfloat16) of float32 numbers rounds each of them."""
    x = torch.full((64,), 1.0 + 2.0**-9)
    program = traced(lambda x: (x.sum(dtype=HALF),), x).program
    assert dtypes(program)[0] == "bfloat16"


def test_float32_and_float64_are_left_alone():
    for dtype in (torch.float32, torch.float64):
        program = traced(lambda x: (F.layer_norm(x, (4,)),), torch.ones(3, 4, dtype=dtype)).program
        assert set(dtypes(program)) == {str(dtype).removeprefix("torch.")}


# -- what the statements of a backward say of themselves --------------------------------------------------------------


def test_a_statement_names_the_kernel_that_it_was_decomposed_from_and_its_forward_line():
    x = torch.ones(3, 4)

    def function(x):
        y = F.layer_norm(x, (4,))
        return F.gelu(y)

    program = trace_backward(lambda given: (function(given["x"]),), {"x": x}, ["x"], [torch.ones(3, 4)], [0]).program
    sources = {}
    for statement in program.statements:
        sources.setdefault(statement.operator, set()).add(statement.source.partition(": ")[2])
    assert sources["aten.gelu_backward.default"] == {"return F.gelu(y)"}
    assert sources["aten.native_layer_norm_backward.default"] == {"y = F.layer_norm(x, (4,))"}
    assert not {"aten.erf.default", "aten.mul.Tensor"} & set(sources)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp()


def test_a_custom_backward_has_its_own_lines():
    x = torch.ones(3)
    program = trace_backward(lambda given: (Own.apply(given["x"]),), {"x": x}, ["x"], [torch.ones(3)], [0]).program
    assert {statement.source.partition(": ")[2] for statement in program.statements} == {"return g * x.exp()"}
