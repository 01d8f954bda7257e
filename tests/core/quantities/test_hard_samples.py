"""HardSamples: the share of the largest gradients, and samples that are followed by their ids over the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core import quantities as q
from tests import slow_truth
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, train_tracked, with_config

EVERY = {**PROBLEMS, **NETWORKS}
STEPS = 4


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("problem", ["mlp", "cnn", "encoder_layer", "lstm"])
def test_table_and_share_are_the_truth(problem: str, parts: int, tmp_path: Path) -> None:
    model, loss_fn, batches = EVERY[problem].make()
    optimizer, B = OPTIMIZERS["adam"](list(model.parameters())), EVERY[problem].batch_size
    ids = [np.random.default_rng(t).permutation(B + 2)[:B] for t in range(STEPS)]
    options = {"config": [q.HardSamples(top=4)], "on_error": "raise"}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)) as run:
        for t, (x, y) in enumerate(batches(STEPS)):
            optimizer.zero_grad()
            for n in np.array_split(np.arange(B), parts):
                run.batch(ids=torch.from_numpy(ids[t][n]) if t % 2 else ids[t][n].tolist())
                (loss_fn(model(x[n]), y[n]) * len(n) / B).backward()
            optimizer.step()
    moments = slow_truth.watch_training(EVERY[problem], OPTIMIZERS["adam"], STEPS)
    truth = slow_truth.truth_of_moments(moments, None)
    G = [slow_truth.matrix(own, truth.names, B) for own in truth.G]
    squares = [np.sort((own**2).sum(1))[::-1] for own in G]
    shares = {t: float(own[:5].sum() / own.sum()) for t, own in enumerate(squares)}
    assert by_step(run.data, "HardSamples") == pytest.approx(shares, rel=1e-7)
    seen: dict[int, list] = {}
    for t, own in enumerate(G):
        g = own.mean(0)
        for n, key in enumerate(ids[t].tolist()):
            norm = np.linalg.norm(own[n])
            row = (norm, own[n] @ g / norm / np.linalg.norm(g), int(moments[t].targets[n]), t)
            seen.setdefault(key, []).append(row)
    rows = [
        (key, np.mean([r[0] for r in found]), np.mean([r[1] for r in found]), len(found), found[-1][2], found[-1][3])
        for key, found in seen.items()
    ]
    expected = np.array(sorted(rows, key=lambda row: -row[1])[:4])
    np.testing.assert_allclose(run.data.histogram("HardSamples", STEPS - 1).counts, expected, rtol=1e-6, atol=1e-9)


def test_without_ids_there_is_a_share_and_no_table(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["mlp"], "sgd", 2, tmp_path / "run", config=[q.HardSamples()])
    assert list(by_step(data, "HardSamples")) == [0, 1]
    assert "HardSamples" not in data.histogram_names


def test_memory_is_bounded_and_the_hardest_stay() -> None:
    quantity = q.HardSamples(top=3, capacity=100)
    for step in range(30):
        ids = np.arange(step * 10, step * 10 + 10)
        norms = torch.full((10,), 1.0)
        norms[0] = 100.0 + step
        statistics = q.Statistics(
            step, 10, 0.0, norms={"w": norms}, dots={"w": norms}, gradient_norms={"w": 1.0}, ids=ids
        )
        table = quantity.measure(statistics).table
    assert len(quantity._seen) <= 100
    assert table is not None
    assert table[:, 0].tolist() == [290, 280, 270]


@pytest.mark.parametrize("ids", [[0.5, 1.5], "ab", [[1], [2]], [["a"], [1, 2]], 3])
def test_ids_are_checked(ids, tmp_path: Path) -> None:
    model, loss_fn, _ = PROBLEMS["mlp"].make()
    optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[q.HardSamples()])
    with pytest.raises(TypeError, match="one whole number per sample"):
        run.batch(ids=ids)
    run.close()


def test_wrong_number_of_ids_is_said(tmp_path: Path) -> None:
    model, loss_fn, batches = PROBLEMS["mlp"].make()
    optimizer = OPTIMIZERS["sgd"](list(model.parameters()))
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[q.HardSamples()]) as run:
        for x, y in batches(1):
            run.batch(ids=[1, 2])
            loss_fn(model(x), y).backward()
            optimizer.step()
    assert "2 ids for a batch of 7" in run.data.missing[0].reason
