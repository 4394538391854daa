"""Functions of every family at ordinary inputs: what a user checks most, and what must never be called wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FUNCTIONS", "Row"]


@dataclass(frozen=True)
class Row:
    """A function and how its inputs are drawn.

    Attributes:
        make: gives the function, or the module, which is drawn anew from a fixed seed.
        inputs: what draws the inputs.
    """

    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]]

    def built(self, dtype: torch.dtype) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
        """The function and its inputs, real ones rounded to a dtype."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            function = self.make()
        if isinstance(function, nn.Module):
            function = function.to(dtype)
        drawn = self.inputs(torch.Generator().manual_seed(5))
        return function, tuple(x.to(dtype) if x.is_floating_point() else x for x in drawn)


def normal(*shapes: tuple[int, ...]) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)


def between(low: float, high: float, *shapes: tuple[int, ...]) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    def draw(generator: torch.Generator) -> tuple[Tensor, ...]:
        return tuple(low + (high - low) * torch.rand(s, generator=generator, dtype=torch.float64) for s in shapes)

    return draw


def beside(
    draw: Callable[[torch.Generator], tuple[Tensor, ...]], *rest: Tensor
) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    """Drawn inputs, then given ones."""
    return lambda generator: (*draw(generator), *rest)


def plain(function: Callable[..., Any], inputs: Callable[[torch.Generator], tuple[Tensor, ...]]) -> Row:
    return Row(lambda: function, inputs)


class First(nn.Module):
    """A module's first result."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.inner(*inputs)[0]


class Block(nn.Module):
    """A pre-norm transformer block with causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(4), nn.LayerNorm(4)])
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.mlp = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Linear(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(0, 1) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(0, 1).flatten(1))
        return x + self.mlp(self.norms[1](x))


class Residual(nn.Module):
    """A convolution with batch norm and a skip connection, pooled."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(2, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x + torch.tanh(self.norm(self.conv(x)))).mean((2, 3)))


def evaluating(module: nn.Module) -> nn.Module:
    """A module in evaluation mode, with running statistics that are not the initial ones."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.running_mean.normal_(std=0.5)
            part.running_var.uniform_(0.5, 2.0)
    return module.eval()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8, 3)
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 2))


CLASSES, SIGNS = torch.tensor([1, 0, 2]), torch.tensor([1.0, -1.0, 1.0])

