"""Files that were made to hurt: each is skipped and counted, or refused with a sentence, in little memory and time.

The first faults were found with targeted files: a few megabytes that took gigabytes in ``load``, a shape that took more
than a minute to multiply, numbers of 64 bits where 32 were expected.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import struct
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events import bulk, heavy, summary, table
from cockpit_core.events import data as data_module
from cockpit_core.events import pandas_table as frame
from cockpit_core.events.batch import encode_batch
from cockpit_core.events.crc import masked_crc
from cockpit_core.events.data import RunData, load
from cockpit_core.events.framing import frame as frame_record
from cockpit_core.events.reader import read_events
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.report.html import pack_run
from cockpit_core.report.show import list_runs, show_run
from cockpit_core.report.tables import guard_cell, make_csv, make_json
from cockpit_core.report.terminal import Terminal
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema import limits, wire
from cockpit_core.schema.arrays import MAX_ARRAY, measure_array, unpack_array
from tests import hostile_logs

MEGABYTE = 2**20


@contextlib.contextmanager
def bounded(megabytes: float, seconds: float = 10.0) -> Iterator[None]:
    """Fails where more memory or time is taken: far from what is usual, and farther from what the faults took."""
    tracemalloc.start()
    begun = time.monotonic()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes * MEGABYTE
        assert time.monotonic() - begun < seconds
    finally:
        tracemalloc.stop()


def make_bomb(megabytes: int = 32, dtype: int = pb.DTYPE_FLOAT32) -> pb.Array:
    """An array of zeros, a thousandth of its size as bytes."""
    size = megabytes * MEGABYTE
    width = 8 if dtype == pb.DTYPE_FLOAT64 else 4
    return pb.Array(dtype=dtype, shape=[size // width], codec=pb.CODEC_ZLIB, data=zlib.compress(bytes(size), 9))


def make_header(layers: list[str], revision: int = 0) -> records.Header:
    return records.Header("id", "run", 1.0, revision=revision, layers=[records.LayerInfo(x, (1,), 1) for x in layers])


def write_payload(writer: EventWriter, payload: bytes, step: int | None = None) -> None:
    """A record as it stands, whoever made it."""
    writer._write_tensor("cockpit/records/000000", "records", writer.next_seq if step is None else step, payload, 1.0)
    writer.next_seq += 1


def write_blob(writer: EventWriter, step: int, *blobs: bytes, name: str = "GradHist1d") -> None:
    writer._write_tensor(f"cockpit/heavy/{name}", "heavy", step, list(blobs), quantity=name)


# ---- what inflates ----


def test_layer_vectors_that_would_inflate_are_refused_before_they_do(logdir: Path) -> None:
    bomb = make_bomb()
    record = pb.Record(kind=pb.KIND_STEP, layers=[pb.LayerVector(name=f"q{i}", values=bomb) for i in range(8)])
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a", "b"]))
        write_payload(writer, record.SerializeToString())
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    with bounded(8):
        run = load(logdir)
    assert (run.broken, run.received) == (1, 1)
    assert EventWriter(logdir, resume=True).past.next_seq == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("codec", [pb.CODEC_RAW, pb.CODEC_ZLIB])
def test_array_cannot_claim_more_than_its_bytes_can_hold(codec: int) -> None:
    array = pb.Array(dtype=pb.DTYPE_UINT8, shape=[MAX_ARRAY], codec=codec, data=zlib.compress(bytes(1000)))  # type: ignore[arg-type]
    with bounded(1), pytest.raises(ValueError, match="bytes"):
        unpack_array(array)


def test_array_that_inflates_to_more_than_it_claims_is_refused() -> None:
    array = make_bomb(8)
    array.shape[0] = 100
    with bounded(2), pytest.raises(ValueError, match="needs 400"):
        unpack_array(array)


@pytest.mark.parametrize("shape", [[2] * 300_000, [2**32 - 1] * 300_000, [0] + [2**32 - 1] * 300_000])
def test_shape_with_many_extents_is_refused_at_once(shape: list[int]) -> None:
    with bounded(40, 2), pytest.raises(ValueError, match=r"300\d{3} dimensions"):
        measure_array(pb.Array(dtype=pb.DTYPE_FLOAT64, shape=shape))
    with bounded(40, 2), pytest.raises(ValueError, match=r"300\d{3} dimensions"):
        wire.decode_header(pb.Header(layers=[pb.Layer(name="a", shape=shape)]).SerializeToString())


def test_histograms_that_inflate_are_left_out_of_everything_that_is_shown(logdir: Path) -> None:
    counts, edges = make_bomb(64, pb.DTYPE_UINT32), make_bomb(128, pb.DTYPE_FLOAT64)
    counts.shape[0] = edges.shape[0] - 1
    counts.data = zlib.compress(bytes(4 * counts.shape[0]), 9)
    blob = pb.Histogram(quantity="GradHist1d", counts=counts, edges=edges).SerializeToString()
    assert wire.measure_histogram(blob) > limits.MAX_SHOWN
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a", "b"]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
        write_blob(writer, 1, blob, blob, blob)
    run = load(logdir)
    with bounded(16):
        assert not wire.decode_batch(encode_batch(run, run="run", histograms=2)).histograms
        pack_run("run", run, 1_000_000)
    with bounded(16):
        make_json([("run", run)], room=MEGABYTE)


def test_many_histograms_that_inflate_share_one_budget(logdir: Path) -> None:
    """Each is small enough to be shown; all of them together are not."""
    counts = make_bomb(8, pb.DTYPE_UINT32)
    blob = pb.Histogram(quantity="GradHist1d", counts=counts, edges=pb.Array(dtype=pb.DTYPE_FLOAT64, shape=[0]))
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
        for step in range(100):
            write_blob(writer, step, blob.SerializeToString())
    run = load(logdir)
    with bounded(150):
        _, words = pack_run("run", run, 1_000_000)
    assert "histograms are left out" in words
    text, words = make_json([("run", run)], room=MEGABYTE)
    assert "100 histograms are left out" in words
    assert len(text) < 100_000


def test_edges_that_do_not_belong_to_the_counts_are_refused() -> None:
    good = records.Histogram("H", 1, np.ones((2, 3), np.uint32), np.arange(3.0), np.arange(4.0))
    message = pb.Histogram.FromString(wire.encode_histogram(good))
    assert wire.decode_histogram(message.SerializeToString()).counts.shape == (2, 3)
    for field in ("edges", "parameter_edges"):
        for count in (0, 1, 2, 5):
            wrong = pb.Histogram.FromString(message.SerializeToString())
            array = pb.Array(dtype=pb.DTYPE_FLOAT64, shape=[count], data=bytes(8 * count))
            getattr(wrong, field).CopyFrom(array)
            if (field, count) != ("edges", 0):
                with pytest.raises(ValueError, match="edges of shape"):
                    wire.decode_histogram(wrong.SerializeToString())


# ---- what grows ----


def test_layers_that_only_headers_name_take_no_room(logdir: Path) -> None:
    """One header names many layers, the next a single one, which all records have: a matrix of both would take 75 MB."""
    with EventWriter(logdir) as writer:
        writer.write_header(make_header([f"l{i}" for i in range(5_000)]))
        writer.write_header(make_header(["one"], revision=1))
        for step in range(1000):
            vector = {f"q{step % 10}": np.array([float(step)])}
            writer.write_record(records.Record("step", step, 1.0, 1.0, layers=vector))
        writer.write_header(make_header([f"m{i}" for i in range(5_000)], revision=2))
        writer.write_record(records.Record("step", 1000, 1.0, 1.0, layers={"q0": np.arange(5_000.0)}))
    with bounded(20, 30):
        run = load(logdir)
        encode_batch(run, run="run", max_points=10)
    assert run.broken == 0
    assert run.scalars("q3", "one")[1].tolist() == list(range(3, 1000, 10))
    assert [x.tolist() for x in run.scalars("q0", "m7")] == [[1000], [7.0]]
    assert run.scalars("q0", "l7")[1].tolist() == []


def test_a_layer_keeps_its_values_over_headers_in_another_order(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        for revision, layers in enumerate((["a", "b"], ["b", "c", "a"], ["a", "b"])):
            writer.write_header(make_header(layers, revision))
            for step in (2 * revision, 2 * revision + 1):
                vector = {"q": np.array([10.0 * step + ord(x) for x in layers])}
                writer.write_record(records.Record("step", step, 1.0, 1.0, layers=vector))
    with EventWriter(logdir, resume=True) as writer:
        writer.write_header(make_header(["a", "b"]))
        writer.write_record(records.Record("step", 3, 1.0, 1.0, layers={"q": np.array([1.0, 2.0])}))
    run = load(logdir)
    assert [x.tolist() for x in run.scalars("q", "a")] == [[0, 1, 2, 3], [97.0, 107.0, 117.0, 1.0]]
    assert [x.tolist() for x in run.scalars("q", "c")] == [[2], [119.0]]
    assert run.to_pandas()["q[b]"].tolist() == [98.0, 108.0, 118.0, 2.0]


def test_lists_and_names_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for field, entry in (("warnings", pb.Warning()), ("alphas", pb.AlphaFit()), ("costs", pb.Cost())):
        message = pb.Record(kind=pb.KIND_STEP, **{field: [entry] * (limits.MAX_ENTRIES + 1)})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="are the most"):
            wire.decode_record(message.SerializeToString())
    with pytest.raises(ValueError, match="layers are refused"):
        wire.decode_header(pb.Header(layers=[pb.Layer()] * (limits.MAX_LAYERS + 1)).SerializeToString())
    with pytest.raises(ValueError, match="bytes is refused"):
        wire.decode_record(bytes(limits.MAX_LIGHT + 1))
    monkeypatch.setattr(table, "MAX_NAMES", 50)
    run = RunData()
    for seq in range(100):
        run.feed_record(wire.encode_record(records.Record("log", 1, 1.0, 1.0, seq=seq, scalars={f"log/{seq}": 1.0})))
    assert (len(run.names), run.broken) == (50, 50)
    assert run.feed_record(wire.encode_record(records.Record("log", 1, 1.0, 1.0, seq=100, scalars={"log/7": 1.0})))


def test_notices_without_end_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three million empty ones are six megabytes, and took minutes; the values beside them are kept."""
    monkeypatch.setattr(data_module, "MAX_NOTICES", 30)
    run = RunData()
    for seq in range(10):
        notices = [records.Notice(seq, "note", f"{i}") for i in range(8)]
        record = records.Record("step", seq, 1.0, 1.0, seq=seq, scalars={"Loss": 1.0}, notices=notices)
        run.feed_record(wire.encode_record(record))
    assert (len(run.notices), run.received, run.broken) == (30, 10, 0)
    with pytest.raises(ValueError, match="alphas are refused"):
        wire.decode_record(pb.Record(kind=pb.KIND_STEP, alphas=[pb.AlphaFit()] * 101).SerializeToString())


