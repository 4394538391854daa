"""Running the user's code with every real tensor in one dtype, whatever dtypes it names itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["in_precision"]

CASTS = frozenset({"float", "double", "half", "bfloat16"})
UNTOUCHED = frozenset({"__get__", "__set__", "requires_grad_", "register_hook"})


@contextmanager
def in_precision(target: torch.dtype | None) -> Iterator[None]:
    """Run a block with every real tensor that it creates, reads or casts in the dtype `target`; as it is for None.

    Integers, and memory that is written to, stay as they are. The code of a custom backward is run so too.
    """
    if target is None:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(target)
    try:
        with _Precision(target):
            yield
    finally:
        torch.set_default_dtype(before)


class _Precision(TorchFunctionMode):
    """Casts what torch's functions are given."""

    def __init__(self, target: torch.dtype) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in UNTOUCHED:
            return func(*args, **kwargs)
        if name in CASTS and args and isinstance(args[0], Tensor):
            return args[0].to(self.target)
        written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        first = args[:1] if written else tuple(map(self._cast, args[:1]))
        rest = tuple(map(self._cast, args[1:]))
        kwargs = {key: self._cast(value) for key, value in kwargs.items()}
        if func is Tensor.backward:
            func = torch.autograd.backward  # which takes the same, but for one name
            kwargs = {"grad_tensors" if key == "gradient" else key: value for key, value in kwargs.items()}
        if func in (torch.autograd.grad, torch.autograd.backward):
            with self._within_backward():
                return func(*first, *rest, **kwargs)
        return func(*first, *rest, **kwargs)

    def _cast(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            real = value.is_floating_point() and value.dtype != self.target
            return value.to(self.target) if real else value
        if isinstance(value, torch.dtype):
            return self.target if value.is_floating_point else value
        if type(value) in (tuple, list):
            return type(value)(map(self._cast, value))
        return value

    @contextmanager
    def _within_backward(self) -> Iterator[None]:
        """A function that a mode handles runs without the mode; but this one runs the user's own backward.

        So the mode is entered again, and autograd must not hand the call back to it.
        """
        names = vars(torch.autograd)
        kept = names["has_torch_function"]
        names["has_torch_function"] = lambda *_: False
        try:
            with self:
                yield
        finally:
            names["has_torch_function"] = kept
