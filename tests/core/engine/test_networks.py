"""Any network: first order is exact on each, curvature is exact or says by how much it may be off."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core.layers import ways
from tests import slow_truth
from tests.networks import NETWORKS
from tests.training import (
    ECONOMY,
    OPTIMIZERS,
    assert_close,
    assert_true,
    by_step,
    linear,
    loop,
    train_tracked,
    with_config,
)

CURVATURE = ("HessTrace", "HessMaxEV", "TICDiag")


@pytest.mark.parametrize("name", NETWORKS)
def test_first_order_is_exact(name: str, tmp_path: Path) -> None:
    problem = NETWORKS[name]
    data = train_tracked(problem, "momentum", 3, tmp_path / "run", config=linear("economy"))
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["momentum"], 3, None)
    assert data.header.covered == 1.0
    assert_true(data, truth, ECONOMY)
    for step in range(3):
        G = slow_truth.matrix(truth.G[step], truth.names, problem.batch_size)
        expected, _ = slow_truth.histogram_1d(G)
        counts = data.histogram("GradHist1d", step).counts
        assert counts.sum() == G.size
        assert np.abs(counts.astype(int) - expected).sum() <= 0.05 * G.size


def is_estimate(data: cockpit_core.RunData, quantity: str) -> bool:
    """A method without an error is an exact one."""
    return quantity in data.estimates and bool(np.isfinite(data.estimates[quantity].errors).any())


@pytest.mark.parametrize("name", NETWORKS)
def test_curvature_is_exact_or_within_its_error_or_says_why_not(name: str, tmp_path: Path) -> None:
    problem = NETWORKS[name]
    data = train_tracked(problem, "sgd", 2, tmp_path / "run", config="full")
    curvature = slow_truth.hessian_by_differences if name == "embedding_bag" else slow_truth.hessian
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["sgd"], 2, curvature)
    for quantity in CURVATURE:
        measured, expected = by_step(data, quantity), truth.scalars[quantity]
        if not measured:
            assert quantity in {missing.name for missing in data.missing}
        elif quantity == "HessMaxEV" or not is_estimate(data, quantity):
            assert_close(measured, expected, quantity)
        else:
            for step, error in zip(*data.estimates[quantity][:2], strict=True):
                assert abs(measured[step] - expected[step]) <= 4 * error


@pytest.mark.parametrize("name", NETWORKS)
def test_network_trains_bit_for_bit_the_same(name: str, tmp_path: Path) -> None:
    problem = NETWORKS[name]
    results = []
    for tracked in (False, True):
        model, loss_fn, batches = problem.make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        torch.manual_seed(1)
        if tracked:
            options = {"config": "full", "on_error": "raise", "schedule": 2}
            with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", **with_config(options)):
                losses = loop(model, loss_fn, optimizer, batches(10))
        else:
            losses = loop(model, loss_fn, optimizer, batches(10))
        results.append(
            [*losses, *model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()]
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_norms_alone_are_exact(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is asked, so that nothing is projected on the gradient; also where positions are too many for it."""
    monkeypatch.setattr(ways, "takes_products", lambda positions, inner, out: True)
    problem = NETWORKS[name]
    data = train_tracked(problem, "momentum", 3, tmp_path / "run", config=["NormTest"])
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["momentum"], 3, None)
    assert data.header.covered == 1.0
    assert_close(by_step(data, "NormTest"), truth.scalars["NormTest"], "NormTest")
    for step in range(3):
        for layer, G in truth.G[step].items():
            B, squares = len(G), float((G**2).sum())
            expected = (squares / float((G.mean(0) ** 2).sum()) - B) / (B * (B - 1))
            if np.isfinite(expected) and (G.mean(0) ** 2).sum() > 1e-20:
                assert by_step(data, "NormTest", layer)[step] == pytest.approx(
                    max(expected, 0) ** 0.5, rel=1e-3, abs=1e-6
                )
