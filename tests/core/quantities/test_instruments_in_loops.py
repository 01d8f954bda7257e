"""All newer instruments together in every kind of loop: no error inside, bit for bit neutral, a value or a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import cockpit_core
from tests.core.tracking.test_loops_and_configurations import BATCHES, LOOPS
from tests.training import QUANTITIES, quantities, with_config

INSTRUMENTS = [name for name in cockpit_core.quantities.ALL if name not in QUANTITIES]


@pytest.mark.filterwarnings("ignore")  # what has no value says so
@pytest.mark.parametrize("name", LOOPS)
def test_every_loop_runs_bit_for_bit_with_all_instruments(name: str, tmp_path: Path) -> None:
    plain, loop = LOOPS[name](), LOOPS[name]()
    optimizers: Any = loop.optimizers if len(loop.optimizers) > 1 else loop.optimizers[0]
    options = {"config": quantities(*INSTRUMENTS), "on_error": "raise"}
    with cockpit_core.track(loop.model, loop.loss_fn, optimizers, tmp_path / "run", **with_config(options)) as run:
        tracked = loop.run()
    untracked = plain.run()
    assert [n for n, value in untracked.items() if not torch.equal(value, tracked[n])] == []
    for quantity in INSTRUMENTS:
        known = run.data.scalars(quantity)[0].tolist() if quantity in run.data.names else []
        known += [m.step for m in run.data.missing if m.name == quantity and m.reason]
        assert set(known) == set(range(BATCHES)), quantity
