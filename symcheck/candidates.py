"""Running the candidates: autograd, hand formulas and the plain function, each in a chosen precision.

The precision ladder re-runs a candidate with every real tensor in another dtype: rounding shrinks with the unit
roundoff, an error of the formula stays.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.errors import Misuse
from symcheck.precision import in_precision

__all__ = [
    "Formula",
    "Gradient",
    "describe_error",
    "is_same",
    "repeats",
    "run_autograd",
    "run_formula",
    "run_function",
    "to_float64",
    "unit_roundoff",
]

Tensors = Mapping[str, Tensor]
LIBRARIES = tuple(str(Path(file).parent) for file in (__file__, torch.__file__))  # whose frames are not the user's


@dataclass(frozen=True, slots=True, eq=False)
class Gradient:
    """What a candidate returned for one input.

    Attributes:
        values: float64 array of the input's shape; None if it returned nothing usable, and `problem` says why.
        dtype: what it came in, such as ``"float32"``.
        problem: why there are no values; ``""`` otherwise.
        shape: the shape it came in; None where it has none.
        missing: autograd returned None: it sees no path from the output to this input.
    """

    values: NDArray[np.float64] | None
    dtype: str = ""
    problem: str = ""
    shape: tuple[int, ...] | None = None
    missing: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Formula:
    """A hand-derived gradient by one input.

    Attributes:
        input: the input's name.
        call: given the inputs by name and the cotangents, returns what the formula returns.
        takes_cotangent: whether it has a parameter named ``cotangent``; if not, it is compared at ones.
    """

    input: str
    call: Callable[[Tensors, Sequence[Tensor]], Any]
    takes_cotangent: bool

    @classmethod
    def of(cls, name: str, formula: Any, binding: Binding) -> Formula:
        """Bind a formula's parameters to the function's inputs.

        Raises:
            Misuse: it is not callable, or it has a parameter that is neither an input nor ``cotangent``.
        """
        if not callable(formula):
            raise Misuse(
                f"the formula for {name!r} is a {type(formula).__name__}; give a callable with the function's inputs"
            )
        try:
            parameters = list(inspect.signature(formula).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        takes_cotangent = any(p.name == "cotangent" for p in parameters)
        arrange = _arrangement(name, [p for p in parameters if p.name != "cotangent"], binding)

        def call(tensors: Tensors, cotangents: Sequence[Tensor]) -> Any:
            args, kwargs = arrange(tensors)
            if takes_cotangent:
                kwargs["cotangent"] = cotangents[0] if len(cotangents) == 1 else tuple(cotangents)
            return formula(*args, **kwargs)

        return cls(name, call, takes_cotangent)


def _arrangement(
    name: str, parameters: Sequence[inspect.Parameter], binding: Binding
) -> Callable[[Tensors], tuple[tuple[Tensor, ...], dict[str, Any]]]:
    """How to pass the inputs: by name where the formula's parameters are inputs, else in the function's order."""
    kinds = inspect.Parameter
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)]
    wanted = [p.name for p in named if p.name in binding.inputs]
    unknown = [p.name for p in named if p.name not in binding.inputs and p.default is kinds.empty]
    everything = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    order = list(binding.inputs)[: binding.arguments]
    if named and not unknown and (wanted or everything):
        names = list(binding.inputs) if everything else wanted
        return lambda tensors: ((), {key: tensors[key] for key in names})
    if everything and not unknown:
        return lambda tensors: ((), dict(tensors))
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    variadic = not parameters or any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    misplaced = any(p.name in order and p.name != here for p, here in zip(positional, order, strict=False))
    if variadic or (len([p for p in positional if p.default is kinds.empty]) == len(order) and not misplaced):
        return lambda tensors: (tuple(tensors[key] for key in order), {})
    raise Misuse(
        f"the formula for {name!r} takes {', '.join(p.name for p in parameters) or 'nothing'}; "
        f"its parameters must be inputs ({', '.join(binding.inputs)}) or cotangent"
    )


def _leaves(tensors: Tensors, wrt: Sequence[str], target: torch.dtype | None) -> dict[str, Tensor]:
    """The inputs in the dtype `target` if it is given, leaves of a graph of their own; the user's may share memory."""
    leaves = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        plain = plain.to(target) if target and plain.is_floating_point() else plain
        leaves[name] = plain.requires_grad_(name in wrt)
    return leaves


def _copies(leaves: Tensors) -> dict[str, Tensor]:
    """What the user's code is given: not leaves, so that it may write to them and still differentiate by them."""
    return {name: leaf.clone() for name, leaf in leaves.items()}


def run_function(
    binding: Binding, tensors: Tensors, positions: Sequence[int], target: torch.dtype | None
) -> list[NDArray[np.float64]]:
    """The function's chosen outputs as float64 arrays, every real tensor in the dtype `target` if it is given."""
    with torch.enable_grad():
        copies = _copies(_leaves(tensors, binding.wrt, target))
        with in_precision(target):
            outputs = binding.call(copies)
    return [to_float64(outputs[place]) for place in positions]


