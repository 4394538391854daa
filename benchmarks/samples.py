"""The functions and inputs of torch's own OpInfo database, as plain functions of named tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["OpSample", "differentiable_operators", "full_name", "samples"]


@dataclass(frozen=True)
class OpSample:
    """One call of one operator, its tensor arguments named x0, x1 ... in order.

    Attributes:
        name: the operator's, with the number of the sample.
        function: takes the tensors in order.
        inputs: the tensors.
        wrt: those that torch says it differentiates by.
    """

    name: str
    function: Callable[..., Any]
    inputs: dict[str, Tensor]
    wrt: tuple[str, ...] = ()


def differentiable_operators(dtype: torch.dtype = torch.float64) -> list[Any]:
    """Every OpInfo of the installed torch that is differentiable in a dtype on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if dtype in op.supported_dtypes("cpu") and op.supports_autograd]


def full_name(op: Any) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any, count: int, dtype: torch.dtype = torch.float64) -> Iterator[OpSample]:
    """The first samples of an operator; drawn from a fixed seed."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        drawn = list(islice(op.sample_inputs("cpu", dtype, requires_grad=True), count))
    for place, sample in enumerate(drawn):
        yield _as_function(op, sample, f"{full_name(op)}[{place}]")


def _as_function(op: Any, sample: Any, name: str) -> OpSample:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, value in enumerate(flat) if isinstance(value, Tensor)]

    def function(*tensors: Tensor) -> Any:
        values = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            values[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        result = op(first, *args, **kwargs)
        keep = sample.output_process_fn_grad
        return keep(result) if keep is not None else result

    function = _differentiable_outputs(function, [flat[place] for place in places])
    function.__name__ = name
    inputs = {f"x{n}": flat[place] for n, place in enumerate(places)}
    wrt = tuple(key for key, tensor in inputs.items() if tensor.requires_grad)
    return OpSample(name, function, {key: tensor.detach() for key, tensor in inputs.items()}, wrt)


def _differentiable_outputs(function: Callable[..., Any], tensors: list[Tensor]) -> Callable[..., Any]:
    """The function without the outputs that autograd declares as having no derivative, such as saved statistics."""
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = function(*(tensor.clone() for tensor in tensors))
    except Exception:  # whoever calls it next sees the same error
        return function
    if not isinstance(outputs, tuple | list):
        return function
    keep = [place for place, out in enumerate(outputs) if isinstance(out, Tensor) and out.requires_grad]
    if not keep or len(keep) == len(outputs):
        return function
    return lambda *values: tuple(function(*values)[place] for place in keep)
