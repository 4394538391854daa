"""Checking a gradient: joins tracing, derivation, the candidates and the judgement into a report."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding, bind, restored
from symcheck.candidates import Formula, Gradient, run_autograd, run_formula, run_function, unit_roundoff
from symcheck.differences import MOST_EVALUATIONS, differentiate
from symcheck.errors import Misuse, NonDeterministic, SymcheckError
from symcheck.findings import Finding, Verdict
from symcheck.judgement import Evidence, Rung, judge, judge_differences, undecided
from symcheck.reference import Derived, Exact, Point, derive_reference, numeric
from symcheck.report import data, text
from symcheck.stops import find_stops

__all__ = ["Checker", "Report", "assert_gradients", "bind_formulas", "check"]

Floats = NDArray[np.float64]
PASSES = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.NONSMOOTH})
NEARBY = 3  # generic inputs at which a conviction must repeat


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """What a check found.

    Attributes:
        function: the name of the function checked.
        findings: one per candidate and input.
        notes: what else there is to know, such as the seed of the cotangent.
        gradients: the reference gradient of sum(cotangent * output) by input, float64; empty if there is none.
        cotangents: the cotangent of each output, float64.
        allow: verdicts that count as passes beyond OK, ROUNDING and NONSMOOTH.
    """

    function: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    gradients: Mapping[str, Floats] = field(default_factory=dict)
    cotangents: tuple[Floats, ...] = ()
    allow: frozenset[Verdict] = frozenset()

    @property
    def ok(self) -> bool:
        """Whether every autograd and formula finding is OK, ROUNDING or NONSMOOTH, or else allowed."""
        judged = [finding for finding in self.findings if finding.candidate != "finite differences"]
        return all(finding.verdict in PASSES | self.allow for finding in judged)

    def __bool__(self) -> bool:
        return self.ok

    def __getitem__(self, key: tuple[str, str]) -> Finding:
        """The finding on a candidate by an input: report["autograd", "w"]."""
        for finding in self.findings:
            if (finding.candidate, finding.input) == key:
                return finding
        known = ", ".join(f"[{f.candidate!r}, {f.input!r}]" for f in self.findings)
        raise KeyError(f"no finding for {key}; there are {known}")

    def __str__(self) -> str:
        return text.render_plain(self.function, self.findings, self.notes)

    def __rich__(self) -> Any:
        return text.renderable(self.function, self.findings, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return data.to_dict(self.function, self.findings, self.notes)


def check(
    function: Callable[..., Any],
    inputs: Any,
    wrt: Sequence[str] | str | None = None,
    formulas: Mapping[str, Any] | None = None,
    *,
    cotangent: Any = None,
    seed: int = 0,
    budget: int = 512,
    allow: Sequence[Verdict] = (),
) -> Report:
    """Judge autograd, hand-derived formulas and finite differences against the exact gradient of a function.

    For an output that is not a scalar, the gradient of sum(cotangent * output) is judged.

    Args:
        function: a callable on tensors, or an `nn.Module`, whose parameters and buffers become inputs by their names.
        inputs: {name: tensor}, or a tuple in the function's order, named by its parameters (x0, x1 ... for ``*args``).
        wrt: the names to differentiate by; every real input and parameter by default.
        formulas: {input name: callable}. A formula takes inputs by their names, or all of them in the function's
            order. With a parameter ``cotangent`` it gets the cotangent; without, it is compared at ones.
        cotangent: weights of the output, a tensor of its shape (a tuple for several outputs). By default ones for a
            scalar, else random numbers with 7 significant bits and magnitude in [1/2, 2].
        seed: draws the cotangent, the sampled differences and the inputs nearby.
        budget: how often finite differences may evaluate the function; 0 leaves them out.
        allow: verdicts that count as passes in `Report.ok` beyond OK, ROUNDING and NONSMOOTH.

    Returns:
        A report with a finding for each candidate and input.

    Raises:
        Misuse: the arguments cannot mean anything, or the function raises on these inputs.

    >>> import torch, symcheck
    >>> symcheck.check(lambda x: (x**2).sum(), (torch.ones(3),), formulas={"x": lambda x: 2 * x}).ok
    True
    """
    binding = bind(function, inputs, wrt)
    checker = Checker(binding, bind_formulas(formulas, binding), cotangent=cotangent, seed=seed, allow=frozenset(allow))
    with restored(binding):
        return checker.run(binding.inputs, budget=budget)


def assert_gradients(function: Callable[..., Any], inputs: Any, *args: Any, **options: Any) -> Report:
    """As `check`, raising where the report is not ok.

    Raises:
        AssertionError: with the report as its message.
    """
    report = check(function, inputs, *args, **options)
    if not report.ok:
        raise AssertionError(f"\n{report}")
    return report


def bind_formulas(formulas: Mapping[str, Any] | None, binding: Binding) -> tuple[Formula, ...]:
    """The formulas of a call, each bound to the function's inputs.

    Raises:
        Misuse: a formula is for a name that is not differentiated by, or cannot be called with the inputs.
    """
    if formulas is None:
        return ()
    if not isinstance(formulas, Mapping):
        raise Misuse(f"formulas is a {type(formulas).__name__}; give {{input name: formula}}")
    for name in formulas:
        if name not in binding.wrt:
            known = ", ".join(binding.wrt)
            raise Misuse(f"there is a formula for {name!r}, which is not differentiated by; there are {known}")
    return tuple(Formula.of(name, formula, binding) for name, formula in formulas.items())


class Checker:
    """Checks one function at any number of inputs, deriving once per set of shapes and dtypes."""

    def __init__(
        self,
        binding: Binding,
        formulas: Sequence[Formula],
        *,
        cotangent: Any = None,
        seed: int = 0,
        allow: frozenset[Verdict] = frozenset(),
    ) -> None:
        self.binding, self.formulas, self.seed, self.allow = binding, tuple(formulas), seed, allow
        self.cotangent = cotangent
        self._derived: dict[tuple[Any, ...], Derived | SymcheckError] = {}

    def run(self, tensors: Mapping[str, Tensor], *, budget: int = 512) -> Report:
        """Check at these inputs, which must have the names of the binding's."""
        return _Run(self, dict(tensors)).report(budget)

    def derived(self, tensors: Mapping[str, Tensor]) -> Derived | SymcheckError:
        """The derived reference at the shapes and dtypes of some tensors, or why there is none."""
        key = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items())
        if key not in self._derived:
            try:
                self._derived[key] = derive_reference(self.binding, tensors)
            except SymcheckError as error:
                self._derived[key] = error
        return self._derived[key]


