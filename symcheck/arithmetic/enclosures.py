"""The functions of bodies on balls: each maps python-flint `arb` to an `arb` that encloses the value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import flint

__all__ = ["ENCLOSURES", "integer_power"]

arb = flint.arb


def _exp(x: Any) -> Any:
    return arb(0) if not x.is_finite() and x < 0 else x.exp()


def _log(x: Any) -> Any:
    return -arb("inf") if x == 0 else x.log()


def _reciprocal_root(x: Any) -> Any:
    return arb("inf") if x == 0 else x.rsqrt()


def integer_power(x: Any, n: int) -> Any:
    """x^n by multiplication; arb's own power is NaN for a ball around 0. Elementwise for arrays, where n > 0."""
    if n < 0:
        return arb("inf") if x == 0 else 1 / integer_power(x, -n)
    result: Any = None
    while n:
        if n & 1:
            result = x if result is None else result * x
        n >>= 1
        x = x * x if n else x
    return arb(1) if result is None else result


def _power(x: Any, y: Any) -> Any:
    if y.is_integer():
        return integer_power(x, int(y.unique_fmpz()))
    if x == 0 and y > 0:
        return arb(0)
    return x**y


def _powerslope(order: Any, x: Any, y: Any) -> Any:
    coefficient = arb(1)
    for n in range(_whole(order)):
        coefficient = coefficient * (y - n)
    return arb(0) if coefficient == 0 else coefficient * _power(x, y - order)


def _whole(x: Any) -> int:
    return int(x.unique_fmpz())


def _softplus(x: Any) -> Any:
    return x + _exp(-x).log1p() if x > 0 else _exp(x).log1p()


def _logaddexp(x: Any, y: Any) -> Any:
    return y + _softplus(x - y)


def _hypot(x: Any, y: Any) -> Any:
    return (x * x + y * y).sqrt()


def _ndtr(x: Any) -> Any:
    return (-x / arb(2).sqrt()).erfc() / 2


def _ierfcx(order: Any, x: Any) -> Any:
    n = _whole(order)
    if x > 1:  # no cancellation; reference: DLMF 7.18.11
        return (x * x).hypgeom_u(arb(n + 1) / 2, arb(1) / 2) / (arb(2) ** n * arb.pi().sqrt())
    before, here = 2 / arb.pi().sqrt(), (x * x).exp() * x.erfc()
    for k in range(1, n + 1):
        before, here = here, (before - 2 * x * here) / (2 * k)
    return here


def _sphericalj(order: Any, x: Any) -> Any:
    n, odd = _whole(order), arb(1)
    for k in range(1, n + 1):
        odd *= 2 * k + 1
    return x**n / odd * (-(x * x) / 4).hypgeom_0f1(arb(2 * n + 3) / 2)


def _ndtri(x: Any) -> Any:
    if 2 * x < 1:  # erfinv(2 x - 1) would lose the digits of a small x
        return -arb(2).sqrt() * (2 * x).erfcinv()
    return arb(2).sqrt() * (2 * x - 1).erfinv()


def _loggamma(x: Any) -> Any:
    if not x > 0 and x.is_integer():
        return arb("inf")
    return abs(x.gamma()).log() if x < 0 else x.lgamma()


def _polygamma(order: Any, x: Any) -> Any:
    n = _whole(order)
    if n == 0:
        return x.digamma()
    if not x > 0:  # psi(n, x) = psi(n, x + k) - (-1)^n n! sum of (x + j)^-(n + 1) over j below k
        shift = max(0, int(float((1 - x).mid().ceil())))
        total = sum(((x + j) ** (-n - 1) for j in range(shift)), start=arb(0))
        return _polygamma(order, x + shift) - (-1) ** n * arb(n + 1).gamma() * total
    return (-1) ** (n + 1) * arb(n + 1).gamma() * arb(n + 1).zeta(x)


def _zeta(s: Any, a: Any = None) -> Any:
    return s.zeta() if a is None else s.zeta(a)


def _bessel(method: Callable[..., Any], scaled: bool = False) -> Callable[..., Any]:
    """A Bessel function; again with guard bits where its series cancels, by about 3 bits for each unit of x."""

    def evaluate(order: Any, x: Any) -> Any:
        return method(x, order, True) if scaled else method(x, order)

    def apply(order: Any, x: Any) -> Any:
        value = evaluate(order, x)
        if not x.is_finite() or value.rel_accuracy_bits() > flint.ctx.prec - 40:
            return value
        guard = 4 * int(min(float(abs(x).upper()), 4096.0)) + 32
        with flint.ctx.workprec(flint.ctx.prec + guard):
            return evaluate(order, x)

    return apply