def test_layers_without_a_histogram_are_not_looked_for_on_disk_again(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header([f"l{i}" for i in range(50)]))
        histogram = records.Histogram("H", 1, np.ones(2, np.uint32), np.arange(3.0))
        writer.write_heavy("H", 1, histogram, [histogram, None])
    run, reads = load(logdir), []
    read_one = heavy.read_one
    monkeypatch.setattr(heavy, "read_one", lambda *place: reads.append(place) or read_one(*place))
    for layer in run.layers:
        if layer == "l0":
            assert run.histogram("H", 1, layer).counts.tolist() == [1, 1]
        else:
            with pytest.raises(KeyError, match="has no H at step 1"):
                run.histogram("H", 1, layer)
    assert len(reads) == 2


def test_tables_that_would_not_fit_are_refused_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MOST_CELLS", 50)
    run = RunData()
    for seq in range(10):
        run.feed_record(wire.encode_record(records.Record("log", 1, 1.0, 1.0, seq=seq, scalars={f"log/{seq}": 1.0})))
    with pytest.raises(ValueError, match="10 rows and 10 columns is too large"):
        run.to_pandas()
    with pytest.raises(ValueError, match="10 rows and 18 columns is too large"):
        make_csv([("run", run)])


def test_a_name_does_not_replace_a_column_of_the_table(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        scalars = {"step": 7.0, "Alpha": 8.0, "Loss": 1.0}
        writer.write_record(records.Record("step", 3, 1.0, 1.0, scalars=scalars))
    found = load(logdir).to_pandas()
    assert (found["step"].tolist(), found["Alpha"].tolist()) == ([3], [8.0])


# ---- numbers that do not fit ----


@pytest.mark.parametrize("step", [2**32, 2**40, 2**63 - 1, 2**64 - 1])
def test_histogram_of_a_step_beyond_32_bits_is_skipped_and_counted(logdir: Path, step: int) -> None:
    blob = wire.encode_histogram(records.Histogram("GradHist1d", 1, np.ones(2, np.uint32), np.arange(3.0)))
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
        write_blob(writer, 1, blob)
        write_blob(writer, step, blob)
    run = load(logdir)
    assert (run.histogram_steps("GradHist1d"), run.broken) == ([1], 1)
    hostile_logs.use_values(run)
    with EventWriter(logdir, resume=True) as writer:
        assert writer.past is not None
        assert writer.past.heavy == {"GradHist1d": {1}}


@pytest.mark.parametrize("field", [{"seq": 2**32 - 1}, {"generation": 2**32 - 1}, {"generation": 10_001}])
def test_resuming_goes_on_from_what_can_be_true(logdir: Path, field: dict[str, int]) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
        write_payload(writer, pb.Record(kind=pb.KIND_STEP, step=2, time=math.inf, **field).SerializeToString())  # type: ignore[arg-type]
        write_payload(writer, b"", step=2**40)
    run = load(logdir)
    assert run.broken == 2
    hostile_logs.use_values(run)
    with EventWriter(logdir, resume=True) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(records.Record("step", 2, 1.0, 1.0, scalars={"Loss": 3.0}))
        assert (writer.generation, writer.past.last_time) == (1, 1.0)  # type: ignore[union-attr]
    assert load(logdir).scalars("Loss")[1].tolist() == [1.0, 3.0]


def test_largest_number_of_a_record_can_still_be_shown() -> None:
    run = RunData()
    assert run.feed_record(pb.Record(kind=pb.KIND_STEP, seq=2**32 - 2, step=2**32 - 1).SerializeToString())
    batch = wire.decode_batch(encode_batch(run, run="run"))
    assert (batch.to_seq, batch.step.tolist(), batch.expected) == (2**32 - 1, [2**32 - 1], 2**32 - 1)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e308, -1e308])
