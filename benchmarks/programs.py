"""Random functions of two matrices, composed of layers in any dtype: what rounding bounds are tried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from symcheck.program import Program
from symcheck.tracing import trace_backward

__all__ = ["DTYPES", "LAYERS", "Run", "random_run", "run_backward"]

Layer: TypeAlias = Callable[[Tensor, Tensor], Tensor]

DTYPES = ("float64", "float32", "bfloat16", "float16")

# name -> a layer of x (any shape) and w (square, x's last size)
LAYERS: dict[str, Layer] = {
    "matmul": lambda x, w: x @ w,
    "addmm": lambda x, w: torch.addmm(w[0], x, w),
    "softmax": lambda x, w: x.softmax(-1),
    "softmax_rows": lambda x, w: x.softmax(0),
    "log_softmax_rows": lambda x, w: F.log_softmax(x, 0),
    "sort": lambda x, w: x.sort(-1)[0] * w[0],
    "log_softmax": lambda x, w: F.log_softmax(x, -1),
    "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:], w[0], w[1]),
    "tanh": lambda x, w: torch.tanh(x),
    "sigmoid": lambda x, w: torch.sigmoid(x),
    "gelu": lambda x, w: F.gelu(x),
    "gelu_tanh": lambda x, w: F.gelu(x, approximate="tanh"),
    "silu": lambda x, w: F.silu(x),
    "softplus": lambda x, w: F.softplus(x),
    "relu": lambda x, w: F.relu(x),
    "exp": lambda x, w: torch.exp(x.clamp(-4, 4)),
    "log": lambda x, w: torch.log(x.abs() + 0.1),
    "divide": lambda x, w: x / (w[0].abs() + 0.5),
    "square": lambda x, w: x * x - 0.3 * x,
    "mean": lambda x, w: x - x.mean(0),
    "sum": lambda x, w: x.sum(-1, keepdim=True) * w[0] + x,
    "var": lambda x, w: x / (x.var(-1, keepdim=True) + 0.01).sqrt(),
    "norm": lambda x, w: x / x.norm(dim=-1, keepdim=True),
    "sin": lambda x, w: torch.sin(3 * x),
    "max": lambda x, w: x - x.amax(-1, keepdim=True),
    "cumsum": lambda x, w: x.cumsum(-1),
    "logsumexp": lambda x, w: x + x.logsumexp(-1, keepdim=True),
    "sqrt": lambda x, w: torch.sqrt(x * x + 0.1),
    "pow": lambda x, w: (x.abs() + 0.2) ** 1.7,
    "erf": lambda x, w: torch.erf(x),
    "atan": lambda x, w: torch.atan(x),
    "index": lambda x, w: x[torch.tensor([0, 1, 1, 2])] + x[:4],
    "where": lambda x, w: torch.where(x > 0.1, x, w[0] * x),
    "attention": lambda x, w: (x @ w @ x.T / 2.5).softmax(-1) @ x,
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w[0], w[1], training=True),
    "elu": lambda x, w: F.elu(x),
    "batch_norm_fixed": lambda x, w: F.batch_norm(x, w[0].detach(), w[1].detach().abs() + 0.1, w[1], w[0]),
    "group_norm": lambda x, w: F.group_norm(x[None], 1, None, None)[0] if len(x) % 2 else F.group_norm(x[None], 2)[0],
    "cross_entropy": lambda x, w: (
        F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long), reduction="none")[:, None] + x
    ),
    "mse": lambda x, w: F.mse_loss(x, w[0].expand_as(x)) + x,
    "huber": lambda x, w: F.huber_loss(x, w[0].expand_as(x), reduction="none"),
    "bce_logits": lambda x, w: F.binary_cross_entropy_with_logits(x, w[0].expand_as(x).sigmoid(), reduction="none"),
    "mish": lambda x, w: F.mish(x),
    "logsigmoid": lambda x, w: F.logsigmoid(x),
    "hardswish": lambda x, w: F.hardswish(x),
    "conv_full": lambda x, w: F.conv1d(x[:, None], w[:3, None, :3], padding=1).mean(1),
    "sdpa": lambda x, w: F.scaled_dot_product_attention(x[None, None], (x @ w)[None, None], x[None, None])[0, 0],
    "std": lambda x, w: x * x.std(-1, keepdim=True),
    "cumprod": lambda x, w: x.cumprod(-1),
    "index_add": lambda x, w: x.index_add(0, torch.zeros(len(x), dtype=torch.long), x),
    "embedding": lambda x, w: F.embedding(torch.tensor([0, 1, 1, 1, 0, 1]), x),
    "pool": lambda x, w: F.avg_pool1d(x[None], 3, 1, 1)[0],
    "max_pool": lambda x, w: F.max_pool1d(x[None], 3, 1, 1)[0],
    "glu": lambda x, w: F.glu(torch.cat([x, x * w[0]], -1)),
    "expm1": lambda x, w: torch.expm1(x.clamp(max=4)),
    "log1p": lambda x, w: torch.log1p(x.abs()),
    "lerp": lambda x, w: torch.lerp(x, w[0], 0.3),
    "norm1": lambda x, w: x / (x.norm(p=1, dim=-1, keepdim=True) + 0.1),
    "norm3": lambda x, w: x / (x.norm(p=3, dim=-1, keepdim=True) + 0.1),
    "cosine": lambda x, w: x * F.cosine_similarity(x, w[0], dim=-1)[:, None],
    "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:], w[0]),
    "einsum": lambda x, w: torch.einsum("ik,kj,jl->il", x, w, w),
    "interpolate": lambda x, w: F.interpolate(x[None], scale_factor=1.5, mode="linear")[0][:, : x.shape[-1]],
    "prelu": lambda x, w: F.prelu(x, w[0, :1]),
    "rsqrt": lambda x, w: torch.rsqrt(x * x + 0.3),
    "sinh": lambda x, w: torch.sinh(x.clamp(-4, 4)),
    "lgamma": lambda x, w: torch.lgamma(x.abs() + 0.2),
    "logaddexp": lambda x, w: torch.logaddexp(x, w[0].expand_as(x)),
}
# No product: autograd divides by its factors where none is 0, and traces another backward.


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A backward of autograd's, as it ran and as a program.

    Attributes:
        name: the layers.
        program: the backward's.
        given: the inputs and cotangents by name, in float64.
        computed: what autograd returned, in float64.
    """

    name: str
    program: Program
    given: dict[str, np.ndarray]
    computed: tuple[np.ndarray, ...]


