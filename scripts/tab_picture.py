"""Take docs/cockpit.png: the tab of a real TensorBoard on what `cockpit demo` writes.

Usage: python scripts/tab_picture.py [file]; needs chromium (see scripts/find_browser.py) and about two minutes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cockpit_core.commands.cli import main as run_cockpit
from tests.e2e.tensorboard_server import TensorBoard
from tests.e2e.tensorboard_tab import Tab

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def photograph(logdir: Path, target: Path) -> None:
    with TensorBoard("--logdir", str(logdir)) as board, sync_playwright() as playwright:
        board.wait_for_runs("digits")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        page = browser.new_page(viewport={"width": 1500, "height": 1350})
        Tab.open(page, board)
        page.wait_for_timeout(8000)  # the past of the histograms comes last
        page.screenshot(path=target)
        browser.close()


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/cockpit.png")
    with tempfile.TemporaryDirectory() as folder:
        run_cockpit(["demo", "--logdir", str(Path(folder) / "digits")])
        photograph(Path(folder), target)


if __name__ == "__main__":
    main()
