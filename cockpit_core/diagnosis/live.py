"""Findings while training: judges each record before it is written, and tells the user's callback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit_core.foundation.records import Finding, Header, Record

if TYPE_CHECKING:
    from cockpit_core.diagnosis.judge import Judge

STOPS = ("broken", "likely")


class Live:
    """``on_finding`` is called with each finding that is new or has changed; the caller must guard against its
    errors. ``stop_on``: findings at least as bad ask the training to end. ``probes``: rules may ask for expensive
    probes."""

    def __init__(
        self, on_finding: Callable[[Finding], object] | None = None, stop_on: str | None = None, probes: bool = True
    ):
        self.on_finding, self.stop_on = on_finding, stop_on
        from cockpit_core.diagnosis import judge, replay  # forty small files: not read before they are needed

        self.judge: Judge = judge.Judge()
        self.judge.probing = probes
        self._rank, self._observe, self._feed = judge.rank, replay.observe, replay.feed
        self._plain_names = replay.plain_names
        self._known = 0
        self.stops = False
        self._told: dict[str, tuple[str, bool]] = {}

    @property
    def findings(self) -> list[Finding]:
        return self._rank(self.judge.found.values())

    def catch_up(self, folder: Path, step: int) -> None:
        """A resumed run: what its log says before ``step`` has been seen."""
        from cockpit_core.events.data import load

        data = load(folder)
        self.judge.know(data.header)
        self._feed(self.judge, data.table, step)

    def start(self, header: Header, record: Record, generation: int) -> list[Finding]:
        self.judge.know(header)
        return self.judge.start(record.scalars, record.step, generation)

    def see(self, header: Header, record: Record) -> list[Finding]:
        mark = hash((len(header.layers), len(header.options), header.batch_size))
        if mark != self._known:
            self._known = mark
            self.judge.know(header)
        return self.judge.see(self._observe(record, header.batch_size))

    def note(self, record: Record) -> list[Finding]:
        """What the user has logged."""
        return self.judge.note(record.step, self._plain_names(record.scalars))

    def finish(self, record: Record) -> list[Finding]:
        """The training is over."""
        return self.judge.finish(self._observe(record, 0))

    def tell(self, news: list[Finding]) -> None:
        """Tells each finding once, and again when it becomes worse or is retracted. ``stops``: the training shall
        end."""
        shown = {finding.name for finding in self.findings}
        fresh = [f for f in news if f.name in shown and self._told.get(f.name) != (f.severity, f.retracted)]
        self._told |= {finding.name: (finding.severity, finding.retracted) for finding in fresh}
        self.stops = any(self._stops(finding) for finding in fresh)
        for finding in fresh if self.on_finding is not None else ():
            self.on_finding(finding)  # type: ignore[misc]

    def _stops(self, finding: Finding) -> bool:
        if self.stop_on is None or finding.retracted:
            return False
        return finding.severity in STOPS[: STOPS.index(self.stop_on) + 1]


def check_stop(stop_on: str | None) -> str | None:
    if stop_on is not None and stop_on not in STOPS:
        raise ValueError(f"stop_on must be 'broken', 'likely' or None, got {stop_on!r}")
    return stop_on
