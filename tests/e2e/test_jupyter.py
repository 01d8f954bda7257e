"""The widget in a real JupyterLab, seen through a real browser."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from tests import synthetic
from tests.e2e.jupyter_server import (
    Lab,
    assert_page_equals_log,
    change_setting,
    screenshot,
    shown_step,
    start_jupyter,
    wait_for_step,
    watch,
    write_notebook,
)

pytestmark = pytest.mark.browser

SETUP = """
import ipykernel, time, torch, cockpit_core
import matplotlib.pyplot as plt
from torch import nn
from cockpit_widget import CockpitWidget
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
inputs, labels = torch.randn(256, 64), torch.randint(0, 10, (256,))
run = cockpit_core.track(model, loss_fn, optimizer, logdir="runs/lenet", config="business")
widget = CockpitWidget(run, compact=False)
print("ipykernel", ipykernel.__version__)
"""
TRAIN = """
from IPython.display import display
display(widget)
figure, axes = plt.subplots()  # half drawn while training goes on
end, step = time.monotonic() + 45, 0
while not run.should_stop and time.monotonic() < end:
    step += 1
    pick = torch.randint(0, 256, (32,))
    optimizer.zero_grad()
    loss = loss_fn(model(inputs[pick]), labels[pick])
    loss.backward()
    optimizer.step()
    time.sleep(0.005)
run.close()
print("figures open:", plt.get_fignums(), "stopped at step", step, "errors", widget.status["errors"])
plt.close(figure)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("jupyter")


@pytest.fixture(scope="module")
def jupyter(folder: Path) -> Iterator[str]:
    with start_jupyter(folder) as url:
        change_setting(url, "@jupyter-widgets/jupyterlab-manager:plugin", '{"saveState": true}')
        change_setting(url, "@jupyterlab/apputils-extension:notification", '{"fetchNews": "false"}')
        yield url


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1500, "height": 1200}, accept_downloads=True)
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


def test_cockpit_lives_while_the_cell_is_busy_and_afterwards(
    page: Any, jupyter: str, folder: Path, browser: Any
) -> None:
    notebook = write_notebook(folder / "train.ipynb", SETUP, TRAIN, "widget")
    lab = Lab(page, jupyter, notebook, "train")
    lab.run_and_wait(0)
    lab.run_cell(1)
    cockpit = lab.cockpits().first
    cockpit.wait_for()
    wait_for_step(page, cockpit, 2, 40.0)  # the first step of a process compiles and imports
    seen = watch(page, cockpit)
    assert lab.prompt(1).strip() == "[*]:"
    assert len(seen) >= 4, f"the cockpit stood still: {sorted(seen)}"
    screenshot(page, "jupyter-live")
    cockpit.get_by_role(
        "button", name="Logarithmic horizontal axis"
    ).click()  # the page tells the kernel, which is busy
    page.wait_for_timeout(500)
    cockpit.get_by_role("button", name="Ask the training to end").click()
    lab.wait_for_cell(1)
    assert "figures open: [1]" in lab.cell_text(1)
    assert "errors 0" in lab.cell_text(1)
    last = int(load(folder / "runs/lenet").scalars("Loss")[0][-1])
    deaf = "ipykernel 6" in lab.cell_text(0)  # a busy kernel hears a click only from 7 on
    assert load(folder / "runs/lenet").status == ("finished" if deaf else "stopped")
    wait_for_step(page, lab.cockpits().first, last)
    assert_page_equals_log(page, lab.cockpits().first, folder / "runs/lenet", "lenet")

    lab.run_and_wait(2)  # a second view of the same widget
    second = lab.cell(2).locator(".ck-root")
    second.wait_for()
    wait_for_step(page, second, last)

    lab.command("docmanager:save")
    page.wait_for_timeout(1000)
    page.reload()  # idle: the kernel answers
    lab.wait_for_kernel()
    began = time.monotonic()
    again = lab.cell(2).locator(".ck-root")
    again.wait_for()
    again.scroll_into_view_if_needed()  # JupyterLab does not render cells that are out of sight
    wait_for_step(page, again, last, 3.0)
    assert time.monotonic() - began < 3.0
    assert again.get_by_role("button", name="Logarithmic horizontal axis").get_attribute("aria-pressed") == "true"
    assert_page_equals_log(page, again, folder / "runs/lenet", "lenet", thinned=last > 400)
    assert not lab.errors

    other = browser.new_context(viewport={"width": 1500, "height": 1200}).new_page()  # somebody else's browser
    elsewhere = Lab(other, jupyter, notebook, "elsewhere")
    elsewhere.cell(2).locator(".ck-root").wait_for()
    elsewhere.cell(2).locator(".ck-root").scroll_into_view_if_needed()
    wait_for_step(other, elsewhere.cell(2).locator(".ck-root"), last)
    other.context.close()


