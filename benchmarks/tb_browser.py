"""What a user of the tab waits for, in a real browser without a graphics card: first picture, frames, processor time."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.find_browser import find_browser
from tests.e2e.tensorboard_server import TensorBoard

ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
FRAMES = 90
# One gesture per frame; the time of every frame is noted. `act(i / FRAMES)` sends the events of a hand.
MEASURE = """async ({ gesture, frames }) => {
  const chart = document.querySelector('[data-panel="loss"] .ck-chart')
    ?? document.querySelector('[data-panel="grad_norm"] .ck-chart');
  chart.scrollIntoView({ block: 'center' });
  await new Promise((resolve) => setTimeout(resolve, 500)); // it is drawn once it is seen
  const track = document.querySelector('.ck-track');
  const box = (gesture === 'scrub' ? track : chart).getBoundingClientRect();
  const at = (share) => ({ clientX: box.left + 60 + share * (box.width - 80), clientY: box.top + box.height / 2,
    bubbles: true, cancelable: true, pointerId: 1 });
  const point = (element, type, share, more) => element.dispatchEvent(new PointerEvent(type, { ...at(share), ...more }));
  const wheel = (deltaY) => chart.dispatchEvent(new WheelEvent('wheel', { ...at(0.6), deltaY, ctrlKey: true }));
  const next = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const hands = {
    scrub: { begin: () => point(track, 'pointerdown', 0), act: (s) => point(track, 'pointermove', s),
      end: () => point(track, 'pointerup', 1) },
    hover: { begin: () => {}, act: (s) => point(chart, 'pointermove', s), end: () => point(chart, 'pointerleave', 1) },
    zoom: { begin: () => {}, act: (s) => wheel(s < 0.5 ? -12 : 12), end: () => {} },
    pan: {
      begin: () => { for (let i = 0; i < 20; i++) wheel(-24); point(chart, 'pointerdown', 0.9, { shiftKey: true }); },
      act: (s) => point(chart, 'pointermove', 0.9 - 0.8 * Math.sin(Math.PI * s), { shiftKey: true }),
      end: () => { point(chart, 'pointerup', 0.9); chart.dispatchEvent(new MouseEvent('dblclick', { bubbles: true })); },
    },
  };
  const hand = hands[gesture];
  await next();
  hand.begin();
  await next();
  await next();
  const times = [await next()];
  const end = performance.now() + 20000;
  for (let i = 1; i <= frames && performance.now() < end; i++) {
    hand.act(i / frames);
    times.push(await next());
  }
  hand.end();
  await next();
  return times.slice(1).map((time, i) => time - times[i]);
}"""
SHOWN = "Number(document.querySelector('.ck-root')?.dataset.runs ?? 0) >= {runs}"


@contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


def processor_seconds() -> float:
    """Of all processes of the browser, whichever thread draws."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "chrom" in process.name():
                total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


def open_tab(browser: Any, board: TensorBoard) -> Any:
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.goto(f"{board.url}data/plugin_entry.html?name=cockpit", wait_until="commit")
    return page


def measure_first(browser: Any, board: TensorBoard, runs: int) -> tuple[Any, dict[str, float]]:
    """From asking for the tab's page to a drawn frame with curves of one run, then of all chosen ones."""
    start, before = time.perf_counter(), processor_seconds()
    page = open_tab(browser, board)
    page.wait_for_function(SHOWN.format(runs=1), polling="raf")
    first = time.perf_counter() - start
    page.wait_for_function(SHOWN.format(runs=runs), polling="raf")
    page.evaluate("() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)))")
    whole = time.perf_counter() - start
    cpu = processor_seconds() - before
    return page, {"first_run_painted_s": first, "all_runs_painted_s": whole, "browser_cpu_s": cpu}


def measure_frames(page: Any, gestures: tuple[str, ...] = ("scrub", "hover", "zoom", "pan")) -> dict[str, Any]:
    """Frame times and processor time per frame; ``task`` is the page's own thread, ``cpu`` all of the browser."""
    chrome = page.context.new_cdp_session(page)
    chrome.send("Performance.enable", {"timeDomain": "threadTicks"})
    found = {}
    for gesture in gestures:
        task, cpu = _task_seconds(chrome), processor_seconds()
        frames = page.evaluate(MEASURE, {"gesture": gesture, "frames": FRAMES})
        found[gesture] = {
            "frame_median_ms": statistics.median(frames),
            "frame_p95_ms": sorted(frames)[int(0.95 * len(frames))],
            "task_ms": 1000 * (_task_seconds(chrome) - task) / len(frames),
            "cpu_ms": 1000 * (processor_seconds() - cpu) / len(frames),
        }
        page.wait_for_timeout(1500)
    return found


def _task_seconds(chrome: Any) -> float:
    return next(x["value"] for x in chrome.send("Performance.getMetrics")["metrics"] if x["name"] == "TaskDuration")