class _Run:
    """One check at one input."""

    def __init__(self, checker: Checker, tensors: dict[str, Tensor]) -> None:
        self.checker, self.tensors = checker, tensors
        self.binding, self.wrt = checker.binding, checker.binding.wrt
        self.generator = np.random.default_rng(checker.seed)
        self.notes: list[str] = []
        shapes = self._output_shapes()
        self.cotangents = _cotangents(checker.cotangent, shapes, self.generator)
        self.ones = tuple(np.ones(shape) for shape in shapes)
        if any(shapes) and checker.cotangent is None:
            self.notes.append(f"the output is not a scalar: judged with a random cotangent (seed {checker.seed})")

    def _output_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Run the function once as the user would, so that its own errors come first, as such."""
        try:
            copies = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
            outputs = self.binding.call(copies)
        except SymcheckError:
            raise
        except Exception as error:
            raise Misuse(_raised(self.binding.name, error)) from error
        self.positions = tuple(place for place, output in enumerate(outputs) if output.is_floating_point())
        if not self.positions:
            kinds = ", ".join(str(output.dtype).removeprefix("torch.") for output in outputs)
            if not any(output.is_complex() for output in outputs):
                raise Misuse(f"{self.binding.name} returns {kinds}, which has no derivative; return real tensors")
        return tuple(tuple(outputs[place].shape) for place in self.positions)

    # -- the stages -----------------------------------------------------------------------------------------------

    def report(self, budget: int) -> Report:
        derived = self.checker.derived(self.tensors)
        if isinstance(derived, SymcheckError) or not self.positions:
            return self._without_reference(derived)
        self.derived = derived
        self.arrays = numeric(self.tensors)
        self.point = derived.at(self.arrays, self.cotangents)
        native, outputs = self._autograd(None, self.tensors, self.cotangents)
        problem = self._mismatch(outputs)
        findings = [self._judge_autograd(name, native, problem) for name in self.wrt]
        findings += [self._judge_formula(formula, problem) for formula in self.checker.formulas]
        if budget:
            findings = self._with_differences(findings, budget)
        gradients = {name: exact.values for name, exact in self.point.gradients.items()}
        return self._report(findings, gradients)

    def _report(self, findings: Sequence[Finding], gradients: Mapping[str, Floats]) -> Report:
        return Report(
            self.binding.name, tuple(findings), tuple(self.notes), gradients, self.cotangents, self.checker.allow
        )

    def _without_reference(self, error: Any) -> Report:
        """No exact gradient: every finding says why; differences are still named as a candidate."""
        verdict = Verdict.OTHER if isinstance(error, NonDeterministic) else Verdict.UNDECIDED
        reason = str(error) if isinstance(error, SymcheckError) else "the output is complex, which has no meaning yet"
        operation = getattr(error, "operator", "")
        names = [("autograd", name) for name in self.wrt]
        names += [("formula", formula.input) for formula in self.checker.formulas]
        names += [("finite differences", name) for name in self.wrt]
        findings = [
            undecided(candidate, name, reason, verdict=verdict, operation=operation) for candidate, name in names
        ]
        return self._report(findings, {})

    def _mismatch(self, outputs: Sequence[Floats] | str) -> str:
        """Why the traced program is not to be trusted at this input; "" if it is."""
        if self.point.undecided:
            return (
                f"Python code looks at a value that rounding could change, at {self.point.undecided[0] or 'a branch'}"
            )
        if isinstance(outputs, str):
            return ""
        for output, exact in zip(outputs, self.point.outputs, strict=True):
            known = np.isfinite(output) & np.isfinite(exact.values) & ~exact.open & np.isfinite(exact.errors)
            scale = float(np.max(np.abs(exact.values), initial=0.0, where=known))
            gap = np.abs(output - exact.values) > exact.errors + scale * self._roundoff ** (1 / 3)
            if (gap & known).any():
                return "the traced program does not give the function's value at this input: it is not the function"
        return ""

    @cached_property
    def _dtype(self) -> torch.dtype:
        """The narrowest dtype among the real inputs and what is computed from them: the candidates' precision."""
        statements = self.derived.traced.program.statements
        inside = {statement.out.dtype for statement in statements if statement.out.is_real}
        real = {tensor.dtype for tensor in self.tensors.values() if tensor.is_floating_point()}
        return max(real | {getattr(torch, dtype) for dtype in inside}, key=lambda dtype: torch.finfo(dtype).eps)

    @cached_property
    def _roundoff(self) -> float:
        return float(torch.finfo(self._dtype).eps) / 2

    # -- autograd -------------------------------------------------------------------------------------------------

    def _autograd(
        self, target: torch.dtype | None, tensors: Mapping[str, Tensor], cotangents: Sequence[Floats]
    ) -> tuple[dict[str, Gradient], Sequence[Floats] | str]:
        try:
            return run_autograd(self.binding, tensors, self.wrt, cotangents, self.positions, target)
        except Exception as error:
            reason = _raised("autograd", error)
            return {name: Gradient(None, problem=reason) for name in self.wrt}, reason

    def _judge_autograd(self, name: str, native: Mapping[str, Gradient], problem: str) -> Finding:
        gradient = native[name]
        if gradient.values is None or problem:
            return undecided("autograd", name, gradient.problem or problem, dtype=gradient.dtype)

        def again(target: torch.dtype | None, tensors: Mapping[str, Tensor]) -> Floats | None:
            if target is torch.float64 and tensors is self.tensors:
                return self._autograd_high[0][name].values
            return self._autograd(target, tensors, self.cotangents)[0][name].values

        def remarks() -> str:
            said = ["autograd returns None: it sees no path to this input"] if gradient.missing else []
            leaves = {key: t.detach().requires_grad_(key in self.wrt).clone() for key, t in self.tensors.items()}
            stops = find_stops(self.binding.call, leaves)
            return "; ".join([*said, *([f"autograd is stopped by {', '.join(stops)}"] if stops else [])])

        return judge(self._evidence("autograd", name, gradient, again, self.cotangents, remarks))

    @cached_property
    def _autograd_high(self) -> tuple[dict[str, Gradient], Sequence[Floats] | str]:
        return self._autograd(torch.float64, self.tensors, self.cotangents)

    # -- formulas -------------------------------------------------------------------------------------------------

    def _judge_formula(self, formula: Formula, problem: str) -> Finding:
        cotangents = self.cotangents if formula.takes_cotangent else self.ones

        def run(target: torch.dtype | None, tensors: Mapping[str, Tensor]) -> Gradient:
            try:
                return run_formula(formula, tensors, cotangents, target)
            except Exception as error:
                return Gradient(None, problem=_raised(f"the formula for {formula.input}", error))

        gradient = run(None, self.tensors)
        if gradient.values is None and gradient.shape and not problem:
            return Finding("formula", formula.input, Verdict.FORMULA, gradient.problem, shape=gradient.shape)
        if gradient.values is None or problem:
            return undecided("formula", formula.input, gradient.problem or problem, dtype=gradient.dtype)

        def again(target: torch.dtype | None, tensors: Mapping[str, Tensor]) -> Floats | None:
            return run(target, tensors).values

        return judge(self._evidence("formula", formula.input, gradient, again, cotangents, lambda: ""))

    # -- evidence -------------------------------------------------------------------------------------------------

    def _at(self, derived: Derived, tensors: Mapping[str, Tensor], cotangents: Sequence[Floats], name: str) -> Exact:
        return derived.at(numeric(tensors), cotangents).gradients[name]

    def _here(self, cotangents: Sequence[Floats]) -> Point:
        return self.point if cotangents is self.cotangents or not any(map(np.ndim, self.ones)) else self._point_at_ones

    @cached_property
    def _point_at_ones(self) -> Point:
        return self.derived.at(self.arrays, self.ones)

    def _evidence(
        self,
        candidate: str,
        name: str,
        gradient: Gradient,
        again: Callable[[torch.dtype | None, Mapping[str, Tensor]], Floats | None],
        cotangents: Sequence[Floats],
        remarks: Callable[[], str],
    ) -> Evidence:
        assert gradient.values is not None
        exact = self._here(cotangents).gradients[name]
        narrow = self._dtype is not torch.float64
        intended = again(torch.float64, self.tensors) if narrow else None
        high, blocked = self._high_reference() if narrow else (self.derived, "")
        exact_high = exact if high is self.derived else self._at(high, self.tensors, cotangents, name)

        def rung() -> Rung:
            if narrow:
                return Rung(gradient.values, exact, self._roundoff, intended, exact_high)
            low = {key: _rounded(tensor, torch.float32) for key, tensor in self.tensors.items()}
            low_exact = self._at(self.derived, low, cotangents, name)
            return Rung(again(torch.float32, low), low_exact, 2.0**-24, gradient.values, exact)

        def nearby() -> list[Rung]:
            dtype = self._dtype if narrow else torch.float32
            rungs = []
            for _ in range(NEARBY):
                moved = {**self.tensors, name: _moved(self.tensors[name], dtype, self.generator)}
                there = self._at(high, moved, cotangents, name)
                rungs.append(
                    Rung(
                        again(dtype, moved),
                        there,
                        float(torch.finfo(dtype).eps) / 2,
                        again(torch.float64, moved),
                        there,
                    )
                )
            return rungs

        return Evidence(
            candidate,
            name,
            gradient.values,
            gradient.dtype,
            unit_roundoff(gradient.dtype),
            max(self._roundoff, unit_roundoff(gradient.dtype)),
            exact,
            intended if exact_high is exact or intended is None else intended - exact_high.values + exact.values,
            rung,
            nearby,
            remarks,
            blocked,
        )

    def _high_reference(self) -> tuple[Derived, str]:
        """The reference that a float64 re-run is held against, and why it may not convict.

        A function whose constants depend on the dtype, such as one that adds `finfo(x.dtype).eps`, is another function
        in float64; its own trace is the reference there, and a hand formula may rightly be of the narrow one.
        """
        if not self._depends_on_dtype:
            return self.derived, ""
        wide = {name: _rounded(t, torch.float64, keep=True) for name, t in self.tensors.items()}
        derived = self.checker.derived(wide)
        blocked = f"the function is another one in float64 than in {str(self._dtype).removeprefix('torch.')}"
        return (self.derived if isinstance(derived, SymcheckError) else derived), blocked

    @cached_property
    def _depends_on_dtype(self) -> bool:
        outputs = self._autograd_high[1]
        if isinstance(outputs, str):
            return False
        for high, exact in zip(outputs, self.point.outputs, strict=True):
            known = np.isfinite(high) & np.isfinite(exact.values) & np.isfinite(exact.errors) & ~exact.open
            scale = float(np.max(np.abs(exact.values), initial=0.0, where=known))
            if ((np.abs(high - exact.values) > exact.errors + 2.0**-40 * scale) & known).any():
                return True
        return False

    # -- finite differences ---------------------------------------------------------------------------------------

    def _with_differences(self, findings: list[Finding], budget: int) -> list[Finding]:
        """Add finite differences; where they contradict the reference, nothing is decided."""
        wide = {name: _rounded(t, torch.float64, keep=True) for name, t in self.tensors.items()}
        judged: dict[str, Finding] = {}
        contradicted = False
        smallest_first = sorted(self.wrt, key=lambda name: self.tensors[name].numel())
        for place, name in enumerate(smallest_first):
            share = max(MOST_EVALUATIONS, budget // (len(smallest_first) - place))
            judged[name], against, spent = self._differences(name, wide, share, findings)
            budget -= spent
            contradicted |= against
        findings = findings + [judged[name] for name in self.wrt]
        if contradicted:
            reason = (
                "finite differences contradict the traced program, so it may not be the function: nothing is decided"
            )
            findings = [
                f if f.candidate == "finite differences" else undecided(f.candidate, f.input, reason, dtype=f.dtype)
                for f in findings
            ]
        return findings

    def _differences(
        self, name: str, wide: Mapping[str, Tensor], share: int, findings: Sequence[Finding]
    ) -> tuple[Finding, bool, int]:
        high, _ = self._high_reference() if self._dtype is not torch.float64 else (self.derived, "")
        exact = self._at(high, wide, self.cotangents, name) if high is not self.derived else self.point.gradients[name]
        shape = tuple(self.tensors[name].shape)

        def contributions(values: Floats) -> Floats:
            moved = {**wide, name: torch.from_numpy(np.asarray(values, dtype=np.float64).reshape(shape))}
            outputs = run_function(self.binding, moved, self.positions, torch.float64)
            weighted = [(c * o).reshape(-1) for c, o in zip(self.cotangents, outputs, strict=True)]
            return np.concatenate(weighted) if weighted else np.zeros(0)

        worst = [
            int(np.ravel_multi_index(f.worst.index, shape))
            for f in findings
            if f.input == name and f.worst is not None and f.candidate != "finite differences" and shape
        ]
        try:
            found = differentiate(
                contributions,
                np.asarray(self.arrays[name], dtype=np.float64),
                generator=self.generator,
                budget=share,
                worst=np.array(worst, dtype=np.int64),
            )
        except Exception as error:
            return undecided("finite differences", name, _raised(self.binding.name, error)), False, 0
        return (*judge_differences(name, found, exact), found.evaluations)


def _cotangents(given: Any, shapes: Sequence[tuple[int, ...]], generator: np.random.Generator) -> tuple[Floats, ...]:
    if given is None:
        return tuple(_dyadic(shape, generator) if shape else np.ones(()) for shape in shapes)
    tensors = list(given) if isinstance(given, tuple | list) else [given]
    if len(tensors) != len(shapes):
        raise Misuse(f"{len(tensors)} cotangents for {len(shapes)} outputs; give one per output")
    values = [np.asarray(t.detach().double() if isinstance(t, Tensor) else t, dtype=np.float64) for t in tensors]
    for value, shape in zip(values, shapes, strict=True):
        if value.shape != shape:
            raise Misuse(f"the cotangent has the shape {value.shape}; the output has {shape}")
    return tuple(values)


def _dyadic(shape: tuple[int, ...], generator: np.random.Generator) -> Floats:
    """Random numbers with 7 significant bits and magnitude in [1/2, 2): exact in every dtype."""
    magnitude = generator.integers(64, 128, size=shape) / 128.0 * 2.0 ** generator.integers(0, 2, size=shape)
    return np.asarray(magnitude * generator.choice([-1.0, 1.0], size=shape))


def _rounded(tensor: Tensor, dtype: torch.dtype, *, keep: bool = False) -> Tensor:
    """Values rounded to a dtype, held in the dtype the tensor had; with `keep`, in that dtype."""
    if not tensor.is_floating_point():
        return tensor
    rounded = tensor.detach().to(dtype)
    return rounded if keep else rounded.to(tensor.dtype)


def _moved(tensor: Tensor, dtype: torch.dtype, generator: np.random.Generator) -> Tensor:
    """A generic input nearby: within 2^-10 of the tensor's scale, representable in a dtype."""
    values = tensor.detach().to(torch.float64)
    finite = values[torch.isfinite(values)]
    scale = float(finite.abs().max()) if finite.numel() else 1.0
    step = torch.from_numpy(_dyadic(tuple(tensor.shape), generator)) * (scale or 1.0) * 2.0**-10
    return (values + step).to(dtype).to(tensor.dtype)


def _raised(what: str, error: Exception) -> str:
    """One line that says what the user's own code raised, and where."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/torch/" not in f.filename]
    own = [f for f in frames if "/symcheck/" not in f.filename]
    where = f" at {own[-1].filename.rpartition('/')[2]}:{own[-1].lineno}" if own else ""
    message = str(error).strip().splitlines()
    return f"{what} raised {type(error).__name__}{where}: {message[0][:300] if message else 'no message'}"
