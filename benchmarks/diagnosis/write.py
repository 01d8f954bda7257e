"""``python -m benchmarks.diagnosis.write FOLDER``: from the runs of the benchmark to what the package says of itself.

Writes ``cockpit_core/diagnosis/measured.py`` (precision of each diagnosis, from which confidence is made) and the figures
of ``docs/diagnosis.md``, between its two marks.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.diagnosis.score import KINDS, Outcome, calibration, paced, precision, read_outcomes

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


def share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def make_row(title: str, outcomes: list[Outcome]) -> str:
    """One line of the table: what this kind of evidence is worth."""
    cells = [title]
    for grade in ("severe", "mild"):
        harmed = [o for o in outcomes if o.grade == grade and o.harmed]
        found = [o for o in harmed if o.alarms]
        first = sum(o.alarms[0].name in o.truth for o in found)
        cells.append(f"{share(len(found), len(harmed))} / {share(first, len(harmed))} (of {len(harmed)})")
    healthy = [o for o in outcomes if o.grade in ("healthy", "awkward") and not o.harmed]
    cells.append(f"{sum(bool(o.alarms) for o in healthy)} of {len(healthy)}")
    return "| " + " | ".join(cells) + " |"


def describe_rest(outcomes: list[Outcome]) -> list[str]:
    harmless = [o for o in outcomes if o.grade in ("severe", "mild") and not o.harmed]
    bad = [o for o in outcomes if o.grade in ("healthy", "awkward") and o.harmed]
    lines = [
        f"Of {len(harmless)} seeded faults that did no harm to validation {sum(bool(o.alarms) for o in harmless)} raised "
        f"an alarm, and of {len(bad)} healthy draws that trained badly {sum(bool(o.alarms) for o in bad)}."
    ]
    for grade in ("severe", "mild"):
        right = [o for o in outcomes if o.grade == grade and o.harmed and o.alarms and o.alarms[0].name in o.truth]
        if right:
            when = statistics.median(o.at.get(o.alarms[0].name, o.steps) / o.steps for o in right)
            lines.append(f"Median step at which a {grade} fault is in the log: {100 * when:.1f} % of the run.")
    stated, right_share, count = calibration(outcomes)
    lines.append(
        f"Confidence, made of the other programs only, is {stated:.2f} on average; {right_share:.2f} of {count} first "
        "causes were right."
    )
    return lines


def make_page(root: Path) -> tuple[str, list[Outcome]]:
    table = [
        "| evidence | severe: recall / right cause first | mild | an alarm in healthy runs |",
        "|---|---|---|---|",
    ]
    for title, keep in KINDS.items():
        outcomes = read_outcomes(root, keep)
        table.append(make_row(title, outcomes))
    table.append(
        make_row("everything, each quantity at a pace of its own", read_outcomes(root, KINDS["everything"], paced))
    )
    programs = sorted({o.program for o in outcomes})
    head = (
        f"{len(outcomes)} runs of {len(programs)} programs ({', '.join(programs)}), with the thresholds of the package."
    )
    by_program = [
        "| program | severe: recall / right cause first | mild | an alarm in healthy runs |",
        "|---|---|---|---|",
        *(make_row(program, [o for o in outcomes if o.program == program]) for program in programs),
    ]
    return "\n".join([head, "", *table, "", *describe_rest(outcomes), "", *by_program]), outcomes


def write_measured(outcomes: list[Outcome], path: Path) -> None:
    lines = [f'    "{name}": ({right}, {said}),' for name, (right, said) in precision(outcomes).items()]
    path.write_text(
        '"""Written by ``python -m benchmarks.diagnosis.write``: how often each diagnosis was named first, and was right."""\n\n'
        "MEASURED: dict[str, tuple[int, int]] = {  # right, named\n" + "\n".join(lines) + "\n}\n"
    )


def main() -> None:
    page, outcomes = make_page(Path(sys.argv[1]))
    document = ROOT / "docs" / "diagnosis.md"
    text = document.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    document.write_text(f"{before}{BEGIN}\n{page}\n{END}{after}")
    write_measured(outcomes, ROOT / "cockpit_core" / "diagnosis" / "measured.py")
    print(page)


if __name__ == "__main__":
    main()
