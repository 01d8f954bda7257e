"""Every example runs from top to bottom; the findings that it teaches are asserted inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_finds_what_it_teaches(notebook: Path, tmp_path: Path) -> None:
    copy = tmp_path / notebook.name
    shutil.copy(notebook, copy)
    # A process of its own: nbclient wants an event loop, and so does the browser of other tests.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": ""}
    command = [sys.executable, "-m", "jupyter", "execute", "--inplace", "--timeout=300", copy.name]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    cells = [cell for cell in json.loads(copy.read_text())["cells"] if cell["cell_type"] == "code"]
    shown = [output["data"] for cell in cells for output in cell["outputs"] if "data" in output]
    posters = [data for data in shown if "image/png" in data]
    assert posters, "no cockpit was shown"
    assert all("finished, step" in "".join(data["text/plain"]) for data in posters)  # renewed when the run ended


def test_there_are_three_examples_and_each_asserts_something() -> None:
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        assert any("".join(cell["source"]).count("assert ") >= 2 for cell in cells if cell["cell_type"] == "code")
