"""Finite differences of a plain function, each with an estimate of its own error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from symcheck.errors import Misuse

__all__ = ["MOST_EVALUATIONS", "Differences", "Estimate", "differentiate", "directional"]

Floats = NDArray[np.float64]
Function = Callable[[Floats], Any]

# A ladder is LEVELS falling steps, the function at +t and -t. A derivative climbs LADDERS at most; each may first
# shrink its top SHRINKS times, to get inside the function's domain. The top step is TOP of the input's scale.
TOP = 1 / 7
LEVELS, LADDERS, SHRINKS = 7, 3, 6
LEAST_EVALUATIONS = 1 + 2 * LEVELS
MOST_EVALUATIONS = 1 + LADDERS * 2 * (LEVELS + SHRINKS)

# Steps fall by about 4. Significands have 12 bits, so that x + t is exact wherever float64 allows it; are no simple
# fractions, lest a function of period 1/64 look constant; and differ, lest 128, 32, 8 and 2 ulp look free of noise.
STEPS = np.array([2207, 2357, 1999, 2467, 2129, 2293, 2039]) / 4096 * 4.0 ** -np.arange(LEVELS)

# How parts of an error estimate count: measured against known derivatives, see tests/test_differences.py.
TRUNCATION_FACTOR, NOISE_FACTOR = 3.0, 5.0

# No stair of a float32 result or input is larger than this part of it: the unit roundoff, with four bits to spare.
LARGEST_STAIR = 2.0**-20


def _weights(powers: list[int]) -> Floats:
    """Row j extrapolates sum of c[p] t^p, known at len(powers) steps from the j-th on, to t = 0: the value c[0]."""
    n = len(powers)
    rows = np.zeros((LEVELS - n + 1, LEVELS))
    for j, row in enumerate(rows):
        nodes = STEPS[j : j + n] / STEPS[j]
        row[j : j + n] = np.linalg.solve(nodes[None, :] ** np.array(powers)[:, None], np.eye(n)[0])
    return rows


# With J = f'(0+) - f'(0-):  (f(t) - f(-t)) / 2t          = f' + f''' t^2 / 6 + f^(5) t^4 / 120 + O(t^6)
#                            (f(t) - 2 f(0) + f(-t)) / t  = J + f'' t + f^(4) t^3 / 12 + f^(6) t^5 / 360 + O(t^7)
SLOPE_WEIGHTS, JUMP_WEIGHTS = _weights([0, 2, 4]), _weights([0, 1, 3, 5])


@dataclass(frozen=True, slots=True)
class Estimate:
    """A derivative along a direction, by central differences, and how far it may be from the true one.

    Attributes:
        value: the derivative, by length of the direction; nan if the function is not finite at the point or near it.
        error: estimated |value - truth|: truncation, round-off, noise in the function, and half the jump of the slope
            at a kink. Not proved, but scaled up to hold in practice; inf where nothing can be said.
        step: the smallest step that `value` uses, in lengths of the direction; nan if there is none.
        evaluations: how often the function was called.
        one_sided: |slope to the right - slope to the left|, extrapolated to step zero; at most twice `error`.
    """

    value: float
    error: float
    step: float
    evaluations: int
    one_sided: float


@dataclass(frozen=True, slots=True)
class Differences:
    """Finite differences of a function by the elements of its input.

    Attributes:
        values: derivative by each element, shape of the point; nan where not sampled or not finite.
        errors: estimated absolute error of each, same shape and unit; inf where nothing can be said.
        one_sided: as in `Estimate`, at each.
        sampled: flat indices of the elements that were tried, in that order.
        directions: random directions, shape of the point, with the derivative along each; empty if not needed.
        evaluations: how often the function was called.
        complete: whether every element was tried.
        description: what was tried, for people, such as ``"all 11 elements"``.
    """

    values: Floats
    errors: Floats
    one_sided: Floats
    sampled: NDArray[np.int64]
    directions: tuple[tuple[Floats, Estimate], ...]
    evaluations: int
    complete: bool
    description: str


@dataclass(frozen=True, slots=True)
class _Window:
    """The derivative from three neighbouring steps of a ladder."""

    value: float
    error: float
    jump: float  # of the slope, as if to step zero
    step: float  # the middle one of the three
    change: float  # to the value of the next finer window
    floor: float  # round-off of the function's value, and what it hides, in its own unit


class _Line:
    """The function along a line: t -> its values as a 1-d float64 array. Counts the calls."""

    def __init__(self, function: Function, displaced: Callable[[float], Floats], unit_roundoff: float) -> None:
        self.function, self.displaced, self.unit_roundoff, self.evaluations = function, displaced, unit_roundoff, 0

    def __call__(self, t: float) -> Floats:
        self.evaluations += 1
        result = np.asarray(self.function(self.displaced(t)))
        if result.dtype.kind == "f":
            self.unit_roundoff = max(self.unit_roundoff, float(np.finfo(result.dtype).eps) / 2)
        return np.array(result, dtype=np.float64).reshape(-1)  # a copy: the function may use its buffer again


def directional(
    function: Function,
    point: NDArray[Any],
    direction: NDArray[Any],
    *,
    magnitude: float = 1.0,
    unit_roundoff: float = 2.0**-53,
) -> Estimate:
    """Differentiate `function` at `point` along `direction`, by central differences of an adapted step.

    The step is first a part of the input's own scale. Where that does not do, a coarser estimate bounds the seventh
    derivative nearby, and the step balances truncation against round-off, as FiniteDifferences.jl does; the new step
    is checked likewise. An oscillation faster than the steps and below the error reached passes for noise.

    Args:
        function: takes a float64 array of the shape of `point`, its own copy; returns a number, or an array of
            contributions, which are subtracted one by one and then summed: a large constant one costs little.
        point: where; any shape.
        direction: same shape; need not have length 1.
        magnitude: over what length of an element the function may vary, where the element itself is smaller; a guess.
        unit_roundoff: relative accuracy of the function's values at best: 2**-24 if it computes in float32. The dtype
            of the result counts too. Float32 hidden in a float64 result is seen from the values, float16 is not.

    Returns:
        The derivative and its estimated error.

    Raises:
        Misuse: shapes differ or change, or `direction` is zero or not finite.

    >>> estimate = directional(np.sin, np.array(1.0), np.array(1.0))
    >>> abs(estimate.value - math.cos(1.0)) <= estimate.error < 1e-10
    True

    Reference:
        JuliaDiff/FiniteDifferences.jl, src/methods.jl, `estimate_step`. Extrapolation over falling steps: Ridders,
        Advances in Engineering Software 4 (1982), 75-76.
    """
    at, along = np.asarray(point, dtype=np.float64), np.asarray(direction, dtype=np.float64)
    if at.shape != along.shape:
        raise Misuse(f"direction has shape {along.shape} and point {at.shape}; give both the same shape")
    moving = along != 0
    if not moving.any() or not np.isfinite(along).all():
        raise Misuse("direction must be finite and not zero; give another direction")
    x, d = np.abs(at[moving]), np.abs(along[moving])
    longest = float(d.max())
    with np.errstate(all="ignore"):
        reach = float((x * (d / longest)).max() / longest)  # no small d makes it large
        nearest = float((x / d).min(initial=math.inf, where=x > 0))
    line = _Line(function, lambda t: np.where(moving, at + t * along, at), unit_roundoff)
    return _estimate(line, nearest, reach, magnitude / longest)


def differentiate(
    function: Function,
    point: NDArray[Any],
    *,
    generator: np.random.Generator,
    budget: int = 4096,
    worst: NDArray[np.int64] | None = None,
    directions: int = 4,
    magnitude: float = 1.0,
    unit_roundoff: float = 2.0**-53,
) -> Differences:
    """Differentiate `function` by the elements of its input: all of them, or a sample within the budget.

    An element takes 15 evaluations where the function is smooth, 43 or a few more elsewhere. When the budget is too
    small for all, random directions come first, which see every finite element; then worst and random ones in turn.

    Args:
        function: as for `directional`; so are `magnitude` and `unit_roundoff`.
        point: where; any shape. An element that is not finite gets value nan, error inf.
        generator: draws the sample and the directions; nothing else is random.
        budget: the most evaluations to spend.
        worst: flat indices to try first, worst first; up to half the sample, where not all elements are tried.
        directions: how many random directions to try, where not all elements are.

    Returns:
        Values and errors in the shape of `point`, and what was tried.

    Raises:
        Misuse: `budget` is below `MOST_EVALUATIONS`, or an index in `worst` is not in `point`.
    """
    at = np.asarray(point, dtype=np.float64)
    first = list(dict.fromkeys(np.asarray([] if worst is None else worst, dtype=np.int64).ravel().tolist()))
    if budget < MOST_EVALUATIONS:
        raise Misuse(f"budget is {budget}; one derivative may need {MOST_EVALUATIONS} evaluations, so give that")
    if first and (min(first) < 0 or max(first) >= at.size):
        raise Misuse(f"worst has indices {min(first)} .. {max(first)}; give flat indices in 0 .. {at.size - 1}")
    room, spent = budget // LEAST_EVALUATIONS, 0
    tried: list[tuple[Floats, Estimate]] = []
    while at.size > room and len(tried) < directions and spent + MOST_EVALUATIONS <= budget and np.isfinite(at).any():
        way = _random_direction(at, magnitude, generator)
        tried.append((way, directional(function, at, way, magnitude=magnitude, unit_roundoff=unit_roundoff)))
        spent += tried[-1][1].evaluations
    values, errors, jumps = np.full(at.shape, np.nan), np.full(at.shape, np.inf), np.full(at.shape, np.nan)
    sampled: list[int] = []
    for i in _order(at.size, first, room, generator):
        if spent + MOST_EVALUATIONS > budget:
            break
        estimate = _by_element(function, at, i, magnitude, unit_roundoff)
        values.flat[i], errors.flat[i], jumps.flat[i] = estimate.value, estimate.error, estimate.one_sided
        spent += estimate.evaluations
        sampled.append(i)
    return Differences(
        values=values,
        errors=errors,
        one_sided=jumps,
        sampled=np.array(sampled, dtype=np.int64),
        directions=tuple(tried),
        evaluations=spent,
        complete=len(sampled) == at.size,
        description=_describe(sampled, set(first), at.size, len(tried)),
    )


def _by_element(function: Function, at: Floats, i: int, magnitude: float, unit_roundoff: float) -> Estimate:
    """The derivative by the element of flat index `i`."""
    x = float(at.flat[i])

    def displaced(t: float) -> Floats:
        moved = at.copy()
        moved.flat[i] = x + t
        return moved

    return _estimate(_Line(function, displaced, unit_roundoff), abs(x) or math.inf, abs(x), magnitude)


def _random_direction(at: Floats, magnitude: float, generator: np.random.Generator) -> Floats:
    """Random signs and 7-bit sizes, scaled to the element by a power of two, so that steps stay short in binary."""
    size = generator.integers(64, 128, at.shape) * generator.choice(np.array([-1, 1]), at.shape) / 128.0
    finite = np.isfinite(at)
    exponent = np.frexp(np.maximum(np.abs(np.where(finite, at, 0.0)), magnitude))[1]
    return np.where(finite, np.ldexp(size, exponent), 0.0)


def _order(size: int, worst: list[int], room: int, generator: np.random.Generator) -> Iterator[int]:
    """Flat indices in the order to try them, without repetition: the worst and random ones in turn."""
    chosen = worst if size <= room else worst[: room // 2]
    taken = set(chosen)
    drawn = generator.choice(size, min(size, room + len(chosen)), replace=False).tolist() if size else []
    for pair in zip_longest(chosen, (i for i in drawn if i not in taken)):
        yield from (i for i in pair if i is not None)


def _describe(sampled: list[int], worst: set[int], size: int, directions: int) -> str:
    """What was tried, in words."""
    among = sum(i in worst for i in sampled)
    elements = f"the {among:,} worst and " * (among > 0) + f"{len(sampled) - among:,} sampled of {size:,} elements"
    if len(sampled) == size:
        elements = "the only element" if size == 1 else f"all {size:,} elements"
    return elements + (f" and {directions} random direction{'s' * (directions > 1)}" if directions else "")


def _estimate(line: _Line, nearest: float, reach: float, unit: float) -> Estimate:
    """The derivative at t = 0; lengths in t: to the first change of sign, of the point, of the expected variation."""
    ladders: list[Floats] = []
    best = None
    with np.errstate(all="ignore"):
        centre = line(0.0)
        start = TOP * max(reach, unit) if math.isfinite(reach) and np.isfinite(centre).all() else 0.0
        while len(ladders) < LADDERS and start > reach * 2.0**-36:  # else the lowest steps fall below its ulp
            ladders.append(_climb(line, centre, start, TOP * nearest))
            windows = _windows(ladders, reach, line.unit_roundoff)
            best = _select(windows)
            if best is None or best.error <= max(1e-10 * abs(best.value), 64 * best.floor / best.step):
                break
            start = _next_start(windows, best, TOP * nearest, last=len(ladders) == LADDERS - 1)
    if best is None:
        return Estimate(math.nan, math.inf, math.nan, line.evaluations, math.nan)
    return Estimate(best.value, best.error, best.step / 4, line.evaluations, abs(best.jump))


def _climb(line: _Line, centre: Floats, start: float, nearest: float) -> Floats:
    """Evaluate one ladder, from its coarsest step inside the domain: rows of `_rung`, a column a step; or nan."""
    for _ in range(SHRINKS + 1):
        unit = math.ldexp(1.0, math.frexp(start)[1])
        rung = _rung(line, centre, unit * float(STEPS[0]))
        if all(map(math.isfinite, rung)):
            return np.array([rung, *(_rung(line, centre, unit * float(step)) for step in STEPS[1:])]).T
        # An edge of the domain is most often where an element changes sign.
        start = nearest if nearest < start / 4 else start / 64
    return np.full((6, LEVELS), np.nan)


def _rung(line: _Line, centre: Floats, step: float) -> tuple[float, ...]:
    """Step; mean of the one-sided slopes; their difference; movement of the sum; sizes of what moved and did not."""
    right, left = line(step), line(-step)
    if not right.shape == left.shape == centre.shape:
        raise Misuse(f"function returned {centre.size}, then {right.size} and {left.size} values; keep one shape")
    across, bend = right - left, (right - centre) + (left - centre)
    size = np.maximum(np.maximum(np.abs(right), np.abs(left)), np.abs(centre))
    moved = float(size[(across != 0) | (bend != 0)].sum())
    rise, turn = float(across.sum()), float(bend.sum())
    return step, rise / (2 * step), turn / step, max(abs(rise), abs(turn)), moved, float(size.sum()) - moved


def _noise(steps: Floats, values: Floats, jumps: Floats, finer: float) -> Floats:
    """Size of the noise in the function's value that each window, and the finer ones, give away.

    Noise s moves a difference by about s / step. The largest seen counts: a single one may be small by chance.
    """
    seen = np.abs(np.diff(values)) * steps[3:]
    seen[:-1] = np.maximum(seen[:-1], np.abs(np.diff(jumps)) / 2 * steps[4:])
    seen[-1] = max(float(seen[-1]), finer)
    noise = np.array(np.maximum.accumulate(seen[::-1])[::-1], dtype=np.float64)
    noise[-1] = noise[-2]
    return noise


def _windows(ladders: list[Floats], reach: float, unit_roundoff: float) -> list[_Window]:
    """The windows of all ladders, coarsest first."""
    swings = np.concatenate([rungs[3] for rungs in ladders])
    stair = float(swings.min(initial=math.inf, where=swings > 0))
    windows: list[_Window] = []
    finer = 0.0
    for rungs in reversed(ladders):
        noise = _noise(rungs[0], SLOPE_WEIGHTS @ rungs[1], JUMP_WEIGHTS @ rungs[2], finer)
        windows = _ladder_windows(rungs, noise, reach, unit_roundoff, stair) + windows
        finer = float(noise[0])
    return windows


def _ladder_windows(rungs: Floats, noise: Floats, reach: float, unit_roundoff: float, stair: float) -> list[_Window]:
    """The derivative from every three neighbouring steps, coarsest first, with its error.

    Let R[j] be the extrapolation from steps j, j+1, j+2. Truncation in R[j] is 4^6 times that in R[j+1], and noise in
    R[j+1] about 4 times that in R[j]; so R[j] - R[j+1] shows whichever is larger. The jump of the slope belongs to
    the error: at a kink the derivative is anything between the two. Where some steps move nothing, the function may
    be a staircase that rises; then the smallest movement, `stair`, is noise, unless too large for any rounding.
    """
    steps, slopes, bends, swings, moved, still = rungs
    values, jumps = SLOPE_WEIGHTS @ slopes, JUMP_WEIGHTS @ bends
    changes = np.abs(np.diff(values))
    largest = max(16 * unit_roundoff, LARGEST_STAIR)
    windows = []
    for j, (change, jump) in enumerate(zip(changes.tolist(), jumps.tolist(), strict=True)):
        value, top, middle, swing = float(values[j]), float(steps[j]), float(steps[j + 1]), swings[j : j + 4]
        # The function's own value, and the point's, are known to a roundoff each. What never moved hides at most one.
        floor = unit_roundoff * float(moved[j]) + unit_roundoff * (reach + top) * abs(value) + math.ulp(0.0)
        hidden = unit_roundoff * float(still[j]) / top
        flat = float(steps[j : j + 4].max(initial=0.0, where=swing == 0))
        rounded = flat <= largest * reach or stair <= largest * float(moved[j] + still[j])
        wobble = max(float(noise[j]), stair if flat > 0 and rounded and stair < math.inf else 0.0)
        error = TRUNCATION_FACTOR * change + abs(jump) / 2 + 2 * hidden
        error += NOISE_FACTOR * (wobble + floor) / float(steps[j + 2])
        # Variation that stays as large at every step is nothing but noise, or is not resolved.
        if not math.isfinite(error) or noise[min(j, 1)] > max(float(swing.max()) / 32, 64 * floor):
            error = math.inf
        windows.append(_Window(value, error, jump, middle, change, floor + hidden * middle))
    return windows


def _select(windows: list[_Window]) -> _Window | None:
    """The window of the smallest error among those that no finer one contradicts; None if there is no window."""
    kept: list[_Window] = []
    for w in sorted((w for w in windows if math.isfinite(w.value)), key=lambda w: w.step):
        if all(abs(w.value - finer.value) <= w.error + finer.error for finer in kept):
            kept.append(w)
    return min(kept, key=lambda w: w.error, default=None)


def _next_start(windows: list[_Window], best: _Window, nearest: float, *, last: bool) -> float:
    """The top of another ladder, finer than the last one, that may give a smaller error; 0 if there is none.

    FiniteDifferences.jl, `_compute_step_acc`: the error C1 h^-Q + C2 h^(P-Q) is least at
    h = (Q / (P - Q) C1 / C2)^(1 / P). Here Q = 1 and P = 7, h is the middle of three steps, C1 = 4 times the
    round-off as the smallest step is h / 4, and C2 the largest |R[j] - R[j+1]| / h^6 of the finest windows.
    """
    lowest, floor = min(w.step for w in windows), min(w.floor for w in windows)
    bounds = [math.log2(w.change) - 6 * math.log2(w.step) for w in windows[-2:] if 0 < w.change < math.inf]
    balanced = 2 ** ((math.log2(4 * floor / 6) - max(bounds)) / 7) if bounds and floor < math.inf else math.inf
    promising = balanced < 4 * lowest
    start = min(16 * balanced, lowest) if promising else 0.0
    if nearest < lowest and (last or not promising):
        start = nearest
    return start if floor / max(start, math.ulp(0.0)) < best.error else 0.0
