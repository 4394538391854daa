"""Is a hand-derived gradient wrong, or is it only floating point?

A linear layer with mean squared error in float32, its gradients derived by hand as a matrix formula, and 1,000 seeds.
`torch.allclose` rejects the right formula on some of them; symcheck says that each is rounding, and how much.

    symcheck check examples/mse_linear.py      one seed, as a case file
    python examples/mse_linear.py              1,000 seeds, and why the formula loses digits
"""

import sys
import time

import torch

SAMPLES, FEATURES = 100, 10
WRT = ("weight", "bias")


def inputs(seed=0):
    torch.manual_seed(seed)
    x = torch.randn(SAMPLES, FEATURES)
    y = torch.randn(SAMPLES, 1)
    layer = torch.nn.Linear(FEATURES, 1)
    return {"weight": layer.weight.detach(), "bias": layer.bias.detach(), "x": x, "y": y}


def function(weight, bias, x, y):
    return torch.nn.functional.mse_loss(torch.nn.functional.linear(x, weight, bias), y)


def by_weight(weight, bias, x, y):
    """df/dW = (-2 X'y + 2 X'b + 2 X'X W) / n, term by term, as its author wrote it."""
    ones = torch.ones((x.shape[0], 1), dtype=x.dtype)
    total = -2 * torch.matmul(x.t(), y) + 2 * torch.matmul(x.t(), ones) * bias
    total = total + 2 * torch.matmul(torch.matmul(x.t(), x), weight.t())
    return (total / float(x.shape[0])).t()


def by_bias(weight, bias, x, y):
    """df/db = mean(2 b - 2 y + 2 W X'), where the broadcast makes an n x n matrix whose mean is the right one."""
    return torch.mean(2 * bias - 2 * y + 2 * torch.matmul(weight, x.t()))


formulas = {"weight": by_weight, "bias": by_bias}


def residual_first(weight, bias, x, y):
    """2/n (X W' + b - y)' X: one difference before the large sums."""
    return 2 / len(x) * (x @ weight.t() + bias - y).t() @ x


def residual_scaled(weight, bias, x, y):
    """(2 (X W' + b - y) / n)' X: the order of autograd."""
    return (2 * (x @ weight.t() + bias - y) / len(x)).t() @ x


def residual_last(weight, bias, x, y):
    """2 ((X W' + b - y)' X) / n: the mean is taken at the end."""
    return 2 * ((x @ weight.t() + bias - y).t() @ x) / len(x)


REWRITINGS = {
    "three terms, as derived": by_weight,
    "2/n (XW' + b - y)' X": residual_first,
    "(2 (XW' + b - y) / n)' X": residual_scaled,
    "2 ((XW' + b - y)' X) / n": residual_last,
}


def gradients_of_autograd(given):
    leaves = {name: tensor.clone().requires_grad_(name in WRT) for name, tensor in given.items()}
    return dict(zip(WRT, torch.autograd.grad(function(**leaves), [leaves[name] for name in WRT]), strict=True))


def cancellation(given):
    """How many times larger than the gradient the three terms of the formula are, element by element."""
    weight, bias, x, y = (given[name].double() for name in ("weight", "bias", "x", "y"))
    terms = (-2 * x.t() @ y, 2 * x.t().sum(1, keepdim=True) * bias, 2 * x.t() @ x @ weight.t())
    return (sum(term.abs() for term in terms) / sum(terms).abs()).t()


