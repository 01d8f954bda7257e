"""The one line a user adds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cockpit_core.diagnosis.live import check_stop
from cockpit_core.engine.compiled import find_compiled_wrappers, is_wrapper
from cockpit_core.engine.distributed import Group, find_group
from cockpit_core.quantities import Quantity, configuration, named
from cockpit_core.quantities.base import NEEDS
from cockpit_core.quantities.curvature_values import check_curvature
from cockpit_core.records import Finding
from cockpit_core.run import ALIVE, Run
from cockpit_core.schedules import Schedule, as_schedule


def track(
    model: nn.Module,
    loss_fn: Any,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    logdir: str | Path | None = None,
    *,
    config: str | Iterable[Quantity] = "economy",
    schedule: int | Schedule = 1,
    layers: str | Iterable[str] | None = None,
    curvature: str = "hessian",
    on_error: str = "warn",
    budget: float | None = None,
    batch_dim: int = 0,
    curvature_samples: int | None = None,
    memory_budget: int = 256 * 2**20,
    steps_per_epoch: float | None = None,
    resume: bool = False,
    step: int | None = None,
    seed: int = 0,
    on_finding: Callable[[Finding], object] | None = None,
    stop_on: str | None = None,
) -> Run:
    """Track an unchanged training loop.

    model, loss_fn, optimizer: as the loop uses them. ``loss_fn`` is an ``nn.Module``; for any other loss pass None and
        call ``run.backward(loss, individual_losses=...)`` in place of ``loss.backward()``.
    logdir: where the run is written; ``runs/<time>`` by default. A directory that holds a run is never overwritten.
    config: "economy", "business", "full", or a list of quantities.
    schedule: an interval in steps, or ``cockpit_core.schedules.linear(...)`` / ``logarithmic(...)``.
    layers: glob patterns over parameter names; default all.
    curvature: "hessian", "ggn" or "ggn_mc".
    on_error: "warn" records an error of ours and lets training go on; "raise" is for tests.
    budget: 0.05 spends at most 5 % of the training time: tracked steps of the schedule are left out when it is used up.
    batch_dim: which dimension counts samples.
    curvature_samples: measure curvature on that many samples of the batch only, marked as an estimate.
    memory_budget: bytes that a tracked step may work with, and as many for what Alpha keeps of a step until the optimizer
        has taken it. Beyond them passes are repeated: for Alpha, and on parts of the batch for curvature; the header
        says so, and what could not be repeated. Copies of the parameters (Distance, UpdateSize) come on top.
    steps_per_epoch: gives the epoch axis (or log it: ``run.log(epoch=...)``).
    resume: continue the run in ``logdir``; ``step`` says at which step, by default after the last one recorded.
    seed: of Cockpit's own random generator; torch's is never touched.
    on_finding: called with each ``Finding`` (what is wrong, since when, what to try) when it is made, changed or retracted.
    stop_on: "broken" or "likely": a finding at least as bad sets ``run.should_stop``; by default none does.

    Under DistributedDataParallel (or after ``fully_shard``) call it in every process, with the wrapper or the module inside. Every
    number is then that of the global batch, with each process's mean loss counting alike, also where local batches differ
    in size (as the gradient is reduced). Process 0 writes; ``schedule`` alone decides which steps are tracked: triggers,
    stops and the budget are agreed upon at tracked steps and hold from the next step on.
    """
    optimizers = as_optimizers(optimizer)
    optimizers = [unwrap_optimizer(each) for each in optimizers]
    check_arguments(model, loss_fn, optimizers, on_error, budget)
    quantities, name = choose_quantities(config)
    model, group, compiled = unwrap(model)
    return _start(
        model, loss_fn, optimizers, Path(logdir) if logdir is not None else make_logdir(),
        quantities=quantities, config=name, schedule=as_schedule(schedule), budget=budget, layers=layers,
        curvature=check_curvature(curvature) or "hessian", curvature_samples=curvature_samples, batch_dim=batch_dim,
        memory_budget=int(memory_budget), on_error=on_error, steps_per_epoch=steps_per_epoch, resume=resume, step=step, seed=seed,
        group=group, compiled=compiled, on_finding=check_callback(on_finding), stop_on=check_stop(stop_on),
    )  # fmt: skip


def check_callback(on_finding: Any) -> Any:
    if on_finding is not None and not callable(on_finding):
        raise TypeError(f"on_finding must be a function that takes a Finding, got {type(on_finding).__name__}")
    return on_finding


def as_optimizers(optimizer: Any) -> list[Any]:
    if isinstance(optimizer, Sequence):
        return list(optimizer)
    if isinstance(optimizer, nn.Module):
        raise TypeError(
            f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}; "
            "the order is track(model, loss_fn, optimizer)"
        )
    return [optimizer]


def unwrap(model: nn.Module) -> tuple[nn.Module, Group | None, list[nn.Module]]:
    """The module whose parameters have the user's own names, the processes that train it, its compiled wrappers."""
    compiled, group = find_compiled_wrappers(model), None
    while is_wrapper(model) or isinstance(model, DistributedDataParallel):
        if is_wrapper(model):
            compiled.append(model)
        else:
            group = find_group(model)
        model = model._orig_mod if is_wrapper(model) else model.module  # type: ignore[assignment]
    group = group or find_group(model)
    if group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"torch.distributed runs with {dist.get_world_size()} processes, but no DistributedDataParallel wraps this model: "
            "the numbers are those of this process alone. Wrap (or fully_shard) the model first, then call track(...) on it.",
            stacklevel=3,
        )
    return model, group, compiled


