"""Scalar functions that SymPy lacks or differentiates into forms that cancel, with the identities that mend them.

Each function is stated by its definition; SymPy differentiates the definition, and the result is rewritten by algebraic
identities. No derivative is written here: an identity equates two expressions of the same value, and
tests/test_functions.py checks every one at 50 digits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import sympy as sp

from symcheck.errors import UnknownOperator
from symcheck.steps import floordiv, truncdiv

__all__ = ["DEFINED", "IDENTITIES", "Defined", "formals", "tidy"]


class Defined(sp.Function):  # type: ignore[misc]
    """A function given by a definition; SymPy differentiates that definition.

    Attributes:
        orders: how many leading arguments are literal integers that select the definition, as in a Bessel function.
    """

    nargs: Any = 1
    orders = 0
    is_real = True

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        """The function written in SymPy's own functions, or in functions defined above it."""
        raise TypeError(f"{cls.__name__} has no definition")

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        """Pairs of equal expressions; the second replaces the first in derivatives of the definition."""
        return ()

    def fdiff(self, argindex: int = 1) -> sp.Expr:
        """SymPy's derivative of the definition, rewritten by the identities."""
        orders, arguments = self.args[: self.orders], self.args[self.orders :]
        function: Any = type(self)
        slope = _slope(function, orders, len(arguments), argindex - 1 - self.orders)
        return slope.xreplace(dict(zip(formals(len(arguments)), arguments, strict=True)))


def formals(count: int) -> tuple[sp.Symbol, ...]:
    """The symbols that stand for arguments in definitions and identities."""
    return tuple(sp.Symbol(f"t{position}", real=True) for position in range(count))


@cache
def _slope(function: Any, orders: tuple[sp.Expr, ...], count: int, place: int) -> sp.Expr:
    if place < 0 or not all(order.is_Integer for order in orders):
        raise UnknownOperator(function.__name__, detail="its orders must be literal integers")
    symbols = formals(count)
    slope = sp.diff(function.definition(*orders, *symbols), symbols[place])
    for expression, same in function.identities(*orders, *symbols):
        slope = slope.subs(expression, same)
    return tidy(slope)


class sigmoid(Defined):
    """1 / (1 + exp(-x)), accurate in both tails."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return 1 / (1 + sp.exp(-arguments[0]))


class softplus(Defined):
    """log(1 + exp(x)), accurate in both tails."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(1 + sp.exp(arguments[0]))


class logaddexp(Defined):
    """log(exp(x) + exp(y)), without overflow."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(sp.exp(arguments[0]) + sp.exp(arguments[1]))

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        x, y = arguments
        total = sp.exp(x) + sp.exp(y)
        return (sp.exp(x) / total, sigmoid(x - y)), (sp.exp(y) / total, sigmoid(y - x))


class log1p(Defined):
    """log(1 + x), accurate near 0."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(1 + arguments[0])


class expm1(Defined):
    """exp(x) - 1, accurate near 0."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(arguments[0]) - 1


class sech(Defined):
    """1 / cosh(x)."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return 1 / sp.cosh(arguments[0])

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        x = arguments[0]
        return ((sp.sinh(x) / sp.cosh(x) ** 2, sp.tanh(x) * sech(x)),)


class hypot(Defined):
    """sqrt(x^2 + y^2), without overflow."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.sqrt(arguments[0] ** 2 + arguments[1] ** 2)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        return ((1 / cls.definition(*arguments), 1 / cls(*arguments)),)


class erfcx(Defined):
    """exp(x^2) erfc(x), accurate where the two factors overflow and vanish."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(arguments[0] ** 2) * sp.erfc(arguments[0])

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        x = arguments[0]
        return ((sp.diff(cls.definition(x), x), -2 * ierfcx(1, x)),)


class ierfcx(Defined):
    """exp(x^2) times the n-fold integral of erfc from x to infinity: all positive, so its derivatives never cancel.

    Reference: NIST Handbook of Mathematical Functions, 7.18.
    """

    nargs = 2
    orders = 1

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        order, x = arguments
        if order <= 0:
            return 2 / sp.sqrt(sp.pi) if order == -1 else erfcx.definition(x)
        return (cls.definition(order - 2, x) - 2 * x * cls.definition(order - 1, x)) / (2 * order)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        order, x = arguments
        return ((sp.diff(cls.definition(order, x), x), -2 * (order + 1) * ierfcx(order + 1, x)),)


class ndtr(Defined):
    """The normal distribution function, accurate in the left tail."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.erfc(-arguments[0] / sp.sqrt(2)) / 2


class log_ndtr(Defined):
    """The logarithm of the normal distribution function."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.log(ndtr(arguments[0]))

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        x = arguments[0]
        return ((sp.exp(-(x**2) / 2) / ndtr(x), 2 / erfcx(-x / sp.sqrt(2))),)


class ndtri(Defined):
    """The inverse of the normal distribution function, accurate near 0."""

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.sqrt(2) * sp.erfinv(2 * arguments[0] - 1)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        x = arguments[0]
        return ((sp.erfinv(2 * x - 1), ndtri(x) / sp.sqrt(2)),)


class xlogy(Defined):
    """x log y, and 0 where x is 0: the limit from inside the domain."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return arguments[0] * sp.log(arguments[1])


class xlog1py(Defined):
    """x log(1 + y), and 0 where x is 0."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return arguments[0] * sp.log(1 + arguments[1])


