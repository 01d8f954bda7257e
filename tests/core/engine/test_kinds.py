"""Kinds of networks that people train today: every first-order number of every layer is exact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import fuzz_networks, slow_truth
from tests.kinds import KINDS as PLAIN
from tests.kinds import Kind
from tests.kinds_regrouped import REGROUPED
from tests.training import with_config

KINDS = PLAIN | REGROUPED
FORMULAS: dict[str, Callable[[Any], float | None]] = {
    "NormTest": slow_truth.norm_test,
    "InnerTest": slow_truth.inner_test,
    "OrthoTest": slow_truth.ortho_test,
}


def train(
    model: nn.Module, steps: list[tuple], losses_of: Callable[[Any], Tensor], folder: Path, **options: Any
) -> Any:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    options = {"config": "economy", "on_error": "raise", **options}
    torch.manual_seed(1)
    with cockpit_core.track(model, None, optimizer, folder, **with_config(options)) as run:
        for inputs in steps:
            optimizer.zero_grad()
            losses = losses_of(model(*inputs))
            run.backward(losses.mean(), losses)
            optimizer.step()
    return run.data


def watch(model: nn.Module, steps: list[tuple], losses_of: Callable[[Any], Tensor]) -> list[dict[str, np.ndarray]]:
    """Individual gradients [B, D] by layer and step, from plain autograd; the same training without tracking."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.Adam(list(trained.values()), lr=0.01)
    torch.manual_seed(1)
    found = []
    for inputs in steps:
        losses = losses_of(model(*inputs))
        rows = [torch.autograd.grad(l_n, list(trained.values()), retain_graph=True) for l_n in losses]
        found.append({n: torch.stack([row[k].flatten() for row in rows]).numpy() for k, n in enumerate(trained)})
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    return found


def compare(data: cockpit_core.RunData, truth: list[dict[str, np.ndarray]]) -> int:
    """How many values were compared."""
    count = 0
    for name, formula in FORMULAS.items():
        for layer in truth[0]:
            steps, values = data.scalars(name, layer)
            for step, value in zip(steps.tolist(), values.tolist(), strict=True):
                expected = formula(truth[step][layer])
                assert value == pytest.approx(expected, rel=1e-5, abs=1e-6), f"{name} of {layer} at {step}"
                count += 1
    return count


def compare_network(data: cockpit_core.RunData, truth: list[dict[str, np.ndarray]]) -> int:
    """All layers together: rows of one layer must meet the rows of the same samples in the others. How many values."""
    count = 0
    for name, formula in FORMULAS.items():
        steps, values = data.scalars(name)
        for step, value in zip(steps.tolist(), values.tolist(), strict=True):
            expected = formula(np.concatenate(list(truth[step].values()), 1))
            assert value == pytest.approx(expected, rel=1e-5, abs=1e-6), f"{name} at {step}"
            count += 1
    return count


def make(kind: Kind) -> tuple[nn.Module, list[tuple]]:
    torch.manual_seed(0)
    return kind.build().double(), [kind.feed() for _ in range(3)]


@pytest.mark.parametrize("name", KINDS)
def test_kind_is_exact(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    model, steps = make(kind)
    twin = copy.deepcopy(model)
    data = train(model, steps, kind.losses, tmp_path / "run")
    truth = watch(twin, steps, kind.losses)
    assert data.header.covered == 1.0
    assert {info.method for info in data.header.layers} <= {"rule", "fallback", "no gradient"}
    assert compare(data, truth) >= 2 * 3 * len(truth[0]), "a layer has no value at two steps"
    assert compare_network(data, truth) >= 2 * 3
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize(
    "seeds", [*(range(k, k + 10) for k in (0, 10, 20, 10_000, 10_010)), (1324,), (880135,), (920052,), (6000129,)]
)
def test_no_random_network_is_wrong(seeds: Iterable[int], tmp_path: Path) -> None:
    """``python -m tests.fuzz_networks --seed N`` repeats one. The last ones were wrong once."""
    for seed in seeds:
        verdict = fuzz_networks.try_network(seed, tmp_path / str(seed))
        assert not verdict.wrong, f"seed {seed}: {fuzz_networks.draw_network(seed)}: {verdict.wrong[:3]}"
        assert not verdict.error, f"seed {seed}: {fuzz_networks.draw_network(seed)}: {verdict.error}"
