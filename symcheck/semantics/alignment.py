"""Connectionist temporal classification: the probability of every alignment of a label sequence, summed.

The recurrence runs in probabilities, divided at each step by their largest, which is read as a constant: the sum of
the logarithms of all divisors is added back at the end, so the value does not depend on them.

Reference: Graves et al., Connectionist temporal classification, ICML 2006, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from symcheck.building import Builder, Held
from symcheck.program import Array
from symcheck.semantics.folding import extreme
from symcheck.semantics.table import meaning


@meaning("aten._ctc_loss")
def ctc_loss(
    b: Builder,
    log_probs: Array,
    targets: Array,
    input_lengths: Sequence[int] | Array,
    target_lengths: Sequence[int] | Array,
    blank: int = 0,
    *_: object,
) -> tuple[Array, None]:
    """out[n] = -log(sum over alignments a of target[n] of the product over t of exp(log_probs[t, n, a_t]))"""
    steps, batch, classes = log_probs.shape
    frames, sizes = _lengths(b, input_lengths), _lengths(b, target_lengths)
    labels = _with_blanks(b, targets, sizes, b.results[1][0][2], blank)
    states = labels.shape[1]
    rows = b.constant(np.arange(steps * batch).reshape(steps, batch) * classes)
    places = b.equation("tn,ns->tns", "a0 + a1", rows, labels, dtype="int64")
    emitted = b.pointwise("exp(a0)", b.gather((log_probs,), places))
    skips = b.pointwise("Piecewise((0, Eq(a0, a1)), (1, True))", labels, _shifted(b, labels, 2), dtype=log_probs.dtype)
    alpha = b.constant(np.eye(1, states).repeat(batch, axis=0), log_probs.dtype)
    scale = b.constant(np.zeros((batch, 1)), log_probs.dtype)
    for t in range(steps):
        now = b.rearrange(emitted, lambda positions, t=t: positions[t])  # type: ignore[misc]
        one, two = _shifted(b, alpha, 1), _shifted(b, alpha, 2)
        moved = b.pointwise("a0*(a1 + a2 + a3*a4)", now, alpha, one, skips, two)
        largest = Held(b.pointwise("Piecewise((a0, a0 > 0), (1, True))", extreme(b, moved, -1)))
        running = b.reshape(frames, (batch, 1))
        alpha = b.pointwise("Piecewise((a0/a1, a2 > c0), (a3, True))", moved, largest, running, alpha, t)
        scale = b.pointwise("Piecewise((a0 + log(a1), a2 > c0), (a0, True))", scale, largest, running, t)
    last = "Piecewise((a0, Eq(a2, 2*a1) | Eq(a2, 2*a1 - 1)), (0, True))"
    total = b.equation("ns,n,s->n", last, alpha, sizes, b.constant(np.arange(states)))
    return b.pointwise("-log(a0) - a1", total, b.reshape(scale, (batch,))), None


def _lengths(b: Builder, lengths: Sequence[int] | Array) -> Array:
    return lengths if isinstance(lengths, Array) else b.constant(np.asarray(lengths, dtype=np.int64))


def _with_blanks(b: Builder, targets: Array, sizes: Array, states: int, blank: int) -> Array:
    """[n, s]: the labels of each sequence with a blank before, between and after them."""
    batch = sizes.shape[0]
    place = np.arange(states) // 2
    if len(targets.shape) == 2:
        starts = b.constant(np.arange(batch) * targets.shape[1])
    else:  # one sequence after the other
        starts = b.equation("mn,n->m", "a0*a1", b.constant(np.tri(batch, k=-1, dtype=np.int64)), sizes)
    where = b.equation("n,s->ns", "a0 + a1", starts, b.constant(place), dtype="int64")
    label = b.gather((targets,), where)
    is_blank = b.constant(1 - np.arange(states) % 2)
    return b.pointwise("Piecewise((c0, a1 > 0), (a0, True))", label, is_blank, blank, dtype="int64")


def _shifted(b: Builder, values: Array, places: int) -> Array:
    """[n, s]: the value at s - places, absent before the first."""
    positions = np.arange(values.size).reshape(values.shape)
    shifted = np.full(values.shape, -1)
    shifted[:, places:] = positions[:, : max(values.shape[1] - places, 0)]
    return b.gather((values,), shifted)
