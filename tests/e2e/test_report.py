"""The report in a real browser: opened from disk, with the network off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from cockpit_core.report.write import write_report
from tests import synthetic
from tests.e2e.jupyter_server import ARTIFACTS, export_values, screenshot
from tests.e2e.tensorboard_tab import CUT
from tests.widget.test_report import write_hostile

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    synthetic.write_run(folder / "lenet", steps=400)
    synthetic.write_run(folder / "sick", steps=300, seed=1, sick_layer=0)
    return [folder / "lenet", folder / "sick"]


class Opened:
    """A report in a page that has no network, with everything that went wrong."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": 1480, "height": 1100}, offline=True, **options)
        self.page = self.context.new_page()
        self.errors, self.requests = list[str](), list[str]()
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.cockpit = self.page.locator(".ck-root")
        self.cockpit.wait_for()
        self.page.wait_for_timeout(500)


@pytest.fixture(scope="module")
def file(runs: list[Path]) -> Path:
    return write_report(runs, runs[0].parent / "report.html")


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Opened]:
    report = Opened(browser, file)
    yield report
    report.context.close()


def test_values_on_the_page_equal_the_log(opened: Opened, runs: list[Path]) -> None:
    shown = export_values(opened.page, opened.cockpit)
    for path in runs:
        data = load(path)
        for name in data.names:
            if data.histogram_steps(name):
                continue
            steps, values = data.scalars(name)
            assert shown[path.name, name, ""] == dict(zip(steps.tolist(), values.tolist(), strict=True))
    layer = data.layers[0]
    steps, values = data.scalars("GradNorm", layer)
    assert shown["sick", "GradNorm", layer] == dict(zip(steps.tolist(), values.tolist(), strict=True))


def test_report_asks_nobody_for_anything(opened: Opened) -> None:
    opened.cockpit.get_by_role("slider", name="Training step").press("Home")
    opened.page.mouse.wheel(0, 3000)
    opened.page.wait_for_timeout(500)
    assert [url.split(":")[0] for url in opened.requests] == ["file"]
    assert opened.errors == []


def test_scrubbing_shows_the_histogram_of_that_step(opened: Opened, runs: list[Path]) -> None:
    slider = opened.cockpit.get_by_role("slider", name="Training step")
    slider.press("Home")
    opened.page.wait_for_timeout(500)
    card = opened.cockpit.locator('.ck-card[data-panel="grad_hist_2d"]')
    card.scroll_into_view_if_needed()
    drawn = "(card) => card.textContent.includes('step 0')"  # a busy machine draws later than a quiet one
    opened.page.wait_for_function(drawn, arg=card.element_handle(), timeout=20_000)
    screenshot(opened.page, "report-scrubbed")


def test_report_prints(opened: Opened) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    opened.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    fit = "all => all.map(c => Math.round(c.width / devicePixelRatio - c.clientWidth))"
    assert opened.cockpit.evaluate("root => root.clientWidth") == 718  # A4 without its margins
    assert set(opened.cockpit.locator(".ck-chart canvas").evaluate_all(fit)) == {0}  # all drawn for that width
    cut = "all => all.map(table => table.scrollHeight - table.clientHeight)"
    assert set(opened.cockpit.locator(".ck-table").evaluate_all(cut)) == {0}  # nobody can scroll on paper
    opened.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert opened.cockpit.evaluate("root => root.clientWidth") > 1000
    opened.page.emulate_media(media="print")
    opened.page.wait_for_timeout(300)
    opened.page.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    titles = opened.cockpit.locator(".ck-title > span:first-child")
    assert set(titles.evaluate_all("all => all.map(t => t.scrollWidth - t.clientWidth)")) == {0}  # none is cut off
    opened.page.evaluate("() => dispatchEvent(new Event('afterprint'))")
    pdf = opened.page.pdf(path=str(ARTIFACTS / "report.pdf"), format="A4", print_background=True)
    assert pdf.startswith(b"%PDF")
    pages = pdf.count(b"/Type /Page\n") or pdf.count(b"/Type /Page ")
    assert 1 <= pages <= 12
    assert not opened.cockpit.get_by_text("Export ▾").is_visible()
    opened.page.set_viewport_size({"width": 794, "height": 1123})  # A4
    screenshot(opened.page, "report-print", full_page=True)


