"""A linear model with mean squared error, and its gradients derived by hand.

Try it:  symcheck check examples/mse_linear.py
Then drop the factor 2 in `by_w`, or make it 2.000002, and try again.
"""

import torch

SAMPLES, FEATURES = 100, 10


def inputs():
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(SAMPLES, FEATURES, generator=generator),
        "w": torch.randn(FEATURES, generator=generator),
        "b": torch.randn((), generator=generator),
        "y": torch.randn(SAMPLES, generator=generator),
    }


def function(x, w, b, y):
    return torch.nn.functional.mse_loss(x @ w + b, y)


def by_w(x, w, b, y):
    return 2 * x.T @ (x @ w + b - y) / len(y)


def by_b(x, w, b, y):
    return 2 * (x @ w + b - y).mean()


formulas = {"w": by_w, "b": by_b}