def test_saved_notebook_reopens_with_its_panels_and_has_a_poster(
    page: Any, jupyter: str, folder: Path, browser: Any
) -> None:
    synthetic.write_run(folder / "runs/saved", steps=1500)
    notebook = write_notebook(
        folder / "saved.ipynb", "from cockpit_widget import CockpitWidget\nCockpitWidget('runs/saved')"
    )
    lab = Lab(page, jupyter, notebook, "saved")
    lab.run_and_wait(0)
    wait_for_step(page, lab.cockpits().first, 1499)
    page.wait_for_timeout(500)
    lab.command("docmanager:save")
    page.wait_for_timeout(2000)
    assert notebook.stat().st_size < 2_000_000
    saved = json.loads(notebook.read_text())
    assert "widgets" in saved["metadata"]
    lab.command("kernelmenu:shutdown")
    page.wait_for_timeout(1000)
    lab.command("notebook:close-and-shutdown")
    context = browser.new_context(viewport={"width": 1500, "height": 1200})
    later = context.new_page()
    later.goto(f"{jupyter}/lab/workspaces/later/tree/saved.ipynb")
    cockpit = later.locator(".ck-root:visible").first
    cockpit.wait_for(timeout=60_000)
    wait_for_step(later, cockpit, 1499)
    screenshot(later, "jupyter-saved")
    context.close()

    del saved["metadata"]["widgets"]  # as on GitHub, and in nbviewer
    bare = folder / "bare.ipynb"
    bare.write_text(json.dumps(saved))
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output", "bare.html", str(bare)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    html = (folder / "bare.html").read_text()
    assert 'src="data:image/png;base64,' in html


def test_directory_of_another_process_and_dark_theme(page: Any, jupyter: str, folder: Path) -> None:
    code = (
        "import time\n"
        "from pathlib import Path\n"
        "from tests.widget.fakes import FakeRun\n"
        "run = FakeRun(Path('runs/other'))\n"
        "for _ in range(60):\n"
        "    run.step(2)\n"
        "    time.sleep(0.1)\n"
        "run.close()\n"
    )
    notebook = write_notebook(
        folder / "tail.ipynb", "from cockpit_widget import CockpitWidget", "CockpitWidget('runs/other', compact=False)"
    )
    lab = Lab(page, jupyter, notebook, "tail")
    lab.run_and_wait(0)
    lab.run_and_wait(1)
    cockpit = lab.cockpits().first
    cockpit.wait_for()
    lab.page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})")
    root = Path(__file__).resolve().parents[2]
    writer = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    )
    try:
        wait_for_step(page, cockpit, 20)
        seen = {shown_step(cockpit)}
        for _ in range(20):
            page.wait_for_timeout(100)
            seen.add(shown_step(cockpit))
        assert len(seen) >= 2
        assert writer.wait(60) == 0
    finally:
        writer.kill()
    wait_for_step(page, cockpit, 119)
    assert_page_equals_log(page, cockpit, folder / "runs/other", "other")
    assert "ck-dark" in (cockpit.get_attribute("class") or "")
    screenshot(page, "jupyter-dark")
    lab.page.evaluate("() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Light'})")
    page.wait_for_timeout(1000)
    assert "ck-dark" not in (cockpit.get_attribute("class") or "")
    assert not lab.errors


def test_two_runs_are_compared_and_scrubbed(page: Any, jupyter: str, folder: Path) -> None:
    synthetic.write_run(folder / "runs/a", steps=120)
    synthetic.write_run(folder / "runs/b", steps=80, seed=1, sick_layer=0)
    notebook = write_notebook(
        folder / "compare.ipynb",
        "from cockpit_widget import CockpitWidget\nCockpitWidget(['runs/a', 'runs/b'], height=700, theme='light')",
    )
    lab = Lab(page, jupyter, notebook, "compare")
    lab.run_and_wait(0)
    cockpit = lab.cockpits().first
    wait_for_step(page, cockpit, 79)
    for key in ("a", "b"):
        assert_page_equals_log(page, cockpit, folder / "runs" / key, key)
    scrubber = cockpit.get_by_role("slider", name="Training step")
    scrubber.focus()
    scrubber.press("Home")
    card = cockpit.locator('.ck-card[data-panel="loss"]')
    card.scroll_into_view_if_needed()  # only what can be seen is drawn
    page.wait_for_timeout(500)
    screenshot(page, "jupyter-compare")
    first = {key: load(folder / "runs" / key).scalars("Loss")[1][0] for key in ("a", "b")}
    for value in first.values():
        assert f"{value:.3g}" in card.inner_text()
    assert not lab.errors


