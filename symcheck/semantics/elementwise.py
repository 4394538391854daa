"""Elementwise operators, one row each: arithmetic, powers, exponentials, trigonometric and hyperbolic functions."""

from __future__ import annotations

from typing import Any

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning, pointwise_row

# operator, its parameters in order, its body
ROWS: tuple[tuple[str, str, str], ...] = (
    ("aten.add", "x y alpha=1", "x + alpha*y"),
    ("aten.sub", "x y alpha=1", "x - alpha*y"),
    ("aten.rsub", "x y alpha=1", "y - alpha*x"),
    ("aten.mul", "x y", "x*y"),
    ("aten.div.Tensor", "x y", "x/y"),
    ("aten.div.Scalar", "x y", "x/y"),
    ("aten.neg", "x", "-x"),
    ("aten.reciprocal", "x", "1/x"),
    ("aten.lerp", "x y weight", "x + weight*(y - x)"),
    ("aten.addcmul", "x y z value=1", "x + value*y*z"),
    ("aten.addcdiv", "x y z value=1", "x + value*y/z"),
    ("aten.deg2rad", "x", "x*pi/180"),
    ("aten.rad2deg", "x", "x*180/pi"),
    ("aten.square", "x", "x**2"),
    ("aten.sqrt", "x", "sqrt(x)"),
    ("aten.rsqrt", "x", "1/sqrt(x)"),
    ("aten.hypot", "x y", "hypot(x, y)"),
    ("aten.pow.Tensor_Scalar", "x y", "x**y"),
    ("aten.pow.Tensor_Tensor", "x y", "powerslope(0, x, y)"),
    ("aten.pow.Scalar", "x y", "powerslope(0, x, y)"),
    ("aten.ldexp", "x y", "x*2**y"),
    ("aten.exp", "x", "exp(x)"),
    ("aten.exp2", "x", "2**x"),
    ("aten.expm1", "x", "expm1(x)"),
    ("aten.log", "x", "log(x)"),
    ("aten.log2", "x", "log(x)/log(2)"),
    ("aten.log10", "x", "log(x)/log(10)"),
    ("aten.log1p", "x", "log1p(x)"),
    ("aten.logaddexp", "x y", "logaddexp(x, y)"),
    ("aten.logaddexp2", "x y", "logaddexp(x*log(2), y*log(2))/log(2)"),
    ("aten.sin", "x", "sin(x)"),
    ("aten.cos", "x", "cos(x)"),
    ("aten.tan", "x", "tan(x)"),
    ("aten.asin", "x", "asin(x)"),
    ("aten.acos", "x", "acos(x)"),
    ("aten.atan", "x", "atan(x)"),
    ("aten.atan2", "y x", "atan2(y, x)"),
    ("aten.sinh", "x", "sinh(x)"),
    ("aten.cosh", "x", "cosh(x)"),
    ("aten.tanh", "x", "tanh(x)"),
    ("aten.asinh", "x", "asinh(x)"),
    ("aten.acosh", "x", "acosh(x)"),
    ("aten.atanh", "x", "atanh(x)"),
)

for _row in ROWS:
    pointwise_row("elementwise", *_row)


@meaning("aten._to_copy", "aten.to", "prims.convert_element_type")
def to_copy(b: Builder, x: Array, *_: Any, **__: Any) -> Array:
    """out = x: exact between real dtypes; from real to integer it truncates."""
    return b.cast(x, b.result_dtype)


@meaning("aten.frexp")
def frexp(b: Builder, x: Array) -> tuple[Array, Array]:
    """mantissa = x / 2^e, exponent = e, with 1/2 <= |mantissa| < 1"""
    mantissa = b.pointwise("a0*2**(-binary_exponent(a0))", x)
    return mantissa, b.pointwise("binary_exponent(a0)", x, dtype="int32")
