"""Compiling takes seconds at the very first step of an installation: it is said, once, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

SCRIPT = """
import torch
from cockpit_core.kernels import Counts, count_values, prepare_parameter
from tests.core.kernels.cases import DEFAULT
bins = prepare_parameter(torch.randn(5), DEFAULT)
for _ in range(2):
    count_values(torch.randn(4, 5), bins, DEFAULT, Counts.zeros(DEFAULT), path="fused")
"""


def count_announcements(cache: Path) -> int:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    result = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return result.stderr.count("compiling its histogram loops")


@pytest.mark.slow
def test_compiling_is_announced_once_per_installation(tmp_path: Path) -> None:
    assert count_announcements(tmp_path) == 1
    assert count_announcements(tmp_path) == 0
