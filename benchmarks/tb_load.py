"""How long the TensorBoard tab takes: many runs, long runs, large ones. ``python benchmarks/tb_load.py [case ...]``

Writes ``benchmarks/results/tb_load.json``, medians over ``--rounds`` (3). Times count from the moment at which TensorBoard
has read the files, which is its own affair (the data server takes about a second for 200 MB). Every round has a
TensorBoard and a browser of its own: nothing is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.tb_browser import measure_first, measure_frames, open_browser, open_tab  # noqa: E402
from cockpit_core.events.writer import EventWriter  # noqa: E402
from cockpit_core.foundation import records  # noqa: E402
from cockpit_core.schema import cockpit_pb2 as pb  # noqa: E402
from tests import synthetic  # noqa: E402
from tests.e2e.tensorboard_server import BACKENDS, TensorBoard  # noqa: E402

BATCH = "/data/plugin/cockpit/batch"
RESULTS = Path(__file__).parent / "results" / "tb_load.json"
NETWORK = ("Loss", "ParamNorm", "GradNorm", "Distance", "UpdateSize", "NormTest", "InnerTest", "OrthoTest", "MeanGSNR")
MORE = ("EarlyStopping", "CABS", "HessTrace", "HessMaxEV", "TICDiag", "TICTrace", "LearningRate", "GradNormClipped")


def write_run(folder: Path, steps: int, layers: int, names: tuple[str, ...] = NETWORK + MORE, seed: int = 0) -> None:
    """Random numbers in records of the usual shape, of 32 bits as networks have them; histograms now and then."""
    infos = synthetic.make_layers(layers) if layers else []
    random = np.random.default_rng(seed)
    values = random.lognormal(size=(steps, len(names))).astype(np.float32)
    vectors = random.lognormal(size=(steps, len(synthetic.LAYERWISE), layers)).astype(np.float32) if layers else None
    with EventWriter(folder) as writer:
        writer.write_header(synthetic.make_header(folder.name, infos, 1, False))
        for step in range(steps):
            record = records.Record("step", step, time.time(), 0.01 * step, batch_size=64)
            record.scalars = dict(zip(names, values[step].tolist(), strict=True))
            if vectors is not None:
                record.layers = dict(zip(synthetic.LAYERWISE, vectors[step].astype(np.float64), strict=True))
                record.alphas = [records.AlphaFit(step, *random.normal(size=13).tolist())]
                if step % 500 == 0:
                    _write_histograms(writer, infos, step, random)
            writer.write_record(record)
        writer.write_record(records.Record("end", steps, time.time(), 0.01 * steps, status="finished"))


def _write_histograms(writer: EventWriter, layers: list[records.LayerInfo], step: int, random: Any) -> None:
    story = synthetic.Story(random, layers, step + 1, None, False, False)
    for quantity in ("GradHist1d", "GradHist2d"):
        parts = [synthetic._draw_histogram(story, quantity, step, layer.name, 500) for layer in layers]
        writer.write_heavy(quantity, step, synthetic._draw_histogram(story, quantity, step, size=2000), parts)


def wait_until_read(board: TensorBoard, expected: dict[str, int]) -> float:
    start = time.perf_counter()
    while True:
        runs = board.runs()
        if all(runs.get(name, {}).get("seq") == seq for name, seq in expected.items()):
            return time.perf_counter() - start
        time.sleep(0.2)


def timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def server_seconds(board: TensorBoard) -> float:
    """Processor time of TensorBoard itself; the data server is a process of its own."""
    return sum(psutil.Process(board.process.pid).cpu_times()[:2])


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Number by number, through nested groups."""
    first = rounds[0]
    return {
        key: medians([own[key] for own in rounds])
        if isinstance(value, dict)
        else statistics.median(own[key] for own in rounds)
        for key, value in first.items()
    }


def ten_runs(folder: Path, rounds: int) -> dict[str, Any]:
    """10 runs x 10,000 steps x 20 layers: the first picture, then frames of scrubbing, hovering, zooming and panning.

    With the data server only: TensorBoard's Python reader needs a minute for this much, and then answers alike.
    """
    expected = {f"run{number}": 10_001 for number in range(10)}
    for number, name in enumerate(expected):
        write_run(folder / name, 10_000, 20, seed=number)
    found = []
    for _ in range(rounds):
        with TensorBoard("--logdir", str(folder)) as board, open_browser() as browser:
            read = wait_until_read(board, expected)
            before = server_seconds(board)
            page, first = measure_first(browser, board, 10)
            first["server_cpu_s"] = server_seconds(board) - before
            page.wait_for_timeout(8000)  # histograms, layers and whole runs come after the first picture
            found.append({"tensorboard_reads_s": read, **first, **measure_frames(page)})
    return {"megabytes": _size(folder), **medians(found)}


def hundred_runs(folder: Path, rounds: int) -> dict[str, Any]:
    """100 runs in one log directory, ten of which are shown at first."""
    for number in range(100):
        write_run(folder / f"run{number:03d}", 500, 6, seed=number)
    result: dict[str, Any] = {"megabytes": _size(folder)}
    for name, flag in BACKENDS.items():
        found = []
        for _ in range(rounds if flag == "true" else 1):  # the Python reader takes most of a minute
            with TensorBoard("--logdir", str(folder), "--load_fast", flag) as board, open_browser() as browser:
                read = wait_until_read(board, {f"run{number:03d}": 501 for number in range(100)})
                listing = statistics.median(timed(board.runs) for _ in range(5))
                page, first = measure_first(browser, board, 10)
                page.wait_for_timeout(4000)
                frames = measure_frames(page, ("scrub", "zoom"))
                found.append({"tensorboard_reads_s": read, "listing_s": listing, **first, **frames})
        result[name] = medians(found)
    return result


