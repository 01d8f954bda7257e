"""What histograms of individual gradients cost, in nanoseconds per element: ``python -m benchmarks.histogram_kernels``.

The layer is the widest of CIFAR-10 3C3D (1152 to 512, batch 128: 75 million products). The balance b of the second part is
the share of elements in the hottest bin, the rest being spread evenly (the 2021 paper's Figure 15: there, the GPU slows
down as b grows). Runs on a GPU if there is one, with the Triton kernels beside plain torch.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import CLOCKS, Progress, Row, summarise
from benchmarks.results import kept, make_parser, parse
from cockpit_core.kernels import Bins, Counts, Spec, count_outer, count_values, prepare_parameter
from cockpit_core.kernels.door import choose_path

GRADIENT, JOINT = Bins(-2, 2, 100), (Bins(-1, 1, 40), Bins(-2, 2, 50))
SPECS = {"1D": Spec(GRADIENT), "2D": Spec(None, JOINT)}
SAMPLES, OUT, INNER, STORED = 128, 512, 1152, 8
BALANCES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99, 1.0)
SECONDS = 6.0
Contestants = dict[str, tuple[Callable[[], object], int]]


def take_turns(title: str, contestants: Contestants, device: torch.device, options: Namespace) -> dict[str, Row]:
    """Nanoseconds per element of each contestant over rounds in which each runs once; three at least."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    progress, began = Progress(title), time.monotonic()
    for turn in range(options.rounds + 1):
        if turn > 3 and time.monotonic() - began > SECONDS:
            break
        progress.say(turn, options.rounds + 1)
        for name, (work, elements) in contestants.items():
            start = read_clock(device, options)
            work()
            if turn:  # the first turn compiles and warms up
                times[name].append(1e9 * (read_clock(device, options) - start) / elements)
    progress.clear()
    found = {name: {**summarise(values), "rounds": len(values)} for name, values in times.items()}
    report(title, found)
    return found


def read_clock(device: torch.device, options: Namespace) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return CLOCKS[options.clock]()


def count_with(
    kernel: Callable[..., None], *inputs: Tensor, parameter: Tensor, spec: Spec, path: str
) -> Callable[[], None]:
    bins = prepare_parameter(parameter, spec)
    counts = Counts.zeros(spec, parameter.device)
    return lambda: kernel(*inputs, bins, spec, counts, path=path)


def clamp_and_histc(values: Tensor) -> Tensor:
    return torch.histc(values.clamp(GRADIENT.low, GRADIENT.high), GRADIENT.count, GRADIENT.low, GRADIENT.high)


def enter_kernels(scale: float, device: torch.device) -> Contestants:
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
    return contestants


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


def enter_balance(balance: float, device: torch.device) -> Contestants:
    """The 2D histogram of stored values, by every path that works here."""
    parameter = (0.05 * torch.randn(OUT * INNER, generator=torch.Generator().manual_seed(2))).to(device)
    values = make_balanced(balance, device)
    contestants: Contestants = {}
    for path in dict.fromkeys((choose_path(device), "plain")):
        work = count_with(count_values, values, parameter=parameter, spec=SPECS["2D"], path=path)
        contestants[path] = (work, values.numel())
    return contestants


def draw(content: dict[str, Any], options: Namespace) -> None:
    from benchmarks.figures import figure

    balances = content["balances"]
    if not balances:
        return
    with figure(options.results, "histogram_balance", size=(5.5, 3.2)) as axes:
        x = [float(balance) for balance in balances]
        for path in next(iter(balances.values())):
            low, median, high = ([row[path][key] for row in balances.values()] for key in ("low", "median", "high"))
            axes.plot(x, median, marker="o", label=path)
            axes.fill_between(x, low, high, alpha=0.2)
        axes.set(xlabel="balance b (share of elements in the fullest bin)", ylabel="ns per element", ylim=(0, None))
        axes.set_title("2D histogram of stored individual gradients", fontsize=9)
        axes.legend(frameon=False)


def report(title: str, results: dict[str, Row]) -> None:
    print(f"\n{title}")
    for name, row in results.items():
        print(f"  {name:34s} {row['median']:8.3f} ns/element  ({row['low']:.3f} to {row['high']:.3f})", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(make_parser(__doc__, rounds=9), arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    content: dict[str, Any] = {"balances": {}, "kernels": {}}
    with kept("histogram_kernels", content, options, draw) as save:
        for balance in BALANCES[::7] if options.quick else BALANCES:
            rows = take_turns(f"2D, balance b = {balance:g}", enter_balance(balance, device), device, options)
            content["balances"][f"{balance:g}"] = rows
            save()
        for scale in () if options.quick else (0.001, 0.01, 0.1, 1.0):
            rows = take_turns(f"gradients of about {scale:g}", enter_kernels(scale, device), device, options)
            content["kernels"][f"{scale:g}"] = rows
            save()


if __name__ == "__main__":
    main()
