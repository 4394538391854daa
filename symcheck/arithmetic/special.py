"""Float64 implementations of the functions of bodies, and how many ulps each may err by: one table.

The ulps are of max(|f|, |x f'|) over the arguments x, and are measured against balls by
tests/arithmetic/test_functions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

__all__ = ["CONDITIONED", "FUNCTIONS", "LIPSCHITZ", "MONOTONE", "POLES", "STEP_FUNCTIONS", "ULPS"]


def _polygamma(order: Any, x: Any) -> Any:
    return special.digamma(x) if np.all(order == 0) else special.polygamma(order, x)


def _power(x: Any, y: Any) -> Any:
    if _are_integers(x, y):
        return _integer_power(x, y)
    return np.power(np.asarray(x, dtype=np.float64), y)


def _are_integers(*values: Any) -> bool:
    return all(np.asarray(value).dtype.kind in "iu" for value in values)


def _integer_power(x: Any, y: Any) -> Any:
    """As torch has it: to a negative power, every integer but 1 and -1 gives 0."""
    whole = np.power(x, np.maximum(y, 0))
    return np.where(np.asarray(y) >= 0, whole, np.where(np.abs(x) == 1, np.power(x, np.abs(y)), 0))


def _powerslope(order: Any, x: Any, y: Any) -> Any:
    n = int(order)
    if n == 0:
        return _power(x, y)
    coefficient = np.prod([np.subtract(y, k) for k in range(n)], axis=0)
    exponent = np.subtract(y, n)
    lost = (y - (exponent + n)) if n else 0.0  # by the rounding of y - n
    slope = np.where(lost == 0, 0.0, np.log(np.abs(np.where(lost == 0, 1.0, x))))
    return np.where(coefficient == 0, 0.0, coefficient * _power(x, exponent) * (1 + lost * slope))


def _ierfcx(order: Any, x: Any) -> Any:
    # For x <= 1 the recurrence 2 n E(n) = E(n-2) - 2 x E(n-1) keeps its digits; beyond, the continued fraction of the
    # ratios E(n) / E(n-1) has positive terms only.
    n, x = int(order), np.asarray(x, dtype=np.float64)
    below, here = np.full(x.shape, 2 / np.sqrt(np.pi)), special.erfcx(x)
    small = np.minimum(x, 1.0)
    previous, current = below, special.erfcx(small)
    for k in range(1, n + 1):
        previous, current = current, (previous - 2 * small * current) / (2 * k)
    large = np.maximum(x, 1.0)
    ratio = np.zeros(x.shape)
    for k in range(n + 200, 0, -1):
        ratio = 1 / (2 * large + 2 * (k + 1) * ratio)
        if k <= n:
            here = here * ratio
    return np.where(x > 1.0, here, current)


def _bessel(plain: Callable[[Any, Any], Any], sign: float, scaled: bool = False) -> Callable[[Any, Any], Any]:
    """A Bessel function that is regular at 0, by its power series near 0, where scipy's loses digits."""

    def apply(order: Any, x: Any) -> Any:
        n, x = abs(int(order)), np.asarray(x, dtype=np.float64)
        inner = np.where(np.abs(x) < 0.1, x, 0.0) / 2
        total = term = np.ones(x.shape)
        for k in range(1, 8):
            term = term * (sign * inner * inner) / (k * (n + k))
            total = total + term
        series = inner**n / float(np.prod(np.arange(1, n + 1))) * total
        if scaled:
            series = series * np.exp(-2 * inner)
        return np.where(np.abs(x) < 0.1, series, plain(n, x))

    return apply


def _sphericalj(order: Any, x: Any) -> Any:
    # The power series below 1/2 + n/2, where its terms fall fast; scipy's recurrence loses digits there.
    n, x = int(order), np.asarray(x, dtype=np.float64)
    if n == 0:
        return np.where(x == 0, 1.0, np.sin(x) / np.where(x == 0, 1.0, x))
    inner = np.where(np.abs(x) < 1 + n, x, 0.0)
    lead = inner**n / float(np.prod(np.arange(1, 2 * n + 2, 2)))
    term, total = np.ones(x.shape), np.ones(x.shape)
    for k in range(1, 30):
        term = term * (-0.5 * inner * inner) / (k * (2 * n + 2 * k + 1))
        total = total + term
    return np.where(np.abs(x) < 1 + n, lead * total, special.spherical_jn(n, x))


def _truncdiv(x: Any, y: Any) -> Any:
    if _are_integers(x, y):
        return np.floor_divide(x - np.fmod(x, y), y)
    return np.where(np.isinf(x) | (np.asarray(y) == 0), np.trunc(np.divide(x, y)), np.rint((x - np.fmod(x, y)) / y))


def _airy(component: int) -> Callable[[Any], Any]:
    return lambda x: special.airy(x)[component]


