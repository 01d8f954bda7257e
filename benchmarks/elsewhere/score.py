"""Scores what Cockpit says about the finished runs, offline: python -m benchmarks.elsewhere.score --half A [--detail]
[--logs folder]."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

from .programs import HALVES
from .run import logs_folder

ALARMS = ("broken", "likely")


def diagnosed(log: Path) -> list[dict[str, Any]]:
    """The findings about one log, in Cockpit's order."""
    import cockpit_core

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        findings = cockpit_core.diagnose(log)
    return [
        {
            "name": f.name,
            "severity": str(f.severity),
            "since": getattr(f, "since", None),
            "confidence": getattr(f, "confidence", None),
        }
        for f in findings
    ]


def first_told(log: Path, accepted: list[str]) -> float:
    """The step at which a right cause was first in the log as an alarm, as a share of the run; NaN where it never was."""
    from cockpit_core.diagnosis.judge import Judge
    from cockpit_core.diagnosis.replay import replay
    from cockpit_core.events.data import load as load_log

    data = load_log(log)
    judge, last, told = Judge(), 1, math.nan
    judge.know(data.header)
    calls = {"end": judge.finish, "log": lambda o: judge.note(o.step, o.scalars)}
    calls["start"] = lambda o: judge.start(dict(o.scalars), o.step, o.generation)
    for kind, seen in replay(data.table):
        news = calls.get(kind, judge.see)(seen)
        last = max(last, seen.step)
        if told != told and any(f.name in accepted and f.severity in ALARMS for f in news):
            told = seen.step
    return told / last


def load(folder: Path) -> list[dict[str, Any]]:
    """All results, each with what became of the run: healthy, badly trained, harmed, harmless, refused or crashed."""
    results = []
    for path in sorted(folder.glob("*/*/result.json")):
        result = json.loads(path.read_text())
        result["log"] = path.parent / "log"
        results.append(result)
    plain: dict[str, list[float]] = defaultdict(list)
    seeds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for r in results:
        r["value"] = math.inf if r["error"] is None else r["error"]
        if r["severity"] == "plain":
            plain[r["program"]].append(r["value"])
        seeds[r["program"], r["fault"], r["severity"]].append(r["value"])
    for r in results:
        if r.get("traceback"):  # track() itself may refuse a program, with a sentence that says why
            r["outcome"] = "refused" if "in track\n" in r["traceback"] and "ValueError" in r["traceback"] else "crashed"
            continue
        median = statistics.median(plain[r["program"]])
        if r["severity"] == "plain":
            r["outcome"] = "healthy"
        elif r["severity"] == "healthy":
            r["outcome"] = "badly trained" if r["value"] > 1.3 * median + 0.04 else "healthy"
        else:
            harmed = min(seeds[r["program"], r["fault"], r["severity"]]) > 1.15 * median + 0.02
            r["outcome"] = "harmed" if harmed else "harmless"
    return results


def judge(result: dict[str, Any]) -> None:
    """Adds the findings, and whether they are right."""
    try:
        result["findings"] = diagnosed(result["log"])
    except Exception as problem:  # counted as no alarm, and shown
        result["findings"] = []
        result["undiagnosed"] = repr(problem)
    alarms = [f["name"] for f in result["findings"] if f["severity"] in ALARMS]
    result["alarm"] = bool(alarms)
    result["first"] = bool(alarms) and alarms[0] in result["accepted"]
    result["anywhere"] = any(name in result["accepted"] for name in alarms)
    result["told"] = first_told(result["log"], result["accepted"]) if result["anywhere"] else math.nan


def share(rows: list[dict[str, Any]], key: str) -> str:
    hits = sum(row[key] for row in rows)
    return f"{hits:4d} / {len(rows):4d} {100 * hits / max(1, len(rows)):5.0f} %"


def table(results: list[dict[str, Any]]) -> str:
    """The summary: harmed faults, then alarms where nothing is wrong."""
    lines = [f"{'':34}{'any alarm':>20}{'right cause first':>20}{'right cause anywhere':>22}"]
    for severity in ("severe", "mild"):
        rows = [r for r in results if r["outcome"] == "harmed" and r["severity"] == severity]
        lines.append(
            f"{severity + ' faults that harm':34}{share(rows, 'alarm'):>20}{share(rows, 'first'):>20}{share(rows, 'anywhere'):>22}"
        )
        known = [r["told"] for r in rows if r["told"] == r["told"]]
        if known:
            lines.append(f"{'':4}told after {100 * statistics.median(known):.1f} % of the run (median of {len(known)})")
    for title, wanted, kinds in (
        ("false alarms: healthy and plain", "healthy", None),
        ("alarms: badly trained variants", "badly trained", None),
        ("alarms: harmless severe faults", "harmless", "severe"),
        ("alarms: harmless mild faults", "harmless", "mild"),
    ):
        rows = [r for r in results if r["outcome"] == wanted and kinds in (None, r["severity"])]
        extra = f"{share(rows, 'first'):>20}{share(rows, 'anywhere'):>22}" if kinds else ""
        lines.append(f"{title:34}{share(rows, 'alarm'):>20}{extra}")
    refused, crashed = (sum(r["outcome"] == word for r in results) for word in ("refused", "crashed"))
    failed = sum("undiagnosed" in r for r in results if r["outcome"] not in ("refused", "crashed"))
    lines.append(
        f"{len(results)} runs; {refused} refused by track() with an error, {crashed} crashed in training, "
        f"{failed} could not be diagnosed"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", required=True, choices=list(HALVES))
    parser.add_argument("--detail", action="store_true", help="one line for each run")
    parser.add_argument("--programs", action="store_true", help="one summary for each program as well")
    parser.add_argument("--logs", type=Path, default=logs_folder())
    options = parser.parse_args()
    results = load(options.logs / options.half)
    for result in results:
        judge(result)
        if options.detail:
            found = "; ".join(
                f"{f['name']} {f['severity']} since {f['since']} ({f['confidence']})" for f in result["findings"]
            )
            mark = (
                ""
                if result["severity"] in ("plain", "healthy")
                else " RIGHT"
                if result["first"]
                else " listed"
                if result["anywhere"]
                else " MISSED"
            )
            print(
                f"{result['program']:9} {result['severity']:7} {result['fault']:26} {result['seed']:2d} "
                f"{result['value']:7.3f} {result['outcome']:13}{mark} | {found or '-'}"
            )
    if options.programs:
        for name in sorted({r["program"] for r in results}):
            print(f"\n{name}\n{table([r for r in results if r['program'] == name])}")
    print(table(results))


if __name__ == "__main__":
    main()
