"""What the tests of the stream share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cockpit_core.events.data import load
from cockpit_widget import CockpitWidget
from tests.widget.fakes import FakeComm, FakePage

Make = Callable[..., CockpitWidget]


def comm_of(widget: CockpitWidget) -> FakeComm:
    comm: Any = widget.comm
    assert isinstance(comm, FakeComm)
    return comm


def assert_page_equals_log(page: FakePage, logdir: Path, key: str) -> None:
    data = load(logdir)
    for name in data.names:
        if data.histogram_steps(name):
            continue
        steps, values = data.scalars(name)
        if name == "Alpha":
            assert [page.alphas[key, step] for step in steps.tolist()] == values.tolist()
        else:
            assert page.column(key, name) == (steps.tolist(), values.tolist()), name
    for layer in data.layers:
        steps, values = data.scalars("GradNorm", layer)
        assert page.column(key, "GradNorm", layer) == (steps.tolist(), values.tolist())
