"""``python -m benchmarks.diagnosis.write``: from the verdicts of the benchmark to what the package says of itself.

Reads ``benchmarks/results/diagnosis*.json`` (written by ``score --save``). Writes the figures of ``docs/diagnosis.md``, between
its two marks, and ``cockpit_core/diagnosis/measured.py`` (precision of each diagnosis, from which confidence is made).
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.diagnosis import grading
from benchmarks.diagnosis.grading import Share
from benchmarks.diagnosis.ported import TOOLS
from benchmarks.diagnosis.programs import PROGRAMS
from benchmarks.diagnosis.run import list_cases
from benchmarks.diagnosis.saving import FILES, RESULTS, open_saved
from benchmarks.diagnosis.verdicts import ALL, KINDS, Verdict

ROOT = Path(__file__).resolve().parents[2]
WHOLE = len(list_cases(3, 300, list(PROGRAMS)))
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
TITLES = {
    "full": '"full" at every 5th step',
    "lean": 'what rules read of "full", at every 5th step',
    "default": "the default of `track`",
}
HEAD = "severe: recall / right cause first | mild | an alarm in healthy runs | badly trained | seeded without harm |"


def ratio(share: Share) -> str:
    return f"{share[0] / share[1]:.2f}" if share[1] else "-"


def of(share: Share) -> str:
    return f"{share[0]} of {share[1]}"


def make_row(title: str, verdicts: list[Verdict], kind: str = ALL) -> str:
    """One line of a table: what these runs, or this kind of evidence, are worth."""
    cells = [title]
    for grade in ("severe", "mild"):
        hurt = grading.harmed(verdicts, grade)
        recall, first = (grading.count(hurt, test(kind)) for test in (grading.is_found, grading.is_right))
        cells.append(f"{ratio(recall)} / {ratio(first)} (of {len(hurt)})")
    others = (
        grading.unseeded(verdicts, bad=False),
        grading.unseeded(verdicts, bad=True),
        grading.harmless(verdicts),
    )
    cells += [of(grading.count(runs, grading.is_found(kind))) for runs in others]
    return "| " + " | ".join(cells) + " |"


def make_table(first: str, rows: list[str]) -> list[str]:
    return [f"| {first} | {HEAD}", "|---" * 6 + "|", *rows, ""]


def describe(verdicts: list[Verdict]) -> list[str]:
    """What no table has."""
    hurt = {grade: grading.harmed(verdicts, grade) for grade in ("severe", "mild")}
    second = {grade: ratio(grading.count(runs, grading.is_right(ALL, 2))) for grade, runs in hurt.items()}
    when = {grade: 100 * grading.when_found(runs) for grade, runs in hurt.items()}
    when["all"] = 100 * grading.when_found(run for runs in hurt.values() for run in runs)
    blamed = grading.count(grading.unseeded(verdicts, bad=True), grading.blames_data)
    stated, right, number = grading.calibration(verdicts)
    return [
        f"- Right cause first or second: {second['severe']} of severe, {second['mild']} of mild faults.",
        f"- Median step at which the right cause is in the log: {when['all']:.1f} % of the run; {when['severe']:.1f} % (severe), "
        f"{when['mild']:.1f} % (mild).",
        f"- Right layer, where the fault has one and the cause is right: {of(grading.right_layers(verdicts))}.",
        f"- Badly trained runs blamed on data or labels with a confidence above 0.5: {of(blamed)}.",
        f"- Confidence of first causes {stated:.2f} on average; {right:.2f} of {number} were right.",
        "",
    ]


def tell_confusion(verdicts: list[Verdict]) -> list[str]:
    rows = ["| fault | runs with harm | right first | else |", "|---|---|---|---|"]
    for fault, named in grading.confusion(verdicts).items():
        others = ", ".join(f"{name} {number}" for name, number in named.most_common() if name != "right")
        rows.append(f"| {fault} | {named.total()} | {named['right']} | {others} |")
    return [*rows, ""]


def compare_tools(verdicts: list[Verdict]) -> list[str]:
    rows = [
        "| thresholds of | recall / right cause first | an alarm in healthy runs | badly trained |",
        "|---|---|---|---|",
    ]
    hurt = grading.harmed(verdicts, "severe") + grading.harmed(verdicts, "mild")
    recall, right = (ratio(grading.count(hurt, test())) for test in (grading.is_found, grading.is_right))
    alarms = [of(grading.count(grading.unseeded(verdicts, bad=bad), grading.is_found())) for bad in (False, True)]
    rows.append(f"| Cockpit | {recall} / {right} | {alarms[0]} | {alarms[1]} |")
    for tool in TOOLS:
        got = grading.grade_tool(tool, verdicts)
        rows.append(
            f"| {tool} | {ratio(got['recall'])} / {ratio(got['right'])} | {of(got['healthy'])} | {of(got['bad'])} |"
        )
    return [*rows, ""]


def largest(saved: dict[str, list[Verdict]]) -> str:
    """The way of tracking with the most runs; of as many, the first."""
    return max(saved, key=lambda name: len(saved[name]))


def tell_draw(verdicts: list[Verdict]) -> str:
    """How many runs of the whole, of which seeds. A part is an even draw: the runs of a seed are shuffled, seed by seed."""
    seeds = sorted({v.seed for v in verdicts if v.seeded})
    programs = len({v.program for v in verdicts})
    listed = ", ".join(f"{seed} ({sum(v.seeded and v.seed == seed for v in verdicts)} runs)" for seed in seeds)
    return f"{len(verdicts)} of the {WHOLE:,} runs, of {programs} programs, faults of seed{'s' * (len(seeds) != 1)} {listed}"


def make_page(saved: dict[str, list[Verdict]]) -> str:
    graded = {}
    for tracking, verdicts in saved.items():
        grading.decide_harm(verdicts)
        graded[tracking] = grading.leave_out(verdicts)
    main, dense = largest(graded), next(iter(graded))  # full before lean before default
    runs = graded[main]
    programs = sorted({v.program for v in runs})
    return "\n".join([
        *(f"{tell_draw(own)}, tracked with {TITLES[name]}." for name, own in graded.items()),
        "Confidences, and the order of findings that they decide, are from the other programs only.",
        "",
        *make_table("tracked", [make_row(TITLES[name], own) for name, own in graded.items()]),
        f"With {TITLES[main]}:",
        "",
        *describe(runs),
        f"By kind of evidence, with {TITLES[dense]}:",
        "",
        *make_table("evidence", [make_row(kind, graded[dense], kind) for kind in KINDS]),
        f"By program, with {TITLES[main]}:",
        "",
        *make_table("program", [make_row(name, [v for v in runs if v.program == name]) for name in programs]),
        "What was named first where a fault did harm, severe and mild together; causes that no evidence separates count as equal:",
        "",
        *tell_confusion(runs),
        "Thresholds of published tools, read from their descriptions (`benchmarks/diagnosis/ported.py` names the sources) and "
        "tried on the same logs, severe and mild together:",
        "",
        *compare_tools(runs),
    ]).rstrip("\n")  # fmt: skip


def write_measured(verdicts: list[Verdict], path: Path) -> None:
    lines = [f'    "{name}": ({right}, {said}),' for name, (right, said) in grading.measure_precision(verdicts).items()]
    path.write_text(
        '"""Written by ``python -m benchmarks.diagnosis.write``: how often each diagnosis was named first, and was right."""\n\n'
        "MEASURED: dict[str, tuple[int, int]] = {  # right, named\n" + "\n".join(lines) + "\n}\n"
    )


def main() -> None:
    saved = {name: open_saved(RESULTS / file) for name, file in FILES.items() if (RESULTS / file).exists()}
    page = make_page(saved)
    document = ROOT / "docs" / "diagnosis.md"
    text = document.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    document.write_text(f"{before}{BEGIN}\n{page}\n{END}{after}")
    write_measured(saved[largest(saved)], ROOT / "cockpit_core" / "diagnosis" / "measured.py")
    print(page)


if __name__ == "__main__":
    main()
