"""How many ulps torch's elementwise kernels err by, measured against balls: `python -m benchmarks.ulps`.

Prints the worst error of each function in each dtype, at wide and adversarial arguments, beside the entry that
`symcheck/arithmetic/kernels.py` states. Half precision is computed in float32 and rounded: what is counted is the error
beyond that last rounding, in ulps of float32, so that one entry serves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from symcheck.arithmetic.ball import Ball, enclosures, to_ball, working_precision
from symcheck.arithmetic.formats import PRECISIONS
from symcheck.arithmetic.kernels import kernel_format

__all__ = ["FUNCTIONS", "Function", "Measured", "measure"]

Floats: TypeAlias = NDArray[np.float64]
Range: TypeAlias = tuple[float, float]

DTYPES = ("float64", "float32", "bfloat16", "float16")
WIDE, POSITIVE, PROPER, INSIDE = (-700.0, 700.0), (1e-30, 1e30), (1e-3, 60.0), (-1.0, 1.0)
EDGES = (1e-38, 1e-20, 1e-8, 1e-4, 0.25, 0.5, 0.875, 1.0, 1.5, 2.0, 3.0, 3.1415926535, 10.0, 20.0, 87.0, 1e4)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a body and torch's kernel for it.

    Attributes:
        name: SymPy's, as in `symcheck.arithmetic.special`.
        kernel: what is measured.
        ranges: of each argument.
        order: the first argument of the body's function, where it has an order that the kernel fixes.
        operator: the kernel's ATen name, where its half precision has an entry of its own.
    """

    name: str
    kernel: Callable[..., Tensor]
    ranges: tuple[Range, ...]
    order: int | None = None
    operator: str = ""


