"""Several processes against the slow truth: every number is that of the global batch, and one rank writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cockpit_core
from tests import slow_truth
from tests.distributed_worker import TRUTH
from tests.problems import PROBLEMS
from tests.training import ECONOMY, OPTIMIZERS, by_step


def own_name(layer: str) -> str:
    return layer.removeprefix("module.")


@pytest.mark.parametrize("processes", TRUTH)
def test_global_batch_is_measured_as_by_one_process(processes: int, request: pytest.FixtureRequest) -> None:
    name, optimizer, sizes = TRUTH[processes]
    folder = request.getfixturevalue("two" if processes == 2 else "four") / "truth"
    data = cockpit_core.load(folder)
    assert len(list(folder.glob("events*"))) == 1, "one rank writes"
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