class powerslope(Defined):
    """The n-th derivative of x^y by x: y(y - 1) ... (y - n + 1) x^(y - n), 0 where its factors are, even at x = 0."""

    nargs = 3
    orders = 1

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        order, x, y = arguments
        return sp.Mul(*(y - n for n in range(int(order)))) * x ** (y - order)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        order, x, y = arguments
        by_x = sp.diff(cls.definition(order, x, y), x)
        logarithmic = cls.definition(order, x, y) * sp.log(x)
        return (by_x, powerslope(order + 1, x, y)), (logarithmic, xlogy(powerslope(order, x, y), x))


class besselie(Defined):
    """exp(-x) times the modified Bessel function I of order n, for x >= 0."""

    nargs = 2
    orders = 1

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(-arguments[1]) * sp.besseli(*arguments)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        return _scaled_neighbours(cls, sp.besseli, *arguments)


class besselke(Defined):
    """exp(x) times the modified Bessel function K of order n."""

    nargs = 2
    orders = 1

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.exp(arguments[1]) * sp.besselk(*arguments)

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        return _scaled_neighbours(cls, sp.besselk, *arguments)


def _scaled_neighbours(
    scaled: type[Defined], plain: Any, order: sp.Expr, x: sp.Expr
) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
    slope = sp.diff(scaled.definition(order, x), x)
    scale = scaled(order, x) * plain(order, x) / scaled.definition(order, x) / scaled(order, x)
    same = slope.xreplace({plain(n, x): scaled(n, x) * scale for n in range(int(order) + 2)})
    return ((slope, sp.expand(same)),)


class sphericalj(Defined):
    """The spherical Bessel function j of order n; that of order 0 is sin(x)/x, and 1 at 0."""

    nargs = 2
    orders = 1

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.expand_func(sp.jn(*arguments))

    @classmethod
    def identities(cls, *arguments: sp.Expr) -> tuple[tuple[sp.Expr, sp.Expr], ...]:
        order, x = arguments
        below = order * sphericalj(order - 1, x) if order > 0 else sp.S.Zero
        above = (order + 1) * sphericalj(order + 1, x)
        return ((sp.diff(cls.definition(order, x), x), (below - above) / (2 * order + 1)),)


class gammainc(Defined):
    """The regularised lower incomplete gamma function P(a, x)."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.lowergamma(*arguments) / sp.gamma(arguments[0])


class gammaincc(Defined):
    """The regularised upper incomplete gamma function Q(a, x), accurate where it is small."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return sp.uppergamma(*arguments) / sp.gamma(arguments[0])


class remainder(Defined):
    """x - y floor(x / y), computed without error."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return arguments[0] - arguments[1] * floordiv(*arguments)


class fmod(Defined):
    """x - y trunc(x / y), computed without error."""

    nargs = 2

    @classmethod
    def definition(cls, *arguments: sp.Expr) -> sp.Expr:
        return arguments[0] - arguments[1] * truncdiv(*arguments)


DEFINED: dict[str, type[Defined]] = {cls.__name__: cls for cls in Defined.__subclasses__()}

_u = sp.Wild("u")

# (expression, the same value written without cancellation or overflow); tested numerically at 50 digits
IDENTITIES: tuple[tuple[sp.Expr, sp.Expr], ...] = (
    (1 - sp.tanh(_u) ** 2, sech(_u) ** 2),
    (sp.exp(-_u) / (1 + sp.exp(-_u)) ** 2, sigmoid(_u) * sigmoid(-_u)),
    (sp.exp(_u) / (1 + sp.exp(_u)), sigmoid(_u)),
    (sp.exp(_u**2) * sp.erfc(_u), erfcx(_u)),
    (sp.sinh(_u) / sp.cosh(_u) ** 2, sp.tanh(_u) * sech(_u)),
)


def tidy(expression: sp.Expr) -> sp.Expr:
    """Rewrite an expression by `IDENTITIES` and by combining powers of one base; its value is unchanged."""
    for pattern, replacement in IDENTITIES:
        if expression.has(*(type(f) for f in pattern.atoms(sp.Function))):
            expression = expression.replace(pattern, replacement)
    return _combine_powers(expression)


def _combine_powers(expression: sp.Expr) -> sp.Expr:
    # SymPy writes d/dx x^y as x^y*y/x, which is 0/0 at x = 0; powsimp makes it y*x^(y - 1).
    if any(not power.exp.is_number and power.base != sp.E for power in expression.atoms(sp.Pow)):
        expression = sp.powsimp(expression, combine="exp")
    if not expression.has(sp.log):
        return expression
    return expression.replace(lambda part: part.is_Mul and part.has(sp.log), _absorb_logarithms)


def _absorb_logarithms(product: sp.Mul) -> sp.Expr:
    """x^y log(x) as xlogy(x^y, x), which is 0 where x^y is."""
    factors = list(product.args)
    for logarithm in [factor for factor in factors if isinstance(factor, sp.log)]:
        base = logarithm.args[0]
        partner = next((factor for factor in factors if _is_power_of(factor, base)), None)
        if partner is not None:
            factors.remove(logarithm)
            factors[factors.index(partner)] = xlogy(partner, base)
    return sp.Mul(*factors)


def _is_power_of(factor: sp.Expr, base: sp.Expr) -> bool:
    if isinstance(factor, powerslope | xlogy):
        return bool(factor.args[1] == base)
    return isinstance(factor, sp.Pow) and factor.base == base and not factor.exp.is_number
