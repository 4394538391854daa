"""How long symcheck takes, as ratios measured in one run.

python -m benchmarks.speed            every table, 67,584 inputs included (gradcheck alone takes a minute there)
python -m benchmarks.speed --quick    without the largest runs of gradcheck
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import symcheck
from symcheck.binding import bind
from symcheck.derivation import derive
from symcheck.lowering import lower
from symcheck.reference import derive_reference, numeric
from symcheck.session import Session
from symcheck.tracing import trace_graph

WRT = ("weight", "bias")


def seconds(work: Callable[[], object], least: float = 0.2) -> float:
    """The median time of a call, warm, over at least so many seconds or five calls."""
    work()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least and len(times) < 200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
        if sum(times) > 20:
            break
    return statistics.median(times)


def mse_linear(
    samples: int, features: int, dtype: torch.dtype = torch.float64
) -> tuple[Callable[..., object], dict[str, torch.Tensor]]:
    """The linear model with MSE, all four tensors inputs."""
    generator = torch.Generator().manual_seed(0)

    def function(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(torch.nn.functional.linear(x, weight, bias), y)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    return function, {
        "weight": draw(1, features) / features**0.5,
        "bias": draw(1),
        "x": draw(samples, features),
        "y": draw(samples, 1),
    }


def stages(console: Console) -> None:
    """Lowering, deriving and compiling at several shapes, and tracing apart."""
    table = Table(title="MSE linear: time by stage (ms, warm)")
    for heading in ("shape", "trace", "lower", "derive", "lower + derive", "reference"):
        table.add_column(heading, justify="right")
    for samples, features in ((10, 4), (100, 10), (1_000, 100), (10_000, 1_000)):
        function, inputs = mse_linear(samples, features)
        binding = bind(function, inputs, WRT)
        graph = trace_graph(binding.call, inputs)
        program = lower(graph, list(inputs)).program
        derived = derive_reference(binding, inputs)
        arrays, ones = numeric(inputs), [torch.ones(()).numpy()]
        trace_time = seconds(lambda b=binding, i=inputs: trace_graph(b.call, i))
        lower_time = seconds(lambda g=graph, i=inputs: lower(g, list(i)))
        derive_time = seconds(lambda p=program: derive(p, WRT))
        reference = seconds(lambda d=derived, a=arrays, o=ones: d.at(a, o))
        row = (trace_time, lower_time, derive_time, lower_time + derive_time, reference)
        table.add_row(f"{samples:,} x {features:,}", *(f"{1e3 * t:.2f}" for t in row))
    console.print(table)


def passes(console: Console) -> None:
    """The float64 reference against forward and backward passes of torch in float64."""
    table = Table(title="The float64 reference with its bound, in forward-and-backward passes of torch (float64)")
    for heading in ("function", "inputs", "torch (ms)", "reference (ms)", "ratio"):
        table.add_column(heading, justify="right")
    for name, function, inputs in reference_cases():
        binding = bind(function, inputs)
        derived = derive_reference(binding, inputs)
        leaves = {key: value.clone().requires_grad_() for key, value in inputs.items()}

        def both(leaves: dict[str, torch.Tensor] = leaves, function: Callable[..., torch.Tensor] = function) -> object:
            return torch.autograd.grad(function(**leaves), list(leaves.values()))

        arrays, ones = numeric(inputs), [torch.ones(()).numpy()]
        plain, ours = seconds(both, 1.0), seconds(lambda d=derived, a=arrays, o=ones: d.at(a, o), 1.0)
        count = sum(tensor.numel() for tensor in inputs.values())
        table.add_row(name, f"{count:,}", f"{1e3 * plain:.2f}", f"{1e3 * ours:.2f}", f"{ours / plain:.2f}")
    console.print(table)


def reference_cases() -> list[tuple[str, Callable[..., torch.Tensor], dict[str, torch.Tensor]]]:
    """Small and large functions of float64 inputs."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def network(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.tanh(x @ v) @ w).square().mean()

    cases = []
    for samples, features in ((100, 10), (1_000, 1_000), (4_000, 1_000)):
        cases.append((f"MSE linear {samples:,} x {features:,}", *mse_linear(samples, features)))
    for samples, width in ((32, 32), (1_000, 1_000)):
        inputs = {"x": draw(samples, width), "v": draw(width, width) / width**0.5, "w": draw(width, width) / width**0.5}
        cases.append((f"two tanh layers {samples:,} x {width:,}", network, inputs))
    return cases


def against_gradcheck(console: Console, quick: bool) -> None:
    """A fresh check by every input against torch's gradcheck in slow mode."""
    table = Table(title="A fresh symcheck.check of MSE linear by every input, against gradcheck in slow mode")
    for heading in ("inputs", "gradcheck (s)", "symcheck (s)", "times faster", "memory over import (MB)"):
        table.add_column(heading, justify="right")
    for samples, features in ((64, 66), (512, 65), (1_024, 65), (10_000, 99)):
        function, inputs = mse_linear(samples, features)
        count = sum(tensor.numel() for tensor in inputs.values())
        ours, memory = fresh_check(samples, features)
        theirs = None
        if count < 10_000 or (count < 100_000 and not quick):
            leaves = tuple(tensor.clone().requires_grad_() for tensor in inputs.values())
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.autograd.gradcheck(function, leaves)
            theirs = time.perf_counter() - start
            gc.collect()
        ratio = f"{theirs / ours:.0f}" if theirs else "-"
        table.add_row(f"{count:,}", f"{theirs:.2f}" if theirs else "-", f"{ours:.3f}", ratio, f"{memory:.0f}")
    console.print(table)


