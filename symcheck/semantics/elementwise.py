"""Elementwise operators: one row each, the body being what the operator computes."""

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
    ("aten.square", "x", "x**2"),
    ("aten.sqrt", "x", "sqrt(x)"),
    ("aten.rsqrt", "x", "1/sqrt(x)"),
    ("aten.pow", "x y", "x**y"),
    ("aten.exp", "x", "exp(x)"),
    ("aten.log", "x", "log(x)"),
    ("aten.sin", "x", "sin(x)"),
    ("aten.cos", "x", "cos(x)"),
    ("aten.tanh", "x", "tanh(x)"),
    ("aten.sigmoid", "x", "sigmoid(x)"),
    ("aten.abs", "x", "Piecewise((x, x >= 0), (-x, True))"),
    ("aten.relu", "x", "Piecewise((x, x > 0), (0, True))"),
    ("aten.lt", "x y", "x < y"),
    ("aten.le", "x y", "x <= y"),
    ("aten.gt", "x y", "x > y"),
    ("aten.ge", "x y", "x >= y"),
    ("aten.eq", "x y", "Eq(x, y)"),
    ("aten.ne", "x y", "Ne(x, y)"),
    ("aten.where.self", "condition x y", "Piecewise((x, Ne(condition, 0)), (y, True))"),
)

for _row in ROWS:
    pointwise_row("elementwise", *_row)


@meaning("aten._to_copy", "aten.to", "prims.convert_element_type")
def to_copy(b: Builder, x: Array, *_: Any, **__: Any) -> Array:
    """out = x: exact between real dtypes; from real to integer it truncates."""
    return b.cast(x, b.result_dtype)
