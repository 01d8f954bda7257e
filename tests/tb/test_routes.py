"""The routes of the tab, served by a real TensorBoard with each of its two ways of reading."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import load
from cockpit_core.events.writer import EventWriter
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema import wire
from tests.e2e.tensorboard_server import BACKENDS, TensorBoard
from tests.tb import logs

BATCH = "/data/plugin/cockpit/batch"
HISTOGRAM = "/data/plugin/cockpit/histogram"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    logs.write_all(folder)
    return folder


@pytest.fixture(scope="module", params=list(BACKENDS))
def board(request: pytest.FixtureRequest, root: Path) -> Iterator[TensorBoard]:
    with TensorBoard("--logdir", str(root), "--load_fast", BACKENDS[request.param]) as board:
        expected = {"small": 42, "long": 5002, "resumed": 168, "hostile layers": 13}
        deadline = time.monotonic() + 30
        while {name: board.runs().get(name, {}).get("seq") for name in expected} != expected:
            assert time.monotonic() < deadline, board.runs()
            time.sleep(0.3)
        yield board
        assert "security_validator" not in board.log()
        assert "Traceback" not in board.log()


def get_batch(board: TensorBoard, run: str, **query: Any) -> pb.Batch:
    return pb.Batch.FromString(board.get(BATCH, run=run, **query))


def read_column(batch: pb.Batch, name: str, layer: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Steps and values as a page would see them."""
    (column,) = [x for x in batch.columns if (x.name, x.layer) == (name, layer)]
    steps, values = wire.unpack_array(batch.step), wire.unpack_array(column.values)
    return (steps[wire.unpack_array(column.rows)] if column.HasField("rows") else steps), values


# ---- what is there ----


def test_every_run_is_listed_with_its_state(board: TensorBoard, root: Path) -> None:
    deadline = time.monotonic() + 20
    while any(entry["state"] == "" for entry in board.runs().values()):  # found out over a few listings
        assert time.monotonic() < deadline
    runs = board.runs()
    assert set(logs.HOSTILE_RUNS) <= set(runs)
    assert runs["small"] == {"run": "small", "run_id": "id-small", "seq": 42, "state": "finished"}
    assert runs["nested/deep"]["run_id"] == "id-deep"
    assert runs["unfinished"]["state"] in ("running", "crashed")  # silent for a minute counts as crashed
    assert runs["broken"]["run_id"] == ""  # its newest header is damaged


def test_runs_are_in_tensorboards_own_order(board: TensorBoard) -> None:
    ours = [entry["run"] for entry in json.loads(board.get("/data/plugin/cockpit/runs"))]
    assert ours == json.loads(board.get("/data/runs"))


def test_all_records_of_a_long_run_arrive(board: TensorBoard) -> None:
    batch = get_batch(board, "long")
    assert (batch.status.records, batch.status.expected, batch.status.broken) == (5002, 5002, 0)
    steps, values = read_column(batch, "GradNorm")
    assert steps.tolist() == list(range(5000))
    np.testing.assert_array_equal(values, [logs.make_record(step).scalars["GradNorm"] for step in range(5000)])


@pytest.mark.parametrize("run", ["small", "long", "resumed", "broken", "hostile layers", logs.HOSTILE_RUNS[0]])
def test_the_page_gets_what_load_reads_from_the_files(board: TensorBoard, root: Path, run: str) -> None:
    served = get_batch(board, run)
    read = pb.Batch.FromString(encode_batch(load(root / run), run=run))
    for batch in (served, read):  # follows the clock, and files have a time of their own
        batch.status.ClearField("last_wall_time")
        batch.status.ClearField("state")
    if run == "broken":  # one message of a tag that is not ours, and a record without bytes, count differently
        served.status.ClearField("broken")
        read.status.ClearField("broken")
    assert served == read


