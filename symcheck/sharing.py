"""Inputs that hang together: computed from one another, or sharing memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.facts import Fact, Kind
from symcheck.findings import Verdict

__all__ = ["computed_from", "copied_together", "dependences", "overlaps", "share_memory"]

Tensors: TypeAlias = Mapping[str, Tensor]

# steps of autograd through which no gradient other than zero flows
CONSTANT_STEPS = frozenset({"FloorBackward0", "CeilBackward0", "RoundBackward0", "TruncBackward0", "SignBackward0"})
LARGE = 1 << 20  # elements of inputs above which shared memory is not compared element by element


def dependences(tensors: Tensors, wrt: Collection[str], nonzero: Collection[str]) -> Iterator[Fact]:
    """Inputs by which autograd, run on these tensors themselves, gives a total derivative.

    Args:
        tensors: the user's own.
        wrt: the names that are differentiated by.
        nonzero: the names by which the gradient of the function is not all zero.
    """
    for name in wrt:
        others = [other for other in nonzero if other != name and computed_from(tensors[other], tensors[name])]
        if not others:
            continue
        listed = ", ".join(others)
        yield Fact(
            Kind.DEPENDENCE,
            "autograd",
            (name,),
            f"{listed} {_was(others)} computed from {name} and still {'hang' if len(others) > 1 else 'hangs'} on it: "
            f"at these tensors autograd adds what flows through {listed}, a total derivative by {name}; as a function "
            f"of separate inputs it has another",
            f"detach {listed} before it is given, or compute it from {name} inside the function",
            Verdict.OTHER,
        )


def computed_from(result: Tensor, origin: Tensor) -> bool:
    """Whether autograd knows a way by which a gradient flows from one tensor back to another, other than itself."""
    if result is origin or result.grad_fn is None or not origin.requires_grad:
        return False
    waiting: list[tuple[Any, int]] = [(result.grad_fn, result.output_nr)]
    seen = set()
    while waiting:
        step, place = waiting.pop()
        if _leads_to(step, place, origin):
            return True
        if step in seen or step.name() in CONSTANT_STEPS:
            continue
        seen.add(step)
        waiting += [(parent, number) for parent, number in step.next_functions if parent is not None]
    return False


def _leads_to(step: Any, place: int, origin: Tensor) -> bool:
    if origin.grad_fn is None:
        return getattr(step, "variable", None) is origin
    return step is origin.grad_fn and place == origin.output_nr


def overlaps(tensors: Tensors) -> Iterator[Fact]:
    """Inputs that share memory, with one another or within one; each element is taken for itself all the same."""
    for left, right in combinations(tensors, 2):
        if tensors[left] is tensors[right]:
            said = f"{left} and {right} are the same tensor"
        elif share_memory(tensors[left], tensors[right]):
            said = f"{left} and {right} share memory"
        else:
            continue
        more = "each is judged with the other held fixed"
        if tensors[left].requires_grad and tensors[left] is tensors[right]:
            more += f", and .grad would hold the sum of the gradients by {left} and {right}"
        yield Fact(Kind.OVERLAP, "", (left, right), f"{said}: {more}")
    for name, tensor in tensors.items():
        if _is_expanded(tensor):
            said = f"elements of {name} share memory, as it is expanded: each is differentiated by on its own"
            yield Fact(Kind.OVERLAP, "", (name,), said)


def _is_expanded(tensor: Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def share_memory(left: Tensor, right: Tensor) -> bool:
    """Whether an element of one tensor is one of another's; between large tensors, whether their ranges meet."""
    if left.layout is not torch.strided or right.layout is not torch.strided or not left.numel() or not right.numel():
        return False
    if left.device != right.device or left.untyped_storage().data_ptr() != right.untyped_storage().data_ptr():
        return False
    (low, high), (start, end) = _range(left), _range(right)
    if high <= start or end <= low:
        return False
    if max(left.numel(), right.numel()) > LARGE or left.element_size() != right.element_size():
        return True
    return bool(np.intersect1d(_places(left), _places(right)).size)


def copied_together(tensors: Tensors) -> dict[str, Tensor]:
    """Copies that share memory as the tensors do."""
    memories: dict[int, torch.UntypedStorage] = {}
    copies = {}
    for name, tensor in tensors.items():
        plain = tensor.detach()
        if plain.layout is not torch.strided:
            copies[name] = plain.clone()
            continue
        storage = plain.untyped_storage()
        memory = memories.setdefault(storage.data_ptr(), storage.clone())
        empty = torch.empty(0, dtype=plain.dtype, device=plain.device)
        copies[name] = empty.set_(memory, plain.storage_offset(), plain.size(), plain.stride())
    return copies


def _range(tensor: Tensor) -> tuple[int, int]:
    reach = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return start, start + (reach + 1) * tensor.element_size()


def _places(tensor: Tensor) -> NDArray[np.int64]:
    places = np.full(1, tensor.storage_offset(), dtype=np.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = np.add.outer(places, np.arange(size, dtype=np.int64) * stride).ravel()
    return places


def _was(names: Collection[str]) -> str:
    return "were" if len(names) > 1 else "was"