def run_autograd(
    binding: Binding,
    tensors: Tensors,
    wrt: Sequence[str],
    cotangents: Sequence[NDArray[np.float64]],
    positions: Sequence[int],
    target: torch.dtype | None = None,
) -> tuple[dict[str, Gradient], list[NDArray[np.float64]]]:
    """Autograd's gradients of sum(cotangent * output), and the outputs themselves, as float64 arrays.

    Args:
        binding: the function.
        tensors: its inputs; copied, never written to.
        wrt: names to differentiate by.
        cotangents: one per chosen output.
        positions: which of the function's tensors are the outputs.
        target: run with every real tensor in this dtype; None for the tensors' own.

    Raises:
        Exception: whatever the function or its backward raises.
    """
    leaves = _leaves(tensors, wrt, target)
    with torch.enable_grad():
        copies = _copies(leaves)
    with torch.enable_grad(), in_precision(target):
        everything = binding.call(copies)
        outputs = [everything[place] for place in positions]
        pairs = [
            (output, torch.from_numpy(np.array(cotangent)).to(output.dtype).reshape(output.shape))
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output.requires_grad
        ]
        grads: Sequence[Tensor | None] = [None] * len(wrt)
        if pairs:
            grads = torch.autograd.grad(
                [output for output, _ in pairs],
                [leaves[name] for name in wrt],
                [cotangent for _, cotangent in pairs],
                allow_unused=True,
            )
    return (
        {name: _gradient_of(grad, leaves[name]) for name, grad in zip(wrt, grads, strict=True)},
        [to_float64(output) for output in outputs],
    )


def _gradient_of(grad: Tensor | None, leaf: Tensor) -> Gradient:
    dtype, shape = _dtype_name(leaf), tuple(leaf.shape)
    if leaf.is_complex():
        return Gradient(None, dtype, problem="its gradient is complex; symcheck knows real gradients")
    if grad is None:
        return Gradient(np.zeros(shape), dtype, shape=shape, missing=True)
    return Gradient(to_float64(grad), dtype, shape=shape)


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def run_formula(
    formula: Formula,
    tensors: Tensors,
    cotangents: Sequence[NDArray[np.float64]],
    target: torch.dtype | None = None,
) -> Gradient:
    """What a hand formula gives; `target` as in `run_autograd`.

    A result whose shape differs from the input's only by axes of size 1 is accepted; any other is a problem.

    Raises:
        Exception: whatever the formula raises.
    """
    copies = _copies(_leaves(tensors, (), target))
    like = copies[formula.input]
    weights = [torch.from_numpy(np.array(cotangent)).to(like.dtype) for cotangent in cotangents]
    with torch.enable_grad(), in_precision(target):
        result = formula.call(copies, weights)
    what = f"the formula for {formula.input}"
    if result is None:
        return Gradient(None, problem=f"{what} returned None; return the gradient, a tensor of {formula.input}'s shape")
    try:
        tensor = result.detach() if isinstance(result, Tensor) else torch.as_tensor(result, dtype=like.dtype)
    except (TypeError, ValueError, RuntimeError):
        kind = type(result).__name__
        return Gradient(None, problem=f"{what} returned an object of type {kind}; return a tensor")
    shape, wanted = tuple(tensor.shape), tuple(like.shape)
    if tensor.is_complex():
        return Gradient(None, problem=f"{what} is complex; symcheck knows real gradients")
    if [size for size in shape if size != 1] != [size for size in wanted if size != 1]:
        return Gradient(None, problem=_shape_problem(formula.input, shape, wanted), shape=shape)
    dtype = _dtype_name(tensor if tensor.is_floating_point() else like)
    return Gradient(to_float64(tensor).reshape(wanted), dtype, shape=shape)


def _shape_problem(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    text = f"it has the shape {shape}; the gradient by {name} has the shape {wanted}"
    padded = (1,) * (len(shape) - len(wanted)) + wanted
    if len(shape) >= len(wanted) and all(w in (1, s) for s, w in zip(shape, padded, strict=True)):
        return f"{text}: a sum over the broadcast axes is missing"
    if not shape:
        return f"{text}: a sum too many, or a number that should be expanded to it"
    return text


def to_float64(tensor: Tensor) -> NDArray[np.float64]:
    """A tensor's values, sparse ones dense."""
    return np.array(_dense(tensor).to(torch.float64).numpy(force=True), dtype=np.float64)


def _dense(tensor: Tensor) -> Tensor:
    plain = tensor.detach()
    return plain if plain.layout is torch.strided else plain.to_dense()


def is_same(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors hold the same, NaN being the same as NaN."""
    if left.shape != right.shape:
        return False
    left, right = _dense(left), _dense(right)
    return bool(((left == right) | ((left != left) & (right != right))).all())


def repeats(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Whether two runs at the same inputs gave the same, but for the order of a sum."""
    with np.errstate(invalid="ignore"):
        scale = np.max(np.abs(first), initial=0.0, where=np.isfinite(first))
        near = (np.abs(first - second) <= 2.0**-20 * scale) | (first == second)
    return bool((near | (np.isnan(first) & np.isnan(second))).all())


def unit_roundoff(dtype: str) -> float:
    """Half the spacing of the numbers at 1 in a dtype, such as 2^-24 for float32."""
    return float(torch.finfo(getattr(torch, dtype)).eps) / 2


def describe_error(what: str, error: Exception) -> str:
    """One line that says what the user's own code raised, and where."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    message = str(error).strip().splitlines()
    return f"{what} raised {type(error).__name__}{where}: {message[0][:300] if message else 'no message'}"
