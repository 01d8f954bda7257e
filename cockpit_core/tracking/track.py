"""The one line a user adds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cockpit_core.diagnosis.live import check_stop
from cockpit_core.distributed.group import Group
from cockpit_core.distributed.meeting import find_group
from cockpit_core.engine.compiled import find_compiled_wrappers, is_wrapper
from cockpit_core.engine.extensions import check_extensions
from cockpit_core.foundation.records import Finding
from cockpit_core.quantities import Quantity, configuration, everything, named
from cockpit_core.quantities.curvature_values import check_curvature
from cockpit_core.quantities.needs import NEEDS
from cockpit_core.schedules import Schedule, as_schedule, within
from cockpit_core.tracking import arguments
from cockpit_core.tracking.alive import refuse_second_run
from cockpit_core.tracking.run import Run
from cockpit_core.tracking.settings import Settings
from cockpit_core.tracking.tracker import Tracker
from cockpit_core.tracking.warming import warm_up

DEFAULT_BUDGET = 0.1
"""The share of the training time, where ``track`` is told neither what nor when to measure."""
DEFAULT_LOAN = 0.15
"""Seconds that such a run may take for early steps before they are earned: nobody notices them, and early steps show
most."""


def track(
    model: nn.Module,
    loss_fn: Any = None,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    logdir: str | Path | None = None,
    *,
    config: str | Iterable[Quantity] | None = None,
    schedule: int | Schedule | None = None,
    layers: str | Iterable[str] | None = None,
    curvature: str = "hessian",
    on_error: str = "warn",
    budget: float | None = None,
    batch_dim: int = 0,
    curvature_samples: int | None = None,
    memory_budget: int = 256 * 2**20,
    steps_per_epoch: float | None = None,
    keep_start: int = 64 * 2**20,
    resume: bool = False,
    step: int | None = None,
    seed: int = 0,
    on_finding: Callable[[Finding], object] | None = None,
    stop_on: str | None = None,
) -> Run:
    """Track an unchanged training loop.

    model, loss_fn, optimizer: as the loop uses them. ``loss_fn`` is an ``nn.Module``, or None if the loss is a function
        or the model returns it: ``track(model, optimizer=optimizer)``. In either case the loss is what ``backward`` is
        called on. docs/loops.md shows many loops, and what to write where the graph does not tell individual losses.
    logdir: where the run is written; ``runs/<time>`` by default. A directory that holds a run is never overwritten.
    config: "economy", "business", "full", or a list of quantities, measured at every step of the schedule. Without ``config``
        and ``schedule`` everything is measured within ``budget``, cheap quantities often and expensive ones rarely.
    schedule: an interval in steps, or ``cockpit_core.schedules.linear(...)`` / ``logarithmic(...)``. With a config, every
        step by default; alone, it tracks "economy".
    layers: glob patterns over parameter names; default all.
    curvature: "hessian", "ggn" or "ggn_mc".
    on_error: "warn" records an error inside Cockpit, and training goes on; "raise" is for tests.
    budget: 0.05 spends at most 5 % of the training time on what config and schedule ask for. The default is 0.1 if neither is
        given. Each quantity has its own pace, which follows from its measured cost; the header names what never fits.
    batch_dim: which dimension counts samples.
    curvature_samples: measure curvature on only that many samples of the batch, marked as an estimate.
    memory_budget: bytes that a tracked step may use, and as many again for what Alpha keeps until the optimizer has stepped.
        Where that is not enough, passes are repeated: for Alpha, and on parts of the batch for curvature. The header says
        so, and what could not be repeated. Copies of the parameters (Distance, UpdateSize) come on top.
    steps_per_epoch: gives the epoch axis (or log it: ``run.log(epoch=...)``).
    resume: continue the run in ``logdir``; ``step`` says at which step, by default after the last one recorded. A run that
        another process still writes is refused. See docs/resuming.md.
    keep_start: Distance is measured from the parameters at the beginning of the run. They are stored in ``logdir`` for a
        resumed run if they take at most this many bytes; 0 stores none, and a resumed run then has no Distance.
    seed: for Cockpit's own random generator; torch's is never touched.
    on_finding: called with each ``Finding`` (what is wrong, since when, what to try) when it is made, changed or retracted.
    stop_on: "broken" or "likely": a finding that is at least as bad sets ``run.should_stop``. By default none does.

    Under DistributedDataParallel (or after ``fully_shard``) call it in every process, with the wrapper or the module inside.
    Every number is then that of the global batch. The mean loss of each process counts equally, even if local batches differ
    in size, because that is how the gradient is reduced. Process 0 writes. ``schedule`` alone decides which steps are
    tracked: triggers, stops and the budget are agreed on at tracked steps and hold from the next step on.
    """
    if optimizer is None or isinstance(loss_fn, torch.optim.Optimizer):
        raise TypeError(
            "the order is track(model, loss_fn, optimizer); without a loss module: track(model, optimizer=...)"
        )
    arguments.check_model(model)
    arguments.check_loss(loss_fn)
    arguments.check_on_error(on_error)
    arguments.check_budget(budget)
    by_budget = config is None and schedule is None
    loan = DEFAULT_LOAN if by_budget and budget is None else 0.0
    budget = DEFAULT_BUDGET if by_budget and budget is None else budget
    quantities, name = (everything(), "everything") if by_budget else choose_quantities(config or "economy")
    if by_budget:
        schedule = within(float(budget or 0.0))
    whole, folder = arguments.check_whole, arguments.check_logdir(logdir)
    settings = Settings(
        quantities=quantities,
        config=name,
        schedule=as_schedule(1 if schedule is None else schedule),
        budget=budget,
        layers=arguments.check_layers(layers),
        curvature=check_curvature(curvature) or "hessian",
        curvature_samples=None if curvature_samples is None else whole("curvature_samples", curvature_samples, 1),
        batch_dim=whole("batch_dim", batch_dim, 0),
        memory_budget=arguments.check_bytes("memory_budget", memory_budget),
        on_error=on_error,
        keep_start=arguments.check_bytes("keep_start", keep_start),
        steps_per_epoch=arguments.check_steps_per_epoch(steps_per_epoch),
        resume=arguments.check_flag("resume", resume),
        step=arguments.check_step(step),
        seed=whole("seed", seed, -(2**63)),
        on_finding=check_callback(on_finding),
        stop_on=check_stop(stop_on),
        loan=loan,
    )
    optimizers = arguments.choose_optimizers(optimizer, model)
    model, group, compiled = unwrap(model)
    if by_budget and not group.paces_each:
        settings = replace(settings, quantities=configuration("economy"), config="economy")
    refuse_second_run(model)
    if settings.budget is not None:
        warm_up(open_for_warming)
    return Run(Tracker.open(model, loss_fn, optimizers, folder or make_logdir(), settings, group, compiled))


def open_for_warming(
    model: nn.Module, loss_fn: Any, optimizers: Sequence[torch.optim.Optimizer], folder: Path
) -> Tracker:
    settings = Settings(
        quantities=everything(), config="", schedule=as_schedule(1), budget=None, layers=None, curvature="hessian",
        curvature_samples=None, batch_dim=0, memory_budget=2**28, on_error="raise", steps_per_epoch=None, keep_start=0,
        resume=False, step=None, seed=0,
    )  # fmt: skip
    return Tracker.open(model, loss_fn, optimizers, folder, settings, Group())


def check_callback(on_finding: Any) -> Any:
    if on_finding is not None and not callable(on_finding):
        raise TypeError(f"on_finding must be a function that takes a Finding, got {type(on_finding).__name__}")
    return on_finding


def unwrap(model: nn.Module) -> tuple[nn.Module, Group, list[nn.Module]]:
    """The module whose parameters have the user's own names, the processes that train it, its compiled wrappers."""
    compiled, wrappers = find_compiled_wrappers(model), list[nn.Module]()
    while is_wrapper(model) or isinstance(model, DistributedDataParallel):
        if is_wrapper(model):
            compiled.append(model)
        else:
            wrappers.append(model)
        model = model._orig_mod if is_wrapper(model) else model.module  # type: ignore[assignment]
    group = find_group([*wrappers, model])
    left_out = group.describe_others()
    if left_out:
        warnings.warn(left_out, stacklevel=3)
    return model, group, compiled