def test_times_may_be_anything(logdir: Path, odd: float) -> None:
    with EventWriter(logdir) as writer:
        header = make_header(["a"])
        header.created = header.steps_per_epoch = header.covered = odd
        writer.write_header(header)
        for step in range(20):
            writer.write_record(records.Record("step", step, odd, odd, epoch=odd, scalars={"Loss": odd}))
    hostile_logs.use_values(load(logdir))


# ---- two names for one column ----


def test_scalar_named_like_an_error_beside_an_estimate_survives_a_resume(logdir: Path) -> None:
    """Methods and errors stood in two lists of different length, and dropping rows left a table that raised."""

    def write(writer: EventWriter, steps: range) -> None:
        writer.write_header(make_header(["a"]))
        for step in steps:
            estimates = {"X": (0.5 + step, "lanczos")} if step % 2 else {}
            scalars = {"X": 1.0, "error/X": 9.0, "cost/X": 8.0}
            record = records.Record("step", step, 1.0, 1.0, scalars=scalars, estimates=estimates, costs={"X": 2.0})
            writer.write_record(record)

    with EventWriter(logdir) as writer:
        write(writer, range(40))
    with EventWriter(logdir, resume=True) as writer:
        write(writer, range(4, 6))
    run = load(logdir)
    assert run.scalars("X")[0].tolist() == [0, 1, 2, 3, 4, 5]
    estimates = run.estimates["X"]
    assert estimates.errors.tolist() == [9.0, 1.5, 9.0, 3.5, 9.0, 5.5]
    assert estimates.methods == ["", "lanczos"] * 3
    assert run.scalars("cost/X")[1].tolist() == [2.0] * 6
    hostile_logs.use_values(run)


