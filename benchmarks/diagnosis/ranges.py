"""``python -m benchmarks.diagnosis.ranges FOLDER``: what healthy runs show of each number that has a limit.

Findings name a healthy range beside their numbers (``cockpit_core/diagnosis/limits.py``). Here it is measured: 1 to 99 % of all
tracked steps of the runs that trained well, and which share of steps lies outside of the stated range, or beyond the limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.diagnosis import grading
from benchmarks.diagnosis.run import folder_of
from benchmarks.diagnosis.verdicts import read_verdicts
from cockpit_core.diagnosis.judge import Judge
from cockpit_core.diagnosis.limits import LIMITS, Limit
from cockpit_core.diagnosis.replay import replay
from cockpit_core.diagnosis.view import View
from cockpit_core.events.data import load

Feature = Callable[[View], float]
ELSEWHERE: dict[str, Feature] = {  # limits that are not called like a feature or a signal
    "edge_low": lambda view: view.edge,
    "update_low": lambda view: view.update,
    "fluctuation_low": lambda view: view.fluctuation,
    "momentum": lambda view: view.facts.inertia,
    "leftover": lambda view: view.now("leftover"),
    "dead0": lambda view: view.first("dead"),
    "output_spread": lambda view: view.first("output_spread"),
    "vanishing": lambda view: view.vanishing[0],
    "dropout": lambda view: view.static("static_dropout"),
}


def find_feature(name: str) -> Feature:
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    return (lambda view: getattr(view, name)) if hasattr(View, name) else (lambda view: view.typical(name))


def watch(folder: Path, seen: dict[str, list[float]]) -> None:
    """Adds what one run shows at each tracked step."""
    data, judge = load(folder), Judge(())
    judge.know(data.header)
    for kind, step in replay(data.table):
        if kind == "start":
            judge.start(dict(step.scalars), step.step, step.generation)
            continue
        if kind == "log":
            judge.note(step.step, step.scalars)
        if kind != "step":
            continue
        judge.see(step)
        assert judge.facts is not None
        view = View(judge.history, judge.facts)
        for name, values in seen.items():
            value = find_feature(name)(view)
            if np.isfinite(value):
                values.append(float(value))


def describe(name: str, limit: Limit, values: list[float]) -> str:
    if not values:
        return f"| {name} | {limit.low:.3g} to {limit.high:.3g} | not seen | | |"
    low, high = np.quantile(values, (0.01, 0.99))
    outside = np.mean([not limit.low <= value <= limit.high for value in values])
    above = limit.value >= limit.high
    beyond = np.mean([value > limit.value if above else value < limit.value for value in values])
    return f"| {name} | {limit.low:.3g} to {limit.high:.3g} | {low:.3g} to {high:.3g} | {outside:.1%} | {beyond:.1%} |"


def main() -> None:
    root = Path(sys.argv[1])
    verdicts = read_verdicts(root, ())
    grading.decide_harm(verdicts)
    good = grading.unseeded(verdicts, bad=False)
    seen: dict[str, list[float]] = {name: [] for name in LIMITS}
    for v in good:
        watch(folder_of((v.program, v.case, v.seed), root) / "log", seen)
    print(f"{len(good)} runs that trained well\n")
    print("| limit | stated range | 1 to 99 % | outside | beyond the limit |\n|---|---|---|---|---|")
    print("\n".join(describe(name, limit, seen[name]) for name, limit in LIMITS.items()))


if __name__ == "__main__":
    main()
