"""Where autograd is stopped: by `no_grad`, `detach`, a copy that it does not follow, a backward that returns None."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from symcheck.layouts import CustomStep, custom_steps, names_of

__all__ = ["find_stops"]

LIBRARIES = tuple(str(Path(file).parent) for file in (__file__, torch.__file__))  # whose frames are not the user's
LONGEST = 100  # characters of a source line that is quoted

STOPPING = {  # of a tensor that needs a gradient these give one, or numbers, through which none flows
    Tensor.detach: "detach",
    Tensor.detach_: "detach_",
    vars(torch._C.TensorBase)["data"].__get__: ".data",
    torch.tensor: "torch.tensor",
    Tensor.new_tensor: "new_tensor",
    Tensor.item: "item",
    Tensor.tolist: "tolist",
    Tensor.__float__: "float",
    Tensor._make_subclass: "Parameter",
}


def find_stops(call: Callable[[Mapping[str, Tensor]], Any], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The places where a function stops autograd, as it runs on some tensors.

    Only what stops a gradient counts: a tensor that needs none may be detached.

    Args:
        call: as in `Binding`.
        tensors: its inputs, those to differentiate by with `requires_grad`.

    Returns:
        Such as ``("detach at model.py:12: scale = x.detach().std()",)``, in the order they were met.
    """
    watch = _Watch()
    with torch.enable_grad(), watch:
        outputs = call(tensors)
    return tuple(dict.fromkeys([*watch.stops, *_dropped(outputs, tensors.values())]))


def _dropped(outputs: Iterable[Tensor], tensors: Iterable[Tensor]) -> list[str]:
    """The custom functions whose backward returns None for a tensor that needs a gradient."""
    ends = [output for output in outputs if output.requires_grad]
    steps = custom_steps(ends)
    found: list[str] = []

    def hook(step: CustomStep, given: Sequence[Tensor | None], *_: Any) -> None:
        needed = [parent is not None for parent, _ in step.next_functions]
        if any(need and grad is None for need, grad in zip(needed, given, strict=False)):
            found.append(f"the backward of {next(names_of([step]))}, which returns None")

    for step in steps:
        step.register_hook(partial(hook, step))
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    if steps and wanted:
        torch.autograd.grad(ends, wanted, [torch.ones_like(end) for end in ends], allow_unused=True)
    return found


class _Watch(TorchFunctionMode):
    """Notes each call that stops a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[str] = []
        self.region = ""  # where gradients were switched off, until something that needs one is used there

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch._C._set_grad_enabled:
            self.region = "" if args[0] else f"no_grad{_user_line()}"
        elif any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in pytree.tree_leaves((args, kwargs))):
            if func in STOPPING:
                self.stops.append(f"{STOPPING[func]}{_user_line()}")
            elif func is torch.nn.functional.embedding and _pads(*args, **(kwargs or {})):
                self.stops.append(f"the padding_idx of embedding{_user_line()}")
            elif func is torch.autograd.grad and not (kwargs or {}).get("create_graph") and len(args) < 5:
                self.stops.append(f"autograd.grad without create_graph=True{_user_line()}")
            elif self.region and not torch.is_grad_enabled():
                self.stops.append(self.region)
                self.region = ""
        return func(*args, **(kwargs or {}))


def _pads(indices: Tensor, weight: Tensor, padding_idx: int | None = None, *_: Any, **__: Any) -> bool:
    """Whether an embedding looks up its padding row, which it uses and gives no gradient."""
    if padding_idx is None or not weight.requires_grad:
        return False
    return bool((indices == padding_idx % len(weight)).any())


def _user_line() -> str:
    """` at file.py:12: code` of the innermost frame that is neither torch's nor symcheck's, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    code = textwrap.shorten(linecache.getline(path, number), LONGEST, placeholder=" ...")
    return f" at {Path(path).name}:{number}{f': {code}' if code else ''}"
