"""Verdicts on disk: about a hundred bytes a run, so that two thousand of them are no burden to the repository.

A run is one line: program, case, seed, steps, error, alarms by kind of evidence, advice, right layer or not, what other
tools say. Names are numbers into a table at the head. An alarm is "number severity at-since", as in "12l15-5"; "=" stands for
the same alarms as with the kind before.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.diagnosis.verdicts import KINDS, Alarm, Verdict

RESULTS = Path(__file__).resolve().parents[1] / "results"
FILES = {"full": "diagnosis_full.json", "lean": "diagnosis.json", "default": "diagnosis_default.json"}
SEVERITIES = {"b": "broken", "l": "likely"}


class Names:
    """A table that grows: each name gets a number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.known.setdefault(name, len(self.known))


def save(verdicts: list[Verdict], path: Path) -> None:
    names, confidence = Names(), {}
    rows = [json.dumps(pack(verdict, names), separators=(",", ":")) for verdict in verdicts]
    for verdict in verdicts:
        confidence |= {alarm.name: alarm.confidence for alarms in verdict.alarms.values() for alarm in alarms}
    head = json.dumps({"names": list(names.known), "confidence": confidence})[1:-1]
    path.write_text("{" + head + ', "runs": [\n' + ",\n".join(rows) + "\n]}\n")


def pack(v: Verdict, names: Names) -> list[Any]:
    alarms, before = [], None
    for kind in KINDS:
        told = " ".join(f"{names.number(a.name)}{a.severity[0]}{a.at}-{a.since}" for a in v.alarms.get(kind, []))
        alarms.append("=" if told == before and told else told)
        before = told
    tools = {tool: [names.number(word) for word in said] for tool, said in v.tools.items() if said}
    return [v.program, v.case, v.seed, v.steps, v.error, alarms, [names.number(a) for a in v.advice], v.layer, tools]


def open_saved(path: Path) -> list[Verdict]:
    saved = json.loads(path.read_text())
    return [unpack(row, saved["names"], saved["confidence"]) for row in saved["runs"]]


def unpack(row: list[Any], names: list[str], confidence: dict[str, float]) -> Verdict:
    program, case, seed, steps, error, packed, advice, layer, tools = row
    alarms: dict[str, list[Alarm]] = {}
    before: list[Alarm] = []
    for kind, told in zip(KINDS, packed, strict=True):
        if told != "=":
            before = [read_alarm(word, names, confidence) for word in told.split()]
        alarms[kind] = list(before)
    said = {tool: [names[word] for word in words] for tool, words in tools.items()}
    return Verdict(program, case, seed, steps, error, alarms, [names[a] for a in advice], layer, said)


def read_alarm(word: str, names: list[str], confidence: dict[str, float]) -> Alarm:
    found = re.fullmatch(r"(\d+)([bl])(-?\d+)-(-?\d+)", word)
    assert found is not None, word
    name = names[int(found[1])]
    return Alarm(name, SEVERITIES[found[2]], confidence[name], int(found[3]), int(found[4]))
