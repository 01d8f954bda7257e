"""Training libraries on several processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.distributed_worker import STEPS, problem_of, scenario, share


@contextmanager
def as_torchrun_sets_it(rank: int, processes: int) -> Iterator[None]:
    """The libraries ask the environment who they are; the processes know each other already."""
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_RANK": 0}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29511, "TORCHELASTIC_RUN_ID": "test"}
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in told.items()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@scenario
def lightning(rank: int, processes: int, folder: Path) -> int:
    from tests.core.integrations import test_integrations as libraries

    with as_torchrun_sets_it(rank, processes):
        pl, module, _ = libraries.make_lightning("mlp")
        from cockpit_core.integrations.lightning import CockpitCallback

        batches = [
            (share(x, rank, processes), share(y, rank, processes)) for x, y in problem_of("mlp").make()[2](STEPS)
        ]
        ours = CockpitCallback(folder / "lightning", on_error="raise", config="full")
        trainer = libraries.fit(
            pl, module, batches, folder, [ours], logger=False, devices=processes, use_distributed_sampler=False,
            strategy=pl.strategies.DDPStrategy(process_group_backend="gloo"),
        )  # fmt: skip
        return trainer.world_size


@scenario
def huggingface(rank: int, processes: int, folder: Path) -> int:
    from tests.core.integrations import test_huggingface as libraries

    with as_torchrun_sets_it(rank, processes):
        from cockpit_core.integrations.huggingface import CockpitCallback

        ours = CockpitCallback(
            folder / "huggingface", config="economy", individual_losses=libraries.gpt2_losses, on_error="raise"
        )
        return libraries.train_with_trainer(folder, [ours], ddp_backend="gloo").args.world_size
