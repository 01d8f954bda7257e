"""How long the TensorBoard tab takes: many runs, long runs, large ones. ``python benchmarks/tb_load.py [case ...]``

Writes ``benchmarks/results/tb_load.json``. Times count from the moment at which TensorBoard has read the files, which
is its own affair (the data server takes about a second for 200 MB).
"""

from __future__ import annotations

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

from cockpit_core import records  # noqa: E402
from cockpit_core.events.writer import EventWriter  # noqa: E402
from cockpit_core.schema import cockpit_pb2 as pb  # noqa: E402
from tests import synthetic  # noqa: E402
from tests.e2e.tensorboard_server import BACKENDS, TensorBoard  # noqa: E402

BATCH = "/data/plugin/cockpit/batch"
RESULTS = Path(__file__).parent / "results" / "tb_load.json"
NETWORK = ("Loss", "ParamNorm", "GradNorm", "Distance", "UpdateSize", "NormTest", "InnerTest", "OrthoTest", "MeanGSNR")
MORE = ("EarlyStopping", "CABS", "HessTrace", "HessMaxEV", "TICDiag", "TICTrace", "LearningRate", "GradNormClipped")


def write_run(folder: Path, steps: int, layers: int, names: tuple[str, ...] = NETWORK + MORE, seed: int = 0) -> None:
    """Random numbers in records of the usual shape."""
    infos = synthetic.make_layers(layers) if layers else []
    random = np.random.default_rng(seed)
    values = random.lognormal(size=(steps, len(names)))
    vectors = random.lognormal(size=(steps, 8, layers)).astype(np.float32) if layers else None
    with EventWriter(folder) as writer:
        writer.write_header(synthetic.make_header(folder.name, infos, 1, False))
        for step in range(steps):
            record = records.Record("step", step, time.time(), 0.01 * step, batch_size=64)
            record.scalars = dict(zip(names, values[step].tolist(), strict=True))
            if vectors is not None:
                record.layers = dict(zip(synthetic.LAYERWISE, vectors[step].astype(np.float64), strict=True))
                record.alphas = [records.AlphaFit(step, *random.normal(size=13).tolist())]
            writer.write_record(record)
        writer.write_record(records.Record("end", steps, time.time(), 0.01 * steps, status="finished"))


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


def ten_runs(folder: Path) -> dict[str, Any]:
    """10 runs x 10,000 steps x 20 layers: the first picture, and frames while scrubbing.

    With the data server only: TensorBoard's Python reader needs a minute for this much, and then answers alike.
    """
    expected = {f"run{number}": 10_001 for number in range(10)}
    for number, name in enumerate(expected):
        write_run(folder / name, 10_000, 20, seed=number)
    result: dict[str, Any] = {"megabytes": _size(folder)}
    with TensorBoard("--logdir", str(folder)) as board:
        result["tensorboard_reads_s"] = wait_until_read(board, expected)
        result |= measure_browser(board, 10)
    with TensorBoard("--logdir", str(folder)) as board:
        wait_until_read(board, expected)
        return result | measure_server(board, 10)


def measure_server(board: TensorBoard, runs: int) -> dict[str, float]:
    """The first answers for all runs, without a browser: elapsed, and the processor time of TensorBoard's process."""
    process = psutil.Process(board.process.pid)
    before = sum(process.cpu_times()[:2])
    elapsed = timed(lambda: [board.get(BATCH, run=f"run{i}", layers=0, max_points=2000) for i in range(runs)])
    return {"all_batches_s": elapsed, "all_batches_cpu_s": sum(process.cpu_times()[:2]) - before}


SCRUB = """async () => {
  const track = document.querySelector('.ck-track'), box = track.getBoundingClientRect();
  const send = (type, share) => track.dispatchEvent(new PointerEvent(type, {
    clientX: box.left + 10 + share * (box.width - 20), clientY: box.top + 20, bubbles: true, pointerId: 1 }));
  const times = [];
  send('pointerdown', 0);
  const end = performance.now() + 10000;
  for (let i = 0; i <= 90 && performance.now() < end; i++) {
    send('pointermove', i / 90);
    times.push(await new Promise((resolve) => requestAnimationFrame(resolve)));
  }
  send('pointerup', 1);
  return times.slice(1).map((time, i) => time - times[i]);
}"""


