"""What the page asks for, and that it can ask for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit_core.events.data import load
from cockpit_widget import CockpitWidget
from tests import synthetic
from tests.widget.fakes import FakePage, FakeRun
from tests.widget.test_stream import assert_page_equals_log, comm_of

Make = Callable[..., CockpitWidget]


def test_stop_button_sets_the_flag_and_does_nothing_else(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(3)
    before = dict(vars(run))
    comm_of(widget).ask({"op": "stop", "run": "lenet"})
    assert run.should_stop
    assert {k for k, v in vars(run).items() if v is not before[k]} == {"should_stop"}
    content, _ = comm_of(widget).messages[-1]
    assert content["status"]["runs"]["lenet"]["stop_requested"]


def test_run_of_another_process_cannot_be_stopped_from_here(tmp_path: Path, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "a", steps=5)
    widget = make_widget(str(tmp_path / "a"))
    comm_of(widget).ask({"op": "stop", "run": "a"})
    content, _ = comm_of(widget).messages[-1]
    assert content["op"] == "error"
    assert "another process" in content["message"]
    assert not widget.status["runs"]["a"]["can_stop"]


def test_histogram_of_a_step_and_layer_is_the_stored_one(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(25)
    layer = run.data.refresh().layers[1]
    comm_of(widget).ask({"op": "histogram", "run": "lenet", "quantity": "GradHist2d", "step": 10, "layer": layer})
    _, buffers = comm_of(widget).messages[-1]
    shown = FakePage().read(buffers[0]).histograms["lenet", "GradHist2d", 10, layer]
    stored = load(run.logdir).histogram("GradHist2d", 10, layer)
    np.testing.assert_array_equal(shown.counts, stored.counts)
    np.testing.assert_array_equal(shown.edges, stored.edges)


def test_layers_come_with_their_whole_history(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(30)
    widget._feed.sources[0].refresh()
    layer = run.data.layers[0]
    comm_of(widget).ask({"op": "layers", "run": "lenet", "names": ["GradNorm"], "layers": [layer]})
    _, buffers = comm_of(widget).messages[-1]
    steps, values = load(run.logdir).scalars("GradNorm", layer)
    assert FakePage().read(buffers[0]).column("lenet", "GradNorm", layer) == (steps.tolist(), values.tolist())


def test_resync_heals_a_page_that_missed_everything(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(40)
    comm_of(widget).ask({"op": "resync"})
    _, buffers = comm_of(widget).messages[-1]
    assert_page_equals_log(FakePage().read(buffers[0]), run.logdir, "lenet")


def test_stretch_that_was_thinned_is_sent_in_detail(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(90)
    comm_of(widget).ask({"op": "detail", "run": "lenet", "from": 31, "to": 61, "points": 1024})
    _, buffers = comm_of(widget).messages[-1]
    steps, values = load(run.logdir).scalars("GradNorm")
    assert FakePage().read(buffers[0]).column("lenet", "GradNorm") == (steps[30:60].tolist(), values[30:60].tolist())
    comm_of(widget).ask({"op": "detail", "run": "lenet", "from": 1, "to": 91, "points": 10})
    assert len(FakePage().read(comm_of(widget).messages[-1][1][0]).column("lenet", "GradNorm")[0]) <= 12


@pytest.mark.parametrize(
    "content",
    [
        {"op": "detail", "run": "lenet", "from": 5, "to": 5, "points": 10},
        {"op": "detail", "run": "lenet", "from": -1, "to": 5, "points": 10},
        {"op": "detail", "run": "lenet", "from": 0, "to": 1e300, "points": True},
        {"op": "histogram", "run": "lenet", "quantity": "GradHist2d", "step": 3, "layer": "<b>"},
        {"op": "histogram", "run": "lenet", "quantity": "../../etc/passwd", "step": -5},
        {"op": "histogram", "run": "lenet", "quantity": ["GradHist2d"], "step": 0},
        {"op": "histogram", "run": "elsewhere", "quantity": "GradHist2d", "step": 0},
        {"op": "layers", "run": "lenet", "names": "GradNorm"},
        {"op": "eval", "run": "lenet", "code": "1/0"},
        {"run": "lenet"},
        {"op": {"op": "stop"}, "run": ["lenet"]},
    ],
)
def test_senseless_request_gets_an_error_and_changes_nothing(content: Any, run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(3)
    comm_of(widget).ask(content)
    answer, _ = comm_of(widget).messages[-1]
    assert answer["op"] == "error"
    assert answer["message"]
    assert not run.should_stop
    assert widget._feed.errors == 0


@pytest.mark.parametrize("content", [None, "stop", 7, ["stop"]])
def test_message_that_is_no_request_is_ignored(content: Any, run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    comm_of(widget).ask(content)
    assert not comm_of(widget).messages


def test_failing_answer_reaches_nobody(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    comm_of(widget).broken = OSError("gone")
    with pytest.warns(UserWarning, match="gone"):
        comm_of(widget).ask({"op": "resync"})
    assert widget._feed.errors == 1
