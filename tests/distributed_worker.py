"""One process of several: runs every scenario of ``tests/core/test_distributed.py`` one after the other.

``python -m tests.distributed_worker <rank> <processes> <folder> <scenario>...``; what a scenario returns is written to
``<folder>/<scenario>.<rank>.json``.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import cockpit_core
from cockpit_core.engine import distributed
from tests.networks import NETWORKS
from tests.problems import PROBLEMS, Problem
from tests.training import OPTIMIZERS, QUANTITIES, quantities

SCENARIOS: dict[str, Callable[[int, int, Path], Any]] = {}
SIZE = 8  # of the joined batch
UNEQUAL = {2: (3, 5), 4: (1, 2, 2, 3)}


def scenario(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


def problem_of(name: str) -> Problem:
    return replace({**NETWORKS, **PROBLEMS}[name], batch_size=SIZE)


def parts(tensor: Tensor, rank: int, processes: int, unequal: bool = False) -> Tensor:
    sizes = UNEQUAL[processes] if unequal else (SIZE // processes,) * processes
    return tensor.split(sizes)[rank]


def fingerprint(model: nn.Module) -> list[float]:
    return [float(value) for p in model.parameters() for value in (p.detach().sum(), p.detach().abs().max())]


def train(
    name: str, rank: int, processes: int, logdir: Path | None, *, steps: int = 3, optimizer: str = "momentum",
    unequal: bool = False, micro: int = 1, clip: bool = False, inner: bool = False, ddp: dict | None = None, **options: Any,
) -> tuple[cockpit_core.Run | None, nn.Module]:  # fmt: skip
    """The textbook loop under DistributedDataParallel, on this rank's part of each batch."""
    problem = problem_of(name)
    model, loss_fn, batches = problem.make()
    wrapped = DistributedDataParallel(model, **(ddp or {}))
    optim = OPTIMIZERS[optimizer](problem.groups(model))
    options = {"config": quantities(*QUANTITIES), "on_error": "raise", **options}
    run = cockpit_core.track(model if inner else wrapped, loss_fn, optim, logdir, **options) if logdir else None
    for inputs, targets in batches(steps):
        x, y = parts(inputs, rank, processes, unequal), parts(targets, rank, processes, unequal)
        optim.zero_grad()
        pieces = list(zip(x.chunk(micro), y.chunk(micro), strict=True))
        for k, (some, labels) in enumerate(pieces):
            with wrapped.no_sync() if k + 1 < len(pieces) else nullcontext():
                (loss_fn(wrapped(some), labels) / micro).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optim.step()
        if run is not None and run.should_stop:
            break
    if run is not None:
        run.close()
    return run, model


