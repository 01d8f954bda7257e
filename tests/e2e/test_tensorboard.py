"""The tab in a real browser, on a real TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page

from cockpit_core.events.data import load
from tests import synthetic
from tests.e2e.panel_truth import check_about, check_page, check_readings, value_at
from tests.e2e.tensorboard_proxy import stripping_proxy
from tests.e2e.tensorboard_server import TensorBoard, start_training
from tests.e2e.tensorboard_tab import ARTIFACTS, CUT, WHOLE, Tab

pytestmark = pytest.mark.browser
LAYER = "conv2.weight"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    training = start_training(folder / "trained", 60)
    synthetic.write_run(folder / "healthy", steps=300)
    synthetic.write_run(folder / "sick", steps=200, seed=1, sick_layer=0, finished=False)
    assert training.wait(300) == 0
    return folder


@pytest.fixture(scope="module")
def board(root: Path) -> Iterator[TensorBoard]:
    with TensorBoard("--logdir", str(root)) as board:
        board.wait_for_runs("healthy", "sick", "trained")
        yield board
        assert "security_validator" not in board.log()


def test_the_tab_is_found_by_its_name(page: Page, board: TensorBoard) -> None:
    page.goto(board.url)
    page.get_by_text("Cockpit", exact=True).first.click()
    tab = Tab(page, board.url)
    tab.wait(lambda: len(tab.readings()) > 10, "panels")
    assert "#cockpit" in page.url
    assert not tab.errors


@pytest.mark.parametrize(("run", "last"), [("trained", 60), ("healthy", 300), ("sick", 200)])
def test_every_panel_shows_what_load_reads_at_three_scrubbed_steps(
    page: Page, board: TensorBoard, root: Path, run: str, last: int
) -> None:
    data = load(root / run)
    tab = Tab.open(page, board, runs=[run])
    for share in (0.1, 0.5, 0.93):
        step = tab.scrub(share)
        assert abs(step - last * share) <= 0.05 * last
        assert check_page(tab, data, step) == tab.panels()  # a panel that nobody compares would be a hole
    assert {"warnings", "about", "cost", "grad_hist_layers"} <= tab.panels()
    assert not tab.errors


def test_what_differs_between_runs_is_what_their_headers_say(page: Page, board: TensorBoard, root: Path) -> None:
    names = ["trained", "healthy", "sick"]
    tab = Tab.open(page, board, runs=names)
    order = [name for name in board.runs() if name in names]
    tab.wait(lambda: "model" in tab.facts(), "the table")
    check_about(tab, [load(root / name) for name in order])
    assert not tab.errors


def test_cards_stand_still_while_the_user_scrubs(page: Page, board: TensorBoard) -> None:
    tab = Tab.open(page, board, runs=["healthy"], step=250)
    tab.scrub(0.9)
    places = "[...document.querySelectorAll('.ck-card')].map((e) => [e.offsetTop, e.offsetHeight])"
    before = tab.evaluate(places)
    for share in (0.7, 0.4, 0.2, 0.6):
        tab.scrub(share)
        assert tab.evaluate(places) == before


def test_a_layer_can_be_chosen(page: Page, board: TensorBoard, root: Path) -> None:
    data = load(root / "healthy")
    tab = Tab.open(page, board, runs=["healthy"], step=100)
    tab.locate('select[aria-label="Layer"]').select_option(LAYER)
    tab.wait(lambda: LAYER in (tab.read("grad_norm", "before clipping") or tab.readings()[0]).label, "the layer")
    tab.settle()
    for panel, label, name in (("grad_norm", "before", "GradNorm"), ("distance", "‖Δθ‖", "UpdateSize")):
        reading = tab.read(panel, label)
        assert reading is not None
        assert reading.value == pytest.approx(value_at(data, name, 100, LAYER), rel=1e-6)
    heat = tab.read("grad_hist_2d")
    assert heat is not None
    assert heat.value == data.histogram("GradHist2d", 100, LAYER).counts.sum()
    assert not tab.errors


def test_two_runs_are_compared_and_one_can_be_hidden(page: Page, board: TensorBoard, root: Path) -> None:
    both = {name: load(root / name) for name in ("healthy", "sick")}
    tab = Tab.open(page, board, step=150, runs=["healthy", "sick"])
    tab.wait(lambda: {x.run for x in tab.readings() if x.panel == "loss"} == set(both), "both runs")
    for reading in tab.readings():
        if reading.panel == "loss":
            assert reading.value == pytest.approx(value_at(both[reading.run], "Loss", 150), rel=1e-12)
    words = tab.card("grad_hist_layers").inner_text()
    assert "conv1.weight" in words
    assert "sick" in words  # the sick layer is named without a click
    tab.locate('[aria-label="hide run sick"]').click()
    tab.wait(lambda: {x.run for x in tab.readings() if x.panel == "loss"} == {"healthy"}, "one run")
    assert not tab.errors


def test_a_link_leads_back_to_the_same_picture(page: Page, board: TensorBoard, browser: Browser) -> None:
    tab = Tab.open(page, board, runs=["healthy"])
    step = tab.scrub(0.4)
    tab.locate('select[aria-label="Layer"]').select_option(LAYER)
    tab.wait(lambda: quote(LAYER) in page.url and str(step) in page.url, "the address")
    tab.settle()
    expected = tab.readings()
    with browser.new_context(viewport=WHOLE) as context:
        other = Tab(context.new_page(), board.url)
        other.page.goto(page.url)
        other.wait(lambda: other.readings() == expected, "the same numbers")
        assert other.step == step


def test_an_address_of_a_stranger_does_no_harm(page: Page, board: TensorBoard) -> None:
    hostile = {"runs": ["<img src=x onerror=alert(1)>", "healthy"], "layer": "<b>x</b>", "step": -5, "zoom": "all"}
    tab = Tab.open(page, board, **hostile)
    assert tab.locate("img").count() == 0
    assert tab.locate(".ck-root b").count() == 0
    assert tab.read("loss") is not None
    assert not [error for error in tab.errors if "404" not in error]  # there is no such layer


def test_the_exported_csv_is_the_data(page: Page, board: TensorBoard, root: Path) -> None:
    data = load(root / "healthy")
    tab = Tab.open(page, board, runs=["healthy"])
    tab.settle()
    with page.expect_download() as caught:
        tab.choose("grad_norm", "Save as CSV")
    rows = list(csv.DictReader(io.StringIO(Path(caught.value.path()).read_text())))
    for name in ("GradNorm", "GradNormClipped", "TopSampleNorm"):
        mine = [row for row in rows if row["name"] == name and row["layer"] == ""]
        steps, values = data.scalars(name)
        assert [int(row["step"]) for row in mine] == steps.tolist()
        assert [float(row["value"]) for row in mine] == values.tolist()
    for item, start in (("Save as SVG", b"<svg"), ("Save as PNG", b"\x89PNG")):
        with page.expect_download() as caught:
            tab.choose("grad_norm", item)
        assert Path(caught.value.path()).read_bytes().startswith(start)
    assert not tab.errors


def test_a_tab_put_aside_stops_asking(page: Page, board: TensorBoard) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/plugin/cockpit/" in request.url else None)
    tab = Tab.open(page, board)
    page.get_by_text("Time Series", exact=True).first.click()
    page.wait_for_timeout(1500)  # a poll may be under way
    asked.clear()
    page.wait_for_timeout(3000)
    assert asked == []
    page.get_by_text("Cockpit", exact=True).first.click()
    tab.wait(lambda: bool(asked), "asking again", 5)


def test_everything_is_reached_by_keyboard(page: Page, board: TensorBoard, root: Path) -> None:
    data = load(root / "healthy")
    tab = Tab.open(page, board, runs=["healthy"])
    tab.locate(".ck-track").focus()
    page.keyboard.press("Home")
    assert tab.settle() == 0
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert tab.settle() == 3
    loss = tab.read("loss")
    assert loss is not None
    assert loss.value == value_at(data, "Loss", 3)
    page.keyboard.press("End")
    assert tab.settle() >= 299
    reached = set()
    for _ in range(400):  # Tab alone must come by every control
        page.keyboard.press("Tab")
        words = tab.evaluate(
            "(document.activeElement?.getAttribute('aria-label') || document.activeElement?.textContent || '')"
        )
        if words in reached and "Training step" in str(words):
            break
        reached.add(words or "")
    everything = " | ".join(map(str, reached))
    for control in ("Layer", "Horizontal axis", "Smoothing", "Training step", "Export", "View", "Alpha: options"):
        assert control in everything
    tab.card("alpha").locator(".ck-title").focus()
    page.keyboard.press("Enter")
    assert tab.locate(".ck-help:not([hidden])").is_visible()
    page.keyboard.press("Escape")
    assert tab.locate(".ck-help:not([hidden])").count() == 0
    focused = tab.evaluate("document.activeElement.closest('.ck-card')?.dataset.panel")
    assert focused == "alpha"  # where the user was
    assert not tab.errors


@pytest.mark.parametrize("how", ["path prefix", "stripping proxy"])
def test_the_tab_works_behind_a_prefix(page: Page, root: Path, how: str) -> None:
    options = ("--path_prefix", "/a/b") if how == "path prefix" else ()
    with TensorBoard("--logdir", str(root), *options) as board:
        board.wait_for_runs("healthy", "sick")
        if how == "path prefix":
            tab = Tab.open(page, board, runs=["healthy"], step=50)
        else:
            with stripping_proxy(board.url, "/user/me/proxy/6006") as address:
                tab = Tab.open(page, address, runs=["healthy"], step=50)
        assert check_page(tab, load(root / "healthy"), 50)


def test_the_tab_works_in_a_frame_of_another_origin(page: Page, board: TensorBoard, root: Path) -> None:
    """As ``%tensorboard`` shows it in a notebook, whose page has another origin and no access to ours."""
    tab = Tab(page, board.url)
    state = quote(json.dumps({"runs": ["healthy"], "step": 50}))
    with stripping_proxy(board.url, "/elsewhere") as address:
        page.goto(address.replace("127.0.0.1", "localhost").replace("elsewhere/", "notebook"))  # an empty page
        page.evaluate(EMBED, f"{board.url}#cockpit&p.cockpit.state={state}")
        tab.wait(lambda: len(tab.readings()) > 5, "panels")
        tab.settle()
    assert "grad_hist_2d" in check_readings(tab, load(root / "healthy"), 50)
    assert not tab.errors


EMBED = """(url) => {
  const frame = document.createElement('iframe');
  frame.src = url;
  frame.style.cssText = 'width:1500px;height:4000px';
  document.body.append(frame);
}"""

LOOKS = [("light", 1600), ("dark", 1600), ("light", 1000), ("dark", 420)]


@pytest.mark.parametrize(("theme", "width"), LOOKS)
def test_it_looks_right_light_and_dark_wide_and_narrow(
    browser: Browser, board: TensorBoard, theme: str, width: int
) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    with browser.new_context(viewport={"width": width, "height": 1100}) as context:
        page = context.new_page()
        dark = "?darkMode=true" if theme == "dark" else ""
        tab = Tab(page, board.url)
        page.goto(
            f"{board.url}{dark}#cockpit&p.cockpit.state={quote(json.dumps({'step': 150, 'runs': ['healthy', 'sick']}))}"
        )
        tab.wait(lambda: len(tab.readings()) > (8 if width >= 900 else 2), "panels")  # only what is in sight is drawn
        tab.settle()
        page.screenshot(path=ARTIFACTS / f"tensorboard-{theme}-{width}.png")
        look = tab.evaluate(LOOK)
        assert look["overflow"] <= 1, "the page scrolls sideways"
        assert look["columns"] == (3 if width >= 1500 else 2 if width >= 900 else 1)
        assert (look["brightness"] < 90) == (theme == "dark")
        tall = {"width": width, "height": 4000 if width > 1200 else 8000}
        page.set_viewport_size(tall)
        tab.settle()
        page.screenshot(path=ARTIFACTS / f"tensorboard-{theme}-{width}-whole.png")
        assert tab.evaluate(CUT) == []
        assert not tab.errors


LOOK = """() => {
  const root = document.querySelector('.ck-root');
  const rgb = getComputedStyle(root).backgroundColor.match(/[\\d.]+/g).map(Number);
  const columns = [...document.querySelectorAll('.ck-column')].filter((e) => e.clientHeight > 0).length;
  return { overflow: root.scrollWidth - root.clientWidth, columns, brightness: (rgb[0] + rgb[1] + rgb[2]) / 3 };
}"""
