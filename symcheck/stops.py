"""Where autograd is told to stop: `no_grad`, `detach` and `.data`, with the user's source lines."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

__all__ = ["find_stops"]

LIBRARIES = tuple(str(Path(file).parent) for file in (__file__, torch.__file__))  # whose frames are not the user's

DETACHING = {Tensor.detach: "detach", Tensor.detach_: "detach_", vars(torch._C.TensorBase)["data"].__get__: ".data"}


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
        call(tensors)
    return tuple(dict.fromkeys(watch.stops))


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
            if func in DETACHING:
                self.stops.append(f"{DETACHING[func]}{_user_line()}")
            elif self.region and not torch.is_grad_enabled():
                self.stops.append(self.region)
                self.region = ""
        return func(*args, **(kwargs or {}))


def _user_line() -> str:
    """` at file.py:12: code` of the innermost frame that is neither torch's nor symcheck's, or ""."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(path, number).strip()
    return f" at {Path(path).name}:{number}{f': {code}' if code else ''}"