def unwrap_optimizer(optimizer: Any) -> Any:
    """Accelerate and others hand out a wrapper that passes ``step`` on; hooks belong on the optimizer itself."""
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def _start(model: nn.Module, *args: Any, **options: Any) -> Run:
    for other in list(ALIVE):
        if not other.closed and other.model is model:
            raise RuntimeError(
                f"this model is being tracked already, into {other.logdir}; call close() on that run first"
            )
    run = Run(model, *args, **options)
    ALIVE.add(run)
    return run


def make_logdir() -> Path:
    """``runs/<time>``, with a number behind it if there is one of that second already."""
    base = Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S")
    choices = [base, *(base.with_name(f"{base.name}_{k}") for k in range(1, 1000))]
    return next((choice for choice in choices if not choice.exists()), base)


def check_arguments(model: Any, loss_fn: Any, optimizers: list[Any], on_error: str, budget: float | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if loss_fn is not None and not isinstance(loss_fn, nn.Module) and not callable(loss_fn):
        raise TypeError(f"loss_fn must be an nn.Module, a function, or None, got {type(loss_fn).__name__}")
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    if not optimizers:
        raise ValueError("optimizer is an empty list")
    if on_error not in ("warn", "raise"):
        raise ValueError(f"on_error must be 'warn' or 'raise', got {on_error!r}")
    if budget is not None and not 0 < budget <= 1:
        raise ValueError(f"budget is a share of the training time between 0 and 1, got {budget!r}")
    lazy = [name for name, p in model.named_parameters() if isinstance(p, torch.nn.parameter.UninitializedParameter)]
    if lazy:
        raise ValueError(
            f"{lazy[0]} is not initialised yet (a lazy module): run one batch through the model, then track it"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError("no parameter of the model requires a gradient; there is nothing to track")
    mine = {id(p) for p in model.parameters()}
    if not any(id(p) in mine for o in optimizers for group in o.param_groups for p in group["params"]):
        raise ValueError("the optimizer holds no parameter of this model")


def choose_quantities(config: str | Iterable[Quantity]) -> tuple[list[Quantity], str]:
    if isinstance(config, str):
        return configuration(config), config
    if not isinstance(config, Iterable):
        raise TypeError(f"config must be 'economy', 'business', 'full' or a list of quantities, got {config!r}")
    quantities = []
    for item in config:
        if isinstance(item, str):
            item = named(item)
        if isinstance(item, type) and issubclass(item, Quantity):
            item = item()
        if not isinstance(item, Quantity):
            raise TypeError(f"config takes quantities, got {item!r}; subclass cockpit_core.quantities.Quantity")
        unknown = set(item.needs) - NEEDS
        if unknown:
            raise ValueError(
                f"{item.name}.needs names {', '.join(sorted(unknown))}; known are {', '.join(sorted(NEEDS))}"
            )
        quantities.append(item)
    names = [q.name for q in quantities]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"config names {', '.join(sorted(twice))} twice")
    if not quantities:
        raise ValueError("config is an empty list; choose 'economy', 'business', 'full' or some quantities")
    return quantities, "custom"
