"""How accurate torch's own kernels are: ulps by function and dtype, and a factor for each kernel that is composite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from symcheck.arithmetic.formats import PRECISIONS, Format, in_any_order
from symcheck.arithmetic.special import CONDITIONED, ULPS

__all__ = ["COMPOSITES", "kernel_format"]

# operator -> by what factor its kernel may exceed the rounding of the statements it is stated in, which it may order
# and multiply out in its own way
COMPOSITES: Mapping[str, float] = {}

_FORMATS: Mapping[str, Format] = {
    "float64": Format(ulps=ULPS),
    "float32": Format(PRECISIONS["float32"].unit, PRECISIONS["float32"].tiny, PRECISIONS["float32"], ULPS, CONDITIONED),
}


@cache
def kernel_format(dtype: str, operator: str) -> Format:
    """How torch computes a statement of an operator whose result it holds in a dtype.

    Half precision is computed in float32, and rounded at the end.
    """
    form = _FORMATS["float64" if dtype == "float64" else "float32"]
    form = replace(form, held=PRECISIONS[dtype])
    factor = COMPOSITES.get(operator.rpartition(".")[0], 0.0)
    return in_any_order(form, factor) if factor else form