def test_fits_out_of_order_are_the_same_one_by_one_and_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "FEW", 2)
    steps = [5, 6, 7, 7, 8, 3, 4, 5, 1, 9]
    payloads = [
        wire.encode_record(records.Record("log", 9, 1.0, 1.0, seq=i, alphas=[records.AlphaFit(step, 0.5, *[1.0] * 12)]))
        for i, step in enumerate(steps)
    ]
    many, single = RunData(), RunData()
    many.feed_records(payloads)
    for payload in payloads:
        single.feed_record(payload)
    assert many.alphas == single.alphas
    assert [fit.step for fit in many.alphas] == [1, 9]


# ---- damage that takes time ----


def test_lengths_that_cover_each_other_are_not_checked_for_ever(tmp_path: Path) -> None:
    """Every twelve bytes a sound length that reaches to the end of the file: a checksum over all of it each time."""
    count = 40_000
    heads = []
    for i in range(count):
        length = struct.pack("<Q", 12 * (count - i) - 12)
        heads.append(length + struct.pack("<I", masked_crc(length)))
    path = tmp_path / hostile_logs.NAME
    good = wire.encode_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    event = summary.encode_event(1.0, 0, [summary.encode_tensor("cockpit/records/000000", good)])
    path.write_bytes(b"".join(heads) + b"....    " + frame_record(event) * 3)
    begun = time.monotonic()
    run = load(path)
    assert time.monotonic() - begun < 15
    assert run.received == 1
    assert run.broken > 0


