"""From verdicts to figures. Harm is decided by validation over seeds, equivalent causes count as equal, and what was
calibrated on the benchmark (confidence, and the order of findings that rests on it) comes from the other programs only.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from benchmarks.diagnosis.healthy import NOISY
from benchmarks.diagnosis.verdicts import ALL, Alarm, Verdict, named_by
from cockpit_core.diagnoses import all_diagnoses
from cockpit_core.diagnosis.confidence import DATA as CAPPED
from cockpit_core.diagnosis.confidence import weigh
from cockpit_core.schema.findings import SEVERITIES

DATA = ("labels_random", "label_noise", "input_outliers", "data_not_shuffled", "targets_not_scaled", "inputs_not_scaled",
        "target_in_inputs", "labels_off_by_one", "class_imbalance", "constant_feature")  # fmt: skip
Share = tuple[int, int]


def decide_harm(verdicts: Iterable[Verdict]) -> None:
    """A seeded fault has done harm if in most seeds its error is above 1.15 times that of the plain run of the same seed
    plus 0.02. A healthy run is badly trained above 1.3 times the usual plain error plus 0.04; where noise was added to
    the targets, above twice that."""
    runs = list(verdicts)
    plain = {(v.program, v.seed): v.error for v in runs if v.grade == "plain"}
    for program in {v.program for v in runs}:
        own = [v for v in runs if v.program == program]
        known = [error for (name, _), error in plain.items() if name == program]
        usual = statistics.median(known or sorted(v.error for v in own if v.grade == "healthy") or [0.0])
        for v in own:
            worst = (1.3 * usual + 0.04) * (2 if v.case in NOISY else 1)
            v.harmed = v.error > (1.15 * plain.get((program, v.seed), usual) + 0.02 if v.seeded else worst)
        for case in {v.case for v in own if v.seeded}:
            seeds = [v for v in own if v.case == case]
            hurt = sum(v.harmed for v in seeds)
            for v in seeds:
                v.harmed = 2 * hurt > len(seeds) or (2 * hurt == len(seeds) and v.harmed)


def measure_precision(verdicts: Iterable[Verdict]) -> dict[str, Share]:
    """For each diagnosis: how often it was named first and was right, and how often it was named first. Healthy settings that
    trained badly do not count: they have a cause (a rate that was drawn too low, say), and nobody has written it down."""
    right: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for v in verdicts:
        if v.harmed and not v.seeded:
            continue
        for alarm in v.alarms[ALL][:1]:
            said[alarm.name] += 1
            right[alarm.name] += alarm.name in v.truth
    return {name: (right[name], said[name]) for name in sorted(said)}


def leave_out(verdicts: list[Verdict]) -> list[Verdict]:
    """The same runs with confidences from the other programs, and alarms in the order that these give."""
    rules, graded = all_diagnoses(), []
    for program in dict.fromkeys(v.program for v in verdicts):
        table = measure_precision(v for v in verdicts if v.program != program)

        def again(alarm: Alarm, table: dict[str, Share] = table) -> Alarm:
            estimate = rules[alarm.name].confidence if alarm.name in rules else alarm.confidence
            sure = min(0.5, estimate) if alarm.name in CAPPED else weigh(estimate, *table.get(alarm.name, (0, 0)))
            return replace(alarm, confidence=sure)

        for v in verdicts:
            if v.program == program:
                alarms = {kind: order(again(alarm) for alarm in own) for kind, own in v.alarms.items()}
                graded.append(replace(v, alarms=alarms))
    return graded


def order(alarms: Iterable[Alarm]) -> list[Alarm]:
    return sorted(alarms, key=lambda a: (SEVERITIES.index(a.severity), -a.confidence, a.since))


def count(verdicts: Iterable[Verdict], test: Callable[[Verdict], bool]) -> Share:
    runs = list(verdicts)
    return sum(test(v) for v in runs), len(runs)


def harmed(verdicts: Iterable[Verdict], grade: str) -> list[Verdict]:
    return [v for v in verdicts if v.grade == grade and v.harmed]


def harmless(verdicts: Iterable[Verdict]) -> list[Verdict]:
    return [v for v in verdicts if v.seeded and not v.harmed]


def unseeded(verdicts: Iterable[Verdict], bad: bool) -> list[Verdict]:
    """Healthy runs, awkward ones among them: those that trained well, or badly."""
    return [v for v in verdicts if not v.seeded and v.harmed == bad]


def is_found(kind: str = ALL) -> Callable[[Verdict], bool]:
    return lambda v: bool(v.alarms[kind])


def is_right(kind: str = ALL, within: int = 1) -> Callable[[Verdict], bool]:
    return lambda v: any(alarm.name in v.truth for alarm in v.alarms[kind][:within])


def blames_data(v: Verdict) -> bool:
    return any(alarm.name in DATA and alarm.confidence > 0.5 for alarm in v.alarms[ALL])


def when_found(verdicts: Iterable[Verdict]) -> float:
    """Median step of detection of the right first cause as a share of the run; NaN where nothing was right."""
    steps = [v.alarms[ALL][0].at / v.steps for v in verdicts if is_right()(v)]
    return statistics.median(steps) if steps else float("nan")


def right_layers(verdicts: Iterable[Verdict]) -> Share:
    return count((v for v in verdicts if v.layer is not None and v.harmed), lambda v: bool(v.layer))


def confusion(verdicts: Iterable[Verdict]) -> dict[str, Counter[str]]:
    """For each fault that did harm: what was named first, how often; equivalent causes under "right"."""
    table: dict[str, Counter[str]] = {}
    for v in verdicts:
        if v.seeded and v.harmed:
            first = v.alarms[ALL][0].name if v.alarms[ALL] else "nothing"
            table.setdefault(v.fault, Counter())["right" if first in v.truth else first] += 1
    return dict(sorted(table.items()))


def grade_tool(tool: str, verdicts: list[Verdict]) -> dict[str, Share]:
    """Recall, right cause and alarms of a published tool's thresholds."""

    def speaks(v: Verdict) -> bool:
        return bool(v.tools.get(tool))

    hurt = harmed(verdicts, "severe") + harmed(verdicts, "mild")
    return {
        "recall": count(hurt, speaks),
        "right": count(hurt, lambda v: any(name in v.truth for name in named_by(tool, v))),
        "healthy": count(unseeded(verdicts, bad=False), speaks),
        "bad": count(unseeded(verdicts, bad=True), speaks),
    }


def calibration(verdicts: list[Verdict]) -> tuple[float, float, int]:
    """Mean confidence of first alarms, how often they were right, and of how many. Give it what ``leave_out`` gave."""
    first = [(v.alarms[ALL][0], v) for v in verdicts if v.alarms[ALL]]
    if not first:
        return float("nan"), float("nan"), 0
    stated = statistics.mean(alarm.confidence for alarm, _ in first)
    return stated, statistics.mean(alarm.name in v.truth for alarm, v in first), len(first)