FUNCTIONS: tuple[Function, ...] = (
    Function("exp", torch.exp, (WIDE,)),
    Function("expm1", torch.expm1, (WIDE,)),
    Function("log", torch.log, (POSITIVE,)),
    Function("log1p", torch.log1p, ((-0.9999, 1e10),)),
    Function("sin", torch.sin, ((-1e5, 1e5),)),
    Function("cos", torch.cos, ((-1e5, 1e5),)),
    Function("tan", torch.tan, ((-1e4, 1e4),)),
    Function("asin", torch.asin, (INSIDE,)),
    Function("acos", torch.acos, (INSIDE,)),
    Function("atan", torch.atan, ((-1e10, 1e10),)),
    Function("atan2", torch.atan2, (WIDE, WIDE)),
    Function("sinh", torch.sinh, (WIDE,)),
    Function("cosh", torch.cosh, (WIDE,)),
    Function("tanh", torch.tanh, (WIDE,)),
    Function("asinh", torch.asinh, ((-1e10, 1e10),)),
    Function("acosh", torch.acosh, ((1.0, 1e10),)),
    Function("atanh", torch.atanh, (INSIDE,)),
    Function("sqrt", torch.sqrt, (POSITIVE,)),
    Function("rsqrt", torch.rsqrt, (POSITIVE,), operator="aten.rsqrt.default"),
    Function("hypot", torch.hypot, (WIDE, WIDE)),
    Function("sigmoid", torch.sigmoid, (WIDE,)),
    Function("softplus", lambda x: F.softplus(x, threshold=1e30), ((-700.0, 80.0),)),
    Function("logaddexp", torch.logaddexp, (WIDE, WIDE)),
    Function("xlogy", torch.xlogy, (WIDE, POSITIVE), operator="aten.xlogy.default"),
    Function("xlog1py", torch.special.xlog1py, (WIDE, (-0.9999, 1e10)), operator="aten.special_xlog1py.default"),
    Function("power", torch.pow, (PROPER, (-15.0, 15.0))),
    Function("powerslope", torch.pow, (PROPER, (-15.0, 15.0)), 0),
    Function("erf", torch.erf, ((-6.0, 6.0),)),
    Function("erfc", torch.erfc, ((-6.0, 25.0),)),
    Function("erfcx", torch.special.erfcx, ((-9.0, 1000.0),)),
    Function("erfinv", torch.erfinv, (INSIDE,)),
    Function("ndtr", torch.special.ndtr, ((-35.0, 8.0),), operator="aten.special_ndtr.default"),
    Function("log_ndtr", torch.special.log_ndtr, ((-1000.0, 10.0),)),
    Function("ndtri", torch.special.ndtri, ((1e-12, 1.0),)),
    Function("loggamma", torch.lgamma, ((-5.0, 1e6),)),
    Function("digamma", torch.digamma, ((-5.0, 1e4),)),
    Function("polygamma", lambda x: torch.polygamma(1, x), (PROPER,), 1),
    Function("polygamma", lambda x: torch.polygamma(2, x), (PROPER,), 2),
    Function("gammainc", torch.special.gammainc, (PROPER, PROPER)),
    Function("gammaincc", torch.special.gammaincc, (PROPER, PROPER)),
    Function("zeta", torch.special.zeta, ((1.1, 20.0), PROPER)),
    Function("besselj", torch.special.bessel_j0, ((-50.0, 50.0),), 0),
    Function("besselj", torch.special.bessel_j1, ((-50.0, 50.0),), 1),
    Function("bessely", torch.special.bessel_y0, (PROPER,), 0),
    Function("bessely", torch.special.bessel_y1, (PROPER,), 1),
    Function("besseli", torch.special.i0, ((-80.0, 80.0),), 0),
    Function("besseli", torch.special.i1, ((-80.0, 80.0),), 1),
    Function("besselk", torch.special.modified_bessel_k0, (PROPER,), 0),
    Function("besselk", torch.special.modified_bessel_k1, (PROPER,), 1),
    Function("besselie", torch.special.i0e, ((0.0, 1000.0),), 0, operator="aten.special_i0e.default"),
    Function("besselie", torch.special.i1e, ((0.0, 1000.0),), 1, operator="aten.special_i1e.default"),
    Function("besselke", torch.special.scaled_modified_bessel_k0, ((1e-3, 1000.0),), 0),
    Function("besselke", torch.special.scaled_modified_bessel_k1, ((1e-3, 1000.0),), 1),
    Function("sphericalj", torch.special.spherical_bessel_j0, ((-50.0, 50.0),), 0),
    Function("airyai", torch.special.airy_ai, ((-10.0, 10.0),)),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The worst error of a kernel.

    Attributes:
        ulps: in what the function's entry is in: |f|, |f| + |x f'| over the arguments x, or max(|f|, 1).
        plain: of |f|.
        at: where the first was found.
    """

    ulps: float
    plain: float
    at: tuple[float, ...]


def measure(function: Function, dtype: str, count: int, seed: int = 0) -> Measured | None:
    """The worst error of a kernel in a dtype over some arguments; None if torch has no such kernel.

    Args:
        function: what to measure.
        dtype: what to run it in.
        count: how many random arguments, besides the edges.
        seed: for those.
    """
    columns = _arguments(function, dtype, count, np.random.default_rng(seed))
    kind = getattr(torch, dtype)
    try:
        computed = function.kernel(*(torch.from_numpy(column).to(kind) for column in columns)).double().numpy()
    except (RuntimeError, NotImplementedError):
        return None
    leading = () if function.order is None else (function.order,)
    with working_precision(250):
        balls = [to_ball(column) for column in columns]
        exact = Ball.namespace[function.name](*leading, *balls)
        values, radii = enclosures(exact)
        gap = np.abs(enclosures(np.asarray(exact - to_ball(np.nan_to_num(computed)), dtype=object))[0])
        moved = _moved_by_argument(function.name, leading, balls, exact)
    held, form = PRECISIONS[dtype], kernel_format(dtype, function.operator)
    size = np.abs(values)
    usable = np.isfinite(values) & np.isfinite(computed) & (size > held.normal) & (size < held.largest / 2)
    usable &= radii < 2.0**-40 * size
    last = held.unit * size if held.unit > form.unit else 0.0
    beyond = np.maximum(np.where(usable, gap, 0.0) - last, 0.0)
    stated = size + moved if function.name in form.conditioned else size
    stated = np.maximum(stated, 1.0) if function.name in form.absolute else stated
    if not usable.any():
        return None
    with np.errstate(all="ignore"):
        ulps = np.where(usable, beyond / (2 * form.unit * stated), 0.0)
        plain = np.where(usable, beyond / (2 * form.unit * size), 0.0)
    worst = int(np.argmax(ulps))
    return Measured(float(ulps[worst]), float(plain.max()), tuple(float(column[worst]) for column in columns))


def _moved_by_argument(
    name: str, leading: tuple[int, ...], balls: Sequence[NDArray[np.object_]], exact: object
) -> Floats:
    """|x f'|, summed over the arguments, by moving each by 2^-60 of itself."""
    total = np.zeros(balls[0].shape)
    for place in range(len(balls)):
        step = [
            ball * (1 + to_ball(np.asarray(2.0**-60)).item()) if place == n else ball for n, ball in enumerate(balls)
        ]
        change = np.asarray(Ball.namespace[name](*leading, *step) - exact, dtype=object)
        with np.errstate(over="ignore"):
            total += np.nan_to_num(np.abs(enclosures(change)[0])) * 2.0**60
    return total


def _arguments(function: Function, dtype: str, count: int, generator: np.random.Generator) -> list[Floats]:
    kind = getattr(torch, dtype)
    largest = PRECISIONS[dtype].largest
    columns = []
    for low, high in function.ranges:
        signs = generator.choice([-1.0, 1.0], count)
        spread = signs * 10 ** generator.uniform(-30 if low in (1e-30,) else -10, np.log10(min(high, largest)), count)
        uniform = generator.uniform(max(low, -largest), min(high, largest), count)
        narrow = generator.uniform(max(low, -4.0), min(high, 4.0), count)
        edges = np.array([sign * edge for edge in EDGES for sign in (1, -1)])
        near_one = signs * (1 - 2.0 ** -generator.uniform(1, 50, count))
        every = np.concatenate([spread, uniform, narrow, near_one, edges])
        rounded = torch.from_numpy(every).to(kind).double().numpy() + 0.0  # balls have no -0
        instead = torch.from_numpy(generator.uniform(max(low, -largest), min(high, largest), every.size)).to(kind)
        inside = (rounded > low) & (rounded < high)
        columns.append(np.where(inside, rounded, instead.double().numpy()))
    return [columns[0], *(generator.permutation(column) for column in columns[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    print(f"{'function':14}" + "".join(f"{dtype + ': ulps, of |f|, stated':>36}" for dtype in DTYPES))
    for function in FUNCTIONS:
        if options.names and function.name not in options.names:
            continue
        cells = []
        for dtype in DTYPES:
            found = measure(function, dtype, options.count)
            stated = kernel_format(dtype, function.operator).ulps[function.name]
            cells.append(
                "-"
                if found is None
                else f"{found.ulps:12.3g} {found.plain:9.3g} {stated:7.3g}{'' if found.ulps <= stated else '!'}"
            )
        label = function.name if function.order is None else f"{function.name} {function.order}"
        print(f"{label:14}" + "".join(f"{cell:>36}" for cell in cells))


if __name__ == "__main__":
    main()
