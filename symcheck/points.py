"""The points that a check looks at: its cotangents, its inputs in another precision, and generic inputs nearby."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.errors import Misuse

__all__ = ["choose_cotangents", "moved", "rounded"]

Floats: TypeAlias = NDArray[np.float64]


def choose_cotangents(
    given: Any, shapes: Sequence[tuple[int, ...]], generator: np.random.Generator
) -> tuple[Floats, ...]:
    """The cotangents of a check, float64, one per output: those given, else ones for scalars and random elsewhere.

    Raises:
        Misuse: those given are not real numbers in the outputs' shapes.
    """
    if given is None:
        return tuple(_dyadic(shape, generator) if shape else np.ones(()) for shape in shapes)
    tensors = list(given) if isinstance(given, tuple | list) else [given]
    if len(tensors) != len(shapes):
        raise Misuse(f"there are {len(tensors)} cotangents for {len(shapes)} outputs; give a tuple with one per output")
    values = tuple(map(_real, tensors))
    for value, shape in zip(values, shapes, strict=True):
        if value.shape != shape:
            raise Misuse(f"the cotangent has the shape {value.shape}, the output {shape}; give both the same shape")
    return values


def _real(cotangent: Any) -> Floats:
    if isinstance(cotangent, Tensor) and not cotangent.is_complex():
        return np.array(cotangent.detach().double().cpu().numpy())
    if isinstance(cotangent, int | float | np.ndarray) and not np.iscomplexobj(cotangent):
        return np.array(cotangent, dtype=np.float64)
    raise Misuse(f"cotangent is of type {type(cotangent).__name__}; give a real tensor of the output's shape")


def _dyadic(shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    """Random numbers with 7 significant bits and magnitude in [1/2, 2): exact in every dtype."""
    magnitude = generator.integers(64, 128, size=shape) / 128.0 * 2.0 ** generator.integers(0, 2, size=shape)
    return np.asarray(magnitude * generator.choice([-1.0, 1.0], size=shape))


def rounded(tensor: Tensor, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
    """Real values rounded to a dtype, held in the dtype the tensor had; with `keep`, in that dtype."""
    if not tensor.is_floating_point():
        return tensor
    result = tensor.detach().to(dtype)
    return result if keep else result.to(tensor.dtype)


def moved(tensor: Tensor, generator: np.random.Generator, size: float, *, zeros: bool = True) -> Tensor:
    """A generic float64 point nearby: every element moved by about `size` of itself, zeros by `size` of the largest.

    Without `zeros`, those stay, so that no sign changes.
    """
    values = tensor.detach().to(torch.float64)
    finite = values[torch.isfinite(values)]
    largest = float(finite.abs().max()) if zeros and finite.numel() else 0.0
    scale = torch.where(values == 0, (largest or 1.0) if zeros else 0.0, values.abs())
    step = torch.from_numpy(_dyadic(tuple(tensor.shape), generator)) * scale * size
    return torch.where(torch.isfinite(values), values + step, values)
