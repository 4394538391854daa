"""Comparisons, choices, logic and bits, and functions with jumps: rounding, signs, remainders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symcheck.building import Builder
from symcheck.errors import UnknownOperator
from symcheck.program import Array
from symcheck.semantics.table import meaning, pointwise_row

# operator, its parameters in order, its body
ROWS: tuple[tuple[str, str, str], ...] = (
    ("aten.lt", "x y", "x < y"),
    ("aten.le", "x y", "x <= y"),
    ("aten.gt", "x y", "x > y"),
    ("aten.ge", "x y", "x >= y"),
    ("aten.eq", "x y", "Eq(x, y)"),
    ("aten.ne", "x y", "Ne(x, y)"),
    ("aten.logical_not", "x", "Eq(x, 0)"),
    ("aten.logical_and", "x y", "Ne(x, 0) & Ne(y, 0)"),
    ("aten.logical_or", "x y", "Ne(x, 0) | Ne(y, 0)"),
    ("aten.logical_xor", "x y", "(Ne(x, 0) & Eq(y, 0)) | (Eq(x, 0) & Ne(y, 0))"),
    ("aten.bitwise_and", "x y", "bitand(x, y)"),
    ("aten.bitwise_or", "x y", "bitor(x, y)"),
    ("aten.bitwise_xor", "x y", "bitxor(x, y)"),
    ("aten.bitwise_left_shift", "x y", "x*2**y"),
    ("aten.bitwise_right_shift", "x y", "floordiv(x, 2**y)"),
    ("aten.__lshift__", "x y", "x*2**y"),
    ("aten.__rshift__", "x y", "floordiv(x, 2**y)"),
    ("aten.isnan", "x", "Ne(isnan(x), 0)"),
    ("aten.isinf", "x", "isposinf(x) + isneginf(x) > 0"),
    ("aten.isposinf", "x", "Ne(isposinf(x), 0)"),
    ("aten.isneginf", "x", "Ne(isneginf(x), 0)"),
    ("aten.isfinite", "x", "Eq(isnan(x) + isposinf(x) + isneginf(x), 0)"),
    ("aten.where.self", "condition x y", "Piecewise((x, Ne(condition, 0)), (y, True))"),
    ("aten.where.ScalarSelf", "condition x y", "Piecewise((x, Ne(condition, 0)), (y, True))"),
    ("aten.where.ScalarOther", "condition x y", "Piecewise((x, Ne(condition, 0)), (y, True))"),
    ("aten.where.Scalar", "condition x y", "Piecewise((x, Ne(condition, 0)), (y, True))"),
    ("aten.maximum", "x y", "Piecewise((x, x >= y), (y, Eq(isnan(x), 0)), (x, True))"),
    ("aten.minimum", "x y", "Piecewise((x, x <= y), (y, Eq(isnan(x), 0)), (x, True))"),
    ("aten.fmax", "x y", "Piecewise((x, x >= y), (y, Eq(isnan(y), 0)), (x, True))"),
    ("aten.fmin", "x y", "Piecewise((x, x <= y), (y, Eq(isnan(y), 0)), (x, True))"),
    ("aten.clamp_min", "x low", "Piecewise((low, x < low), (x, True))"),
    ("aten.clamp_max", "x high", "Piecewise((high, x > high), (x, True))"),
    ("aten.abs", "x", "Piecewise((x, x >= 0), (-x, True))"),
    ("aten.sign", "x", "Piecewise((1, x > 0), (-1, x < 0), (0, True))"),
    ("aten.sgn", "x", "Piecewise((1, x > 0), (-1, x < 0), (0, True))"),
    ("aten.angle", "x", "Piecewise((0, x >= 0), (pi, x < 0), (x, True))"),
    ("aten.heaviside", "x value", "Piecewise((1, x > 0), (0, x < 0), (value, True))"),
    ("aten.floor", "x", "floor(x)"),
    ("aten.ceil", "x", "ceiling(x)"),
    ("aten.trunc", "x", "trunc(x)"),
    ("aten.frac", "x", "x - trunc(x)"),
    ("aten.round.default", "x", "rint(x)"),
    ("aten.remainder", "x y", "remainder(x, y)"),
    ("aten.fmod", "x y", "fmod(x, y)"),
    ("aten.floor_divide", "x y", "floordiv(x, y)"),
    (
        "aten.copysign",
        "x y",
        "Piecewise((x, (x >= 0) & (y >= 0)), (-x, (x < 0) & (y >= 0)), (-x, x >= 0), (x, True))",
    ),
)

for _row in ROWS:
    pointwise_row("comparison", *_row)


@meaning("aten.bitwise_not")
def bitwise_not(b: Builder, x: Array) -> Array:
    """out = -1 - x for integers, 1 - x for truth values, 255 - x for uint8"""
    top = {"bool": 1, "uint8": 255}.get(x.dtype, -1)
    return b.pointwise("c0 - a0", x, top)


@meaning("aten.clamp")
def clamp(
    b: Builder,
    x: Array,
    min: float | Array | None = None,
    max: float | Array | None = None,
) -> Array:
    """out = x, but min where x < min, then max where that is above max"""
    out = x
    if min is not None:
        out = b.pointwise(_choice("<", min), out, min, dtype=b.result_dtype)
    if max is not None:
        out = b.pointwise(_choice(">", max), out, max, dtype=b.result_dtype)
    return b.cast(out, b.result_dtype)


def _choice(relation: str, limit: float | Array) -> str:
    name = "a1" if isinstance(limit, Array) else "c0"
    return f"Piecewise(({name}, a0 {relation} {name}), (a0, True))"


@meaning("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide(b: Builder, x: Array, y: Array | float, rounding_mode: str | None = None) -> Array:
    """out = x / y, rounded down ("floor") or towards zero ("trunc")"""
    other = "a1" if isinstance(y, Array) else "c0"
    body = {None: "a0/{}", "floor": "floordiv(a0, {})", "trunc": "truncdiv(a0, {})"}[rounding_mode]
    return b.pointwise(body.format(other), x, y, dtype=b.result_dtype)


@meaning("aten.round.decimals")
def round_decimals(b: Builder, x: Array, decimals: int = 0) -> Array:
    """out = x rounded to so many decimals, halves to even"""
    if decimals < 0:
        return b.pointwise("c0*rint(a0/c0)", x, 10**-decimals)
    return b.pointwise("rint(c0*a0)/c0", x, 10**decimals)


@meaning("aten.nextafter")
def nextafter(b: Builder, x: Array, y: Array) -> Array:
    """refused: the neighbour of a number is a fact about a format, not about the number"""
    raise UnknownOperator("aten.nextafter", detail="it depends on the floating-point format, not on numbers alone")


@meaning("aten.any")
def any_of(b: Builder, x: Array, dim: int | Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = 1 if x[i, k] is not 0 for some k"""
    dims = [dim] if isinstance(dim, int) else dim
    count = b.sum(b.cast(b.cast(x, "bool"), "int64"), dims, keepdim)
    return b.cast(b.cast(count, "bool"), b.result_dtype)


@meaning("aten.all")
def all_of(b: Builder, x: Array, dim: int | Sequence[int] | None = None, keepdim: bool = False, **_: Any) -> Array:
    """out[i] = 1 if x[i, k] is not 0 for every k"""
    dims = [dim] if isinstance(dim, int) else dim
    zeros = b.pointwise("Piecewise((1, Eq(a0, 0)), (0, True))", x, dtype="int64")
    count = b.sum(zeros, dims, keepdim)
    return b.pointwise("Piecewise((1, Eq(a0, 0)), (0, True))", count, dtype=b.result_dtype)
