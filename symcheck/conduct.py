"""How a candidate behaves when it is run again: at the same inputs, otherwise laid out, with another cotangent.

A gradient of autograd's is a function of the inputs and the cotangent, and linear in the cotangent. One more run, with
everything laid out otherwise in memory and -1/2 of the cotangent, shows all of that at once; only where it gives
something else do further runs find out why. A difference counts where rounding does not explain it: in the other of
float32 and float64 it must be of much the same size.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, groupby
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from symcheck.binding import Binding
from symcheck.candidates import (
    Formula,
    Gradient,
    describe_error,
    repeats,
    run_autograd,
    run_formula,
    run_function,
    to_float64,
    unit_roundoff,
)
from symcheck.casts import cast_fact, narrowings
from symcheck.facts import Fact, Kind
from symcheck.findings import Verdict
from symcheck.intended import Intended
from symcheck.layouts import Watch
from symcheck.reruns import (
    FACTOR,
    Setting,
    Subject,
    Values,
    apart,
    largest_difference,
    rerun_autograd,
    rerun_formula,
)
from symcheck.separation import Key
from symcheck.sharing import computed_from, copied_together, dependences, overlaps, share_memory

__all__ = ["note_casts", "note_missing", "observe", "with_problems"]

Floats: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = Mapping[str, Tensor]

SECONDS = 0.5  # that a run may take for there to be more of them
TRIES = 5  # runs, once something differs, in which what is random may show


def observe(
    binding: Binding,
    tensors: Tensors,
    positions: Sequence[int],
    native: Mapping[str, Gradient],
    cotangents: Sequence[Floats],
    formulas: Sequence[tuple[Formula, Sequence[Floats]]],
    seconds: float,
) -> tuple[Fact, ...]:
    """What is noticed about the inputs, autograd's backward and the hand formulas at some inputs.

    Args:
        binding: the function, which gives the same whenever it is run.
        tensors: its inputs, as the user gave them; never written to.
        positions: which of its tensors are the outputs.
        native: autograd's gradients.
        cotangents: one per output.
        formulas: each with the cotangents that it is compared at.
        seconds: how long autograd took.
    """
    arguments = {name: tensors[name] for name in list(tensors)[: binding.arguments]}
    facts = [*overlaps(arguments), *_written_together(binding, tensors, positions)]
    usable = [name for name in binding.wrt if native[name].values is not None]
    if usable:
        gradients = {name: values for name in usable if (values := native[name].values) is not None}
        facts += _dependences(binding, tensors, positions, gradients, cotangents)
    if seconds > SECONDS:
        return (*facts, Fact(Kind.UNCHECKED, "", (), _not_again("autograd", seconds)))
    if usable:
        facts += _watch_autograd(replace(binding, wrt=tuple(usable)), tensors, positions, native, cotangents)
    for formula, weights in formulas:
        facts += _watch_formula(formula, tensors, weights)
    return tuple(facts)


def _not_again(what: str, seconds: float) -> str:
    looked_for = "whether it repeats itself and assumes a memory layout"
    return f"{what} takes {seconds:.2g} s: it was not run again to see {looked_for}"


def note_missing(native: Mapping[str, Gradient], exact: Values) -> Iterator[Fact]:
    """Inputs by which autograd returns None, and rightly: the gradient is zero."""
    names = tuple(n for n, grad in native.items() if grad.missing and n in exact and not exact[n].any())
    if names:
        said = f"autograd returns None for {', '.join(names)}, which counts as zero, and zero it is"
        yield Fact(Kind.MISSING, "autograd", names, said)


def note_casts(intended: Intended, tensors: Tensors) -> Iterator[Fact]:
    """Candidates whose programs compute in a narrower dtype than the input that they differentiate by."""
    found = []
    for (candidate, name), (program, place) in intended.programs.items():
        dtype = str(tensors[name].dtype).removeprefix("torch.")
        given = {array.name for array in program.inputs} - tensors.keys()  # cotangents, which come in float64
        places = narrowings(program, program.outputs[place], dtype, given)
        if places:
            found.append(((candidate, dtype, places), name))
    for (candidate, dtype, places), several in groupby(found, key=lambda pair: pair[0]):
        yield cast_fact(candidate, tuple(name for _, name in several), dtype, places)


def _dependences(
    binding: Binding, tensors: Tensors, positions: Sequence[int], native: Values, cotangents: Sequence[Floats]
) -> Iterator[Fact]:
    """Where an input was computed from another; the function may depend on it without being differentiated by it."""
    given = {name: tensors[name] for name in list(tensors)[: binding.arguments]}
    dependent = [y for y in given if any(computed_from(tensors[y], tensors[x]) for x in binding.wrt)]
    if not dependent:
        return
    known = dict(native)
    others = tuple(name for name in dependent if name not in known)
    if others:
        everything = replace(binding, wrt=others)
        grads = run_autograd(everything, tensors, others, cotangents, positions)[0]
        known |= {name: grad.values for name, grad in grads.items() if grad.values is not None}
    nonzero = [name for name in dependent if name in known and known[name].any()]
    yield from dependences(tensors, binding.wrt, nonzero)


def _written_together(binding: Binding, tensors: Tensors, positions: Sequence[int]) -> Iterator[Fact]:
    """Where a function writes to inputs that share memory, so that at these tensors it is another."""
    names = list(tensors)[: binding.arguments]
    if not any(share_memory(tensors[left], tensors[right]) for left, right in combinations(names, 2)):
        return
    separate = run_function(binding, tensors, positions, None)
    try:
        outputs = binding.call(copied_together(tensors))
    except Exception:  # such as a write to what is expanded
        return
    together = [to_float64(outputs[place]) for place in positions]
    if not all(map(repeats, separate, together)):
        said = f"{binding.name} writes to inputs that share memory: at these tensors it is not what it is at copies"
        advice = "clone the inputs before they are given, or write to a clone inside the function"
        yield Fact(Kind.OVERLAP, "autograd", binding.wrt, said, advice, Verdict.OTHER)


def with_problems(facts: Sequence[Fact], problems: Mapping[Key, str]) -> Iterator[Fact]:
    """The facts, those on a random gradient with why it has no program: tracing names the random operator."""
    for fact in facts:
        problem = problems.get((fact.candidate, fact.inputs[0])) if fact.kind is Kind.NONDETERMINISM else None
        yield replace(fact, sentence=f"{fact.sentence}; {problem}") if problem else fact


# -- autograd -----------------------------------------------------------------------------------------------------


def _coarsest(tensors: Tensors) -> str:
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.is_floating_point()]
    return max(dtypes, key=unit_roundoff, default="float64")


def _watch_autograd(
    binding: Binding,
    tensors: Tensors,
    positions: Sequence[int],
    native: Mapping[str, Gradient],
    cotangents: Sequence[Floats],
) -> Iterator[Fact]:
    watch, customs = Watch(), list[str]()
    run = partial(rerun_autograd, binding, tensors, positions, watch, customs)
    plain = Setting(tuple(cotangents))
    subject = Subject("autograd", "autograd's backward", run, plain, _coarsest(tensors), True)
    usual = {name: gradient.values for name, gradient in native.items() if gradient.values is not None}
    differs = _differs_otherwise(subject, usual)
    yield from _explained(subject, differs, customs)
    yield from _overwritten(binding, watch, customs)


def _overwritten(binding: Binding, watch: Watch, customs: Sequence[str]) -> Iterator[Fact]:
    whose = f"the backward of {' or '.join(customs)}" if customs else "autograd's backward"
    if watch.inputs:
        names = ", ".join(sorted(watch.inputs))
        said = f"{whose} overwrites its input {names}: run again, it is at another input"
        advice = "work on a clone in the backward"
        yield Fact(Kind.WRITES, "autograd", binding.wrt, said, advice, Verdict.OTHER)
    if watch.cotangent:
        said = f"{whose} overwrites the cotangent that it is given, which others may share: y + {binding.name}(x) may"
        advice = "compute a new tensor from grad_output: torch forbids to change it in place"
        yield Fact(Kind.WRITES, "autograd", binding.wrt, f"{said} get a wrong gradient by y", advice, Verdict.OTHER)
    if watch.saved and not watch.inputs:
        said = f"{whose} overwrites what its forward saved: a second backward through the same graph gives another"
        yield Fact(Kind.WRITES, "autograd", binding.wrt, f"{said} gradient, or is refused")


def _custom_layouts(subject: Subject, customs: Sequence[str], known: Collection[str]) -> Iterator[Fact]:
    """Whether custom functions inside assume a layout of their cotangents, which others decide."""
    names = " or ".join(customs)
    laid = replace(subject.plain, custom="strided")
    try:
        differing = tuple(n for n in apart(subject, subject.plain, laid) if n not in known)
        if not differing:
            return
        here = apart(subject, subject.plain, replace(subject.plain, custom="plain"))
    except Exception as error:
        if not known:
            yield Fact(Kind.LAYOUT, "autograd", (), _fails(f"the backward of {names}", error))
        return
    said = f"the backward of {names} assumes that its cotangent is contiguous"
    for verdict, chosen in ((Verdict.OTHER, here), (None, tuple(n for n in differing if n not in here))):
        if chosen:
            more = "and here it is not" if verdict else "which it is here"
            sentence = f"{said}, {more}: the gradient by {', '.join(chosen)} would change with the layout"
            yield Fact(Kind.LAYOUT, "autograd", chosen, sentence, "call .contiguous() on it first", verdict)


def _fails(whose: str, error: Exception) -> str:
    return f"{whose} fails for a cotangent that is not contiguous, such as .sum() gives: {describe_error('it', error)}"


# -- formulas -----------------------------------------------------------------------------------------------------


def _watch_formula(formula: Formula, tensors: Tensors, weights: Sequence[Floats]) -> Iterator[Fact]:
    watch = Watch()
    run = partial(rerun_formula, formula, tensors, watch)
    plain, what = Setting(tuple(weights)), f"the formula for {formula.input}"
    start = time.perf_counter()
    try:
        usual = run(plain)
    except Exception:
        return  # the check itself says what it raised
    seconds = time.perf_counter() - start
    subject = Subject("formula", what, run, plain, _coarsest(tensors), formula.takes_cotangent)
    if seconds > SECONDS:
        yield Fact(Kind.UNCHECKED, "formula", (formula.input,), _not_again(what, seconds))
    else:
        yield from _explained(subject, _differs_otherwise(subject, usual))
    if watch.inputs or watch.cotangent:
        names = ", ".join([*sorted(watch.inputs), *(["cotangent"] if watch.cotangent else [])])
        said = f"{what} overwrites {names}"
        advice = f"work on a clone of {names}"
        if _gives_the_same_again(formula, tensors, weights):
            yield Fact(Kind.WRITES, "formula", (formula.input,), said, advice)
        else:
            said = f"{said}: called again with the same tensors, it gives something else"
            yield Fact(Kind.WRITES, "formula", (formula.input,), said, advice, Verdict.OTHER)


def _gives_the_same_again(formula: Formula, tensors: Tensors, weights: Sequence[Floats]) -> bool:
    """Whether a second call gives the same on what the first one left."""
    results: list[Floats] = []

    def call(copies: Tensors, given: Sequence[Tensor]) -> object:
        first = formula.call(copies, given)
        if isinstance(first, Tensor):
            results.append(first.detach().double().numpy(force=True).copy())
        return formula.call(copies, given)

    second = run_formula(replace(formula, call=call), tensors, weights).values
    if second is None or not results:
        return False
    return not largest_difference(results[0].reshape(second.shape), second, _coarsest(tensors))


# -- what a difference comes from ---------------------------------------------------------------------------------


def _concerned(facts: Sequence[Fact]) -> set[str]:
    return {name for fact in facts for name in fact.inputs}


def _scaled(subject: Subject) -> tuple[Setting, float]:
    """Another cotangent for a candidate that is linear in it, and by what its gradient must change."""
    factor = FACTOR if subject.linear else 1.0
    return replace(subject.plain, cotangents=tuple(factor * c for c in subject.plain.cotangents)), factor


def _differs_otherwise(subject: Subject, usual: Values) -> bool:
    """Whether one run, otherwise laid out and by another cotangent, fails or gives something else than is due."""
    scaled, factor = _scaled(subject)
    try:
        found = subject.run(replace(scaled, inputs="strided", cotangent="strided"))
    except Exception:  # such as a view of what is not contiguous
        return True
    return any(largest_difference(factor * usual[n], found[n], subject.dtype) for n in usual if n in found)


def _explained(subject: Subject, differs: bool, customs: Sequence[str] = ()) -> list[Fact]:
    """The facts that say what makes a candidate differ from one run to another, custom functions inside included.

    What is random now and then looks like anything else, so that whether it is is asked before and after.
    """
    random = _randomness(subject) if differs else []
    if random:
        return random
    found = [*_nonlinear(subject), *_cotangent_layout(subject)] if differs else []
    if customs:
        found += _custom_layouts(subject, customs, _concerned(found))
    if differs:
        found += _input_layout(subject, _concerned(found))
    return (_randomness(subject) if found else []) or found


def _randomness(subject: Subject) -> list[Fact]:
    try:
        differing = apart(subject, subject.plain, subject.plain, tries=TRIES)
    except Exception:
        return []
    said = f"{subject.what} gives another gradient by {', '.join(differing)} each time it is run"
    advice = "draw its random numbers and read its state outside, and give them as inputs"
    fact = Fact(Kind.NONDETERMINISM, subject.candidate, differing, said, advice, Verdict.OTHER)
    return [fact] if differing else []


def _nonlinear(subject: Subject) -> Iterator[Fact]:
    """Whether a gradient fails to follow the cotangent, and whether it ignores it."""
    scaled, factor = _scaled(subject)
    if not subject.linear:
        return
    try:
        differing = apart(subject, subject.plain, scaled, factor)
        if not differing:
            return
        one, other = subject.run(subject.plain), subject.run(scaled)
    except Exception:
        return
    same = tuple(n for n in differing if not largest_difference(one[n], other[n], subject.dtype))
    others = tuple(n for n in differing if n not in same)
    for names, said in ((same, "ignores its cotangent"), (others, "is not linear in its cotangent")):
        if names:
            what = "stays the same" if names is same else f"is not {FACTOR} times the first"
            sentence = f"{subject.what} {said}: for {FACTOR} times it the gradient by {', '.join(names)} {what}"
            advice = "multiply the local derivative by the cotangent that comes in, and by nothing else of it"
            yield Fact(Kind.COTANGENT, subject.candidate, names, sentence, advice, Verdict.FORMULA)


def _cotangent_layout(subject: Subject) -> Iterator[Fact]:
    try:
        differing = apart(subject, subject.plain, replace(subject.plain, cotangent="strided"))
    except Exception as error:
        yield Fact(Kind.LAYOUT, subject.candidate, (), _fails(subject.what, error))
        return
    if differing:
        said = f"{subject.what} assumes a memory layout: for the same cotangent, not contiguous, the gradient by "
        sentence = f"{said}{', '.join(differing)} is another"
        advice = "call .contiguous() on the cotangent first"
        yield Fact(Kind.LAYOUT, subject.candidate, differing, sentence, advice, Verdict.OTHER)


def _input_layout(subject: Subject, known: Collection[str]) -> Iterator[Fact]:
    """Whether the inputs' layout decides: an error only where the user's own layout is such."""
    for layout, verdict in (("own", Verdict.OTHER), ("strided", None)):
        try:
            differing = apart(subject, subject.plain, replace(subject.plain, inputs=layout))
        except Exception:
            continue
        differing = tuple(name for name in differing if name not in known)
        if differing:
            here = "here" if verdict else "for inputs that are not contiguous"
            said = f"{subject.what} depends on how its inputs lie in memory: {here} the gradient by"
            sentence = f"{said} {', '.join(differing)} is not that of the same values, contiguous"
            advice = "call .contiguous() on the inputs first, or use no operator that reads memory such as as_strided"
            yield Fact(Kind.LAYOUT, subject.candidate, differing, sentence, advice, verdict)
            return
