"""The precision ladder at one input: a candidate in its own precision and in float64, beside the reference of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.arithmetic.double import Double
from symcheck.binding import Binding
from symcheck.candidates import Gradient, run_function, unit_roundoff
from symcheck.differences import MOST_EVALUATIONS, Differences, differentiate
from symcheck.errors import SymcheckError
from symcheck.evaluation import evaluate
from symcheck.findings import Worst
from symcheck.judgement import UNIT64, Evidence, Neighbour, Rung
from symcheck.noise import noise_levels
from symcheck.points import moved, rounded
from symcheck.reference import Derived, Exact, Point, numeric
from symcheck.selfcheck import directional_agreement, work

__all__ = ["Ladder"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]
Run: TypeAlias = Callable[[torch.dtype | None, Tensors], Floats | None]

MOVES = (2.0**-10, 2.0**-16, 2.0**-16, 2.0**-16)  # how far the inputs are at which a conviction must repeat
CLOSE = 2.0**-16  # far above the roundoff of float32, so that hidden rounding changes, and near for any formula
TRIES = 3  # points tried at each
TRACED = 2.0**-20  # how well the traced program must give the function's values: some kernels are no better
SLACK = 64.0  # the same, in bounds of the reference: torch's own rounding is another
UNDERFLOWS = 64.0  # how many smallest numbers of its dtype a function may lose to underflow
ALIKE = 4.0  # how many of their error estimates two differences may be apart
BALL_WORK = 20_000  # scalar operations up to which a contradiction by differences is settled in balls
BALL_BITS, BALL_STEP = 2_000, 400  # a step below every scale of a float64 function
BALL_AGREEMENT = 1e-12


class Ladder:
    """A function at one input.

    Attributes:
        point: the reference there, at the check's cotangents.
    """

    def __init__(
        self,
        binding: Binding,
        tensors: Tensors,
        derived: Derived,
        derive: Callable[[Tensors], Derived | SymcheckError],
        wide_outputs: Callable[[], Sequence[Floats] | None],
        cotangents: Sequence[Floats],
        generator: np.random.Generator,
    ) -> None:
        self.binding, self.tensors, self.derived, self.generator = binding, tensors, derived, generator
        self._derive, self._wide_outputs = derive, wide_outputs
        self._cotangents, self._arrays = tuple(cotangents), numeric(tensors)
        self.point = derived.at(self._arrays, cotangents)

    # -- precision ------------------------------------------------------------------------------------------------

    @cached_property
    def dtype(self) -> torch.dtype:
        """The narrowest dtype among the real inputs and what is computed from them: the candidates' precision."""
        statements = self.derived.traced.program.statements
        inside = {statement.out.dtype for statement in statements if statement.out.is_real}
        real = {tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point()}
        return max(real | {getattr(torch, dtype) for dtype in inside}, key=lambda dtype: torch.finfo(dtype).eps)

    @cached_property
    def roundoff(self) -> float:
        """The unit roundoff of `dtype`."""
        return float(torch.finfo(self.dtype).eps) / 2

    @cached_property
    def is_narrow(self) -> bool:
        """Whether the candidates computed in less than float64."""
        return self.dtype is not torch.float64

    @cached_property
    def wide(self) -> dict[str, Tensor]:
        """The inputs in float64."""
        return {name: rounded(tensor, torch.float64, keep=True) for name, tensor in self.tensors.items()}

    @cached_property
    def high(self) -> Derived:
        """The reference that a float64 run is held against.

        A function whose constants depend on the dtype, such as one that adds `finfo(x.dtype).eps`, is another function
        in float64; its own trace is the reference there.
        """
        if not self.is_narrow or not self._depends_on_dtype:
            return self.derived
        derived = self._derive(self.wide)
        return self.derived if isinstance(derived, SymcheckError) else derived

    @cached_property
    def _depends_on_dtype(self) -> bool:
        outputs = self._wide_outputs()
        return outputs is not None and not _same(outputs, self.point.outputs, 1.0, 2.0**-40)

    def _outputs(self, tensors: Tensors) -> list[Floats] | None:
        """The function's outputs in float64; None if it cannot be run so."""
        try:
            return run_function(self.binding, tensors, self.derived.traced.positions, torch.float64)
        except Exception:  # a function may refuse float64; nothing is then said
            return None

    # -- whether the reference is the function's ------------------------------------------------------------------

    def mismatch(self, outputs: Sequence[Floats]) -> str:
        """Why the traced program is not to be trusted at this input; "" if it is.

        Args:
            outputs: what the function returned there, in its own precision.
        """
        if self.point.undecided:
            where = self.point.undecided[0] or "a branch"
            return f"Python code looks at a value that rounding could change, at {where}"
        lost = UNDERFLOWS * torch.finfo(self.dtype).smallest_normal * 2 * self.roundoff
        if not _same(outputs, self.point.outputs, self.roundoff / UNIT64, self.roundoff ** (1 / 3), lost):
            return "the traced program does not give the function's value at this input: it is not the function"
        return ""

    def mismatch_nearby(self) -> str:
        """As `mismatch`, at an input nearby: whether the trace froze what depends on it, as NumPy does."""
        for _ in range(TRIES):
            there = dict(self.wide)
            for name in self.binding.wrt:
                there[name] = moved(there[name], self.generator, MOVES[0], zeros=False)
            point, outputs = self.high.at(numeric(there), self._cotangents), self._outputs(there)
            if outputs is None or point.undecided or point.diverted:
                continue
            if _same(outputs, point.outputs, SLACK, TRACED):
                return ""
            return (
                "the traced program does not give the function's value at an input nearby: the trace froze what "
                "depends on the input, such as an array of NumPy's"
            )
        return ""

    def is_too_fine(self, name: str, worst: Worst | None, found: Differences) -> bool:
        """Whether differences contradict the reference because a scale of the function is too small for float64.

        So it is where differences of the traced program itself, at the same element, say what those of the function
        said, while one in high precision agrees with the derived gradient. False where balls would take too long.
        """
        program = self.high.traced.program
        if worst is None or work(program) > BALL_WORK:
            return False
        arrays, positions = dict(numeric(self.wide)), range(self.high.traced.outputs)

        def contributions(values: Floats) -> Floats:
            outputs = evaluate(program, {**arrays, name: values}, Double())
            return np.concatenate([(self._cotangents[n] * outputs[n]).reshape(-1) for n in positions])

        flat = int(np.ravel_multi_index(worst.index, found.values.shape)) if worst.index else 0
        point = np.asarray(arrays[name], dtype=np.float64)
        own = differentiate(
            contributions,
            point,
            generator=self.generator,
            budget=MOST_EVALUATIONS,
            worst=np.array([flat]),
            directions=0,
        )
        apart = abs(float(own.values.reshape(-1)[flat]) - float(found.values.reshape(-1)[flat]))
        if not apart <= ALIKE * float(own.errors.reshape(-1)[flat] + found.errors.reshape(-1)[flat]):
            return False
        agreement = directional_agreement(
            program, self.binding.wrt, arrays, self.generator, bits=BALL_BITS, step=BALL_STEP
        )
        return agreement.relative_error < BALL_AGREEMENT

    # -- evidence -------------------------------------------------------------------------------------------------

    def exact_at(self, cotangents: Sequence[Floats], name: str) -> Exact:
        """The reference gradient at this input."""
        return self.point_at(cotangents).gradients[name]

    def wide_exact(self, name: str) -> Exact:
        """The reference gradient of the function as it is in float64, at this input."""
        if self.high is self.derived:
            return self.point.gradients[name]
        return self.high.at(self._arrays, self._cotangents).gradients[name]

    def point_at(self, cotangents: Sequence[Floats]) -> Point:
        """The reference at this input, with the check's cotangents or with ones."""
        same = all(map(np.array_equal, cotangents, self._cotangents))
        return self.point if same else self._at_ones

    @cached_property
    def _at_ones(self) -> Point:
        return self.derived.at(self._arrays, [np.ones_like(cotangent) for cotangent in self._cotangents])

    def evidence(
        self,
        candidate: str,
        name: str,
        gradient: Gradient,
        run: Run,
        cotangents: Sequence[Floats],
        remarks: Callable[[], str],
    ) -> Evidence:
        """What a verdict on a candidate by one input rests on.

        Args:
            candidate: as in `Finding`.
            name: the input.
            gradient: the candidate as it ran.
            run: runs it again in a dtype, at some tensors.
            cotangents: what it was run with: the check's, or ones.
            remarks: as in `Evidence`.
        """
        assert gradient.values is not None
        exact = self.exact_at(cotangents, name)
        intended = run(torch.float64, self.tensors) if self.is_narrow else None
        own = self.high is self.derived or not self.is_narrow
        exact_high = exact if own else self.high.at(self._arrays, cotangents).gradients[name]
        values = gradient.values

        def rung() -> Rung:
            if self.is_narrow:
                return Rung(values, exact, self.roundoff, intended, exact_high)
            low = {key: rounded(tensor, torch.float32) for key, tensor in self.tensors.items()}
            there = self.derived.at(numeric(low), cotangents)
            usable = not there.undecided and not there.diverted
            return Rung(
                run(torch.float32, low) if usable else None, there.gradients[name], 2.0**-24, values, exact_high
            )

        def noise() -> Floats:
            given = {**self._arrays, **{f"d_cotangent{n}": cotangent for n, cotangent in enumerate(cotangents)}}
            return noise_levels(self.high.traced.program, (name,), given, self.generator)[name]

        def nearby() -> list[Neighbour]:
            return [there for size in MOVES if (there := self._neighbour(name, run, cotangents, size)) is not None]

        dtype = str(self.dtype).removeprefix("torch.")
        return Evidence(
            candidate,
            name,
            values,
            gradient.dtype,
            unit_roundoff(gradient.dtype),
            max(self.roundoff, unit_roundoff(gradient.dtype)),
            exact,
            intended if own or intended is None else intended - exact_high.values + exact.values,
            rung,
            noise,
            nearby,
            remarks,
            "" if own else f"the function is another one in float64 than in {dtype}",
        )

    def _neighbour(self, name: str, run: Run, cotangents: Sequence[Floats], size: float) -> Neighbour | None:
        """The candidate at a generic input nearby, where only the input under test moves; None if none is found."""
        for _ in range(TRIES):
            there = {**self.wide, name: moved(self.tensors[name], self.generator, size)}
            point = self.high.at(numeric(there), cotangents)
            if not point.undecided and not point.diverted:
                return Neighbour(run(torch.float64, there), point.gradients[name], size <= CLOSE)
        return None


def _same(outputs: Sequence[Floats], exact: Sequence[Exact], bounds: float, relative: float, lost: float = 0.0) -> bool:
    """Whether outputs are the reference's to so many of its bounds, a part of the largest one, and what underflowed."""
    for output, reference in zip(outputs, exact, strict=True):
        known = np.isfinite(output) & np.isfinite(reference.values) & ~reference.open & np.isfinite(reference.errors)
        scale = float(np.max(np.abs(reference.values), initial=0.0, where=known))
        with np.errstate(invalid="ignore"):
            apart = np.abs(output - reference.values) > bounds * reference.errors + relative * scale + lost
        if (apart & known).any():
            return False
    return True