def test_many_small_damaged_records_are_passed_quickly(tmp_path: Path) -> None:
    head = struct.pack("<Q", 0)
    head += struct.pack("<I", masked_crc(head))
    good = wire.encode_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    event = summary.encode_event(1.0, 0, [summary.encode_tensor("cockpit/records/000000", good)])
    path = tmp_path / hostile_logs.NAME
    path.write_bytes(head * 20_000 + b"?" * 4 + frame_record(event))
    begun = time.monotonic()
    run = load(path)
    assert time.monotonic() - begun < 10
    assert run.received == 1


def test_summary_of_a_million_empty_values_takes_little_room(tmp_path: Path) -> None:
    value = summary.encode_bytes(1, summary.encode_bytes(1, b"cockpit/records/x"))
    event = summary.encode_bytes(5, value + b"\x0a\x00" * 1_000_000)
    path = tmp_path / hostile_logs.NAME
    path.write_bytes(frame_record(event))
    with bounded(30, 60):
        load(path)


def test_a_record_is_one_string(logdir: Path) -> None:
    payload = wire.encode_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    with EventWriter(logdir) as writer:
        writer._write_tensor("cockpit/records/000000", "records", 0, [payload, payload])
        writer._write_tensor("cockpit/records/000000", "records", 1, [])
    run = load(logdir)
    assert (run.received, run.broken) == (0, 2)


def test_generations_without_end_are_refused() -> None:
    """Each takes a walk through the whole table."""
    run = RunData()
    for seq in range(3):
        run.feed_record(pb.Record(kind=pb.KIND_STEP, seq=seq, step=seq, generation=seq * 9_000).SerializeToString())
    assert (run.received, run.broken) == (2, 1)


# ---- texts ----

EVIL = "\x1b]0;owned\x07\x1b[31mfin\u202eished\x9b2J\r\n"


