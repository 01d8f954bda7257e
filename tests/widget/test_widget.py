"""The widget as an object: what it accepts, what it remembers, how it is shown, and how it ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from cockpit_widget import CockpitWidget
from cockpit_widget.kernel import silence
from cockpit_widget.sources import Tail, name_paths
from tests import synthetic
from tests.widget.fakes import FakeClock, FakeComm, FakePage, FakeRun
from tests.widget.test_stream import assert_page_equals_log, comm_of

Make = Callable[..., CockpitWidget]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def tails() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if isinstance(thread, Tail)]


# ---- what it accepts ----


def test_finished_run_is_complete_from_the_first_message(tmp_path: Path, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "a", steps=60)
    state = make_widget(str(tmp_path / "a")).get_state()
    assert_page_equals_log(FakePage().read(state["_keyframe"]), tmp_path / "a", "a")
    assert state["status"]["runs"]["a"]["state"] == "finished"


def test_loaded_data_can_be_shown(tmp_path: Path, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "a", steps=10)
    state = make_widget(load(tmp_path / "a")).get_state()
    assert_page_equals_log(FakePage().read(state["_keyframe"]), tmp_path / "a", "a")


def test_folder_of_runs_stands_for_the_runs_in_it(tmp_path: Path, make_widget: Make) -> None:
    for name in ("a", "b"):
        synthetic.write_run(tmp_path / "runs" / name, steps=3)
    assert [run["key"] for run in make_widget(tmp_path / "runs")._meta["runs"]] == ["a", "b"]


@pytest.mark.parametrize("wrong", [7, None, object(), [3.5]])
def test_what_cannot_be_shown_is_refused_with_a_remedy(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"Pass what cockpit_core\.track returned"):
        CockpitWidget(wrong)


def test_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to show"):
        CockpitWidget([])


def test_runs_with_the_same_name_can_be_told_apart() -> None:
    assert name_paths([Path("runs/x/lenet"), Path("runs/y/lenet")]) == ["x/lenet", "y/lenet"]
    assert len(set(name_paths([Path("runs/lenet"), Path("runs/lenet")]))) == 2


# ---- what it remembers ----


def test_choices_of_the_user_survive_a_rerun_of_the_cell(run: FakeRun, make_widget: Make) -> None:
    first = make_widget(run)
    comm_of(first).set(ui={"log": True, "hidden": ["TIC"]})
    assert make_widget(run).ui == {"log": True, "hidden": ["TIC"]}


def test_choices_for_one_run_do_not_leak_into_another(tmp_path: Path, run: FakeRun, make_widget: Make) -> None:
    comm_of(make_widget(run)).set(ui={"log": True})
    assert make_widget(FakeRun(tmp_path / "other")).ui == {}  # outside a notebook there are no cells


def test_new_run_of_the_same_cell_keeps_what_is_not_about_one_run(
    tmp_path: Path, run: FakeRun, make_widget: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cockpit_widget.widget.find_cell", lambda: "cell-7")
    comm_of(make_widget(run)).set(ui={"xlog": True, "hidden": ["tic"], "step": 12, "runs": ["lenet"]})
    assert make_widget(FakeRun(tmp_path / "second-try")).ui == {"xlog": True, "hidden": ["tic"]}


def test_page_cannot_change_what_the_kernel_owns(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(5)
    comm_of(widget).set(ui={"log": True})
    run.step(5)
    widget._pause()
    assert_page_equals_log(FakePage().read(comm_of(widget).keyframes[-1]), run.logdir, "lenet")


# ---- following a directory ----


def test_directory_of_another_process_is_followed(tmp_path: Path, make_widget: Make) -> None:
    widget = make_widget(str(tmp_path / "late"), clock=time.monotonic)
    assert widget.status["runs"]["late"]["state"] == "waiting"
    assert widget.get_state()["_keyframe"] == b""
    other = FakeRun(tmp_path / "late")
    other.step(20)
    wait_until(lambda: len(FakePage().read_all(comm_of(widget)).column("late", "Loss")[0]) == 20)
    other.step(5)
    other.close()
    wait_until(lambda: FakePage().read_all(comm_of(widget)).states.get("late") == "finished")
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), tmp_path / "late", "late")
    wait_until(lambda: not tails())  # nothing more to wait for


@pytest.mark.filterwarnings("ignore:The cockpit could not be updated")
def test_error_while_reading_does_not_end_the_thread(tmp_path: Path, make_widget: Make) -> None:
    other = FakeRun(tmp_path / "a")
    widget = make_widget(str(tmp_path / "a"), clock=time.monotonic)
    comm_of(widget).broken = LookupError("shell_parent")  # what ipykernel 7.0 raises when a thread sends
    other.step(3)
    wait_until(lambda: widget._feed.errors > 0)
    comm_of(widget).broken = None
    other.step(3)
    wait_until(lambda: len(FakePage().read_all(comm_of(widget)).column("a", "Loss")[0]) == 6)


def test_no_thread_is_started_for_a_run_of_this_process(run: FakeRun, make_widget: Make) -> None:
    before = set(threading.enumerate())
    make_widget(run)
    run.step(3)
    assert set(threading.enumerate()) <= before


# ---- how it ends ----


def test_closing_ends_the_subscription_the_thread_and_the_comm(tmp_path: Path, run: FakeRun, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "a", steps=3, finished=False)
    widget = make_widget([run, str(tmp_path / "a")])
    comm = comm_of(widget)
    assert len(tails()) == 1
    widget.close()
    wait_until(lambda: not tails())
    assert comm.closed
    assert not run.callbacks
    count = len(comm.sent)
    run.step(3)
    assert len(comm.sent) == count


@pytest.mark.usefixtures("fake_comms")
def test_widget_that_nobody_holds_is_collected(tmp_path: Path, run: FakeRun, clock: FakeClock) -> None:
    synthetic.write_run(tmp_path / "a", steps=3, finished=False)
    from ipywidgets.widgets import widget as registry

    widget = CockpitWidget([run, str(tmp_path / "a")], clock=clock, poster=False)
    registry._instances.pop(widget.model_id)  # Jupyter itself holds every widget that was not closed
    me = weakref.ref(widget)
    del widget
    gc.collect()
    assert me() is None
    wait_until(lambda: not tails())
    run.step(2)
    assert not run.callbacks


def test_installed_comm_has_what_silencing_relies_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real class, not our fake: a later release may rename what ``silence`` replaces, and a figure would be lost."""
    from comm.base_comm import BaseComm

    fired, heard = [], []
    comm = BaseComm(target_name="jupyter.widget", primary=False)
    comm.on_msg(heard.append)
    monkeypatch.setattr(BaseComm, "handle_msg", lambda self, msg: fired.append(msg))
    comm.handle_msg({"n": 1})
    silence(comm)
    comm.handle_msg({"n": 2})
    assert (fired, heard) == ([{"n": 1}], [{"n": 2}])


