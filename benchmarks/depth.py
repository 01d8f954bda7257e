"""What a tracked step takes in memory as a network grows deeper: ``python -m benchmarks.depth``.

A chain of convolutions and ReLUs whose activations grow with its depth, trained by Adam, so that Alpha has something to
keep. Each measured in a fresh process in which malloc hands freed memory back at once: how far tracked steps raise the
high-water mark of untracked ones, once everything has run there before (kernels that are compiled for a shape stay, a
few MB, however deep the network). ``memory_budget`` is small on one side and out of reach on the other; the small one is
also measured with malloc as it usually is, which keeps holes. Needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from benchmarks.results import ROOT, kept, make_parser, parse

BUDGET, BOUNDLESS = 16, 4000  # MB
DEPTHS = (10, 20, 40)
CONFIGS = ("economy", "business", "full")
CHANNELS, SIZE, BATCH, STEPS = 16, 16, 64, 2
EAGER = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "0"}
"""Makes malloc hand freed memory back at once: what it sets aside for later is not ours."""


def make_network(depth: int) -> nn.Module:
    pairs = [(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()) for _ in range(depth)]
    layers = [layer for pair in pairs for layer in pair]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 2))


# ---- in the fresh process --------------------------------------------------------------------------------------------


def train(depth: int, size: int, folder: str = "", steps: int = STEPS, **options: Any) -> None:
    """As everybody does it: the loss of a step is still there during the next forward pass."""
    import cockpit_core

    model, loss_fn = make_network(depth), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(BATCH, CHANNELS, size, size), torch.arange(BATCH) % 2
    run = cockpit_core.track(model, loss_fn, optimizer, folder, on_error="raise", **options) if folder else None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if run is not None:
        run.close()
        assert len(run.data.alphas) == steps - 1 and not run.data.missing


def work(config: str, depth: int, megabytes: int, size: int) -> None:
    from benchmarks.memory import read_status, reset_peak

    torch.manual_seed(0)
    torch.set_num_threads(1)
    options: dict[str, Any] = {"config": config, "memory_budget": megabytes * 2**20}
    with tempfile.TemporaryDirectory() as folder:
        train(depth, size, f"{folder}/warm", steps=1, **options)
        reset_peak()
        train(depth, size)
        untracked = read_status("VmHWM")
        train(depth, size, f"{folder}/run", **options)
        print(json.dumps(read_status("VmHWM") - untracked))


# ---- outside ---------------------------------------------------------------------------------------------------------


def measure(config: str, depth: int, megabytes: int, size: int = SIZE, *, eager: bool = True) -> float:
    """Extra peak in MB."""
    command = [sys.executable, "-m", "benchmarks.depth", "--worker", config, "--depth", str(depth)]
    command += ["--megabytes", str(megabytes), "--size", str(size)]
    output = subprocess.check_output(command, cwd=ROOT, env={**os.environ, **(EAGER if eager else {})}, text=True)
    return float(output.splitlines()[-1])


def measure_all(options: Namespace) -> None:
    rows: dict[str, dict[str, dict[str, float]]] = {}
    budget, size = options.megabytes, options.size
    content = {"rows": rows, "budget MB": budget, "activations MB per layer": 8 * BATCH * CHANNELS * size**2 / 2**20}
    usual = (budget, size) == (BUDGET, SIZE)
    with kept("memory_depth" if usual else f"memory_depth_{budget}", content, options) as save:
        for config in CONFIGS[:1] if options.quick else CONFIGS:
            rows[config] = {}
            depths = DEPTHS[:1] if options.quick else options.depths
            for depth in depths:
                found = measure_sides(config, depth, budget, size, holes=depth == depths[-1])
                rows[config][str(depth)] = found
                save()
                print(
                    f"  {config:9s} {depth:3d} layers  " + ", ".join(f"{n} {v:.0f} MB" for n, v in found.items()),
                    flush=True,
                )


def measure_sides(config: str, depth: int, budget: int, size: int, *, holes: bool) -> dict[str, float]:
    """Within the budget and without, side by side: each takes one core, and nothing is timed."""
    with ThreadPoolExecutor() as pool:
        sides = {
            "within": pool.submit(measure, config, depth, budget, size),
            "without": pool.submit(measure, config, depth, BOUNDLESS, size),
        }
        if holes:
            sides["usual"] = pool.submit(measure, config, depth, budget, size, eager=False)
        return {side: found.result() for side, found in sides.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=1)
    parser.add_argument("--worker", choices=CONFIGS, help="for the fresh process: what to measure there")
    parser.add_argument("--depth", type=int, default=DEPTHS[0], help="there: how many layers")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="how many layers, one after the other")
    parser.add_argument("--megabytes", type=int, default=BUDGET, help="memory_budget")
    parser.add_argument("--size", type=int, default=SIZE, help="of the images: activations grow with its square")
    options = parse(parser, arguments)
    if options.worker:
        work(options.worker, options.depth, options.megabytes, options.size)
        return
    print(f"extra peak memory of a tracked step, memory_budget of {options.megabytes} MB and none", flush=True)
    measure_all(options)


if __name__ == "__main__":
    main()