def test_no_text_of_a_log_reaches_a_terminal_with_its_escape_sequences(
    tmp_path: Path,
) -> None:
    folder = tmp_path / f"run{EVIL}"
    histogram = records.Histogram(EVIL, 1, np.ones(2, np.uint32), np.arange(3.0))
    with EventWriter(folder) as writer:
        header = make_header([EVIL])
        header.name = header.model = header.loss = header.config = EVIL
        header.optimizers = [records.OptimizerInfo(EVIL)]
        writer.write_header(header)
        scalars, layers = {EVIL: 1.0, "Loss": 2.0, f"log/{EVIL}": 3.0}, {EVIL: np.array([1.0])}
        notices = [records.Notice(1, EVIL, EVIL, EVIL, EVIL)]
        writer.write_heavy(EVIL, 1, histogram)
        writer.write_record(
            records.Record("step", 1, 1.0, 1.0, scalars=scalars, layers=layers, notices=notices, missing={EVIL: EVIL})
        )
        writer.write_record(records.Record("end", 1, 1.0, 1.0, status=EVIL, error=EVIL))
    for colour, quantity in itertools.product((False, True), (None, EVIL, "none" + EVIL)):
        stream = io.StringIO()
        terminal = Terminal(stream)
        terminal.color = colour
        list_runs(tmp_path, terminal)
        show_run(folder, terminal, quantity)
        text = stream.getvalue()
        for ours in ("\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m", "\n") if colour else ("\n",):
            text = text.replace(ours, "")
        assert text.isprintable(), repr(text)
    assert load(folder).status == "]0;owned[31mfinished2J"


def test_a_cell_that_begins_with_blanks_is_no_formula_either() -> None:
    assert guard_cell("\t=1+1") == "' =1+1"
    assert guard_cell("Loss") == "Loss"


# ---- questions that make no sense ----


@pytest.mark.parametrize("path", [None, 5, b"runs", ["runs"], object()])
def test_load_says_what_it_takes(path: object) -> None:
    with pytest.raises(TypeError, match="log directory"):
        load(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["import os\n" * 100, "", "x"])
def test_file_that_is_no_log_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "file.py").write_text(content)
    with pytest.raises(ValueError, match=r"file\.py holds no event that Cockpit wrote"):
        load(tmp_path / "file.py")


def test_event_file_of_others_is_refused_and_ours_is_read_under_any_name(tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1.host"
    other.write_bytes(frame_record(summary.encode_event(1.0, 1, [summary.encode_scalar("loss", 1.0)])))
    with pytest.raises(ValueError, match="no event that Cockpit wrote"):
        load(other)
    with EventWriter(tmp_path / "run") as writer:
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    copy = writer.path.rename(tmp_path / "copy.bin")
    assert load(copy).scalars("Loss")[1].tolist() == [1.0]


def test_run_that_has_just_begun_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / hostile_logs.NAME
    path.write_bytes(b"")
    assert load(path).status in ("waiting", "crashed")


@pytest.mark.parametrize("step", ["1", 1.5, None, [1], math.nan])
def test_steps_are_whole_numbers(step: object) -> None:
    run = RunData()
    for ask in (run.histogram, run.histogram_bytes):
        with pytest.raises(TypeError, match=r"step must be a whole number \(-1: the last one\), not"):
            ask("GradHist1d", step)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="step must be a whole number"):
        run.parameters(step)  # type: ignore[arg-type]


def test_names_are_texts(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    run = load(logdir)
    for name, layer in ((5, None), (["Loss"], None), (None, None), ("Loss", 3), ("Loss", ["a"])):
        with pytest.raises(TypeError, match="by its name"):
            run.scalars(name, layer)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="by its name"):
            run.histogram(name, layer=layer)  # type: ignore[arg-type]


def test_numpy_steps_are_steps(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_heavy("H", 3, records.Histogram("H", 3, np.ones(2, np.uint32), np.arange(3.0)))
    assert load(logdir).histogram("H", np.int64(3)).step == 3  # type: ignore[arg-type]
    assert read_events(writer.path)[2] == 0
