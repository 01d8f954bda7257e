"""Scenarios of ``tests/core/distributed/test_sharded.py``: parameters that ``fully_shard`` has split over the processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cockpit_core
from tests.distributed_worker import fingerprint, message_of, problem_of, scenario, share
from tests.training import OPTIMIZERS, QUANTITIES, quantities, with_config

SHARDED_NEUTRAL = ("cnn", "encoder_layer", "resnet")
SHARDED = ("mlp", "cnn", "tied", "encoder_layer", "decoder", "prelu", "lstm", "resnet")


def shard(model: nn.Module, processes: int, parts: bool) -> nn.Module:
    """As users do it: blocks first, then the whole; or the whole only."""
    mesh = init_device_mesh("cpu", (processes,))
    blocks = [child for child in model.children() if any(True for _ in child.parameters())]
    for block in blocks if parts else ():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train_sharded(
    name: str, rank: int, processes: int, logdir: Path | None, *, parts: bool = False, unequal: bool = False,
    optimizer: str = "momentum", steps: int = 3, micro: int = 1, clip: bool = False, **options: Any,
) -> tuple[nn.Module, torch.optim.Optimizer]:  # fmt: skip
    model, loss_fn, batches = problem_of(name).make()
    shard(model, processes, parts)
    optim = OPTIMIZERS[optimizer](list(model.parameters()))
    options = {"config": quantities(*QUANTITIES), "on_error": "raise", **options}
    run = cockpit_core.track(model, loss_fn, optim, logdir, **with_config(options)) if logdir else None
    for inputs, targets in batches(steps):
        x, y = share(inputs, rank, processes, unequal), share(targets, rank, processes, unequal)
        optim.zero_grad()
        pieces = list(zip(x.chunk(micro), y.chunk(micro), strict=True))
        for k, (some, labels) in enumerate(pieces):
            model.set_requires_gradient_sync(k + 1 == len(pieces))
            (loss_fn(model(some), labels) / micro).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optim.step()
    if run is not None:
        run.close()
    return model, optim


@scenario
def sharded(rank: int, processes: int, folder: Path) -> None:
    for name in SHARDED:
        train_sharded(name, rank, processes, folder / f"sharded {name}")
    train_sharded("mlp", rank, processes, folder / "sharded parts", parts=True)
    train_sharded("mlp", rank, processes, folder / "sharded unequal", unequal=True, optimizer="adam")
    train_sharded("mlp", rank, processes, folder / "sharded accumulated", micro=2, optimizer="adam")
    train_sharded("mlp", rank, processes, folder / "sharded clipped", clip=True)
    train_sharded("lstm", rank, processes, folder / "sharded lstm in parts", parts=True)
    train_sharded("prelu", rank, processes, folder / "sharded prelu in parts", parts=True)
    train_sharded("broadcast", rank, processes, folder / "sharded broadcast")


@scenario
def sharded_of_four(rank: int, processes: int, folder: Path) -> None:
    train_sharded("decoder", rank, processes, folder / "sharded decoder", optimizer="adam")


@scenario
def sharded_neutrality(rank: int, processes: int, folder: Path) -> dict[str, list[dict[str, str]]]:
    results = {}
    for name in SHARDED_NEUTRAL:
        results[name] = []
        for logdir in (None, folder / f"sharded neutral {name}"):
            torch.manual_seed(rank)
            found = train_sharded(name, rank, processes, logdir, parts=True, optimizer="adam", steps=4, schedule=2)
            results[name].append(fingerprint(*found))
    return results


@scenario
def sharded_otherwise(rank: int, processes: int, folder: Path) -> list[str]:
    """What is refused: some parameters only, and rows and columns at once."""
    messages = []
    mesh = init_device_mesh("cpu", (processes,))
    some = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    fully_shard(some[0], mesh=mesh)
    replicas = nn.Linear(4, 3)
    fully_shard(replicas, mesh=init_device_mesh("cpu", (processes, 1), mesh_dim_names=("replicas", "shards")))
    for model in (some, replicas):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        messages.append(message_of(lambda m=model, o=optimizer: cockpit_core.track(m, nn.MSELoss(), o, folder / "no")))
    return messages
