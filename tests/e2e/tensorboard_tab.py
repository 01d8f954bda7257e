"""The Cockpit tab in a browser, as a test reads and handles it."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import FrameLocator, Locator, Page

from tests.e2e.tensorboard_server import ROOT, TensorBoard

ARTIFACTS = ROOT / "artifacts"
FRAME = 'iframe[src*="name=cockpit"]'
# TensorBoard's own page: it loads a library twice, and looks for fonts and icons that a bare server has not.
# What failed to load is noted by its address instead.
NOT_OURS = ("Three.js", "Failed to load resource")
WHOLE = {"width": 1600, "height": 4200}  # every panel in sight, so that every panel is up to date
READ = """(selector) => [...document.querySelectorAll(selector)].map((e) => ({
  panel: e.closest('.ck-card').dataset.panel, text: e.textContent, ...e.dataset }))"""
WARNINGS = """[...document.querySelectorAll('[data-panel=warnings] tbody tr')].map((e) => ({
  step: Number(e.cells[0].textContent.replace(',', '')), text: e.querySelector('.ck-go').innerText,
  layers: [...e.querySelectorAll('.ck-layers button')].map((b) => b.textContent) }))"""
FACTS = """[...document.querySelectorAll('[data-panel=about] tbody tr')].map((e) =>
  [...e.cells].map((cell) => cell.textContent))"""

# Titles, numbers and sentences that do not have the room that they need.
CUT = """() => [...document.querySelectorAll('.ck-card')].flatMap((card) => {
  const title = card.querySelector('.ck-title > span');
  const room = card.querySelector('.ck-readings').getBoundingClientRect();
  const numbers = [...card.querySelectorAll('.ck-reading')].filter((e) => {
    const { left, right, bottom } = e.getBoundingClientRect();
    return left < room.left - 1 || right > room.right + 1 || bottom > room.bottom + 1 || e.scrollWidth > e.clientWidth + 1;
  });
  const cut = title.scrollWidth > title.clientWidth + 1 || title.scrollHeight > title.clientHeight + 2;
  const words = [...card.querySelectorAll('.ck-note')].filter((e) => e.scrollHeight > e.clientHeight + 2);
  return [...(cut ? [title.textContent] : []),
    ...[...numbers, ...words].map((e) => `${card.dataset.panel}: ${e.textContent}`)];
})"""
# Panels out of sight are not brought up to date, so what they say does not count.
FETCHING = """() => [...document.querySelectorAll('.ck-texts')].filter((e) => {
  const { top, bottom } = e.getBoundingClientRect();
  return bottom > 0 && top < innerHeight && e.textContent.includes('Fetching');
}).length"""


@dataclass(frozen=True)
class Reading:
    """One number in the head of a panel: what it is called, what it says, and of which run and step it is."""

    panel: str
    label: str
    value: float
    text: str
    run: str
    step: int | None


@dataclass(frozen=True)
class WarningRow:
    step: int
    text: str
    layers: list[str]


class Tab:
    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda m: self._note(m.text) if m.type in ("error", "warning") else None)
        page.on("response", lambda answer: self._note_answer(answer.status, answer.url))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))

    def _note(self, text: str) -> None:
        if not any(known in text for known in NOT_OURS):
            self.errors.append(text)

    def _note_answer(self, status: int, url: str) -> None:
        if status >= 400 and "/plugin/cockpit/" in url:
            self.errors.append(f"{status} {url[-300:]}")

    @classmethod
    def open(cls, page: Page, board: TensorBoard | str, **state: Any) -> Tab:
        """Open the tab by its link; ``state`` is what a link can hold: runs, step, layer, ..."""
        url = board if isinstance(board, str) else board.url
        tab = cls(page, url)
        link = f"&p.cockpit.state={quote(json.dumps(state))}" if state else ""
        page.goto(f"{url}#cockpit{link}")
        # The table of runs counts them before anything of them has come.
        tab.wait(lambda: any(reading.panel != "runs" for reading in tab.readings()), "the first numbers")
        tab.settle()
        return tab

    @property
    def frame(self) -> FrameLocator:
        return self.page.frame_locator(FRAME)

    def locate(self, selector: str, **options: Any) -> Locator:
        return self.frame.locator(selector, **options)

    def evaluate(self, code: str, argument: Any = None) -> Any:
        for frame in self.page.frames:
            if "name=cockpit" in frame.url:
                return frame.evaluate(code, argument)
        return None

    def readings(self, selector: str = ".ck-reading") -> list[Reading]:
        found = self.evaluate(READ, selector) or []
        return [
            Reading(
                x["panel"],
                x["label"],
                float(x["value"]),
                x["text"],
                x.get("run", ""),
                int(x["step"]) if "step" in x else None,
            )
            for x in found
            if x.get("value") not in ("", None)
        ]

    def panels(self) -> set[str]:
        return set(self.evaluate("[...document.querySelectorAll('[data-panel]')].map((e) => e.dataset.panel)"))

    def told(self, panel: str, step: int) -> list[Reading]:
        """The rows of the table that screen readers see; it is written when the picture has come to rest."""
        caption = self.card(panel).locator(".ck-values caption")
        self.wait(lambda: f"at step {step}." in (caption.text_content() or ""), f"the table of {panel}")
        return self.readings(f"[data-panel={panel}] .ck-values tr[data-label]")

    def warnings(self) -> list[WarningRow]:
        return [WarningRow(**row) for row in self.evaluate(WARNINGS)]

    def facts(self) -> dict[str, list[str]]:
        """The table of what is known of the run, or of what differs: name -> one value per run."""
        return {name: values for name, *values in self.evaluate(FACTS)}

    def save_csv(self, panel: str) -> list[dict[str, str]]:
        with self.page.expect_download() as caught:
            self.choose(panel, "Save as CSV")
        return list(csv.DictReader(io.StringIO(Path(caught.value.path()).read_text())))

    def read(self, panel: str, label: str = "") -> Reading | None:
        return next((x for x in self.readings() if x.panel == panel and label in x.label), None)

    @property
    def step(self) -> int:
        """Where the scrubber stands."""
        return int(float(self.evaluate("document.querySelector('.ck-track').getAttribute('aria-valuenow')")))

    def scrub(self, share: float) -> int:
        """Take the scrubber to a place by mouse; returns the step that was chosen."""
        box = self.locate(".ck-track").bounding_box()
        assert box is not None
        self.page.mouse.click(box["x"] + 10 + share * (box["width"] - 20), box["y"] + box["height"] / 2)
        return self.settle()

    def settle(self) -> int:
        """Wait until the numbers stand still: histograms are fetched after the step was chosen."""
        before: Any = None
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.page.wait_for_timeout(150)
            now = (self.step, str(self.readings()), self.evaluate(FETCHING))  # as text, where NaN equals NaN
            if now == before and not now[2]:
                return self.step
            before = now
        raise AssertionError("the numbers do not settle")

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}; {self.errors}"
            self.page.wait_for_timeout(100)

    def card(self, panel: str) -> Locator:
        return self.locate(f'.ck-card[data-panel="{panel}"]')

    def choose(self, panel: str, item: str) -> None:
        """Choose an item of a panel's own menu."""
        self.card(panel).locator(".ck-head .ck-icon").click()
        self.card(panel).locator(".ck-item", has_text=item).click()