# ---- how it is shown ----


def test_text_for_places_that_show_nothing_else(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(3)
    data, _ = widget._repr_mimebundle_()
    assert data["text/plain"].startswith("CockpitWidget\nlenet: running, step 2, loss ")
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_poster_is_part_of_the_output(run: FakeRun, make_widget: Make) -> None:
    run.step(12)
    data, _ = make_widget(run, poster=True)._repr_mimebundle_()
    assert data["image/png"].startswith("iVBOR")


def test_missing_bundle_says_how_to_build_it(run: FakeRun, make_widget: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from cockpit_widget import widget as module

    monkeypatch.setattr(module, "_STATIC", Path("/nowhere"))
    assert "npm run build" in make_widget(run)._esm


def test_importing_and_showing_a_directory_needs_no_torch(tmp_path: Path) -> None:
    synthetic.write_run(tmp_path / "a", steps=3)
    code = (
        "import sys, cockpit_widget\n"
        "assert not {'torch', 'anywidget', 'matplotlib'} & set(sys.modules)\n"
        f"cockpit_widget.CockpitWidget({str(tmp_path / 'a')!r}).close()\n"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_fake_comm_is_what_the_tests_believe(run: FakeRun, make_widget: Make) -> None:
    assert isinstance(make_widget(run).comm, FakeComm)
