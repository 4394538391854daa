"""A wrong backward that `gradcheck` passes, and a right one that it fails.

Causal attention in float64, as one writes it for speed: a `torch.autograd.Function` with its backward derived by hand.
In `slipped` its gradient by q has a factor 1 + 1e-12, as a constant typed with 12 digits would give. `gradcheck` passes
it, within its tolerance of 1e-3. symcheck proves it wrong, in ball arithmetic, and finds the factor.

`Softplus` has the other kind of fault. Its formula is right, and at 800 its backward is NaN. `gradcheck` fails it
there, as it fails a wrong formula; symcheck says INSTABILITY, and the line where the infinity comes from.

    symcheck check examples/attention_certified.py       one case after the other, as reports
    python examples/attention_certified.py               beside gradcheck, one line each
"""

import math
import sys

import torch

from symcheck import Case, Verdict

SLIP = 1e-12


class Attention(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + mask) v, with a factor (1 + slip) in the gradient by q."""

    @staticmethod
    def forward(ctx, q, k, v, slip):
        scale = 1 / math.sqrt(q.shape[-1])
        hidden = torch.ones(len(q), len(k), dtype=torch.bool).triu(1)
        weights = torch.softmax((q @ k.mT * scale).masked_fill(hidden, -math.inf), -1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.scale, ctx.slip = scale, slip
        return weights @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, weights = ctx.saved_tensors
        by_weights = g @ v.mT
        by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True))
        by_q = by_scores @ k * ctx.scale * (1 + ctx.slip)
        return by_q, by_scores.mT @ q * ctx.scale, weights.mT @ g, None


class Softplus(torch.autograd.Function):
    """log(1 + exp(x)), and its slope exp(x) / (1 + exp(x)): inf / inf where exp(x) overflows."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.softplus(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(x) / (1 + torch.exp(x))


def right(q, k, v):
    return Attention.apply(q, k, v, 0.0)


def slipped(q, k, v):
    return Attention.apply(q, k, v, SLIP)


def softplus(x):
    return Softplus.apply(x)


def attention_inputs():
    torch.manual_seed(0)
    return {name: torch.randn(6, 4, dtype=torch.float64) for name in "qkv"}


def moderate():
    return {"x": torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)}


def large():
    return {"x": torch.tensor([-2.0, 0.5, 800.0], dtype=torch.float64)}


attention = Case(right, attention_inputs)
attention_off_by_1e_12 = Case(slipped, attention_inputs)
softplus_moderate = Case(softplus, moderate)
softplus_large = Case(softplus, large)

EXPECTED = {
    "right": (right, attention_inputs, Verdict.OK),
    "off by 1e-12": (slipped, attention_inputs, Verdict.FORMULA),
    "softplus at 3": (softplus, moderate, Verdict.OK),
    "softplus at 800": (softplus, large, Verdict.INSTABILITY),
}


def main():
    from symcheck import check

    print(f"{'':16}{'gradcheck':12}{'symcheck'}")
    as_expected = True
    for name, (function, inputs, expected) in EXPECTED.items():
        leaves = tuple(tensor.requires_grad_() for tensor in inputs().values())
        accepted = torch.autograd.gradcheck(function, leaves, raise_exception=False)
        report = check(function, inputs(), budget=0)
        worst = max((finding for finding in report.findings), key=lambda finding: finding.verdict.severity)
        as_expected &= worst.verdict is expected
        print(f"{name:16}{'passes' if accepted else 'fails':12}{worst.verdict.name}: by {worst.input}, {worst.reason}")
    return 0 if as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
