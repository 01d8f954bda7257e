"""A run of this process tells the widget what it writes; nobody reads the file again."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData, load
from cockpit_core.events.reader import EventFile
from cockpit_core.events.table import KINDS, StoredRows
from cockpit_core.events.writer import Written
from cockpit_core.foundation.records import Record
from cockpit_widget.sources import RunSource, make_sources, measure_rate, say_left_out
from cockpit_widget.throttle import Throttle
from tests import synthetic
from tests.widget.fakes import FakeClock, FakeRun


def assert_same_as_the_log(data: RunData, logdir: Path) -> None:
    stored = load(logdir)
    data._last_event = stored._last_event = 0.0  # of plain scalars, which nobody is told of
    assert encode_batch(data, run="x", histograms=3) == encode_batch(stored, run="x", histograms=3)
    for name in stored.histogram_names:
        assert data.histogram_steps(name) == stored.histogram_steps(name)
        for step in stored.histogram_steps(name):
            for layer in (None, *stored.layers):
                assert data.histogram_bytes(name, step, layer) == stored.histogram_bytes(name, step, layer)


def subscribe(run: FakeRun) -> RunSource:
    source = RunSource(run, "lenet")
    source.subscribe(lambda: True, Throttle())
    return source


@pytest.mark.parametrize("before", [0, 7])
def test_what_was_told_equals_what_was_written(run: FakeRun, before: int) -> None:
    source = RunSource(run, "lenet")
    run.step(before)
    source.subscribe(lambda: True, Throttle())
    for count in (1, 40, 3):
        run.step(count)
        source.refresh()
        assert_same_as_the_log(source.data, run.logdir)
    run.close()
    source.refresh()
    assert_same_as_the_log(source.data, run.logdir)
    assert load(run.logdir).histogram_names


def test_resumed_run_replaces_what_came_after_its_checkpoint(run: FakeRun) -> None:
    run.step(30)
    run.close()
    again = FakeRun(run.logdir, resume=True)
    source = subscribe(again)
    again.step(12)  # from step 0 on
    source.refresh()
    assert_same_as_the_log(source.data, run.logdir)
    assert source.data.scalars("Loss")[0].tolist() == list(range(12))


def test_records_written_between_subscribing_and_reading_are_not_lost_and_not_twice(
    run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.step(5)
    source = RunSource(run, "lenet")
    listen = run.writer.listen

    def listen_and_train(listener):
        end = listen(listener)
        run.step(20)  # told, and read from the file as well
        return end

    monkeypatch.setattr(run.writer, "listen", listen_and_train)
    source.subscribe(lambda: True, Throttle())
    run.step(2)
    source.refresh()
    assert_same_as_the_log(source.data, run.logdir)


def test_file_is_not_read_while_the_run_tells(run: FakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    source = subscribe(run)
    monkeypatch.setattr(EventFile, "read", lambda self: pytest.fail("the file was read again"))
    run.step(3)
    source.refresh()
    assert source.end == run.writer.next_seq


def test_source_that_unsubscribed_is_told_nothing_and_reads_the_file(run: FakeRun) -> None:
    source = RunSource(run, "lenet")
    end = source.subscribe(lambda: True, Throttle())
    assert end is not None
    run.step(3)
    end()
    run.step(4)
    assert len(source._written) <= 3 * 3 + 1  # a record and two histograms per step, not one more
    source.refresh()
    assert_same_as_the_log(source.data, run.logdir)


def test_run_that_trains_in_a_thread_is_told_completely(run: FakeRun) -> None:
    trainer = threading.Thread(target=run.step, args=(60,))
    trainer.start()
    source = subscribe(run)
    while trainer.is_alive():
        source.refresh()
    source.refresh()
    assert_same_as_the_log(source.data, run.logdir)


def test_writer_says_where_in_its_file_each_header_and_histogram_stands(run: FakeRun) -> None:
    told: list[bytes | Written] = []
    run.writer.listen(told.append)
    run.step(2)
    run.writer.write_record(Record("log", 2, 0.0, 0.0, scalars={"log/a": float(np.pi)}))
    whole = run.writer.path.read_bytes()
    kinds = ["record" if isinstance(item, bytes) else item.kind for item in told]
    assert kinds.count("record") == 3
    assert kinds.count("heavy") == 2
    for item in told:
        if isinstance(item, bytes):
            assert item in whole
        else:
            payload = item.payload if isinstance(item.payload, bytes) else item.payload[0]
            assert payload in whole[item.offset : item.end]


def test_training_is_called_back_only_when_a_message_is_due_or_the_run_has_ended(run: FakeRun) -> None:
    clock, calls = FakeClock(), []
    throttle = Throttle(clock=clock)
    RunSource(run, "lenet").subscribe(lambda: calls.append(clock.now), throttle)
    run.step()
    throttle.sent(1_000, 0.0, 0.0)
    for _ in range(30):
        clock.advance(0.01)
        run.step()
    assert calls == pytest.approx([0.0, *np.arange(0.20, 0.305, 0.01)])
    throttle.sent(1_000, 0.0, 0.0)
    run.close()
    assert len(calls) == 13


def test_rate_is_that_of_the_steps_and_not_of_what_came_before_the_first() -> None:
    """A new installation compiles for 17 s before its first step, and the status line said 0 steps/s long after."""
    kinds, steps = [KINDS.index(kind) for kind in ("start", "step", "log", "step", "step")], [0, 0, 0, 5, 10]
    seconds = [0.0, 17.0, 17.5, 18.0, 19.0]
    none = np.zeros(5)
    rows = StoredRows(none, np.array(steps, np.uint32), np.array(seconds), none, none, none, np.array(kinds, np.uint8))
    assert measure_rate(rows) == 5.0
    assert measure_rate(StoredRows(*(column[:3] for column in rows))) is None  # one step has no rate
    assert measure_rate(StoredRows(*(column[:0] for column in rows))) is None


def test_of_a_folder_with_many_runs_it_is_said_how_many_are_shown(tmp_path: Path) -> None:
    for number in range(12):
        synthetic.write_run(tmp_path / "sweep" / f"run{number:02}", steps=1)
    synthetic.write_run(tmp_path / "alone", steps=1)
    assert [source.key for source in make_sources(tmp_path / "sweep")] == [f"run{n:02}" for n in range(2, 12)]
    assert say_left_out(str(tmp_path / "sweep")) == "the last 10 of 12 runs in sweep"
    assert say_left_out([tmp_path / "alone", tmp_path / "missing", object()]) == ""
