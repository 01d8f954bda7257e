"""What the widget costs the browser: a real Chromium without a graphics card, the real bundle, real messages.

The page stands in for a notebook: it hands the widget its messages at a chosen pace, from memory, so that nothing but
the widget works while it is measured.
"""

from __future__ import annotations

import contextlib
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from cockpit_core.foundation import records
from cockpit_core.schema import batches
from cockpit_widget.feed import Feed, Message, join_frames
from cockpit_widget.sources import RunSource
from cockpit_widget.throttle import Limits, Throttle
from cockpit_widget.widget import read_bundle
from tests import synthetic
from tests.widget.fakes import FakeClock, FakeRun

PANELS = ["loss", "alpha", "grad_norm", "distance", "update_ratio", "gradient_tests", "grad_hist_1d", "grad_hist_2d"]
PANELS += ["hess_max_ev", "hess_trace", "learning_rate", "tic"]
FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--js-flags=--expose-gc"]
PAGE = """<!doctype html><meta charset="utf-8"><body style="margin:0"><div id="cockpit"></div><script type="module">
import create from "./widget.js";
const acts = {}, state = { panels: new URL(location).searchParams.get("panels")?.split(",") ?? [], theme: "light", ui: {} };
const model = { get: (name) => state[name], set() {}, save_changes() {}, off() {}, send() {},
  on: (name, act) => (acts[name] ??= []).push(act) };
const status = { runs: { lenet: { state: "running", can_stop: true } }, errors: 0, last_error: "" };
const tell = (name, ...args) => { for (const act of acts[name] ?? []) act(...args); };
const give = ({ keyframe, view }) => {
  if (!keyframe) return tell("msg:custom", { op: "batch", status }, [view]);
  state._keyframe = view;
  tell("change:_keyframe");
};
const fetchAll = async (name) => {
  const buffer = await (await fetch(name)).arrayBuffer(), view = new DataView(buffer), found = [];
  for (let at = 0; at < buffer.byteLength; ) {
    const size = view.getUint32(at, true);
    found.push({ keyframe: view.getUint8(at + 4) === 1, view: new DataView(buffer.slice(at + 5, at + 5 + size)) });
    at += 5 + size;
  }
  return found;
};
const frame = () => new Promise((done) => requestAnimationFrame(done));
window.pour = async (name, each) => {
  const all = await fetchAll(name);
  while (all.length) {
    for (const message of all.splice(0, each)) give(message);
    await frame();
  }
};
window.play = async (name, milliseconds) => {
  let pictures = 0;
  const watch = new MutationObserver(() => pictures++), began = performance.now();
  watch.observe(document.querySelector(".ck-where"), { childList: true, characterData: true, subtree: true });
  for (const message of await fetchAll(name)) {
    give(message);
    await new Promise((done) => setTimeout(done, milliseconds));
  }
  watch.disconnect();
  window.rate = (1000 * pictures) / (performance.now() - began);
};
window.paint = async (times, milliseconds) => {
  document.getElementById("cockpit").remove();
  const canvas = document.body.appendChild(document.createElement("canvas")), ink = canvas.getContext("2d");
  for (let i = 0; i < times; i++) {
    await frame();
    ink.fillStyle = i % 2 ? "red" : "blue";
    ink.fillRect(0, 0, 100, 100);
    await new Promise((done) => setTimeout(done, milliseconds));
  }
};
window.gaps = async (count, act) => {
  const times = [];
  for (let i = 0; i <= count; i++) { act(i); times.push(await frame()); }
  return times.slice(1).map((time, i) => time - times[i]);
};
const widget = create();
widget.initialize({ model });
widget.render({ model, el: document.getElementById("cockpit") });
window.ready = true;
</script>"""
SCRUB = """async () => {
  const track = document.querySelector('.ck-track'), box = track.getBoundingClientRect();
  const send = (type, share) => track.dispatchEvent(new PointerEvent(type, {
    clientX: box.left + 10 + share * (box.width - 20), clientY: box.top + 20, bubbles: true, pointerId: 1 }));
  send('pointerdown', 0);
  const gaps = await window.gaps(60, (i) => send('pointermove', i / 60));
  send('pointerup', 1);
  return gaps;
}"""
ZOOM = """async () => {
  const chart = document.querySelector('.ck-card[data-panel="loss"] .ck-chart');
  const press = (key) => chart.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
  const gaps = await window.gaps(24, (i) => press(i % 12 < 6 ? '+' : '-'));
  press('0');
  return gaps;
}"""