def main(seeds=1000):
    from rich.progress import Progress

    from symcheck import Verdict, sweep

    with Progress(transient=True) as progress:
        bar = progress.add_task("checking", total=2 * seeds)
        start = time.perf_counter()
        found = sweep(function, inputs, range(seeds), formulas, WRT, progress=lambda _: progress.advance(bar))
        taken = time.perf_counter() - start
        planted = {"weight": lambda weight, bias, x, y: by_weight(weight, bias, x, y) * (1 + 1e-3)}
        copy = sweep(function, inputs, range(seeds), planted, WRT, budget=0, progress=lambda _: progress.advance(bar))

    rejected = {name: [] for name in WRT}
    errors = {name: [] for name in REWRITINGS}
    outside = {"hand": [], "autograd": [], "cancellation": []}
    for seed, report in found.reports.items():
        given = inputs(seed)
        autograd = gradients_of_autograd(given)
        exact = torch.from_numpy(report.gradients["weight"])
        for name in WRT:
            hand = formulas[name](**given)
            if not torch.allclose(autograd[name], hand):
                rejected[name].append(seed)
        apart = ~torch.isclose(autograd["weight"], by_weight(**given))
        outside["hand"] += ((by_weight(**given) - exact) / exact).abs()[apart].tolist()
        outside["autograd"] += ((autograd["weight"] - exact) / exact).abs()[apart].tolist()
        outside["cancellation"] += cancellation(given)[apart].tolist()
        for name, formula in REWRITINGS.items():
            errors[name] += (formula(**given).double() - exact).abs().flatten().tolist()

    either = set(rejected["weight"]) | set(rejected["bias"])
    print(f"{seeds} seeds of Linear({FEATURES}, 1) with MSE on {SAMPLES} samples, float32, formulas derived by hand\n")
    print(f"torch.allclose rejects the right formulas on {len(either)} seeds:")
    for name in WRT:
        print(f"  {name:8}{len(rejected[name]):4}   e.g. seeds {', '.join(map(str, rejected[name][:5])) or 'none'}")
    wrong = {name: found.count("formula", name)[Verdict.FORMULA] for name in WRT}
    passed = {name: sum(found.count("formula", name)[v] for v in (Verdict.OK, Verdict.ROUNDING)) for name in WRT}
    print(f"\nsymcheck calls a formula error on {sum(wrong.values())} seeds ({taken:.1f} s, one derivation):")
    for name in WRT:
        error, rounding, own = (
            found.largest("formula", name, "formula_error"),
            found.largest("formula", name, "rounding_error"),
            found.largest("autograd", name, "rounding_error"),
        )
        print(f"  {name:8}right on {passed[name]} seeds: formula error {error:.1e} at most, in a float64 reference;")
        print(f"  {'':8}largest rounding error {rounding:.2e}, and {own:.2e} for autograd")
    if outside["hand"]:
        print_reason(outside)
    print("\nThe gradient by the weight written in several ways, error against exact over all elements and seeds:")
    print(f"  {'':28}{'mean':>10}{'largest':>10}")
    best = min(errors, key=lambda name: sum(errors[name]))
    for name, values in errors.items():
        mark = "   <- loses fewest digits" if name == best else ""
        print(f"  {name:28}{sum(values) / len(values):>10.2e}{max(values):>10.2e}{mark}")
    convicted = copy.count("formula", "weight")[Verdict.FORMULA]
    print(f"\nA copy of the formula with a factor (1 + 1e-3) is convicted on {convicted} of {seeds} seeds.")
    return 0 if sum(wrong.values()) == 0 and convicted == seeds else 1


def print_reason(outside):
    middle = {name: sorted(values)[len(values) // 2] for name, values in outside.items()}
    print(
        f"\nWhy the formula for the weight loses more digits than autograd, at the {len(outside['hand'])} elements "
        "that allclose rejects:\n"
        f"  median relative error: {middle['hand']:.1e} by the formula, {middle['autograd']:.1e} by autograd\n"
        "  The formula's three terms are rounded one by one, each at its own size, before they cancel: there they are\n"
        f"  {min(outside['cancellation']):,.0f} to {max(outside['cancellation']):,.0f} times larger than their sum, "
        f"{middle['cancellation']:,.0f} times at the median. Autograd lets X W' + b - y cancel first, and\n"
        "  sums what is left; its error there is the rounding of that one sum."
    )


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:2])))
