"""The float64 implementations stay within the ulps that the bound relies on, measured against balls at 200 bits."""

import numpy as np
import pytest

from symcheck.arithmetic.ball import Ball, to_ball, working_precision
from symcheck.arithmetic.special import CONDITIONED, FUNCTIONS, STEP_FUNCTIONS, ULPS

UNIT = 2.0**-53
TINY = 2.0**-1022  # results below the normal numbers keep fewer digits; the bound allows for them apart
RANDOM = 150

WIDE, POSITIVE, UNIT_INTERVAL = (-50.0, 50.0), (1e-3, 50.0), (-1.0, 1.0)
EDGES = [1e-300, 1e-20, 1e-8, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0, 30.0]

# The argument ranges that are tested, where they are not all of WIDE; orders are listed in brackets.
DOMAINS = {
    "tan": [WIDE],
    "log": [POSITIVE],
    "asin": [UNIT_INTERVAL],
    "acos": [UNIT_INTERVAL],
    "atanh": [UNIT_INTERVAL],
    "acosh": [(1.0, 50.0)],
    "sqrt": [POSITIVE],
    "rsqrt": [POSITIVE],
    "log1p": [(-0.999, 50.0)],
    "xlogy": [WIDE, POSITIVE],
    "xlog1py": [WIDE, (-0.999, 50.0)],
    "power": [POSITIVE, (-10.0, 10.0)],
    "powerslope": [[0, 1, 2, 3], POSITIVE, (-10.0, 10.0)],
    "erf": [(-6.0, 6.0)],
    "erfc": [(-6.0, 25.0)],
    "erfcx": [(-20.0, 1000.0)],
    "ierfcx": [[1, 2, 3], (-20.0, 1000.0)],
    "erfinv": [UNIT_INTERVAL],
    "ndtr": [(-35.0, 8.0)],
    "log_ndtr": [(-1000.0, 10.0)],
    "ndtri": [(1e-12, 1.0)],
    "gamma": [(-20.0, 20.0)],
    "loggamma": [(-5.0, 50.0)],
    "digamma": [(-5.0, 50.0)],
    "polygamma": [[1, 2, 3, 4], POSITIVE],
    "gammainc": [POSITIVE, POSITIVE],
    "gammaincc": [POSITIVE, POSITIVE],
    "zeta": [(1.1, 20.0), POSITIVE],
    "besselj": [[0, 1, 2, 3], WIDE],
    "bessely": [[0, 1, 2, 3], POSITIVE],
    "besseli": [[0, 1, 2, 3], WIDE],
    "besselk": [[0, 1, 2, 3], POSITIVE],
    "besselie": [[0, 1, 2, 3], (0.0, 1000.0)],
    "besselke": [[0, 1, 2, 3], (1e-3, 1000.0)],
    "sphericalj": [[0, 1, 2, 3], WIDE],
    "airyai": [(-10.0, 10.0)],
    "airyaiprime": [(-10.0, 10.0)],
    "airybi": [(-10.0, 10.0)],
    "airybiprime": [(-10.0, 10.0)],
}
TWO_ARGUMENTS = {"atan2", "hypot", "logaddexp"}


def domain(name):
    return DOMAINS.get(name, [WIDE] * (2 if name in TWO_ARGUMENTS else 1))


def points(name):
    """Random and edge points: (order or None, one array for each argument)."""
    generator = np.random.default_rng(sum(map(ord, name)))
    parts = domain(name)
    orders = parts[0] if isinstance(parts[0], list) else [None]
    ranges = [part for part in parts if isinstance(part, tuple)]
    for order in orders:
        columns = []
        for low, high in ranges:
            uniform = generator.uniform(low, high, RANDOM)
            small = generator.choice([-1.0, 1.0], RANDOM) * 10 ** generator.uniform(-10, np.log10(high), RANDOM)
            edges = np.array([sign * edge for edge in EDGES for sign in (1, -1)])
            every = np.concatenate([uniform, small, edges])
            columns.append(np.where((every > low) & (every < high), every, generator.uniform(low, high, every.size)))
        yield order, [columns[0], *(generator.permutation(column) for column in columns[1:])]


