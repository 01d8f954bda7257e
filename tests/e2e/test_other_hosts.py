"""The same widget in the other notebooks: Notebook 7 and marimo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.jupyter_server import Lab, free_port, screenshot, start_jupyter, start_server, write_notebook
from tests.e2e.test_jupyter import assert_page_equals_log, page, wait_for_step, watch

pytestmark = pytest.mark.browser
__all__ = ["page"]  # a fixture

TRAIN = """
import time
from pathlib import Path
from IPython.display import display
from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeRun
run = FakeRun(Path("runs/lenet"))
display(CockpitWidget(run, compact=False))
for _ in range(100):
    run.step()
    time.sleep(0.1)
run.close()
"""
MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import time
    from pathlib import Path

    import marimo as mo

    from cockpit_widget import CockpitWidget
    from tests.widget.fakes import FakeRun

    return CockpitWidget, FakeRun, Path, mo, time


@app.cell
def _(CockpitWidget, FakeRun, Path, mo):
    run = FakeRun(Path("runs/lenet"))
    widget = mo.ui.anywidget(CockpitWidget(run, compact=False))
    widget
    return run, widget


@app.cell
def _(run, time, widget):
    for _ in range(100):
        run.step()
        time.sleep(0.1)
    run.close()
    mo_done = "training has ended"
    mo_done
    return


if __name__ == "__main__":
    app.run()
"""


def see_it_move(page: Any, cockpit: Any) -> set[int]:
    cockpit.wait_for(timeout=60_000)
    wait_for_step(page, cockpit, 1, 20.0)
    return watch(page, cockpit, 8.0)


def test_notebook_7_shows_the_cockpit_while_the_cell_is_busy(page: Any, tmp_path: Path) -> None:
    notebook = write_notebook(tmp_path / "train.ipynb", TRAIN)
    with start_jupyter(tmp_path, "notebook") as url:
        lab = Lab(page, url, notebook, "", address=f"{url}/notebooks/train.ipynb")
        lab.run_cell(0)
        cockpit = lab.cockpits().first
        seen = see_it_move(page, cockpit)
        assert lab.prompt(0).strip() == "[*]:"
        assert len(seen) >= 3
        lab.wait_for_cell(0)
        wait_for_step(page, lab.cockpits().first, 99)
        assert_page_equals_log(page, lab.cockpits().first, tmp_path / "runs/lenet", "lenet")
        screenshot(page, "notebook7")
        assert not lab.errors


def test_marimo_shows_the_cockpit_while_the_cell_is_busy(page: Any, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "app.py").write_text(MARIMO)
    command = [sys.executable, "-m", "marimo", "run", "app.py", "--headless", "--no-token", f"--port={port}"]
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    with start_server(command, f"http://127.0.0.1:{port}/health", tmp_path) as url:
        page.goto(url.removesuffix("/health"))
        cockpit = page.locator(".ck-root").first
        seen = see_it_move(page, cockpit)
        assert "training has ended" not in page.locator("body").inner_text()
        assert len(seen) >= 3
        wait_for_step(page, cockpit, 99, 20.0)
        page.get_by_text("training has ended").wait_for()
        page.wait_for_timeout(1000)
        assert_page_equals_log(page, cockpit, tmp_path / "runs/lenet", "lenet")
        screenshot(page, "marimo")
        assert not errors
