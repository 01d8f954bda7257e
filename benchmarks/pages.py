"""The tables in README.md and docs/benchmarks.md, from the measured results: no figure is copied by hand.

A block lies between ``<!-- name: written by benchmarks/run.py -->`` and ``<!-- /name -->``. What was not measured has
no row, and a block without any says so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.intervals import combine
from benchmarks.measure import CONFIGURATIONS, OVERHEAD
from benchmarks.results import RESULTS, ROOT

PAGES = (ROOT / "README.md", ROOT / "docs" / "benchmarks.md")
MAIN = "overhead_configurations"
NOTHING = "Not measured yet: see the command above."
Results = dict[str, Any]


def load(folder: Path) -> dict[str, Results]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def make_table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return NOTHING
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def say_when(results: Results) -> str:
    m = results["machine"]
    clock = "" if m["clock"] == "wall" else ", processor time instead of wall-clock time"
    threads = "1 thread" if m["threads"] == 1 else f"{m['threads']} threads"
    text = (
        f"{m['date']} UTC, {m['cores']} cores ({m['processor']}), {threads}, torch {m['torch']}, load average "
        f"{m['load before']} before and {m['load after']} after{clock}, {m['took']} s."
    )
    return text if results.get("complete", True) else f"{text} Interrupted: not complete."


def share_clock(results: dict[str, Results], name: str) -> bool:
    """Whether something was timed by the clock and with the threads of the main measurement: others have no place beside
    it.
    """
    if MAIN not in results or name not in results:
        return False
    mine, main = results[name]["machine"], results[MAIN]["machine"]
    return all(mine[key] == main[key] for key in ("clock", "threads"))


def format_multiple(row: Results) -> str:
    m = row["multiple"]
    return f"{m['median']:.3g}x ({m['low']:.3g} to {m['high']:.3g})"


def format_megabytes(value: float) -> str:
    return f"+{value / 1000:.1f} GB" if value >= 995 else f"+{value:.0f} MB"


def format_2021(results: dict[str, Results], title: str) -> str:
    row = results["against_2021"]["rows"].get(title) if share_clock(results, "against_2021") else None
    return f"{row['multiple']['median']:.3g}x, {format_megabytes(row['extra MB'])}" if row else ""


# ---- blocks ----------------------------------------------------------------------------------------------------------


def write_costs(results: dict[str, Results]) -> str:
    """The short table of the README: one network, one clock."""
    measured, rows = results[MAIN]["rows"], []
    if "untracked, SGD" not in measured:
        return NOTHING
    peaks = results.get("memory_peaks", {"rows": {}})["rows"]
    for title in CONFIGURATIONS:
        if title in measured:
            memory = format_megabytes(peaks[title]["extra MB"]["median"]) if title in peaks else ""
            multiple = f"{measured[title]['multiple']['median']:.2g}x"
            rows.append([f"{title}, every step", multiple, memory, format_2021(results, title)])
    if share_clock(results, "intervals") and "full, SGD" in results["intervals"]["matrix"]:
        cell = results["intervals"]["matrix"]["full, SGD"]["64"]
        rows.append(["full, SGD, every 64th step", f"{cell['median']:.3g}x", "", ""])
    base = measured["untracked, SGD"]["seconds"]["median"]
    if share_clock(results, "idle"):
        extra = results["idle"]["extra microseconds"]["median"]
        multiple = f"{1 + 1e-6 * extra / base:.4f}x (+{extra:.0f} microseconds)"
        rows.append(["a step that is not scheduled", multiple, "", ""])
    table = make_table(["", "times the untracked step", "extra memory", "`cockpit-for-pytorch` 1.0.2"], rows)
    return f"{table}\n\n{say_costs(results[MAIN]['machine'], base)}"


def say_costs(m: Results, seconds: float) -> str:
    clock = "Wall-clock time" if m["clock"] == "wall" else "Processor time"
    return (
        f"{clock} on the CPU ({m['threads']} of {m['cores']} cores, load average {m['load before']}), medians, the paper's "
        f"CIFAR-10 network (3C3D, 895,210 parameters), batch 128; an untracked step takes {seconds:.2f} s."
    )


def write_configurations(results: dict[str, Results]) -> str:
    rows = [
        [title, format_multiple(row), f"{1e3 * row['seconds']['median']:.1f}", str(row["rounds"])]
        for title, row in results[MAIN]["rows"].items()
    ]
    return make_table(["", "multiple (quartiles)", "ms", "rounds"], rows)


def write_2021(results: dict[str, Results]) -> str:
    ours = results[MAIN]["rows"] if share_clock(results, "against_2021") else {}
    peaks = results.get("memory_peaks", {"rows": {}})["rows"]
    rows = []
    for title, row in results["against_2021"]["rows"].items():
        mine = format_multiple(ours[title]) if title in ours else ""
        memory = format_megabytes(peaks[title]["extra MB"]["median"]) if title in peaks else ""
        old = [format_multiple(row), format_megabytes(row["extra MB"]), str(row["rounds"])]
        rows.append([title, *old, mine, memory])
    head = ["", "1.0.2, multiple (quartiles)", "extra memory", "rounds", "Cockpit, multiple", "extra memory"]
    return make_table(head, rows)


def write_quantities(results: dict[str, Results]) -> str:
    found = results["overhead_quantities"]
    rows = [[t, format_multiple(r), f"{1e3 * r['seconds']['median']:.1f}"] for t, r in found["rows"].items()]
    return make_table(["", "multiple (quartiles)", "ms"], rows)


def write_instruments(results: dict[str, Results]) -> str:
    """In percent of an economy step, which is 100; and bytes in the light record."""
    found = results["instruments"]
    networks, sizes = found["networks"], found["bytes"]
    names = [name for name in next(iter(networks.values())) if name not in ("untracked", "economy")]
    rows = []
    for name in names:
        cells = [format_percent(rows_of[name]) for rows_of in networks.values()]
        rows.append([name, *cells, str(sizes[name]) if name in sizes else ""])
    return make_table(["", *(f"{name}, % more" for name in networks), "bytes per tensor and record"], rows)


def format_percent(row: Results) -> str:
    low, median, high = (100 * (row["multiple"][key] - 1) for key in ("low", "median", "high"))
    return f"{median:+.1f} ({low:+.0f} to {high:+.0f})"


def write_naive(results: dict[str, Results]) -> str:
    found = results["against_naive"]
    rows = [
        [network, title, format_multiple(row), f"{1e3 * row['seconds']['median']:.1f}"]
        for network, contestants in found["networks"].items()
        for title, row in contestants.items()
    ]
    return make_table(["network", "", "multiple (quartiles)", "ms"], rows)


TASKS = {"norms": "norms of individual gradients", "eigenvalue": "largest eigenvalue of the Hessian"}


def write_peers(results: dict[str, Results]) -> str:
    """Multiples of the untracked step; what a tool cannot do stays empty."""
    tables = []
    for task, networks in results["peers"]["tasks"].items():
        names = list(dict.fromkeys(n for found in networks.values() for n in found["rows"] if n != "untracked"))
        rows = []
        for network, found in networks.items():
            untracked = f"{1e3 * found['rows']['untracked']['seconds']['median']:.1f}"
            cells = [format_multiple(found["rows"][name]) if name in found["rows"] else "" for name in names]
            rows.append([network, untracked, *cells])
        tables.append(make_table([TASKS[task], "untracked, ms", *names], rows))
    return "\n\n".join(tables)


def write_networks(results: dict[str, Results]) -> str:
    """Multiples, with the number of rounds."""
    found = results["overhead_networks"]
    measured = {title for entry in found["networks"].values() for title in entry["rows"]}
    titles = [title for title, c in OVERHEAD.items() if c.optimizer == "SGD" and (c.judged or title in measured)]
    rows = []
    for name, entry in found["networks"].items():
        cells = [entry["rows"].get(title) for title in titles]
        shown = [format_rounds(cell) if cell else "" for cell in cells]
        untracked = f"{1e3 * entry['rows']['untracked']['seconds']['median']:.2f}"
        rows.append([name, f"{entry['parameters']:,}", str(entry["batch"]), untracked, *shown])
    head = ["", "parameters", "batch", "untracked, ms", *(title.replace(", SGD", "") for title in titles)]
    failed = "".join(f"\n\n{name} failed: {reason}" for name, reason in found.get("failed", {}).items())
    return make_table(head, rows) + failed


def format_rounds(row: Results) -> str:
    """A curvature that has no value, or is an estimate where others are exact, says so."""
    note = row.get("curvature", "exact")
    note = "" if note == "exact" or note.startswith("Monte-Carlo") else f", {note}"
    return f"{row['multiple']['median']:.3g}x ({row['rounds']}{note})"


def write_peaks(results: dict[str, Results]) -> str:
    found = results["memory_peaks"]
    base = found["rows"].get("untracked", {"once per process MB": {"median": 0}})["once per process MB"]["median"]
    rows = [
        [title, format_spread(row["extra MB"]), f"{max(0, row['once per process MB']['median'] - base):.0f}"]
        for title, row in found["rows"].items()
    ]
    head = ["", "extra peak of a tracked step, MB", "once per process (imports, compiled kernels), MB"]
    return make_table(head, rows) + f"\n\n{found['rounds']} processes each."


def write_depth(results: dict[str, Results], source: str = "memory_depth") -> str:
    found = results[source]
    depths = list(next(iter(found["rows"].values()), {}))
    budget = f"`memory_budget` of {found['budget MB']} MB"
    sides = {"within": budget, "usual": f"{budget}, holes of malloc included", "without": "no limit"}
    rows = [
        [f"{config}, {words}", *(f"{cells[d][side]:.0f}" if side in cells.get(d, {}) else "" for d in depths)]
        for config, cells in found["rows"].items()
        for side, words in sides.items()
        if any(side in cell for cell in cells.values())
    ]
    activations = [f"{found['activations MB per layer'] * int(depth):.0f}" for depth in depths]
    head = ["extra MB", *(f"{depth} layers" for depth in depths)]
    return make_table(head, [*rows, ["activations of the network itself", *activations]])


def format_spread(row: Results) -> str:
    return f"{row['median']:.0f} ({row['low']:.0f} to {row['high']:.0f})"


def write_intervals(results: dict[str, Results]) -> str:
    """Measured cells with their number of cycles; combined ones in italics."""
    found = results["intervals"]
    matrix = {title: found["matrix"][title] for title in CONFIGURATIONS if title in found["matrix"]}
    rows = [[title, *(format_cell(cell) for cell in row.values())] for title, row in matrix.items()]
    intervals = list(next(iter(matrix.values()), {}))
    return make_table(["", *intervals], rows) + check_combining(found)


def format_cell(cell: Results) -> str:
    return f"*{cell['median']:.2f}*" if cell["how"] == "combined" else f"{cell['median']:.2f} ({cell['cycles']})"


def check_combining(found: Results) -> str:
    """What combining would have given for the one long cell that is measured."""
    cell = found["matrix"].get("full, SGD", {}).get("64", {"how": "combined"})
    if cell["how"] == "combined":
        return ""
    said = combine(found["phases"]["full, SGD"], 64)["median"]
    spread = f"{cell['median']:.2f} ({cell['low']:.2f} to {cell['high']:.2f} over {cell['cycles']} cycles)"
    return f'\n\n"full" at every 64th step, measured: {spread}; combining would have said {said:.2f}.'


def write_eigenvalue(results: dict[str, Results]) -> str:
    rows = []
    for network, found in results["eigenvalue"]["networks"].items():
        for method, row in found["methods"].items():
            needed, stop, error = (row[k] for k in ("products to 1e-3", "products to its stop", "largest error there"))
            reached = [f"missed at {row['missed at']}", ""]
            if needed is not None:
                reached = [f"{needed:.0f}", f"{row['seconds to 1e-3']:.2f}"]
            rows.append([network, method, *reached, f"{stop:.0f}", f"{error:.1g}"])
    head = ["network", "method", "products to 1e-3", "seconds", "products to its stop", "largest error there"]
    return f"{make_table(head, rows)}\n\n{write_misses(results['eigenvalue'].get('training', {}))}".rstrip()


def write_misses(found: Results) -> str:
    keys = ["points", "products", "errors above 1e-3", "largest error"]
    rows = [[name, *(f"{row[key]:.3g}" for key in keys)] for name, row in found.items()]
    return make_table(["small network in training", *keys], rows) if rows else ""


def write_histograms(results: dict[str, Results]) -> str:
    found = results["histogram_kernels"]
    paths = list(next(iter(found["balances"].values()), {}))
    rows = [
        [f"2D of stored gradients, {p}", *(f"{r[p]['median']:.2f}" for r in found["balances"].values())] for p in paths
    ]
    table = make_table(["balance b", *found["balances"]], rows)
    kernels = found["kernels"]
    names = list(next(iter(kernels.values()), {}))
    more = [[name, *(f"{kernels[scale][name]['median']:.2f}" for scale in kernels)] for name in names]
    scales = make_table(["size of the gradients", *kernels], more)
    return f"{table}\n\n{scales}\n\nNanoseconds per element."


def write_scaling(results: dict[str, Results]) -> str:
    rows = []
    for axis, sizes in results["scaling"]["axes"].items():
        cells = "; ".join(f"{size}: {row['economy']['multiple']['median']:.2g}x" for size, row in sizes.items())
        rows.append([axis, cells])
    return make_table(["", "economy at every step"], rows)


def write_idle(results: dict[str, Results]) -> str:
    extra, base = results["idle"]["extra microseconds"], results["idle"]["untracked microseconds"]
    spread = f"({extra['low']:.1f} to {extra['high']:.1f})"
    text = (
        f"{extra['median']:.1f} microseconds {spread} more than the untracked step, which takes {base['median']:.0f}."
    )
    others = {kind: row for kind, row in results["idle"].get("kinds", {}).items() if kind != "loss module"}
    words = {"function": "a loss function", "loss of the model": "a loss that the model computes"}
    rows = (f"with {words[kind]} {row['extra microseconds']['median']:.1f}" for kind, row in others.items())
    return f"{text} That is with a loss module; {', '.join(rows)}." if others else text


BLOCKS: dict[str, tuple[str, Callable[[dict[str, Results]], str]]] = {
    "costs": (MAIN, write_costs),
    "configurations": (MAIN, write_configurations),
    "2021": ("against_2021", write_2021),
    "quantities": ("overhead_quantities", write_quantities),
    "instruments": ("instruments", write_instruments),
    "networks": ("overhead_networks", write_networks),
    "naive": ("against_naive", write_naive),
    "peers": ("peers", write_peers),
    "peaks": ("memory_peaks", write_peaks),
    "depth": ("memory_depth", write_depth),
    "depth256": ("memory_depth_256", partial(write_depth, source="memory_depth_256")),
    "intervals": ("intervals", write_intervals),
    "eigenvalue": ("eigenvalue", write_eigenvalue),
    "histograms": ("histogram_kernels", write_histograms),
    "scaling": ("scaling", write_scaling),
    "idle": ("idle", write_idle),
}
"""What each shows, and how."""


def write_block(name: str, results: dict[str, Results]) -> str:
    """What was measured, and when; the README tells that in words of its own."""
    source, write = BLOCKS[name]
    if source not in results:
        return NOTHING
    return write(results) if name == "costs" else f"{write(results)}\n\n{say_when(results[source])}"


def fill(text: str, results: dict[str, Results]) -> str:
    """The text with every block that it names written anew."""
    for name in BLOCKS:
        opening, closing = f"<!-- {name}: written by benchmarks/run.py -->", f"<!-- /{name} -->"
        pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
        if pattern.search(text):
            block = f"{opening}\n{write_block(name, results)}\n{closing}"
            text = pattern.sub(lambda _, block=block: block, text)
    return text


def write_pages(folder: Path = RESULTS, pages: tuple[Path, ...] = PAGES) -> None:
    results = load(folder)
    for page in pages:
        page.write_text(fill(page.read_text(), results))
