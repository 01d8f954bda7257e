"""Findings as text: for ``cockpit diagnose``, ``cockpit ls`` and ``cockpit show``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cockpit_core.diagnosis.judge import rank
from cockpit_core.diagnosis.replay import judge_run
from cockpit_core.diagnosis.unexamined import describe
from cockpit_core.events.data import RunData
from cockpit_core.foundation.records import Evidence, Finding
from cockpit_core.report.terminal import Terminal, clean, format_number, wrap
from cockpit_core.report.unlearned import add_unlearned
from cockpit_core.schema.findings import SEVERITIES

PAINTS = {"broken": "failed", "likely": "crashed", "advice": "dim"}
SHOWN_EVIDENCE = 4


def known_findings(data: RunData) -> list[Finding]:
    """As the run itself wrote them; a log of an older version, which has none, is judged now."""
    judged = any(name.startswith("signal/") for name in data.table.columns)
    return add_unlearned(data, rank(data.findings if judged else judge_run(data).found.values()))


def is_alarm(finding: Finding, fail_on: str = "likely") -> bool:
    return not finding.retracted and SEVERITIES.index(finding.severity) <= SEVERITIES.index(fail_on)


def name_worst(findings: Sequence[Finding]) -> str:
    """For one cell of a table: the worst, and how many more."""
    alarms = [finding for finding in findings if is_alarm(finding)]
    if not alarms:
        return "-"
    return alarms[0].name + (f" +{len(alarms) - 1}" if len(alarms) > 1 else "")


def show_findings(findings: Sequence[Finding], terminal: Terminal, unexamined: dict[str, str] | None = None) -> None:
    """A few lines each: the sentence, the numbers with their healthy range, what follows from it, what to try."""
    if not findings and unexamined is not None:
        terminal.write("nothing wrong was found")
    for finding in findings:
        label = "retracted" if finding.retracted else finding.severity
        head = f"{label} since step {finding.since}: {finding.text}"
        paint = "dim" if finding.retracted else PAINTS.get(finding.severity, "dim")
        for i, line in enumerate(wrap(clean(head), terminal)):
            terminal.write(terminal.paint(line, paint) if i == 0 else line)
        details = [describe_evidence(item) for item in finding.evidence[:SHOWN_EVIDENCE]]
        details += [f"explains {', '.join(finding.explains)}"] if finding.explains else []
        details += [f"try: {finding.remedy}"] if finding.remedy else []
        sure = f", confidence {finding.confidence:.2f}" if finding.confidence > 0 else ""
        details += [f"{finding.name}{sure}; docs/diagnoses/{finding.name}.md"]
        for detail in details:
            for line in wrap(f"  {clean(detail)}", terminal):
                terminal.write(line)
    if unexamined:
        terminal.write(
            terminal.paint(
                f"not examined: {len(unexamined)} diagnos{'es' if len(unexamined) > 1 else 'is'}, for want of", "dim"
            )
        )
        wanted = describe(need for needs in unexamined.values() for need in needs.split(" or "))
        for line in wrap(f"  {', '.join(wanted)}", terminal):
            terminal.write(terminal.paint(line, "dim"))


def describe_evidence(item: Evidence) -> str:
    where = f" in {item.layer}" if item.layer else ""
    unit = f" {item.unit}" if item.unit else ""
    low, high = item.low, item.high
    if math.isfinite(low) and math.isfinite(high):
        healthy = f"; healthy {format_number(low)} to {format_number(high)}"
    elif math.isfinite(high):
        healthy = f"; healthy at most {format_number(high)}"
    else:
        healthy = f"; healthy at least {format_number(low)}" if math.isfinite(low) else ""
    return f"{item.text or item.name}: {format_number(item.value)}{unit}{where}{healthy}"
