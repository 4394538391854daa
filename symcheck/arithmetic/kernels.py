"""How accurate torch's own kernels are: ulps by function and dtype, and a factor for each kernel that is composite.

The table is measured against balls by `python -m benchmarks.ulps`, and a slice of it by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from symcheck.arithmetic.formats import PRECISIONS, Format, in_any_order
from symcheck.arithmetic.special import CONDITIONED, ULPS

__all__ = [
    "ADDS_IN_HALF",
    "ADDS_ROWS_IN_HALF",
    "COMPOSITES",
    "FURTHER",
    "KEEPS_FLOAT32",
    "KERNEL_ULPS",
    "ROUNDS_IN_HALF",
    "ROWS_IN_HALF",
    "UNSOUND",
    "kernel_format",
]

# function, ulps in float64 and in float32; half precision is computed in float32, and rounded
_ROWS: tuple[tuple[str, float], ...] = (
    ("exp", 1),
    ("expm1", 1),
    ("log", 1),
    ("log1p", 1),
    ("sin", 1),
    ("cos", 1),
    ("tan", 1),
    ("asin", 1),
    ("acos", 1),
    ("atan", 1),
    ("atan2", 1),
    ("sinh", 1.5),
    ("cosh", 1),
    ("tanh", 1),
    ("asinh", 2),
    ("acosh", 2),
    ("atanh", 1.5),
    ("sqrt", 1),
    ("rsqrt", 1.5),
    ("hypot", 1),
    ("sigmoid", 2),
    ("softplus", 2),
    ("logaddexp", 2),
    ("xlogy", 2),
    ("xlog1py", 2),
    ("power", 1),
    ("powerslope", 1),
    ("erf", 1),
    ("erfc", 2),
    ("erfcx", 6),
    ("erfinv", 1),
    ("ndtr", 2),
    ("log_ndtr", 2),
    ("ndtri", 4),
    ("loggamma", 2),
    ("digamma", 6),
    ("polygamma", 4),
    ("gammainc", 16),
    ("gammaincc", 512),
    ("zeta", 16),
    ("besselj", 8),
    ("bessely", 8),
    ("besseli", 16),
    ("besselk", 16),
    ("besselie", 16),
    ("besselke", 16),
    ("sphericalj", 2),
    ("airyai", 32),
)

KERNEL_ULPS: Mapping[str, float] = {**ULPS, **dict(_ROWS)}

# Float64 kernels of float32's accuracy, which no entry allows for: what they lose is theirs, and said to be.
UNSOUND = frozenset({"polygamma", "gammainc", "gammaincc", "besselj", "bessely", "airyai"})

# functions whose kernels err by ulps of 1: 1 + erf(x) cancels
_ABSOLUTE = frozenset({"ndtr"})
_ABSOLUTE_IN_HALF = frozenset({"ndtr", "erf"})
_ABSOLUTE_OF: Mapping[str, frozenset[str]] = {"aten.gelu": frozenset({"sigmoid"})}

# operator -> roundings of a result that its meaning hands on as it is: x min(x + 3, 6) / 6 where that is x
FURTHER: Mapping[str, int] = {"aten.hardswish": 3}

_ULPS_IN_HALF: Mapping[str, float] = {**KERNEL_ULPS, "erf": 4}

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
    "aten._log_softmax_backward_data": 2,
}

# Half precision. Operators of one statement compute in float32 and round once, but for these:
ROUNDS_IN_HALF = frozenset(
    {"aten.prod", "aten.rsqrt", "aten.xlogy", "aten.special_xlog1py", "aten.special_ndtr", "aten.special_i0e"}
    | {"aten.special_i1e", "aten.special_entr", "aten.logit", "aten.ldexp", "aten.addr", "aten.polygamma"}
)
# operators of several that keep float32 until their end; all others round after every operation that is no sum
KEEPS_FLOAT32 = frozenset(
    {"aten.gelu_backward", "aten.silu_backward", "aten.mish_backward", "aten.tanh_backward", "aten.elu_backward"}
    | {"aten.softplus_backward", "aten.hardswish_backward", "aten.log_sigmoid_backward", "aten.threshold_backward"}
    | {"aten.native_layer_norm", "aten.native_layer_norm_backward", "aten.native_group_norm"}
    | {"aten._fused_rms_norm", "aten._fused_rms_norm_backward"}
    | {"aten.native_group_norm_backward", "aten._softmax", "aten._softmax_backward_data"}
    | {"aten.sum", "aten.mean", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean", "aten.linalg_vector_norm"}
    | {"aten.cumsum", "aten.cumprod", "aten.logcumsumexp", "aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"}
    | {"aten.mv", "aten.addmv", "aten.dot", "aten.convolution", "aten.convolution_backward"}
)
# operators that add in half precision as well
ADDS_IN_HALF = frozenset(
    {"aten.addbmm", "aten.linalg_cross", "aten._trilinear", "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool3d"}
    | {"aten.grid_sampler_2d", "aten.grid_sampler_3d", "aten.upsample_linear1d", "aten.upsample_bilinear2d"}
    | {"aten.upsample_trilinear3d", "aten.upsample_bicubic2d"}
)
# ... that do so where they reduce an axis before the last, and so work on whole rows
ROWS_IN_HALF = frozenset({"aten._softmax", "aten._log_softmax"})
ROWS_IN_HALF |= {f"{name}_backward_data" for name in ROWS_IN_HALF}
# ... that only add rows so: a layer norm's gradients by weight and bias
ADDS_ROWS_IN_HALF = frozenset({"aten.native_layer_norm_backward"})


@cache
def kernel_format(dtype: str, operator: str) -> Format:
    """How torch computes a statement of an operator whose result it holds in a dtype.

    Half precision is computed in float32, and rounded at the end; or after every operation by some operators.
    """
    name, held = operator.rpartition(".")[0], PRECISIONS[dtype]
    worked = PRECISIONS["float64" if dtype == "float64" else "float32"]
    half = held.unit > worked.unit
    if half and name in ROUNDS_IN_HALF:
        worked = held
    ulps, absolute = (_ULPS_IN_HALF, _ABSOLUTE_IN_HALF) if half else (KERNEL_ULPS, _ABSOLUTE)
    absolute |= _ABSOLUTE_OF.get(name, frozenset())
    form = Format(worked.unit, worked.tiny, worked.normal, held, ulps, CONDITIONED, absolute)
    return in_any_order(form, COMPOSITES[name]) if name in COMPOSITES else form
