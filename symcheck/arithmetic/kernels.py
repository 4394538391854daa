"""How accurate torch's own kernels are: ulps by function and dtype, and a factor for each kernel that is composite.

The table is measured against balls by `python -m benchmarks.ulps`, and a slice of it by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from symcheck.arithmetic.formats import PRECISIONS, Format, in_any_order
from symcheck.arithmetic.special import CONDITIONED, ULPS

__all__ = ["ADDS_IN_HALF", "COMPOSITES", "KERNEL_ULPS", "ROUNDS_IN_HALF", "UNSOUND", "kernel_format"]

# function, ulps in float64 and float32 (in half precision too, before the last rounding), and further ulps of half
# precision where its kernel rounds to that on the way
_ROWS: tuple[tuple[str, float, float], ...] = (
    ("exp", 1, 0),
    ("expm1", 1, 0),
    ("log", 1, 0),
    ("log1p", 1, 0),
    ("sin", 1, 0),
    ("cos", 1, 0),
    ("tan", 1, 0),
    ("asin", 1, 0),
    ("acos", 1, 0),
    ("atan", 1, 0),
    ("atan2", 1, 0),
    ("sinh", 1.5, 0),
    ("cosh", 1, 0),
    ("tanh", 1, 0),
    ("asinh", 2, 0),
    ("acosh", 2, 0),
    ("atanh", 1.5, 0),
    ("sqrt", 1, 0),
    ("rsqrt", 1.5, 1),
    ("hypot", 1, 0),
    ("sigmoid", 2, 0),
    ("softplus", 2, 0),
    ("logaddexp", 2, 0),
    ("xlogy", 2, 1),
    ("xlog1py", 2, 1),
    ("power", 1, 0),
    ("powerslope", 1, 0),
    ("erf", 1, 0),
    ("erfc", 2, 0),
    ("erfcx", 6, 0),
    ("erfinv", 1, 0),
    ("ndtr", 2, 0),
    ("log_ndtr", 2, 0),
    ("ndtri", 4, 0),
    ("loggamma", 2, 0),
    ("digamma", 6, 0),
    ("polygamma", 4, 0),
    ("gammainc", 16, 0),
    ("gammaincc", 256, 0),
    ("zeta", 8, 0),
    ("besselj", 8, 0),
    ("bessely", 8, 0),
    ("besseli", 8, 0),
    ("besselk", 8, 0),
    ("besselie", 8, 2),
    ("besselke", 8, 0),
    ("sphericalj", 2, 0),
    ("airyai", 32, 0),
)

KERNEL_ULPS: Mapping[str, float] = {**ULPS, **{name: ulps for name, ulps, _ in _ROWS}}
_HALF_ULPS: Mapping[str, float] = {name: half for name, _, half in _ROWS if half}

# Float64 kernels of float32's accuracy, which no entry allows for: what they lose is theirs, and said to be.
UNSOUND = frozenset({"polygamma", "gammainc", "gammaincc", "besselj", "bessely", "airyai"})

# functions whose kernels err by ulps of 1: 1 + erf(x) cancels
_ABSOLUTE = frozenset({"ndtr"})
_ABSOLUTE_IN_HALF = frozenset({"ndtr", "erf"})

# operator -> by what factor its kernel may exceed the rounding of the statements it is stated in, which it may order
# and multiply out in its own way
COMPOSITES: Mapping[str, float] = {
    "aten.gelu_backward": 4,
    "aten.native_layer_norm_backward": 2,
    "aten.native_batch_norm_backward": 2,
    "aten.native_group_norm_backward": 2,
    "aten._native_batch_norm_legit_no_training": 2,
    "aten.native_batch_norm": 2,
    "aten._softmax_backward_data": 2,
}

# operators whose half-precision kernels round to it after every operation
ROUNDS_IN_HALF = frozenset({"aten.sigmoid_backward", "aten.mse_loss_backward", "aten.huber_loss_backward"})
# operators whose half-precision kernels add rows into a buffer of it: a layer norm's gradients by weight and bias
ADDS_IN_HALF = frozenset({"aten.native_layer_norm_backward"})


@cache
def kernel_format(dtype: str, operator: str) -> Format:
    """How torch computes a statement of an operator whose result it holds in a dtype.

    Half precision is computed in float32, and rounded at the end.
    """
    held = PRECISIONS[dtype]
    worked = PRECISIONS["float64" if dtype == "float64" else "float32"]
    ulps, absolute = KERNEL_ULPS, _ABSOLUTE
    if held.unit > worked.unit:
        further = held.unit / worked.unit
        ulps = {name: stated + further * _HALF_ULPS.get(name, 0.0) for name, stated in KERNEL_ULPS.items()}
        absolute = _ABSOLUTE_IN_HALF
    form = Format(worked.unit, worked.tiny, worked.normal, held, ulps, CONDITIONED, absolute)
    factor = COMPOSITES.get(operator.rpartition(".")[0], 0.0)
    return in_any_order(form, factor) if factor else form
