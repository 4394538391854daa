"""Running code on values that lie in memory in another way, and watching what it overwrites."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from symcheck.candidates import is_same

__all__ = ["CustomStep", "Watch", "custom_steps", "in_strides", "names_of", "relay", "strided"]

Tensors: TypeAlias = Mapping[str, Tensor]
CustomStep: TypeAlias = Any  # a step of autograd's graph whose backward is the user's Python code

FILLER = 12345.0  # what lies between the elements of a strided tensor


def strided(tensor: Tensor) -> Tensor:
    """The same values, last axis outermost and with gaps between them; autograd knows where they come from."""
    if tensor.layout is not torch.strided or not tensor.is_floating_point():
        return tensor
    backwards = tuple(reversed(range(tensor.dim())))
    turned = tensor.permute(backwards)
    return torch.stack([turned, torch.full_like(turned, FILLER)], -1)[..., 0].permute(backwards)


def in_strides(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same values with other strides, unless elements would share memory; autograd knows where they come from."""
    shared = any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, strides, strict=True))
    if shared or not tensor.numel() or tensor.stride() == strides:
        return tensor
    reach = 1 + sum((int(size) - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    memory = torch.zeros(reach, dtype=tensor.dtype, device=tensor.device)
    return memory.as_strided(tensor.shape, strides).copy_(tensor)


def custom_steps(outputs: Sequence[Tensor]) -> list[CustomStep]:
    """The steps of autograd's graph below some outputs that run a backward written in Python."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set(waiting)
    found: list[CustomStep] = []
    while waiting:
        step = waiting.pop()
        if isinstance(step, torch.autograd.function.BackwardCFunction):
            found.append(step)
        parents = {parent for parent, _ in step.next_functions if parent is not None} - seen
        seen |= parents
        waiting += parents
    return found


@dataclass(slots=True, eq=False)
class Watch:
    """Remembers tensors, and which of them are something else later.

    Attributes:
        inputs: the names of those that were overwritten.
        cotangent: whether a cotangent was.
        saved: whether something that the forward saved was.
        follows_saving: whether what is saved is followed; `torch.func` inside a function does not allow it.
    """

    inputs: set[str] = field(default_factory=set)
    cotangent: bool = False
    saved: bool = False
    follows_saving: bool = True
    _given: list[tuple[str, Tensor, Tensor]] = field(default_factory=list)
    _cotangents: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _kept: list[tuple[Tensor, int]] = field(default_factory=list)
    _packed: list[Tensor] = field(default_factory=list)

    def saving(self) -> AbstractContextManager[Any]:
        """Notes what autograd saves inside the block."""
        if not self.follows_saving:
            return nullcontext()

        def pack(tensor: Tensor) -> Tensor:
            self._packed.append(tensor)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def begin(self, inputs: Tensors, cotangents: Sequence[Tensor] = ()) -> None:
        """From here on nothing may be overwritten."""
        self._given = [(name, tensor, tensor.detach().clone()) for name, tensor in inputs.items()]
        self._kept = [(tensor, tensor._version) for tensor in self._packed]
        for cotangent in cotangents:
            self.hold(cotangent)

    def hold(self, cotangent: Tensor) -> None:
        """One more cotangent that may not be."""
        self._cotangents.append((cotangent, cotangent.detach().clone()))

    def end(self) -> None:
        """Compare, and let go of everything."""
        self.inputs |= {name for name, now, before in self._given if not is_same(now, before)}
        self.cotangent |= any(not is_same(now, before) for now, before in self._cotangents)
        self.saved |= any(tensor._version != version for tensor, version in self._kept)
        for held in (self._given, self._cotangents, self._kept, self._packed):
            held.clear()  # what was packed refers to the graph, and the graph to it


def relay(step: CustomStep, change: Callable[[Tensor], Tensor]) -> None:
    """Let a step's backward be given its cotangents in another layout."""

    def prehook(grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(None if grad is None else change(grad) for grad in grads)

    step.register_prehook(prehook)


def names_of(steps: Sequence[CustomStep]) -> Iterator[str]:
    """The classes that the user wrote, each once."""
    yield from dict.fromkeys(step.name().removesuffix("Backward") for step in steps)
