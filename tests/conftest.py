"""What all tests share: one thread, one seed, a fresh log directory, a real browser."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Read by OpenMP at its first use, here and in every subprocess a test starts: on few cores, threads that wait for each
# other cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Figures are drawn on machines without a display.
os.environ.setdefault("MPLBACKEND", "Agg")
# Where the paths of Jupyter come from; without it, jupyter_core warns.
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")


SHARED = (ROOT / "tests" / "core" / "distributed",)  # one start of several processes serves all files of the folder


def group_of(item: pytest.Item) -> str:
    """The tests that one worker takes as a whole: a file, or a folder whose files share what is long to start."""
    folder = item.path.parent
    return (folder if folder in SHARED else item.path).relative_to(ROOT).as_posix()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups with slow tests begin first, then large ones: no worker is left alone with a long one at the end."""
    sizes, slow = Counter(map(group_of, items)), Counter[str]()
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
        slow[group_of(item)] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: (slow[group_of(item)] == 0, -sizes[group_of(item)], group_of(item)))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """The same numbers in every order of tests. Tests that never import torch stay free of it."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)
        torch.set_num_threads(1)


@pytest.fixture
def logdir(tmp_path: Path) -> Path:
    """A path for a run that does not exist yet."""
    return tmp_path / "run"


def find_browser() -> str | None:
    spec = importlib.util.spec_from_file_location("find_browser", ROOT / "scripts" / "find_browser.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.find_browser()


@pytest.fixture(scope="session")
def browser_path() -> str:
    """A browser that starts. There is no way to skip: `make test` installs one."""
    path = os.environ.get("COCKPIT_BROWSER") or find_browser()
    if path is None:
        pytest.fail("no browser was found; run `make browser`, or name one with COCKPIT_BROWSER")
    return path


@pytest.fixture(scope="session")
def browser(browser_path: str) -> Iterator[Any]:
    """One Chromium for the session; each test opens its own context in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()
