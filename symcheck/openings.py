"""The open decisions of a program at a point: comparisons and selections that tie there, or are too close to tell.

A decision is known by what it compares: the same elements compared in the derivatives of one statement by several
inputs are one decision, with one slope. Two calls are two decisions, as each could be given a slope of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import sympy as sp
from numpy.typing import NDArray

from symcheck.arithmetic.ball import Ball, working_precision
from symcheck.arithmetic.bound import Bound
from symcheck.arithmetic.compiling import compile_body
from symcheck.arithmetic.layout import Numbers, align
from symcheck.arithmetic.ties import tied_ranks
from symcheck.branches import ARMS, Difference, differences_of, slope_part
from symcheck.evaluation import Values, evaluate, evaluate_statement
from symcheck.functions import constant_symbol, read_symbol
from symcheck.program import Equation, Program, Selection, Statement
from symcheck.steps import Step

__all__ = ["Comparison", "Decision", "Key", "Openings", "find_openings"]

Key: TypeAlias = tuple[Any, ...]
Given: TypeAlias = Mapping[str, NDArray[np.generic]]

BITS = 192


@dataclass(frozen=True, slots=True)
class Decision:
    """One open decision.

    Attributes:
        arms: what it can choose: the signs of a difference, or positions along the last axis.
        chosen: which of them, by place, the program takes at the point.
        text: what is compared.
        source: the user's source line, or ``""``.
        singular: whether a branch has no finite slope there, so that no mean of branches says anything.
        between: whether what holds exactly at the tie lies between the sides, for each element.
    """

    arms: tuple[int, ...]
    chosen: int
    text: str
    source: str
    singular: bool = False
    between: bool = True

    @property
    def is_comparison(self) -> bool:
        """Whether it is a comparison, rather than a selection."""
        return self.arms == ARMS


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A difference that a statement asks the sign of, with the elements where it is open.

    Attributes:
        difference: in the statement's symbols.
        axes: the statement's axes that it runs over.
        shape: their sizes.
        open: flat element -> the decision's key.
        settled: flat element -> the sign, where balls know it and float64 does not.
    """

    difference: Difference
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    open: dict[int, Key] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Openings:
    """All open decisions of a program at a point.

    Attributes:
        decisions: by key.
        comparisons: by the name of what a statement computes.
        selections: by the name of what is selected: flat element of it -> the decision's key.
        together: sets of (key, place of an arm), one weight of each in all: an element of a sort is in one place.
        jumps: source lines of piecewise-constant functions, such as floor, that are at a jump.
    """

    decisions: dict[Key, Decision] = field(default_factory=dict)
    comparisons: dict[str, list[Comparison]] = field(default_factory=dict)
    selections: dict[str, dict[int, Key]] = field(default_factory=dict)
    together: list[list[tuple[Key, int]]] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)


def find_openings(program: Program, given: Given, moving: Sequence[str], *, sharpen: bool = True) -> Openings:
    """The decisions that the inputs named could move, and that fall either way within rounding or tie exactly.

    Args:
        program: what to evaluate.
        given: its inputs.
        moving: the inputs that a derivative moves.
        sharpen: whether to let balls decide what float64 does not.
    """
    found = Openings()
    live = _live(program)
    candidates: dict[str, dict[int, NDArray[Any]]] = {}

    def first(statement: Statement, values: Values, numbers: Numbers[Any]) -> Any:
        if statement.out.name not in live:
            return evaluate_statement(statement, values, numbers)
        if isinstance(statement, Equation):
            _compare(statement, values, numbers, found)
            if _jumps(statement, values, numbers):
                found.jumps.append(statement.source)
        elif isinstance(statement, Selection) and statement.array.is_real:
            rows = _near(values[statement.array.name], statement.rule)
            if rows:
                candidates[statement.out.name] = rows
        return evaluate_statement(statement, values, numbers)

    evaluate(program, given, Bound(), moving=moving, step=first)
    by_name = {statement.out.name: statement for statement in program.statements}
    if (found.comparisons or candidates) and sharpen:
        with working_precision(BITS):
            evaluate(program, given, Ball(), step=partial(_sharpened, found, candidates))
    for name, rows in candidates.items():
        statement = by_name[name]
        assert isinstance(statement, Selection)
        _record_selection(statement, rows, found)
    used = {key for group in found.comparisons.values() for c in group for key in c.open.values()}
    for key in [key for key, decision in found.decisions.items() if decision.is_comparison and key not in used]:
        del found.decisions[key]
    return found


