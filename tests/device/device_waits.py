"""How often a tracked step waits for the device, and what it sends there: by the device's own count."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from tests.device.on_device import STAND_IN

DEVICE = STAND_IN.device
FEW, MANY = 13, 25  # layers: signals look at twelve activations of both
MOST = {"economy": 3, "ggn_mc": 6}
WIDE = 100  # squared, more elements than are looked at on the host


def count(layers: int, kind: str, folder: Path, width: int = 8) -> Counter[str]:
    """Waits and uploads of the fifth step."""
    torch.manual_seed(0)
    stack = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.Tanh())]
    model, loss_fn = nn.Sequential(*stack, nn.Linear(width, 3)).to(DEVICE), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"config": "business", "curvature": "ggn_mc"} if kind == "ggn_mc" else {"config": kind}
    heard: Counter[str] = Counter()

    def hear(what: str, operation: str) -> None:
        heard[what] += 1
        heard[f"{what} in backward"] += torch._C._current_graph_task_id() != -1

    with cockpit_core.track(model, loss_fn, optimizer, folder, on_error="raise", **options):
        for step in range(5):
            inputs, labels = torch.randn(6, width, device=DEVICE), torch.randint(3, (6,), device=DEVICE)
            with STAND_IN.heard_by(hear) if step == 4 else nullcontext():
                optimizer.zero_grad()
                loss_fn(model(inputs), labels).backward()
                optimizer.step()
    return heard


@pytest.mark.parametrize("kind", MOST)
def test_waits_and_uploads_do_not_grow_with_the_layers(kind: str, tmp_path: Path) -> None:
    few, many = (count(layers, kind, tmp_path / str(layers)) for layers in (FEW, MANY))
    assert few == many
    assert many["wait"] <= MOST[kind]
    assert many["upload"] <= 5


def test_a_product_with_the_hessian_waits_once(tmp_path: Path) -> None:
    """Besides one for each activation, whose curvature tells which columns there are."""
    heard = count(FEW, "full", tmp_path / "run")
    assert heard["wait"] <= MOST["ggn_mc"] + FEW - 1 + 24


def test_large_layers_take_no_more_waits(tmp_path: Path) -> None:
    assert count(4, "economy", tmp_path / "run", WIDE)["wait"] <= MOST["economy"]


def test_nobody_waits_inside_the_backward_pass(tmp_path: Path) -> None:
    heard = count(FEW, "economy", tmp_path / "run")
    assert heard["wait in backward"] == 0
