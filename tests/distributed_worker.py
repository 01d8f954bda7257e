"""One process of several: runs the scenarios of ``tests/core/distributed/test_processes.py`` and others one after the other.

``python -m tests.distributed_worker <processes> <folder> <scenario>...``; what a scenario returns is written to
``<folder>/<scenario>.<rank>.json``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import cockpit_core
from tests.core.engine.test_broadcast import PROBLEMS as WITH_POSITIONS
from tests.networks import NETWORKS
from tests.problems import PROBLEMS, Problem
from tests.processes import KILLED
from tests.training import OPTIMIZERS, QUANTITIES, linear, quantities, with_config

SCENARIOS: dict[str, Callable[[int, int, Path], Any]] = {}
SIZE = 8  # of the joined batch
STEPS = 3
UNEQUAL = {2: (3, 5), 4: (1, 2, 2, 3)}
TRUTH = {2: ("cnn", "momentum", [3, 3]), 4: ("residual_tanh", "adam", [2, 2, 2, 1])}
NEUTRAL = ("cnn", "decoder", "resnet", "dropout", "lstm")


def scenario(function: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


def problem_of(name: str) -> Problem:
    return replace({**NETWORKS, **PROBLEMS, "broadcast": WITH_POSITIONS["vit"]}[name], batch_size=SIZE)


def share(tensor: Tensor, rank: int, processes: int, unequal: bool = False) -> Tensor:
    sizes = UNEQUAL[processes] if unequal else (SIZE // processes,) * processes
    return tensor.split(sizes)[rank]


def fingerprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Every bit of the training: parameters, buffers, gradients, the optimizer's state, the random state."""
    found = dict(model.state_dict())
    found |= {f"grad {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    for i, entry in enumerate(optimizer.state.values()):
        found |= {f"optimizer {i} {key}": torch.as_tensor(value) for key, value in entry.items()}
    found["random state"] = torch.get_rng_state()
    local = {name: t.to_local() if isinstance(t, DTensor) else t for name, t in found.items()}
    return {name: hashlib.sha256(t.detach().contiguous().numpy().tobytes()).hexdigest() for name, t in local.items()}


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def train(
    name: str, rank: int, processes: int, logdir: Path | None, *, steps: int = 3, optimizer: str = "momentum",
    unequal: bool = False, micro: int = 1, clip: bool = False, inner: bool = False, ddp: dict | None = None,
    change: Callable[[nn.Module], nn.Module] = lambda model: model, **options: Any,
) -> tuple[cockpit_core.Run | None, nn.Module, torch.optim.Optimizer]:  # fmt: skip
    """The textbook loop under DistributedDataParallel, on this rank's part of each batch."""
    problem = problem_of(name)
    model, loss_fn, batches = problem.make()
    model = change(model)
    wrapped = DistributedDataParallel(model, **(ddp or {}))
    optim = OPTIMIZERS[optimizer](problem.groups(model))
    options = {"config": quantities(*QUANTITIES), "on_error": "raise", **options}
    run = (
        cockpit_core.track(model if inner else wrapped, loss_fn, optim, logdir, **with_config(options))
        if logdir
        else None
    )
    for inputs, targets in batches(steps):
        x, y = share(inputs, rank, processes, unequal), share(targets, rank, processes, unequal)
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
    return run, model, optim


def networks(rank: int, processes: int, folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        train(name, rank, processes, folder / name)


@scenario
def equal_batches(rank: int, processes: int, folder: Path) -> None:
    names = ("mlp", "cnn", "tied", "encoder_layer", "decoder", "own_parameter", "lstm", "broadcast")
    networks(rank, processes, folder, names)


@scenario
def equal_batches_of_four(rank: int, processes: int, folder: Path) -> None:
    networks(rank, processes, folder, ("mlp", "residual_relu"))


@scenario
def unequal_batches(rank: int, processes: int, folder: Path) -> None:
    train("mlp", rank, processes, folder / "unequal", unequal=True)


@scenario
def truth(rank: int, processes: int, folder: Path) -> None:
    """Checked against the slow truth rather than against one process: the sizes are those of ``TRUTH``."""
    name, optimizer, sizes = TRUTH[processes]
    model, loss_fn, batches = PROBLEMS[name].make()
    wrapped = DistributedDataParallel(model)
    optim = OPTIMIZERS[optimizer](list(wrapped.parameters()))
    with cockpit_core.track(wrapped, loss_fn, optim, folder / "truth", config=linear("full"), on_error="raise"):
        for inputs, targets in batches(3):
            optim.zero_grad()
            loss_fn(wrapped(inputs.split(sizes)[rank]), targets.split(sizes)[rank]).backward()
            optim.step()


@scenario
def gauss_newton(rank: int, processes: int, folder: Path) -> None:
    train("regression", rank, processes, folder / "ggn", curvature="ggn")


@scenario
def accumulation_and_clipping(rank: int, processes: int, folder: Path) -> None:
    train("mlp", rank, processes, folder / "accumulated", micro=2, optimizer="adam")
    train("mlp", rank, processes, folder / "clipped", clip=True, inner=True, ddp={"gradient_as_bucket_view": True})


@scenario
def neutrality(rank: int, processes: int, folder: Path) -> dict[str, list[dict[str, str]]]:
    results = {}
    for name in NEUTRAL:
        results[name] = []
        for logdir in (None, folder / f"neutral {name}"):
            torch.manual_seed(rank)
            _, model, optimizer = train(name, rank, processes, logdir, optimizer="adam", steps=4, schedule=2)
            results[name].append(fingerprint(model, optimizer))
    return results


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
        mine, labels = share(x, rank, processes).clone(), share(y, rank, processes)
        mine[0, 0] = 1.0 if rank == 0 else -1.0
        for _ in range(2):
            optimizer.zero_grad()
            loss_fn(wrapped(mine), labels).backward()
            optimizer.step()


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
        start = time.monotonic()
        result = SCENARIOS[name](rank, processes, folder)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
        (folder / f"{name}.{rank}.json").write_text(json.dumps(result))
    if "death" not in names:
        dist.destroy_process_group()


OTHERS = ("tests.sharded_scenarios", "tests.fault_scenarios", "tests.sync_scenarios", "tests.library_scenarios")
OTHERS += ("tests.instrument_scenarios", "tests.agreement_scenarios")
LATE = ("torch._dynamo", "scipy.linalg", "cockpit_core.kernels.fused", "cockpit_core.kernels.loops")
OF_SCENARIO = {
    "lightning": ("tests.core.integrations.test_integrations", "lightning.pytorch"),
    "huggingface": ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
}


def fork(processes: int, folder: Path, names: list[str]) -> int:
    """One child per rank; 1 if one of them failed, ``KILLED`` if the system ended one. Nothing has run here yet that a fork
    could break."""
    for module in OTHERS:
        importlib.import_module(module)
    for late in (*LATE, *(module for name in names for module in OF_SCENARIO.get(name, ()))):
        with contextlib.suppress(ImportError):
            importlib.import_module(late)  # once for all ranks, rather than by each of them at its first step
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
            faulthandler.enable()  # where each thread was, should the system end this process
            try:
                main(rank, processes, folder, names)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return KILLED if min(codes) < 0 else int(any(codes))


if __name__ == "__main__":
    from tests import distributed_worker  # under its own name, as the other scenarios import it

    sys.exit(distributed_worker.fork(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