def _ratio(x: Any) -> Fraction:
    mantissa, exponent = x.mid().man_exp()
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


def _trunc(x: Any) -> Any:
    return x.mid().floor() if x.mid() >= 0 else x.mid().ceil()


def _binary_exponent(x: Any) -> Any:
    if x.mid() == 0 or not x.is_finite():
        return arb(0)
    mantissa, exponent = x.mid().man_exp()
    return arb(int(mantissa).bit_length() + int(exponent))


def _bitwise(function: Callable[[int, int], int]) -> Callable[[Any, Any], Any]:
    return lambda x, y: arb(function(_whole(x), _whole(y)))


_METHODS = (
    "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt sech expm1 log1p erf erfc erfinv gamma digamma"
)

# SymPy's name -> (enclosure, number of arguments)
ENCLOSURES: dict[str, tuple[Callable[..., Any], int]] = {
    **{name: (getattr(arb, name), 1) for name in _METHODS.split()},
    "exp": (_exp, 1),
    "log": (_log, 1),
    "rsqrt": (_reciprocal_root, 1),
    "atan2": (arb.atan2, 2),
    "hypot": (_hypot, 2),
    "softplus": (_softplus, 1),
    "sigmoid": (lambda x: 1 / (1 + _exp(-x)), 1),
    "logaddexp": (_logaddexp, 2),
    "xlogy": (lambda x, y: arb(0) if x == 0 else x * _log(y), 2),
    "xlog1py": (lambda x, y: arb(0) if x == 0 else x * y.log1p(), 2),
    "power": (_power, 2),
    "powerslope": (_powerslope, 3),
    "reciprocal": (lambda x: arb("inf") if x == 0 else 1 / x, 1),
    "erfcx": (lambda x: _ierfcx(arb(0), x), 1),
    "ierfcx": (_ierfcx, 2),
    "ndtr": (_ndtr, 1),
    "log_ndtr": (lambda x: _ndtr(x).log() if x < 1 else (-_ndtr(-x)).log1p(), 1),
    "ndtri": (_ndtri, 1),
    "loggamma": (_loggamma, 1),
    "polygamma": (_polygamma, 2),
    "gammainc": (lambda a, x: x.gamma_lower(a, regularized=1), 2),
    "gammaincc": (lambda a, x: x.gamma_upper(a, regularized=1), 2),
    "zeta": (_zeta, 2),
    "besselj": (_bessel(arb.bessel_j), 2),
    "bessely": (_bessel(arb.bessel_y), 2),
    "besseli": (_bessel(arb.bessel_i), 2),
    "besselk": (_bessel(arb.bessel_k), 2),
    "besselie": (_bessel(arb.bessel_i, scaled=True), 2),
    "besselke": (_bessel(arb.bessel_k, scaled=True), 2),
    "sphericalj": (_sphericalj, 2),
    "airyai": (arb.airy_ai, 1),
    "airyaiprime": (lambda x: x.airy_ai(derivative=1), 1),
    "airybi": (arb.airy_bi, 1),
    "airybiprime": (lambda x: x.airy_bi(derivative=1), 1),
    "Abs": (abs, 1),
    "floor": (lambda x: x.mid().floor(), 1),
    "ceiling": (lambda x: x.mid().ceil(), 1),
    "trunc": (_trunc, 1),
    "rint": (lambda x: arb(round(_ratio(x))) if x.is_finite() else x, 1),
    "isnan": (lambda x: arb(int(x.is_nan())), 1),
    "isposinf": (lambda x: arb(int(x == arb("inf"))), 1),
    "isneginf": (lambda x: arb(int(x == -arb("inf"))), 1),
    "binary_exponent": (_binary_exponent, 1),
    "floordiv": (lambda x, y: (x / y).mid().floor(), 2),
    "truncdiv": (lambda x, y: _trunc(x / y), 2),
    "remainder": (lambda x, y: x - y * (x / y).mid().floor(), 2),
    "fmod": (lambda x, y: x - y * _trunc(x / y), 2),
    "Mod": (lambda x, y: x - y * (x / y).mid().floor(), 2),
    "bitand": (_bitwise(int.__and__), 2),
    "bitor": (_bitwise(int.__or__), 2),
    "bitxor": (_bitwise(int.__xor__), 2),
}
