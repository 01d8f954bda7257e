"""What hands do in the tab: choose, filter, drag, hide, enlarge, hover, zoom, play, save. On a real TensorBoard."""

from __future__ import annotations

import csv
import io
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from cockpit_core.events.data import load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from tests import synthetic
from tests.e2e.panel_truth import latest
from tests.e2e.tensorboard_server import TensorBoard
from tests.e2e.tensorboard_tab import Tab

pytestmark = pytest.mark.browser
COLUMNS = """[...document.querySelectorAll('.ck-column')].map(
  (column) => [...column.querySelectorAll('[data-panel]')].map((e) => e.dataset.panel))"""
# TensorBoard's own colours in the order in which runs were made.
PALETTE = ["rgb(66, 80, 102)", "rgb(18, 181, 203)", "rgb(229, 37, 146)"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    for seed, name in enumerate(("first", "second", "third")):
        synthetic.write_run(folder / name, steps=120, seed=seed, finished=seed != 1)
    return folder


@pytest.fixture(scope="module")
def board(root: Path) -> Iterator[TensorBoard]:
    with TensorBoard("--logdir", str(root)) as board:
        board.wait_for_runs("first", "second", "third")
        yield board


def test_every_panel_saves_a_picture_a_drawing_and_its_numbers(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board, runs=["first"], step=100)
    panels = tab.panels()
    assert len(panels) > 18
    for panel in sorted(panels):
        tab.card(panel).locator(".ck-head .ck-icon").click()
        items = [item.strip() for item in tab.card(panel).locator(".ck-item").all_inner_texts()]
        page.keyboard.press("Escape")
        for item in (item for item in items if item.startswith("Save as")):
            with page.expect_download() as caught:
                tab.choose(panel, item)
            content = Path(caught.value.path()).read_bytes()
            if item.endswith("PNG"):
                assert content.startswith(b"\x89PNG"), panel
                assert len(content) > 2000, panel
            elif item.endswith("SVG"):
                assert ET.fromstring(content.decode()).tag.endswith("svg"), panel
            else:
                rows = list(csv.reader(io.StringIO(content.decode())))
                assert len(rows) > 1, panel
                assert len({len(row) for row in rows}) == 1, panel
        kinds = {item.rpartition(" ")[2] for item in items if item.startswith("Save as")}
        assert kinds == {"PNG", "SVG", "CSV"}, panel
    assert not tab.errors


def test_panels_are_dragged_hidden_and_enlarged_and_stay_so(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board, runs=["first"])
    before = tab.evaluate(COLUMNS)
    assert before[0][0] == "alpha"
    assert "hess_max_ev" in before[2]
    tab.card("alpha").locator(".ck-head").drag_to(tab.card("hess_trace").locator(".ck-head"))
    tab.wait(lambda: "alpha" in tab.evaluate(COLUMNS)[2], "alpha in the third column")
    tab.choose("tic", "Hide")
    tab.wait(lambda: "tic" not in tab.panels(), "a hidden panel")
    after = tab.evaluate(COLUMNS)
    page.wait_for_timeout(400)  # the arrangement is remembered after a moment
    page.goto("about:blank")
    again = Tab.open(page, board)
    assert again.evaluate(COLUMNS)[2][:3] == after[2][:3]
    assert "tic" not in again.panels()
    again.choose("loss", "Enlarge")
    again.wait(lambda: again.locate(".ck-stage [data-panel=loss]").count() == 1, "a large panel")
    assert (again.locate(".ck-stage .ck-chart").bounding_box() or {})["width"] > 1000
    page.keyboard.press("Escape")
    again.wait(lambda: again.locate(".ck-stage").count() == 0, "a small panel")
    again.locate("button", has_text="View").click()
    again.locate("button", has_text="Reset arrangement").click()
    again.wait(lambda: again.evaluate(COLUMNS) == before, "the first arrangement")
    assert not again.errors


def test_hovering_and_zooming_one_chart_reach_all(page: Page, board: TensorBoard, root: Path) -> None:
    data = load(root / "first")
    tab = Tab.open(page, board, runs=["first"])
    box = tab.card("loss").locator(".ck-chart").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 60)
    tab.wait(lambda: (tab.read("grad_norm") or tab.readings()[0]).step not in (None, 119), "a hovered step")
    step = (tab.read("grad_norm") or tab.readings()[0]).step
    assert step is not None
    for panel, name in (("grad_norm", "GradNorm"), ("hess_trace", "HessTrace"), ("loss", "Loss"), ("alpha", "Alpha")):
        reading = tab.read(panel)
        assert reading is not None
        assert (reading.step, reading.value) == latest(data, name, step), panel
    tip = tab.card("loss").locator(".ck-tip")
    tab.wait(lambda: f"step {step}" in tip.inner_text(), "the values beside the cursor")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 60, steps=4)
    page.mouse.up()
    tab.wait(lambda: "zoom" in page.url, "a zoom in the address")
    for panel in ("loss", "hess_trace", "distance", "grad_norm"):
        ticks = [text for text in tab.card(panel).locator(".ck-texts span").all_inner_texts() if text.isdigit()]
        assert "0" not in ticks, panel  # the beginning is out of sight everywhere
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], box["y"] + 60)
    tab.wait(lambda: "zoom" not in page.url, "everything again")
    assert not tab.errors