def test_page_reloaded_while_a_thread_trains_knows_the_whole_history(page: Any, jupyter: str, folder: Path) -> None:
    code = """
import threading, time
from pathlib import Path
from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeRun
run = FakeRun(Path("runs/thread"))

def train():
    while not run.should_stop:
        run.step()
        time.sleep(0.1)
    run.close("stopped")

threading.Thread(target=train).start()
CockpitWidget(run, compact=False)
"""
    lab = Lab(page, jupyter, write_notebook(folder / "thread.ipynb", code), "thread")
    lab.run_and_wait(0)
    wait_for_step(page, lab.cockpits().first, 10)
    lab.command("docmanager:save")
    page.wait_for_timeout(1000)
    page.reload()
    lab.wait_for_kernel()
    cockpit = lab.cockpits().first
    cockpit.wait_for()
    wait_for_step(page, cockpit, 20, 10.0)
    now = shown_step(cockpit)
    wait_for_step(page, cockpit, now + 5)  # and it goes on
    cockpit.get_by_role("button", name="Ask the training to end").click()
    page.wait_for_timeout(2000)
    wait_for_step(page, cockpit, int(load(folder / "runs/thread").scalars("Loss")[0][-1]))
    assert load(folder / "runs/thread").status == "stopped"
    assert_page_equals_log(page, cockpit, folder / "runs/thread", "thread")
    assert not lab.errors


def test_page_reloaded_while_the_cell_is_busy_waits_and_then_knows_everything(
    page: Any, jupyter: str, folder: Path
) -> None:
    """Jupyter itself cannot answer a page that loads meanwhile: the page says that it waits, as the docs say, and
    has everything once the cell has ended."""
    code = """
import time
from pathlib import Path
from IPython.display import display
from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeRun
run = FakeRun(Path("runs/busy"))
display(CockpitWidget(run, compact=False))
while not Path("go-on").exists():
    run.step()
    time.sleep(0.1)
run.close()
"""
    lab = Lab(page, jupyter, write_notebook(folder / "busy.ipynb", code), "busy")
    lab.run_cell(0)
    wait_for_step(page, lab.cockpits().first, 5, 30.0)
    lab.command("docmanager:save")
    page.wait_for_timeout(1000)
    page.reload()
    page.locator(".jp-Notebook:visible .jp-Cell").first.wait_for()
    page.wait_for_timeout(2000)
    waiting = lab.cell(0).locator(".jp-OutputArea-output")
    assert "Loading widget" in waiting.inner_text()
    assert lab.cockpits().count() == 0
    screenshot(page, "jupyter-reloaded-while-busy")
    (folder / "go-on").touch()
    lab.cockpits().first.wait_for()
    last = int(load(folder / "runs/busy").scalars("Loss")[0][-1])
    wait_for_step(page, lab.cockpits().first, last)
    assert load(folder / "runs/busy").status == "finished"
    assert_page_equals_log(page, lab.cockpits().first, folder / "runs/busy", "busy", thinned=last > 400)
    assert not lab.errors


def test_restarted_kernel_is_noticed(page: Any, jupyter: str, folder: Path) -> None:
    code = """
from pathlib import Path
from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeRun
run = FakeRun(Path("runs/cut"))
run.step(5)
CockpitWidget(run)
"""
    lab = Lab(page, jupyter, write_notebook(folder / "cut.ipynb", code), "cut")
    lab.run_and_wait(0)
    cockpit = lab.cockpits().first
    cockpit.get_by_text("No faults found in what was measured (5 steps)").wait_for()
    assert cockpit.bounding_box()["height"] <= 300  # it begins as a strip
    cockpit.get_by_text("Expand").click()
    wait_for_step(page, cockpit, 4)
    assert "disconnected" not in cockpit.locator(".ck-status").inner_text()
    page.evaluate("() => void window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    cockpit.get_by_text("disconnected: the kernel is gone").wait_for()
    assert shown_step(cockpit) == 4  # what is known stays
    assert not lab.errors
