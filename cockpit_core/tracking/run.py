"""A tracked run: decides when to measure, turns statistics into records, and writes them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.diagnosis.live import Live
from cockpit_core.distributed.group import Group
from cockpit_core.distributed.log import open_log
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.engine import Engine
from cockpit_core.engine.hooks import Handles, Hook, is_imagined
from cockpit_core.engine.loss.roots import WATCH, Root
from cockpit_core.engine.place import Unseen
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.samples.identity import as_ids
from cockpit_core.engine.scaler import find_scaler
from cockpit_core.engine.scripting import HiddenFromScript
from cockpit_core.engine.step import StepState
from cockpit_core.engine.survey import survey
from cockpit_core.events.data import RunData
from cockpit_core.events.resume import Past
from cockpit_core.foundation.faults import Faults, describe_error, is_interruption
from cockpit_core.foundation.records import Finding, Notice, Record
from cockpit_core.quantities import Quantity
from cockpit_core.recording.header import describe_quantity, make_header, show
from cockpit_core.recording.logged import as_number, is_too_large
from cockpit_core.recording.measure import HEADLINES, Measurement
from cockpit_core.recording.notices import Repeats
from cockpit_core.schedules import Schedule, describe
from cockpit_core.signals.collector import Collector
from cockpit_core.signals.wiring import check_wiring, name_wiring
from cockpit_core.tracking.ending import Ending
from cockpit_core.tracking.optimizers import find_inner, is_inside_another, may_nest, parameters_of
from cockpit_core.tracking.pace import Pace
from cockpit_core.tracking.start import StartUnknown, copy_parameters, forget_start, load_start, save_start

is_wrapped, is_traced = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._get_tracing_state


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
        keep_start: int,
        resume: bool,
        step: int | None,
        seed: int,
        group: Group,
        compiled: Sequence[nn.Module] = (),
        on_finding: Callable[[Finding], object] | None = None,
        stop_on: str | None = None,
    ):
        self.faults = Faults(on_error, Hook(self, "note_error"))
        self.guard, self.warn = self.faults.guard, self.faults.warn
        self.cover = Cover(model, layers, self.guard)
        self.model, self.loss_fn, self.optimizers, self.logdir = model, loss_fn, list(optimizers), logdir
        self.quantities, self.steps_per_epoch = quantities, steps_per_epoch
        self.pace = Pace(quantities, schedule, budget=budget, memory_budget=memory_budget, group=group)
        self.group = group
        told = ([q.name for q in quantities], describe(schedule), curvature, sorted(self.cover.selected))
        settings = f"{config}, {told}"
        self.writer, self.logdir = open_log(logdir, resume, group, settings)
        past = self.writer.past
        self.step = step if step is not None else past.last_step + 1 if past else 0
        self.began = time.monotonic() - (past.last_time if past else 0.0)
        own_seed = seed + group.rank  # probes of different processes are independent
        self.engine = Engine(
            self.cover, loss_fn, batch_dim=batch_dim, memory_budget=memory_budget, guard=self.guard, group=group,
            curvature=curvature, curvature_samples=curvature_samples, seed=own_seed, compiled=compiled,
            noticed_loss=Hook(self, "notice_loss"), loss_scale=Hook(self, "_loss_scale"),
            owned=Hook(self, "_owned_parameters"),
        )  # fmt: skip
        self.signals = Collector(model, loss_fn, self.cover.names, self.engine.awaits_backward, on_error == "raise")
        self.header = make_header(model, loss_fn, self.optimizers, self.logdir)
        self.live = Live(on_finding, stop_on)
        self.header.config, self.header.schedule, self.header.curvature = config, describe(schedule), curvature
        self.header.quantities = [describe_quantity(q, self.pace.schedule_of(q)) for q in quantities]
        self.header.steps_per_epoch = steps_per_epoch or 0.0
        self.header.options = {"batch_dim": str(batch_dim), "memory_budget": str(memory_budget)}
        if group.is_joint:
            self.header.options["processes"] = str(group.size)
        self._set_initial_state()
        self.start, self.no_start = self._find_start(past, keep_start) if self._asks("start") else ({}, "")
        self._attach()

    @classmethod
    def open(cls, *args: Any, **options: Any) -> Run:
        """A new run; if it cannot begin, nothing of it is left on the model, on the optimizer or on the disk."""
        run = cls.__new__(cls)
        try:
            run.__init__(*args, **options)  # type: ignore[misc]
        except BaseException:
            run._undo()
            raise
        return run

    def _undo(self) -> None:
        parts = vars(self)
        self.closed = True
        for handles in (parts.get("handles"), parts.get("step_handles")):
            if handles is not None:
                handles.remove()
        if "engine" in parts:
            self.engine.layer_handles.remove()
        if "ending" in parts:
            self.ending.done()
        if "writer" in parts:
            if self.writer.past is None:
                forget_start(self.logdir)
            self.writer.abandon()

    def _find_start(self, past: Past | None, limit: int) -> tuple[dict[str, Tensor], str]:
        """theta_0, or why it is not known. A run that goes back to step 0 begins there."""
        trainable, header = self.cover.trainable(), self.header
        if past is not None and self.step > 0:
            try:
                if self.cover.sharded:
                    raise StartUnknown("the parameters at the beginning of a sharded run are not kept")
                return load_start(self.logdir, past.header.run_id if past.header else "", trainable), ""
            except StartUnknown as reason:
                return {}, str(reason)
        start = copy_parameters(trainable)
        if self.cover.sharded:
            header.options["start kept"] = "no: the parameters are sharded"
        elif self.group.rank == 0:
            owner = past.header.run_id if past is not None and past.header else header.run_id
            header.options["start kept"] = save_start(self.logdir, owner, start, limit)
        return start, ""

    def _set_initial_state(self) -> None:
        self.closed = False
        self.should_stop = False
        self.status = "waiting"
        self.epoch: float | None = None
        self.loss_seen = False
        self.notices: list[Notice] = []
        self.repeats = Repeats()
        self.backward_passes = 0
        self.step_began = time.perf_counter()
        self.subscribers: list[Callable[[], None]] = []
        self.subscriber_errors = 0
        self.latest: dict[str, float] = {}  # headline scalars of the last record, for other loggers
        self.single = len(self.optimizers) == 1
        self.stepped: set[int] = set()
        self.outer_of = {id(each): outer for outer in self.optimizers for each in (outer, *find_inner(outer))}
        self.watched = {id(each): each for outer in self.optimizers for each in (outer, *find_inner(outer))}
        self.nests = any(may_nest(optimizer) for optimizer in self.optimizers)
        self.is_stepping = False  # inside ``stepping``
        self.losses_seen = 0  # since the last step
        self.unseen = Unseen(parameters_of(self.optimizers))
        self.scaler: Any = None
        self.without_gradient: set[str] = set()
        self.told: tuple | None = None  # what the last header said of the things that change
        self._data: RunData | None = None

    def _asks(self, need: str) -> bool:
        return any(need in quantity.needs for quantity in self.quantities)

    def _attach(self) -> None:
        """Two light hooks for the whole run, on the loss and behind the optimizer; ``begin`` adds what a plan needs."""
        self.handles, self.step_handles = Handles(), Handles()
        self.handles.add(HiddenFromScript())
        if isinstance(self.loss_fn, nn.Module):
            self.handles.add(self.loss_fn.register_forward_hook(Hook(self, "on_loss"), with_kwargs=True))
        for optimizer in self.watched.values():
            self.handles.add(optimizer.register_step_post_hook(Hook(self, "after_step", keeps=True)))
        self.by_module = isinstance(self.loss_fn, nn.Module)
        if not self.by_module:
            WATCH.add(self)
        self.ending = Ending(self)
        start = Record("start", self.step, time.time(), self.elapsed)
        with self.guard("static checks"):
            self.header.options |= name_wiring(self.model, self.optimizers)
            wiring = check_wiring(self.model, self.loss_fn, self.optimizers)
            start.scalars = {f"signal/{name}": value for name, value in wiring.items()}
        with self.guard("diagnosis"):
            if self.writer.past is not None:
                self.live.catch_up(self.logdir, self.step)
            start.findings = self.live.start(self.header, start, self.writer.generation)
        self.write_header()
        self.writer.write_record(start)
        self.announce(start.findings)
        self.begin(self.make_plan())

    # ---- when ---------------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def make_plan(self) -> Plan:
        return self.pace.plan(self.step, self.elapsed, self.engine.alpha.pending is not None)

    def begin(self, plan: Plan) -> None:
        """Carry out this plan at the coming step."""
        self.engine.begin(plan)
        eager = bool(self.engine.layer_handles) or not self.engine.compiled  # hooks would make torch.compile start anew
        self.signals.begin(plan.record and not plan.by_products_only and eager)
        self._watch_step(plan)

    def _watch_step(self, plan: Plan) -> None:
        """The hook before the optimizer's step, and with a loss module the function around backward, are there only where
        something is measured: idle steps are cheaper."""
        if self.by_module and plan.active:
            WATCH.add(self)
        elif self.by_module:
            WATCH.discard(self)
        if plan.active or not self.single:
            if not self.step_handles:
                for optimizer in self.watched.values():
                    self.step_handles.add(optimizer.register_step_pre_hook(Hook(self, "before_step")))
        else:
            self.step_handles.remove()

    def trigger(self, reason: str = "run.trigger()") -> None:
        """Track the next step in full, whatever the schedule; if this step's loss was evaluated already, the one after.

        With several processes the next tracked step of the schedule carries the wish, and the step after it is tracked.
        """
        if self.group.is_joint:
            self.pace.wish.trigger = reason
            return
        self.pace.trigger = reason
        if not self.closed and not self.loss_seen and not self.engine.step.passes:
            self.begin(self.make_plan())
            self.pace.trigger = ""
            self.notices.append(Notice(self.step, "trigger", f"tracked off schedule: {reason}"))

    def on_loss(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        """Every forward of the loss comes by here; on idle steps only to glance at its value, in microseconds.

        On other devices than the CPU reading it would wait for the device.
        """
        engine = self.engine
        if not engine.step.plan.active and engine.cover.model.training and not engine.muted:
            if type(output) is not Tensor or not output.requires_grad or is_wrapped(output) or is_traced():
                return
            self.loss_seen = True
            self.losses_seen += 1
            if self.losses_seen & 7 == 0:
                self._look_for_steps()
            if not output.is_cpu or output.dim():
                return
            reason = self.pace.spikes.sees(output.item())
            if reason is None or self.pace.trigger:
                return
            self._note_spike(reason)
        elif is_imagined():
            return
        if engine.step.plan.record and isinstance(output, Tensor) and output.requires_grad:
            self.signals.see_loss(args, kwargs)
        engine.on_loss(module, args, kwargs, output)

    def awaits(self, tensors: Any) -> bool:
        """Every backward pass of this process comes by here (see ``roots``); on idle steps only to glance at the loss."""
        engine = self.engine
        if engine is None or engine.step.plan.active:
            return engine is not None
        if not self.by_module and isinstance(tensors, Tensor) and not engine.muted and tensors.is_cpu:
            try:
                self._glance(tensors)
            except Exception as error:
                with self.guard("loss"):
                    raise error
        return engine.step.plan.active

    def _glance(self, loss: Tensor) -> None:
        """Is a loss that is no module out of line? With several runs: is it this one's?"""
        if loss.dim() or not loss.requires_grad or not self.engine.cover.model.training:
            return
        if len(ALIVE) > 1 and not survey(Root((loss,), (None,)), self.engine.cover.names, (), False).is_mine:
            return
        self.loss_seen = True
        value = loss.item()
        reason = self.pace.spikes.sees(value if self.scaler is None else value / self._loss_scale())
        if reason is not None and not self.pace.trigger:
            self._note_spike(reason)

    def before_backward(self, root: Root) -> Any:
        if self.engine is not None:
            with self.guard("what is differentiated"):
                return self.engine.before_root(root)
        return None

    def deaf(self) -> AbstractContextManager[None]:
        return nullcontext() if self.engine is None else self.engine.mute()

    def after_backward(self, token: Any, failed: bool) -> None:
        if self.engine is not None:
            with self.guard("what is differentiated"):
                self.engine.after_root(token, failed)

    def notice_loss(self, value: Tensor, factor: Tensor) -> None:
        """The backward passes of tracked steps come by here, and those of a model that trains in eval mode."""
        self.loss_seen = True
        self.backward_passes += 1
        self._count_loss()
        if not value.is_cpu or value.dim():
            return
        reason = self.pace.spikes.sees(float(value))
        if reason is not None and not self.pace.trigger:
            self._note_spike(reason)

    def _count_loss(self) -> None:
        self.losses_seen += 1
        if self.losses_seen & 7 == 0:
            self._look_for_steps()

    def _look_for_steps(self) -> None:
        """So many losses, and no step of the optimizer: do the parameters move all the same?"""
        if "no step" not in self.faults.warned and not self.group.is_joint:
            with self.guard("looking for steps"):
                if self.unseen.looks(self.losses_seen):
                    name = type(self.optimizers[0]).__name__
                    self.warn("no step", NO_STEP.format(name=name))
                    self.notices.append(Notice(self.step, "error", NO_STEP.format(name=name), "step"))

    def _note_spike(self, reason: str) -> None:
        """The step that breaks is put on record as far as it can be had by now, and the next one in full."""
        if self.group.is_joint:  # the other processes have seen another loss, and would not follow
            self.pace.wish.trigger = self.pace.wish.trigger or reason
            return
        self.pace.trigger = reason
        self.notices.append(Notice(self.step, "trigger", f"{reason}; this step and the next are on record"))
        if not self.engine.step.plan.record:
            self.engine.replan(self.pace.plan_for_spike(self.engine.step.plan.alpha_end))
            self._watch_step(self.engine.step.plan)

    # ---- the step -----------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """With several optimizers a step is one round: from the first one's step to the last one's."""
        if self.single and not self.engine.step.plan.active:
            return
        if self._is_inside(args):
            return
        optimizer = self.outer_of.get(id(optimizer), optimizer)
        if id(optimizer) in self.stepped:  # a round that not all of them took part in
            self._end_round(optimizer)
        if self.stepped:
            return
        state = self.engine.step
        if not state.plan.active or self._is_alone():
            return
        with self.guard("before the step"):
            start = time.perf_counter()
            if not self._can_be_measured(state):
                return
            self._find_scaler()
            # With a closure the (last) backward pass is still to come; where there was none yet, step() may do its own.
            state.in_closure = has_closure(args, kwargs) or (not state.passes and not self.group.is_joint)
            if not state.passes and not state.in_closure:
                self._note_no_loss()
            if not state.in_closure:
                self.engine.measure()
            self.measurement = Measurement(self, optimizer)
            state.overhead += time.perf_counter() - start

    def _is_inside(self, args: tuple) -> bool:
        """Does this ``step`` run inside another one that is tracked? Then that is the step."""
        if self.is_stepping:
            return args is not STEPPING
        return self.nests and is_inside_another(self.watched)

    def _can_be_measured(self, state: StepState) -> bool:
        """Is it known which gradient and which move belong to this step? If not, it is not recorded, and that is said."""
        if state.open is not None and is_in_backward():
            reason = "optimizer.step() runs inside the backward pass"
        elif state.elsewhere is not None and state.place is not None and not state.place.is_back(state.elsewhere):
            reason = (
                "the parameters were moved between two backward passes, and not back before optimizer.step(). If both belong to "
                "one step, put all that follows the first loss.backward() into `with run.stepping():`"
            )
        else:
            return True
        self.warn(reason, f"Cockpit: a step is not recorded: {reason}.")
        self.notices.append(Notice(self.step, "error", f"not recorded: {reason}", "step"))
        return False

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """``with run.stepping(): ...``: what is done in there is one step, whatever is called.

        For a two-step optimizer that never calls ``step``, for a wrapper that moves the parameters once more after it, for
        updates by hand. It begins after the (first) ``loss.backward()``; further backward passes inside are the
        optimizer's own.
        """
        if self.closed:
            yield
            return
        self.is_stepping = True
        try:
            first = self.optimizers[0]
            self.before_step(first, STEPPING, {})
            yield
            self.stepped = {id(optimizer) for optimizer in self.optimizers[1:]}
            self.after_step(first, STEPPING, {})
        finally:
            self.is_stepping = False

    def _is_alone(self) -> bool:
        """The other processes cannot be asked at this step, or never again: measure nothing rather than a part."""
        group = self.group
        if group.is_joining:
            reason = (
                "inside DistributedDataParallel.join() a process may have run out of data; nothing is measured there"
            )
        elif group.broken:
            reason = f"nothing more is measured: {group.broken}"
        else:
            return False
        self.begin(Plan())
        self.engine.alpha.forget()
        self.warn(reason, f"Cockpit: {reason}.")
        return True

    def _agree(self, group: Group) -> None:
        agreed = self.pace.agree(group, self.step, self.elapsed)
        self.should_stop = self.should_stop or agreed.stop
        if agreed.trigger:
            self.notices.append(Notice(self.step, "trigger", f"{agreed.trigger}; the next step is on record"))

    def _find_scaler(self) -> None:
        """A GradScaler calls ``optimizer.step`` itself: it is found once, and its factor is known from then on."""
        if self.scaler is None:
            self.scaler = find_scaler()
            if self.scaler is not None and self.engine.step.loss_scale == 1:
                self.engine.step.unscale(float(self.scaler.get_scale()))

    def _owned_parameters(self) -> set[int]:
        return {id(p) for optimizer in self.optimizers for group in optimizer.param_groups for p in group["params"]}

    def _loss_scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    def _note_no_loss(self) -> None:
        self.warn(
            "no loss",
            "Cockpit saw no backward pass through this model before optimizer.step(). Gradients that come from "
            "torch.autograd.grad, or are written by hand, have no loss that could be tracked: call loss.backward().",
        )
        self.engine.note_no_loss("no backward pass was seen before the step")

    def after_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if (self.nests or self.is_stepping) and self._is_inside(args):
            return
        if self.single and not self.engine.step.plan.active:
            if not self._stays_idle():
                self._next_step(False)
            return
        optimizer = self.outer_of.get(id(optimizer), optimizer)
        self.stepped.add(id(optimizer))
        if len(self.stepped) == len(self.optimizers):
            self._end_round(optimizer)

    def _end_round(self, optimizer: torch.optim.Optimizer) -> None:
        self.stepped.clear()
        state = self.engine.step
        try:
            self._finish_measurement(state)
        finally:  # also if somebody interrupts: the optimizer has taken this step
            self._next_step(state.plan.active)

    def _finish_measurement(self, state: StepState) -> None:
        measurement = self.__dict__.pop("measurement", None)
        if state.plan.active and measurement is not None:
            start = time.perf_counter()
            with self.guard("after the step"):
                if state.in_closure and not state.passes and not self.group.is_joint:
                    self._note_no_loss()
                measurement.finish(start)
            self.pace.seconds += state.overhead + time.perf_counter() - start
        if self.group.is_joint and state.plan.active:
            with self.guard("agreeing with the other processes"):
                self._agree(self.group)

    def _next_step(self, was_active: bool) -> None:
        self.step += 1
        self.engine.end_step(self.engine.step.in_closure, self.backward_passes)
        self.backward_passes = self.losses_seen = 0
        self.loss_seen = False
        with self.guard("planning"):
            plan = self.make_plan()
            self.pace.trigger = ""
            if plan.active or was_active:
                self.begin(plan)
        self.step_began = time.perf_counter()

    def _stays_idle(self) -> bool:
        """Nothing was due and nothing will be: on to the next step, in a microsecond, if that is all there is to do."""
        pace = self.pace
        if pace.trigger or self.backward_passes or self.engine.alpha.pending is not None or self.engine.step.passes:
            return False
        following = self.step + 1
        try:
            if pace.is_due(following):
                return False
        except Exception:
            return False  # the long way asks again, and reports it
        self.step = following
        self.loss_seen = False
        self.losses_seen = 0
        self.step_began = time.perf_counter()
        return True

    def backward(self, loss: Tensor, individual_losses: Tensor | None = None, **kwargs: Any) -> None:
        """``loss.backward(**kwargs)``, with individual losses that the graph of the loss does not tell.

        ``individual_losses`` [B], one per sample, average to the loss (or add up to it).
        """
        from cockpit_core.engine.loss.handed_over import attach_function_loss

        attach_function_loss(loss, individual_losses)
        loss.backward(**kwargs)

    def batch(self, ids: Any) -> None:
        """Say who the samples of the coming batch are, one whole number each (their indices in the dataset), before its
        forward pass; with micro-batches, before each of them. HardSamples then follows samples over the run."""
        if not self.closed and self.engine.step.plan.record:
            self.engine.step.ids.append(as_ids(ids))

    # ---- findings -----------------------------------------------------------------------------------------------

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, as far as is known by now: worst first, causes only. See docs/diagnosis.md."""
        return self.live.findings

    def announce(self, news: list[Finding]) -> None:
        """Tell the user's callback; an error of it is no reason to end a training run."""
        if news and self.group.rank == 0:
            with self.guard("on_finding"):
                self.live.tell(news)
            if self.live.stops:
                self.request_stop()

    # ---- writing ------------------------------------------------------------------------------------------------

    def write(self, record: Record) -> None:
        self.writer.write_record(record)
        if record.kind == "step":
            self.latest = {name: record.scalars[name] for name in HEADLINES if name in record.scalars}
        self.status = "running"
        self._tell()

    def write_header(self) -> None:
        """Again whenever something in it has changed: coverage, batch size."""
        header, methods = self.header, tuple(self.cover.methods.items())
        told = methods, frozenset(self.without_gradient), tuple(header.notes), header.batch_size, str(header.options)
        if told == self.told:
            return
        self.told = told
        header.layers = self.cover.describe(self.without_gradient)
        header.covered = self.cover.share(header.layers)
        self.writer.write_header(header)

    def log(self, **values: Any) -> None:
        """Anything else worth plotting, any time; ``epoch=`` sets the epoch of the steps that follow."""
        numbers = {name: as_number(name, value) for name, value in values.items()}
        if self.closed:
            raise RuntimeError("this run is closed; track the model again (with resume=True to continue the same log)")
        for name in (name for name, value in values.items() if is_too_large(value)):
            self.warn(
                f"log {name}", f"Cockpit: run.log({name}=...) is too large for a float and is recorded as infinite."
            )
        if "epoch" in numbers:
            self.epoch = numbers.pop("epoch")
        scalars = {f"log/{name}": value for name, value in numbers.items()}
        step = max(self.step - 1, 0)
        with self.guard("run.log"):
            self.write(Record("log", step, time.time(), self.elapsed, epoch=self.epoch_at(step), scalars=scalars))
            self.writer.write_scalars(numbers, step)

    def note_settings(self, **settings: Any) -> None:
        """What else sets this run apart, e.g. ``seed=3, width=256``: goes into the header, where ``compare`` finds it."""
        self.header.options.update({name: show(value) for name, value in settings.items()})
        self.told = None
        self.write_header()

    def epoch_at(self, step: int) -> float | None:
        if self.steps_per_epoch:
            return step / self.steps_per_epoch
        return self.epoch

    def close(self, status: str = "finished", error: str = "") -> None:
        """Write what is pending and take all hooks off. Closing twice does nothing."""
        if self.closed:
            return
        self.closed = True
        WATCH.discard(self)
        self.handles.remove()
        self.step_handles.remove()
        self.engine.layer_handles.remove()
        self.signals.close()
        self.engine.replan(Plan())
        self.ending.done()
        self.status = "stopped" if self.should_stop and status == "finished" else status
        with self.guard("closing"):
            record = Record("end", max(self.step - 1, 0), time.time(), self.elapsed, status=self.status, error=error)
            record.alphas, record.notices, self.notices = self.engine.alpha.take_fits(), self.notices, []
            self.writer.write_record(record)
            self._tell()
        self.writer.close()
        # A closed run is a way to its log; it must not keep the network alive.
        self.model = self.loss_fn = self.optimizers = self.engine = self.cover = None  # type: ignore[assignment]
        self.start, self.unseen = {}, Unseen(())
        self.outer_of, self.watched = {}, {}

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        else:
            self.close("stopped" if isinstance(error, KeyboardInterrupt) else "failed", describe_error(error))

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
        return self.pace.seconds / max(self.elapsed, 1e-9)

    def request_stop(self) -> None:
        """Ask the training loop to end: it should look at ``run.should_stop`` at each step.

        With several processes it turns True on all of them together, at the end of the next tracked step.
        """
        if self.group.is_joint:
            self.pace.wish.stop = True
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
            except BaseException as error:
                if is_interruption(error):
                    raise
                self.subscriber_errors += 1

    def report(self, output: str | Path, **options: Any) -> Path:
        """One self-contained HTML file of this run."""
        from cockpit_core.report.write import write_report

        return write_report([self.logdir], output, **options)

    # ---- faults -------------------------------------------------------------------------------------------------

    def note_error(self, where: str, message: str) -> None:
        self.notices.append(Notice(self.step, "error", message, where))


def has_closure(args: tuple, kwargs: dict) -> bool:
    """``optimizer.step(closure)``; the hooks get the optimizer itself among the arguments."""
    return any(callable(a) and not isinstance(a, torch.optim.Optimizer) for a in (*args, kwargs.get("closure")))


def is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


STEPPING = (lambda: None,)
"""What ``stepping`` calls the hooks with: as ``step`` with a closure, because backward passes may follow."""

NO_STEP = (
    "Cockpit: the parameters move, but step() of {name}, the optimizer given to track(...), is not called, nor that of an "
    "optimizer that it holds: no step is recorded. Give track the optimizer whose step() the loop calls, or put what moves "
    "the parameters into `with run.stepping():`."
)

ALIVE: weakref.WeakSet[Run] = weakref.WeakSet()
"""Runs that are not closed, so that tracking one model twice at once can be refused."""
