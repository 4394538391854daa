"""Every identity and every derivative of a defined function, at 50 digits; powers at base 0 and below."""

import math

import mpmath
import numpy as np
import pytest
import sympy as sp

from symcheck.arithmetic.compiling import compile_body
from symcheck.arithmetic.double import Double
from symcheck.definitions import DEFINED, IDENTITIES, Defined, formals
from symcheck.errors import UnknownOperator
from symcheck.functions import differentiate, parse, read_symbol

DIGITS = 50
# Two values are equal if they agree to this: evaluation loses at most a few of 50 digits on the points below, which lie
# near no zero, and a difference quotient of mpmath works at twice the digits.
AGREEMENT = mpmath.mpf(10) ** -40
POINTS = [(sp.Rational(3, 10), sp.Rational(7, 5)), (sp.Rational(77, 100), sp.Rational(2, 5))]
STEPS = {
    "floordiv": lambda x, y: mpmath.floor(x / y),
    "truncdiv": lambda x, y: mpmath.floor(x / y) if x / y >= 0 else mpmath.ceil(x / y),
}


def plain(expression):
    """The expression without defined functions."""
    while expression.has(Defined):
        expression = expression.replace(lambda f: isinstance(f, Defined), lambda f: f.definition(*f.args))
    return expression


def at(expression, point):
    """The value of an expression in formals at a point, to 50 digits."""
    symbols = sorted(expression.free_symbols, key=str)
    function = sp.lambdify(symbols, plain(expression), modules=[STEPS, "mpmath"])
    with mpmath.workdps(DIGITS):
        return function(*(mpmath.mpf(point[int(str(s)[1:])].p) / point[int(str(s)[1:])].q for s in symbols))


def equal(left, right, point):
    a, b = at(left, point), at(right, point)
    return abs(a - b) <= AGREEMENT * max(abs(a), abs(b))


def of_formals(expression):
    wilds = sorted(expression.atoms(sp.Wild), key=str)
    return expression.xreplace(dict(zip(wilds, formals(len(wilds)), strict=True)))


def calls():
    for name, function in DEFINED.items():
        for order in range(3) if function.orders else [None]:
            arguments = formals(max(function.nargs) - function.orders)
            orders = () if order is None else (sp.Integer(order),)
            yield pytest.param(function, orders, arguments, id=name if order is None else f"{name}{order}")


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize(("left", "right"), IDENTITIES, ids=lambda side: str(side))
def test_identities_hold(left, right, point):
    assert equal(of_formals(left), of_formals(right), point)


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize(("function", "orders", "arguments"), list(calls()))
def test_identities_of_definitions_hold(function, orders, arguments, point):
    for left, right in function.identities(*orders, *arguments):
        assert equal(left, right, point), (left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1 - tanh(t0)**2", "sech(t0)"),
        ("exp(t0)/(1 + exp(t0))", "sigmoid(-t0)"),
        ("sinh(t0)/cosh(t0)**2", "tanh(t0)*sech(t0)*(1 + Rational(1, 10**30))"),
    ],
)
def test_a_wrong_identity_is_caught(left, right):
    assert not equal(parse(left, ("t0",)), parse(right, ("t0",)), POINTS[0])


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize(("function", "orders", "arguments"), list(calls()))
def test_derivatives_of_definitions(function, orders, arguments, point):
    call = function(*orders, *arguments)
    for place, symbol in enumerate(arguments):
        slope = differentiate(call, symbol)
        if not slope.has(sp.meijerg):  # the incomplete gamma functions by their order
            quotient = difference(plain(call), arguments, place, point)
            assert abs(at(slope, point) - quotient) <= AGREEMENT * max(1, abs(quotient)), slope


def difference(expression, arguments, place, point):
    function = sp.lambdify(arguments, expression, modules=[STEPS, "mpmath"])
    with mpmath.workdps(2 * DIGITS):
        values = [mpmath.mpf(part.p) / part.q for part in point[: len(arguments)]]
        return mpmath.diff(lambda x: function(*values[:place], x, *values[place + 1 :]), values[place])