ELEMENTWISE = {
    "exp and log": plain(lambda x: torch.log(1 + torch.exp(x)), normal((6,))),
    "trigonometric": plain(lambda x: torch.sin(x) * torch.cos(2 * x) + torch.atan(x), normal((6,))),
    "inverse trigonometric": plain(lambda x: torch.asin(x) + torch.acos(x) ** 2, between(-0.8, 0.8, (6,))),
    "hyperbolic": plain(lambda x: torch.sinh(x) / torch.cosh(x) + torch.asinh(x), normal((6,))),
    "angle of two": plain(torch.atan2, normal((6,), (6,))),
    "roots": plain(lambda x: torch.sqrt(x) + torch.rsqrt(x), between(0.5, 4.0, (6,))),
    "power": plain(lambda x, p: x**p, between(0.5, 2.0, (6,), (6,))),
    "error function": plain(torch.erf, normal((6,))),
    "log-gamma": plain(torch.lgamma, between(0.5, 4.0, (6,))),
    "log-add-exp": plain(torch.logaddexp, normal((6,), (6,))),
    "quotient, broadcast": plain(lambda x, y: x / y, between(0.5, 2.0, (3, 4), (4,))),
    "clamp": plain(lambda x: x.clamp(-0.5, 0.5) * x, normal((8,))),
    "where": plain(lambda x: torch.where(x > 0.25, x**2, 3 * x), normal((8,))),
    "maximum of two": plain(torch.maximum, normal((6,), (6,))),
    "relu": plain(torch.relu, normal((8,))),
    "GELU": plain(F.gelu, normal((8,))),
    "GELU by tanh": plain(lambda x: F.gelu(x, approximate="tanh"), normal((8,))),
    "SiLU and Mish": plain(lambda x: F.silu(x) + F.mish(x), normal((8,))),
    "ELU and SELU": plain(lambda x: F.elu(x) + F.selu(x), normal((8,))),
    "softplus": plain(lambda x: F.softplus(x, beta=2.0), normal((8,))),
    "hard activations": plain(lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.leaky_relu(x), normal((8,))),
    "gated linear unit": plain(lambda x: F.glu(x, -1), normal((3, 4))),
}
REDUCTIONS = {
    "mean and sum": plain(lambda x: x.mean(0) * x.sum(0), normal((4, 3))),
    "variance": plain(lambda x: x.var(0) + x.std(1).sum(), normal((4, 4))),
    "norm of order 3": plain(lambda x: x.norm(3, dim=1), normal((3, 4))),
    "log-sum-exp": plain(lambda x: x.logsumexp(1), normal((3, 4))),
    "softmax": plain(lambda x: x.softmax(1), normal((3, 4))),
    "product": plain(lambda x: x.prod(1), normal((3, 4))),
    "cumulative sum and product": plain(lambda x: x.cumsum(0) + x.cumprod(1), normal((3, 4))),
    "maximum": plain(lambda x: x.amax(1) * x.amin(0).sum(), normal((3, 4))),
    "sorted": plain(lambda x: x.sort(1).values * torch.arange(1, 5), normal((3, 4))),
    "median": plain(lambda x: x.median(1).values, normal((3, 5))),
}
CONTRACTIONS = {
    "batched matrix product": plain(torch.bmm, normal((2, 3, 4), (2, 4, 2))),
    "einsum": plain(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), normal((2, 3), (3, 4), (4, 2))),
    "bilinear": plain(lambda x, y, w: F.bilinear(x, y, w), normal((2, 3), (2, 4), (2, 3, 4))),
    "distances": plain(lambda x, y: torch.cdist(x, y), normal((3, 4), (2, 4))),
    "quadratic form": plain(lambda x, a: x @ a @ x, normal((4,), (4, 4))),
}
REARRANGEMENTS = {
    "indexed": plain(lambda x: x[[2, 0, 2]] * x[1:, :], normal((4, 3))),
    "gathered": plain(lambda x, i: x.gather(1, i) ** 2, beside(normal((3, 4)), torch.tensor([[0, 0], [3, 1], [2, 2]]))),
    "concatenated": plain(lambda x, y: torch.cat([x, y, x * y], 1), normal((2, 3), (2, 3))),
    "padded by reflection": plain(lambda x: F.pad(x, (2, 1), mode="reflect") ** 2, normal((1, 2, 4))),
    "triangle": plain(lambda x: torch.triu(x) @ x.flip(0).roll(1, 1), normal((3, 3))),
    "windows": plain(lambda x: x.unfold(0, 3, 2).sum(1) ** 2, normal((7,))),
    "resampled": plain(lambda x: F.interpolate(x, scale_factor=2.0, mode="linear"), normal((1, 2, 4))),
    "embedding": plain(lambda w, i: F.embedding(i, w) ** 2, beside(normal((5, 3)), torch.tensor([1, 4, 1, 0]))),
}
NORMALISATIONS = {
    "layer norm": Row(lambda: nn.LayerNorm(5), normal((3, 5))),
    "batch norm, training": Row(lambda: nn.BatchNorm1d(3), normal((5, 3))),
    "batch norm, evaluating": Row(lambda: evaluating(nn.BatchNorm1d(3)), normal((5, 3))),
    "group norm": Row(lambda: nn.GroupNorm(2, 4), normal((2, 4, 3))),
    "instance norm": plain(F.instance_norm, normal((2, 3, 4))),
    "RMS norm": Row(lambda: nn.RMSNorm(5), normal((3, 5))),
    "normalised": plain(lambda x: F.normalize(x, dim=1), normal((3, 4))),
}
CONVOLUTIONS = {
    "convolution": plain(lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=1), normal((2, 2, 6), (3, 2, 3), (3,))),
    "grouped, dilated": plain(lambda x, w: F.conv2d(x, w, dilation=2, groups=2), normal((1, 2, 5, 5), (2, 1, 2, 2))),
    "transposed": plain(lambda x, w: F.conv_transpose1d(x, w, stride=2), normal((1, 2, 3), (2, 2, 3))),
    "pooled by maximum": plain(lambda x: F.max_pool2d(x, 2), normal((1, 2, 4, 4))),
    "pooled by mean": plain(lambda x: F.adaptive_avg_pool1d(x, 3) ** 2, normal((1, 2, 7))),
}
LOSSES = {
    "squared error": plain(F.mse_loss, normal((4, 3), (4, 3))),
    "absolute and Huber": plain(lambda x, y: F.l1_loss(x, y) + F.smooth_l1_loss(x, y), normal((6,), (6,))),
    "cross-entropy, smoothed": plain(lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), normal((3, 4))),
    "binary cross-entropy": plain(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y), beside(normal((4,)), torch.tensor([1.0, 0.0, 0.25, 1.0]))
    ),
    "Kullback-Leibler": plain(
        lambda q, p: F.kl_div(q.log_softmax(1), p.softmax(1), reduction="batchmean"), normal((3, 4), (3, 4))
    ),
    "Gaussian likelihood": plain(lambda m, y, v: F.gaussian_nll_loss(m, y, v.exp()), normal((5,), (5,), (5,))),
    "cosine embedding": plain(lambda x, y: F.cosine_embedding_loss(x, y, SIGNS.to(x.dtype)), normal((3, 4), (3, 4))),
    "triplet": plain(F.triplet_margin_loss, normal((3, 4), (3, 4), (3, 4))),
    "evidence lower bound": plain(
        lambda m, v, z: ((m + z * (v / 2).exp()) ** 2).sum() - 0.5 * (1 + v - m**2 - v.exp()).sum(),
        normal((4,), (4,), (4,)),
    ),
}
NETWORKS = {
    "perceptron": Row(perceptron, normal((3, 4))),
    "LSTM": Row(lambda: First(nn.LSTM(2, 2)), normal((2, 2, 2))),
    "GRU": Row(lambda: First(nn.GRU(2, 2)), normal((2, 2, 2))),
    "RNN": Row(lambda: First(nn.RNN(2, 3, bidirectional=True)), normal((3, 1, 2))),
    "multi-head attention": Row(lambda: First(nn.MultiheadAttention(4, 2)), normal((3, 4), (2, 4), (2, 4))),
    "transformer block": Row(Block, normal((3, 4))),
    "convolutional, training": Row(convolutional, normal((2, 1, 6, 6))),
    "convolutional, evaluating": Row(lambda: evaluating(convolutional()), normal((2, 1, 6, 6))),
    "residual": Row(Residual, normal((2, 2, 3, 3))),
}
FUNCTIONS: dict[str, Row] = {
    **ELEMENTWISE,
    **REDUCTIONS,
    **CONTRACTIONS,
    **REARRANGEMENTS,
    **NORMALISATIONS,
    **CONVOLUTIONS,
    **LOSSES,
    **NETWORKS,
}
