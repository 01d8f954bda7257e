"""What histograms of individual gradients cost, in nanoseconds per element: ``python benchmarks/histogram_kernels.py``.

All contestants take turns in one process, and the median over the rounds is reported with its quartiles. The layer is
the widest of CIFAR-10 3C3D (1152 to 512, batch 128: 75 million products). The balance b of the second part is the
share of elements in the hottest bin, the rest being spread evenly (the 2021 paper's Figure 15: there, the GPU slows
down as b grows). Runs on a GPU if there is one.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels import Bins, Counts, Spec, count_outer, count_values, prepare_parameter
from cockpit_core.kernels.count import choose_path

RESULTS = Path(__file__).parent / "results"
GRADIENT, JOINT = Bins(-2, 2, 100), (Bins(-1, 1, 40), Bins(-2, 2, 50))
SPECS = {"1D": Spec(GRADIENT), "2D": Spec(None, JOINT)}
SAMPLES, OUT, INNER, STORED = 128, 512, 1152, 8
Row = dict[str, float]
Contestants = dict[str, tuple[Callable[[], object], int]]


def take_turns(contestants: Contestants, rounds: int, device: torch.device) -> dict[str, Row]:
    """Nanoseconds per element of each contestant: median and quartiles over rounds in which each runs once."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        for name, (work, elements) in contestants.items():
            start = read_clock(device)
            work()
            if turn:  # the first turn compiles and warms up
                times[name].append(1e9 * (read_clock(device) - start) / elements)
    quartiles = {name: np.percentile(values, [25, 50, 75]) for name, values in times.items()}
    return {name: dict(zip(("low", "median", "high"), map(float, q), strict=True)) for name, q in quartiles.items()}


def read_clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def count_with(
    kernel: Callable[..., None], *inputs: Tensor, parameter: Tensor, spec: Spec, path: str
) -> Callable[[], None]:
    bins = prepare_parameter(parameter, spec)
    counts = Counts.zeros(spec, parameter.device)
    return lambda: kernel(*inputs, bins, spec, counts, path=path)


def clamp_and_histc(values: Tensor) -> Tensor:
    return torch.histc(values.clamp(GRADIENT.low, GRADIENT.high), GRADIENT.count, GRADIENT.low, GRADIENT.high)


def compare_kernels(scale: float, rounds: int, device: torch.device) -> dict[str, Row]:
    """Gradients of about ``scale``: both kernels, both dimensions, the best path here against plain torch and
    ``histc``.
    """
    generator = torch.Generator().manual_seed(0)
    b = (scale * torch.randn(SAMPLES, OUT, generator=generator)).to(device)
    a = torch.randn(SAMPLES, INNER, generator=generator).relu().to(device)
    parameter = (0.05 * torch.randn(OUT, INNER, generator=generator)).to(device)
    values = b[:STORED, :, None] * a[:STORED, None, :]
    contestants: Contestants = {}
    for path in dict.fromkeys((choose_path(device), "plain")):
        for dimension, spec in SPECS.items():
            few = STORED if path == "plain" else SAMPLES
            outer = count_with(count_outer, b[:few], a[:few], parameter=parameter, spec=spec, path=path)
            contestants[f"outer {dimension}, {path}"] = (outer, few * parameter.numel())
            stored = count_with(count_values, values, parameter=parameter, spec=spec, path=path)
            contestants[f"stored {dimension}, {path}"] = (stored, values.numel())
    contestants["stored 1D, clamp + torch.histc"] = (lambda: clamp_and_histc(values), values.numel())
    contestants["storing the products"] = (lambda: b[:STORED, :, None] * a[:STORED, None, :], values.numel())
    return take_turns(contestants, rounds, device)


def make_balanced(balance: float, device: torch.device) -> Tensor:
    """[STORED, OUT * INNER] values, of which the share ``balance`` lies in one gradient bin, the others evenly in
    all.
    """
    generator = torch.Generator().manual_seed(1)
    shape = (STORED, OUT * INNER)
    gradient = JOINT[0]
    spread = gradient.low + (gradient.high - gradient.low) * torch.rand(shape, generator=generator)
    hot = gradient.width * torch.rand(shape, generator=generator)  # the bin right of zero
    return torch.where(torch.rand(shape, generator=generator) < balance, hot, spread).to(device)


def compare_balances(balances: list[float], rounds: int, device: torch.device) -> dict[str, dict[str, Row]]:
    """The 2D histogram of stored values against the balance."""
    parameter = (0.05 * torch.randn(OUT * INNER, generator=torch.Generator().manual_seed(2))).to(device)
    results = {}
    for balance in balances:
        values = make_balanced(balance, device)
        contestants: Contestants = {}
        for path in dict.fromkeys((choose_path(device), "plain")):
            work = count_with(count_values, values, parameter=parameter, spec=SPECS["2D"], path=path)
            contestants[path] = (work, values.numel())
        results[f"{balance:g}"] = take_turns(contestants, rounds, device)
    return results


def draw(balances: dict[str, dict[str, Row]], folder: Path) -> None:
    """The figure, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not installed: no figure")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    x = [float(balance) for balance in balances]
    for path in next(iter(balances.values())):
        low, median, high = ([row[path][key] for row in balances.values()] for key in ("low", "median", "high"))
        axes.plot(x, median, marker="o", label=path)
        axes.fill_between(x, low, high, alpha=0.2)
    axes.set(xlabel="balance b (share of elements in the hottest bin)", ylabel="ns per element", ylim=(0, None))
    axes.set_title("2D histogram of stored individual gradients")
    axes.legend()
    for kind in ("png", "svg"):
        figure.savefig(folder / f"histogram_balance.{kind}", dpi=150)
    plt.close(figure)


def report(title: str, results: dict[str, Row]) -> None:
    print(f"\n{title}")
    for name, row in results.items():
        print(f"  {name:34s} {row['median']:8.3f} ns/element  ({row['low']:.3f} to {row['high']:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="few rounds and points, to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = {"device": str(device), "threads": options.threads, "torch": torch.__version__}
    kernels = {}
    for scale in (0.01,) if options.quick else (0.001, 0.01, 0.1, 1.0):
        kernels[f"{scale:g}"] = compare_kernels(scale, rounds, device)
        report(f"gradients of about {scale:g} on {device}, {options.threads} threads", kernels[f"{scale:g}"])
    points = [0.0, 0.9] if options.quick else [0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 1.0]
    balances = compare_balances(points, rounds, device)
    for balance, row in balances.items():
        report(f"2D, balance b = {balance}", row)
    options.results.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "rounds": rounds, "kernels": kernels, "balances": balances}
    (options.results / "histogram_kernels.json").write_text(json.dumps(content, indent=1) + "\n")
    draw(balances, options.results)


if __name__ == "__main__":
    main()
