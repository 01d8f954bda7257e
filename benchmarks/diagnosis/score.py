"""Reads the runs of the benchmark and prints what the diagnosis is worth: ``python -m benchmarks.diagnosis.score FOLDER``.

Harm is decided by validation, not by the fault's name: a run is harmed if its error is above 1.15 times that of the better
half of the healthy runs of its program plus 0.02. A healthy draw above 1.3 times plus 0.04 counts as badly trained. The
step of detection is the one at which the alarm stands in the log, not the one since which it holds.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.diagnosis.faults import FAULTS
from cockpit_core.diagnoses import all_diagnoses
from cockpit_core.diagnosis.confidence import weigh
from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.diagnosis.replay import replay
from cockpit_core.events.data import load
from cockpit_core.foundation.records import Finding

DATA = (
    "labels_random",
    "label_noise",
    "input_outliers",
    "data_not_shuffled",
    "targets_not_scaled",
    "inputs_not_scaled",
)
MEAN = ("GradNorm", "GradNormClipped", "UpdateSize", "ParamNorm", "Distance", "LearningRate")
CURVATURE = ("HessMaxEV", "Alpha", "signal/steps_to_go")
Keep = Callable[[str], bool]
Thin = Callable[[str, int], bool]


def is_individual(name: str) -> bool:
    return name in ("NormTest", "TopSampleNorm") or name.startswith("signal/loss_")


KINDS: dict[str, Keep] = {
    "loss curve only": lambda name: name == "Loss",
    "+ mean gradient": lambda name: name == "Loss" or name in MEAN,
    "+ individual gradients": lambda name: name == "Loss" or name in MEAN or is_individual(name),
    "+ curvature": lambda name: not name.startswith("signal/") or is_individual(name) or name in CURVATURE,
    "everything": lambda name: True,
}


@dataclass
class Outcome:
    """One run and what was said about it."""

    program: str
    case: str
    seed: int
    steps: int
    error: float
    findings: list[Finding]
    at: dict[str, int]  # at which step each alarm was first in the log
    harmed: bool = False

    @property
    def grade(self) -> str:
        return self.case.partition("/")[0]

    @property
    def truth(self) -> tuple[str, ...]:
        fault = self.case.partition("/")[2]
        return FAULTS[fault][2] if fault in FAULTS else ()

    @property
    def alarms(self) -> list[Finding]:
        """Retracted ones count: they were shown."""
        return [finding for finding in self.findings if finding.severity != "advice"]


def judge(folder: Path, keep: Keep, thin: Thin | None = None) -> tuple[list[Finding], dict[str, int]]:
    """The findings, and at which step each became an alarm. ``thin``: which columns a step has, by its number."""
    data, judge, at = load(folder), Judge(), {}
    judge.know(data.header)
    for count, (kind, seen) in enumerate(replay(data.table)):
        kept = {name: value for name, value in seen.scalars.items() if keep(name)}
        layers = dict(seen.layers) if keep("GradNorm") else {}
        if kind == "start":
            judge.start(kept, seen.step, seen.generation)
            continue
        if thin is not None:
            kept = {name: value for name, value in kept.items() if thin(name, count)}
            layers = {name: vector for name, vector in layers.items() if thin(name, count)}
        for news in judge.see(Observation(seen.step, kept, layers, seen.batch_size, seen.generation)):
            if news.severity != "advice":
                at.setdefault(news.name, news.step)
    return rank(judge.found.values()), at


def paced(name: str, count: int) -> bool:
    """As if each quantity had a pace of its own: the dear ones seldom, and not at the same steps."""
    if count <= 2 or name in ("Loss", "LearningRate"):
        return True
    every = 7 if name in ("HessMaxEV", "Alpha") else 3 if name in ("NormTest", "Distance", "UpdateSize") else 2
    return (count + len(name)) % every == 0 if not name.startswith("signal/") else count % 2 == 0


def read_outcomes(root: Path, keep: Keep, thin: Thin | None = None) -> list[Outcome]:
    outcomes = []
    for file in sorted(root.glob("*/*/result.json")):
        r = json.loads(file.read_text())
        found, at = judge(file.parent / "log", keep, thin)
        steps = r["settings"]["steps"]
        outcomes.append(Outcome(r["program"], r["case"], r["seed"], steps, r["validation"], found, at))
    decide_harm(outcomes)
    return outcomes


def decide_harm(outcomes: list[Outcome]) -> None:
    """By validation, against the better half of the healthy draws: the others may have drawn a bad learning rate."""
    usual = {}
    for program in {o.program for o in outcomes if o.grade == "healthy"}:
        errors = sorted(o.error for o in outcomes if o.program == program and o.grade == "healthy")
        usual[program] = statistics.median(errors[: (len(errors) + 1) // 2])
    for o in outcomes:
        base = usual.get(o.program, o.error)
        seeded = o.grade in ("severe", "mild")
        o.harmed = o.error > (1.15 * base + 0.02 if seeded else 1.3 * base + 0.04)


def share(part: int, whole: int) -> str:
    return f"{part / whole:.2f} ({part} of {whole})" if whole else "-"


def describe(outcomes: list[Outcome]) -> Iterable[str]:
    """The figures of one set of runs, a line each."""
    for grade in ("severe", "mild"):
        harmed = [o for o in outcomes if o.grade == grade and o.harmed]
        found = [o for o in harmed if o.alarms]
        first = [o for o in found if o.alarms[0].name in o.truth]
        second = [o for o in found if any(f.name in o.truth for f in o.alarms[:2])]
        yield (
            f"{grade}, harmed: recall {share(len(found), len(harmed))}, right cause first "
            f"{share(len(first), len(harmed))}, first or second {share(len(second), len(harmed))}"
        )
        if first:
            when = statistics.median(o.at.get(o.alarms[0].name, o.steps) / o.steps for o in first)
            yield f"{grade}: median step of detection {100 * when:.1f} % of the run"
        harmless = [o for o in outcomes if o.grade == grade and not o.harmed]
        yield f"{grade}, without harm: an alarm in {share(sum(bool(o.alarms) for o in harmless), len(harmless))}"
    healthy = [o for o in outcomes if o.grade in ("healthy", "awkward")]
    good, bad = [o for o in healthy if not o.harmed], [o for o in healthy if o.harmed]
    yield f"healthy: an alarm in {share(sum(bool(o.alarms) for o in good), len(good))}"
    yield f"badly trained: an alarm in {share(sum(bool(o.alarms) for o in bad), len(bad))}"
    blamed = [o for o in bad if any(f.name in DATA and f.confidence > 0.5 for f in o.alarms)]
    yield f"badly trained, data or labels blamed with confidence above 0.5: {share(len(blamed), len(bad))}"


def confusion(outcomes: list[Outcome]) -> Iterable[str]:
    """For each fault: what was named first, how often."""
    faults = sorted({o.case.partition("/")[2] for o in outcomes if o.truth})
    for fault in faults:
        own = [o for o in outcomes if o.truth and o.case.partition("/")[2] == fault and o.harmed]
        named = Counter(o.alarms[0].name if o.alarms else "nothing" for o in own)
        if own:
            yield f"{fault:20s} {len(own):3d}  " + ", ".join(f"{name} {count}" for name, count in named.most_common())


def precision(outcomes: Iterable[Outcome]) -> dict[str, tuple[int, int]]:
    """For each diagnosis: how often it was named first and was right, and how often it was named first."""
    right: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for o in outcomes:
        for finding in o.alarms[:1]:
            said[finding.name] += 1
            right[finding.name] += finding.name in o.truth
    return {name: (right[name], said[name]) for name in sorted(said)}


def calibration(outcomes: list[Outcome]) -> tuple[float, float, int]:
    """Confidence, from the other programs only, beside how often the first cause was right: mean, mean, count."""
    rules, stated, right = all_diagnoses(), [], []
    for program in {o.program for o in outcomes}:
        table = precision(o for o in outcomes if o.program != program)
        for o in outcomes:
            for finding in o.alarms[:1] if o.program == program else ():
                stated.append(weigh(rules[finding.name].confidence, *table.get(finding.name, (0, 0))))
                right.append(finding.name in o.truth)
    return (statistics.mean(stated), statistics.mean(right), len(right)) if right else (0.0, 0.0, 0)


def print_scores(root: Path) -> None:
    print(f"{root}: thresholds as they are in the package")
    for title, keep in KINDS.items():
        outcomes = read_outcomes(root, keep)
        print(f"\n{title}, {len(outcomes)} runs")
        for line in describe(outcomes):
            print(f"  {line}")
    print("\neverything, each quantity at a pace of its own")
    for line in describe(read_outcomes(root, KINDS["everything"], paced)):
        print(f"  {line}")
    print("\nby program")
    for program in sorted({o.program for o in outcomes}):
        print(f"  {program}")
        for line in describe([o for o in outcomes if o.program == program]):
            print(f"    {line}")
    print("\nwhat was named first, of runs with harm")
    for line in confusion(outcomes):
        print(f"  {line}")
    stated, right, count = calibration(outcomes)
    print(f"\nconfidence from the other programs {stated:.2f}, right {right:.2f} of {count}")
    print("\nprecision of each diagnosis: right of said")
    for name, (hits, said) in precision(outcomes).items():
        print(f"  {name:28s} {hits} of {said}")


if __name__ == "__main__":
    print_scores(Path(sys.argv[1]))