def test_playing_moves_through_the_whole_training(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board, runs=["first"])
    tab.locate(".ck-play").click()
    seen = set()
    for _ in range(12):
        seen.add(tab.step)
        page.wait_for_timeout(250)
    assert len(seen) > 6
    assert min(seen) < 20
    tab.locate(".ck-play").click()
    stopped = tab.settle()
    page.wait_for_timeout(500)
    assert tab.step == stopped


def test_runs_are_filtered_chosen_and_have_the_colours_of_tensorboard(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board)
    chips = tab.locate(".ck-run")
    order = list(board.runs())
    assert chips.all_inner_texts() == order
    colors = tab.evaluate(
        "[...document.querySelectorAll('.ck-run .ck-dot')].map((e) => getComputedStyle(e).getPropertyValue('--c'))"
    )
    for color, expected in zip(colors, PALETTE, strict=True):
        red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
        assert f"rgb({red}, {green}, {blue})" == expected
    shapes = tab.evaluate("[...document.querySelectorAll('.ck-run .ck-dot')].map((e) => e.className)")
    assert len(set(shapes)) == 2  # two finished, and one that crashed
    tab.locate(".ck-bar button", has_text="Runs").click()
    tab.locate('input[aria-label="Filter runs"]').fill("sec|thi")
    assert tab.locate(".ck-listrow").count() == 2
    tab.locate('[aria-label="only second"]').click()
    tab.wait(lambda: chips.all_inner_texts() == ["second"], "one run")
    assert "crashed" in tab.locate(".ck-status").inner_text()
    assert not tab.errors


def test_axes_smoothing_theme_and_the_recent_part_are_the_users(page: Page, board: TensorBoard, root: Path) -> None:
    tab = Tab.open(page, board, runs=["first"])
    labels = tab.card("loss").locator(".ck-texts")
    for axis, word in (("epoch", "epoch"), ("time", "time (s)"), ("step", "step")):
        tab.locate('select[aria-label="Horizontal axis"]').select_option(axis)
        tab.wait(lambda word=word: word in labels.inner_text(), word)  # type: ignore[misc]
    tab.locate('button[aria-label="Logarithmic horizontal axis"]').click()
    tab.wait(lambda: "step (log)" in labels.inner_text(), "a log axis")
    linear = labels.inner_text()
    tab.locate('select[aria-label="Vertical axes"]').select_option("log")
    tab.wait(lambda: labels.inner_text() != linear, "log values")
    tab.locate("button", has_text="View").click()
    tab.locate('select[aria-label="Theme"]').select_option("dark")
    tab.wait(lambda: tab.locate(".ck-root.ck-dark").count() == 1, "the dark theme")
    tab.locate('select[aria-label="Alpha: recent part"]').select_option("0.5")
    tab.wait(lambda: tab.read("alpha", "last 50 %") is not None, "half of the run")
    recent = tab.read("alpha", "last 50 %")
    steps, values = load(root / "first").scalars("Alpha")
    half = values[steps >= steps[-1] - 0.5 * (steps[-1] - steps[0])]
    assert recent is not None
    assert recent.value == pytest.approx(sorted(half)[len(half) // 2], abs=0.05)
    assert not tab.errors


def test_a_warning_leads_to_its_step_and_layer(page: Page, board: TensorBoard, root: Path) -> None:
    notice = next(n for n in load(root / "first").notices if n.layer)
    tab = Tab.open(page, board, runs=["first"])
    tab.card("warnings").locator(".ck-go", has_text=notice.message).click()
    assert tab.settle() == notice.step
    assert tab.locate('select[aria-label="Layer"]').input_value() == notice.layer
    heat = tab.card("grad_hist_2d").inner_text()
    assert notice.layer in heat
    assert not tab.errors


def test_pausing_stops_the_questions(page: Page, board: TensorBoard, root: Path) -> None:
    asked: list[str] = []
    with EventWriter(root / "alive") as writer:  # a run that ended offers no pause
        writer.write_header(synthetic.make_header("alive", synthetic.make_layers(2), 1, epochs=False))
        for step in range(3):
            writer.write_record(records.Record("step", step, time.time(), 0.1 * step, scalars={"Loss": 1.0}))
    board.wait_for_runs("alive")
    tab = Tab.open(page, board, runs=["alive"])
    page.on("request", lambda request: asked.append(request.url) if "/plugin/cockpit/runs" in request.url else None)
    tab.wait(lambda: bool(asked), "a question", 5)
    tab.locate("button", has_text="Pause").click()
    page.wait_for_timeout(1200)
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []
    tab.locate("button", has_text="Resume").click()
    tab.wait(lambda: bool(asked), "questions again", 5)


def test_every_title_explains_its_panel(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board, runs=["first"])
    for panel in sorted(tab.panels()):
        tab.card(panel).locator(".ck-title").click()
        words = tab.card(panel).locator(".ck-help").inner_text()
        assert "How to read" in words, panel
        assert len(words) > 60, panel
        page.keyboard.press("Escape")


def test_it_is_readable_at_two_hundred_percent(browser: Browser, board: TensorBoard) -> None:
    """A screen of 1600 pixels at 200 % is one of 800 with two dots per pixel."""
    with browser.new_context(viewport={"width": 800, "height": 5000}, device_scale_factor=2) as context:
        tab = Tab.open(context.new_page(), board, step=100)
        assert tab.evaluate("document.querySelector('.ck-root').scrollWidth <= innerWidth")
        dots = tab.evaluate(
            "[...document.querySelectorAll('.ck-chart')].map((e) => e.querySelector('canvas').width / e.clientWidth)"
        )
        assert all(density == pytest.approx(2, abs=0.05) for density in dots)