def test_a_wrong_derivative_is_caught():
    symbol = formals(1)[0]
    quotient = difference(plain(DEFINED["log_ndtr"](symbol)), (symbol,), 0, POINTS[0])
    right = differentiate(DEFINED["log_ndtr"](symbol), symbol)
    assert abs(at(right * (1 + sp.Rational(1, 10**30)), POINTS[0]) - quotient) > AGREEMENT


def test_a_derivative_without_closed_form_is_refused():
    with pytest.raises(UnknownOperator, match="closed form"):
        differentiate(parse("zeta(a0, a1)"), read_symbol(0))
    with pytest.raises(UnknownOperator):
        in_double("gammainc(a0, a1)", 0, 1.0, 2.0)


def test_the_derivative_of_log_ndtr_does_not_cancel():
    slope = differentiate(parse("log_ndtr(a0)"), read_symbol(0))
    assert slope == parse("sqrt(2)/(sqrt(pi)*erfcx(-sqrt(2)*a0/2))")


def in_double(body, by, *values):
    """A body, or its derivative by the reads named in turn, in float64."""
    expression = parse(body)
    for position in [] if by is None else by if isinstance(by, tuple) else (by,):
        expression = differentiate(expression, read_symbol(position))
    with np.errstate(all="ignore"):
        return float(compile_body(expression, len(values), 0, Double.namespace)(*map(np.float64, values)))


@pytest.mark.parametrize("x", [-1000.0, 1000.0])
@pytest.mark.parametrize("body", ["sigmoid(a0)", "softplus(a0)", "tanh(a0)", "sech(a0)", "log_ndtr(a0)", "ndtr(a0)"])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_tails_stay_finite(body, order, x):
    if (body, order, x) == ("log_ndtr(a0)", 2, 1000.0):
        pytest.skip("a quotient of two overflows: float64 has no value there, balls do")
    assert math.isfinite(in_double(body, (0,) * order, x))


def test_the_second_derivative_of_erfcx_at_large_arguments():
    # erfcx(x) = (1 - 1/(2 x^2) + ...)/(x sqrt(pi)), so its second derivative is 2/(x^3 sqrt(pi)) (1 - 3/x^2 + ...)
    assert in_double("erfcx(a0)", (0, 0), 1000.0) == pytest.approx(2e-9 / math.sqrt(math.pi) * (1 - 3e-6), rel=1e-11)
    assert in_double("erfcx(a0)", (0, 0), -1000.0) == math.inf  # beyond the largest float64


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("x", "y", "value", "by_x", "by_y"),
    [
        (0.0, 0.0, 1.0, 0.0, -INF),  # 0^y falls from 1 to 0
        (0.0, 0.5, 0.0, INF, 0.0),
        (0.0, 1.0, 0.0, 1.0, 0.0),
        (0.0, 2.0, 0.0, 0.0, 0.0),
        (0.0, -1.0, INF, -INF, -INF),
        (3.0, 0.0, 1.0, 0.0, math.log(3.0)),
        (-2.0, 0.0, 1.0, 0.0, NAN),
        (-2.0, 3.0, -8.0, 12.0, NAN),
        (-2.0, 0.5, NAN, NAN, NAN),
    ],
)
def test_powers_at_base_zero_and_below(x, y, value, by_x, by_y):
    results = [in_double("powerslope(0, a0, a1)", by, x, y) for by in (None, 0, 1)]
    np.testing.assert_allclose(results, [value, by_x, by_y], rtol=1e-15)


@pytest.mark.parametrize(
    ("exponent", "slope", "curvature"), [(0, 0.0, 0.0), (1, 1.0, 0.0), (2, 0.0, 2.0), (3, 0.0, 0.0)]
)
def test_whole_powers_at_zero(exponent, slope, curvature):
    for body, values in [(f"a0**{exponent}", (0.0,)), ("powerslope(0, a0, a1)", (0.0, float(exponent)))]:
        assert in_double(body, 0, *values) == slope
        assert in_double(body, (0, 0), *values) == curvature