def networks(rank: int, processes: int, folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        train(name, rank, processes, folder / name)


@scenario
def equal_batches(rank: int, processes: int, folder: Path) -> None:
    networks(rank, processes, folder, ("mlp", "cnn", "tied", "encoder_layer", "decoder", "own_parameter", "lstm"))


@scenario
def equal_batches_of_four(rank: int, processes: int, folder: Path) -> None:
    networks(rank, processes, folder, ("mlp", "residual_relu"))


@scenario
def unequal_batches(rank: int, processes: int, folder: Path) -> None:
    train("mlp", rank, processes, folder / "unequal", unequal=True)


@scenario
def gauss_newton(rank: int, processes: int, folder: Path) -> None:
    train("regression", rank, processes, folder / "ggn", curvature="ggn")


@scenario
def accumulation_and_clipping(rank: int, processes: int, folder: Path) -> None:
    train("mlp", rank, processes, folder / "accumulated", micro=2, optimizer="adam")
    train("mlp", rank, processes, folder / "clipped", clip=True, inner=True, ddp={"gradient_as_bucket_view": True})


@scenario
def neutrality(rank: int, processes: int, folder: Path) -> list[list[float]]:
    models = [
        train("cnn", rank, processes, logdir, optimizer="adam", steps=6, schedule=2)[1]
        for logdir in (None, folder / "neutral")
    ]
    return [fingerprint(model) for model in models]


@scenario
def static_graph(rank: int, processes: int, folder: Path) -> None:
    train("mlp", rank, processes, folder / "static", ddp={"static_graph": True})


class OnlySome(nn.Module):
    """A branch that only samples with a positive first feature take: other ranks may not use it at all."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.stem(x))
        return self.head(h + torch.tanh(self.branch(h)) if bool(x[0, 0] > 0) else h)


@scenario
def parameters_that_one_rank_does_not_use(rank: int, processes: int, folder: Path) -> None:
    torch.manual_seed(0)
    model = OnlySome().double()
    wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()
    with cockpit_core.track(wrapped, loss_fn, optimizer, folder / "some", config="economy", on_error="raise"):
        x = torch.randn(SIZE, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        y = torch.arange(SIZE) % 3
        mine, labels = parts(x, rank, processes).clone(), parts(y, rank, processes)
        mine[0, 0] = 1.0 if rank == 0 else -1.0
        for _ in range(2):
            optimizer.zero_grad()
            loss_fn(wrapped(mine), labels).backward()
            optimizer.step()


@scenario
def wishes(rank: int, processes: int, folder: Path) -> dict[str, Any]:
    """A trigger on rank 1 and a stop on rank 0 reach everybody at the same step."""
    model, loss_fn, batches = problem_of("mlp").make()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(wrapped, loss_fn, optimizer, folder / "wishes", schedule=4, on_error="raise")
    stopped = None
    for step, (inputs, targets) in enumerate(batches(30)):
        if step == 1 and rank == 1:
            run.trigger("rank 1 wants it")
        if step == 10 and rank == 0:
            run.request_stop()
        optimizer.zero_grad()
        loss_fn(wrapped(parts(inputs, rank, processes)), parts(targets, rank, processes)).backward()
        optimizer.step()
        if run.should_stop:
            stopped = step
            break
    run.close()
    return {"stopped": stopped, "steps": run.data.scalars("Loss")[0].tolist(), "logdir": run.logdir.name}


@scenario
def budget(rank: int, processes: int, folder: Path) -> list[int]:
    run, _ = train("mlp", rank, processes, folder / "budget", steps=40, budget=0.02)
    assert run is not None
    dist.barrier()
    return run.data.scalars("Loss")[0].tolist()


@scenario
def join(rank: int, processes: int, folder: Path) -> int:
    """Inside ``join`` a rank may be done: nothing is measured, and nobody waits."""
    model, loss_fn, batches = problem_of("mlp").make()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = cockpit_core.track(wrapped, loss_fn, optimizer, folder / "join")
    with warnings.catch_warnings(record=True), tracked as run, wrapped.join():
        for inputs, targets in batches(2 + rank):
            optimizer.zero_grad()
            loss_fn(wrapped(inputs), targets).backward()
            optimizer.step()
    return run.step


@scenario
def different_arguments(rank: int, processes: int, folder: Path) -> str:
    return message_of(lambda: train("mlp", rank, processes, folder / "different", schedule=1 + rank))


@scenario
def directory_in_use(rank: int, processes: int, folder: Path) -> str:
    return message_of(lambda: train("mlp", rank, processes, folder / "mlp"))


@scenario
def one_rank_only(rank: int, processes: int, folder: Path) -> str:
    """Last of all: afterwards the ranks have called ``track`` a different number of times."""
    distributed.HANDSHAKE_SECONDS = 1.0
    wrapped = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    text = message_of(lambda: cockpit_core.track(wrapped, nn.MSELoss(), optimizer, folder / "one")) if rank == 0 else ""
    dist.barrier()
    return text


@scenario
def sharded(rank: int, processes: int, folder: Path) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (processes,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return message_of(lambda: cockpit_core.track(model, nn.MSELoss(), optimizer, folder / "sharded"))


@scenario
def unwrapped(rank: int, processes: int, folder: Path) -> str:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cockpit_core.track(model, nn.MSELoss(), optimizer, folder / f"unwrapped{rank}").close()
    return " ".join(str(w.message) for w in caught)


@scenario
def death(rank: int, processes: int, folder: Path) -> str:
    """Rank 1 is gone in the middle of step 3."""
    model, loss_fn, batches = problem_of("mlp").make()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(wrapped, loss_fn, optimizer, folder / "death", config="full")
    try:
        for step, (inputs, targets) in enumerate(batches(6)):
            optimizer.zero_grad()
            loss = loss_fn(wrapped(parts(inputs, rank, processes)), parts(targets, rank, processes))
            if step == 3 and rank == 1:
                os._exit(0)
            loss.backward()
            optimizer.step()
    except RuntimeError as error:
        return f"user: {error}"
    return f"survived to step {run.step}"


def message_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(rank: int, processes: int, folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=processes,
        timeout=timedelta(seconds=30),
    )
    for name in names:
        result = SCENARIOS[name](rank, processes, folder)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
    if "death" not in names:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
