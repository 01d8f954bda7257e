"""What the tests of integrations share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    """Ready-made batches, so that the library trains on what the slow truth has seen."""

    def __init__(self, batches: Any) -> None:
        self.batches = list(batches)

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


def fit(pl: Any, module: Any, batches: Any, folder: Path, callbacks: list, **options: Any) -> Any:
    options = {"devices": 1, **options}
    checkpoint = options.pop("ckpt_path", None)
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=1, precision="64-true", default_root_dir=folder, callbacks=callbacks,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, log_every_n_steps=1, **options,
    )  # fmt: skip
    trainer.fit(module, DataLoader(Batches(batches), batch_size=None), ckpt_path=checkpoint)
    return trainer
