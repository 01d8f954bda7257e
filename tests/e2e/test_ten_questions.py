"""Ten questions of somebody whose training goes wrong: how many clicks from the first screen to the answer? Two at most."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import cockpit_core
from cockpit_core import quantities as q
from cockpit_core.report.write import write_report

pytestmark = pytest.mark.browser

STEPS = 60
CHEAP = [q.Loss, q.GradNorm, q.UpdateSize, q.ParamNorm, q.NormTest, q.SignalShare, q.AlphaOwnBatch]


def train(
    logdir: Path, *, rate: float = 0.2, scale: float = 1 / 16, activation: type[nn.Module] = nn.ReLU, depth: int = 1,
    adam: bool = False, samples: int = 1500, more: tuple[q.Quantity, ...] = (), steps: int = STEPS,
    shuffled: bool = False,
) -> Path:  # fmt: skip
    torch.manual_seed(0)
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() * scale
    labels = labels[torch.randperm(len(labels))] if shuffled else labels
    layers = [part for _ in range(depth) for part in (nn.Linear(64, 64), activation())]
    model, loss_fn = nn.Sequential(*layers, nn.Linear(64, 10)), nn.CrossEntropyLoss()
    optimizer = (torch.optim.Adam if adam else torch.optim.SGD)(model.parameters(), lr=rate)
    config = [*(kind() for kind in CHEAP), *more]
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config, schedule=2) as run:
        for step in range(steps):
            batch = torch.randint(0, samples, (64,))
            run.batch(ids=batch)
            optimizer.zero_grad()
            loss = loss_fn(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                with torch.no_grad():
                    run.log(train_loss=loss.item(), valid_loss=loss_fn(model(images[1500:]), labels[1500:]).item())
    return logdir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    train(folder / "healthy", more=(q.HardSamples(),))
    train(folder / "sigmoid", activation=nn.Sigmoid, depth=10)
    train(folder / "pixels", scale=16.0)
    train(
        folder / "adam", adam=True, rate=1e-3, more=(q.HessMaxEV(schedule=20), q.PreconditionedSharpness(schedule=20))
    )
    train(folder / "shuffled", rate=0.1, shuffled=True, steps=400)
    train(folder / "memorised", adam=True, rate=3e-3, samples=128, shuffled=True, steps=400)
    for rate in (0.003, 3.0):
        train(folder / f"lr{rate}", rate=rate)
    return folder


class Visitor:
    """Looks at the first screen, and counts what it clicks."""

    def __init__(self, page: Any, folder: Path, *runs: str) -> None:
        self.page, self.clicks = page, 0
        page.goto(write_report([folder / run for run in runs], folder / f"{'-'.join(runs)}.html").as_uri())
        page.wait_for_selector("[data-panel=loss] .ck-reading")
        page.wait_for_timeout(400)

    def click(self, selector: str, text: str = "") -> None:
        self.clicks += 1
        self.page.locator(selector, has_text=text).first.click()
        self.page.wait_for_timeout(200)

    def read(self, selector: str) -> str:
        """What is out of sight is not drawn: scrolling is no click."""
        self.page.locator(selector.split()[0]).first.scroll_into_view_if_needed()
        return str(self.page.locator(selector).first.inner_text())

    def sees(self, selector: str) -> bool:
        """Whole on the screen, without scrolling."""
        box = self.page.locator(selector).first.bounding_box()
        return box is not None and box["y"] >= 0 and box["y"] + box["height"] <= self.page.viewport_size["height"]


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1600, "height": 1000}, offline=True)
    yield context.new_page()
    context.close()


def test_is_it_learning_at_all(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "sigmoid")
    assert visitor.sees(".ck-health") and visitor.sees("[data-panel=loss]") and visitor.sees("[data-panel=layer_map]")
    assert re.search("vanish|not fallen|not learn", visitor.read(".ck-health"))
    assert "guessing" in visitor.read("[data-panel=loss] .ck-legend")
    assert visitor.clicks == 0


def test_since_when_and_what_changed(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "pixels")
    visitor.click(".ck-health")
    since = visitor.read(".ck-finding .ck-link")
    visitor.click(".ck-finding .ck-link", since)
    assert since in visitor.read(".ck-where")  # all panels show that step now
    assert visitor.clicks <= 2


def test_which_layer_first(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "sigmoid")
    names = page.evaluate(
        "[...document.querySelectorAll('[data-panel=layer_map] .ck-texts *')].map((e) => e.textContent)"
    )
    assert any("0" in name for name in names)
    box = page.locator("[data-panel=layer_map] canvas").bounding_box()
    for x in (
        100,
        0.6 * box["width"],
    ):  # not all tensors fit: a click on the name unfolds the block, one on the map chooses
        visitor.clicks += 1
        page.mouse.click(box["x"] + x, box["y"] + 24)
        page.wait_for_timeout(300)
    assert "0." in page.locator(".ck-bar select").first.input_value()
    assert visitor.clicks <= 2


def test_which_samples(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "healthy")
    row = visitor.read("[data-panel=hard_samples] tbody tr").split()
    assert 0 <= int(row[0]) < 1500
    assert visitor.clicks == 0


def test_is_it_the_data(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "pixels")
    assert "inputs are not scaled" in visitor.read(".ck-health")
    assert page.locator("[data-panel=signal_inputs]").count() == 1  # comes by itself where a finding rests on it
    assert visitor.clicks == 0


def test_is_it_the_labels(page: Any, folder: Path) -> None:
    """Labels that were shuffled apart from their inputs: the loss stays where guessing is, though steps are right."""
    visitor = Visitor(page, folder, "shuffled")
    assert re.search(
        "labels may not belong|does not learn|Not learning: the loss is .* guessing", visitor.read(".ck-health")
    )
    assert "guessing" in visitor.read("[data-panel=loss] .ck-legend")
    visitor.click(".ck-health")
    assert re.search("Look at twenty samples with their labels|Train on 20 samples", visitor.read(".ck-findings"))
    assert visitor.clicks <= 2


def test_why_is_the_gradient_zero(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "sigmoid")
    visitor.click(".ck-health")
    finding = visitor.read(".ck-finding")
    assert "0.weight" in finding and "Try:" in finding
    assert visitor.clicks <= 2


def test_how_does_it_differ_from_the_healthy_run(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "healthy", "lr0.003")
    visitor.click(".ck-health")
    visitor.click(".ck-findings .ck-chip", "healthy")
    assert "first differs from it in" in visitor.read(".ck-twin")
    assert visitor.clicks <= 2


def test_which_learning_rate(page: Any, folder: Path) -> None:
    one = Visitor(page, folder, "lr0.003")
    note = one.read("[data-panel=alpha] .ck-note") + one.read(".ck-health")
    assert "could be larger" in note or "too low" in note
    sweep = Visitor(page, folder, "healthy", "lr0.003", "lr3.0")
    assert "Best: lr=0.2" in sweep.read("[data-panel=settings] .ck-note")
    assert one.clicks == sweep.clicks == 0


def test_is_adams_step_stable(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "adam")
    assert "the limit of Adam" in visitor.read("[data-panel=hess_max_ev] .ck-note")
    assert visitor.clicks == 0


def test_is_it_memorising(page: Any, folder: Path) -> None:
    visitor = Visitor(page, folder, "healthy")
    assert {"train_loss", "valid_loss"} <= set(visitor.read("[data-panel=loss] .ck-legend").split())
    assert visitor.sees("[data-panel=loss]")
    sick = Visitor(page, folder, "memorised")
    assert "Validation does not follow training: at step" in sick.read(".ck-health")
    assert visitor.clicks == sick.clicks == 0
