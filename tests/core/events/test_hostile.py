"""Files that were made to hurt: each is skipped and counted, or refused with a sentence, in little memory and time.

The first faults were found with targeted files: a few megabytes that took gigabytes in ``load``, a shape that took more
than a minute to multiply, numbers of 64 bits where 32 were expected.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events import heavy, table, taking
from cockpit_core.events import pandas_table as frame
from cockpit_core.events.batch import encode_batch
from cockpit_core.events.data import RunData, load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.report.html import pack_run
from cockpit_core.report.tables import make_csv, make_json
from cockpit_core.schema import batches, limits, wire
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema.arrays import MAX_ARRAY, measure_array, unpack_array
from tests.core.events.hostile_cases import MEGABYTE, bounded, make_header, write_blob, write_payload


def make_bomb(megabytes: int = 32, dtype: int = pb.DTYPE_FLOAT32) -> pb.Array:
    """An array of zeros, a thousandth of its size as bytes."""
    size = megabytes * MEGABYTE
    width = 8 if dtype == pb.DTYPE_FLOAT64 else 4
    return pb.Array(dtype=dtype, shape=[size // width], codec=pb.CODEC_ZLIB, data=zlib.compress(bytes(size), 9))


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
        assert not batches.decode_batch(encode_batch(run, run="run", histograms=2)).histograms
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
    monkeypatch.setattr(taking, "MAX_NOTICES", 30)
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
