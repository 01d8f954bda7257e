"""The newer instruments on two processes are those of one process that sees the joined batch, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import cockpit_core
from tests.core.distributed.test_processes import train_alone
from tests.instrument_scenarios import NETWORKS, REFUSED, TOGETHER
from tests.training import by_step, quantities


@pytest.mark.parametrize("name", NETWORKS)
def test_two_processes_are_one_batch(name: str, two: Path, tmp_path: Path) -> None:
    together = cockpit_core.load(two / f"instruments_{name}")
    alone = train_alone(name, tmp_path / "alone", optimizer="adam", config=quantities(*TOGETHER))
    assert together.header.options["processes"] == "2"
    for quantity in TOGETHER:
        for layer in (None, *alone.layers):
            expected = by_step(alone, quantity, layer)
            assert by_step(together, quantity, layer) == pytest.approx(expected, rel=1e-5, abs=1e-9), (quantity, layer)
    assert {m.name for m in together.missing} >= set(REFUSED)
    assert sum(bool(by_step(alone, quantity)) for quantity in TOGETHER) >= len(TOGETHER) - 4