def measure_browser(board: TensorBoard, runs: int) -> dict[str, float]:
    """From opening the tab's own page to numbers of all runs in it, then the frames of a scrub through the training."""
    from playwright.sync_api import sync_playwright

    from scripts.find_browser import find_browser

    executable = find_browser()
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=arguments)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        start = time.perf_counter()
        page.goto(f"{board.url}data/plugin_entry.html?name=cockpit")
        page.wait_for_selector(".ck-reading")
        first = time.perf_counter() - start
        shown = (
            f"new Set([...document.querySelectorAll('.ck-reading')].map((e) => e.dataset.run)).size >= {min(4, runs)}"
        )
        page.wait_for_function(shown)
        page.wait_for_function(f"document.querySelectorAll('.ck-run').length >= {min(5, runs)}")
        whole = time.perf_counter() - start
        page.wait_for_timeout(8000)  # histograms, layers and whole runs come after the first picture
        chrome = page.context.new_cdp_session(page)
        chrome.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _script_seconds(chrome)
        frames = page.evaluate(SCRUB)
        script = _script_seconds(chrome) - before
        browser.close()
    return {
        "first_run_painted_s": first,
        "all_runs_painted_s": whole,
        "scrub_script_ms": 1000 * script / len(frames),  # processor time of our code; the rest is the rasteriser's
        "scrub_frame_median_ms": statistics.median(frames),
        "scrub_frame_p95_ms": sorted(frames)[int(0.95 * len(frames))],
    }


def _script_seconds(chrome: Any) -> float:
    return next(x["value"] for x in chrome.send("Performance.getMetrics")["metrics"] if x["name"] == "ScriptDuration")


def hundred_runs(folder: Path) -> dict[str, Any]:
    for number in range(100):
        write_run(folder / f"run{number:03d}", 500, 6, seed=number)
    result: dict[str, Any] = {"megabytes": _size(folder)}
    for name, flag in BACKENDS.items():
        with TensorBoard("--logdir", str(folder), "--load_fast", flag) as board:
            read = wait_until_read(board, {f"run{number:03d}": 501 for number in range(100)})
            listing = statistics.median(timed(board.runs) for _ in range(5))
            result[name] = {"tensorboard_reads_s": read, "listing_s": listing, **measure_browser(board, 10)}
    return result


def million(folder: Path, count: int = 1_000_000) -> dict[str, Any]:
    """One run of 1,000,000 light records, asked for in parts as the page does, then what a poll costs."""
    write_run(folder / "long", count, 0, NETWORK)
    result: dict[str, Any] = {"megabytes": _size(folder), "records": count}
    with TensorBoard("--logdir", str(folder)) as board:
        result["tensorboard_reads_s"] = wait_until_read(board, {"long": count + 1})
        process = psutil.Process(board.process.pid)
        start, before = time.perf_counter(), sum(process.cpu_times()[:2])
        since, parts, first = 0, 0, 0.0
        while since <= count:
            batch = pb.Batch.FromString(board.get(BATCH, run="long", since=since, layers=0, max_points=2000))
            first = first or time.perf_counter() - start
            assert batch.to_seq > since
            since, parts = batch.to_seq, parts + 1
        result.update(first_part_s=first, all_parts_s=time.perf_counter() - start, parts=parts)
        result["all_parts_cpu_s"] = sum(process.cpu_times()[:2]) - before
        result["whole_again_s"] = timed(lambda: board.get(BATCH, run="long", layers=0, max_points=2000))
        result["poll_s"] = timed(lambda: board.get(BATCH, run="long", since=since, layers=0))
    return result


def _size(folder: Path) -> float:
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 1)


CASES = {"ten_runs": ten_runs, "hundred_runs": hundred_runs, "million": million}


def main() -> None:
    wanted = sys.argv[1:] or list(CASES)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in wanted:
        with tempfile.TemporaryDirectory() as folder:
            result = CASES[name](Path(folder))
        result["machine"] = f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
        known[name] = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 4))
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(known, indent=2) + "\n")
        print(name, json.dumps(known[name], indent=2))


if __name__ == "__main__":
    main()