def test_names_layers_and_points_can_be_chosen(board: TensorBoard) -> None:
    whole = get_batch(board, "small")
    assert {(x.name, x.layer) for x in whole.columns} == {
        ("Loss", ""), ("GradNorm", ""), ("GradNorm", "w"), ("GradNorm", "b")
    }  # fmt: skip
    network = get_batch(board, "small", layers=0)
    assert {(x.name, x.layer) for x in network.columns} == {("Loss", ""), ("GradNorm", "")}
    named = get_batch(board, "small", names=["GradNorm"], layers=1)
    assert {x.name for x in named.columns} == {"GradNorm"}
    thin = get_batch(board, "long", max_points=100, layers=0)
    steps, values = read_column(thin, "GradNorm")
    assert 50 <= len(values) <= 110
    assert values.max() == read_column(get_batch(board, "long"), "GradNorm")[1].max()
    assert steps[-1] == 4999


def test_a_stretch_of_a_long_run_comes_in_more_detail(board: TensorBoard) -> None:
    thin = pb.Batch.FromString(board.get(BATCH, run="long", layers=0, names="GradNorm", max_points=100))
    part = pb.Batch.FromString(board.get(BATCH, run="long", layers=0, names="GradNorm", since=1000, until=1500))
    assert (part.from_seq, part.to_seq, part.replace) == (1000, 1500, False)
    inside = [seq for seq in np.frombuffer(thin.seq.data, "<u4") if 1000 <= seq < 1500]
    assert len(inside) < 30
    assert np.frombuffer(part.seq.data, "<u4").tolist() == list(range(1000, 1500))
    assert len(part.columns[0].values.data) == 8 * 500
    assert not part.columns[0].decimated


def test_a_cursor_gets_only_what_is_new(board: TensorBoard) -> None:
    batch = get_batch(board, "small", since=40)
    assert not batch.replace
    assert wire.unpack_array(batch.seq).tolist() == [40, 41]
    assert not batch.HasField("header")
    assert get_batch(board, "small", since=42).to_seq == 42


def test_a_resumed_run_shows_each_step_once_and_the_later_one(board: TensorBoard) -> None:
    steps, values = read_column(get_batch(board, "resumed"), "GradNorm")
    assert steps.tolist() == list(range(120))
    assert (values[:55] < 10).all()
    assert (values[55:] > 900).all()


def test_the_histograms_of_a_resumed_run_are_the_later_ones(board: TensorBoard) -> None:
    batch = get_batch(board, "resumed")
    assert wire.unpack_array(batch.heavy[0].steps).tolist() == list(range(0, 120, 10))
    for step, shift in ((50, 0), (60, 1000), (90, 1000), (110, 1000)):
        found = wire.decode_histogram(board.get(HISTOGRAM, run="resumed", quantity="GradHist1d", step=step))
        assert found.counts.tolist() == logs.make_histogram(step, "", shift).counts.tolist()


def test_broken_records_are_skipped_and_counted(board: TensorBoard) -> None:
    batch = get_batch(board, "broken")
    assert batch.status.records == 11
    assert batch.status.expected == 13
    assert batch.status.broken >= 2
    assert read_column(batch, "GradNorm")[0].tolist() == list(range(11))
    assert batch.header.run_id == "id-broken"  # the header before the damaged one


@pytest.mark.parametrize("layer", ["", *logs.HOSTILE_LAYERS])
def test_one_histogram_is_fetched_alone(board: TensorBoard, layer: str) -> None:
    payload = board.get(HISTOGRAM, run="hostile layers", quantity="GradHist1d", step=10, layer=layer)
    shift = logs.HOSTILE_LAYERS.index(layer) + 1 if layer else 0
    found = wire.decode_histogram(payload)
    assert (found.layer, found.step) == (layer, 10)
    assert found.counts.tolist() == logs.make_histogram(10, layer, shift).counts.tolist()


@pytest.mark.parametrize("run", logs.HOSTILE_RUNS)
def test_a_hostile_name_is_only_a_name(board: TensorBoard, run: str) -> None:
    batch = get_batch(board, run)
    assert batch.run == run
    assert batch.status.records == 5 + logs.HOSTILE_RUNS.index(run)


