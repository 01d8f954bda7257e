"""A widget in a kernel that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeClock, FakeComm, FakeRun


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run(tmp_path: Path) -> FakeRun:
    return FakeRun(tmp_path / "lenet")


@pytest.fixture
def fake_comms(monkeypatch: pytest.MonkeyPatch) -> None:
    import comm

    monkeypatch.setattr(comm, "create_comm", lambda **_: FakeComm())


@pytest.fixture
def make_widget(clock: FakeClock, fake_comms: None) -> Iterator[Callable[..., CockpitWidget]]:
    """Widgets with a fake comm and the fake clock, closed afterwards."""
    made: list[CockpitWidget] = []

    def make(runs: Any, **options: Any) -> CockpitWidget:
        widget = CockpitWidget(runs, **{"clock": clock, "poster": False, **options})
        widget._feed._cpu = clock
        made.append(widget)
        return widget

    yield make
    for widget in made:
        widget.close()
