"""Words and numbers in the pictures of real runs: none runs into another, none leaves its card, no legend is cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import cockpit_core
from cockpit_core.report.write import write_report
from tests.e2e.tensorboard_tab import CUT

pytestmark = pytest.mark.browser

WIDTHS = {1600: 4200, 1000: 4600, 420: 9000}  # as high as the page is: what is out of sight is not drawn
BAD = """() => [...document.querySelectorAll('.ck-card')].flatMap((card) => {
  const outer = card.getBoundingClientRect();
  const texts = [...card.querySelectorAll('.ck-texts span')].filter((e) => e.textContent.trim());
  const boxes = texts.map((e) => [e.textContent, e.getBoundingClientRect()]).filter(([, box]) => box.width);
  const leaves = ({ left, right, top, bottom }) =>
    left < outer.left || right > outer.right + 1 || top < outer.top || bottom > outer.bottom + 1;
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const legend = card.querySelector('.ck-legend');
  return [
    ...boxes.filter(([, box]) => leaves(box)).map(([text]) => `${text} is outside`),
    ...boxes.flatMap(([text, a], i) => boxes.slice(i + 1).filter(([, b]) => meet(a, b)).map(([other]) => `${text} | ${other}`)),
    ...(legend && legend.scrollHeight > legend.clientHeight + 2 ? [`legend: ${legend.textContent}`] : []),
  ].map((words) => `${card.dataset.panel}: ${words}`);
})"""


def train(logdir: Path, *, scale: float = 1 / 16, rate: float = 0.1, steps: int = 60, **options: Any) -> Path:
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() * scale
    model, loss_fn = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    with cockpit_core.track(model, loss_fn, optimizer, logdir, **options) as run:
        for step in range(steps):
            batch = torch.randint(0, 1500, (64,))
            optimizer.zero_grad()
            loss_fn(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            if step % 10 == 9:
                with torch.no_grad():
                    right = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean()
                run.log(valid_accuracy=right.item())
    return logdir


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("labels")
    full: dict[str, Any] = {"config": "full", "schedule": 4}
    sweep = [train(folder / f"lr{rate}", rate=rate, **full) for rate in (0.001, 0.003, 0.01, 0.03, 0.3, 1.0)]
    kinds = {
        "by itself": [train(folder / "default")],
        "long tails": [train(folder / "healthy", steps=160, **full)],
        "raw pixels": [train(folder / "pixels", scale=16.0, **full)],
        "sweep": [*sweep, folder / "healthy"],
    }
    return {kind: write_report(runs, folder / f"{kind}.html") for kind, runs in kinds.items()}


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(offline=True)
    yield context.new_page()
    context.close()


def visit(page: Any, path: Path, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(path.as_uri())
    page.wait_for_selector("[data-panel=loss] .ck-reading")
    page.wait_for_timeout(1000)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ["by itself", "long tails", "raw pixels", "sweep"])
def test_every_word_has_its_place(page: Any, reports: dict[str, Path], kind: str, width: int) -> None:
    visit(page, reports[kind], width, WIDTHS[width])
    assert page.evaluate(BAD) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_enlarged_panel_is_seen_from_its_head_on(page: Any, reports: dict[str, Path]) -> None:
    """It moves to the top of the page: in the tab, whoever had scrolled down saw its lower end."""
    visit(page, reports["long tails"], 1600, 1000)
    card = page.locator("[data-panel=grad_hist_2d]")
    card.scroll_into_view_if_needed()
    card.locator(".ck-head .ck-icon").click()
    card.get_by_text("Enlarge").click()
    page.wait_for_timeout(300)
    bar = page.locator(".ck-scrub").bounding_box()
    box = card.bounding_box()
    assert bar["y"] + bar["height"] <= box["y"] <= 300  # below what stays in sight
    assert box["height"] > 400
    page.keyboard.press("Escape")
    page.wait_for_timeout(300)
    box = card.bounding_box()
    assert box["height"] < 500 and box["y"] >= 0 and box["y"] + box["height"] <= 1000  # back where it was, in sight


def test_a_line_does_not_begin_with_a_dot(page: Any, reports: dict[str, Path]) -> None:
    visit(page, reports["by itself"], 420, 900)
    starts = """() => { const outer = document.querySelector('.ck-status').getBoundingClientRect();
      return [...document.querySelectorAll('.ck-status span')].filter((e) => e.offsetWidth &&
        e.getBoundingClientRect().left - outer.left < 4 && getComputedStyle(e, '::before').content.includes('·') &&
        getComputedStyle(e, '::before').position !== 'absolute').map((e) => e.textContent); }"""
    assert page.evaluate(starts) == []
