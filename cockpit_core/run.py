"""A tracked run: decides when to measure, turns statistics into records, and writes them."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.ending import Ending
from cockpit_core.engine.alpha import Pending
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.curvature import Curvature
from cockpit_core.engine.distributed import Group, open_log
from cockpit_core.engine.engine import Engine
from cockpit_core.engine.hooks import Handles, Hook
from cockpit_core.engine.measure import HEADLINES, Measurement
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.scaler import find_scaler
from cockpit_core.engine.spikes import Spikes
from cockpit_core.engine.together import Wish, agree, rest_until
from cockpit_core.events.data import RunData
from cockpit_core.header import describe_quantity, make_header
from cockpit_core.quantities import Quantity
from cockpit_core.records import AlphaFit, Notice, Record
from cockpit_core.schedules import Schedule, as_schedule, describe


class Run:
    """Made by ``cockpit_core.track``; the documentation of its options is there."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        optimizers: Sequence[torch.optim.Optimizer],
        logdir: Path,
        *,
        quantities: list[Quantity],
        config: str,
        schedule: Schedule,
        budget: float | None,
        layers: Any,
        curvature: str,
        curvature_samples: int | None,
        batch_dim: int,
        memory_budget: int,
        on_error: str,
        steps_per_epoch: float | None,
        resume: bool,
        step: int | None,
        seed: int,
        group: Group | None = None,
        compiled: Sequence[nn.Module] = (),
    ):
        self.cover = Cover(model, layers)
        self.model, self.loss_fn, self.optimizers, self.logdir = model, loss_fn, list(optimizers), logdir
        self.quantities, self.schedule, self.budget = quantities, schedule, budget
        self.own_schedules = {q.name: as_schedule(q.schedule) for q in quantities if q.schedule is not None}
        self.schedules = {q.name: as_schedule(q.schedule) if q.schedule is not None else schedule for q in quantities}
        self.on_error, self.steps_per_epoch, self.memory_budget = on_error, steps_per_epoch, memory_budget
        self.group = group
        told = ([q.name for q in quantities], describe(schedule), curvature, sorted(self.cover.selected))
        settings = f"{config}, {told}"
        self.writer, self.logdir = open_log(logdir, resume, group, settings)
        past = self.writer.past
        self.step = step if step is not None else past.last_step + 1 if past else 0
        self.began = time.monotonic() - (past.last_time if past else 0.0)
        self.start = (
            {name: p.detach().clone() for name, p in self.cover.trainable().items()} if self._asks("start") else {}
        )
        own_seed = seed + (group.rank if group else 0)  # probes of different processes are independent
        self.engine = Engine(
            self.cover, loss_fn, batch_dim=batch_dim, memory_budget=memory_budget, guard=self.guard,
            curvature=Curvature(curvature, samples=curvature_samples, memory_budget=memory_budget, seed=own_seed),
        )  # fmt: skip
        self.engine.group = self.engine.curvature.group = group
        self.engine.compiled = list(compiled)
        self.header = make_header(model, loss_fn, self.optimizers, self.logdir)
        self.header.config, self.header.schedule, self.header.curvature = config, describe(schedule), curvature
        self.header.quantities = [describe_quantity(q, self.schedules[q.name]) for q in quantities]
        self.header.steps_per_epoch = steps_per_epoch or 0.0
        self.header.options = {"batch_dim": str(batch_dim), "memory_budget": str(memory_budget)}
        if group is not None:
            self.header.options["processes"] = str(group.size)
        self._set_initial_state()
        self._attach()

    def _set_initial_state(self) -> None:
        self.closed = False
        self.should_stop = False
        self.status = "waiting"
        self.epoch: float | None = None
        self.wants_trigger = ""
        self.wish = Wish("", False, 0.0, 0.0)  # what this process would like the others to agree to
        self.rests_until = 0
        self.loss_seen = False
        self.spikes = Spikes()
        self.pending: Pending | None = None
        self.alphas: list[AlphaFit] = []
        self.notices: list[Notice] = []
        self.warned: set[str] = set()
        self.backward_passes = 0
        self.tracking_seconds = 0.0
        self.step_began = time.perf_counter()
        self.subscribers: list[Callable[[], None]] = []
        self.subscriber_errors = 0
        self.latest: dict[str, float] = {}  # headline scalars of the last record, for other loggers
        self.single = len(self.optimizers) == 1
        self.stepped: set[int] = set()
        self.scaler: Any = None
        self.without_gradient: set[str] = set()
        self.header_shown = ""
        self._data: RunData | None = None

    def _asks(self, need: str) -> bool:
        return any(need in quantity.needs for quantity in self.quantities)

    def _attach(self) -> None:
        """Two light hooks for the whole run: on the loss and on the optimizer."""
        self.handles = Handles()
        if isinstance(self.loss_fn, nn.Module):
            self.handles.add(self.loss_fn.register_forward_hook(Hook(self.engine, "on_loss"), with_kwargs=True))
        for optimizer in self.optimizers:
            self.handles.add(optimizer.register_step_pre_hook(Hook(self, "before_step")))
            self.handles.add(optimizer.register_step_post_hook(Hook(self, "after_step", keeps=True)))
        self.engine.noticed_loss = Hook(self, "notice_loss")
        self.engine.loss_scale = Hook(self, "_loss_scale")
        self.engine.passes_by = self.passes_by
        self.ending = Ending(self)
        self.write_header()
        self.writer.write_record(Record("start", self.step, time.time(), self.elapsed))
        self.engine.begin(self.make_plan())

    # ---- when ---------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def make_plan(self) -> Plan:
        """What to measure at the coming step."""
        if self.group is not None and (self.group.broken or (self.step < self.rests_until and not self.wants_trigger)):
            return Plan(
                [], False, False, self.pending is not None and not self.group.broken, memory_budget=self.memory_budget
            )
        triggered = bool(self.wants_trigger)
        if triggered:
            due = list(self.quantities)
        elif (
            self.budget is not None
            and self.group is None
            and self.tracking_seconds > self.budget * (self.elapsed + 1e-9)
            and self.step > 0
        ):
            due = []
        else:
            shared = self.schedule(self.step)
            due = [
                q
                for q in self.quantities
                if (self.own_schedules[q.name](self.step) if q.name in self.own_schedules else shared)
            ]
        alpha = any("alpha" in q.needs for q in due)
        return Plan(due, bool(due), alpha, self.pending is not None, triggered, memory_budget=self.memory_budget)

    def trigger(self, reason: str = "run.trigger()") -> None:
        """Track the next step in full, whatever the schedule; if this step's loss was evaluated already, the one after.

        With several processes the next tracked step of the schedule carries the wish, and the step after it is tracked.
        """
        if self.group is not None:
            self.wish.trigger = reason
            return
        self.wants_trigger = reason
        if not self.closed and not self.loss_seen and not self.engine.step.passes:
            self.engine.begin(self.make_plan())
            self.wants_trigger = ""
            self.notices.append(Notice(self.step, "trigger", f"tracked off schedule: {reason}"))

    def passes_by(self, output: Tensor) -> bool:
        """Idle steps, in microseconds: only a loss that breaks is worth a hook. On other devices reading would wait."""
        self.loss_seen = True
        if not output.is_cpu or output.dim():
            return True
        reason = self.spikes.sees(output.item())
        if reason is None or self.wants_trigger:
            return True
        self._note_spike(reason)
        return False

    def notice_loss(self, value: Tensor, factor: Tensor) -> None:
        """The backward passes of tracked steps come by here, and those of a model that trains in eval mode."""
        self.loss_seen = True
        self.backward_passes += 1
        if not value.is_cpu or value.dim():
            return
        reason = self.spikes.sees(float(value))
        if reason is not None and not self.wants_trigger:
            self._note_spike(reason)

    def _note_spike(self, reason: str) -> None:
        """The step that breaks is put on record as far as it can be had by now, and the next one in full."""
        if self.group is not None:  # the other processes have seen another loss, and would not follow
            self.wish.trigger = self.wish.trigger or reason
            return
        self.wants_trigger = reason
        self.notices.append(Notice(self.step, "trigger", f"{reason}; this step and the next are on record"))
        if not self.engine.step.plan.record:
            cheap = [
                q for q in self.quantities if set(q.needs) <= {"parameters", "start", "update"} and q.kind == "scalar"
            ]
            alpha_end = self.engine.step.plan.alpha_end
            self.engine.step.plan = Plan(cheap, True, False, alpha_end, True, not alpha_end, self.memory_budget)

    # ---- the step -----------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """With several optimizers a step is one round: from the first one's step to the last one's."""
        if self.single and not self.engine.step.plan.active:
            return
        if id(optimizer) in self.stepped:  # a round that not all of them took part in
            self._end_round(optimizer)
        if self.stepped:
            return
        state = self.engine.step
        if not state.plan.active or (self.group is not None and self._is_alone()):
            return
        with self.guard("before the step"):
            start = time.perf_counter()
            self._find_scaler()
            state.in_closure = has_closure(args, kwargs)  # then the (last) backward pass is still to come
            if not state.passes and not state.in_closure:
                self._note_no_loss()
            if not state.in_closure and (state.passes or self.group is not None):
                self.engine.measure()
            self.measurement = Measurement(self, optimizer)
            state.overhead += time.perf_counter() - start

    def _is_alone(self) -> bool:
        """The other processes cannot be asked at this step, or never again: measure nothing rather than a part."""
        group = self.group
        assert group is not None
        if group.is_joining:
            reason = (
                "inside DistributedDataParallel.join() a process may have run out of data; nothing is measured there"
            )
        elif group.broken:
            reason = f"nothing more is measured: {group.broken}"
        else:
            return False
        self.engine.begin(Plan())
        self.pending = None
        self.warn(reason, f"Cockpit: {reason}.")
        return True

    def _agree(self) -> None:
        """Triggers, stops and the budget: what one process wants, all of them do, from the next step on."""
        assert self.group is not None
        self.wish.seconds, self.wish.elapsed = self.tracking_seconds, self.elapsed
        agreed, self.wish = agree(self.group, self.wish), Wish("", False, 0.0, 0.0)
        self.should_stop = self.should_stop or agreed.stop
        self.rests_until = rest_until(agreed, self.step, self.budget) if self.budget is not None else 0
        if agreed.trigger:
            self.wants_trigger = agreed.trigger
            self.notices.append(Notice(self.step, "trigger", f"{agreed.trigger}; the next step is on record"))

    def _find_scaler(self) -> None:
        """A GradScaler calls ``optimizer.step`` itself: it is found once, and its factor is known from then on."""
        if self.scaler is None:
            self.scaler = find_scaler()
            if self.scaler is not None and self.engine.step.loss_scale == 1:
                self.engine.step.unscale(float(self.scaler.get_scale()))

    def _loss_scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def _note_no_loss(self) -> None:
        self.warn(
            "no loss",
            "Cockpit saw no backward pass of loss_fn before optimizer.step(). If the loss is a function, "
            "call run.backward(loss, individual_losses=...) instead of loss.backward().",
        )
        self.engine.step.no_value["individual"] = "no backward pass of loss_fn was seen before the step"

    def after_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self.single and not self.engine.step.plan.active:
            self._next_step(False)
            return
        self.stepped.add(id(optimizer))
        if len(self.stepped) == len(self.optimizers):
            self._end_round(optimizer)

    def _end_round(self, optimizer: torch.optim.Optimizer) -> None:
        self.stepped.clear()
        state, measurement = self.engine.step, self.__dict__.pop("measurement", None)
        if state.plan.active and measurement is not None:
            start = time.perf_counter()
            with self.guard("after the step"):
                measurement.finish(start)
            self.tracking_seconds += state.overhead + time.perf_counter() - start
        if self.group is not None and state.plan.active:
            with self.guard("agreeing with the other processes"):
                self._agree()
        self._next_step(state.plan.active)

    def _next_step(self, was_active: bool) -> None:
        self.step += 1
        closure = self.engine.step.in_closure
        seen = len(self.engine.step.passes) or (self.backward_passes if self.engine.passes_per_step == 0 else 0)
        measured = (
            len(self.engine.step.passes) or 1
        )  # a closure may be called again; only its first backward pass counts
        self.engine.passes_per_step = measured if closure else seen or self.engine.passes_per_step
        self.backward_passes = 0
        self.loss_seen = False
        if not was_active and self._stays_idle():
            self.step_began = time.perf_counter()
            return
        with self.guard("planning"):
            plan = self.make_plan()
            if self.wants_trigger:
                self.wants_trigger = ""
            if plan.active or was_active:
                self.engine.begin(plan)
        self.step_began = time.perf_counter()

    def _stays_idle(self) -> bool:
        """Nothing is due at the coming step either: the quick way through a step that nobody scheduled."""
        if self.wants_trigger or self.pending is not None or self.engine.step.passes:
            return False
        try:
            return not self.schedule(self.step) and not any(own(self.step) for own in self.own_schedules.values())
        except Exception:
            return False  # the long way reports it

    def backward(self, loss: Tensor, individual_losses: Tensor | None = None, **kwargs: Any) -> None:
        """``loss.backward(**kwargs)`` for a loss that is not a module.

        ``individual_losses`` [B], one per sample, average to the loss (or add up to it); without them Alpha has no
        value.
        """
        from cockpit_core.engine.functional import attach_function_loss

        attach_function_loss(self, loss, individual_losses)
        loss.backward(**kwargs)

    # ---- writing ------------------------------------------------------------------------------------------------

    def write(self, record: Record) -> None:
        self.writer.write_record(record)
        if record.kind == "step":
            self.latest = {name: record.scalars[name] for name in HEADLINES if name in record.scalars}
        self.status = "running"
        self._tell()

    def write_header(self) -> None:
        """Again whenever something in it has changed: coverage, batch size."""
        self.header.layers = self.cover.describe(self.without_gradient)
        self.header.covered = self.cover.share(self.header.layers)
        shown = repr(self.header)
        if shown != self.header_shown:
            self.header_shown = shown
            self.writer.write_header(self.header)

    def log(self, **values: Any) -> None:
        """Anything else worth plotting, any time; ``epoch=`` sets the epoch of the steps that follow."""
        numbers: dict[str, float] = {}
        for name, value in values.items():
            try:
                numbers[name] = float(value)
            except (TypeError, ValueError) as error:
                raise TypeError(f"run.log({name}=...) takes a number, got {type(value).__name__}") from error
        if "epoch" in numbers:
            self.epoch = numbers.pop("epoch")
        if self.closed:
            raise RuntimeError("this run is closed; track the model again (with resume=True to continue the same log)")
        scalars = {f"log/{name}": value for name, value in numbers.items()}
        step = max(self.step - 1, 0)
        self.write(Record("log", step, time.time(), self.elapsed, epoch=self.epoch_at(step), scalars=scalars))
        self.writer.write_scalars(numbers, step)

    def epoch_at(self, step: int) -> float | None:
        if self.steps_per_epoch:
            return step / self.steps_per_epoch
        return self.epoch

    def close(self, status: str = "finished", error: str = "") -> None:
        """Write what is pending and take all hooks off. Closing twice does nothing."""
        if self.closed:
            return
        self.closed = True
        self.handles.remove()
        self.engine.layer_handles.remove()
        self.engine.step.plan = Plan()
        self.ending.done()
        self.status = "stopped" if self.should_stop and status == "finished" else status
        with self.guard("closing"):
            record = Record("end", max(self.step - 1, 0), time.time(), self.elapsed, status=self.status, error=error)
            record.alphas, record.notices, self.alphas, self.notices = self.alphas, self.notices, [], []
            self.writer.write_record(record)
            self._tell()
        self.writer.close()
        # A closed run is a way to its log; it must not keep the network alive.
        self.model = self.loss_fn = self.optimizers = self.engine = self.cover = None  # type: ignore[assignment]
        self.start, self.pending = {}, None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.close(
                "stopped" if isinstance(error, KeyboardInterrupt) else "failed", f"{type(error).__name__}: {error}"
            )

    # ---- looking ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> RunData:
        """Everything written so far, from the log itself."""
        if self._data is None:
            self._data = RunData(self.logdir)
        return self._data.refresh()

    @property
    def cost_share(self) -> float:
        """Share of the elapsed time that tracking took."""
        return self.tracking_seconds / max(self.elapsed, 1e-9)

    def request_stop(self) -> None:
        """Ask the training loop to end: it should look at ``run.should_stop`` at each step.

        With several processes it turns True on all of them together, at the end of the next tracked step.
        """
        if self.group is not None:
            self.wish.stop = True
        else:
            self.should_stop = True

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the training thread after each record; returns how to end it."""
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback) if callback in self.subscribers else None

    def _tell(self) -> None:
        for callback in list(self.subscribers):
            try:
                callback()
            except Exception:
                self.subscriber_errors += 1

    def report(self, output: str | Path, **options: Any) -> Path:
        """One self-contained HTML file of this run."""
        from cockpit_core.report import write_report

        return write_report([self.logdir], output, **options)

    # ---- faults -------------------------------------------------------------------------------------------------

    @contextmanager
    def guard(self, where: str) -> Iterator[None]:
        """An error of ours must not reach the user's training: warn once, put it on record, go on."""
        try:
            yield
        except Exception as error:
            if self.on_error == "raise":
                raise
            self.note_error(where, error)

    def note_error(self, where: str, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.notices.append(Notice(self.step, "error", message, where))
        self.warn(f"error {where}", f"Cockpit: {where} failed and is skipped ({message}); training goes on.")

    def warn(self, key: str, message: str) -> None:
        if key not in self.warned:
            self.warned.add(key)
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn(message, stacklevel=3)


def has_closure(args: tuple, kwargs: dict) -> bool:
    """``optimizer.step(closure)``; the hooks get the optimizer itself among the arguments."""
    return any(callable(a) and not isinstance(a, torch.optim.Optimizer) for a in (*args, kwargs.get("closure")))


ALIVE: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs that are not closed, so that tracking one model twice at once can be refused."""
