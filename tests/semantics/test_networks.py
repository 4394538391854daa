"""Whole small networks: value and gradient against torch in float64, and against differences in ball arithmetic."""

import numpy as np
import pytest
import torch
from torch import nn

from symcheck.arithmetic.bound import Bound
from symcheck.binding import bind
from symcheck.derivation import derive
from symcheck.evaluation import evaluate
from symcheck.lowering import to_numpy
from symcheck.selfcheck import directional_agreement
from symcheck.tracing import trace

# Both torch and our evaluation may differ from the exact value, ours by the bound; torch orders its sums and products
# in its own way and its kernels have errors of their own, for which a thousand times the bound is ample.
ROOM = 1e3
BALL_ERROR = 1e-12  # relative, of differences at 400 bits: a right derivation agrees to about 2^-160


def first(module):
    """The module with the first of its several results, as recurrent layers and attention have."""

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, *inputs):
            return self.inner(*inputs)[0]

    return First()


def encoder(training):
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=6, dropout=0.0, batch_first=True)
    return layer.train(training)


def encoder_with_gelu():
    layer = nn.TransformerEncoderLayer(8, 2, dim_feedforward=6, dropout=0.1, activation="gelu", norm_first=True)
    return layer.eval()


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, stride=2),
            nn.BatchNorm2d(3),
            nn.SiLU(),
            nn.AvgPool2d(2),
            nn.ConvTranspose2d(3, 2, 2, stride=2),
            nn.GroupNorm(2, 2),
        )

    def forward(self, x):
        return self.layers(x)


NETWORKS = {
    "RNNCell": (lambda: nn.RNNCell(3, 4), [(2, 3), (2, 4)]),
    "GRUCell": (lambda: nn.GRUCell(3, 4), [(2, 3), (2, 4)]),
    "LSTMCell": (lambda: first(nn.LSTMCell(3, 4)), [(2, 3)]),
    "RNN": (lambda: first(nn.RNN(3, 4)), [(3, 2, 3)]),
    "GRU": (lambda: first(nn.GRU(3, 4, num_layers=2, bidirectional=True)), [(2, 1, 3)]),
    "LSTM": (lambda: first(nn.LSTM(3, 4, batch_first=True)), [(2, 3, 3)]),
    "MultiheadAttention": (lambda: first(nn.MultiheadAttention(6, 2)), [(3, 2, 6), (4, 2, 6), (4, 2, 6)]),
    "self-attention, masked": (SelfAttention, [(2, 3, 6)]),
    "TransformerEncoderLayer, training": (lambda: encoder(True), [(2, 3, 8)]),
    "TransformerEncoderLayer, evaluating": (lambda: encoder(False), [(2, 3, 8)]),
    "TransformerEncoderLayer, gelu": (encoder_with_gelu, [(3, 2, 8)]),
    "convolutional": (Convolutional, [(2, 2, 8, 8)]),
}


def build(name):
    """The network's binding in float64, the same every time."""
    make, shapes = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module = make().double()
        inputs = tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)
    return bind(module, inputs)


def torch_gradients(binding, cotangent):
    leaves = {
        name: tensor.detach().clone().requires_grad_(name in binding.wrt) for name, tensor in binding.inputs.items()
    }
    (output,) = binding.call(leaves)
    gradients = torch.autograd.grad(output, [leaves[name] for name in binding.wrt], torch.from_numpy(cotangent))
    return output.detach().numpy(), [gradient.numpy() for gradient in gradients]


class Checked:
    """A network's value and gradient, ours and torch's."""

    def __init__(self, name):
        self.binding = build(name)
        self.traced = trace(self.binding.call, self.binding.inputs)
        self.values = {key: to_numpy(tensor) for key, tensor in self.binding.inputs.items()}
        (self.value,) = evaluate(self.traced.program, self.values, Bound())
        cotangent = np.random.default_rng(1).integers(64, 128, size=self.value.value.shape) / 64.0
        self.output, self.expected = torch_gradients(self.binding, cotangent)
        program = derive(self.traced.program, self.binding.wrt)
        self.gradients = evaluate(program, {**self.values, "d_cotangent0": cotangent}, Bound(), moving=self.binding.wrt)


@pytest.fixture(scope="module", params=list(NETWORKS))
def checked(request):
    return Checked(request.param)


def agrees(value, bounded):
    """Whether float64 numbers are within the allowance of a bounded value, everywhere."""
    error = np.zeros(()) if bounded.error is None else bounded.error
    assert np.isfinite(error).all()
    return bool((np.abs(value - bounded.value) <= ROOM * error).all())


def test_the_value_is_torchs(checked):
    assert agrees(checked.output, checked.value)


def test_a_value_slightly_off_is_caught(checked):
    assert not agrees(checked.output * (1 + 1e-6), checked.value)


def test_the_gradient_is_torchs(checked):
    for expected, gradient in zip(checked.expected, checked.gradients, strict=True):
        assert agrees(expected, gradient)


def test_a_gradient_slightly_off_is_caught(checked):
    for expected, gradient in zip(checked.expected, checked.gradients, strict=True):
        # The gradient by a key's bias is 0: a softmax does not change when all its scores move together.
        if np.abs(expected).max() > 1e-12:
            assert not agrees(expected * (1 + 1e-6), gradient)


def test_the_derivation_agrees_with_differences_in_balls(checked):
    generator = np.random.default_rng(2)
    agreement = directional_agreement(checked.traced.program, checked.binding.wrt, checked.values, generator)
    assert agreement.relative_error < BALL_ERROR


def test_a_derivation_slightly_off_is_caught(checked):
    generator = np.random.default_rng(2)
    agreement = directional_agreement(checked.traced.program, checked.binding.wrt, checked.values, generator)
    wrong = type(agreement)(agreement.quotient, agreement.derived * (1 + 1e-6), agreement.scale)
    assert wrong.relative_error > BALL_ERROR
