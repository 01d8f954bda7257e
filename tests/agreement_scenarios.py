"""What processes agree upon, and what happens where they do not: wishes, budgets, arguments, a process that is gone."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import cockpit_core
from cockpit_core.distributed import meeting
from tests.distributed_worker import message_of, problem_of, replaced, scenario, share, train


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
        loss_fn(wrapped(share(inputs, rank, processes)), share(targets, rank, processes)).backward()
        optimizer.step()
        if run.should_stop:
            stopped = step
            break
    run.close()
    return {"stopped": stopped, "steps": run.data.scalars("Loss")[0].tolist(), "logdir": run.logdir.name}


@scenario
def budget(rank: int, processes: int, folder: Path) -> list[int]:
    run, *_ = train("mlp", rank, processes, folder / "budget", steps=40, budget=0.02)
    assert run is not None
    dist.barrier()
    return run.data.scalars("Loss")[0].tolist()


@scenario
def join(rank: int, processes: int, folder: Path) -> int:
    """Inside ``join`` a rank may be done: nothing is measured, and nobody waits."""
    model, loss_fn, batches = problem_of("mlp").make()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracked = cockpit_core.track(wrapped, loss_fn, optimizer, folder / "join", config="economy")
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
    wrapped = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    text = ""
    if rank == 0:
        with replaced(meeting, "HANDSHAKE_SECONDS", 1.0):
            text = message_of(
                lambda: cockpit_core.track(wrapped, nn.MSELoss(), optimizer, folder / "one", config="economy")
            )
    else:
        next(meeting._calls)  # the ranks have called ``track`` equally often again
    dist.barrier()
    return text


@scenario
def unwrapped(rank: int, processes: int, folder: Path) -> str:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cockpit_core.track(model, nn.MSELoss(), optimizer, folder / f"unwrapped{rank}", config="economy").close()
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
            loss = loss_fn(wrapped(share(inputs, rank, processes)), share(targets, rank, processes))
            if step == 3 and rank == 1:
                os._exit(0)
            loss.backward()
            optimizer.step()
    except RuntimeError as error:
        return f"user: {error}"
    return f"survived to step {run.step}"
