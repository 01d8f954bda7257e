"""A run at work, inside the ``Run`` that the user holds. One step, in order: the ``Listener`` hears the loss; ``before_step``
makes the ``Measurement`` of a tracked step, ``after_step`` finishes it, and the plan of the next step is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.distributed.agreement import Agreed, Spent
from cockpit_core.distributed.group import Group
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.hooks import Hook
from cockpit_core.engine.plan import Plan
from cockpit_core.engine.precision import PreciseFaults
from cockpit_core.engine.samples.identity import as_ids
from cockpit_core.engine.step import StepState
from cockpit_core.foundation.faults import describe_error
from cockpit_core.recording.measure import Measurement
from cockpit_core.tracking import opening
from cockpit_core.tracking.alive import ALIVE
from cockpit_core.tracking.attaching import Attachments
from cockpit_core.tracking.ending import Ending
from cockpit_core.tracking.ledger import Ledger
from cockpit_core.tracking.listening import Listener
from cockpit_core.tracking.obstacles import NO_LOSS, why_alone, why_unclear
from cockpit_core.tracking.rounds import Rounds, has_closure
from cockpit_core.tracking.settings import Settings
from cockpit_core.tracking.start import forget_start
from cockpit_core.tracking.writing import StepWriter


class Tracker:
    """Made by ``track``; ``closed`` when all its hooks are off."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: Any,
        optimizers: Sequence[torch.optim.Optimizer],
        logdir: Path,
        settings: Settings,
        group: Group,
        compiled: Sequence[nn.Module] = (),
    ):
        self.model, self.loss_fn, self.optimizers, self.group = model, loss_fn, list(optimizers), group
        self.closed, self.step = False, 0
        self.measurement: Measurement | None = None
        self.faults = PreciseFaults(settings.on_error, Hook(self, "note_error"))
        self.cover = Cover(model, settings.layers, self.faults.guard)
        self.pace, self.decisions = opening.make_pace(settings, group), group.decisions(settings.budget)
        self.log = opening.open_own_log(
            model, loss_fn, self.optimizers, logdir, settings, self.cover, self.faults, self.pace, group
        )
        past = self.log.writer.past
        self.step = settings.step if settings.step is not None else past.last_step + 1 if past else 0
        self.rounds = Rounds(self.optimizers)
        self.engine = opening.make_engine(
            self.cover, loss_fn, settings, self.faults, group, compiled, noticed_loss=Hook(self, "notice_loss"),
            loss_scale=Hook(self, "loss_scale"), owned=Hook(self.rounds, "owned_parameters"),
        )  # fmt: skip
        self.signals = opening.make_signals(model, loss_fn, self.engine, settings.on_error)
        self.instruments = opening.make_instruments(
            self.engine, self.optimizers, loss_fn, self.faults, Hook(self, "note_uncovered"), past is None
        )
        if settings.asks("start"):
            start = opening.find_start(past, self.step, self.cover, self.log, settings.keep_start)
            self.instruments.start, self.instruments.no_start = start
        losses = group.losses_of_batch(self.pace.spikes.losses)
        self.writing = StepWriter(self.log, self.engine, self.signals, self.faults, losses)
        self.step_began, self.known_cost = self.engine.clock.mark(), 0.0
        self.ledger = Ledger(self.engine.clock)
        self._attach()
        self.ledger.add(self.engine.clock.mark(), partial(self.pace.open, self.step))

    @classmethod
    def open(cls, *args: Any, **options: Any) -> Tracker:
        """A new run; if it cannot begin, nothing of it is left on the model, on the optimizer or on the disk."""
        tracker = cls.__new__(cls)
        try:
            tracker.__init__(*args, **options)  # type: ignore[misc]
        except BaseException:
            tracker._undo()
            raise
        ALIVE.add(tracker)
        return tracker

    def _undo(self) -> None:
        parts = vars(self)
        self.closed = True
        if "attachments" in parts:
            self.attachments.remove()
        if "engine" in parts:
            self.engine.layer_handles.remove()
        if "ending" in parts:
            self.ending.done()
        if "log" in parts:
            if self.log.writer.past is None:
                forget_start(self.log.logdir)
            self.log.writer.abandon()

    def _attach(self) -> None:
        """Two light hooks for the whole run, on the loss and behind the optimizer; ``begin`` adds what a plan needs."""
        by_module = isinstance(self.loss_fn, nn.Module)
        self.listener = Listener(
            self.engine, self.pace, self.signals, self.faults, self.optimizers, by_module=by_module,
            looks_for_steps=self.group.looks_for_steps, on_spike=Hook(self, "note_spike"), on_unseen=Hook(self, "note_unseen"),
        )  # fmt: skip
        self.attachments = Attachments(
            self.loss_fn, self.listener, self.rounds.watched.values(),
            Hook(self, "before_step"), Hook(self, "after_step", keeps=True), self.pace.account.note_hooks,
        )  # fmt: skip
        self.attachments.attach()
        self.ending = Ending(self)
        start = opening.make_first_record(self.model, self.loss_fn, self.optimizers, self.step, self.log, self.faults)
        self.log.begin(start, self.cover)
        if self.log.announce(start.findings):
            self.request_stop()
        self.begin(self.make_plan())

    # ---- when ---------------------------------------------------------------------------------------------------

    def make_plan(self) -> Plan:
        return self.log.add_probe(self.pace.plan(self.step, self.engine.alpha.pending is not None), self.pace.may_probe)

    def begin(self, plan: Plan) -> None:
        """Carry out this plan at the coming step."""
        engine = self.engine
        engine.begin(plan)
        eager = bool(engine.layer_handles) or not engine.compiled  # hooks would make torch.compile start anew
        resting = plan.record and self.signals.turns.rests_at(self.step, asked_for=plan.triggered)
        self.signals.begin(plan.record and not plan.by_products_only and eager, plan.record and eager, resting)
        self.attachments.follow(plan.active, not self.rounds.single)

    def trigger(self, reason: str) -> None:
        self.decisions.trigger(reason, self._track_next)

    def _track_next(self, reason: str) -> None:
        self.pace.trigger = reason
        if not (self.closed or self.listener.losses_seen or self.engine.step.passes) and self.attachments.listens:
            self.begin(self.make_plan())
            self.pace.trigger = ""
            self.log.note(self.step, "trigger", f"tracked off schedule: {reason}")

    def request_stop(self) -> None:
        self.decisions.stop()

    @property
    def should_stop(self) -> bool:
        return self.decisions.should_stop

    # ---- what is noticed ----------------------------------------------------------------------------------------

    def note_error(self, where: str, message: str) -> None:
        self.log.note(self.step, "error", message, where)

    def notice_loss(self, value: Tensor, factor: Tensor) -> None:
        self.listener.notice_loss(value, factor)

    def loss_scale(self) -> float:
        return self.listener.loss_scale()

    def note_uncovered(self, name: str, reason: str) -> None:
        self.log.note(self.step, "coverage", f"{name} is not covered: {reason}", layer=name)
        self.faults.warn(f"coverage {name}", f"Cockpit: individual gradients of {name} are left out: {reason}.")

    def note_unseen(self, message: str) -> None:
        message = message.format(name=type(self.optimizers[0]).__name__)
        self.faults.warn("no step", message)
        self.log.note(self.step, "error", message, "step")

    def note_spike(self, reason: str) -> None:
        self.decisions.spike(reason, self._track_spike)

    def _track_spike(self, reason: str) -> None:
        """The step that breaks is recorded as far as that is still possible, and the next one in full."""
        self.pace.trigger, self.pace.by_spike = reason, True
        self.log.note(self.step, "trigger", f"{reason}; this step and the next are on record")
        if not self.engine.step.plan.record:
            self.step_began = self.engine.clock.mark()  # idle steps do not look at the clock
            plan = self.pace.plan_for_spike(self.engine.step.plan.alpha_end)
            self.engine.replan(plan)
            self.attachments.follow(plan.active, not self.rounds.single)

    def note_ids(self, ids: Any) -> None:
        if not self.closed and self.engine.step.plan.record:
            self.engine.note_ids(as_ids(ids))

    def note_settings(self, settings: dict[str, str]) -> None:
        self.log.note_settings(settings, self.cover)

    def _note_no_loss(self) -> None:
        self.faults.warn("no loss", NO_LOSS)
        self.engine.note_no_loss("no backward pass was seen before the step")

    # ---- the step -----------------------------------------------------------------------------------------------

    def before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        """With several optimizers a step is one round, from the first optimizer's step to the last one's."""
        rounds, state = self.rounds, self.engine.step
        if (rounds.single and not state.plan.active) or rounds.is_inside(args):
            return
        if rounds.breaks(optimizer):  # a round that not all of them took part in
            self._end_round()
            state = self.engine.step
        if rounds.has_begun or not state.plan.active:
            return
        with self.faults.guard("before the step"):
            start = self.engine.clock.mark()
            if self._is_refused(state):
                return
            self.listener.find_scaler()
            # With a closure the (last) backward pass is still to come; where there was none yet, step() may do its own.
            self.engine.expect_closure(has_closure(args, kwargs) or self.group.lacks_backward(len(state.passes)))
            if not state.passes and not state.in_closure:
                self._note_no_loss()
            if not state.in_closure:
                self.engine.measure()
            epoch = self.log.epoch_at(self.step)
            self.measurement = Measurement(self.instruments, self.step, self.log.elapsed, epoch)
            self.engine.clock.add_overhead(start)

    def _is_refused(self, state: StepState) -> bool:
        """Nothing can be measured at this step, and the log says so."""
        alone = why_alone(self.group)
        if alone:
            self.begin(Plan())
            self.engine.alpha.forget()
            self.faults.warn(alone, f"Cockpit: {alone}.")
            return True
        reason = why_unclear(state, self.cover)
        if reason:
            self.faults.warn(reason, f"Cockpit: a step is not recorded: {reason}.")
            self.log.note(self.step, "error", f"not recorded: {reason}", "step")
        return bool(reason)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        if self.closed:
            yield
            return
        with self.rounds.one_step() as (optimizer, marker):
            self.before_step(optimizer, marker, {})
            yield
            self.rounds.expect_only(optimizer)
            self.after_step(optimizer, marker, {})

    def after_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if (rounds := self.rounds).asks and rounds.is_inside(args):
            return
        if rounds.single and not self.engine.step.plan.active:
            if not self._stays_idle():
                self._next_step(False)
        elif rounds.completes(optimizer):
            self._end_round()

    def _end_round(self) -> None:
        self.rounds.begin()
        state = self.engine.step
        try:
            self._finish_measurement(state)
        finally:  # also if somebody interrupts: the optimizer has taken this step
            self._next_step(state.plan.active)

    def _finish_measurement(self, state: StepState) -> None:
        measurement, self.measurement = self.measurement, None
        if state.plan.active and measurement is not None:
            start = self.engine.clock.mark()
            with self.faults.guard("after the step"):
                if state.in_closure and self.group.lacks_backward(len(state.passes)):
                    self._note_no_loss()
                self.signals.ask(state.transfer)
                measurement.finish()
                writes, spent = measurement.plan.record, self.pace.seconds
                if writes and self.writing.write(measurement, start, spent, self.step_began):
                    self.request_stop()
            self.known_cost = self.engine.clock.spent(start)
        if state.plan.active:
            with self.faults.guard("agreeing with the other processes"):
                so_far = Spent(self.pace.account.spent + self.known_cost, self.log.elapsed)
                self.decisions.settle(self.step, so_far, self._follow)

    def _follow(self, agreed: Agreed) -> None:
        self.pace.follow(agreed)
        if agreed.trigger:
            self.log.note(self.step, "trigger", f"{agreed.trigger}; the next step is on record")

    def _next_step(self, was_active: bool) -> None:
        self.step += 1
        state = self.engine.step
        self.engine.end_step(state.in_closure, self.listener.backward_passes)
        self.listener.forget()
        known, self.known_cost = self.known_cost, 0.0
        with self.faults.guard("planning"):
            ended = partial(self.pace.book, self.step, state.plan, self.writing.take_seconds(), known)
            self.ledger.add(self.engine.clock.mark(), ended)
            plan = self.make_plan()
            self.pace.trigger = ""
            if plan.active or was_active:
                self.begin(plan)
            if not plan.active:
                self.attachments.rest()
            self.writing.note_left_out(self.pace.describe())
        self.step_began = self.engine.clock.mark()
        self.ledger.add(self.step_began, self.pace.account.book_planning)

    def _stays_idle(self) -> bool:
        """Nothing was due and nothing will be: go to the next step, in a microsecond, if that is all."""
        pace, listener, engine, following = self.pace, self.listener, self.engine, self.step + 1
        if pace.trigger or listener.backward_passes or engine.alpha.pending is not None or engine.step.passes:
            return False
        if following >= pace.idle_until and pace.might_be_due(following):
            return False
        self.step, listener.losses_seen, listener.unseen.place = following, 0, None
        if (every := pace.account.every) > 1 and (following % every == 0) is not self.attachments.listens:
            self.attachments.listen(not self.attachments.listens)
        return True

    # ---- the end ------------------------------------------------------------------------------------------------

    def close(self, status: str = "finished", error: str = "") -> None:
        """Write what is pending and take all hooks off. Closing twice does nothing."""
        if self.closed:
            return
        self.closed = True
        ALIVE.discard(self)
        self.attachments.remove()
        in_vain = self.listener.close()
        self.engine.layer_handles.remove()
        self.signals.close()
        self.engine.replan(Plan())
        self.ending.done()
        status, last = "stopped" if self.should_stop and status == "finished" else status, max(self.step - 1, 0)
        self.log.end(status, error, last, self.engine.alpha.take_fits(), self.writing.sum_up(last, status, in_vain))
        # A closed run is a way to its log; it must not keep the network alive.
        self.model = self.loss_fn = self.optimizers = self.engine = self.cover = None  # type: ignore[assignment]
        self.instruments = self.writing = self.measurement = self.ledger = None  # type: ignore[assignment]
        self.rounds.close()

    def end(self, error: BaseException | None) -> None:
        """The training has ended, by itself or by an exception."""
        if error is None:
            self.close()
        else:
            self.close("stopped" if isinstance(error, KeyboardInterrupt) else "failed", describe_error(error))
