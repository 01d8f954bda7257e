"""``python -m benchmarks.diagnosis.score FOLDER``: what the rules are worth on runs that are there, without training again.

``FOLDER`` holds "lean" (or "full") and "default", as ``run`` leaves them. With ``--save`` the verdicts go into
``benchmarks/results``, from which ``write`` makes the page and the table of confidences.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnosis import grading
from benchmarks.diagnosis.grading import Share
from benchmarks.diagnosis.ported import TOOLS
from benchmarks.diagnosis.saving import FILES, RESULTS, save
from benchmarks.diagnosis.verdicts import ALL, KINDS, Verdict, read_verdicts


def show(share: Share) -> str:
    part, whole = share
    return f"{part / whole:.2f} ({part} of {whole})" if whole else "-"


def describe(verdicts: list[Verdict], kind: str = ALL) -> Iterator[str]:
    """The figures of one set of runs, a line each."""
    found, first, second = grading.is_found(kind), grading.is_right(kind), grading.is_right(kind, 2)
    for grade in ("severe", "mild"):
        hurt = grading.harmed(verdicts, grade)
        shares = (grading.count(hurt, test) for test in (found, first, second))
        recall, named, either = map(show, shares)
        yield f"{grade}, harmed: recall {recall}, right cause first {named}, first or second {either}"
    yield f"seeded without harm: an alarm in {show(grading.count(grading.harmless(verdicts), found))}"
    yield f"healthy: an alarm in {show(grading.count(grading.unseeded(verdicts, bad=False), found))}"
    yield f"badly trained: an alarm in {show(grading.count(grading.unseeded(verdicts, bad=True), found))}"


def describe_more(verdicts: list[Verdict]) -> Iterator[str]:
    """What is known with all evidence only."""
    bad = grading.unseeded(verdicts, bad=True)
    yield f"badly trained, data or labels blamed with confidence above 0.5: {show(grading.count(bad, grading.blames_data))}"
    hurt = {grade: grading.harmed(verdicts, grade) for grade in ("severe", "mild")}
    hurt["all"] = hurt["severe"] + hurt["mild"]
    for grade, runs in hurt.items():
        yield f"{grade}: median step of detection {100 * grading.when_found(runs):.1f} % of the run"
    yield f"right layer, where the fault has one: {show(grading.right_layers(verdicts))}"
    stated, right, number = grading.calibration(verdicts)
    yield f"confidence {stated:.2f}, right {right:.2f} of {number} first alarms"


def list_alarms(verdicts: list[Verdict]) -> Iterator[str]:
    """Alarms that should not be, for whoever repairs rules."""
    for title, runs in (
        ("healthy", grading.unseeded(verdicts, bad=False)),
        ("badly trained", grading.unseeded(verdicts, bad=True)),
        ("without harm", grading.harmless(verdicts)),
    ):
        for v in runs:
            if v.alarms[ALL]:
                yield f"{title}: {v.program} {v.case} {v.seed} ({v.error:.2f}): {', '.join(a.name for a in v.alarms[ALL])}"


def list_misses(verdicts: list[Verdict]) -> Iterator[str]:
    for fault, named in grading.confusion(verdicts).items():
        yield f"{fault:20s} " + ", ".join(f"{name} {number}" for name, number in named.most_common())


def print_scores(verdicts: list[Verdict]) -> None:
    grading.decide_harm(verdicts)
    graded = grading.leave_out(verdicts)
    for kind in (kind for kind in KINDS if all(kind in v.alarms for v in graded)):
        print(f"\n{kind}, {len(graded)} runs")
        print("\n".join(f"  {line}" for line in describe(graded, kind)))
    print("\n" + "\n".join(describe_more(graded)))
    print("\nby program")
    for program in dict.fromkeys(v.program for v in graded):
        print(f"  {program}")
        print("\n".join(f"    {line}" for line in describe([v for v in graded if v.program == program])))
    print("\nwhat was named first, of runs with harm")
    print("\n".join(f"  {line}" for line in list_misses(graded)))
    print("\nalarms that should not be")
    print("\n".join(f"  {line}" for line in list_alarms(graded)))
    print("\nthresholds of others on the same runs")
    for tool in TOOLS:
        print(
            f"  {tool:14s} "
            + ", ".join(f"{name} {show(part)}" for name, part in grading.grade_tool(tool, graded).items())
        )


def score(folder: Path, jobs: int, kinds: tuple[str, ...] = tuple(KINDS)) -> dict[str, list[Verdict]]:
    """{way of tracking: verdicts}; "full" counts for what it is. What the default of ``track`` leaves out need not be taken
    away again: there all that was recorded is read, once."""
    found = {name: read_verdicts(folder / name, (ALL,) if name == "default" else kinds, jobs) for name in FILES}
    return {name: runs for name, runs in found.items() if runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", action="store_true", help="into benchmarks/results")
    arguments = parser.parse_args()
    verdicts = score(arguments.folder, arguments.jobs)
    for tracking, runs in verdicts.items():
        print(f"\n==== tracked: {tracking}")
        print_scores(runs)
        if arguments.save:
            save(runs, RESULTS / FILES[tracking])


if __name__ == "__main__":
    main()
