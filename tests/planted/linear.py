"""Planted faults: linear layer, matrix product, quadratic form."""

from __future__ import annotations

import torch

from tests.planted.faults import Planted

# -- linear layer with mean squared error: r = x W' + b - y, loss = sum r^2 / N


def mse(x, w, b, y):
    return ((x @ w.t() + b - y) ** 2).mean()


def residual(x, w, b, y):
    return 2 * (x @ w.t() + b - y) / y.numel()


MSE = Planted(
    mse,
    {"x": (5, 3), "w": (2, 3), "b": (2,), "y": (5, 2)},
    {
        "x": lambda x, w, b, y: residual(x, w, b, y) @ w,
        "w": lambda x, w, b, y: residual(x, w, b, y).t() @ x,
        "b": lambda x, w, b, y: residual(x, w, b, y).sum(0),
        "y": lambda x, w, b, y: -residual(x, w, b, y),
    },
    {
        "sign": ("y", residual),
        "factor 2": ("w", lambda x, w, b, y: residual(x, w, b, y).t() @ x / 2),
        "missing 1/n": ("w", lambda x, w, b, y: 2 * (x @ w.t() + b - y).t() @ x),
        "n of the rows only": ("x", lambda x, w, b, y: 2 * (x @ w.t() + b - y) @ w / len(x)),
        "n - 1 for n": ("b", lambda x, w, b, y: 2 * (x @ w.t() + b - y).sum(0) / (y.numel() - 1)),
        "dropped path": ("w", lambda x, w, b, y: (2 * (x @ w.t() - y) / y.numel()).t() @ x),
        "missing broadcast sum": ("b", residual),
        "broadcast mean": ("b", lambda x, w, b, y: residual(x, w, b, y).mean(0)),
        "wrong axis": ("b", lambda x, w, b, y: residual(x, w, b, y)[:2].sum(1)),
    },
)


# -- a bilinear form of square matrices, where a transposition keeps the shape: sum(g * (a b))

PRODUCT = Planted(
    lambda a, b: a @ b,
    {"a": (3, 3), "b": (3, 3)},
    {"a": lambda a, b, cotangent: cotangent @ b.t(), "b": lambda a, b, cotangent: a.t() @ cotangent},
    {
        "transposed operand": ("a", lambda a, b, cotangent: cotangent @ b),
        "transposed result": ("b", lambda a, b, cotangent: cotangent.t() @ a),
        "swapped factors": ("b", lambda a, b, cotangent: cotangent @ a.t()),
        "swapped arguments": ("a", lambda a, b, cotangent: cotangent @ a.t()),
        "forgotten cotangent": ("b", lambda a, b, cotangent: a.t() @ torch.ones_like(cotangent)),
        "one entry off by 1e-5": ("a", lambda a, b, cotangent: off_at_one_place(cotangent @ b.t())),
    },
)


def off_at_one_place(gradient):
    there = torch.zeros_like(gradient)
    there[1, 2] = 1
    return gradient * (1 + 1e-5 * there)


# -- a quadratic form: x' A x has the gradient (A + A') x, and 2 A x only where A is symmetric

QUADRATIC = Planted(
    lambda x, a: x @ a @ x / 2,
    {"x": (4,), "a": (4, 4)},
    {"x": lambda x, a: (a + a.t()) @ x / 2, "a": lambda x, a: torch.outer(x, x) / 2},
    {
        "as if symmetric": ("x", lambda x, a: a @ x),
        "missing 1/2": ("a", lambda x, a: torch.outer(x, x)),
        "one of two paths": ("x", lambda x, a: a.t() @ x / 2),
    },
)