def make_logdir() -> Path:
    """``runs/<time>``, with a number appended if there is one of that second already."""
    base = Path("runs") / time.strftime("%Y-%m-%d_%H-%M-%S")
    choices = [base, *(base.with_name(f"{base.name}_{k}") for k in range(1, 1000))]
    return next((choice for choice in choices if not choice.exists()), base)


def choose_quantities(config: str | Iterable[Quantity]) -> tuple[list[Quantity], str]:
    if isinstance(config, str):
        return configuration(config), config
    if not isinstance(config, Iterable):
        raise TypeError(f"config must be 'economy', 'business', 'full' or a list of quantities, got {config!r}")
    quantities: list[Quantity] = []
    for item in config:
        if isinstance(item, str):
            item = named(item)
        if isinstance(item, type) and issubclass(item, Quantity):
            item = item()
        if not isinstance(item, Quantity):
            raise TypeError(f"config takes quantities, got {item!r}; subclass cockpit_core.quantities.Quantity")
        unknown = {need for need in item.needs if isinstance(need, str)} - NEEDS.keys()
        if unknown:
            raise ValueError(
                f"{item.name}.needs names {', '.join(sorted(unknown))}; known are {', '.join(sorted(NEEDS))}"
            )
        quantities.append(item)
    check_extensions(quantities)
    names = [q.name for q in quantities]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"config names {', '.join(sorted(twice))} twice")
    if not quantities:
        raise ValueError("config is an empty list; choose 'economy', 'business', 'full' or some quantities")
    return quantities, "custom"
