"""What a run writes and says: its header, its records, its findings; and who is told of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cockpit_core.diagnosis.live import Live
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.plan import Plan
from cockpit_core.foundation.faults import Faults, is_interruption
from cockpit_core.foundation.records import AlphaFit, Finding, Header, Notice, Record
from cockpit_core.quantities import HEADLINES
from cockpit_core.recording.logged import as_number, is_too_large
from cockpit_core.recording.notices import Repeats
from cockpit_core.recording.values import Heavy


class Log:
    """``notices`` wait for the next record. ``leads``: whether this is the process that writes."""

    def __init__(self, writer: Any, logdir: Path, header: Header, live: Live, faults: Faults, *, leads: bool):
        self.writer, self.logdir, self.header = writer, logdir, header
        self.live, self.faults, self.leads = live, faults, leads
        self.began = time.monotonic() - (writer.past.last_time if writer.past else 0.0)
        self.status, self.ended = "waiting", False
        self.epoch: float | None = None
        self.notices: list[Notice] = []
        self.repeats = Repeats()
        self.latest: dict[str, float] = {}  # headline scalars of the last record, for other loggers
        self.subscribers: list[Callable[[], None]] = []
        self.subscriber_errors = 0
        self.without_gradient: set[str] = set()
        self.told: tuple | None = None  # what the last header said about the things that change

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def epoch_at(self, step: int) -> float | None:
        return step / self.header.steps_per_epoch if self.header.steps_per_epoch else self.epoch

    def note(self, step: int, kind: str, message: str, quantity: str = "", layer: str = "") -> None:
        self.notices.append(Notice(step, kind, message, quantity, layer))

    # ---- writing ------------------------------------------------------------------------------------------------

    def begin(self, start: Record, cover: Cover) -> None:
        """The first record, with what can be said before anything was measured."""
        with self.faults.guard("diagnosis"):
            if self.writer.past is not None:
                self.live.catch_up(self.logdir, start.step)
            start.findings = self.live.start(self.header, start, self.writer.generation)
        self.write_header(cover)
        self.writer.write_record(start)

    def write_header(self, cover: Cover, without_gradient: set[str] | None = None) -> None:
        """Written again whenever something in it has changed: coverage, batch size. ``without_gradient``: as before,
        if not given."""
        if without_gradient is not None:
            self.without_gradient = without_gradient
        without_gradient = self.without_gradient
        header, methods = self.header, tuple(cover.methods.items())
        told = methods, frozenset(without_gradient), tuple(header.notes), header.batch_size, str(header.options)
        if told == self.told:
            return
        self.told = told
        header.layers = cover.describe(without_gradient)
        header.covered = cover.share(header.layers)
        self.writer.write_header(header)

    def note_settings(self, settings: Mapping[str, str], cover: Cover) -> None:
        """What the user says about the run while it goes on."""
        self.check_open()
        self.header.options.update(settings)
        self.told = None
        self.write_header(cover)

    def check_open(self) -> None:
        if self.ended:
            raise RuntimeError("this run is closed; track the model again (with resume=True to continue the same log)")

    def write(self, record: Record) -> None:
        self.writer.write_record(record)
        self.status = "running"
        self.tell()

    def write_step(self, record: Record, heavy: list[Heavy]) -> bool:
        """Writes the record of a tracked step. Its headlines are also for those who do not read our records. True:
        the training shall end."""
        self.latest = {name: record.scalars[name] for name in HEADLINES if name in record.scalars}
        self.write(record)
        stops = self.announce(record.findings)
        for network, layers in heavy:
            self.writer.write_heavy(network.quantity, record.step, network, layers, keep=record.triggered)
        self.writer.write_scalars(self.latest, record.step)
        return stops

    def write_logged(self, values: Mapping[str, Any], step: int) -> bool:
        """What the user hands over; ``epoch`` is that of the steps that follow. True: the training shall end."""
        numbers = {name: as_number(name, value) for name, value in values.items()}
        self.check_open()
        for name in (name for name, value in values.items() if is_too_large(value)):
            text = f"Cockpit: run.log({name}=...) is too large for a float and is recorded as infinite."
            self.faults.warn(f"log {name}", text)
        if "epoch" in numbers:
            self.epoch = numbers.pop("epoch")
        scalars = {f"log/{name}": value for name, value in numbers.items()}
        record = Record("log", step, time.time(), self.elapsed, epoch=self.epoch_at(step), scalars=scalars)
        with self.faults.guard("diagnosis"):
            record.findings = self.live.note(record)
        with self.faults.guard("run.log"):
            self.write(record)
            self.writer.write_scalars(numbers, step)
        return self.announce(record.findings)

    def take_waiting(self, record: Record, alphas: list[AlphaFit]) -> None:
        """What waited for a record goes with this one."""
        record.alphas, record.notices, self.notices = alphas, self.notices, []

    def end(
        self, status: str, error: str, step: int, alphas: list[AlphaFit], known: Mapping[str, float] | None = None
    ) -> None:
        """``known``: what is known of the last steps; a run that ended as it should is judged once more."""
        self.status, self.ended = status, True
        with self.faults.guard("closing"):
            record = Record(
                "end", step, time.time(), self.elapsed, status=status, error=error, scalars=dict(known or {})
            )
            self.take_waiting(record, alphas)
            with self.faults.guard("diagnosis"):
                record.findings = self.live.finish(record)
            self.writer.write_record(record)
            self.tell()
            self.announce(record.findings)
        self.writer.close()

    def add_probe(self, plan: Plan, allowed: Callable[[], bool]) -> Plan:
        """The plan of the coming step, with the expensive probe that a diagnosis has asked for, if the step is on
        record and the budget allows it."""
        probe = self.live.judge.probe if plan.record else ""
        return replace(plan, probe=probe) if probe and allowed() else plan

    # ---- telling ------------------------------------------------------------------------------------------------

    def announce(self, news: list[Finding]) -> bool:
        """Tell the user's callback. An error in it is no reason to end the training, but a finding may be (True)."""
        if not news or not self.leads:
            return False
        with self.faults.guard("on_finding"):
            self.live.tell(news)
        return self.live.stops

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback) if callback in self.subscribers else None

    def tell(self) -> None:
        for callback in list(self.subscribers):
            try:
                callback()
            except BaseException as error:
                if is_interruption(error):
                    raise
                self.subscriber_errors += 1