# ---- messages --------------------------------------------------------------------------------------------------------


def pack(messages: list[Message]) -> bytes:
    return b"".join(struct.pack("<IB", len(m.frames), m.keyframe) + m.frames for m in messages)


class Training:
    """A run without training, and the messages that a widget would send of it."""

    def __init__(self, folder: Path) -> None:
        self.run, self._clock, self._messages = FakeRun(folder, layers=6), FakeClock(), list[Message]()
        limits = Limits(bytes_per_second=1e9)  # an hour in a moment: the budgets would hold it back
        self._source, pace = RunSource(self.run, "lenet"), Throttle(10.0, clock=self._clock, limits=limits)
        self._source.subscribe(lambda: None, pace)
        self._feed = Feed([self._source], pace, clock=self._clock)

    def send(self, count: int, steps: int) -> bytes:
        self._messages.clear()
        for _ in range(count):
            self.run.step(steps)
            self._clock.advance(0.2)
            self._feed.tick(self._messages.append)
        return pack(self._messages)


def make_million(rows: int, parts: int = 10) -> Iterator[bytes]:
    """A run of a million records, each of them known to the page."""
    random = np.random.default_rng(0)
    names = ["Loss", "GradNorm", "Distance", "UpdateSize", "ParamNorm", "NormTest", "InnerTest", "OrthoTest"]
    header = synthetic.make_header("lenet", synthetic.make_layers(2), 1, False)
    size = rows // parts
    for first in range(0, rows, size):
        seq = np.arange(first, first + size)
        decay = np.exp(-4 * seq / rows)
        columns = [records.BatchColumn(name, decay * random.lognormal(0, 0.2, size)) for name in names]
        clock = 0.001 * seq
        batch = records.Batch(
            "lenet", header.run_id, first, first + size, seq, seq, clock, 1e9 + clock, columns=columns
        )
        batch.header, batch.state, batch.records, batch.expected = header, "running", first + size, first + size
        yield pack([Message(join_frames([[batches.encode_batch(batch)]]), {})])


# ---- the browser -----------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Gives the page what is in ``files``."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"/": PAGE.encode(), "/widget.js": read_bundle().encode()}
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.split("?")[0])
        self.send_response(404 if content is None else 200)
        self.send_header("Content-Type", "text/javascript" if ".js" in self.path else "text/html")
        self.send_header("Content-Length", str(len(content or b"")))
        self.end_headers()
        self.wfile.write(content or b"")

    def log_message(self, *_: Any) -> None:
        pass


class Browser:
    def __init__(self, browser: Any, server: Server) -> None:
        self._browser, self.server = browser, server

    def open(self, panels: list[str] | None = None, height: int = 1000) -> None:
        self.page = self._browser.new_page(viewport={"width": 1600, "height": height})
        self.page.set_default_timeout(120_000)
        self.errors: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(self.server.url + (f"?panels={','.join(panels)}" if panels else ""))
        self.page.wait_for_function("window.ready")
        self.chrome = self.page.context.new_cdp_session(self.page)
        self.chrome.send("Performance.enable", {"timeDomain": "threadTicks"})

    def close(self) -> None:
        assert not self.errors, self.errors
        self.page.close()

    def give(self, content: bytes, call: str) -> None:
        self.server.files["/messages"] = content
        self.page.evaluate(call)

    def heap(self) -> dict[str, float]:
        """Megabytes after collecting garbage: objects, and arrays of numbers."""
        for _ in range(2):
            self.chrome.send("HeapProfiler.collectGarbage")
        usage = self.chrome.send("Runtime.getHeapUsage")
        return {"objects": usage["usedSize"] / 1e6, "arrays": usage.get("backingStorageSize", 0) / 1e6}

    def busy(self) -> float:
        """Processor seconds of the page's main thread."""
        metrics = {x["name"]: x["value"] for x in self.chrome.send("Performance.getMetrics")["metrics"]}
        return float(metrics["TaskDuration"])


@contextlib.contextmanager
def start_browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    from scripts.find_browser import find_browser

    server = Server()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=FLAGS)
        yield Browser(browser, server)
        browser.close()
    server.shutdown()
    server.server_close()


