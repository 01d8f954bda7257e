"""The table of ClassInterference: mean cosines pair by pair, of all steps so far, the newest counting most."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth


def add_pairs(G: np.ndarray, labels: list[int], sums: dict, counts: dict) -> None:
    """Cosines of all ordered pairs of different samples, by their classes."""
    for n, m in itertools.permutations(range(len(labels)), 2):
        cosine = G[n] @ G[m] / (np.linalg.norm(G[n]) * np.linalg.norm(G[m]))
        pair = labels[n], labels[m]
        sums[pair], counts[pair] = sums.get(pair, 0) + cosine, counts.get(pair, 0) + 1


@pytest.mark.parametrize("by_module", [True, False])
def test_table_has_the_mean_cosine_of_every_pair_and_the_newest_step_counts_most(
    by_module: bool, tmp_path: Path
) -> None:
    """Labels come from the arguments of the loss module, or from the graph of a loss that is a function."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.3)
    batches = [[0, 0, 1, 3, 3], [1, 1, 0, 0, 0], [3, 0, 1, 1, 3]]
    sums: dict = {}
    counts: dict = {}
    config = [q.ClassInterference(samples=None)]
    tracked = loss_fn if by_module else None
    with cockpit_core.track(model, tracked, optimizer, tmp_path, config=config, schedule=1, on_error="raise") as run:
        for labels in batches:
            x, y = torch.randn(5, 5, dtype=torch.float64), torch.tensor(labels)
            individual = slow_truth.individual_gradients(slow_truth.freeze(model, loss_fn, x, y))
            rows = slow_truth.matrix({n: g.numpy() for n, g in individual.items()}, individual, 5)
            sums, counts = ({pair: 0.9 * value for pair, value in part.items()} for part in (sums, counts))
            add_pairs(rows, labels, sums, counts)
            optimizer.zero_grad()
            (loss_fn(model(x), y) if by_module else F.cross_entropy(model(x), y)).backward()
            optimizer.step()
    table = run.data.histogram("ClassInterference").counts
    assert table[:, 0].tolist() == [0, 1, 3]
    expected = [[sums[a, b] / counts[a, b] for b in (0, 1, 3)] for a in (0, 1, 3)]
    np.testing.assert_allclose(table[:, 1:], expected, rtol=1e-6)


def test_pairs_that_were_not_seen_have_no_value_and_many_classes_no_table(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(5, 40), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(
        model, loss_fn, optimizer, tmp_path, config=[q.ClassInterference(samples=None)], schedule=1, on_error="raise"
    ) as run:
        for labels in ([2, 2, 5], [1, 1, 5], list(range(33))):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(len(labels), 5)), torch.tensor(labels)).backward()
            optimizer.step()
    assert run.data.histogram_steps("ClassInterference") == [0, 1]
    table = run.data.histogram("ClassInterference", 1).counts
    assert table[:, 0].tolist() == [1, 2, 5]
    assert np.isnan(table[0, 2]) and np.isnan(table[2, 3]) and np.isfinite(table[0, 1])
