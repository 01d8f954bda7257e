"""The parts of a new run, made from its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.diagnosis.live import Live
from cockpit_core.distributed.group import Group
from cockpit_core.distributed.log import open_log
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.engine import Engine
from cockpit_core.events.resume import Past
from cockpit_core.foundation.allocator import keep_freed_memory
from cockpit_core.foundation.faults import Faults
from cockpit_core.foundation.records import Record
from cockpit_core.recording.header import describe_quantity, make_header
from cockpit_core.recording.measure import Instruments
from cockpit_core.recording.network import describe_network
from cockpit_core.schedules import describe
from cockpit_core.signals.collector import Collector
from cockpit_core.signals.wiring import check_wiring, name_wiring
from cockpit_core.tracking.log import Log
from cockpit_core.tracking.pace import Pace
from cockpit_core.tracking.settings import Settings
from cockpit_core.tracking.start import StartUnknown, copy_parameters, load_start, save_start


def make_pace(settings: Settings, group: Group) -> Pace:
    return Pace(
        settings.quantities, settings.schedule,
        budget=settings.budget, loan=settings.loan, memory_budget=settings.memory_budget, group=group,
    )  # fmt: skip


def open_own_log(
    model: nn.Module,
    loss_fn: Any,
    optimizers: Sequence[torch.optim.Optimizer],
    logdir: Path,
    settings: Settings,
    cover: Cover,
    faults: Faults,
    pace: Pace,
    group: Group,
) -> Log:
    """The log, with the header as far as it is known before the first step."""
    writer, logdir = open_log(logdir, settings.resume, group, settings.describe(cover.selected))
    try:
        header = make_header(model, loss_fn, optimizers, logdir)
        header.config, header.schedule = settings.config, describe(settings.schedule)
        header.curvature, header.steps_per_epoch = settings.curvature, settings.steps_per_epoch or 0.0
        header.quantities = [describe_quantity(q, pace.schedule_of(q)) for q in settings.quantities]
        header.options = {"batch_dim": str(settings.batch_dim), "memory_budget": str(settings.memory_budget)}
        header.options["network"] = describe_network(model)
        if settings.budget is not None:
            header.options["budget"] = f"{settings.budget:g}"
        if settings.loan:
            header.options["lent for early steps"] = f"{settings.loan:g} s"
        header.options |= group.describe()
        live = Live(settings.on_finding, settings.stop_on, probes=not group.why_not("probe"))
        return Log(writer, logdir, header, live, faults, leads=group.rank == 0)
    except BaseException:
        writer.abandon()
        raise


def make_engine(
    cover: Cover, loss_fn: Any, settings: Settings, faults: Faults, group: Group, compiled: Sequence[nn.Module],
    *, noticed_loss: Callable[..., None], loss_scale: Callable[[], float], owned: Callable[[], set[int]],
) -> Engine:  # fmt: skip
    keep_freed_memory()
    own_seed = settings.seed + group.rank  # probes of different processes are independent
    return Engine(
        cover, loss_fn, batch_dim=settings.batch_dim, memory_budget=settings.memory_budget, guard=faults.guard,
        group=group, compiled=compiled, curvature=settings.curvature, curvature_samples=settings.curvature_samples,
        seed=own_seed, noticed_loss=noticed_loss, loss_scale=loss_scale, owned=owned,
    )  # fmt: skip


def make_signals(model: nn.Module, loss_fn: Any, engine: Engine, on_error: str) -> Collector:
    return Collector(model, loss_fn, engine.cover.names, engine.awaits_backward, on_error == "raise")


def make_instruments(
    engine: Engine,
    optimizers: Sequence[torch.optim.Optimizer],
    loss_fn: Any,
    faults: Faults,
    note_uncovered: Callable[[str, str], None],
    is_new: bool,
) -> Instruments:
    """``is_new``: the run begins now, so whatever is not trained yet is where it began."""
    still = [(n, p) for n, p in engine.cover.parameters.items() if not p.requires_grad and not p.is_inference()]
    frozen = {n: p._version for n, p in still} if is_new else {}
    return Instruments(engine, optimizers, loss_fn, faults.guard, faults.warn, note_uncovered, frozen=frozen)


def find_start(past: Past | None, step: int, cover: Cover, log: Log, limit: int) -> tuple[dict[str, Tensor], str]:
    """theta_0, or why it is not known. A run that goes back to step 0 begins there."""
    trainable, header = cover.trainable(), log.header
    owner = past.header.run_id if past is not None and past.header else ""
    if past is not None and step > 0:
        try:
            if cover.sharded:
                raise StartUnknown("the parameters at the beginning of a sharded run are not kept")
            return load_start(log.logdir, owner, trainable), ""
        except StartUnknown as reason:
            return {}, str(reason)
    start = copy_parameters(trainable)
    if cover.sharded:
        header.options["start kept"] = "no: the parameters are sharded"
    elif log.leads:
        header.options["start kept"] = save_start(log.logdir, owner or header.run_id, start, limit)
    return start, ""


def make_first_record(
    model: nn.Module, loss_fn: Any, optimizers: Sequence[torch.optim.Optimizer], step: int, log: Log, faults: Faults
) -> Record:
    """The collector of signals, with what model, loss and optimizers show by themselves; their names go into the
    header."""
    start = Record("start", step, time.time(), log.elapsed)
    with faults.guard("static checks"):
        log.header.options |= name_wiring(model, list(optimizers))
        wiring = check_wiring(model, loss_fn, list(optimizers))
        start.scalars = {f"signal/{name}": value for name, value in wiring.items()}
    return start
