"""What a tracked step takes in memory as a network grows deeper: ``python -m benchmarks.depth``.

A chain of convolutions and ReLUs whose activations grow with its depth, trained by Adam, so that Alpha has something to
keep. Each measured in a fresh process in which malloc hands freed memory back at once: how far tracked steps raise the
high-water mark of untracked ones. ``memory_budget`` is small on one side and out of reach on the other. Needs Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
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


def train(depth: int, folder: str = "", **options: Any) -> None:
    """As everybody does it: the loss of a step is still there during the next forward pass."""
    import cockpit_core

    model, loss_fn = make_network(depth), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    inputs, targets = torch.randn(BATCH, CHANNELS, SIZE, SIZE), torch.arange(BATCH) % 2
    run = cockpit_core.track(model, loss_fn, optimizer, folder, on_error="raise", **options) if folder else None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        optimizer.step()
    if run is not None:
        run.close()
        assert len(run.data.alphas) == STEPS - 1 and not run.data.missing


def work(config: str, depth: int, megabytes: int) -> None:
    from benchmarks.memory import read_status, reset_peak

    torch.manual_seed(0)
    torch.set_num_threads(1)
    options: dict[str, Any] = {"config": config, "memory_budget": megabytes * 2**20}
    with tempfile.TemporaryDirectory() as folder:
        train(1, f"{folder}/warm", **options)
        reset_peak()
        train(depth)
        untracked = read_status("VmHWM")
        train(depth, f"{folder}/run", **options)
        print(json.dumps(read_status("VmHWM") - untracked))


# ---- outside ---------------------------------------------------------------------------------------------------------


def measure(config: str, depth: int, megabytes: int) -> float:
    """Extra peak in MB."""
    command = [sys.executable, "-m", "benchmarks.depth", "--worker", config, "--depth", str(depth)]
    command += ["--megabytes", str(megabytes)]
    output = subprocess.check_output(command, cwd=ROOT, env={**os.environ, **EAGER}, text=True)
    return float(output.splitlines()[-1])


def measure_all(options: Namespace) -> None:
    rows: dict[str, dict[str, dict[str, float]]] = {}
    content = {"rows": rows, "budget MB": BUDGET, "activations MB per layer": 8 * BATCH * CHANNELS * SIZE**2 / 2**20}
    with kept("memory_depth", content, options) as save:
        for config in CONFIGS[:1] if options.quick else CONFIGS:
            rows[config] = {}
            for depth in DEPTHS[:1] if options.quick else DEPTHS:
                found = {name: measure(config, depth, mb) for name, mb in (("within", BUDGET), ("without", BOUNDLESS))}
                rows[config][str(depth)] = found
                save()
                print(
                    f"  {config:9s} {depth:3d} layers  " + ", ".join(f"{n} {v:.0f} MB" for n, v in found.items()),
                    flush=True,
                )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, rounds=1)
    parser.add_argument("--worker", choices=CONFIGS, help="for the fresh process: what to measure there")
    parser.add_argument("--depth", type=int, default=DEPTHS[0])
    parser.add_argument("--megabytes", type=int, default=BUDGET)
    options = parse(parser, arguments)
    if options.worker:
        work(options.worker, options.depth, options.megabytes)
        return
    print(f"extra peak memory of a tracked step, memory_budget of {BUDGET} MB and none", flush=True)
    measure_all(options)


if __name__ == "__main__":
    main()