def million(folder: Path, rounds: int, count: int = 1_000_000) -> dict[str, Any]:
    """One run of 1,000,000 light records: until all of it is drawn, a closer look, and what a poll costs then."""
    write_run(folder / "long", count, 0, NETWORK)
    found = []
    for _ in range(rounds):
        with TensorBoard("--logdir", str(folder)) as board, open_browser() as browser:
            read = wait_until_read(board, {"long": count + 1})
            found.append({"tensorboard_reads_s": read, **_watch_million(board, browser, count)})
    return {"megabytes": _size(folder), "records": count, **medians(found)}


STATUS = "document.querySelector('.ck-status').textContent"
LOADED = "{status}.includes('of {count} records drawn') && !{status}.includes('loading')"
NOTE_PROGRESS = """() => { window.told = new Set();
  setInterval(() => { const words = document.querySelector('.ck-status').textContent.match(/loading \\d+ %/);
    if (words) window.told.add(words[0]); }, 20); }"""
ZOOM = """async () => { const chart = document.querySelector('[data-panel="loss"] .ck-chart');
  chart.scrollIntoView({ block: 'center' });
  await new Promise((resolve) => setTimeout(resolve, 500)); // it is drawn once it is seen
  const box = chart.getBoundingClientRect();
  for (let i = 0; i < 20; i++) chart.dispatchEvent(new WheelEvent('wheel', { clientX: box.left + box.width / 2,
    clientY: box.top + 60, deltaY: -100, ctrlKey: true, bubbles: true, cancelable: true })); }"""


def _watch_million(board: TensorBoard, browser: Any, count: int) -> dict[str, Any]:
    start, before = time.perf_counter(), server_seconds(board)
    page = open_tab(browser, board)
    page.wait_for_selector(".ck-reading")
    first = time.perf_counter() - start
    page.evaluate(NOTE_PROGRESS)
    page.wait_for_function(LOADED.format(status=STATUS, count=f"{count + 1:,}"), timeout=300_000)
    whole, cpu = time.perf_counter() - start, server_seconds(board) - before
    told = page.evaluate("window.told.size")
    page.evaluate(ZOOM)
    closer = time.perf_counter()
    page.wait_for_function(f"!{STATUS}.includes('records drawn')", timeout=60_000)
    closer = time.perf_counter() - closer
    frames = measure_frames(page, ("scrub", "zoom"))
    before = server_seconds(board)
    page.wait_for_timeout(5000)
    idle = (server_seconds(board) - before) / 5
    poll = timed(lambda: pb.Batch.FromString(board.get(BATCH, run="long", since=count + 1, layers=0)))
    found = {"first_picture_s": first, "progress_told_times": told, "all_drawn_s": whole, "server_cpu_s": cpu}
    return {**found, "closer_look_s": closer, **frames, "poll_s": poll, "server_cpu_per_second_later": idle}


def _size(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)


PAGE = ROOT / "docs" / "tensorboard.md"
MARKS = ("<!-- measured: begin -->\n", "<!-- measured: end -->\n")
Row = tuple[str, str, str, Callable[[dict[str, Any]], float], str]
ROWS: list[Row] = [  # case, what, promise, figure, unit
    ("ten_runs", "10 runs x 10,000 steps x 20 layers: all ten drawn", "3 s", lambda x: x["all_runs_painted_s"], "s"),
    *(
        ("ten_runs", f"the same, a frame while {word}", "33 ms", lambda x, g=key: x[g]["frame_median_ms"], "ms")
        for key, word in (("scrub", "scrubbing"), ("hover", "hovering"), ("zoom", "zooming"), ("pan", "moving"))
    ),
    ("hundred_runs", "100 runs, the first ten drawn", "", lambda x: x["data server"]["all_runs_painted_s"], "s"),
    ("million", "1,000,000 light records: all of it drawn", "20 s", lambda x: x["all_drawn_s"], "s"),
    ("million", "the same: processor time of TensorBoard", "", lambda x: x["server_cpu_s"], "s"),
    ("million", "a closer look: every record of the part", "", lambda x: x["closer_look_s"], "s"),
    ("million", "the same, a frame while zooming", "33 ms", lambda x: x["zoom"]["frame_median_ms"], "ms"),
]


def write_table(results: dict[str, Any]) -> None:
    """The figures in docs/tensorboard.md, between its two marks."""
    lines = ["| what | promised | measured |", "|---|---|---|"]
    for case, what, promise, figure, unit in ROWS:
        if case in results:
            lines.append(f"| {what} | {promise and 'under ' + promise} | {figure(results[case]):.2g} {unit} |")
    machines = sorted({f"{own['machine']}, {own['rounds']} rounds" for own in results.values()})
    table = "\n".join([*lines, "", "Medians. " + "; ".join(machines) + ". Chromium without a graphics card.", ""])
    begin, end = MARKS
    head, _, rest = PAGE.read_text().partition(begin)
    PAGE.write_text(head + begin + table + end + rest.partition(end)[2])


CASES = {"ten_runs": ten_runs, "hundred_runs": hundred_runs, "million": million}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"some of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    known = json.loads(given.results.read_text()) if given.results.exists() else {}
    for name in given.cases or list(CASES):
        with tempfile.TemporaryDirectory() as folder:
            result = CASES[name](Path(folder), given.rounds)
        machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
        result |= {"rounds": given.rounds, "machine": machine}
        known[name] = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 4))
        given.results.parent.mkdir(exist_ok=True)
        given.results.write_text(json.dumps(known, indent=2) + "\n")
        print(name, json.dumps(known[name], indent=2))
    if given.results == RESULTS:
        write_table(known)


if __name__ == "__main__":
    main()
