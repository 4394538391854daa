"""Running a candidate again in another setting, and telling what rounding does not explain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import Formula, run_autograd, run_formula, unit_roundoff
from symcheck.layouts import Watch, custom_steps, in_strides, names_of, relay, strided

__all__ = [
    "FACTOR",
    "Run",
    "Setting",
    "Subject",
    "Values",
    "apart",
    "largest_difference",
    "rerun_autograd",
    "rerun_formula",
]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]
Values: TypeAlias = Mapping[str, Floats]

FACTOR = -0.5  # of the cotangent, in another run: exact in every dtype
NOTICED = 2.0**-20  # of the largest element: a smaller difference is not looked into
ROUNDINGS = 64.0  # roundings that a difference must exceed
SHRINKS = 2.0**10  # a difference that is so many times smaller in float64 than in float32 is rounding


@dataclass(frozen=True, slots=True)
class Setting:
    """How a candidate is run.

    Attributes:
        cotangents: by which values.
        inputs: how the inputs lie in memory: "plain", "strided", or "own" as the user's.
        cotangent: how the cotangent does.
        custom: how the cotangents inside custom functions do; "" for as they come.
        target: the dtype of everything; None for the inputs' own.
    """

    cotangents: tuple[Floats, ...]
    inputs: str = "plain"
    cotangent: str = "plain"
    custom: str = ""
    target: torch.dtype | None = None


Run: TypeAlias = Callable[[Setting], Values]


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A candidate that can be run.

    Attributes:
        candidate: as in `Finding`.
        what: what its backward is called in sentences.
        run: gives its gradients by input.
        plain: the setting that the check itself runs it in.
        dtype: the coarsest of its inputs.
        linear: whether a cotangent is passed to it, in which it must be linear.
    """

    candidate: str
    what: str
    run: Run
    plain: Setting
    dtype: str
    linear: bool


# -- running ------------------------------------------------------------------------------------------------------


def _laying_out(tensors: Tensors, names: Collection[str], how: str) -> Callable[[Tensors], Tensors]:
    """How copies of some tensors are laid out, those named; by strides that are read here, outside any mode."""
    strides = {name: tensors[name].stride() for name in names if tensors[name].layout is torch.strided}

    def lay_out(copies: Tensors) -> Tensors:
        if how == "strided":
            return {name: strided(copy) if name in strides else copy for name, copy in copies.items()}
        if how == "own":
            return {name: in_strides(copy, strides[name]) if name in strides else copy for name, copy in copies.items()}
        return copies

    return lay_out


def rerun_autograd(
    binding: Binding, tensors: Tensors, positions: Sequence[int], watch: Watch, customs: list[str], setting: Setting
) -> Values:
    """Autograd's gradients in a setting; what it overwrites goes to `watch`, custom functions' names to `customs`."""
    lay_out = _laying_out(tensors, list(tensors)[: binding.arguments], setting.inputs)
    # A module's buffers may change: a checkpoint runs a batch norm in the backward again.
    watched = dict.fromkeys([*list(tensors)[: binding.arguments], *binding.wrt])

    def call(copies: Tensors) -> tuple[Tensor, ...]:
        given = lay_out(copies)
        with watch.saving():
            outputs = binding.call(given)
        for place in dict.fromkeys(positions):
            if outputs[place].requires_grad:
                outputs[place].register_hook(cotangent)
        steps = custom_steps([outputs[place] for place in positions])
        customs[:] = names_of(steps)
        if setting.custom:
            for step in steps:
                relay(step, strided if setting.custom == "strided" else Tensor.contiguous)
        watch.begin({name: given[name] for name in watched})
        return outputs

    def cotangent(grad: Tensor) -> Tensor:
        laid = strided(grad) if setting.cotangent == "strided" else grad
        watch.hold(laid)
        return laid

    try:
        relaid = replace(binding, call=call)
        grads, _ = run_autograd(relaid, tensors, binding.wrt, setting.cotangents, positions, setting.target)
    except Exception:
        watch.follows_saving = False
        raise
    finally:
        watch.end()
    return {name: grad.values for name, grad in grads.items() if grad.values is not None}


def rerun_formula(formula: Formula, tensors: Tensors, watch: Watch, setting: Setting) -> Values:
    lay_out = _laying_out(tensors, list(tensors), setting.inputs)

    def call(copies: Tensors, weights: Sequence[Tensor]) -> object:
        given = lay_out(copies)
        weights = [strided(weight) for weight in weights] if setting.cotangent == "strided" else weights
        watch.begin(given, weights)
        result = formula.call(given, weights)
        watch.end()
        return result

    gradient = run_formula(replace(formula, call=call), tensors, setting.cotangents, setting.target)
    return {} if gradient.values is None else {formula.input: gradient.values}


# -- comparing ----------------------------------------------------------------------------------------------------


def largest_difference(first: Floats, second: Floats, dtype: str) -> float:
    """The largest difference of two runs where both are finite; 0 where a few roundings could be the cause."""
    with np.errstate(invalid="ignore", over="ignore"):
        usable = np.isfinite(first) & np.isfinite(second)
        scale = float(np.max(np.maximum(np.abs(first), np.abs(second)), initial=0.0, where=usable))
        apart = float(np.max(np.abs(first - second), initial=0.0, where=usable))
    return apart if apart > max(NOTICED, ROUNDINGS * unit_roundoff(dtype)) * scale else 0.0


def apart(subject: Subject, first: Setting, second: Setting, factor: float = 1.0, *, tries: int = 1) -> tuple[str, ...]:
    """The inputs by which a candidate's second gradient is not `factor` times the first, beyond rounding.

    Args:
        subject: the candidate.
        first, second: how it is run.
        factor: what the second setting should make of the gradient.
        tries: how often it is run the second way; the largest difference counts.

    Raises:
        Exception: whatever the candidate raises.
    """

    def differences(target: torch.dtype | None, dtype: str) -> dict[str, float]:
        found: dict[str, float] = {}
        one = subject.run(replace(first, target=target))
        for _ in range(tries):
            other = subject.run(replace(second, target=target))
            for name in one.keys() & other.keys():
                off = largest_difference(factor * one[name], other[name], dtype)
                found[name] = max(found.get(name, 0.0), off)
        return {name: found[name] for name in one if name in found}

    here = differences(None, subject.dtype)
    if not any(here.values()):
        return ()
    there = "float32" if subject.dtype == "float64" else "float64"
    elsewhere = differences(getattr(torch, there), there)
    low, high = (elsewhere, here) if subject.dtype == "float64" else (here, elsewhere)
    return tuple(n for n in here if here[n] and elsewhere.get(n) and low[n] <= SHRINKS * high[n])
