"""Planted faults: layer and batch norm, variance, norms."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.planted.faults import Planted

EPS = 1e-3


# -- layer norm: s = 1 / sqrt(var + eps), n = (x - mean) s, h = g w, by x: s (h - mean h - n mean(h n))


def normed(x, correction=0, eps=EPS):
    return (x - x.mean(-1, True)) * inverse(x, correction, eps)


def inverse(x, correction=0, eps=EPS):
    return 1 / (x.var(-1, keepdim=True, correction=correction) + eps).sqrt()


def norm_by_x(x, h, n, s):
    return s * (h - h.mean(-1, True) - n * (h * n).mean(-1, True))


LAYER_NORM = Planted(
    lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS),
    {"x": (3, 5), "w": (5,), "b": (5,)},
    {
        "x": lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x), inverse(x)),
        "w": lambda x, w, cotangent: (cotangent * normed(x)).sum(0),
        "b": lambda x, w, cotangent: cotangent.sum(0),
    },
    {
        "n - 1 for n": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x, 1), inverse(x, 1))),
        "eps outside the root": (
            "x",
            lambda x, w, cotangent: norm_by_x(
                x,
                cotangent * w,
                (x - x.mean(-1, True)) / (x.std(-1, correction=0, keepdim=True) + EPS),
                1 / (x.std(-1, correction=0, keepdim=True) + EPS),
            ),
        ),
        "other eps": ("w", lambda x, w, cotangent: (cotangent * normed(x, eps=1e-5)).sum(0)),
        "eps left out": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x, eps=0), inverse(x, eps=0))),
        "detached statistics": ("x", lambda x, w, cotangent: inverse(x) * cotangent * w),
        "detached mean": (
            "x",
            lambda x, w, cotangent: (
                inverse(x) * (cotangent * w - normed(x) * (cotangent * w * normed(x)).mean(-1, True))
            ),
        ),
        "detached variance": (
            "x",
            lambda x, w, cotangent: inverse(x) * (cotangent * w - (cotangent * w).mean(-1, True)),
        ),
        "weight after the mean": (
            "x",
            lambda x, w, cotangent: w * norm_by_x(x, cotangent, normed(x), inverse(x)),
        ),
        "wrong axis": ("w", lambda x, w, cotangent: (cotangent * normed(x.t()).t()).sum(0)),
        "not normed": ("w", lambda x, w, cotangent: (cotangent * x).sum(0)),
        "forgotten cotangent": ("b", lambda x, w, cotangent: torch.ones_like(w) * len(x)),
    },
)


# -- batch norm in training: as layer norm, along the batch

BATCH_NORM = Planted(
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, EPS),
    {"x": (6, 3), "w": (3,), "b": (3,)},
    {
        "x": lambda x, w, cotangent: norm_by_x(x.t(), (cotangent * w).t(), normed(x.t()), inverse(x.t())).t(),
        "w": lambda x, w, cotangent: (cotangent * normed(x.t()).t()).sum(0),
    },
    {
        "n - 1 for n": (
            "x",
            lambda x, w, cotangent: norm_by_x(x.t(), (cotangent * w).t(), normed(x.t(), 1), inverse(x.t(), 1)).t(),
        ),
        "evaluation mode": ("x", lambda x, w, cotangent: cotangent * w * inverse(x.t()).t()),
        "wrong axis": ("x", lambda x, w, cotangent: norm_by_x(x, cotangent * w, normed(x), inverse(x))),
        "mean path missing": (
            "x",
            lambda x, w, cotangent: (
                inverse(x.t()).t() * w * (cotangent - normed(x.t()).t() * (cotangent * normed(x.t()).t()).mean(0))
            ),
        ),
    },
)


VARIANCE = Planted(
    lambda x: x.var(1),
    {"x": (3, 5)},
    {"x": lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 4},
    {
        "n for n - 1": ("x", lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 5),
        "missing factor 2": ("x", lambda x, cotangent: cotangent[:, None] * (x - x.mean(1, True)) / 4),
        "not centred": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x / 4),
        "mean of all": ("x", lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean()) / 4),
        "the mean counted twice": (
            "x",
            lambda x, cotangent: 2 * cotangent[:, None] * (x - x.mean(1, True)) / 4 * (1 - 1 / 5),
        ),
    },
)

NORM = Planted(
    lambda x: x.norm(dim=1),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: cotangent[:, None] * x / x.norm(dim=1, keepdim=True)},
    {
        "squared norm": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x),
        "missing 1/2": ("x", lambda x, cotangent: 2 * cotangent[:, None] * x / x.norm(dim=1, keepdim=True)),
        "divided by the square": ("x", lambda x, cotangent: cotangent[:, None] * x / x.square().sum(1, True)),
        "norm of all": ("x", lambda x, cotangent: cotangent[:, None] * x / x.norm()),
        "other norm": ("x", lambda x, cotangent: cotangent[:, None] * x.sign()),
        "eps in the root": (
            "x",
            lambda x, cotangent: cotangent[:, None] * x / (x.square().sum(1, True) + 1e-6).sqrt(),
        ),
    },
)

NORMALISE = Planted(
    lambda x: x / x.norm(dim=1, keepdim=True),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: normalise_by_x(x, cotangent)},
    {
        "diagonal only": ("x", lambda x, cotangent: cotangent / x.norm(dim=1, keepdim=True)),
        "sign of the projection": (
            "x",
            lambda x, cotangent: 2 * cotangent / x.norm(dim=1, keepdim=True) - normalise_by_x(x, cotangent),
        ),
        "projection without normalising": (
            "x",
            lambda x, cotangent: (cotangent - x * (x * cotangent).sum(1, True)) / x.norm(dim=1, keepdim=True),
        ),
    },
)


def normalise_by_x(x, cotangent):
    size = x.norm(dim=1, keepdim=True)
    unit = x / size
    return (cotangent - unit * (unit * cotangent).sum(1, True)) / size