def processor_seconds() -> float:
    """Of all processes of the browser: pages, rasteriser, network."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "chrom" in process.name().lower():
                total += sum(process.cpu_times()[:2])
    return total


# ---- what is measured ------------------------------------------------------------------------------------------------


def measure_load(browser: Browser, seconds: float) -> dict[str, float]:
    """Share of one core with 12 panels in sight and five messages a second, over all processes of the browser.

    A picture that took long is followed by a longer rest, so the rate of pictures says what a busy machine got to see.
    ``idle`` is the same page without messages, ``floor`` a page with one small canvas that is painted as often. The
    browser compiles for about the first hundred seconds of a live run; that many messages are played quickly before.
    """
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder) / "lenet")
        history, first = training.send(25, 40), training.send(int(25 * seconds), 2)
        live = training.send(int(5 * seconds), 20)
    floor = measure_floor(browser, seconds / 2)
    browser.open(PANELS, height=1700)
    browser.give(history, "pour('messages', 25)")
    browser.give(first, "pour('messages', 1)")
    browser.page.wait_for_timeout(1500)
    seen = "cards => cards.filter((c) => c.getBoundingClientRect().top < innerHeight && c.querySelector('canvas, svg')).length"
    panels = browser.page.locator(".ck-card").evaluate_all(seen)
    idle = measure_share(browser, f"new Promise((done) => setTimeout(done, {250 * seconds}))")
    shares = measure_share(browser, "play('messages', 200)", live)
    rate = browser.page.evaluate("rate")
    browser.close()
    found = {"panels": panels, "one_core": shares["processes"], "main_thread": shares["main"]}
    return {**found, "pictures_per_second": rate, "idle": idle["processes"], "floor": floor}


def measure_floor(browser: Browser, seconds: float) -> float:
    browser.open(height=1700)
    share = measure_share(browser, f"paint({int(5 * seconds)}, 200)")
    browser.close()
    return share["processes"]


def measure_share(browser: Browser, call: str, content: bytes = b"") -> dict[str, float]:
    began, before, busy = time.perf_counter(), processor_seconds(), browser.busy()
    browser.give(content, call)
    took = time.perf_counter() - began
    return {"processes": (processor_seconds() - before) / took, "main": (browser.busy() - busy) / took}


def measure_memory(browser: Browser, messages: int) -> dict[str, Any]:
    """Megabytes after each quarter of an hour's worth of messages, sent as fast as the page takes them.

    The data itself stays, up to 80 MB a run, in arrays that grow by a quarter; the histograms that are kept have a
    bound of 32 MB, which the first quarter fills.
    """
    browser.open(PANELS)
    quarters, rows = [browser.heap()], 0
    with tempfile.TemporaryDirectory() as folder:
        training = Training(Path(folder) / "lenet")
        for _ in range(4):
            content = training.send(messages // 4, 1)
            browser.give(content, "pour('messages', 30)")
            quarters.append(browser.heap())
        browser.give(content, "pour('messages', 30)")  # nothing new: whatever grows now is a leak
        again = browser.heap()
        rows = training.run._writer.next_seq
        width = len(training.run.data.refresh().table.columns) + len(synthetic.LAYERWISE) * 6
    browser.close()
    data = 12e-6 * rows * width  # the number of the record with 32 bits, a value with 64
    return {"messages": messages, "quarters": quarters, "last_quarter_again": again, "rows": rows, "data": data}


def measure_million(browser: Browser, rows: int) -> dict[str, Any]:
    """Frames while scrubbing and zooming through a run of which the page has every record."""
    browser.open()
    for part in make_million(rows):
        browser.give(part, "pour('messages', 1)")
    browser.page.wait_for_timeout(2000)
    result: dict[str, Any] = {"rows": rows}
    for name, script in (("scrub", SCRUB), ("zoom", ZOOM)):
        busy = browser.busy()
        gaps = browser.page.evaluate(script)
        result[f"{name}_frame_ms"] = {"median": statistics.median(gaps), "p95": sorted(gaps)[int(0.95 * len(gaps))]}
        result[f"{name}_main_thread_ms"] = 1000 * (browser.busy() - busy) / len(gaps)
    browser.close()
    return result
