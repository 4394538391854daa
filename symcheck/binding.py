"""Binding a function to named tensors: what its inputs are called, how it is called, and leaving no trace.

A `Binding` calls the user's function on copies, with the global random state, module buffers, `.grad` and training
modes as they were afterwards.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from symcheck.errors import Misuse

__all__ = ["Binding", "bind", "restored", "select_wrt"]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A function of named tensors.

    Attributes:
        name: what to call the function in messages.
        inputs: its tensors by name; the parameters and buffers of a module and the buffers of modules that a function
            closes over included. The user's own, never written to.
        call: given one tensor per name, returns the function's tensors in order; writes to none of the user's.
        wrt: the names to differentiate by.
        arguments: how many of the leading inputs the user passed; the rest is module state.
        modules: modules that the function closes over, whose state is kept.
    """

    name: str
    inputs: Mapping[str, Tensor]
    call: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
    wrt: tuple[str, ...]
    arguments: int
    modules: tuple[nn.Module, ...]


def bind(function: Callable[..., Any], inputs: Any, wrt: Collection[str] | str | None = None) -> Binding:
    """Name the inputs of a function and make it callable by name.

    Args:
        function: a callable on tensors, or an `nn.Module`, whose parameters and buffers become inputs too.
        inputs: {name: tensor}, passed by keyword where the function has parameters of these names and by position
            elsewhere; or a tensor or a tuple of them, passed by position and named by the function's parameters.
        wrt: names to differentiate by; by default every real input and parameter.

    Raises:
        Misuse: the inputs are not tensors, do not fit the function's parameters, or `wrt` names none of them.
    """
    if not callable(function):
        raise Misuse(f"function is of type {type(function).__name__}; give a callable on tensors or an nn.Module")
    named, by_keyword = _named(function, inputs)
    enclosed = (function,) if isinstance(function, nn.Module) else tuple(_enclosed_modules(function))
    held = _held(function, enclosed, named)
    everything = {**named, **{name: state.tensor for name, state in held.items()}}

    def call(tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        own = [tensors[name] for name in named]
        args, kwargs = ((), dict(zip(named, own, strict=True))) if by_keyword else (tuple(own), {})
        with ExitStack() as stack:
            for module in enclosed:
                replaced = {s.key: tensors[name] for name, s in held.items() if s.module is module}
                stack.enter_context(torch.nn.utils.stateless._reparametrize_module(module, replaced, tie_weights=True))
            result = function(*args, **kwargs)
        return _outputs(result, _name_of(function))

    movable = {name: tensor for name, tensor in everything.items() if name not in held or held[name].is_parameter}
    chosen = select_wrt(movable if wrt is None else everything, wrt)
    return Binding(_name_of(function), everything, call, chosen, len(named), enclosed)


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A tensor that a module holds, which becomes an input."""

    module: nn.Module
    key: str
    tensor: Tensor
    is_parameter: bool


def _held(function: Callable[..., Any], modules: Sequence[nn.Module], taken: Mapping[str, Any]) -> dict[str, _State]:
    """The state that becomes inputs: all of a module that is the function, the buffers of those it closes over.

    A parameter that is closed over is a constant of the function, as any tensor is; a buffer may be written to.
    """
    held: dict[str, _State] = {}
    for module in modules:
        is_function = module is function
        parameters = list(module.named_parameters()) if is_function else []
        for key, tensor in [*parameters, *module.named_buffers()]:
            name = key if is_function else f"{type(module).__name__}.{key}"
            while name in taken or name in held:
                name = f"module.{name}"
            held[name] = _State(module, key, tensor, isinstance(tensor, nn.Parameter))
    return held


def select_wrt(inputs: Mapping[str, Tensor], wrt: Collection[str] | str | None) -> tuple[str, ...]:
    """The names to differentiate by, checked.

    Raises:
        Misuse: a name is not an input, or is an input that has no derivative.
    """
    if wrt is None:
        chosen = tuple(name for name, tensor in inputs.items() if tensor.is_floating_point() or tensor.is_complex())
        if not chosen:
            kinds = ", ".join(f"{name}: {str(t.dtype).removeprefix('torch.')}" for name, t in inputs.items())
            raise Misuse(f"no input has a derivative ({kinds}); give at least one floating-point tensor")
        return chosen
    if not isinstance(wrt, Collection):
        raise Misuse(f"wrt is of type {type(wrt).__name__}; give names of inputs, such as {tuple(inputs)[:1]}")
    names = (wrt,) if isinstance(wrt, str) else tuple(dict.fromkeys(wrt))
    if not names:
        raise Misuse(f"wrt is empty; name at least one of the inputs: {', '.join(inputs)}")
    for name in names:
        if name not in inputs:
            raise Misuse(f"wrt names {name!r}, which is not an input; the inputs are {', '.join(inputs)}")
        if not (inputs[name].is_floating_point() or inputs[name].is_complex()):
            dtype = str(inputs[name].dtype).removeprefix("torch.")
            raise Misuse(f"wrt names {name!r}, a tensor of {dtype}: only floating-point tensors have derivatives")
    return names


def _name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, nn.Module):
        return type(function).__name__
    return getattr(function, "__name__", None) or type(function).__name__


def _named(function: Callable[..., Any], inputs: Any) -> tuple[dict[str, Tensor], bool]:
    """The inputs by name, and whether they are passed by keyword."""
    signature = _signature(function)
    kinds = inspect.Parameter
    parameters = list(signature.parameters.values()) if signature else []
    if isinstance(inputs, Mapping):
        named = {str(name): tensor for name, tensor in inputs.items()}
        keywords = {p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)}
        by_keyword = set(named) <= keywords or not parameters or any(p.kind is kinds.VAR_KEYWORD for p in parameters)
    elif isinstance(inputs, Tensor | tuple | list):
        values = [inputs] if isinstance(inputs, Tensor) else inputs
        names = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        names += [f"x{n}" for n in range(len(names), len(values))]
        named, by_keyword = dict(zip(names, values, strict=False)), False
    else:
        kind = type(inputs).__name__
        raise Misuse(f"inputs is of type {kind}; give {{name: tensor}}, a tensor, or a tuple of tensors")
    if not named:
        raise Misuse("inputs is empty; give at least one tensor to differentiate by")
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(
                f"the input {name!r} is of type {type(tensor).__name__}, not a tensor; "
                "wrap it with torch.tensor, or fix it with functools.partial"
            )
    if signature:
        _require_fit(function, signature, named, by_keyword)
    return named, by_keyword


def _require_fit(
    function: Callable[..., Any], signature: inspect.Signature, named: Mapping[str, Tensor], by_keyword: bool
) -> None:
    try:
        signature.bind(**named) if by_keyword else signature.bind(*named.values())
    except TypeError as error:
        hint = ""
        if not by_keyword and any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values()):
            hint = "; to pass inputs by keyword, give {name: tensor}"
        raise Misuse(
            f"{_name_of(function)}{signature} cannot take the inputs {', '.join(named)}: {error}{hint}"
        ) from None


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a function; None for builtins that do not tell."""
    try:
        return inspect.signature(function.forward if isinstance(function, nn.Module) else function)
    except (TypeError, ValueError):
        return None


def _enclosed_modules(function: Callable[..., Any]) -> Iterator[nn.Module]:
    """The modules that a function reaches through its closure, globals, defaults, partial arguments or `self`."""
    seen: set[int] = set()
    for value in _reached(function):
        for item in pytree.tree_leaves(value) if isinstance(value, dict | list | tuple) else [value]:
            if isinstance(item, nn.Module) and id(item) not in seen:
                seen.add(id(item))
                yield item


def _reached(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from _reached(function.func)
        return
    if inspect.ismethod(function):
        yield function.__self__
        function = function.__func__
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # an empty cell: the name is not bound yet
            continue
        yield value
        if inspect.isfunction(value) and value is not function:
            yield from (c.cell_contents for c in value.__closure__ or () if c is not cell)
    yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
    yield from function.__defaults__ or ()


def _outputs(result: Any, name: str) -> tuple[Tensor, ...]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if not leaves:
        got = "None" if result is None else f"an object of type {type(result).__name__}"
        raise Misuse(f"{name} returned {got}; it must return a tensor, or a tuple, list or dict that holds tensors")
    return tuple(leaves)


@contextmanager
def restored(binding: Binding) -> Iterator[None]:
    """Leave the random state of torch, NumPy and Python, and the modules' modes and state, as they were."""
    python, legacy = random.getstate(), np.random.get_state()
    modes = [(module, module.training) for top in binding.modules for module in top.modules()]
    kept = [(tensor, tensor.grad) for tensor in binding.inputs.values() if tensor.is_leaf]
    # A checkpoint runs the module again in the backward, where its own buffers are back in place.
    buffers = [buffer for top in binding.modules for buffer in top.buffers() if buffer.layout is torch.strided]
    values = [(buffer.detach(), buffer.detach().clone()) for buffer in buffers]
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
            for module, training in modes:
                module.training = training
            for tensor, grad in kept:
                if tensor.grad is not grad:
                    tensor.grad = grad
            for buffer, value in values:
                if not bool(((buffer == value) | ((buffer != buffer) & (value != value))).all()):
                    buffer.copy_(value)
