"""Reading what is cut, damaged, lying, or still being written."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events.crc import masked_crc
from cockpit_core.events.data import load
from cockpit_core.events.framing import MAX_RECORD, find_heads, frame, look
from cockpit_core.events.reader import EventFile, read_events
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records


def write_small(logdir: Path, steps: int = 6) -> Path:
    with EventWriter(logdir) as writer:
        writer.write_header(records.Header("id", "run", 1.0, layers=[records.LayerInfo("a", (1,), 1)]))
        for step in range(steps):
            layers = {"GradNorm": np.array([1.0])}
            writer.write_record(records.Record("step", step, 1.0, 1.0, scalars={"Loss": float(step)}, layers=layers))
            histogram = records.Histogram("GradHist1d", step, np.ones(3, np.uint32), np.linspace(0, 1, 4))
            writer.write_heavy("GradHist1d", step, histogram, [None])
    return writer.path


def find_frames(data: bytes) -> list[tuple[int, int]]:
    frames, position = [], 0
    while position < len(data):
        found = look(data, position)
        frames.append((position, found.end))
        position = found.end
    return frames


@pytest.fixture
def small(logdir: Path) -> Path:
    return write_small(logdir)


def test_file_cut_at_every_byte_of_its_last_records_reads_back(small: Path) -> None:
    data = small.read_bytes()
    frames = find_frames(data)
    for cut in range(frames[-3][0], len(data)):
        overwrite(small, data[:cut])
        whole = sum(end <= cut for _, end in frames)
        events, offset, broken = read_events(small)
        assert (len(events), offset, broken) == (whole, frames[whole - 1][1], 0)
        assert load(small.parent).broken == 0


def test_what_was_cut_is_read_when_it_arrives(small: Path) -> None:
    """Byte by byte, as a reader may see it: nothing twice, nothing lost, nothing taken for damage."""
    data = small.read_bytes()
    start = find_frames(data)[-2][0]
    small.write_bytes(data[:start])
    run = load(small.parent)
    for end in range(start, len(data) + 1):
        overwrite(small, data[:end])
        run.refresh()
    assert run.broken == 0
    assert run.scalars("Loss")[0].tolist() == list(range(6))
    assert run.histogram_steps("GradHist1d") == list(range(6))


def test_damaged_payload_costs_one_record(small: Path) -> None:
    data = bytearray(small.read_bytes())
    start, _ = find_frames(bytes(data))[4]
    data[start + 20] ^= 0xFF
    small.write_bytes(data)
    run = load(small.parent)
    assert run.broken == 1
    assert run.scalars("Loss")[0].tolist() == [0, 2, 3, 4, 5]
    assert (run.received, run.expected) == (5, 6)


def test_damaged_length_costs_one_record(small: Path) -> None:
    data = bytearray(small.read_bytes())
    start, _ = find_frames(bytes(data))[4]
    data[start + 1] ^= 0xFF
    small.write_bytes(data)
    run = load(small.parent)
    assert run.broken == 1
    assert run.scalars("Loss")[0].tolist() == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("change", ["removed", "inserted"])
def test_bytes_removed_or_inserted_cost_one_record(small: Path, change: str) -> None:
    data = small.read_bytes()
    start, _ = find_frames(data)[4]
    middle = start + 30
    small.write_bytes(data[:middle] + (data[middle + 3 :] if change == "removed" else b"???" + data[middle:]))
    run = load(small.parent)
    assert run.broken == 1
    assert run.scalars("Loss")[0].tolist() == [0, 2, 3, 4, 5]


def test_damage_at_the_end_is_overcome_when_more_is_written(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_record(records.Record("step", 0, 1.0, 1.0, scalars={"Loss": 0.0}))
        with open(writer.path, "ab") as file:
            file.write(b"\0" * 40)
        run = load(logdir)
        assert run.broken == 1
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
        run.refresh()
    assert run.broken == 1
    assert run.scalars("Loss")[0].tolist() == [0, 1]


def corrupt(data: bytes, random: np.random.Generator) -> bytes:
    """Flipped, overwritten, removed, inserted or doubled bytes at one to three places."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        at, size = int(random.integers(0, len(changed))), int(random.integers(1, 30))
        noise = random.integers(0, 256, size, dtype=np.uint8).tobytes()
        kind = random.integers(0, 5)
        if kind == 0:
            changed[at] ^= 1 << int(random.integers(0, 8))
        elif kind == 1:
            changed[at : at + size] = noise
        elif kind == 2:
            del changed[at : at + size]
        elif kind == 3:
            changed[at:at] = noise
        else:
            changed[at:at] = changed[at : at + size]
    return bytes(changed)


def overwrite(path: Path, data: bytes) -> None:
    """In place: some file systems wait for the disk when a file is emptied and written anew."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def test_ten_thousand_corrupted_files_are_read_and_the_damage_is_counted(tmp_path: Path) -> None:
    path = write_small(tmp_path / "run", 3)
    data = path.read_bytes()
    total = len(find_frames(data))
    random = np.random.default_rng(0)
    uncounted = torn = 0
    for _ in range(10_000):
        changed = corrupt(data, random)
        overwrite(path, changed)
        run = load(path)
        run.names, run.status, run.rows  # noqa: B018
        file = run.files[0]
        torn += file.offset < len(changed)  # ends in half a record, as if it were being written
        uncounted += file.events < total and run.broken == 0 and file.offset == len(changed)
    assert uncounted == 0
    assert torn < 2000


def test_single_flipped_bits_cost_at_most_one_record_each(tmp_path: Path) -> None:
    path = write_small(tmp_path / "run", 3)
    data = path.read_bytes()
    frames = find_frames(data)
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 0x10
        overwrite(path, changed)
        events, offset, broken = read_events(path)
        last = at >= frames[-1][0]
        assert len(events) == len(frames) - 1
        assert broken == 1
        assert last or offset == len(data)


def test_huge_length_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1.cockpit"
    for length in (2**63, MAX_RECORD + 1, MAX_RECORD):
        head = struct.pack("<Q", length)
        path.write_bytes(frame(b"") + head + struct.pack("<I", masked_crc(head)) + b"abc")
        tracemalloc.start()
        events, _, broken = read_events(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(events) == 1
        assert broken == (length > MAX_RECORD)
        assert peak < 4_000_000


def test_records_larger_than_the_buffer_are_read(logdir: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 2**32, 800_000, dtype=np.uint32)
    histogram = records.Histogram("GradHist1d", 0, counts, np.linspace(0, 1, counts.size + 1))
    with EventWriter(logdir) as writer:
        writer.write_heavy("GradHist1d", 0, histogram, [])
        writer.write_record(records.Record("step", 0, 1.0, 1.0, scalars={"Loss": 1.0}))
    run = load(logdir)
    np.testing.assert_array_equal(run.histogram("GradHist1d").counts, counts)
    assert run.names == ["Loss", "GradHist1d"]


def test_search_finds_the_first_sound_length() -> None:
    noise = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8).tobytes()
    assert find_heads(noise, 0).size == 0
    assert find_heads(noise + frame(b"payload") + frame(b"x"), 0).tolist() == [5000, 5023]
    assert find_heads(b"short", 0).size == 0


def test_vanished_file_gives_nothing(tmp_path: Path) -> None:
    assert list(EventFile(tmp_path / "gone").read()) == []


def test_event_with_damage_inside_a_sound_frame_is_counted(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_record(records.Record("step", 0, 1.0, 1.0, scalars={"Loss": 1.0}))
        with open(writer.path, "ab") as file:
            file.write(frame(b"\xff\xff no event"))
    assert load(logdir).broken == 1
