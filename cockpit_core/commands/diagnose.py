"""``cockpit diagnose``: what is wrong with some runs, as text or JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cockpit_core.diagnosis.judge import rank
from cockpit_core.diagnosis.replay import judge_run
from cockpit_core.events.data import load
from cockpit_core.foundation.records import Finding
from cockpit_core.report.findings import is_alarm, show_findings
from cockpit_core.report.terminal import Terminal, clean


def print_diagnosis(runs: Sequence[Path], terminal: Terminal, *, as_json: bool, fail_on: str) -> int:
    """1 if some run has a finding at least as bad as ``fail_on``, else 0."""
    found: dict[str, list[Finding]] = {}
    unexamined: dict[str, dict[str, str]] = {}
    for run in runs:
        data = load(run)
        if data.table.header is None and data.broken:
            raise ValueError(f"{run}: nothing in this log can be read")
        judge = judge_run(data)
        found[str(run)], unexamined[str(run)] = rank(judge.found.values()), judge.not_examined()
    if as_json:
        plain = [as_plain(name, found[name], unexamined[name]) for name in found]
        terminal.stream.write(json.dumps(plain, indent=1) + "\n")  # ASCII, with everything else escaped
    else:
        for name, findings in found.items():
            terminal.write(terminal.paint(clean(name), "bold"))
            show_findings(findings, terminal, unexamined[name])
    return int(any(is_alarm(finding, fail_on) for findings in found.values() for finding in findings))


def as_plain(run: str, findings: Sequence[Finding], unexamined: dict[str, str]) -> dict[str, Any]:
    """For JSON, which has no infinities: open ends of a range are null."""
    plain = [asdict(finding) for finding in findings]
    for finding in plain:
        for item in finding["evidence"]:
            item.update({key: None for key in ("value", "low", "high") if not math.isfinite(item[key])})
    return {"run": run, "findings": plain, "not_examined": unexamined}
