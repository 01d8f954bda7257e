"""One process of several: runs the scenarios of ``tests/core/test_processes.py`` and others one after the other.

``python -m tests.distributed_worker <processes> <folder> <scenario>...``; what a scenario returns is written to
``<folder>/<scenario>.<rank>.json``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import cockpit_core
from cockpit_core.curvature import HessianOperator
from cockpit_core.engine import curvature, distributed
from cockpit_core.engine.curvature import Curvature
from cockpit_core.engine.engine import Engine
from cockpit_core.layers import registry
from cockpit_core.quantities import NormTest
from tests.core.test_broadcast import PROBLEMS as WITH_POSITIONS
from tests.networks import NETWORKS
from tests.problems import PROBLEMS, Problem
from tests.training import OPTIMIZERS, QUANTITIES, quantities

SCENARIOS: dict[str, Callable[[int, int, Path], Any]] = {}
SIZE = 8  # of the joined batch
STEPS = 3
UNEQUAL = {2: (3, 5), 4: (1, 2, 2, 3)}
TRUTH = {2: ("cnn", "momentum", [3, 3]), 4: ("residual_tanh", "adam", [2, 2, 2, 1])}
SHARDED_NEUTRAL = ("cnn", "encoder_layer", "resnet")
SHARDED = ("mlp", "cnn", "tied", "encoder_layer", "decoder", "prelu", "lstm", "resnet")
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
    run = cockpit_core.track(model if inner else wrapped, loss_fn, optim, logdir, **options) if logdir else None
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
    with cockpit_core.track(wrapped, loss_fn, optim, folder / "truth", config="full", on_error="raise"):
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
    wrapped = DistributedDataParallel(nn.Linear(4, 3))
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    text = ""
    if rank == 0:
        with replaced(distributed, "HANDSHAKE_SECONDS", 1.0):
            text = message_of(lambda: cockpit_core.track(wrapped, nn.MSELoss(), optimizer, folder / "one"))
    else:
        next(distributed._calls)  # the ranks have called ``track`` equally often again
    dist.barrier()
    return text


# ---- parameters split over the processes -----------------------------------------------------------------------------


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
    run = cockpit_core.track(model, loss_fn, optim, logdir, **options) if logdir else None
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
            loss = loss_fn(wrapped(share(inputs, rank, processes)), share(targets, rank, processes))
            if step == 3 and rank == 1:
                os._exit(0)
            loss.backward()
            optimizer.step()
    except RuntimeError as error:
        return f"user: {error}"
    return f"survived to step {run.step}"


# ---- errors on one process only --------------------------------------------------------------------------------------


class Odd(Exception):
    """Nothing that anybody expects."""


def failing(rank: int, where: int, original: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """The function itself, which raises on one rank from its ``after``-th call on."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if rank == where and calls > after:
            raise Odd("only here")
        return original(*args, **kwargs)

    return call


FAULTS: dict[str, Callable[[int], tuple[Any, str, Any]]] = {
    "point": lambda rank: (Curvature, "_point", failing(rank, 1, Curvature._point)),
    "losses": lambda rank: (Engine, "_take_losses", failing(rank, 1, Engine._take_losses)),
    "operator": lambda rank: (curvature, "HessianOperator", failing(rank, 1, HessianOperator)),
    "product of rank 1": lambda rank: (HessianOperator, "matvec", failing(rank, 1, HessianOperator.matvec, 2)),
    "product of rank 0": lambda rank: (HessianOperator, "matvec", failing(rank, 0, HessianOperator.matvec, 2)),
    "quantity": lambda rank: (NormTest, "measure", failing(rank, 1, NormTest.measure)),
    "rule": lambda rank: (
        registry,
        "RULES",
        {**registry.RULES, nn.Linear: failing(rank, 1, registry.RULES[nn.Linear])},
    ),
}


@scenario
def faults(rank: int, processes: int, folder: Path) -> dict[str, dict[str, Any]]:
    results = {}
    for name, make in FAULTS.items():
        start = time.monotonic()
        with replaced(*make(rank)):
            run, *_ = train("mlp", rank, processes, folder / f"fault {name}", config="full", on_error="warn")
        assert run is not None and run.group is not None
        results[name] = {"seconds": time.monotonic() - start, "broken": run.group.broken}
    return results