def random_run(seed: int, dtype: str, depth: int = 3, *, size: int = 1) -> Run:
    """A random composition of layers and its backward at random inputs; `size` multiplies every axis."""
    generator = torch.Generator().manual_seed(seed)
    names = list(LAYERS)
    chosen = [names[int(torch.randint(len(names), (), generator=generator))] for _ in range(depth)]
    rows, columns = (
        size * (low + int(torch.randint(span, (), generator=generator))) for low, span in ((4, 5), (3, 14))
    )
    scale = 2.0 ** float(torch.randint(-2, 3, (), generator=generator))
    kind = getattr(torch, dtype)
    x = (scale * torch.randn(rows, columns, generator=generator)).to(kind)
    w = (torch.randn(columns, columns, generator=generator) / columns**0.5).to(kind)

    def function(x: Tensor, w: Tensor) -> Tensor:
        for name in chosen:
            x = LAYERS[name](x, w)
        return x

    return run_backward(" ".join(chosen), function, {"x": x, "w": w}, generator)


def run_backward(
    name: str, function: Callable[..., Tensor], tensors: dict[str, Tensor], generator: torch.Generator
) -> Run:
    """Run autograd on a function at some tensors, under a random cotangent, and trace what it ran."""
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in tensors.items()}
    out = function(**leaves)
    cotangent = torch.randn(out.shape, generator=generator).to(out.dtype)
    grads = torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True)
    computed = [torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves.values(), strict=True)]
    backward = trace_backward(lambda given: (function(**given),), tensors, list(tensors), [cotangent], [0])
    given = {key: tensor.double().numpy() for key, tensor in tensors.items()}
    given["d_cotangent0"] = cotangent.double().numpy()
    return Run(name, backward.program, given, tuple(g.double().numpy() for g in computed))
