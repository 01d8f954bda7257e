"""The newer instruments on several processes: those of the global batch, or a reason."""

from __future__ import annotations

from pathlib import Path

import cockpit_core
from cockpit_core.quantities.needs import is_joined
from tests.distributed_worker import scenario, train
from tests.training import quantities

NETWORKS = ("cnn", "encoder_layer")
INSTRUMENTS = {name: cls for name, cls in cockpit_core.quantities.ALL.items() if cls.question}
TOGETHER = tuple(name for name, cls in INSTRUMENTS.items() if is_joined(cls.needs))
REFUSED = tuple(name for name in INSTRUMENTS if name not in TOGETHER)


@scenario
def instruments(rank: int, processes: int, folder: Path) -> None:
    for name in NETWORKS:
        config = quantities(*TOGETHER, *REFUSED)
        train(name, rank, processes, folder / f"instruments_{name}", optimizer="adam", config=config)
