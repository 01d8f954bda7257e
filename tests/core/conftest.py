"""Fixtures that start processes once for the whole session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import processes


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    processes.launch(2, folder, *processes.TWO)
    return folder


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    processes.launch(4, folder, *processes.FOUR)
    return folder
