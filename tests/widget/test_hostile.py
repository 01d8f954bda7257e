"""A log that was made to hurt, in the widget: shown as far as it is sound, and nothing of it is believed."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_widget import CockpitWidget
from cockpit_widget.sources import DirectorySource
from tests.tb.logs import write_hurtful
from tests.widget.test_stream import comm_of

Make = Callable[..., CockpitWidget]


def test_hurtful_log_is_shown_in_little_memory(tmp_path: Path, make_widget: Make) -> None:
    write_hurtful(tmp_path / "run")
    tracemalloc.start()
    try:
        widget = make_widget(str(tmp_path / "run"))
        comm_of(widget).ask({"op": "resync"})
        for step in (1, 2**32, -5):
            comm_of(widget).ask({"op": "histogram", "run": "run", "quantity": "GradHist1d", "step": step})
            assert comm_of(widget).messages[-1][0]["op"] == "error"
        assert tracemalloc.get_traced_memory()[1] < 30_000_000
    finally:
        tracemalloc.stop()
    assert widget.status["runs"]["run"]["broken"] >= 2
    json.dumps(widget.status, allow_nan=False)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), 1e308])
def test_odd_clocks_are_no_numbers_that_a_message_cannot_hold(tmp_path: Path, odd: float) -> None:
    with EventWriter(tmp_path / "run") as writer:
        for step in range(3):
            writer.write_record(records.Record("step", step, odd, odd * step, scalars={"Loss": odd}))
    source = DirectorySource(tmp_path / "run", "run")
    json.dumps(source.status(), allow_nan=False)


def test_line_for_terminals_holds_no_escape_sequence(tmp_path: Path) -> None:
    evil = "run\x1b[31m\x07"
    for name, values in (("a", {}), ("b", {"GradNorm": 1.0}), ("c", {"Loss": 1.0})):
        with EventWriter(tmp_path / (name + evil)) as writer:
            writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars=values))
            writer.write_record(records.Record("end", 1, 1.0, 1.0, status=evil))
        assert DirectorySource(tmp_path / (name + evil), name + evil).summary().isprintable()
    assert DirectorySource(tmp_path / f"none{evil}", evil).summary().isprintable()


def test_layerwise_loss_alone_has_no_last_value(tmp_path: Path) -> None:
    """Its name is known, its value of the network is not."""
    with EventWriter(tmp_path) as writer:
        writer.write_header(records.Header("id", "run", 1.0, layers=[records.LayerInfo("a", (1,), 1)]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, layers={"Loss": np.array([1.0])}))
    assert DirectorySource(tmp_path, "run").summary() in ("run: running", "run: crashed")
