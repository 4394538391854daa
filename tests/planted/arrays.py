"""Planted faults: cumulative sum, product, embedding, differences."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.planted.faults import Planted

# -- sums and products along an axis

CUMSUM = Planted(
    lambda x: x.cumsum(0),
    {"x": (5,)},
    {"x": lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0)},
    {
        "not reversed": ("x", lambda x, cotangent: cotangent.cumsum(0)),
        "exclusive": ("x", lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0) - cotangent),
        "off-by-one index": ("x", lambda x, cotangent: cotangent.flip(0).cumsum(0).flip(0).roll(1)),
        "sum for its tail": ("x", lambda x, cotangent: cotangent.sum() + 0 * x),
    },
)

PROD = Planted(
    lambda x: x.prod(1),
    {"x": (3, 4)},
    {"x": lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True) / x},
    {
        "product itself": ("x", lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True).expand(3, 4)),
        "product of the neighbour": (
            "x",
            lambda x, cotangent: cotangent[:, None] * x.prod(1, keepdim=True) / x.roll(1, 1),
        ),
        "wrong axis": ("x", lambda x, cotangent: cotangent[:, None] * x.prod(0, keepdim=True) / x),
    },
)


# -- indices

ROWS = torch.tensor([2, 0, 2, 4, 1])


def scattered(rows, cotangent, size):
    return torch.zeros(size, cotangent.shape[1], dtype=cotangent.dtype).index_add(0, rows, cotangent)


EMBEDDING = Planted(
    lambda table, rows: F.embedding(rows, table),
    {"table": (5, 3)},
    {"table": lambda table, rows, cotangent: scattered(rows, cotangent, 5)},
    {
        "off-by-one index": ("table", lambda table, rows, cotangent: scattered((rows + 1) % 5, cotangent, 5)),
        "repeated rows written once": (
            "table",
            lambda table, rows, cotangent: torch.zeros_like(table).index_copy(0, rows[1:], cotangent[1:]),
        ),
        "gathered, not scattered": ("table", lambda table, rows, cotangent: cotangent[rows]),
        "mean of repeated rows": (
            "table",
            lambda table, rows, cotangent: (
                scattered(rows, cotangent, 5) / torch.bincount(rows, minlength=5).clamp(min=1)[:, None]
            ),
        ),
    },
    {"rows": ROWS},
)

DIFFERENCE = Planted(
    lambda x: ((x[1:] - x[:-1]) ** 2).sum() / 2,
    {"x": (6,)},
    {"x": lambda x: F.pad(x[1:] - x[:-1], (1, 0)) - F.pad(x[1:] - x[:-1], (0, 1))},
    {
        "ends as if periodic": ("x", lambda x: 2 * x - x.roll(1) - x.roll(-1)),
        "one neighbour": ("x", lambda x: F.pad(x[1:] - x[:-1], (1, 0))),
        "sign": ("x", lambda x: F.pad(x[1:] - x[:-1], (0, 1)) - F.pad(x[1:] - x[:-1], (1, 0))),
        "off-by-one index": ("x", lambda x: (F.pad(x[1:] - x[:-1], (1, 0)) - F.pad(x[1:] - x[:-1], (0, 1))).roll(1)),
    },
)
