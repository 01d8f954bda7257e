"""The tables in README.md and docs/benchmarks.md, from the measured results: no figure is copied by hand.

A block lies between ``<!-- name: written by benchmarks/run.py -->`` and ``<!-- /name -->``. What was not measured has
no row, and a block without any says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import CONFIGURATIONS, RESULTS, ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
PUBLISHED_2021 = {
    "economy, SGD": "10.7x, +1.1 GB",
    "economy, Adam": "16.1x, +2.2 GB",
    "business, SGD": "21x, +1.2 GB",
    "full, SGD": "236x, +4.0 GB",
}
"""Measured before this code existed, on two quiet cores of the same kind; stands in where it was not measured again."""

Results = dict[str, Any]


def load(folder: Path) -> dict[str, Results]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def make_table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return "Not measured yet: see the command above."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def say_when(results: Results) -> str:
    m = results["machine"]
    clock = "" if m["clock"] == "wall" else ", processor time instead of wall-clock time"
    threads = "1 thread" if m["threads"] == 1 else f"{m['threads']} threads"
    return (
        f"{m['date']} UTC, {m['cores']} cores ({m['processor']}), {threads}, torch {m['torch']}, load average "
        f"{m['load before']} before and {m['load after']} after{clock}, {results['rounds']} rounds."
    )


def format_multiple(row: Results) -> str:
    m = row["multiple"]
    return f"{m['median']:.3g}x ({m['low']:.3g} to {m['high']:.3g})"


def format_megabytes(value: float | None) -> str:
    if value is None:
        return ""
    return f"+{value / 1000:.1f} GB" if value >= 995 else f"+{value:.0f} MB"


def format_2021(all_results: dict[str, Results], title: str) -> str:
    """Measured here, or else the earlier figure, with a star."""
    row = all_results.get("against_2021", {}).get("rows", {}).get(title)
    if row is None:
        return f"{PUBLISHED_2021[title]} *" if title in PUBLISHED_2021 else ""
    memory = format_megabytes(row["extra MB"])
    return f"{row['multiple']['median']:.3g}x" + (f", {memory}" if memory else "")


# ---- blocks ----------------------------------------------------------------------------------------------------------


def write_costs(results: dict[str, Results]) -> str:
    """The short table of the README."""
    rows = []
    measured = results.get("overhead_configurations", {"rows": {}})["rows"]
    peaks = results.get("memory_peaks", {"rows": {}})["rows"]
    for title in CONFIGURATIONS:
        if title in measured:
            memory = format_megabytes(peaks[title]["extra MB"]["median"]) if title in peaks else ""
            old = format_2021(results, title)
            rows.append([f"{title}, every step", f"{measured[title]['multiple']['median']:.2g}x", memory, old])
    matrix = results.get("intervals", {"matrix": {}})["matrix"]
    if "full, SGD" in matrix:
        rows.append(["full, SGD, every 64th step", f"{matrix['full, SGD']['64']:.3g}x", "", ""])
    if "idle" in results:
        extra = results["idle"]["extra microseconds"]["median"]
        rows.append(["a step that is not scheduled", f"+{extra:.0f} microseconds", "", ""])
    table = make_table(["", "times the untracked step", "extra memory", "`cockpit-for-pytorch` 1.0.2"], rows)
    return table + ("\n\n" + say_costs(results, table) if rows else "")


def say_costs(results: dict[str, Results], table: str) -> str:
    text = "The paper's CIFAR-10 network (3C3D, 895,210 parameters), batch 128, on the CPU"
    if "overhead_configurations" in results:
        main = results["overhead_configurations"]
        seconds = main["rows"]["untracked, SGD"]["seconds"]["median"]
        m = main["machine"]
        clock = "" if m["clock"] == "wall" else " of processor time"
        text += f" ({m['threads']} of {m['cores']} cores; an untracked step takes {seconds:.2f} s{clock})"
    star = " \\* measured earlier, on two cores of the same kind." if " *" in table else ""
    return f"{text}.{star}"


def write_configurations(results: dict[str, Results]) -> str:
    main = results.get("overhead_configurations")
    if main is None:
        return make_table([], [])
    rows = [
        [title, format_multiple(row), f"{1e3 * row['seconds']['median']:.1f}", format_2021(results, title)]
        for title, row in main["rows"].items()
    ]
    table = make_table(["", "multiple (quartiles)", "ms", "`cockpit-for-pytorch` 1.0.2"], rows)
    star = "\n\n\\* measured earlier, on two quiet cores of the same kind." if " *" in table else ""
    return f"{table}{star}\n\n{say_when(main)}"


def write_multiples(name: str) -> Callable[[dict[str, Results]], str]:
    def write(results: dict[str, Results]) -> str:
        if name not in results:
            return make_table([], [])
        rows = [
            [title, format_multiple(row), f"{1e3 * row['seconds']['median']:.1f}"]
            for title, row in results[name]["rows"].items()
        ]
        return make_table(["", "multiple (quartiles)", "ms"], rows) + "\n\n" + say_when(results[name])

    return write


def write_networks(results: dict[str, Results]) -> str:
    if "overhead_networks" not in results:
        return make_table([], [])
    found = results["overhead_networks"]
    titles = list(next(iter(found["networks"].values())))
    rows = [
        [name, *(format_multiple(row[t]) if t != "untracked, SGD" else milliseconds(row[t]) for t in titles)]
        for name, row in found["networks"].items()
    ]
    return make_table(["", *titles], rows) + "\n\n" + say_when(found)


def milliseconds(row: Results) -> str:
    return f"{1e3 * row['seconds']['median']:.2f} ms"


def write_peaks(results: dict[str, Results]) -> str:
    if "memory_peaks" not in results:
        return make_table([], [])
    found = results["memory_peaks"]
    base = found["rows"].get("untracked", {"once per process MB": {"median": 0}})["once per process MB"]["median"]
    rows = [
        [title, format_spread(row["extra MB"]), f"{max(0, row['once per process MB']['median'] - base):.0f}"]
        for title, row in found["rows"].items()
    ]
    head = ["", "extra peak of a tracked step, MB", "once per process (imports, compiled kernels), MB"]
    return make_table(head, rows) + "\n\n" + say_when(found)


def format_spread(row: Results) -> str:
    return f"{row['median']:.0f} ({row['low']:.0f} to {row['high']:.0f})"


def write_intervals(results: dict[str, Results]) -> str:
    if "intervals" not in results:
        return make_table([], [])
    found = results["intervals"]
    intervals = list(next(iter(found["matrix"].values())))
    rows = [[title, *(f"{row[i]:.2f}" for i in intervals)] for title, row in found["matrix"].items()]
    direct = found.get("full every 64th step, measured")
    note = f" Measured directly, full at every 64th step: {direct:.2f}." if direct else ""
    return make_table(["", *intervals], rows) + "\n\n" + say_when(found) + note


def write_eigenvalue(results: dict[str, Results]) -> str:
    if "eigenvalue" not in results:
        return make_table([], [])
    rows = []
    for network, found in results["eigenvalue"]["networks"].items():
        for method, row in found["methods"].items():
            needed, stop, error = (row[k] for k in ("products to 1e-3", "products to its stop", "largest error there"))
            reached = [f"missed at {row['missed at']}", ""]
            if needed is not None:
                reached = [f"{needed:.0f}", f"{row['seconds to 1e-3']:.2f}"]
            rows.append([network, method, *reached, f"{stop:.0f}", f"{error:.1g}"])
    head = ["network", "method", "products to 1e-3", "seconds", "products to its stop", "largest error there"]
    return make_table(head, rows) + "\n\n" + say_when(results["eigenvalue"])


def write_scaling(results: dict[str, Results]) -> str:
    if "scaling" not in results:
        return make_table([], [])
    rows = []
    for axis, sizes in results["scaling"]["axes"].items():
        cells = "; ".join(f"{size}: {row['economy']['multiple']['median']:.2g}x" for size, row in sizes.items())
        rows.append([axis, cells])
    return make_table(["", "economy at every step"], rows) + "\n\n" + say_when(results["scaling"])


def write_idle(results: dict[str, Results]) -> str:
    if "idle" not in results:
        return make_table([], [])
    extra, base = results["idle"]["extra microseconds"], results["idle"]["untracked microseconds"]
    spread = f"({extra['low']:.1f} to {extra['high']:.1f})"
    text = f"{extra['median']:.1f} microseconds {spread} on a step of {base['median']:.0f}."
    return f"{text} {say_when(results['idle'])}"


BLOCKS: dict[str, Callable[[dict[str, Results]], str]] = {
    "costs": write_costs,
    "configurations": write_configurations,
    "one thread": write_multiples("overhead_one_thread"),
    "quantities": write_multiples("overhead_quantities"),
    "networks": write_networks,
    "naive": write_multiples("against_naive"),
    "peaks": write_peaks,
    "intervals": write_intervals,
    "eigenvalue": write_eigenvalue,
    "scaling": write_scaling,
    "idle": write_idle,
}


def fill(text: str, results: dict[str, Results]) -> str:
    """The text with every block that it names written anew."""
    for name, write in BLOCKS.items():
        opening, closing = f"<!-- {name}: written by benchmarks/run.py -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
        if pattern.search(text):
            block = f"{opening}\n{write(results)}\n{closing}"
            text = pattern.sub(lambda _, block=block: block, text)
    return text


def write_pages(folder: Path = RESULTS, pages: tuple[Path, ...] = PAGES) -> None:
    results = load(folder)
    for page in pages:
        page.write_text(fill(page.read_text(), results))