def _live(program: Program) -> frozenset[str]:
    """What an output depends on, other than as something that is held, such as the shift of a softmax."""
    live = {array.name for array in program.outputs}
    for statement in reversed(program.statements):
        if statement.out.name in live:
            held = isinstance(statement, Equation) and [read.held for read in statement.reads]
            live |= {a.name for n, a in enumerate(statement.arrays) if not (held and held[n])}
    return frozenset(live)


# -- comparisons --------------------------------------------------------------------------------------------------


def _sides(
    equation: Equation, comparison: Comparison, values: Values, numbers: Numbers[Any], bodies: Sequence[sp.Expr]
) -> list[Any]:
    """Some expressions of an equation's symbols over the axes of a comparison, or over its whole grid."""
    lays = [
        align(read.axes, comparison.axes) for n, read in enumerate(equation.reads) if n in comparison.difference.reads
    ]
    used = [equation.reads[n] for n in comparison.difference.reads]
    held = [numbers.hold(values[r.array.name]) if r.held else values[r.array.name] for r in used]
    laid = [numbers.map_arrays(lay, value) for lay, value in zip(lays, held, strict=True)]
    constants = [numbers.constant(value) for value in equation.constants]
    renaming = {read_symbol(n): read_symbol(place) for place, n in enumerate(comparison.difference.reads)}
    return [
        compile_body(body.xreplace(renaming), len(laid), len(constants), numbers.namespace)(*laid, *constants)
        for body in bodies
    ]


def _compare(equation: Equation, values: Values, numbers: Numbers[Any], found: Openings) -> None:
    for difference in differences_of(equation.body, len(equation.reads)):
        if not any(equation.reads[n].array.is_real for n in difference.reads):
            continue
        difference, text = _named(equation, difference)
        axes = tuple(sorted({a for n in difference.reads for a in equation.reads[n].axes if a is not None}))
        shape = tuple(equation.sizes[axis] for axis in axes)
        comparison = Comparison(difference, axes, shape)
        left, right = _sides(equation, comparison, values, numbers, (difference.left, difference.right))
        opened = numbers.namespace["less"](left, right).open
        if opened is None or not opened.any():
            continue
        opened = np.broadcast_to(opened, shape)
        same, singular, between = _alike(equation, comparison, values, numbers)
        if not (opened & ~same).any():
            continue
        group = _group(equation, difference)
        for flat in np.flatnonzero(opened & ~same).tolist():
            key = (*group, text, _places(equation, comparison, flat))
            comparison.open[flat] = key
            known = found.decisions.get(key, Decision(ARMS, 1, f"{text} = 0", equation.source))
            found.decisions[key] = replace(
                known,
                singular=known.singular or bool(singular.reshape(-1)[flat]),
                between=known.between and bool(between.reshape(-1)[flat]),
            )
        found.comparisons.setdefault(equation.out.name, []).append(comparison)


def _jumps(equation: Equation, values: Values, numbers: Numbers[Any]) -> bool:
    """Whether a piecewise-constant function in a body is at a jump that an input moves."""
    for step in equation.body.atoms(Step):
        used = tuple(n for n in range(len(equation.reads)) if step.has(read_symbol(n)))
        axes = tuple(sorted({a for n in used for a in equation.reads[n].axes if a is not None}))
        alone = Comparison(Difference(step, sp.S.Zero, (), used), axes, tuple(equation.sizes[axis] for axis in axes))
        opened = getattr(_sides(equation, alone, values, numbers, (step,))[0], "open", None)
        if opened is not None and bool(np.any(opened)):
            return True
    return False


