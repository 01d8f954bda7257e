"""Decides what is a finding: a rule must hold for some tracked steps, causes absorb their symptoms, and some findings
are retracted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from cockpit_core.diagnosis.confidence import confidence_of
from cockpit_core.diagnosis.contract import Diagnosis, Found
from cockpit_core.diagnosis.facts import Facts
from cockpit_core.diagnosis.history import PROBE, History, Observation
from cockpit_core.diagnosis.unexamined import lacking
from cockpit_core.diagnosis.view import View
from cockpit_core.foundation.records import Evidence, Finding, Header
from cockpit_core.schema.findings import SEVERITIES

PATIENCE = 20  # tracked steps in a row at which a rule does not hold any more, before its finding is retracted
FEW = 3  # the same where few steps are tracked, if it has not held for as long as the run was old by then
FIRST, EVERY = 30, 4
"""Each of the first tracked steps is judged, later only some: all rules together take longer than a step of a tiny
network."""
PROBED_FROM = 8  # steps
EITHER, DECIDES = " Either this, or ", " What decides: "


class Judge:
    """One for each run; ``see`` takes the tracked steps in order and gives what is new at each."""

    def __init__(self, diagnoses: Iterable[Diagnosis] | None = None):
        rules = make_all() if diagnoses is None else list(diagnoses)
        self.rules = {rule.name: rule for rule in rules}
        self.history = History()
        self.facts: Facts | None = None
        self.streaks: dict[str, tuple[int, int]] = {}  # steps in a row, and the first of them
        self.absent: dict[str, int] = {}
        self.held: dict[str, int] = {}  # by rule: the last step at which it held
        self.found: dict[str, Finding] = {}
        self.alone: set[str] = set()  # findings that explain nothing else
        self.failed: dict[str, str] = {}
        self.probing = False  # the run is live: rules may ask for an expensive probe
        self.probe = ""  # what they would like to have at the next tracked step
        self.passed = 0  # tracked steps since the last that was judged, this one included

    def know(self, header: Header) -> None:
        """The header, again whenever it has changed."""
        self.facts = Facts(header)
        self.history.rms_decay = self.facts.rms_decay

    def start(self, scalars: dict[str, float], step: int, generation: int) -> list[Finding]:
        """``track`` was called, or the run goes on: what can be said before the next step."""
        self.history.start(scalars, step, generation)
        return self._judge(step, [rule for rule in self.rules.values() if rule.before_training])

    def see(self, seen: Observation) -> list[Finding]:
        """Findings that are new, have changed or are retracted at this tracked step."""
        high = self.history.highest.get("Loss", math.inf)
        self.history.add(seen)
        self.passed += 1
        if PROBE + self.probe in seen.scalars:  # made: not once more before the next judgement asks for it
            self.probe = ""
        urgent = seen.get("Loss") > high or seen.step == self.history.first_not_finite
        if self.history.count > FIRST and self.passed < EVERY and not urgent:
            return []
        news = self._judge(seen.step, self.rules.values())
        self.passed = 0
        return news

    def finish(self, seen: Observation) -> list[Finding]:
        """The training is over, and as it should be: what was given time has had it."""
        if not self.history.finish(seen):
            return []
        self.passed += 1
        news = self._judge(seen.step, self.rules.values())
        self.passed = 0
        return news

    def note(self, step: int, values: Mapping[str, float]) -> list[Finding]:
        """What the user logged; validation is judged at once."""
        if not self.history.note(step, values):
            return []
        return self._judge(step, [rule for rule in self.rules.values() if rule.at_validation])

    def _choose_probe(self, view: View) -> str:
        """One at a time. The probe made least often is next, and probes become rarer as the run grows older."""
        most, tried = allowed_probes(view.t), self.history.probes
        waiting: dict[str, int] = {}
        for rule in self.rules.values() if most else ():
            name = rule.probe
            if name and name not in waiting and tried.get(name, 0) < most and self._suspects(rule, view):
                waiting[name] = tried.get(name, 0)
        return min(waiting, key=lambda name: (waiting[name], name)) if waiting else ""

    def _suspects(self, rule: Diagnosis, view: View) -> bool:
        try:
            return rule.suspects(view)
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
            self.failed.setdefault(rule.name, f"{type(error).__name__}: {error}")
            return False

    def _judge(self, step: int, rules: Iterable[Diagnosis]) -> list[Finding]:
        if self.facts is None:
            return []
        before = dict(self.found)
        view = View(self.history, self.facts)
        for rule in rules:
            self._ask(rule, view, step)
        self._fold(step)
        self.probe = self._choose_probe(view) if self.probing else ""
        return [finding for name, finding in self.found.items() if is_news(before.get(name), finding)]

    def _ask(self, rule: Diagnosis, view: View, step: int) -> None:
        name = rule.name
        early = step < rule.after or (view.n < rule.least and not view.has_seen(rule.least))
        found = None
        if not early or (rule.before_training and view.n == 0):
            try:
                found = rule.test(view)
            except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError) as error:
                self.failed.setdefault(name, f"{type(error).__name__}: {error}")  # a rule never ends a training run
        if found is None:
            if name in self.streaks:
                del self.streaks[name]
            if name in self.found:
                self._miss(rule, step, view.sparse)
            return
        self.absent.pop(name, None)
        self.held[name] = step
        count, first = self.streaks.get(name, (0, step))
        sure = count + 1 >= 2 and view.sparse and step - first >= 5 * rule.hold
        count += max(self.passed, 1)
        self.streaks[name] = (count, first)
        sure = sure or found.at_once or (rule.at_end and view.finished)
        if ((count >= rule.hold or sure) and step - first >= rule.span) or view.n == 0:
            known = self.found.get(name)
            since = known.since if known is not None else first if found.since is None else found.since
            self.found[name] = make_finding(rule, found, since, step, known)
            (self.alone.add if found.alone else self.alone.discard)(name)

    def _miss(self, rule: Diagnosis, step: int, sparse: bool) -> None:
        known = self.found.get(rule.name)
        if known is None or known.retracted or rule.sticky or self.history.first_not_finite >= 0:
            return
        self.absent[rule.name] = self.absent.get(rule.name, 0) + max(self.passed, 1)
        gone = self.absent[rule.name]
        if gone >= PATIENCE or (sparse and gone >= FEW and step >= 2 * self.held.get(rule.name, step)):
            self.found[rule.name] = replace(known, retracted=True, step=step)

    def _fold(self, step: int) -> None:
        """Each finding names the others that follow from it. What made the loss NaN has broken the run, and a fact whose
        consequence is an alarm does harm."""
        active = {name for name, finding in self.found.items() if not finding.retracted}
        for name in active:
            known = self.found[name]
            follows = self._consequences(name, active) if name not in self.alone else []
            alarms = known.severity == "advice" and any(self.found[other].severity != "advice" for other in follows)
            if follows != known.explains or alarms:
                severity = "likely" if alarms else known.severity
                severity = "broken" if "not_finite" in follows and severity == "likely" else severity
                self.found[name] = replace(known, explains=follows, severity=severity, step=step)
        self._name_rivals(step)

    def _name_rivals(self, step: int) -> None:
        """Two causes that the evidence does not separate name one another, with what would decide."""
        if len(self.found) < 2:
            return
        alarms = {n: f for n, f in self.found.items() if not f.retracted and f.severity != "advice"}
        explained = {other for finding in alarms.values() for other in finding.explains}
        open_ = {name for name in alarms if name not in explained and name in self.rules}
        said: dict[str, tuple[str, str]] = {}
        for name in open_:
            for other, decides in self.rules[name].rivals.items():
                if other in open_:
                    said.setdefault(name, (self.rules[other].title, decides))
                    said.setdefault(other, (self.rules[name].title, decides))
        for name, known in self.found.items():
            if name in said or EITHER in known.text:
                told = say_either(known, said.get(name))
                self.found[name] = replace(told, step=step) if told.text != known.text else known

    def _consequences(self, name: str, active: set[str]) -> list[str]:
        """What a diagnosis explains of all that holds, directly or by way of others that hold: what is not there leads
        nowhere."""
        reached: dict[str, None] = {}
        waiting = list(self.rules[name].explains) if name in self.rules else []
        while waiting:
            other = waiting.pop(0)
            if other != name and other not in reached and other in active:
                reached[other] = None
                waiting += self.rules[other].explains if other in self.rules else ()
        return list(reached)

    def not_examined(self) -> dict[str, str]:
        """Diagnoses that could not be made, each with what would bring its evidence."""
        planned = self.facts.quantities if self.facts is not None else set()
        lacks = {name: lacking(rule.needs, self.history, planned) for name, rule in self.rules.items()}
        return {name: " or ".join(own) for name, own in lacks.items() if own}


def allowed_probes(step: int) -> float:
    """How many probes of one kind a run may have made by a step: one, and three more whenever it has become four
    times as long. A probe takes as long as a few steps, and healthy runs are suspected too before they have learned
    anything."""
    return 1 + 1.5 * math.log2(step / PROBED_FROM) if step >= PROBED_FROM else 0


def make_all() -> list[Diagnosis]:
    """The diagnoses of the folder, which is read only when it is needed: a judge knows no diagnosis by name."""
    from cockpit_core.diagnoses import all_diagnoses

    return [cls() for cls in all_diagnoses().values()]


def make_finding(rule: Diagnosis, found: Found, since: int, step: int, known: Finding | None) -> Finding:
    """Numbers and words are those of the first time, unless the finding has become worse or comes back."""
    severity = found.severity or rule.severity
    if known is not None and not known.retracted and SEVERITIES.index(severity) >= SEVERITIES.index(known.severity):
        return known
    return Finding(
        rule.name, severity, found.text, since, list(found.layers)[:100], known_only(found.evidence), found.remedy,
        confidence_of(rule.name, rule.confidence),
        step=step,
    )  # fmt: skip


def known_only(items: Iterable[Evidence]) -> list[Evidence]:
    """What was measured; of a finding whose only number is NaN that is what it tells."""
    every = list(items)
    return [item for item in every if item.value == item.value] or every


def say_either(finding: Finding, rival: tuple[str, str] | None) -> Finding:
    """The finding with the title of the other cause and what would decide; without a cause that no longer holds."""
    text, remedy = finding.text.partition(EITHER)[0], finding.remedy.partition(DECIDES)[0]
    if rival is not None:
        text, remedy = f"{text}{EITHER}{rival[0]}.", f"{remedy}{DECIDES}{rival[1]}"
    return replace(finding, text=text, remedy=remedy)


def is_news(before: Finding | None, now: Finding) -> bool:
    if before is None:
        return True
    return before is not now and (
        (before.text, before.severity, before.retracted, before.explains)
        != (now.text, now.severity, now.retracted, now.explains)
    )


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, causes only: what another finding explains is told there. Retracted ones stand last."""
    listed = list(findings)
    explained = {
        name for finding in listed if not finding.retracted for name in finding.explains if not finding.retracted
    }
    explained -= _mutual(listed)
    shown = [finding for finding in listed if finding.name not in explained or finding.retracted]
    return sorted(shown, key=_badness)


def _mutual(findings: list[Finding]) -> set[str]:
    """Two that explain each other would both vanish: the worse one stays."""
    active = [finding for finding in sorted(findings, key=_badness) if not finding.retracted]
    stays: set[str] = set()
    for i, finding in enumerate(active):
        if not any(finding.name in other.explains for other in active[:i]):
            worse = [o for o in active[i + 1 :] if finding.name in o.explains]
            if worse and all(o.name in finding.explains for o in worse):
                stays.add(finding.name)
    return stays


def _badness(finding: Finding) -> tuple[bool, int, float, int]:
    confidence = finding.confidence if math.isfinite(finding.confidence) else 0.0
    return finding.retracted, SEVERITIES.index(finding.severity), -confidence, finding.since
