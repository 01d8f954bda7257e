"""Take the pictures of docs/panels: panels on a healthy and on a sick run of the same small problem.

Usage: python scripts/panel_pictures.py [--folder FOLDER] [PANEL ...]; without a name all of them are taken. Needs chromium
(see scripts/find_browser.py) and about two minutes; a panel by name tracks only what it shows, and takes seconds.
The sick run sees raw 0-255 pixels, passes them through sigmoids, and steps too far.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright
from sklearn.datasets import load_digits
from torch import nn

import cockpit_core
from cockpit_core import quantities
from cockpit_core.quantities import Quantity, configuration
from cockpit_core.report import write_report

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
STEPS = 240
PANELS = Path(__file__).resolve().parent.parent / "js" / "src" / "panels"
EXPENSIVE = ("PreconditionedSharpness",)  # and has no value for SGD
FIRST = ("Loss",)  # without a loss there is no page


def make_model(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), activation(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), activation(), nn.Flatten(),
        nn.Linear(256, 32), activation(), nn.Linear(32, 10),
    )  # fmt: skip


def choose_quantities(panels: Sequence[str]) -> list[Quantity]:
    """What the panels name in their sources; everything that a panel of the folder could show, without names."""
    known = {name: value for name, value in vars(quantities).items() if is_quantity(value)}
    if panels:
        words = {word for panel in panels for word in re.findall(r"\w+", (PANELS / f"{panel}.ts").read_text())}
        return [known[name]() for name in known if name in words or name in FIRST]
    usual = configuration("full")
    more = [known[name]() for name in known if name not in {own.name for own in usual} and name not in EXPENSIVE]
    return [*usual, *more]


def is_quantity(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Quantity) and value is not Quantity


def train(logdir: Path, activation: type[nn.Module], scale: float, rate: float, config: list[Quantity]) -> None:
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = (images * scale).float().reshape(-1, 1, 8, 8)
    model, loss_fn = make_model(activation), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config, schedule=3, steps_per_epoch=20) as run:
        for step in range(STEPS):
            batch = torch.randint(0, 1500, (64,))
            run.batch(ids=batch)
            optimizer.zero_grad()
            loss_fn(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            if step % 20 == 19:
                with torch.no_grad():
                    right = model(images[1500:]).argmax(1) == labels[1500:]
                run.log(valid_accuracy=right.float().mean())


def photograph(page_file: Path, name: str, folder: Path, panels: Sequence[str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1300, "height": 4200})
        page.goto(page_file.as_uri())
        page.wait_for_selector("[data-panel]")
        page.wait_for_timeout(4000)
        for card in page.query_selector_all("[data-panel]"):
            panel = card.get_attribute("data-panel") or ""
            if panel in panels or (not panels and panel.replace("_", "").isalnum()):
                card.screenshot(path=str(folder / f"{panel}-{name}.png"))
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of docs/panels.")
    parser.add_argument("panels", nargs="*", help="names of files in js/src/panels, without .ts; all if none is given")
    parser.add_argument("--folder", type=Path, default=Path("docs/panels"))
    options = parser.parse_args()
    unknown = [panel for panel in options.panels if not (PANELS / f"{panel}.ts").is_file()]
    if unknown:
        parser.error(
            f"no panel {', '.join(unknown)}; there are {', '.join(sorted(p.stem for p in PANELS.glob('[a-z]*.ts')))}"
        )
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, activation, scale, rate in (("healthy", nn.ReLU, 1 / 16, 0.1), ("sick", nn.Sigmoid, 16.0, 3.0)):
            train(Path(scratch) / name, activation, scale, rate, choose_quantities(options.panels))
            write_report([Path(scratch) / name], Path(scratch) / f"{name}.html")
            photograph(Path(scratch) / f"{name}.html", name, options.folder, options.panels)


if __name__ == "__main__":
    main()
