"""Whether torch's kernels keep to their rounding bounds, over its own OpInfo samples: `python -m benchmarks.kernels`.

Each sample is run forward and backward in a dtype; both are traced, and every element is held against its bound. What
cannot be traced is counted and left out. For float64 the values themselves are rounded, and get two ulps more.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.samples import OpSample, differentiable_operators, full_name, samples
from symcheck.lowering import to_numpy
from symcheck.rounding import Rounded, rounding_bounds
from symcheck.tracing import trace, trace_backward

Results = Iterator[tuple[str, np.ndarray, Rounded]]


def outputs_of(sample: OpSample, given: dict[str, Tensor]) -> tuple[Any, ...]:
    result = sample.function(*(given[name] for name in sample.inputs))
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def results(sample: OpSample) -> Results:
    """What came out forward and backward, with its bound."""
    torch.manual_seed(0)
    leaves = {k: x.detach().clone().requires_grad_(k in sample.wrt) for k, x in sample.inputs.items()}
    outputs = outputs_of(sample, leaves)
    traced = trace(lambda given: outputs_of(sample, dict(given)), sample.inputs)
    given = {name: to_numpy(tensor) for name, tensor in sample.inputs.items()}
    for place, bound in zip(traced.positions, rounding_bounds(traced.program, given), strict=False):
        yield "forward", to_numpy(outputs[place]), bound
    places = [place for place in traced.positions if outputs[place].requires_grad]
    cotangents = [torch.randn(outputs[place].shape).to(outputs[place].dtype) for place in places]
    roots, wanted = [outputs[place] for place in places], [leaves[name] for name in sample.wrt]
    grads = torch.autograd.grad(roots, wanted, cotangents, allow_unused=True)
    backward = trace_backward(
        lambda given: outputs_of(sample, dict(given)), sample.inputs, sample.wrt, cotangents, places
    )
    given |= {f"d_cotangent{n}": to_numpy(cotangent) for n, cotangent in enumerate(cotangents)}
    for grad, bound in zip(grads, rounding_bounds(backward.program, given), strict=True):
        if grad is not None:
            yield "backward", to_numpy(grad), bound


def exceeded(computed: np.ndarray, bound: Rounded, dtype: str) -> float:
    """By what factor an element exceeds its bound at most; 0 if none does."""
    slack = 2.0**-51 * np.abs(bound.values) if dtype == "float64" else 0.0
    known = np.isfinite(bound.bounds) & np.isfinite(computed)
    with np.errstate(all="ignore"):
        gap = np.abs(computed - bound.values) - slack
        return float(np.max(gap / np.maximum(bound.bounds, 5e-324), where=known & (gap > bound.bounds), initial=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dtype", nargs="?", default="bfloat16")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="", help="operators with this in their name")
    options = parser.parse_args()
    dtype, compared, left_out = getattr(torch, options.dtype), 0, Counter[str]()
    for op in differentiable_operators(dtype):
        if options.only not in full_name(op):
            continue
        try:
            for sample in samples(op, options.samples, dtype):
                for direction, computed, bound in results(sample):
                    compared += 1
                    factor = exceeded(computed, bound, options.dtype)
                    if factor:
                        print(f"{sample.name} {direction}: {factor:.3g} times its bound", flush=True)
        except Exception as error:  # torch's samples raise as they like
            left_out[type(error).__name__] += 1
    print(f"{compared} results in {options.dtype}; operators left out: {dict(left_out)}")


if __name__ == "__main__":
    main()
