"""Take the pictures of docs/panels: each panel on a healthy and on a sick run of the same small problem.

Usage: python scripts/panel_pictures.py [--folder FOLDER] [PANEL ...]; without a name all of them are taken. Needs chromium
(see scripts/find_browser.py) and some minutes; a panel by name tracks only what it shows, and takes seconds.
The sick run sees raw 0-255 pixels, passes them through sigmoids, and steps too far.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from playwright.sync_api import Page, sync_playwright
from sklearn.datasets import load_digits
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities
from cockpit_core.quantities import Quantity, configuration
from cockpit_core.report import write_report

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
STEPS = 240
PANELS = Path(__file__).resolve().parent.parent / "js" / "src" / "panels"
LEFT_OUT = ("PreconditionedSharpness", "Parameters")  # expensive, and nothing that a panel here shows
ALWAYS = ("Loss", "GradNorm", "UpdateSize", "ParamNorm")  # without a loss there is no page; the others cost nothing
ADAM, ATTENTION = ("optimizer_health", "update_cosine"), ("attention",)  # panels of what other runs do not have
WARNED = ("warnings",)  # neither of the usual two has any
MANY, WIDE = ("runs", "settings"), ("runs", "settings", "about", "warnings")


class Reader(nn.Module):
    """Attention between the eight lines of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.look, self.score = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        lines = images.flatten(1).reshape(-1, 8, 8)
        return self.score((lines + self.look(lines, lines, lines, need_weights=False)[0]).flatten(1))


@dataclass(frozen=True)
class Case:
    """How a run is made: two of them, alike but for what makes one of them sick, or several of a sweep."""

    name: str
    rate: float
    activation: type[nn.Module] = nn.ReLU
    scale: float = 1 / 16
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
    attention: bool = False

    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        act = self.activation
        return Reader() if self.attention else nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), act(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), act(), nn.Flatten(),
            nn.Linear(256, 32), act(), nn.Linear(32, 10),
        )  # fmt: skip


USUAL = [Case("healthy", 0.1), Case("sick", 3.0, nn.Sigmoid, 16.0)]
WITH_ADAM = [
    Case("healthy", 1e-3, optimizer=torch.optim.Adam),
    Case("sick", 0.3, nn.Sigmoid, 16.0, torch.optim.Adam),
]
WITH_ATTENTION = [Case("healthy", 0.1, attention=True), Case("sick", 0.01, scale=2.0, attention=True)]
WITH_WARNINGS = [Case("sick", 30.0)]
SWEEP = [Case(f"lr{rate:g}", rate) for rate in (0.003, 0.03, 0.1, 0.3, 3.0)]


def choose_quantities(panels: Sequence[str], everything: bool) -> list[Quantity]:
    """What the panels name in their sources; everything that a panel of the folder could show, if all are taken."""
    known = {name: value for name, value in vars(quantities).items() if is_quantity(value)}
    if not everything:
        words = {word for panel in panels for word in re.findall(r"\w+", (PANELS / f"{panel}.ts").read_text())}
        return [known[name]() for name in known if name in words or name in ALWAYS]
    usual = configuration("full")
    more = [known[name]() for name in known if name not in {own.name for own in usual} and name not in LEFT_OUT]
    return [*usual, *more]


def is_quantity(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Quantity) and value is not Quantity


def train(logdir: Path, case: Case, config: list[Quantity]) -> None:
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = (images * case.scale).float().reshape(-1, 1, 8, 8)
    model, loss_fn = case.make_model(), nn.CrossEntropyLoss()
    optimizer = case.optimizer(model.parameters(), lr=case.rate)  # type: ignore[call-arg]
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


def write_page(runs: list[Path], panels: list[str]) -> Path:
    """A report that shows these panels only; also those that stand aside."""
    path = write_report(runs, runs[0].parent / "page.html")
    path.write_text(path.read_text().replace('"panels": []', f'"panels": {json.dumps(panels)}', 1))
    return path


def photograph(page: Page, runs: list[Path], ending: str, folder: Path, panels: Sequence[str]) -> None:
    """Narrow panels as they stand in a column, tables as they stand below the columns."""
    for width, wanted in (
        (460, [own for own in panels if own not in WIDE]),
        (900, [own for own in panels if own in WIDE]),
    ):
        if not wanted:
            continue
        page.set_viewport_size({"width": width, "height": 900 + 420 * len(wanted)})
        page.goto(write_page(runs, wanted).as_uri())
        page.wait_for_selector(".ck-root")
        page.wait_for_timeout(3000)
        for card in page.query_selector_all("[data-panel]"):
            card.screenshot(path=str(folder / f"{card.get_attribute('data-panel')}-{ending}.png"))


def take(page: Page, cases: list[Case], panels: list[str], folder: Path, *, everything: bool, joint: bool) -> None:
    """Each run alone, or all in one picture."""
    if not panels:
        return
    with tempfile.TemporaryDirectory() as scratch:
        for case in cases:
            train(Path(scratch) / case.name, case, choose_quantities(panels, everything))
        for chosen in [cases] if joint else [[case] for case in cases]:
            ending = "sweep" if joint else chosen[0].name
            photograph(page, [Path(scratch) / case.name for case in chosen], ending, folder, panels)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the pictures of docs/panels.")
    parser.add_argument("panels", nargs="*", help="names of files in js/src/panels, without .ts; all if none is given")
    parser.add_argument("--folder", type=Path, default=Path("docs/panels"))
    options = parser.parse_args()
    known = sorted(path.stem for path in PANELS.glob("[a-z]*.ts") if path.stem != "index")
    unknown = [panel for panel in options.panels if panel not in known]
    if unknown:
        parser.error(f"no panel {', '.join(unknown)}; there are {', '.join(known)}")
    wanted = options.panels or known
    options.folder.mkdir(parents=True, exist_ok=True)
    special = (*ADAM, *ATTENTION, *WARNED, *MANY)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page()
        for cases, own in (
            (USUAL, [panel for panel in wanted if panel not in special]),
            (WITH_ADAM, [panel for panel in wanted if panel in ADAM]),
            (WITH_ATTENTION, [panel for panel in wanted if panel in ATTENTION]),
            (WITH_WARNINGS, [panel for panel in wanted if panel in WARNED]),
            (SWEEP, [panel for panel in wanted if panel in MANY]),
        ):
            everything = not options.panels and cases is USUAL
            take(page, cases, own, options.folder, everything=everything, joint=cases is SWEEP)
        browser.close()


if __name__ == "__main__":
    main()
