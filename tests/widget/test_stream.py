"""The stream of a live run: throttled, coalesced, nothing lost, and never training's problem."""

from __future__ import annotations

import gc
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from cockpit_widget.throttle import Limits
from tests import synthetic
from tests.widget.fakes import FakeClock, FakePage, FakeRun
from tests.widget.stream_cases import Make, assert_page_equals_log, comm_of


def test_a_thousand_steps_a_second_become_five_messages(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    for _ in range(1000):
        run.step()
        clock.advance(0.001)
    assert 4 <= len(comm_of(widget).messages) <= 6


def test_messages_that_take_long_come_less_often_and_still_bring_everything(
    run: FakeRun, make_widget: Make, clock: FakeClock
) -> None:
    widget = make_widget(run)
    comm = comm_of(widget)
    send = comm.send

    def send_slowly(**message: Any) -> None:
        clock.advance(0.02)
        send(**message)

    comm.send = send_slowly  # type: ignore[method-assign]
    for _ in range(1000):
        run.step()
        clock.advance(0.01)
    slow = len(comm.sent)
    assert 0.02 * slow < 0.02 * clock.now  # ten seconds, of which the burst is a part
    assert slow >= 3
    run.close()
    assert_page_equals_log(FakePage().read_all(comm), run.logdir, "lenet")


@pytest.mark.parametrize("wanted", [True, False])
def test_garbage_is_not_collected_in_the_middle_of_a_message(run: FakeRun, make_widget: Make, wanted: bool) -> None:
    """That would be taken for a message of a quarter of a second. Who has turned it off keeps it off."""
    widget = make_widget(run)
    comm, seen = comm_of(widget), []
    send = comm.send
    comm.send = lambda **message: (seen.append(gc.isenabled()), send(**message))  # type: ignore[method-assign]
    try:
        if not wanted:
            gc.disable()
        run.step()
        widget._feed.tick(widget._deliver, force=True)
        assert seen and not any(seen) and gc.isenabled() == wanted
    finally:
        gc.enable()


def test_what_was_skipped_comes_with_the_next_message(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    for _ in range(300):
        run.step()
        clock.advance(0.01)
    run.close()
    page = FakePage().read_all(comm_of(widget))
    assert_page_equals_log(page, run.logdir, "lenet")
    assert page.states["lenet"] == "finished"


def test_keyframe_alone_tells_the_whole_story(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    for _ in range(100):
        run.step()
        clock.advance(0.05)
    run.close()
    comm = comm_of(widget)
    assert 2 <= len(comm.keyframes) <= 5
    assert_page_equals_log(FakePage().read(comm.keyframes[-1]), run.logdir, "lenet")


def test_late_page_gets_everything_up_to_now(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    run.step(50)  # the clock stands still: at most the first of these was sent
    state = widget.get_state()
    page = FakePage().read(state["_keyframe"])
    assert_page_equals_log(page, run.logdir, "lenet")
    assert state["status"]["runs"]["lenet"]["records"] == 51


def test_end_of_the_run_is_sent_at_once(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(10)
    run.close("failed", "RuntimeError: boom")
    content, _ = comm_of(widget).messages[-1]
    assert content["status"]["runs"]["lenet"]["state"] == "failed"
    assert content["status"]["runs"]["lenet"]["error"] == "RuntimeError: boom"
    assert widget.status["runs"]["lenet"]["state"] == "failed"


def test_end_of_a_cell_sends_what_the_throttle_held_back(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    run.step(20)
    widget._pause()
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), run.logdir, "lenet")
    count = len(comm_of(widget).sent)
    widget._pause()  # another cell, nothing new
    assert len(comm_of(widget).sent) == count


def test_failing_comm_never_reaches_training(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    comm_of(widget).broken = OSError("no route to the browser")

    def train() -> None:
        for _ in range(20):
            run.step()
            clock.advance(1.0)

    with pytest.warns(UserWarning, match="no route to the browser") as caught:
        train()
    assert len(caught) == 1  # said once
    assert widget._feed.errors > 1
    comm_of(widget).broken = None
    clock.advance(100.0)
    run.step()
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), run.logdir, "lenet")
    assert comm_of(widget).messages[-1][0]["status"]["errors"] > 1


@pytest.mark.filterwarnings("ignore:The cockpit could not be updated")
def test_end_that_cannot_be_told_does_not_slow_the_other_run(
    tmp_path: Path, make_widget: Make, clock: FakeClock
) -> None:
    first, second = FakeRun(tmp_path / "a"), FakeRun(tmp_path / "b")
    widget = make_widget([first, second])
    comm_of(widget).broken = OSError("gone")
    first.close()
    for _ in range(100):
        second.step()
        clock.advance(0.01)
    assert widget._feed.errors <= 10


def test_finished_run_is_not_sent_twice(tmp_path: Path, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "a", steps=20)
    widget = make_widget(str(tmp_path / "a"))
    widget._poll()
    widget._pause()
    assert comm_of(widget).sent == []
    assert widget._feed.ended


def test_warnings_as_errors_do_not_reach_training_either(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    comm_of(widget).broken = OSError("gone")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.step()
    assert widget._feed.errors == 1


def test_interrupting_the_kernel_is_not_swallowed(run: FakeRun, make_widget: Make) -> None:
    widget = make_widget(run)
    comm_of(widget).broken = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        run.step()
    comm_of(widget).broken = None
    widget._pause()  # the lock was released
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), run.logdir, "lenet")


def test_everything_that_is_sent_keeps_to_the_bytes_per_second(
    tmp_path: Path, make_widget: Make, clock: FakeClock
) -> None:
    """A server keeps the messages for a tab that was closed: deltas, histograms and keyframes together are bounded."""
    run = FakeRun(tmp_path / "large", layers=30)
    limits = Limits(bytes_per_second=5_000, burst_bytes=300_000)
    widget = make_widget(run, refresh_rate=10, limits=limits)
    while clock.now < 120:
        run.step()
        clock.advance(0.5)
    sent = sum(len(buffer) for _, buffers in comm_of(widget).sent for buffer in buffers)
    unbounded = 240 * 6_000  # what 240 messages of this run would be
    assert 300_000 < sent < 300_000 + 120 * 5_000 + limits.keyframe_bytes < unbounded


def test_a_day_behind_a_closed_tab_does_not_fill_the_server(
    tmp_path: Path, make_widget: Make, clock: FakeClock
) -> None:
    """What is sent grows with the logarithm of the age, and with the one message a minute that shows that we live."""
    run = FakeRun(tmp_path / "large", layers=30)
    limits = Limits(bytes_per_second=100, burst_bytes=20_000, least_bytes=1_000, interim_bytes=4_000)
    widget = make_widget(run, refresh_rate=10, limits=limits)
    ages, sent = (1, 2, 4, 8), []
    for hours in ages:
        while clock.now < 3600 * hours:
            run.step()
            clock.advance(30.0)
        sent.append(sum(len(buffer) for _, buffers in comm_of(widget).sent for buffer in buffers))
    steady, others = 100 * limits.full_rate_for, 3600 / limits.keyframe_longest * limits.interim_bytes
    for hours, so_far in zip(ages, sent, strict=True):
        allowed = steady * (1 + math.log(3600 * hours / limits.full_rate_for))
        assert so_far < 2 * limits.burst_bytes + 1.1 * allowed + hours * others
    assert sent[0] > 0.8 * steady
    assert sent[3] < 8 * 3600 * 100 / 2  # it would be all of that at the rate of the first half hour
