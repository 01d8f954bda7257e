"""A real JupyterLab, a notebook in it, and a page that looks at it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from cockpit_core.events.data import load

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "artifacts"
# The Python whose ipykernel the notebooks use, if it is not this one: see try_kernels.py.
KERNEL_PYTHON = os.environ.get("COCKPIT_KERNEL_PYTHON", "")
KERNEL_NAME = "cockpit-other" if KERNEL_PYTHON else "python3"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def start_server(command: list[str], url: str, folder: Path, timeout: float = 90.0) -> Iterator[str]:
    """Start ``command`` in ``folder``, wait until ``url`` answers; at the end stop it with its children."""
    log = folder / "server.log"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT)]))
    environment = {**os.environ, "PYTHONPATH": path, "JUPYTER_CONFIG_DIR": str(folder / "config")}
    environment |= {
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "HOME": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    environment |= {"OMP_NUM_THREADS": "1", "MPLBACKEND": ""}  # a notebook has a backend of its own
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
    try:
        wait_for_answer(url, process, log, timeout)
        yield url
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """A server that is told to end waits for its kernels, up to half a minute: they are ended first."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for_answer(url: str, process: subprocess.Popen[bytes], log: Path, timeout: float) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"The server ended:\n{log.read_text(errors='replace')[-3000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer:\n{log.read_text(errors='replace')[-3000:]}")


@contextlib.contextmanager
def start_jupyter(folder: Path, application: str = "lab") -> Iterator[str]:
    port = free_port()
    options = [f"--port={port}", "--port-retries=0", "--no-browser", "--ip=127.0.0.1", "--IdentityProvider.token="]
    options += ["--allow-root", "--ServerApp.disable_check_xsrf=True", f"--ServerApp.root_dir={folder}"]
    options += ["--LabApp.expose_app_in_browser=True", "--JupyterNotebookApp.expose_app_in_browser=True"]
    command = [sys.executable, "-m", "jupyter", application, *options]
    write_kernel(folder / "data")
    with start_server(command, f"http://127.0.0.1:{port}/api", folder):
        yield f"http://127.0.0.1:{port}"


def write_kernel(data: Path) -> None:
    """Announces the other Python's kernel to a server that keeps its data there."""
    if KERNEL_PYTHON:
        place = data / "kernels" / KERNEL_NAME
        place.mkdir(parents=True)
        argv = [KERNEL_PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": argv, "display_name": "Other Python", "language": "python"}
        (place / "kernel.json").write_text(json.dumps(spec))


def write_notebook(path: Path, *cells: str) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": KERNEL_NAME, "display_name": KERNEL_NAME, "language": "python"}
    nbformat.write(notebook, path)
    return path


def change_setting(url: str, plugin: str, raw: str) -> None:
    """As the settings editor would."""
    request = urllib.request.Request(
        f"{url}/lab/api/settings/{plugin}", method="PUT", data=json.dumps({"raw": raw}).encode()
    )
    with urllib.request.urlopen(request, timeout=10):
        pass


class Lab:
    """One notebook, open in one page of JupyterLab."""

    def __init__(self, page: Any, url: str, notebook: Path, workspace: str, address: str = "") -> None:
        self.page, self.errors = page, list[str]()
        # Ours only: a widget's program is loaded from a blob, and Jupyter has errors of its own.
        page.on("pageerror", lambda error: "blob:" in (error.stack or "") and self.errors.append(str(error)))
        page.goto(address or f"{url}/lab/workspaces/{workspace}/tree/{notebook.name}")
        self.wait_for_kernel()

    def wait_for_kernel(self) -> None:
        self.page.wait_for_function(f"() => {KERNEL}?.status === 'idle'", timeout=60_000)

    def command(self, name: str) -> None:
        """Begin a command of JupyterLab; running a cell does not wait for its end."""
        self.page.evaluate("name => void window.jupyterapp.commands.execute(name)", name)

    def run_cell(self, number: int) -> None:
        self.page.evaluate(
            "number => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = number }", number
        )
        self.command("notebook:run-cell")

    def prompt(self, number: int) -> str:
        """ "[*]:" while a cell runs. The kernel's own status is no help: a click answered aside makes it idle."""
        return str(self.cell(number).locator(".jp-InputPrompt").inner_text())

    def wait_for_cell(self, number: int, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not re.fullmatch(r"\[\d+\]:", self.prompt(number).strip()):
            assert time.monotonic() < end, f"cell {number} did not end: {self.cell_text(number)[-2000:]}"
            self.page.wait_for_timeout(100)

    def run_and_wait(self, number: int, seconds: float = 60.0) -> None:
        self.run_cell(number)
        self.page.wait_for_timeout(100)
        self.wait_for_cell(number, seconds)

    def cell(self, number: int) -> Any:
        return self.page.locator(".jp-Notebook:visible .jp-Cell").nth(number)

    def cell_text(self, number: int) -> str:
        return str(self.cell(number).inner_text())

    def cockpits(self) -> Any:
        return self.page.locator(".ck-root:visible")


KERNEL = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"


def shown_step(cockpit: Any) -> int:
    """The step in the status line: the last one that the page knows."""
    words = cockpit.locator(".ck-status").inner_text()
    for word in words.replace("\n", " ").split("step ")[1:]:
        digits = word.split(" ")[0].replace(",", "").replace("\u202f", "").rstrip("·")
        if digits.isdigit():
            return int(digits)
    return -1


def export_values(page: Any, cockpit: Any) -> dict[tuple[str, str, str], dict[int, float]]:
    """What the page's own export holds: (run, name, layer) -> {step: value}."""
    cockpit.get_by_text("Export ▾").click()
    with page.expect_download() as download:
        cockpit.get_by_text("All values as CSV").click()
    page.keyboard.press("Escape")
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    with open(download.value.path(), newline="") as file:
        for row in csv.DictReader(file):
            value = float(row["value"].replace("Infinity", "inf"))
            values.setdefault((row["run"], row["name"], row["layer"]), {})[int(row["step"])] = value
    return values


def screenshot(page: Any, name: str, **options: Any) -> None:
    """Kept for looking at; the folder is not versioned."""
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=str(ARTIFACTS / f"{name}.png"), **options)


def assert_page_equals_log(page: Any, cockpit: Any, logdir: Path, key: str, thinned: bool = False) -> None:
    """Every value, or (``thinned``: a long run on a page that was loaded again) some, with the ends and the extremes."""
    data, shown = load(logdir), export_values(page, cockpit)
    names = [name for name in data.names if not data.histogram_steps(name)]
    assert len(names) > 3
    for name in names:
        steps, values = data.scalars(name)
        stored, seen = dict(zip(steps.tolist(), values.tolist(), strict=True)), shown[key, name, ""]
        if thinned:
            assert {steps[0], steps[-1]} <= set(seen)
            assert {values.min(), values.max()} <= set(seen.values())
            stored = {step: stored[step] for step in seen}
        assert seen == pytest.approx(stored, rel=1e-12, nan_ok=True), name


def wait_for_step(page: Any, cockpit: Any, step: int, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while shown_step(cockpit) < step:
        assert time.monotonic() < end, (
            f"step {shown_step(cockpit)} of {step}: {cockpit.locator('.ck-status').inner_text()}"
        )
        page.wait_for_timeout(100)


def watch(page: Any, cockpit: Any, seconds: float = 25.0) -> set[int]:
    """The steps that the page shows, one after the other; four are enough, and mostly take a second."""
    seen: set[int] = set()
    end = time.monotonic() + seconds  # a machine that others use is shown less often: showing has a budget
    while len(seen) < 4 and time.monotonic() < end:
        seen.add(shown_step(cockpit))
        page.wait_for_timeout(100)
    return seen