# SymPy's name, float64 implementation, ulps
_ROWS: tuple[tuple[str, Callable[..., Any], float], ...] = (
    ("exp", np.exp, 2),
    ("log", np.log, 2),
    ("sin", np.sin, 2),
    ("cos", np.cos, 2),
    ("tan", np.tan, 4),
    ("asin", np.arcsin, 4),
    ("acos", np.arccos, 4),
    ("atan", np.arctan, 2),
    ("atan2", np.arctan2, 2),
    ("sinh", np.sinh, 4),
    ("cosh", np.cosh, 4),
    ("tanh", np.tanh, 4),
    ("asinh", np.arcsinh, 4),
    ("acosh", np.arccosh, 4),
    ("atanh", np.arctanh, 4),
    ("sqrt", np.sqrt, 0.5),
    ("rsqrt", lambda x: 1.0 / np.sqrt(x), 2),
    ("hypot", np.hypot, 2),
    ("sech", lambda x: 1.0 / np.cosh(x), 4),
    ("sigmoid", special.expit, 4),
    ("softplus", lambda x: np.logaddexp(0.0, x), 4),
    ("logaddexp", np.logaddexp, 4),
    ("log1p", np.log1p, 2),
    ("expm1", np.expm1, 2),
    ("xlogy", special.xlogy, 4),
    ("xlog1py", special.xlog1py, 4),
    ("power", _power, 2),
    ("powerslope", _powerslope, 8),
    ("erf", special.erf, 4),
    ("erfc", special.erfc, 4),
    ("erfcx", special.erfcx, 4),
    ("ierfcx", _ierfcx, 64),
    ("erfinv", special.erfinv, 8),
    ("ndtr", special.ndtr, 16),
    ("log_ndtr", special.log_ndtr, 16),
    ("ndtri", special.ndtri, 32),
    ("gamma", special.gamma, 16),
    ("loggamma", special.gammaln, 16),
    ("digamma", special.digamma, 16),
    ("polygamma", _polygamma, 64),
    ("gammainc", special.gammainc, 64),
    ("gammaincc", special.gammaincc, 64),
    ("zeta", special.zeta, 64),
    ("besselj", _bessel(special.jv, -1.0), 128),
    ("bessely", special.yv, 64),
    ("besseli", _bessel(special.iv, 1.0), 32),
    ("besselk", special.kv, 32),
    ("besselie", _bessel(special.ive, 1.0, scaled=True), 32),
    ("besselke", special.kve, 32),
    ("sphericalj", _sphericalj, 32),
    ("airyai", _airy(0), 64),
    ("airyaiprime", _airy(1), 64),
    ("airybi", _airy(2), 64),
    ("airybiprime", _airy(3), 64),
)

FUNCTIONS: dict[str, Callable[..., Any]] = {name: function for name, function, _ in _ROWS}
ULPS: dict[str, float] = {name: ulps for name, _, ulps in _ROWS}

# Functions that err by ulps of |x f'| where it is larger than |f|: near their zeros and in steep tails.
CONDITIONED = frozenset(
    {"logaddexp", "erfc", "erfcx", "ierfcx", "ndtr", "log_ndtr", "ndtri", "loggamma", "digamma", "polygamma"}
    | {"gammainc", "gammaincc", "besselj", "bessely", "sphericalj", "airyai", "airyaiprime", "airybi", "airybiprime"}
)

# Functions of one argument that are monotone on an interval if they are finite at its ends.
MONOTONE = frozenset(
    {"exp", "log", "asin", "acos", "atan", "sinh", "tanh", "asinh", "acosh", "atanh", "sqrt", "rsqrt", "sigmoid"}
    | {"softplus", "log1p", "expm1", "erf", "erfc", "erfcx", "erfinv", "ndtr", "log_ndtr", "ndtri"}
)
# Functions whose slope by their last argument is at most 1.
LIPSCHITZ = frozenset({"sin", "cos"})
# Functions with poles: the number of the branch, which changes across one.
POLES: dict[str, Callable[[Any], Any]] = {
    "tan": lambda x: np.floor(x / np.pi - 0.5),
    **dict.fromkeys(("gamma", "loggamma", "digamma", "polygamma"), lambda x: np.minimum(np.ceil(x), 1)),
}

# Piecewise-constant functions, and those that are computed without error.
STEP_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": np.floor,
    "ceiling": np.ceil,
    "trunc": np.trunc,
    "rint": np.rint,
    "isnan": lambda x: np.isnan(x).astype(np.float64),
    "isposinf": lambda x: np.isposinf(x).astype(np.float64),
    "isneginf": lambda x: np.isneginf(x).astype(np.float64),
    "binary_exponent": lambda x: np.frexp(x)[1].astype(np.float64),
    "floordiv": np.floor_divide,
    "truncdiv": _truncdiv,
    "remainder": np.remainder,
    "fmod": np.fmod,
    "Mod": np.remainder,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
}