def errors_in_ulps(name, function):
    """How many ulps of max(|f|, |x f'|) a float64 implementation errs by, at its worst point."""
    worst = 0.0
    for order, columns in points(name):
        leading = () if order is None else (order,)
        with np.errstate(all="ignore"):
            computed = np.asarray(function(*leading, *columns), dtype=np.float64)
            moved = change_by_an_ulp(function, leading, columns, computed) if name in CONDITIONED else 0.0
        with working_precision(200):
            exact = Ball.namespace[name](*leading, *map(to_ball, columns))
            gap = np.array([float(abs(e - c).mid()) for e, c in zip(exact, to_ball(computed), strict=True)])
            size = np.array([abs(float(e.mid())) if e.is_finite() else np.inf for e in exact])
        assert all(e.rel_accuracy_bits() > 80 for e in exact if e.is_finite())
        counted = np.isfinite(computed) & np.isfinite(size) & (size > TINY)
        assert counted.mean() > 0.5
        ulps = gap[counted] / (2 * UNIT * size + moved)[counted]
        worst = max(worst, float(ulps.max()))
    return worst


def change_by_an_ulp(function, leading, columns, value):
    """|x f'| in units of the last place, by moving each argument by 2^20 ulps."""
    total = np.zeros(value.shape)
    for place in range(len(columns)):
        moved = [c * (1 + 2.0**-32) if place == n else c for n, c in enumerate(columns)]
        total = total + np.nan_to_num(np.abs(function(*leading, *moved) - value)) * 2.0**-20
    return total


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_is_as_accurate_as_stated(name):
    assert errors_in_ulps(name, FUNCTIONS[name]) <= ULPS[name]


@pytest.mark.parametrize("name", ["exp", "log_ndtr", "besselj"])
def test_a_slightly_wrong_function_is_caught(name):
    def slightly_wrong(*arguments):
        return FUNCTIONS[name](*arguments) * (1 + 4 * ULPS[name] * UNIT)

    assert errors_in_ulps(name, slightly_wrong) > ULPS[name]


@pytest.mark.parametrize("name", sorted(set(STEP_FUNCTIONS) - {"bitand", "bitor", "bitxor"}))
def test_steps_are_exact(name):
    generator = np.random.default_rng(0)
    count = 2 if name in ("floordiv", "truncdiv", "remainder", "fmod", "Mod") else 1
    columns = [np.round(generator.uniform(-20, 20, 200) * 8) / 8 + 1 / 16 for _ in range(count)]
    with working_precision(200):
        exact = Ball.namespace[name](*map(to_ball, columns))
    np.testing.assert_array_equal(STEP_FUNCTIONS[name](*columns), [float(e.mid()) for e in exact])


@pytest.mark.parametrize("name", ["floordiv", "truncdiv", "remainder", "fmod", "bitand", "bitor", "bitxor", "power"])
def test_integers_stay_exact_beyond_the_digits_of_float64(name):
    x, y = np.array([2**60 + 1, -(2**60) - 1, 7, -7, 3]), np.array([3, 3, 2, 2, 5])
    if name == "power":
        x, y = np.array([3, -3, 2]), np.array([39, 39, 62])
    expected = {
        "floordiv": lambda a, b: a // b,
        "truncdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
        "remainder": lambda a, b: a % b,
        "fmod": lambda a, b: (abs(a) % abs(b)) * (1 if a >= 0 else -1),
        "bitand": lambda a, b: a & b,
        "bitor": lambda a, b: a | b,
        "bitxor": lambda a, b: a ^ b,
        "power": lambda a, b: a**b,
    }[name]
    wanted = [expected(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert ({**FUNCTIONS, **STEP_FUNCTIONS}[name](x, y)).tolist() == wanted