@pytest.mark.parametrize("run", ["tab\there", logs.HOSTILE_RUNS[3]])
def test_a_name_that_the_data_server_cannot_handle_is_explained(board: TensorBoard, run: str) -> None:
    """Its blob keys are JSON, and it does not take back a name that JSON escapes; the Python backend does."""
    status, _, body = board.request(HISTOGRAM, run=run, quantity="GradHist1d", step=0)
    assert status == 200 or (status == 404 and b"--load_fast=false" in body)


# ---- what is refused ----

REFUSED = [
    (BATCH, {}, 400),
    (BATCH, {"run": "nobody"}, 404),
    (BATCH, {"run": ""}, 404),
    (BATCH, {"run": "../small"}, 404),
    (BATCH, {"run": "small/../small"}, 404),
    (BATCH, {"run": "x" * 20_000}, 404),
    (BATCH, {"run": "nobody\x00\n"}, 404),
    (BATCH, {"run": ["small", "long"]}, 400),
    (BATCH, {"run": "small", "since": "-1"}, 400),
    (BATCH, {"run": "small", "since": "4294967296"}, 400),
    (BATCH, {"run": "small", "since": "NaN"}, 400),
    (BATCH, {"run": "small", "until": "-1"}, 400),
    (BATCH, {"run": "small", "until": "99999999999"}, 400),
    (BATCH, {"run": "small", "since": "20", "until": "10"}, 400),
    (BATCH, {"run": "small", "max_points": "-5"}, 400),
    (BATCH, {"run": "small", "max_points": "1e99"}, 400),
    (BATCH, {"run": "small", "max_points": "99999999"}, 400),
    (BATCH, {"run": "small", "layers": "all"}, 400),
    (HISTOGRAM, {"run": "small"}, 400),
    (HISTOGRAM, {"run": "small", "quantity": "GradHist1d"}, 400),
    (HISTOGRAM, {"run": "small", "quantity": "GradHist1d", "step": "-1"}, 400),
    (HISTOGRAM, {"run": "small", "quantity": "GradHist1d", "step": "nan"}, 400),
    (HISTOGRAM, {"run": "small", "quantity": "GradHist1d", "step": "5"}, 404),
    (HISTOGRAM, {"run": "small", "quantity": "Nothing", "step": "0"}, 404),
    (HISTOGRAM, {"run": "small", "quantity": "GradHist1d", "step": "0", "layer": "nobody"}, 404),
    (HISTOGRAM, {"run": "broken", "quantity": "GradHist1d", "step": "3"}, 404),
    (HISTOGRAM, {"run": "nobody", "quantity": "GradHist1d", "step": "0"}, 404),
    ("/data/plugin/cockpit/static/../plugin.py", {}, 404),
    ("/data/plugin/cockpit/static/%2e%2e/plugin.py", {}, 404),
    ("/data/plugin/cockpit/static/nothing.js", {}, 404),
]


@pytest.mark.parametrize(("path", "query", "code"), REFUSED)
def test_a_wrong_request_is_refused_in_plain_text(
    board: TensorBoard, path: str, query: dict[str, Any], code: int
) -> None:
    status, headers, body = board.request(path, **query)
    assert status == code, body[:200]
    assert headers["Content-Type"].startswith("text/plain")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"Traceback" not in body
    assert b"<" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed_through_a_route(board: TensorBoard, method: str) -> None:
    for path in (BATCH, HISTOGRAM, "/data/plugin/cockpit/runs", "/data/plugin/cockpit/static/index.js"):
        status, headers, _ = board.request(path, method=method)
        assert status == 405
        assert headers["Allow"] == "GET, HEAD"


def test_data_is_never_kept_by_the_browser(board: TensorBoard) -> None:
    _, headers, _ = board.request(BATCH, run="small")
    assert "no-cache" in headers["Cache-Control"]
    assert headers["Content-Type"] == "application/octet-stream"


def test_the_tab_is_switched_on_by_data_alone(board: TensorBoard) -> None:
    listing = json.loads(board.get("/data/plugins_listing"))["cockpit"]
    assert listing["enabled"] is True
    assert listing["tab_name"] == "Cockpit"


