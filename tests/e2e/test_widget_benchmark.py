"""The benchmark of the widget still runs. How fast anything is, is not asked here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.jupyter_server import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_benchmark_runs_and_writes_its_results(tmp_path: Path, browser_path: str) -> None:
    options = ["--quick", "--threads", "1", "--results", str(tmp_path), "--parts", "training", "load", "million"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.widget", *options],
        check=True,
        cwd=ROOT,
        env={**os.environ, "COCKPIT_BROWSER": browser_path},
    )
    found = json.loads((tmp_path / "widget.json").read_text())
    (case,) = [row for row in found["training"].values() if isinstance(row, dict)]
    assert case["messages"] > 0
    assert set(case["added"]) == {"wall", "cpu", "inside"}
    assert found["load"]["panels"] == 12
    assert found["million"]["scrub_frame_ms"]["median"] > 0
