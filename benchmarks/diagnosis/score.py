"""Reads the runs of the benchmark and prints what the diagnosis is worth: ``python -m benchmarks.diagnosis.score FOLDER``.

Harm is decided by validation, not by the fault's name: a run is harmed if its error is above 1.15 times that of healthy
runs of its program plus 0.02. A healthy draw whose own error is above 1.5 times plus 0.05 counts as badly trained.
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


def judge(folder: Path, keep: Keep) -> list[Finding]:
    data, judge = load(folder), Judge()
    judge.know(data.header)
    for kind, seen in replay(data.table):
        kept = {name: value for name, value in seen.scalars.items() if keep(name)}
        if kind == "start":
            judge.start(kept, seen.step, seen.generation)
        else:
            layers = seen.layers if keep("GradNorm") else {}
            judge.see(Observation(seen.step, kept, layers, seen.batch_size, seen.generation))
    return rank(judge.found.values())


def read_outcomes(root: Path, keep: Keep) -> list[Outcome]:
    outcomes = []
    for file in sorted(root.glob("*/*/result.json")):
        r = json.loads(file.read_text())
        found = judge(file.parent / "log", keep)
        steps = r["settings"]["steps"]
        outcomes.append(Outcome(r["program"], r["case"], r["seed"], steps, r["validation"], found))
    usual = {
        program: statistics.median(o.error for o in outcomes if o.program == program and o.grade == "healthy")
        for program in {o.program for o in outcomes if o.grade == "healthy"}
    }
    for o in outcomes:
        base = usual.get(o.program, o.error)
        seeded = o.grade in ("severe", "mild")
        o.harmed = o.error > (1.15 * base + 0.02 if seeded else 1.5 * base + 0.05)
    return outcomes


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
            when = statistics.median(o.alarms[0].since / o.steps for o in first)
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


def precision(outcomes: list[Outcome]) -> dict[str, tuple[int, int]]:
    """For each diagnosis: how often it was named first and was right, and how often it was named first."""
    right: Counter[str] = Counter()
    said: Counter[str] = Counter()
    for o in outcomes:
        for finding in o.alarms[:1]:
            said[finding.name] += 1
            right[finding.name] += finding.name in o.truth
    return {name: (right[name], said[name]) for name in sorted(said)}


def print_scores(root: Path) -> None:
    print(f"{root}: thresholds as they are in the package")
    for title, keep in KINDS.items():
        outcomes = read_outcomes(root, keep)
        print(f"\n{title}, {len(outcomes)} runs")
        for line in describe(outcomes):
            print(f"  {line}")
    print("\nby program (each has had no part in how the others were judged)")
    for program in sorted({o.program for o in outcomes}):
        print(f"  {program}")
        for line in describe([o for o in outcomes if o.program == program]):
            print(f"    {line}")
    print("\nwhat was named first, of runs with harm")
    for line in confusion(outcomes):
        print(f"  {line}")
    print("\nprecision of each diagnosis: right of said")
    for name, (right, said) in precision(outcomes).items():
        print(f"  {name:28s} {right} of {said}")


if __name__ == "__main__":
    print_scores(Path(sys.argv[1]))
