"""``cockpit diagnose``: what is wrong with some runs, as text or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.diagnosis.replay import judge_run
from cockpit_core.events.data import RunData, load
from cockpit_core.foundation.records import Finding
from cockpit_core.report.findings import is_alarm, show_findings
from cockpit_core.report.terminal import Terminal, clean, wrap
from cockpit_core.report.unlearned import add_unlearned


def print_diagnosis(runs: Sequence[Path], terminal: Terminal, *, as_json: bool, fail_on: str) -> int:
    """1 if some run has a finding at least as bad as ``fail_on``, else 0."""
    judged: dict[str, tuple[RunData, Judge]] = {}
    for run in runs:
        data = load(run)
        if data.table.header is None and not len(data.rows.step):
            raise ValueError(f"{run}: nothing in this log can be read" if data.broken else f"{run}: this log is empty")
        judged[str(run)] = data, judge_run(data)
    ranked = {name: add_unlearned(data, rank(judge.found.values())) for name, (data, judge) in judged.items()}
    if as_json:
        plain = [as_plain(name, ranked[name], list_unexamined(judge)) for name, (_, judge) in judged.items()]
        terminal.stream.write(json.dumps(plain, indent=1) + "\n")  # ASCII, with everything else escaped
    else:
        for name, (data, judge) in judged.items():
            terminal.write(terminal.paint(clean(name), "bold"))
            if judge.history.count or ranked[name]:
                show_findings(ranked[name], terminal, judge.not_examined())
            for line in describe_gaps(judge, data.broken):
                for part in wrap(clean(line), terminal):
                    terminal.write(terminal.paint(part, "dim"))
    return int(any(is_alarm(finding, fail_on) for findings in ranked.values() for finding in findings))


def find_early(judge: Judge) -> dict[str, str]:
    """Diagnoses that need more steps than the run has, and how many each of them needs."""
    count, late = judge.history.count, judge.history.late
    step = late[-1].step if late else -1
    early: dict[str, str] = {}
    for name, rule in judge.rules.items():
        least = max(rule.least, rule.hold)
        if name in judge.found or (rule.before_training and not rule.after):
            continue
        if count < least:
            early[name] = f"{least} tracked steps; there are {count}"
        elif step < rule.after:
            early[name] = f"step {rule.after}; the last one is {step}"
    return early


def list_unexamined(judge: Judge) -> dict[str, str]:
    """Every diagnosis that was not made, with the reason: evidence, steps, or an error of its own."""
    return find_early(judge) | judge.not_examined() | judge.failed


def describe_gaps(judge: Judge, broken: int) -> list[str]:
    """What else a reader should know before believing that nothing is wrong."""
    early, count, lines = find_early(judge).keys() - judge.not_examined().keys(), judge.history.count, []
    if not count and not judge.history.in_vain:
        lines.append("no step was tracked: there is nothing to judge yet")
    elif early:
        last = f"{count} tracked step{'s' * (count != 1)}, the last is step {judge.history.late[-1].step}"
        lines.append(f"too early for {len(early)} diagnos{'es' if len(early) > 1 else 'is'}: {last}")
    if judge.history.resumed:
        lines.append("resumed: rules about the beginning of a run see only what this log has of it")
    if broken:
        lines.append(f"{broken} damaged part{'s' * (broken != 1)} of the log skipped")
    for name, reason in judge.failed.items():
        lines.append(f"{name} could not be judged: {reason}")
    return lines


def as_plain(run: str, findings: Sequence[Finding], unexamined: dict[str, str]) -> dict[str, Any]:
    """For JSON, which has no infinities: open ends of a range are null."""
    plain = [asdict(finding) for finding in findings]
    for finding in plain:
        for item in finding["evidence"]:
            item.update({key: None for key in ("value", "low", "high") if not math.isfinite(item[key])})
    return {"run": run, "findings": plain, "not_examined": unexamined}