def test_report_follows_the_dark_mode_of_the_system(browser: Any, file: Path) -> None:
    report = Opened(browser, file, color_scheme="dark")
    assert "ck-dark" in (report.cockpit.get_attribute("class") or "")
    screenshot(report.page, "report-dark", full_page=True)
    report.context.close()


OVERLAPS = """() => { const [a, b] = ['.ck-where', '.ck-follow'].map((name) => document.querySelector(name));
  const words = document.createRange(); words.selectNodeContents(a);
  return [...words.getClientRects()].some(({ right }) => right > b.getBoundingClientRect().left); }"""


@pytest.mark.parametrize("width", [1600, 1000, 420, 304])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_or_covered_at_any_width(
    browser: Any, runs: list[Path], tmp_path: Path, width: int, scheme: str
) -> None:
    """304 is a notebook on a telephone. There the button covered the step, and long sentences lost their end."""
    report = Opened(browser, write_report(runs[:1], tmp_path / "one.html"), color_scheme=scheme)
    report.page.set_viewport_size({"width": width, "height": 9000})
    report.page.wait_for_timeout(1500)
    assert report.page.evaluate(CUT) == []
    assert not report.page.evaluate(OVERLAPS)
    assert report.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert not report.errors
    report.context.close()


def test_the_loss_of_a_sweep_is_in_sight_on_a_telephone(browser: Any, tmp_path: Path) -> None:
    """The names of the runs took three lines above it; the button beside them lists all."""
    names = [f"lr0.03-seed{i}" for i in range(6)]
    for name in names:
        synthetic.write_run(tmp_path / name, steps=30)
    report = Opened(browser, write_report([tmp_path / name for name in names], tmp_path / "sweep.html"))
    report.page.set_viewport_size({"width": 304, "height": 780})
    report.page.wait_for_timeout(1000)
    box = report.cockpit.locator("[data-panel=loss]").bounding_box()
    assert box and box["y"] + box["height"] < 780
    assert not report.cockpit.locator(".ck-run").first.is_visible()
    report.cockpit.locator(".ck-bar button", has_text="6 runs").click()
    assert all(name in report.cockpit.locator(".ck-list").inner_text() for name in names)
    report.page.set_viewport_size({"width": 1000, "height": 780})
    assert report.cockpit.locator(".ck-run").first.is_visible()
    report.context.close()


def test_hostile_names_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    write_hostile(tmp_path / "evil")
    report = Opened(browser, write_report([tmp_path / "evil"], tmp_path / "evil.html"))
    dialogs: list[str] = []
    report.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    report.page.reload()
    report.cockpit.wait_for()
    report.page.wait_for_timeout(1000)
    assert dialogs == []
    assert report.page.locator("img").count() == 0
    assert "onerror=alert(1)" in report.page.locator("body").inner_text()  # as text
    assert report.errors == []
    report.context.close()


def test_large_run_stays_small_and_says_so(browser: Any, tmp_path: Path) -> None:
    synthetic.write_run(tmp_path / "long", steps=1200, layers=6)
    path = write_report([tmp_path / "long"], tmp_path / "long.html", max_bytes=1_000_000)
    assert path.stat().st_size <= 1_000_000
    report = Opened(browser, path)
    assert "histograms are left out" in report.page.locator("body").inner_text()
    report.cockpit.get_by_role("slider", name="Training step").press("Home")
    card = report.cockpit.locator('.ck-card[data-panel="grad_hist_2d"]')
    card.scroll_into_view_if_needed()
    # The first and the last step are always inside; words come when the picture has come to rest.
    card.locator("caption", has_text="step 0").wait_for(state="attached")
    assert report.errors == []
    screenshot(report.page, "report-long")
    report.context.close()
