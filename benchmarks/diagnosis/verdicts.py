"""From logs to verdicts: what the rules say of each run, by kind of evidence, and what the ported thresholds say.

Verdicts are small: ``saving`` keeps them, so that tables can be made again without logs.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.diagnosis.faults import FAULTS
from benchmarks.diagnosis.ported import MEANS, TOOLS, Trace
from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.diagnosis.replay import replay
from cockpit_core.events.data import RunData, load
from cockpit_core.foundation.records import Finding

MEAN = ("GradNorm", "GradNormClipped", "UpdateSize", "ParamNorm", "Distance", "LearningRate")
CURVATURE = ("HessMaxEV", "Alpha", "signal/steps_to_go")
Keep = Callable[[str, int], bool]  # whether rules see a column, at the n-th tracked step


def is_individual(name: str) -> bool:
    return name in ("NormTest", "InnerTest", "OrthoTest", "TopSampleNorm") or name.startswith("signal/loss_")


def is_mean(name: str) -> bool:
    return name == "Loss" or name in MEAN


def is_paced(name: str, count: int) -> bool:
    """As if each quantity had a pace of its own: the dear ones seldom, and not at the same steps."""
    if count <= 2 or name in ("Loss", "LearningRate"):
        return True
    every = 7 if name in ("HessMaxEV", "Alpha") else 3 if name in ("NormTest", "Distance", "UpdateSize") else 2
    return (count + len(name)) % every == 0 if not name.startswith("signal/") else count % 2 == 0


ALL = "everything"
KINDS: dict[str, Keep] = {
    "loss curve only": lambda name, count: name == "Loss",
    "+ mean gradient": lambda name, count: is_mean(name),
    "+ individual gradients": lambda name, count: is_mean(name) or is_individual(name),
    "+ curvature": lambda name, count: not name.startswith("signal/") or is_individual(name) or name in CURVATURE,
    ALL: lambda name, count: True,
    "everything, each at a pace of its own": is_paced,
}


@dataclass
class Alarm:
    """A broken or likely finding, retracted ones too: they were shown. ``at``: the step at which it was in the log."""

    name: str
    severity: str
    confidence: float
    at: int
    since: int


@dataclass
class Verdict:
    """One run and what was said about it. ``layer``: whether the first alarm that is right names the right layers; None
    where the fault has no layer, or nothing right was said. ``harmed`` is decided when all runs are known."""

    program: str
    case: str
    seed: int
    steps: int
    error: float
    alarms: dict[str, list[Alarm]]
    advice: list[str] = field(default_factory=list)
    layer: bool | None = None
    tools: dict[str, list[str]] = field(default_factory=dict)
    harmed: bool = False

    @property
    def grade(self) -> str:
        return self.case.partition("/")[0]

    @property
    def fault(self) -> str:
        return self.case.partition("/")[2]

    @property
    def seeded(self) -> bool:
        return self.grade in ("severe", "mild")

    @property
    def truth(self) -> tuple[str, ...]:
        return FAULTS[self.fault][2] if self.seeded else ()


def judge(data: RunData, keep: Keep) -> tuple[list[Finding], dict[str, int]]:
    """The findings, and at which step each became an alarm."""
    judge, at, count = Judge(), {}, -1
    judge.know(data.header)
    for kind, seen in replay(data.table):
        if kind == "log":
            news = judge.note(seen.step, seen.scalars) if keep("validation", count) else []
            at |= {
                finding.name: seen.step for finding in news if finding.severity != "advice" and finding.name not in at
            }
            continue
        count += 1
        kept = {name: value for name, value in seen.scalars.items() if keep(name, count)}
        layers = {name: vector for name, vector in seen.layers.items() if keep(name, count)}
        if kind == "start":
            judge.start(kept, seen.step, seen.generation)
            continue
        known = Observation(seen.step, kept, layers, seen.batch_size, seen.generation)
        if kind == "end":  # that it is over is known, whatever else is
            over = {name: value for name, value in seen.scalars.items() if name == "signal/finished"}
            known = replace(known, scalars=kept | over)
        for news in judge.finish(known) if kind == "end" else judge.see(known):
            if news.severity != "advice":
                at.setdefault(news.name, news.step)
    return rank(judge.found.values()), at


def names_right_layers(finding: Finding, where: list[str]) -> bool:
    """Layers are named, and all of them are those that the fault is in (or parts of them)."""
    return bool(finding.layers) and all(
        any(name == place or name.startswith(place + ".") for place in where) for name in finding.layers
    )


def trace_of(data: RunData, result: dict) -> Trace:
    steps, static = [], {}
    for kind, seen in replay(data.table):
        if kind == "start":
            static |= {name.removeprefix("signal/"): value for name, value in seen.scalars.items()}
        elif kind == "step":
            steps.append(seen)
    low, high = result["inputs"]
    classes = data.header.loss == "CrossEntropyLoss"
    return Trace(steps, data.header, static, (low, high), result["validation"], classes)


def read_verdict(folder: Path, kinds: tuple[str, ...] = tuple(KINDS)) -> Verdict:
    """Of one run: its result and its log."""
    result, data = json.loads((folder / "result.json").read_text()), load(folder / "log")
    verdict = Verdict(
        result["program"],
        result["case"],
        result["seed"],
        result["settings"]["steps"],
        round(result["validation"], 4),
        {},
    )
    for kind in kinds:
        findings, at = judge(data, KINDS[kind])
        bad = [f for f in findings if f.severity != "advice"]
        verdict.alarms[kind] = [Alarm(f.name, f.severity, f.confidence, at.get(f.name, f.since), f.since) for f in bad]
        if kind == ALL:
            verdict.advice = [f.name for f in findings if f.severity == "advice"]
            right = next((f for f in bad if f.name in verdict.truth), None)
            if right is not None and result["where"]:
                verdict.layer = names_right_layers(right, result["where"])
    verdict.tools = {tool: test(trace_of(data, result)) for tool, test in TOOLS.items()}
    return verdict


def read_verdicts(root: Path, kinds: tuple[str, ...] = tuple(KINDS), jobs: int = 1) -> list[Verdict]:
    """Of all runs that are done, in a fixed order."""
    folders = [(file.parent, kinds) for file in sorted(root.glob("*/*/result.json"))]
    if jobs == 1:
        return [read_verdict(*folder) for folder in folders]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        return pool.starmap(read_verdict, folders, chunksize=8)


def named_by(tool: str, verdict: Verdict) -> tuple[str, ...]:
    """The diagnoses that a tool's first words could mean."""
    said = verdict.tools.get(tool, [])
    return MEANS[said[0]] if said else ()
