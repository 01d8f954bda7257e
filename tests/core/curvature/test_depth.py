"""Peak memory of a tracked step as the network grows deeper; each case in a process of its own."""

from __future__ import annotations

import pytest

from benchmarks import depth


@pytest.mark.slow
@pytest.mark.parametrize(("config", "layers", "budget"), [("economy", 30, 8), ("business", 30, 8), ("full", 8, 4)])
def test_a_tracked_step_stays_within_its_budget_however_deep_the_network(config: str, layers: int, budget: int) -> None:
    """Convolutions and ReLUs with 2 MB of activations a layer, and their gradients as much again. Within a third of that,
    and as much for what Alpha keeps, passes are repeated instead."""
    tables = 5 if config == "full" else 0  # of a histogram over all magnitudes, while it is put on record
    assert depth.measure(config, layers, budget) < 2 * budget + tables


@pytest.mark.slow
def test_the_budget_makes_a_difference() -> None:
    """Else the test above would show nothing."""
    assert depth.measure("full", 8, 1000) > 2 * 4 + 5
