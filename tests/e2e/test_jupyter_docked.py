"""The widget in a view of its own, beside the notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import synthetic
from tests.e2e.jupyter_server import Lab, screenshot, shown_step, wait_for_step, write_notebook
from tests.e2e.test_jupyter import folder, jupyter, page

pytestmark = pytest.mark.browser
__all__ = ["folder", "jupyter", "page"]  # fixtures


def test_docked_beside_the_notebook(page: Any, jupyter: str, folder: Path) -> None:
    """JupyterLab's "Create New View for Cell Output": two views of one widget, each with its own size."""
    synthetic.write_run(folder / "runs/docked", steps=60)
    notebook = write_notebook(
        folder / "docked.ipynb", "from cockpit_widget import CockpitWidget\nCockpitWidget('runs/docked')"
    )
    lab = Lab(page, jupyter, notebook, "docked")
    lab.run_and_wait(0)
    wait_for_step(page, lab.cockpits().first, 59)
    lab.command("notebook:create-output-view")
    docked = page.locator(".jp-LinkedOutputView .ck-root")
    docked.wait_for()
    page.evaluate(  # as if its tab were dragged to the right half
        "() => { const all = [...window.jupyterapp.shell.widgets('main')];"
        " window.jupyterapp.shell.add(all.at(-1), 'main', {mode: 'split-right', ref: all[0].id}) }"
    )
    wait_for_step(page, docked, 59)
    page.wait_for_timeout(500)
    first = lab.cell(0).locator(".ck-root")
    assert docked.bounding_box()["height"] < 320 and first.bounding_box()["height"] < 320  # two strips, side by side
    assert docked.bounding_box()["x"] > first.bounding_box()["x"] + first.bounding_box()["width"]
    docked.locator("button", has_text="Expand").click()
    docked.locator("[data-panel=gradient_tests]").wait_for()
    assert first.locator("[data-panel=gradient_tests]").count() == 0  # the strip in the notebook stays one
    screenshot(page, "jupyter-docked")
    page.evaluate("() => [...window.jupyterapp.shell.widgets('main')].at(-1).close()")
    docked.wait_for(state="detached")
    page.wait_for_timeout(300)
    assert shown_step(first) >= 59 and first.locator("[data-panel=loss] canvas").is_visible()
    assert not lab.errors
