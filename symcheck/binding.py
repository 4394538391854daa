"""Binding a function to named tensors: what its inputs are called, how it is called, and leaving no trace.

A `Binding` calls the user's function on copies, with the global random state, module buffers, `.grad` and training
modes as they were afterwards.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        inputs: its tensors by name, parameters and buffers of a module included; the user's own, never written to.
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


def bind(function: Callable[..., Any], inputs: Any, wrt: Sequence[str] | str | None = None) -> Binding:
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
        raise Misuse(f"function is a {type(function).__name__}; give a callable on tensors or an nn.Module")
    module = function if isinstance(function, nn.Module) else None
    named, by_keyword = _named(function, inputs)
    arguments = list(named)
    state = _module_state(module, arguments)
    enclosed = (module,) if module is not None else tuple(_enclosed_modules(function))
    everything = {**named, **{name: tensor for name, (_, tensor) in state.items()}}

    def call(tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        own = [tensors[name] for name in arguments]
        args, kwargs = ((), dict(zip(arguments, own, strict=True))) if by_keyword else (tuple(own), {})
        with ExitStack() as stack:
            for other in enclosed:
                if other is not module:
                    stack.enter_context(_buffers_copied(other))
            if module is None:
                result = function(*args, **kwargs)
            else:
                replaced = {key: tensors[name] for name, (key, _) in state.items()}
                result = torch.func.functional_call(module, replaced, args, kwargs)
        return _outputs(result, _name_of(function))

    buffers = set() if module is None else {key for key, _ in module.named_buffers()}
    movable = {name: tensor for name, tensor in everything.items() if state.get(name, ("",))[0] not in buffers}
    chosen = select_wrt(movable if wrt is None else everything, wrt)
    return Binding(_name_of(function), everything, call, chosen, len(arguments), enclosed)


def select_wrt(inputs: Mapping[str, Tensor], wrt: Sequence[str] | str | None) -> tuple[str, ...]:
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
    names = (wrt,) if isinstance(wrt, str) else tuple(wrt)
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
    parameters = _parameters(function)
    names = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
    variadic = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    if isinstance(inputs, Mapping):
        named = {str(name): tensor for name, tensor in inputs.items()}
        by_keyword = not parameters or (
            set(named) <= {p.name for p in parameters if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
            or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        )
    else:
        values = [inputs] if isinstance(inputs, Tensor) else list(inputs) if isinstance(inputs, tuple | list) else None
        if values is None:
            raise Misuse(f"inputs is a {type(inputs).__name__}; give {{name: tensor}}, a tensor, or a tuple of tensors")
        if parameters and not variadic and len(values) > len(names):
            raise Misuse(
                f"{len(values)} inputs for {_name_of(function)}, which takes {len(names)}: {', '.join(names)}"
            )
        named = {names[n] if n < len(names) else f"x{n}": value for n, value in enumerate(values)}
        by_keyword = False
    if not named:
        raise Misuse("inputs is empty; give at least one tensor to differentiate by")
    for name, tensor in named.items():
        if not isinstance(tensor, Tensor):
            raise Misuse(
                f"the input {name!r} is a {type(tensor).__name__}, not a tensor; "
                "wrap it with torch.tensor, or fix it with functools.partial"
            )
    return named, by_keyword


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []


def _module_state(module: nn.Module | None, taken: Sequence[str]) -> dict[str, tuple[str, Tensor]]:
    """{input name: (the module's own name, tensor)}, names that an argument has already taken prefixed."""
    if module is None:
        return {}
    tensors = [*module.named_parameters(remove_duplicate=True), *module.named_buffers(remove_duplicate=True)]
    return {(f"module.{key}" if key in taken else key): (key, tensor) for key, tensor in tensors}


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


@contextmanager
def _buffers_copied(module: nn.Module) -> Iterator[None]:
    """Let a module that is not an input update copies of its buffers."""
    copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
    if not copies:
        yield
        return
    with torch.nn.utils.stateless._reparametrize_module(module, copies):
        yield


def _outputs(result: Any, name: str) -> tuple[Tensor, ...]:
    leaves = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if not leaves:
        got = "None" if result is None else f"a {type(result).__name__}"
        raise Misuse(f"{name} returned {got}; it must return a tensor, or a tuple, list or dict that holds tensors")
    return tuple(leaves)


@contextmanager
def restored(binding: Binding) -> Iterator[None]:
    """Leave the random state of torch, NumPy and Python, and the modules' modes and state, as they were."""
    python, legacy = random.getstate(), np.random.get_state()
    modes = [(module, module.training) for top in binding.modules for module in top.modules()]
    kept = [(tensor, tensor.grad) for tensor in binding.inputs.values() if tensor.is_leaf]
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
