"""What is done instead of a GPU: a device of our own, on which exactness, neutrality, waits and times are tested.

It changes torch for a whole process, so each file beside this one is run by a pytest of its own. The longer tests:
``python -m pytest tests/device/device_*.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.stand_in import why_not

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("device_*.py"))

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")]


@pytest.mark.parametrize("name", FILES)
def test_on_the_stand_in(name: str) -> None:
    run_own_pytest(name, "not slow and not alone")


@pytest.mark.alone
def test_times_on_the_stand_in() -> None:
    """What the host does takes real time: beside other tests a record costs several times as much. Others may use the machine
    for a while; what is wrong is wrong each time."""
    run_own_pytest("device_time.py", "alone", tries=3)


def run_own_pytest(name: str, marks: str, tries: int = 1) -> None:
    without = ["-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-q", *without, "-m", marks, str(HERE / name)]
    for _ in range(tries):
        done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True, timeout=900)
        if done.returncode == 0:
            return
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
