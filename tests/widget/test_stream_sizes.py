"""Sizes, keyframes and subshells of the stream of a live run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cockpit_core.events.data import load
from cockpit_widget.feed import Feed
from cockpit_widget.sources import make_sources
from cockpit_widget.throttle import Limits, Throttle
from tests import synthetic
from tests.widget.fakes import FakeClock, FakePage, FakeRun
from tests.widget.stream_cases import Make, assert_page_equals_log, comm_of


def test_backlog_is_sent_whole_in_pieces_of_the_allowed_size(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    """A machine that others use sends rarely. What piled up meanwhile was once thinned, and points were missing."""
    limits = Limits(message_bytes=40_000)
    widget = make_widget(run, limits=limits)
    run.step(150)  # about four messages
    clock.advance(5.0)
    run.step()
    messages = comm_of(widget).messages
    assert len(messages) > 3
    assert max(len(buffers[0]) for _, buffers in messages) <= limits.message_bytes + 8
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), run.logdir, "lenet")


def test_messages_and_keyframes_keep_to_their_size(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    limits = Limits(message_bytes=40_000, keyframe_bytes=60_000)
    widget = make_widget(run, limits=limits)
    run.step(400)
    clock.advance(5.0)
    run.step(100)
    run.close()
    comm = comm_of(widget)
    assert max(len(buffers[0]) for _, buffers in comm.messages) <= limits.message_bytes + 4
    assert max(map(len, comm.keyframes)) <= limits.keyframe_bytes
    steps, values = load(run.logdir).scalars("Loss")
    shown = FakePage().read(comm.keyframes[-1]).column("lenet", "Loss")
    assert len(shown[0]) < len(steps)
    assert max(shown[1]) == values.max()  # thinned, but the extremes are there
    assert min(shown[1]) == values.min()


def test_a_dozen_runs_share_a_keyframe_and_each_is_seen(tmp_path: Path) -> None:
    """Once all curves had to fit: of a sweep the page got histograms only, and waited for a first record for ever."""
    names = [f"r{number:02d}" for number in range(12)]
    for seed, name in enumerate(names):
        synthetic.write_run(tmp_path / name, steps=40, seed=seed)
    limits = Limits(keyframe_bytes=100_000)
    feed = Feed(make_sources([str(tmp_path / name) for name in names]), Throttle(None, limits=limits))
    message = feed.keyframe()
    assert message is not None
    assert len(message.frames) <= limits.keyframe_bytes
    page = FakePage().read(message.frames)
    for name in names:
        assert len(page.column(name, "Loss")[0]) >= 20


def test_of_a_sweep_the_map_of_the_network_is_there_without_a_click(tmp_path: Path) -> None:
    """Once there was room for a few curves of each run and nothing of its layers: the map said "Fetching" for ever."""
    names = [f"r{number:02d}" for number in range(10)]
    for seed, name in enumerate(names):
        synthetic.write_run(tmp_path / name, steps=80, seed=seed, layers=8)
    limits = Limits(keyframe_bytes=400_000)
    feed = Feed(make_sources([str(tmp_path / name) for name in names]), Throttle(None, limits=limits))
    message = feed.keyframe()
    assert message is not None
    assert len(message.frames) <= limits.keyframe_bytes
    page, data = FakePage().read(message.frames), load(tmp_path / names[0])
    assert not page.column(names[0], "NormTest", data.layers[0])[0]  # there is no room for everything
    for name in names:
        assert all(len(page.column(name, "GradNorm", layer)[0]) >= 20 for layer in data.layers)


def test_histograms_travel_at_a_rate_of_their_own(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    sizes = []
    for _ in range(40):
        run.step()
        clock.advance(0.1)
    for _, buffers in comm_of(widget).messages:
        sizes.append(len(FakePage().read(buffers[0]).histograms) > 0)
    assert sizes[0] or sizes[1]
    assert 1 <= sum(sizes) <= 4


def test_many_threads_may_tick_at_once(run: FakeRun, make_widget: Make, clock: FakeClock) -> None:
    widget = make_widget(run)
    run.step(60)
    failures: list[BaseException] = []

    def hammer() -> None:
        try:
            for _ in range(10):
                clock.advance(0.25)
                widget._tick()
                widget.get_state()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert widget._feed.errors == 0
    widget._pause()
    assert_page_equals_log(FakePage().read_all(comm_of(widget)), run.logdir, "lenet")


def test_two_runs_share_one_cockpit(tmp_path: Path, make_widget: Make) -> None:
    first, second = FakeRun(tmp_path / "a"), FakeRun(tmp_path / "b")
    widget = make_widget([first, second])
    first.step(5)
    second.step(7)
    widget._pause()
    page = FakePage().read_all(comm_of(widget))
    assert_page_equals_log(page, first.logdir, "a")
    assert_page_equals_log(page, second.logdir, "b")
    assert [run["key"] for run in widget._meta["runs"]] == ["a", "b"]


def test_subshell_note_of_the_kernel_is_taken_back(run: FakeRun, make_widget: Make) -> None:
    """ipykernel 7.4 routes the browser's messages to the shell we sent from, which is the busy one."""
    widget = make_widget(run)
    comm = comm_of(widget)
    send = comm.send

    def send_like_the_kernel(**message: Any) -> None:
        comm.__dict__["_reply_subshell_id"] = None
        send(**message)

    comm.send = send_like_the_kernel  # type: ignore[method-assign]
    run.step()
    assert comm.messages
    assert "_reply_subshell_id" not in comm.__dict__


@pytest.mark.parametrize("layers", [2, 40])
def test_long_run_with_many_layers_fits_into_a_keyframe(layers: int, tmp_path: Path, make_widget: Make) -> None:
    synthetic.write_run(tmp_path / "long", steps=1200 if layers == 2 else 500, layers=layers)
    widget = make_widget(str(tmp_path / "long"))
    frames = widget.get_state()["_keyframe"]
    assert 100_000 < len(frames) <= 512_000
    page, data = FakePage().read(frames), load(tmp_path / "long")
    _, values = data.scalars("Loss")
    shown = page.column("long", "Loss")[1]
    assert len(shown) >= 150
    assert (max(shown), min(shown)) == (values.max(), values.min())
    assert ("long", "GradHist2d", data.histogram_steps("GradHist2d")[-1], "") in page.histograms
    if layers == 2:  # with 40, a page asks for the layers that the user wants to see
        assert {layer for _, name, layer in page.values if name == "GradNorm"} == {"", *data.layers}
        assert ("long", "GradHist1d", data.histogram_steps("GradHist1d")[-1], data.layers[0]) in page.histograms
        assert sum(key[1] == "GradHist1d" and not key[3] for key in page.histograms) == 40  # over time
