"""What the candidates mean: their own programs, traced in their own dtypes and joined with the exact gradient's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import Formula, describe_error
from symcheck.errors import SymcheckError, Untraceable
from symcheck.lowering import Traced
from symcheck.program import Program
from symcheck.reference import Derived
from symcheck.separation import Joint, Key, join_candidates
from symcheck.tracing import trace, trace_backward

__all__ = ["Intended", "trace_candidates"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Intended:
    """The programs of a check's candidates.

    Attributes:
        joints: those that take a cotangent (False) and those that do not (True).
        programs: each candidate's own program, and which of its outputs is the gradient by the input.
        problems: why a candidate has no program.
        missing: the inputs by which autograd returns None.
    """

    joints: Mapping[bool, Joint]
    programs: Mapping[Key, tuple[Program, int]]
    problems: Mapping[Key, str]
    missing: frozenset[str]

    def joint_of(self, key: Key) -> tuple[bool, Joint] | None:
        """The joint program that a candidate is in, and whether it takes no cotangent; None without a program."""
        return next(((plain, joint) for plain, joint in self.joints.items() if key in joint.members), None)


def trace_candidates(
    binding: Binding,
    tensors: Tensors,
    derived: Derived,
    formulas: Sequence[Formula],
    cotangents: Sequence[Floats],
) -> Intended:
    """Trace autograd's backward and the hand formulas at the dtypes and shapes of some tensors.

    Args:
        binding: the function.
        tensors: its inputs.
        derived: the reference.
        formulas: the hand formulas.
        cotangents: one per output; their shapes count.
    """
    wrt, missing = derived.wrt, frozenset[str]()
    problems: dict[Key, str] = {}
    programs: dict[bool, list[tuple[str, Program, Sequence[str]]]] = {False: [], True: []}
    weights = [torch.from_numpy(np.array(cotangent)) for cotangent in cotangents]
    try:
        backward = trace_backward(binding.call, tensors, wrt, weights, derived.traced.positions)
        if not set(backward.guards) <= set(derived.traced.guards):
            raise Untraceable("Python code in a backward looks at a value")
        programs[False].append(("autograd", backward.program, wrt))
        missing = backward.missing
    except Exception as error:
        problems |= {("autograd", name): _problem("autograd's backward", error) for name in wrt}
    for formula in formulas:
        try:
            traced = _trace_formula(formula, tensors, weights)
            programs[not formula.takes_cotangent].append(("formula", traced.program, (formula.input,)))
        except Exception as error:
            problems["formula", formula.input] = _problem(f"the formula for {formula.input}", error)
    joints = {
        plain: join_candidates(derived.gradient, wrt, derived.traced.outputs, members)
        for plain, members in programs.items()
        if members
    }
    own = {
        (candidate, name): (program, place)
        for members in programs.values()
        for candidate, program, names in members
        for place, name in enumerate(names)
    }
    return Intended(joints, own, problems, missing)


def _trace_formula(formula: Formula, tensors: Tensors, weights: Sequence[Tensor]) -> Traced:
    wanted = tuple(tensors[formula.input].shape)
    like = tensors[formula.input]

    def flat(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        own = {name: given[name] for name in tensors}
        seeds = [given[f"d_cotangent{n}"].to(like.dtype) for n in range(len(weights))]
        result = formula.call(own, seeds)
        tensor = result if isinstance(result, Tensor) else torch.as_tensor(result, dtype=like.dtype)
        if not tensor.is_floating_point():
            tensor = tensor.to(like.dtype)
        return (tensor.reshape(wanted),)

    plain = {name: tensor.detach() for name, tensor in tensors.items()}
    traced = trace(flat, {**plain, **{f"d_cotangent{n}": weight for n, weight in enumerate(weights)}})
    if traced.guards:
        raise Untraceable("Python code in it looks at a value")
    return traced


def _problem(what: str, error: Exception) -> str:
    if isinstance(error, SymcheckError):
        return f"{what} has no program: {error}"
    return f"{what} could not be traced: {describe_error(what, error)}"
