"""Pictures of the panels on made-up runs, to be looked at: ``python js/dev/shoot.py artifacts/panels``.

Builds on the report, so what is photographed is the real bundle with real Batches.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from playwright.sync_api import sync_playwright  # noqa: E402

from cockpit_core.report.write import write_report  # noqa: E402
from tests.synthetic import write_run  # noqa: E402

VIEWS = [("wide", 1480, "light"), ("wide", 1480, "dark"), ("medium", 1000, "light"), ("narrow", 480, "light")]


def make_pages(folder: Path) -> dict[str, Path]:
    write_run(folder / "lenet-sgd", steps=2000, layers=8, seed=1, every=4)
    write_run(
        folder / "lenet-sigmoid", steps=1500, layers=8, seed=2, every=4, sick_layer="conv1.weight", finished=False
    )
    write_run(folder / "first", steps=1, layers=4, seed=3, finished=False)
    pages = {"one": ["lenet-sgd"], "sick": ["lenet-sigmoid"], "two": ["lenet-sgd", "lenet-sigmoid"], "first": ["first"]}
    return {name: write_report([folder / run for run in runs], folder / f"{name}.html") for name, runs in pages.items()}


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, path in make_pages(Path(folder)).items():
            for label, width, scheme in VIEWS if name == "two" else VIEWS[:1]:
                page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                page.on("console", lambda message: print("console:", message.text))
                page.on("pageerror", lambda error: print("error:", error))
                page.goto(path.as_uri())
                page.wait_for_timeout(900)
                page.screenshot(path=target / f"{name}-{label}-{scheme}.png", full_page=True)
                page.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "artifacts/panels"))
