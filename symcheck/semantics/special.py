"""Special functions: the families of erf, gamma, Bessel and zeta, and the entropies."""

from __future__ import annotations

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning, pointwise_row

# operator, its parameters in order, its body
ROWS: tuple[tuple[str, str, str], ...] = (
    ("aten.erf", "x", "erf(x)"),
    ("aten.erfc", "x", "erfc(x)"),
    ("aten.erfinv", "x", "erfinv(x)"),
    ("aten.special_erfcx", "x", "erfcx(x)"),
    ("aten.special_ndtr", "x", "ndtr(x)"),
    ("aten.special_ndtri", "x", "ndtri(x)"),
    ("aten.special_log_ndtr", "x", "log_ndtr(x)"),
    ("aten.lgamma", "x", "loggamma(x)"),
    ("aten.digamma", "x", "polygamma(0, x)"),
    ("aten.polygamma", "n x", "polygamma(n, x)"),
    ("aten.igamma", "a x", "gammainc(a, x)"),
    ("aten.igammac", "a x", "gammaincc(a, x)"),
    ("aten.special_gammainc", "a x", "gammainc(a, x)"),
    ("aten.special_gammaincc", "a x", "gammaincc(a, x)"),
    ("aten.special_zeta", "s a", "zeta(s, a)"),
    ("aten.i0", "x", "besseli(0, x)"),
    ("aten.special_i1", "x", "besseli(1, x)"),
    ("aten.special_i0e", "x", "Piecewise((besselie(0, x), x >= 0), (besselie(0, -x), True))"),
    ("aten.special_i1e", "x", "Piecewise((besselie(1, x), x >= 0), (-besselie(1, -x), True))"),
    ("aten.special_bessel_j0", "x", "besselj(0, x)"),
    ("aten.special_bessel_j1", "x", "besselj(1, x)"),
    ("aten.special_bessel_y0", "x", "bessely(0, x)"),
    ("aten.special_bessel_y1", "x", "bessely(1, x)"),
    ("aten.special_modified_bessel_i0", "x", "besseli(0, x)"),
    ("aten.special_modified_bessel_i1", "x", "besseli(1, x)"),
    ("aten.special_modified_bessel_k0", "x", "besselk(0, x)"),
    ("aten.special_modified_bessel_k1", "x", "besselk(1, x)"),
    ("aten.special_scaled_modified_bessel_k0", "x", "besselke(0, x)"),
    ("aten.special_scaled_modified_bessel_k1", "x", "besselke(1, x)"),
    ("aten.special_spherical_bessel_j0", "x", "sphericalj(0, x)"),
    ("aten.special_airy_ai", "x", "airyai(x)"),
    ("aten.sinc", "x", "sphericalj(0, pi*x)"),
    ("aten.xlogy", "x y", "xlogy(x, y)"),
    ("aten.special_xlog1py", "x y", "xlog1py(x, y)"),
    ("aten.special_entr", "x", "Piecewise((-oo, x < 0), (-xlogy(x, x), True))"),
)

for _row in ROWS:
    pointwise_row("special", *_row)


@meaning("aten.logit")
def logit(b: Builder, x: Array, eps: float | None = None) -> Array:
    """out = log(z) - log(1 - z), with z = x clamped to [eps, 1 - eps]"""
    if eps is not None:
        x = b.pointwise("Piecewise((c0, a0 < c0), (1 - c0, a0 > 1 - c0), (a0, True))", x, eps, dtype=b.result_dtype)
    return b.pointwise("log(a0) - log1p(-a0)", x, dtype=b.result_dtype)