def _named(equation: Equation, difference: Difference) -> tuple[Difference, str]:
    """The difference turned so that its sign does not depend on how a body writes it; and its text."""
    names = {read_symbol(n): sp.Symbol(equation.reads[n].array.name, real=True) for n in difference.reads}
    names |= {constant_symbol(n): sp.Symbol(f"{value}", real=True) for n, value in enumerate(equation.constants)}
    apart = (difference.left - difference.right).xreplace(names)
    if apart.could_extract_minus_sign():
        turned = tuple((relation, -side) for relation, side in difference.relations)
        return Difference(difference.right, difference.left, turned, difference.reads), str(-apart)
    return difference, str(apart)


def _group(equation: Equation, difference: Difference) -> tuple[str, ...]:
    """What tells one use of a comparison from another: the derivatives of one statement read the same adjoint."""
    outer = read_symbol(0)
    if outer in sp.Mul.make_args(equation.body) and 0 not in difference.reads:
        return ("slope", equation.reads[0].array.name, equation.operator, equation.source)
    return ("value", equation.out.name)


def _places(equation: Equation, comparison: Comparison, flat: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    where = dict(zip(comparison.axes, np.unravel_index(flat, comparison.shape), strict=True)) if comparison.axes else {}
    reads = (equation.reads[n] for n in comparison.difference.reads)
    return tuple(sorted((r.array.name, tuple(0 if a is None else int(where[a]) for a in r.axes)) for r in reads))


def _alike(
    equation: Equation, comparison: Comparison, values: Values, numbers: Numbers[Any]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Where all arms give the same, to rounding; where one is not finite; and where the middle one lies between."""
    shape = comparison.shape
    comparing, _ = slope_part(equation.body)
    needed = {n for n in range(len(equation.reads)) if comparing.has(read_symbol(n))}
    if not needed <= set(comparison.difference.reads) or len(differences_of(equation.body, len(equation.reads))) > 1:
        wider = _grid_of(equation, comparison, needed)
    else:
        wider = comparison
    arms = [comparing.xreplace(comparison.difference.on(arm)) for arm in ARMS]
    results = [_lifted(value, wider.shape, numbers) for value in _sides(equation, wider, values, numbers, arms)]
    rest = tuple(place for place, axis in enumerate(wider.axes) if axis not in comparison.axes)
    (below, e), (tie, f), (above, g) = results
    singular = ~(np.isfinite(below) & np.isfinite(tie) & np.isfinite(above))
    with np.errstate(all="ignore"):
        same = (np.abs(tie - below) <= e + f) & (np.abs(above - below) <= e + g) & ~singular
        slack = e + f + g
        between = (tie >= np.minimum(below, above) - slack) & (tie <= np.maximum(below, above) + slack)
    same, between = (np.all(mask, axis=rest).reshape(shape) for mask in (same, between))
    return same, np.any(singular, axis=rest).reshape(shape), between


def _grid_of(equation: Equation, comparison: Comparison, needed: set[int]) -> Comparison:
    reads = tuple(sorted(needed | set(comparison.difference.reads)))
    axes = tuple(sorted({a for n in reads for a in equation.reads[n].axes if a is not None}))
    d = comparison.difference
    wider = Difference(d.left, d.right, d.relations, reads)
    return Comparison(wider, axes, tuple(equation.sizes[axis] for axis in axes))


def _lifted(value: Any, shape: tuple[int, ...], numbers: Numbers[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    bounded = numbers.settle(value, real=True)
    error = np.zeros(()) if bounded.error is None else bounded.error
    return np.broadcast_to(bounded.value, shape), np.broadcast_to(error, shape)


# -- selections ---------------------------------------------------------------------------------------------------


def _near(value: Any, rule: str) -> dict[int, NDArray[Any]]:
    """For each row with a tie within rounding: what ties. Rows by flat number; of a sort, runs of its order."""
    if value.error is None and not value.active:
        return {}
    values = value.value.reshape(-1, value.value.shape[-1]) if value.value.ndim else value.value.reshape(1, 1)
    error = np.broadcast_to(np.zeros(()) if value.error is None else value.error, value.value.shape)
    error = error.reshape(values.shape)
    signed = values if rule in ("argmax", "cumargmax", "argsort") else -values
    tied = {}
    for row in range(len(values)):
        if _has_ties(signed[row], error[row]):
            tied[row] = np.stack([signed[row], error[row]])
    return tied


def _has_ties(signed: NDArray[Any], error: NDArray[Any]) -> bool:
    order = np.argsort(signed, kind="stable")
    low, high = (signed - error)[order], (signed + error)[order]
    return bool((low[1:] <= np.fmax.accumulate(high)[:-1]).any())


def _sharpened(
    found: Openings,
    candidates: dict[str, dict[int, NDArray[Any]]],
    statement: Statement,
    values: Values,
    numbers: Numbers[Any],
) -> Any:
    """What balls decide is not open."""
    name = statement.out.name
    if isinstance(statement, Equation):
        for comparison in found.comparisons.get(name, ()):
            d = comparison.difference
            left, right = _sides(statement, comparison, values, numbers, (d.left, d.right))
            answer = numbers.namespace["less"](left, right)
            less = np.broadcast_to(answer.value, comparison.shape).reshape(-1)
            tied = np.broadcast_to(False if answer.open is None else answer.open, comparison.shape).reshape(-1)
            for flat in [flat for flat in comparison.open if not tied[flat]]:
                del comparison.open[flat]
                comparison.settled[flat] = -1 if less[flat] else 1
    elif isinstance(statement, Selection):
        array = values[statement.array.name]
        for row, pair in candidates.get(name, {}).items():
            sharp = tied_ranks(array.reshape(-1, array.shape[-1])[row])
            rising = statement.rule in ("argmax", "cumargmax", "argsort")
            candidates[name][row] = np.stack([pair[0], pair[1], sharp if rising else -sharp])
    return evaluate_statement(statement, values, numbers)


def _record_selection(statement: Selection, rows: Mapping[int, NDArray[Any]], found: Openings) -> None:
    for row, facts in rows.items():
        for place, tied, chosen in _choices(statement.rule, facts):
            flat = row if place is None else row * facts.shape[1] + place
            key = ("selection", statement.out.name, flat)
            text = f"{statement.rule} of {statement.array.name}, row {row}, among {', '.join(map(str, tied))}"
            found.decisions[key] = Decision(tuple(tied), tied.index(chosen), text, statement.source)
            found.selections.setdefault(statement.out.name, {})[flat] = key
        if statement.rule.startswith("argsort"):
            found.together.extend(_columns(statement, row, facts, found))


def _choices(rule: str, facts: NDArray[Any]) -> Iterator[tuple[int | None, list[int], int]]:
    """Place in the result (None for one of a row), what ties for it, and what is taken."""
    rank = facts[2] if len(facts) > 2 else None
    if rank is not None:  # ranks: equal where balls overlap
        low, high = rank, rank
    else:
        low, high = facts[0] - facts[1], facts[0] + facts[1]
    exact = facts[2] if rank is not None else facts[0]
    if rule in ("argmax", "argmin"):
        tied = np.flatnonzero(high >= low.max()).tolist()
        if len(tied) > 1:
            yield None, tied, int(np.argmax(exact))
        return
    if rule.startswith("cum"):
        for place in range(1, len(low)):
            tied = np.flatnonzero(high[: place + 1] >= low[: place + 1].max()).tolist()
            if len(tied) > 1:
                best = np.flatnonzero(exact[: place + 1] == exact[: place + 1].max())
                yield place, tied, int(best[-1])
        return
    order = np.argsort(exact, kind="stable")  # a descending order is that of the negatives, as it is stable
    start = 0
    for place in range(1, len(order) + 1):
        if place == len(order) or low[order[place]] > high[order[start:place]].max():
            if place - start > 1:
                for at in range(start, place):
                    yield at, sorted(order[start:place].tolist()), int(order[at])
            start = place


def _columns(statement: Selection, row: int, facts: NDArray[Any], found: Openings) -> Iterator[list[tuple[Key, int]]]:
    """Each tied element is in one place of the order."""
    held: dict[int, list[tuple[Key, int]]] = {}
    for flat, key in found.selections.get(statement.out.name, {}).items():
        if flat // facts.shape[1] == row:
            for arm, element in enumerate(found.decisions[key].arms):
                held.setdefault(element, []).append((key, arm))
    yield from held.values()
