"""One tracked step, from the moment the optimizer is about to step to the record of what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.engine.alpha.component import MOVED
from cockpit_core.engine.engine import Engine
from cockpit_core.engine.extensions import BackpackValues
from cockpit_core.engine.extensions.finding import measure_extensions
from cockpit_core.engine.optimizer_state import read_states
from cockpit_core.engine.own_batch import explain, is_turn
from cockpit_core.engine.samples.identity import join_ids
from cockpit_core.foundation.faults import text_of
from cockpit_core.foundation.records import Record
from cockpit_core.quantities import NoValue, Quantity, Statistics
from cockpit_core.quantities.measured import OwnBatch, ParameterState
from cockpit_core.quantities.needs import Moment, is_individual
from cockpit_core.recording.by_products import ask_clipped, find_top_samples, name_rates, read_rates
from cockpit_core.recording.probes import run_probe
from cockpit_core.recording.second_look import find_preconditioned, look_again
from cockpit_core.recording.statistics import copy_before, find_update, gather_statistics, show_whole
from cockpit_core.recording.values import Heavy, Taken, add_to_record, layers_alone, take_value, why_partly

MOVED_AND_THEN = (
    f"Cockpit: {MOVED}: such steps have no Alpha, and UpdateSize is that of step() alone. If the move belongs to the step "
    "(Lookahead, clipped weights), put both into `with run.stepping():`."
)


@dataclass
class Instruments:
    """What all steps of a run are measured with."""

    engine: Engine
    optimizers: Sequence[torch.optim.Optimizer]
    loss_fn: Any
    guard: Callable[[str], AbstractContextManager[None]]
    warn: Callable[[str, str], None]
    note_uncovered: Callable[[str, str], None]
    """Told of a layer without individual gradients, and why."""
    start: dict[str, Tensor] = field(default_factory=dict)
    """``theta_0``, if somebody asks for it."""
    no_start: str = ""
    """Why ``theta_0`` is not known."""
    reached: set[str] = field(default_factory=set)
    """Parameters that a tracked step has given a gradient; the others take no part in training."""
    frozen: dict[str, int] = field(default_factory=dict)
    """Parameters that were not trained when the run began, with their versions then."""

    def find_start(self) -> dict[str, Tensor]:
        """``theta_0``, as far as it is known. What was frozen when the run began, and was not written to since, is still
        there."""
        for name in [n for n in self.frozen if self.engine.cover.parameters[n].requires_grad]:
            p, version = self.engine.cover.parameters[name], self.frozen.pop(name)
            if p._version == version:
                self.start[name] = p.detach().clone()
        return self.start


class Measurement:
    """Made when the optimizer is about to step, finished when it has. ``record`` and ``heavy`` are what it gives."""

    def __init__(self, instruments: Instruments, step: int, elapsed: float, epoch: float | None):
        self.instruments, self.engine = instruments, instruments.engine
        self.state, self.cover = self.engine.step, self.engine.cover
        self.plan, self.layers = self.state.plan, list(self.cover.parameters)
        self.record = Record("step", step, time.time(), elapsed, epoch=epoch, triggered=self.plan.triggered)
        self.heavy: list[Heavy] = []
        self.norms: dict[str, dict[str, float]] = {}  # of parameters and update, measured once
        self.norms_asked: Callable[[], dict[str, float]] = dict  # of the update, on their way
        self.ids: np.ndarray | None = None
        self.partly = ""
        """Why there are no numbers of the whole network although some layers have them."""
        self.backpack = BackpackValues()
        self.rates = read_rates(instruments.optimizers)
        self.before: Statistics | None = None  # what is known before the step
        self.movable = self._movable()
        self.engine.note_start(copy_before(self.state, self.plan, self.movable, whole=self._in_rounds))
        if not self.state.in_closure:
            self._measure_before()

    def _measure_before(self) -> None:
        reason = self.engine.finish_alpha()
        if reason:
            self.record.missing["Alpha"] = reason
        if reason == MOVED:
            self.instruments.warn("moved", MOVED_AND_THEN)
        if not self.plan.record:
            return
        for name, reason in self.engine.settle_cover():
            self.instruments.note_uncovered(name, reason)
        self.partly = why_partly(n for n in self.state.failures if not self.cover.is_left_out(n))
        if "ids" in self.plan.needs:
            self.ids = join_ids(self.engine.group, self.state.ids)
        if self.plan.watched:
            self.engine.join_activations()
        if self.plan.extensions:
            self.backpack = self.engine.clock.timed("backpack", self._run_extensions)
        statistics = self.before = self._gather()
        clipped = ask_clipped(self.state, self.cover.trainable(), self.engine.is_unchanged)
        for quantity in self.plan.measured_at(Moment.BEFORE):
            self._measure(quantity, statistics)
        self._add_by_products(statistics, clipped)

    def _run_extensions(self) -> BackpackValues:
        """The BackPACK values that quantities of this step name."""
        engine, cover, loss_fn = self.engine, self.cover, self.instruments.loss_fn
        with engine.mute():
            return measure_extensions(self.plan.extensions, cover, loss_fn, self.state, engine.group, engine.batch_dim)

    def _trained(self) -> dict[str, Tensor]:
        reached = self.instruments.reached
        reached.update(self.state.gradient_norms)
        alone = not self._in_rounds and not self.state.in_closure
        known, now = self.movable if alone else self._movable(), self.state.gradient_norms
        return {
            n: p for n, p in known.items() if n in now or ((n in reached or self._in_rounds) and self.cover.holds(n))
        }

    @property
    def _in_rounds(self) -> bool:
        """One optimizer steps after the other, and the gradient of the next may come in between (a GAN)."""
        return len(self.instruments.optimizers) > 1

    def _movable(self) -> dict[str, Tensor]:
        """What may move at this step: in a round, what its other optimizers will move is frozen for a while."""
        trained, owned = self.cover.trainable(), (self.engine.owned() or set()) if self._in_rounds else set()
        chosen = ((n, p) for n, p in self.cover.parameters.items() if n in self.cover.selected)
        return {n: p for n, p in chosen if n in trained or id(p) in owned}

    def _gather(self, **more: Any) -> Statistics:
        given = self.instruments
        return gather_statistics(
            self.state, self.plan, self._trained(), step=self.record.step, time=self.record.time,
            start=given.find_start() if "start" in self.plan.needs else {},
            curvature=self.engine.curvature.kind, ids=self.ids, learning_rates=self.rates, known_norms=self.norms,
            backpack=self.backpack, **more,
        )  # fmt: skip

    def _measure(self, quantity: Quantity, statistics: Statistics) -> None:
        """One quantity: an error in it does not affect the others."""
        name, clock = quantity.name, self.engine.clock
        if "start" in quantity.needs and self.instruments.no_start:
            self.record.missing[name] = self.instruments.no_start
            return
        if self.cover.sharded:
            statistics = show_whole(statistics, quantity)
        start = clock.mark()
        try:
            self._take(name, quantity, statistics)
        except NoValue as reason:
            self.record.missing[name] = text_of(reason)
        except BaseException as error:
            with self.instruments.guard(name):
                raise error
        finally:
            clock.add(f"own {name}", start)

    def _take(self, name: str, quantity: Quantity, statistics: Statistics) -> None:
        value, layers, record = quantity.measure(statistics), self.layers, self.record
        if not self.partly and type(quantity).__module__.startswith("cockpit_core."):
            take_value(name, value, record.step, layers, record, self.heavy)
            return
        taken = Taken()  # a user's own quantity may return anything: all of it is recorded, or nothing
        take_value(name, value, record.step, layers, taken, taken.heavy)
        taken = layers_alone(taken, self.partly) if self.partly and is_individual(quantity.needs) else taken
        add_to_record(record, taken)
        self.heavy += taken.heavy

    def _add_by_products(self, statistics: Statistics, clipped: Callable[[], dict[str, float]]) -> None:
        record = self.record
        record.batch_size = statistics.batch_size
        record.scalars |= name_rates(self.rates)
        record.scalars |= clipped()
        if not self.partly:
            record.top_samples, longest = find_top_samples(statistics.arrays_of("norms"))
            record.scalars |= longest

    # ---- after the step -----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The optimizer has moved the parameters: measure the move."""
        if self.state.in_closure:
            if not self.state.measured:
                self.engine.measure()  # the closure did no backward pass: the gradient was there before
            self._measure_before()
        more = self.state.theta if self._in_rounds else ()
        update, self.norms_asked = find_update(self.state, self.cover.parameters, more)
        if self.plan.alpha_start:
            lengths = self.norms.get("parameters", {})
            reason = self.engine.start_alpha(self.record.step, update, self._norms_of_update, lengths)
            if reason:
                self.record.missing["Alpha"] = reason
        self.engine.free()
        if self.plan.record:
            later: dict[str, Any] = {"update": update, **self._look_again(update)}
            known = None if self._in_rounds else self.before  # in between, the next optimizer's gradients may have come
            statistics = self._gather(**later) if known is None else known.with_more(**later)
            self.before = None
            for quantity in self.plan.measured_at(Moment.AFTER):
                self._measure(quantity, statistics)
        if self.plan.probe:
            with self.instruments.guard("probe"):
                self.record.scalars |= self.engine.clock.timed("probe", self._probe, update)

    def _probe(self, update: dict[str, Tensor]) -> dict[str, float]:
        engine, loss_fn = self.engine, self.instruments.loss_fn
        return run_probe(
            self.plan.probe, self.state, self.cover, loss_fn, update,
            group=engine.group, batch_dim=engine.batch_dim, quietly=engine.mute,
        )  # fmt: skip

    def _norms_of_update(self) -> dict[str, float]:
        if "update" not in self.norms:
            self.norms["update"] = self.norms_asked()
        return self.norms["update"]

    def _look_again(self, update: dict[str, Tensor]) -> dict[str, Any]:
        """What only some quantities ask for, once the step is taken."""
        seen: dict[str, Any] = {}
        if "optimizer" in self.plan.needs:
            seen["optimizer"] = read_states(list(self.instruments.optimizers), self.cover.parameters)
        if self.plan.repeats:
            timed = self.engine.clock.timed
            own = seen["own_batch"] = timed("own batch", self._look_at_own_batch, update)
            if "preconditioned" in self.plan.needs and "preconditioned" not in own.reasons:
                states = {n: seen["optimizer"][n] for n in update if n in seen["optimizer"]}
                timed("preconditioned", self._look_at_preconditioned, own, states)
        return seen

    def _look_at_own_batch(self, update: dict[str, Tensor]) -> OwnBatch:
        engine = self.engine
        own_batch = look_again(
            self.state, self.cover, self.instruments.loss_fn, update, self._norms_of_update,
            needs=self.plan.needs, group=engine.group, quietly=engine.mute, checks=is_turn(engine.looked_again + 1),
        )  # fmt: skip
        engine.note_second_look(own_batch)
        return own_batch

    def _look_at_preconditioned(self, own: OwnBatch, states: dict[str, ParameterState]) -> None:
        engine = self.engine
        try:
            with engine.mute():
                own.preconditioned, vectors = find_preconditioned(
                    self.state, self.cover, self.instruments.loss_fn, states, engine.curvature,
                    group=engine.group, memory_budget=engine.memory_budget,
                )  # fmt: skip
            engine.curvature.eigenvectors["preconditioned"] = vectors
        except Exception as error:
            own.reasons["preconditioned"] = explain(error)
