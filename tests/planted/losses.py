"""Planted faults: cross-entropy, divergences, binary cross-entropy, Huber loss."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.planted.faults import Planted

# -- softmax cross-entropy of logits z with class targets t

TARGETS = torch.tensor([2, 0, 1, 2, 3])


def logits_gradient(z, t):
    return (torch.softmax(z, 1) - F.one_hot(t, z.shape[1])) / len(z)


CROSS_ENTROPY = Planted(
    lambda z, t: F.cross_entropy(z, t),
    {"z": (5, 4)},
    {"z": logits_gradient},
    {
        "sign": ("z", lambda z, t: -logits_gradient(z, t)),
        "missing 1/n": ("z", lambda z, t: torch.softmax(z, 1) - F.one_hot(t, 4)),
        "by the classes": ("z", lambda z, t: (torch.softmax(z, 1) - F.one_hot(t, 4)) / 4),
        "wrong axis": ("z", lambda z, t: (torch.softmax(z, 0) - F.one_hot(t, 4)) / len(z)),
        "off-by-one index": ("z", lambda z, t: (torch.softmax(z, 1) - F.one_hot((t + 1) % 4, 4)) / len(z)),
        "only the target's term": ("z", lambda z, t: -F.one_hot(t, 4) * (1 - torch.softmax(z, 1)) / len(z)),
        "softmax twice": (
            "z",
            lambda z, t: (torch.softmax(torch.softmax(z, 1), 1) - F.one_hot(t, 4)) / len(z),
        ),
        "dropped maximum": (
            "z",
            lambda z, t: (torch.exp(z - z.amax(1, True)) / torch.exp(z).sum(1, True) - F.one_hot(t, 4)) / len(z),
        ),
    },
    {"t": TARGETS},
)


# -- Kullback-Leibler divergence of softmax(q) from the distribution softmax(p), summed over a row, mean over the batch

KL = Planted(
    lambda q, p: F.kl_div(q.log_softmax(1), p.softmax(1), reduction="batchmean"),
    {"q": (3, 4), "p": (3, 4)},
    {
        "q": lambda q, p: (q.softmax(1) - p.softmax(1)) / len(q),
        "p": lambda q, p: by_p(p.softmax(1), p.log_softmax(1) - q.log_softmax(1)) / len(q),
    },
    {
        "swapped arguments": ("q", lambda q, p: (p.softmax(1) - q.softmax(1)) / len(q)),
        "mean over all elements": ("q", lambda q, p: (q.softmax(1) - p.softmax(1)) / q.numel()),
        "no softmax Jacobian": ("p", lambda q, p: (p.log_softmax(1) - q.log_softmax(1) + 1) / len(q)),
        "dropped mean of the Jacobian": (
            "p",
            lambda q, p: p.softmax(1) * (p.log_softmax(1) - q.log_softmax(1)) / len(q),
        ),
        "reverse divergence": ("p", lambda q, p: (p.softmax(1) - q.softmax(1)) / len(q)),
    },
)


def by_p(p, difference):
    return p * (difference - (p * difference).sum(1, keepdim=True))


BINARY = Planted(
    lambda z, y: F.binary_cross_entropy_with_logits(z, y.sigmoid()),
    {"z": (3, 2), "y": (3, 2)},
    {
        "z": lambda z, y: (z.sigmoid() - y.sigmoid()) / z.numel(),
        "y": lambda z, y: -z * y.sigmoid() * (1 - y.sigmoid()) / z.numel(),
    },
    {
        "swapped arguments": ("z", lambda z, y: (y.sigmoid() - z.sigmoid()) / z.numel()),
        "slope of the sigmoid again": (
            "z",
            lambda z, y: (z.sigmoid() - y.sigmoid()) * z.sigmoid() * (1 - z.sigmoid()) / z.numel(),
        ),
        "missing chain": ("y", lambda z, y: -z / z.numel()),
        "missing 1/n": ("z", lambda z, y: z.sigmoid() - y.sigmoid()),
    },
)

HUBER = Planted(
    lambda x, y: F.huber_loss(x, y, delta=0.75),
    {"x": (8,), "y": (8,)},
    {"x": lambda x, y: (x - y).clamp(-0.75, 0.75) / 8},
    {
        "not clamped": ("x", lambda x, y: (x - y) / 8),
        "delta of 1": ("x", lambda x, y: (x - y).clamp(-1, 1) / 8),
        "sign beyond delta": ("x", lambda x, y: torch.where((x - y).abs() < 0.75, x - y, (x - y).sign()) / 8),
    },
)
