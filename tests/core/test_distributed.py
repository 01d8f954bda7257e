"""Several processes against the slow truth: every number is that of the global batch, and one rank writes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from tests import slow_truth
from tests.problems import PROBLEMS
from tests.training import ECONOMY, OPTIMIZERS, by_step

ROOT = Path(__file__).resolve().parents[2]
RANK = """
import os, sys, torch
from torch.nn.parallel import DistributedDataParallel
import cockpit_core
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS

name, optimizer_name, sizes, folder = sys.argv[1:]
rank, sizes = int(os.environ["RANK"]), [int(size) for size in sizes.split(",")]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=len(sizes))
model, loss_fn, batches = PROBLEMS[name].make()
model = DistributedDataParallel(model)
optimizer = OPTIMIZERS[optimizer_name](list(model.parameters()))
with cockpit_core.track(model, loss_fn, optimizer, folder + "/run", config="full", on_error="raise"):
    for inputs, targets in batches(3):
        inputs, targets = inputs.split(sizes)[rank], targets.split(sizes)[rank]
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        optimizer.step()
torch.distributed.destroy_process_group()
"""


def run_ranks(folder: Path, name: str, optimizer: str, sizes: list[int]) -> None:
    """One process per entry of ``sizes``, each with so many samples of every batch."""
    arguments = [name, optimizer, ",".join(map(str, sizes)), str(folder)]
    processes = []
    for rank in range(len(sizes)):
        environment = os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", RANK, *arguments]
        processes.append(subprocess.Popen(command, env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert not any(process.returncode for process in processes), "\n".join(errors)


def own_name(layer: str) -> str:
    return layer.removeprefix("module.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer", "sizes"), [("cnn", "momentum", [3, 3]), ("residual_tanh", "adam", [2, 2, 2, 1])]
)
def test_global_batch_is_measured_as_by_one_process(
    name: str, optimizer: str, sizes: list[int], tmp_path: Path
) -> None:
    run_ranks(tmp_path, name, optimizer, sizes)
    data = cockpit_core.load(tmp_path / "run")
    assert len(list((tmp_path / "run").iterdir())) == 1, "one rank writes"
    truth = truth_of_ranks(name, optimizer, sizes)
    for quantity in (*ECONOMY, "HessTrace", "HessMaxEV"):
        tolerance = 1e-3 if quantity == "HessMaxEV" else 1e-5
        assert by_step(data, quantity) == pytest.approx(truth.scalars[quantity], rel=tolerance), quantity
    for layer in data.layers:
        assert by_step(data, "NormTest", layer) == pytest.approx(truth.layers["NormTest"][own_name(layer)], rel=1e-5)
    for fit in data.alphas:
        assert fit.slope_start == pytest.approx(truth.alphas[fit.step]["slope_start"], rel=1e-5)
        assert fit.alpha == pytest.approx(truth.alphas[fit.step]["alpha"], rel=1e-5)
    assert len(data.alphas) == 2
    G = slow_truth.matrix(truth.G[1], truth.names, sum(sizes))
    expected, _ = slow_truth.histogram_1d(G)
    assert data.histogram("GradHist1d", 1).counts.sum() == G.size
    assert np.abs(data.histogram("GradHist1d", 1).counts.astype(int) - expected).sum() <= 0.02 * G.size


class MeanOfRankMeans(torch.nn.CrossEntropyLoss):
    """What DistributedDataParallel differentiates: each rank's mean counts alike, however many samples it has."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.shares = torch.cat([torch.full((size,), 1 / (size * len(sizes)), dtype=torch.float64) for size in sizes])

    def forward(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        losses = torch.nn.functional.cross_entropy(prediction, target, reduction="none")
        return len(losses) * self.shares * losses if self.reduction == "none" else (self.shares * losses).sum()


def truth_of_ranks(name: str, optimizer: str, sizes: list[int]) -> slow_truth.RunTruth:
    model, _, batches = PROBLEMS[name].make()
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    moments = slow_truth.watch_loop(model, MeanOfRankMeans(sizes), optim, batches(3))
    return slow_truth.truth_of_moments(moments)