# ---- following ----


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_running_run_grows_on_the_page(backend: str, tmp_path: Path) -> None:
    logs.write_run(tmp_path / "empty", range(1))
    with TensorBoard("--logdir", str(tmp_path), "--load_fast", BACKENDS[backend]) as board:
        with EventWriter(tmp_path / "live") as writer:
            writer.write_header(logs.make_header("live"))
            writer.write_record(logs.make_record(0))
            board.wait_for_runs("live")
            first = get_batch(board, "live")
            assert first.status.state == "running"
            # A second file in the same folder, younger than ours, must not stop TensorBoard from following ours.
            _write_foreign_file(tmp_path / "live")
            for step in range(1, 5000):  # into the second tag
                writer.write_record(logs.make_record(step))
            latest = _wait_for(board, "live", 5000, since=first.to_seq)
            assert wire.unpack_array(latest.seq).tolist() == list(range(1, 5000))
            # A header that names one more layer, and records that have it.
            writer.write_header(logs.make_header("live", ("w", "b", "new"), revision=1))
            writer.write_record(logs.make_record(5000, layers=3))
            last = _wait_for(board, "live", 5001, since=5000)
            assert [layer.name for layer in last.header.layers] == ["w", "b", "new"]
            assert read_column(last, "GradNorm", "new")[0].tolist() == [5000]
            assert last.status.broken == 0
        assert "security_validator" not in board.log()


def _wait_for(board: TensorBoard, run: str, records: int, since: int) -> pb.Batch:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        batch = get_batch(board, run, since=since)
        if batch.status.records >= records:
            return batch
        time.sleep(0.2)
    raise AssertionError(f"{batch.status.records} of {records} records after 30 s")


def _write_foreign_file(folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    time.sleep(1.1)  # files are ordered by the second in their name
    writer = EventFileWriter(str(folder))
    writer.add_event(Event(step=0, wall_time=time.time()))
    writer.close()


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_limit_of_the_user_is_shown_as_n_of_m(backend: str, tmp_path: Path) -> None:
    logs.write_run(tmp_path / "a", range(500))
    arguments = ("--logdir", str(tmp_path), "--load_fast", BACKENDS[backend], "--cockpit_samples", "20")
    with TensorBoard(*arguments) as board:
        board.wait_for_runs("a")
        time.sleep(1)
        status = get_batch(board, "a").status
        assert status.records == 20
        assert status.expected == 502


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_run_that_was_replaced_starts_anew(backend: str, tmp_path: Path) -> None:
    logs.write_run(tmp_path / "a", range(50))
    logs.write_run(tmp_path / "b", range(5))
    with TensorBoard("--logdir", str(tmp_path), "--load_fast", BACKENDS[backend]) as board:
        board.wait_for_runs("a", "b")
        assert _wait_for(board, "a", 52, since=0).run_id == "id-a"
        for file in (tmp_path / "a").iterdir():
            file.unlink()
        time.sleep(2.5)
        with EventWriter(tmp_path / "a") as writer:
            writer.write_header(logs.make_header("other"))
            for step in range(60):
                writer.write_record(logs.make_record(step))
        deadline = time.monotonic() + 20
        while b"id-other" not in board.request(BATCH, run="a")[2]:  # 404 while there is none
            assert time.monotonic() < deadline
            time.sleep(0.3)


# ---- logs that were made to hurt ----


def test_log_that_was_made_to_hurt_is_shown_as_far_as_it_is_sound(board: TensorBoard) -> None:
    batch = get_batch(board, "hurtful")
    assert read_column(batch, "GradNorm")[0].tolist() == list(range(5))
    assert batch.status.broken >= 2  # the vectors that inflate, and the rubbish
    steps = {index.quantity: wire.unpack_array(index.steps).tolist() for index in batch.heavy}
    assert steps == {"GradHist1d": [1]}
    assert board.runs()["hurtful"]["seq"] <= 2**32 - 1


@pytest.mark.parametrize("step", [1, 2**32 - 1])
def test_histogram_that_inflates_is_not_served(board: TensorBoard, step: int) -> None:
    status, _, body = board.request(HISTOGRAM, run="hurtful", quantity="GradHist1d", step=step)
    assert status == 404
    assert len(body) < 1000
