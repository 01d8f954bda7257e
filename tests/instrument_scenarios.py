"""The newer instruments on several processes: those of the global batch, or a reason."""

from __future__ import annotations

from pathlib import Path

from tests.distributed_worker import scenario, train
from tests.training import quantities

NETWORKS = ("cnn", "encoder_layer")
TOGETHER = (
    *("SignalShare", "NoiseScale", "UpdateCosine", "UpdateRatio", "LayerProgress", "EpsilonShare", "Coherence"),
    *("AlphaOwnBatch", "BatchSharpness", "DirectionalSharpness", "DeadUnits", "ActivationScale", "HardSamples"),
)
REFUSED = ("ConflictShare", "EffectiveRank", "ClassInterference", "PreconditionedSharpness")


@scenario
def instruments(rank: int, processes: int, folder: Path) -> None:
    for name in NETWORKS:
        config = quantities(*TOGETHER, *REFUSED)
        train(name, rank, processes, folder / f"instruments_{name}", optimizer="adam", config=config)
