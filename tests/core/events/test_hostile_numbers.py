"""Numbers that do not fit, damage that takes time, names that act: skipped and counted, or refused with a sentence."""

from __future__ import annotations

import io
import itertools
import math
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events import bulk, summary
from cockpit_core.events.batch import encode_batch
from cockpit_core.events.crc import masked_crc
from cockpit_core.events.data import RunData, load
from cockpit_core.events.framing import frame as frame_record
from cockpit_core.events.reader import read_events
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.report.show import list_runs, show_run
from cockpit_core.report.tables import guard_cell
from cockpit_core.report.terminal import Terminal
from cockpit_core.schema import batches, wire
from cockpit_core.schema import cockpit_pb2 as pb
from tests import hostile_logs
from tests.core.events.hostile_cases import bounded, make_header, write_blob, write_payload


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
    batch = batches.decode_batch(encode_batch(run, run="run"))
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
    other.write_bytes(frame_record(summary.encode_scalars(1.0, 1, {"loss": 1.0})))
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
