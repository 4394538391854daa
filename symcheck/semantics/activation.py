"""Activation functions; every kink is a Piecewise."""

from __future__ import annotations

from typing import Any

from symcheck.building import Builder
from symcheck.program import Array
from symcheck.semantics.table import meaning, pointwise_row

# operator, its parameters in order, its body
ROWS: tuple[tuple[str, str, str], ...] = (
    ("aten.sigmoid", "x", "sigmoid(x)"),
    ("aten.silu", "x", "x*sigmoid(x)"),
    ("aten.mish", "x", "x*tanh(softplus(x))"),
    # not torch's decomposition, whose softplus has a threshold that the kernel has not
    ("aten.mish_backward", "g x", "g*(tanh(softplus(x)) + x*sigmoid(x)*(1 - tanh(softplus(x))**2))"),
    ("aten.relu", "x", "Piecewise((0, x <= 0), (x, True))"),
    ("aten.threshold", "x threshold value", "Piecewise((value, x <= threshold), (x, True))"),
    ("aten.leaky_relu", "x slope=0.01", "Piecewise((x, x > 0), (slope*x, True))"),
    (
        "aten.elu",
        "x alpha=1 scale=1 input_scale=1",
        "Piecewise((scale*x, x > 0), (scale*alpha*expm1(input_scale*x), True))",
    ),
    ("aten.celu", "x alpha=1", "Piecewise((x, x > 0), (alpha*expm1(x/alpha), True))"),
    ("aten.hardtanh", "x low=-1 high=1", "Piecewise((low, x < low), (high, x > high), (x, True))"),
    ("aten.hardsigmoid", "x", "Piecewise((0, x <= -3), (1, x >= 3), (x/6 + 1/2, True))"),
    ("aten.hardswish", "x", "Piecewise((0, x <= -3), (x, x >= 3), (x*(x + 3)/6, True))"),
    ("aten.hardshrink", "x lambd=0.5", "Piecewise((0, (x >= -lambd) & (x <= lambd)), (x, True))"),
    ("aten.softshrink", "x lambd=0.5", "Piecewise((x - lambd, x > lambd), (x + lambd, x < -lambd), (0, True))"),
    ("aten.hardshrink_backward", "g x lambd", "Piecewise((0, (x >= -lambd) & (x <= lambd)), (g, True))"),
    ("aten.softshrink_backward", "g x lambd", "Piecewise((0, (x >= -lambd) & (x <= lambd)), (g, True))"),
    (
        "aten.softplus",
        "x beta=1 threshold=20",
        "Piecewise((x, beta*x > threshold), (softplus(beta*x)/beta, True))",
    ),
)

for _row in ROWS:
    pointwise_row("activation", *_row)


@meaning("aten.gelu")
def gelu(b: Builder, x: Array, approximate: str = "none") -> Array:
    """out = x Phi(x); with "tanh", out = x (1 + tanh(u))/2 = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3)"""
    if approximate == "none":
        return b.pointwise("a0*ndtr(a0)", x)
    return b.pointwise("a0*sigmoid(2*sqrt(2/pi)*(a0 + c0*a0**3))", x, 0.044715)


@meaning("aten.log_sigmoid_forward")
def log_sigmoid_forward(b: Builder, x: Array) -> tuple[Array, Array]:
    """out = -log(1 + exp(-x)); the buffer is exp(-|x|)"""
    buffer = b.pointwise("Piecewise((exp(-a0), a0 >= 0), (exp(a0), True))", x)
    return b.pointwise("-softplus(-a0)", x), buffer


@meaning("aten.rrelu_with_noise_functional")
def rrelu(
    b: Builder, x: Array, noise: Array, lower: float = 0.125, upper: float = 1 / 3, *_: Any, **__: Any
) -> tuple[Array, Array]:
    """out = x where x > 0, else x (lower + upper)/2: the evaluation mode, which draws no slopes"""
    return b.pointwise("Piecewise((a0, a0 > 0), (a0*(c0 + c1)/2, True))", x, lower, upper), noise
