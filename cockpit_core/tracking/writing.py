"""From a finished measurement to its record in the log: signals, notices, findings, costs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from cockpit_core.engine.clock import Mark
from cockpit_core.engine.engine import Engine
from cockpit_core.engine.step import StepState
from cockpit_core.foundation.faults import Faults
from cockpit_core.foundation.records import Record
from cockpit_core.recording.costs import bill
from cockpit_core.recording.measure import Measurement
from cockpit_core.recording.notices import find_all
from cockpit_core.recording.signals import list_parts
from cockpit_core.signals.collector import PREFIX, Collector
from cockpit_core.signals.recent import FEW, measure_recent, read_recent
from cockpit_core.tracking.log import Log


class StepWriter:
    """One for each run."""

    def __init__(self, log: Log, engine: Engine, signals: Collector, faults: Faults, losses: Iterable[float]):
        """``losses``: those of all recent steps, tracked or not."""
        self.log, self.engine, self.signals, self.faults, self.losses = log, engine, signals, faults, losses
        self.seconds: dict[str, float] = {}
        self.since: int | None = None  # the step of the last record whose recent losses are those of the run

    def take_seconds(self) -> dict[str, float]:
        """What the last record cost, by kind of work; once."""
        seconds, self.seconds = self.seconds, {}
        return seconds

    def note_left_out(self, text: str) -> None:
        """What the budget never allows; in the header that the next record brings along."""
        if text != self.log.header.options.get("left out", ""):
            self.log.header.options["left out"] = text

    def write(self, measured: Measurement, began: Mark, spent_before: float, step_began: Mark) -> bool:
        """``began``: when the work on this step began. True: a finding asks the training to end."""
        log, clock, record, state = self.log, self.engine.clock, measured.record, measured.state
        clock.timed("signals", self._add_signals, record, state)
        self._write_header(state)
        log.take_waiting(record, self.engine.alpha.take_fits())
        notices = find_all(record, measured.heavy, state.gradient_norms)
        record.notices = [*record.notices, *log.repeats.thin(notices, state.loss)]
        with self.faults.guard("diagnosis"):
            record.findings = clock.timed("diagnosis", log.live.see, log.header, log.writer.preview(record))
        total = clock.spent(began)
        self.seconds = clock.reset()
        step = clock.passed(step_began)
        record.costs = bill(self.seconds, measured.plan, total, step=step, before=spent_before)
        return log.write_step(record, measured.heavy)

    def _add_signals(self, record: Record, state: StepState) -> None:
        """The numbers that diagnoses rest on; see ``cockpit_core.signals``."""
        if self.signals.resting:
            return
        self.signals.turns.take(record.step)
        fits = self.engine.alpha.fits
        fit = fits[-1] if fits else None
        parts = list_parts(state, fit, list(self.signals.called), self.engine.cover.parameters)
        if state.backward_passes == 1 and state.loss is not None:  # with several passes only parts are seen
            own = self.signals.read_own_loss()
            parts.append(("recent losses", partial(read_recent, list(self.losses), own, state.loss)))
        record.scalars |= self.signals.collect(parts, state.transfer)
        self.since = record.step if PREFIX + "recent_loss" in record.scalars else None
        if self.signals.activity_names:
            self.log.header.options["activations"] = "\n".join(self.signals.activity_names)
        if self.signals.graph_loss:
            self.log.header.options["loss function"] = self.signals.graph_loss

    def sum_up(self, step: int, status: str, in_vain: int) -> dict[str, float]:
        """What is known of the steps behind the last record, for the one that ends a run. A training that has come to its end
        is judged by what it came to: nothing of it is still to come. ``in_vain``: losses without any step."""
        if status != "finished":
            return {}
        numbers = {"finished": 1.0} | ({"never_stepped": float(in_vain)} if in_vain else {})
        with self.faults.guard("closing"):
            if self.since is not None and step - self.since >= FEW:
                numbers |= measure_recent(list(self.losses)[-(step - self.since) :]) | self.signals.between.take()
        return {PREFIX + name: value for name, value in numbers.items()}

    def _write_header(self, state: StepState) -> None:
        header, cover = self.log.header, self.engine.cover
        header.batch_size = header.batch_size or state.batch_size
        header.notes = list(self.engine.cost_notes.values())
        self.log.write_header(cover, {n for n in cover.trainable() if n not in state.gradient_norms})