@scenario
def silence(rank: int, processes: int, folder: Path) -> dict[str, Any]:
    """Rank 1 does not answer, for a reason that nobody has foreseen."""
    measure = Curvature.measure if rank == 0 else lambda *args: None
    with replaced(distributed, "ANSWER_SECONDS", 2.0), replaced(Curvature, "measure", measure):
        run, *_ = train("mlp", rank, processes, folder / "silence", config="full", on_error="warn")
    assert run is not None and run.group is not None
    return {"broken": run.group.broken, "step": run.step}


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------


def others(x: Tensor) -> tuple[int, ...]:
    return tuple(dim for dim in range(x.dim()) if dim != 1)


def spread(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *(1,) * (like.dim() - 2))


def stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.mean(others(x)), (x.var(others(x), correction=0) + eps).rsqrt()


def gather_stats(x, means, inverses, running_mean, running_var, momentum, eps, counts):
    shares = (counts / counts.sum())[:, None]
    mean = (shares * means).sum(0)
    var = (shares * (inverses**-2 - eps + means**2)).sum(0) - mean**2
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * counts.sum() / (counts.sum() - 1), momentum)
    return mean, (var + eps).rsqrt()


def elements(x, weight, bias, mean, inverse, eps):
    return (x - spread(mean, x)) * spread(inverse * weight, x) + spread(bias, x)


def backward_sums(dy, x, mean, inverse, weight, *wanted):
    total, product = dy.sum(others(x)), (dy * (x - spread(mean, x))).sum(others(x))
    return total, product, product * inverse, total.clone()


def backward_elements(dy, x, mean, inverse, weight, total, product, counts):
    n = counts.sum()
    rest = spread(total / n, x) + (x - spread(mean, x)) * spread(inverse**2 * product / n, x)
    return (dy - rest) * spread(inverse * weight, x)


@contextmanager
def sync_batch_norm_on_the_cpu() -> Iterator[None]:
    """The module as it is; only its five kernels, which exist for GPUs alone, are replaced by plain ones."""
    with ExitStack() as stack:
        for name, kernel in (
            ("batch_norm_stats", stats),
            ("batch_norm_gather_stats_with_counts", gather_stats),
            ("batch_norm_elemt", elements),
            ("batch_norm_backward_reduce", backward_sums),
            ("batch_norm_backward_elemt", backward_elements),
        ):
            stack.enter_context(replaced(torch, name, kernel))
        stack.enter_context(replaced(torch._C, "_get_privateuse1_backend_name", lambda: "cpu"))
        stack.enter_context(
            replaced(DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda self, module: None)
        )
        yield


@scenario
def sync_batch_norm(rank: int, processes: int, folder: Path) -> dict[str, list[dict[str, str]]]:
    """Measured, and in the same run neutral."""
    prints = []
    convert = nn.SyncBatchNorm.convert_sync_batchnorm
    with sync_batch_norm_on_the_cpu():
        for logdir in (None, folder / "sync"):
            _, model, optimizer = train("batchnorm", rank, processes, logdir, change=convert)
            prints.append(fingerprint(model, optimizer))
        train("batchnorm", rank, processes, folder / "sync eval", change=lambda m: convert(m).eval())
    return {"batchnorm": prints}


# ---- training libraries ----------------------------------------------------------------------------------------------


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
    from tests.core import test_integrations as libraries

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
    from tests.core import test_integrations as libraries

    with as_torchrun_sets_it(rank, processes):
        from cockpit_core.integrations.huggingface import CockpitCallback

        ours = CockpitCallback(folder / "huggingface", individual_losses=libraries.gpt2_losses, on_error="raise")
        return libraries.train_with_trainer(folder, [ours], ddp_backend="gloo").args.world_size


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


LATE = ("torch._dynamo", "scipy.linalg", "cockpit_core.kernels.fused", "cockpit_core.kernels.loops")
OF_SCENARIO = {
    "lightning": ("tests.core.test_integrations", "lightning.pytorch"),
    "huggingface": ("transformers.trainer", "transformers.models.gpt2.modeling_gpt2"),
}


def fork(processes: int, folder: Path, names: list[str]) -> int:
    """One child per rank; how many of them failed. Nothing has run here yet that a fork could break."""
    for late in (*LATE, *(module for name in names for module in OF_SCENARIO.get(name, ()))):
        with contextlib.suppress(ImportError):
            importlib.import_module(late)  # once for all ranks, rather than by each of them at its first step
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            code = 1
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
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


if __name__ == "__main__":
    sys.exit(fork(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