FRESH = """
import pathlib, sys, time
from benchmarks.speed import mse_linear
import symcheck
samples, features = int(sys.argv[1]), int(sys.argv[2])
assert symcheck.check(*mse_linear(8, 3)).ok                     # warm: imports, torch's first trace
def memory(field):                                               # kB
    status = pathlib.Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1])
function, inputs = mse_linear(samples, features)
pathlib.Path("/proc/self/clear_refs").write_text("5")            # forget the peak so far
before = memory("VmRSS")
start = time.perf_counter()
report = symcheck.check(function, inputs)
taken = time.perf_counter() - start
assert report.ok, report
print(taken, (memory("VmHWM") - before) / 1024)
"""


def fresh_check(samples: int, features: int) -> tuple[float, float]:
    """Seconds and peak memory (MB over the import) of one check in a process of its own; the best of three."""
    runs = []
    for _ in range(3):
        command = [sys.executable, "-c", FRESH, str(samples), str(features)]
        taken, memory = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        runs.append((float(taken), float(memory)))
    return min(runs)


def sweeping(console: Console) -> None:
    """Seeds per second of a sweep, and the time to import."""
    function, inputs = mse_linear(100, 10, torch.float32)
    binding = bind(function, inputs, WRT)
    session = Session(binding, ())
    per_seed = seconds(lambda: session.run(inputs, budget=0))
    command = [sys.executable, "-c", "import symcheck, sys; print('torch' in sys.modules or 'sympy' in sys.modules)"]
    start = time.perf_counter()
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    took = time.perf_counter() - start
    console.print(f"a sweep judges {1 / per_seed:,.0f} seeds a second on MSE linear 100 x 10 (autograd only)")
    console.print(f"`import symcheck` in a new Python: {took:.2f} s in all; torch or SymPy loaded: {loaded}")


def by_weight(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The hand-derived gradient of `mse_linear` by its weight."""
    return 2 / len(x) * (x @ weight.T + bias - y).T @ x


def certified(console: Console) -> None:
    """Checks in ball arithmetic, autograd's own program and a hand formula's beside the exact gradient's."""
    table = Table(title="Certified in ball arithmetic (float32 unless said)")
    for heading in ("what", "seconds", "goal"):
        table.add_column(heading, justify="right" if heading != "what" else "left")
    function, inputs = mse_linear(100, 10, torch.float32)
    formulas = {"weight": by_weight}
    fresh = seconds(lambda: symcheck.check(function, inputs, wrt=WRT, formulas=formulas))

    def draw(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return {name: torch.randn_like(tensor) for name, tensor in inputs.items()}

    start = time.perf_counter()
    found = symcheck.sweep(function, draw, range(1000), formulas, WRT)
    swept = time.perf_counter() - start
    assert found.ok, found
    table.add_row("MSE linear 100 x 10 with a hand formula, a fresh check", f"{fresh:.3f}", "0.25")
    table.add_row("the same, a seed of a sweep", f"{swept / 1000:.4f}", "0.06")
    table.add_row("the same, a sweep of 1,000 seeds", f"{swept:.1f}", "15")
    large = {
        "512 x 512 x 512 matmul, both adjoints": (torch.matmul, (512, 512), (512, 512), 4),
        "tanh of a million elements": (torch.tanh, (1000, 1000), None, 10),
        "exp of a million elements, summed": (lambda x: x.exp().sum(), (1000, 1000), None, 10),
        "attention at 48 x 64": (attend, (48, 64), (48, 64), 1),
    }
    for name, (operator, first, second, goal) in large.items():
        torch.manual_seed(0)
        tensors = [torch.randn(shape) for shape in (first, second) if shape]
        start = time.perf_counter()
        report = symcheck.check(operator, tuple(tensors), budget=0)
        table.add_row(name, f"{time.perf_counter() - start:.2f}", str(goal))
        assert report.ok, report
        assert not any("precision ladder" in finding.reason for finding in report.findings), report
    console.print(table)


def attend(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one head."""
    return torch.softmax(x @ keys.T / 8, -1) @ keys


def main() -> int:
    """Print every table."""
    parser = argparse.ArgumentParser(description="How long symcheck takes.")
    parser.add_argument("--quick", action="store_true", help="leave out the largest runs of gradcheck")
    options = parser.parse_args()
    console = Console(width=110)
    console.print(f"symcheck {symcheck.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    stages(console)
    passes(console)
    against_gradcheck(console, options.quick)
    sweeping(console)
    certified(console)
    console.print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
