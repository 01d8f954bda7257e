"""What a training library's callback does with findings: one line in the terminal, two numbers in the logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cockpit_core.foundation.records import Finding
from cockpit_core.schema import tags
from cockpit_core.tracking.run import Run


def with_printing(options: dict[str, Any]) -> dict[str, Any]:
    """The options of ``track`` with a callback that prints; the user's own comes first."""
    own = options.get("on_finding")

    def tell(finding: Finding) -> None:
        if own is not None:
            own(finding)
        elif finding.severity != "advice":
            print(describe(finding), flush=True)

    return {**options, "on_finding": tell}


def describe(finding: Finding) -> str:
    """At most one line."""
    state = "retracted" if finding.retracted else finding.severity
    text = " ".join(f"{finding.text} {finding.remedy if not finding.retracted else ''}".split())
    return f"cockpit, step {finding.step}, {state}: {text}"[:400]


def take_latest(run: Run) -> dict[str, float]:
    """Headline scalars of the last record, once, under the names that the library's logger shows."""
    log = run._tracker.log
    latest, log.latest = log.latest, {}
    return {f"{tags.PREFIX}{name}": value for name, value in latest.items()}


def count_findings(findings: Sequence[Finding]) -> dict[str, float]:
    """How many are broken and likely now, under the names that the library's logger shows; nothing while there are
    none."""
    active = [finding.severity for finding in findings if not finding.retracted and finding.severity != "advice"]
    return (
        {f"{tags.PREFIX}findings_{kind}": float(active.count(kind)) for kind in ("broken", "likely")} if active else {}
    )
