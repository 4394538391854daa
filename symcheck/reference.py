"""The reference: a function traced and derived once, evaluated in float64 with a running bound at any input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from symcheck.arithmetic.bound import Bound, Bounded
from symcheck.arithmetic.double import Double
from symcheck.binding import Binding
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.lowering import Traced, to_numpy
from symcheck.program import Program
from symcheck.refinement import ball_seconds, evaluate_sharply
from symcheck.tracing import trace

__all__ = ["Derived", "Exact", "Point", "derive_reference"]


LOOSE = 2.0**-32  # of a tensor's largest element: a float64 bound above this is sharpened in balls
SECONDS = 0.5  # if that takes no longer


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """The reference gradient by one input.

    Attributes:
        values: float64, the input's shape.
        errors: bound on |values - exact gradient|, same shape; inf where there is none.
        running: how far rounding in float64 could move them, same shape: `errors`, unless those come from balls.
        open: where it depends on a decision that could fall either way: at a kink, or too close to tell.
    """

    values: NDArray[np.float64]
    errors: NDArray[np.float64]
    open: NDArray[np.bool_]
    running: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Point:
    """The reference at one input.

    Attributes:
        gradients: by input name.
        outputs: the primal's outputs, with their bounds.
        undecided: source lines where Python looked at a value that is not decided strictly.
        diverted: source lines where Python looked at a value that was another one when the function was traced.
        jumps: the inputs by which an output's very value depends on a decision that could fall either way.
    """

    gradients: Mapping[str, Exact]
    outputs: tuple[Exact, ...]
    undecided: tuple[str, ...]
    diverted: tuple[str, ...]
    jumps: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """A traced function with its derived gradient.

    It is good for any values of the shapes and dtypes it was traced at, as long as Python code that looks at values
    sees the same.

    Attributes:
        traced: the function's program.
        gradient: the program of gradients, then outputs, then guards.
        wrt: the inputs differentiated by.
        decisions: the values that Python code looked at where the function was traced, in the order of its guards.
    """

    traced: Traced
    gradient: Program
    wrt: tuple[str, ...]
    decisions: tuple[NDArray[np.generic], ...]

    def at(self, tensors: Mapping[str, NDArray[np.generic]], cotangents: Sequence[NDArray[np.float64]]) -> Point:
        """Evaluate at inputs (float64 or integer arrays by name), with one cotangent per output."""
        given = dict(tensors) | {f"d_cotangent{n}": cotangent for n, cotangent in enumerate(cotangents)}
        values = evaluate(self.gradient, given, Bound(), moving=self.wrt)
        exact = {name: _exact(value) for name, value in zip(self.wrt, values, strict=False)}
        outputs = tuple(map(_exact, values[len(self.wrt) :][: self.traced.outputs]))
        guards, sources = values[len(self.wrt) + self.traced.outputs :], self.traced.guards
        jumps = frozenset(self.wrt if _any_open(outputs) else ())
        if len(self.wrt) > 1 and (jumps or _any_open(exact.values())):
            exact, jumps = self._by_each(given)
        if ball_seconds(self.gradient) <= SECONDS and _is_loose(exact):  # the cheaper question first
            exact = self._sharpened(given, exact)
        return Point(
            exact,
            outputs,
            tuple(source for guard, source in zip(guards, sources, strict=True) if _is_open(guard)),
            tuple(
                source
                for guard, taken, source in zip(guards, self.decisions, sources, strict=True)
                if not np.array_equal(guard.value, taken)
            ),
            jumps,
        )

    def _sharpened(self, given: Mapping[str, NDArray[np.generic]], exact: Mapping[str, Exact]) -> dict[str, Exact]:
        """The gradients from balls where these are finite; what is open stays open."""
        sharp = evaluate_sharply(self.gradient, given)
        result = {}
        for (name, old), (values, errors) in zip(exact.items(), sharp, strict=False):
            better = np.isfinite(errors) & np.isfinite(values)
            errors = np.where(better, errors, old.errors)
            running = np.where(np.isfinite(old.running), old.running, errors)
            result[name] = Exact(np.where(better, values, old.values), errors, old.open, running)
        return result

    def _by_each(self, given: Mapping[str, NDArray[np.generic]]) -> tuple[dict[str, Exact], frozenset[str]]:
        """The gradient by each input with the others held: a tie that only they move is no kink of it."""
        exact, jumps = {}, set()
        for place, name in enumerate(self.wrt):
            values = evaluate(self.gradient, given, Bound(), moving=(name,))
            exact[name] = _exact(values[place])
            if _any_open(map(_exact, values[len(self.wrt) :][: self.traced.outputs])):
                jumps.add(name)
        return exact, frozenset(jumps)

    def follows(self, tensors: Mapping[str, NDArray[np.generic]]) -> bool:
        """Whether Python code sees at these inputs what it saw where the function was traced."""
        return all(map(np.array_equal, _decisions(self.traced, tensors), self.decisions))


def _is_loose(exact: Mapping[str, Exact]) -> bool:
    """Whether some element has no finite value or bound, or a bound too large beside its tensor's scale to tell much.

    A gradient that is zero but for rounding has no scale of its own; there the largest of all gradients is one.
    """
    known = (np.isfinite(value.values) & np.isfinite(value.errors) | value.open for value in exact.values())
    if not all(mask.all() for mask in known):
        return True
    scales = {name: _largest(value.values, value) for name, value in exact.items()}
    bounds = {name: _largest(value.errors, value) for name, value in exact.items()}
    overall = max(scales.values(), default=0.0)
    return any(
        bound > LOOSE * scales[name] and (bound < scales[name] or bound > LOOSE * overall)
        for name, bound in bounds.items()
        if bound > 0
    )


def _largest(parts: NDArray[np.float64], exact: Exact) -> float:
    known = np.isfinite(exact.values) & ~exact.open
    return float(np.max(np.abs(parts), where=known, initial=0.0))


def _any_open(values: Iterable[Exact]) -> bool:
    return any(bool(value.open.any()) for value in values)


def _is_open(guard: Bounded) -> bool:
    return guard.other is not None and bool((guard.other != guard.value).any())


def derive_reference(binding: Binding, tensors: Mapping[str, Tensor]) -> Derived:
    """Trace and derive a function at the dtypes and shapes of some tensors.

    Raises:
        UnknownOperator, NonDeterministic, Untraceable: as `trace`.
    """
    apart = {name: tensor.detach().requires_grad_(name in binding.wrt) for name, tensor in tensors.items()}
    traced = trace(binding.call, apart)
    return Derived(
        traced, derive(traced.program, binding.wrt, keep=True), binding.wrt, _decisions(traced, numeric(tensors))
    )


def _decisions(traced: Traced, arrays: Mapping[str, NDArray[np.generic]]) -> tuple[NDArray[np.generic], ...]:
    """What Python code looks at, at some inputs."""
    if not traced.guards:
        return ()
    primal = traced.program
    guards = Program(primal.inputs, primal.constants, primal.statements, primal.outputs[traced.outputs :])
    return tuple(map(np.asarray, evaluate(guards, arrays, Double())))


def numeric(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[np.generic]]:
    """Tensors as the arrays that programs are evaluated at."""
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}


def _exact(value: Bounded) -> Exact:
    values = value.value
    if values.dtype != np.float64 or not (values.flags.writeable and values.flags.c_contiguous):
        values = np.array(values, dtype=np.float64)  # a copy of a view that cannot be written to
    error = np.asarray(0.0 if value.error is None else value.error)
    if np.isnan(np.sum(error)):
        error = np.where(np.isnan(error), np.inf, error)
    opened = np.zeros((), dtype=bool) if value.open is None else value.open
    errors = np.broadcast_to(error, values.shape)
    return Exact(values, errors, np.broadcast_to(opened, values.shape), errors)
