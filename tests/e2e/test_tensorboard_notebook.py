"""The tab inside ``%tensorboard``, in a real JupyterLab: a frame of another origin in a page that knows nothing of us."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from tests import synthetic
from tests.e2e.jupyter_server import Lab, change_setting, screenshot, start_jupyter, write_notebook
from tests.e2e.tensorboard_tab import Tab

pytestmark = pytest.mark.browser

# As in an activated environment; the list of running TensorBoards is one of our own.
PREPARE = """
import os, sys, tempfile
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
os.environ["TMPDIR"] = tempfile.tempdir = os.getcwd()
"""
MAGIC = """
%load_ext tensorboard
%tensorboard --logdir runs --port 0 --reload_interval 1
"""


def test_the_tab_works_inside_the_notebook_magic(browser: Any, tmp_path: Path) -> None:
    synthetic.write_run(tmp_path / "runs" / "demo", steps=60)
    data = load(tmp_path / "runs" / "demo")
    notebook = write_notebook(tmp_path / "magic.ipynb", PREPARE, MAGIC)
    with (
        start_jupyter(tmp_path) as url,
        browser.new_context(viewport={"width": 1500, "height": 1200}) as context,
    ):
        change_setting(url, "@jupyterlab/apputils-extension:notification", '{"fetchNews": "false"}')
        try:
            page = context.new_page()
            lab = Lab(page, url, notebook, "magic")
            lab.run_and_wait(0)
            lab.run_and_wait(1)
            inner = page.frame_locator("iframe[id^=tensorboard-frame]")
            inner.get_by_text("Cockpit", exact=True).first.click(timeout=30_000)
            tab = Tab(page, url)
            tab.wait(lambda: tab.read("gradient_tests", "norm") is not None, "panels")
            tab.settle()
            norm = tab.read("gradient_tests", "norm")
            steps, values = data.scalars("NormTest")
            assert norm is not None
            assert (norm.step, norm.value) == (steps[-1], values[-1])
            screenshot(page, "tensorboard-notebook")
            assert not tab.errors
        finally:
            for info in (tmp_path / ".tensorboard-info").glob("*.info"):
                os.kill(json.loads(info.read_text())["pid"], signal.SIGTERM)
