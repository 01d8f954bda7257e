"""Writing: nothing is overwritten, nothing is lost, nothing grows without bound."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events import writer as writing
from cockpit_core.events.data import load
from cockpit_core.events.reader import read_events
from cockpit_core.events.thinning import HEAVY_EXTRA, Thinning
from cockpit_core.events.writer import EventWriter, choose_names
from cockpit_core.foundation import records
from tests import synthetic

ROOT = Path(__file__).parents[3]


def make_header(layers: int = 2) -> records.Header:
    return records.Header("id", "run", 1.0, layers=[records.LayerInfo(f"l{i}", (1,), 1) for i in range(layers)])


def make_record(step: int, layers: int = 2, **more: object) -> records.Record:
    vectors = {"GradNorm": np.full(layers, float(step))}
    return records.Record("step", step, 10.0 + step, float(step), scalars={"Loss": 0.5}, layers=vectors, **more)  # type: ignore[arg-type]


def make_histogram(step: int) -> records.Histogram:
    return records.Histogram("GradHist1d", step, np.ones(3, np.uint32), np.linspace(0, 1, 4))


def read_tags(path: Path) -> list[str]:
    return [value.tag for event in read_events(path)[0] for value in event.values]


def test_file_begins_with_the_version_and_is_named_as_tensorboard_wants(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        assert writer.generation == 0
    assert read_events(writer.path)[0][0].version == "brain.Event:2"
    assert writer.path.name.startswith("events.out.tfevents.")
    assert writer.path.name.endswith(".0.cockpit")


def test_a_run_is_never_overwritten(logdir: Path) -> None:
    EventWriter(logdir).close()
    before = [path.read_bytes() for path in logdir.iterdir()]
    with pytest.raises(FileExistsError, match="resume=True"):
        EventWriter(logdir)
    assert [path.read_bytes() for path in logdir.iterdir()] == before


def test_other_files_in_the_directory_are_no_run(logdir: Path) -> None:
    logdir.mkdir()
    (logdir / "events.out.tfevents.1.host").write_bytes(b"of someone else")
    EventWriter(logdir).close()


def test_directory_without_permission_is_named(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(PermissionError, match=r"not writable.*run"):
        EventWriter(logdir)


def test_logdir_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(NotADirectoryError, match="not a directory"):
        EventWriter(tmp_path / "run")


def test_writing_after_close_is_refused(logdir: Path) -> None:
    writer = EventWriter(logdir)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write_record(make_record(0))


def test_seq_counts_all_kinds_of_records(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        kinds = ["start", "step", "log", "end"]
        assert [writer.write_record(records.Record(kind, 0, 1.0, 1.0)) for kind in kinds] == [0, 1, 2, 3]
        assert writer.next_seq == 4


def test_tags_rotate(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "RECORDS_PER_TAG", 3)
    with EventWriter(logdir) as writer:
        for step in range(7):
            writer.write_record(records.Record("step", step, 1.0, 1.0))
    assert read_tags(writer.path) == [f"cockpit/records/00000{k}" for k in (0, 0, 0, 1, 1, 1, 2)]
    values = [value for event in read_events(writer.path)[0] for value in event.values]
    assert [bool(value.content) for value in values] == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("layers", [20, 100, 180])
def test_light_record_stays_under_8_kb(logdir: Path, layers: int) -> None:
    """With everything of the largest configuration in it."""
    infos = synthetic.make_layers(layers)
    story = synthetic.Story(np.random.default_rng(0), infos, 100, None, True, True)
    with EventWriter(logdir) as writer:
        writer.write_header(synthetic.make_header("x", infos, 1, True))
        before = writer.path.stat().st_size
        record, fit = synthetic._make_record(story, 3, 3)
        record.alphas = [fit]
        writer.write_record(record)
        assert 1000 < writer.path.stat().st_size - before < 8000


def test_many_layers_are_stored_in_every_tenth_record_and_the_header_says_so(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(201))
        for step in range(25):
            writer.write_record(make_record(step, 201, triggered=step == 13))
    data = load(logdir)
    assert data.scalars("GradNorm", layer="l7")[0].tolist() == [0, 10, 13, 20]
    assert len(data.scalars("Loss")[0]) == 25
    assert "every 10th" in data.header.notes[0]


def test_vectors_of_many_layers_stand_in_records_in_turn() -> None:
    names = [f"q{i}" for i in range(7)]
    rounds = [choose_names(names, turn, 600) for turn in range(10)]
    assert rounds[:4] == [["q0", "q1"], ["q2", "q3"], ["q4", "q5"], ["q6"]]
    assert [name for each in rounds for name in each] == names
    chosen = [name for turn in range(10) for name in choose_names(names * 3, turn, 600)]
    assert chosen == names * 3, "none is forgotten"
    assert [len(choose_names(names, turn, 5000)) for turn in range(10)] == [1] * 7 + [0] * 3


def test_few_layers_are_stored_in_every_record(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(200))
        for step in range(5):
            writer.write_record(make_record(step, 200))
    assert len(load(logdir).scalars("GradNorm", layer="l7")[0]) == 5
    assert load(logdir).header.notes == []


def test_thinning_keeps_at_most_512_and_the_first_256() -> None:
    thinning = Thinning()
    kept = [index for index in range(200_000) if thinning.offer()]
    assert kept[:256] == list(range(256))
    assert 256 < len(kept) <= 512
    gaps = np.diff(kept[256:]) / np.array(kept[256:-1])
    assert gaps.max() < 0.05
    assert kept[-1] > 190_000


def test_thinning_never_passes_its_bound() -> None:
    thinning = Thinning(512)
    assert not any(thinning.offer() for _ in range(1000))
    assert sum(thinning.offer(keep=True) for _ in range(1000)) == HEAVY_EXTRA


def test_resumed_thinning_goes_on_where_it_was() -> None:
    thinning = Thinning(300)
    kept = [thinning.offer() for _ in range(1000)]
    assert kept[0]
    assert sum(kept) < 100


def test_heavy_steps_increase_strictly(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        answers = [writer.write_heavy("GradHist1d", step, make_histogram(step), [None]) for step in (0, 0, 5, 4, 6)]
    assert answers == [True, False, True, False, True]
    assert load(logdir).histogram_steps("GradHist1d") == [0, 5, 6]


def test_large_run_says_so_once(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "LARGE_RUN", 2000)
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        for step in range(50):
            writer.write_record(make_record(step))
    with EventWriter(logdir, resume=True) as writer:
        writer.write_record(records.Record("start", 50, 1.0, 1.0))
    assert [notice.kind for notice in load(logdir).notices] == ["size"]


def test_long_messages_are_cut_in_the_middle(logdir: Path) -> None:
    text = "begin" + "x" * 100_000 + "end"
    record = records.Record("end", 0, 1.0, 1.0, status="failed", error=text, missing={"A": text})
    record.notices = [records.Notice(0, "error", text)]
    with EventWriter(logdir) as writer:
        writer.write_record(record)
        assert writer.path.stat().st_size < 8000
    data = load(logdir)
    for kept in (data.error, data.notices[0].message, data.missing[0].reason):
        assert kept.startswith("begin") and kept.endswith("end")
    assert record.error == text


def test_half_a_record_on_a_full_disk_is_cut_off(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventWriter(logdir)
    writer.write_header(make_header())
    size = writer.path.stat().st_size
    real = os.write
    calls: list[int] = []

    def fill(file: int, data: bytes) -> int:
        if calls:
            raise OSError(errno.ENOSPC, "No space left on device")
        calls.append(1)
        return real(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="No space"):
        writer.write_record(make_record(0))
    monkeypatch.setattr(os, "write", real)
    assert writer.path.stat().st_size == size
    assert writer.write_record(make_record(1)) == 0
    assert load(logdir).broken == 0
    assert load(logdir).scalars("Loss")[0].tolist() == [1]


def test_short_writes_are_completed(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    with EventWriter(logdir) as writer:
        writer.write_record(records.Record("step", 3, 1.0, 1.0, scalars={"Loss": 2.0}))
    assert load(logdir).scalars("Loss")[1].tolist() == [2.0]


KILLED = """
import sys
from cockpit_core.foundation import records
from cockpit_core.events.writer import EventWriter, choose_names
writer = EventWriter(sys.argv[1])
writer.write_header(records.Header("id", "run", 1.0))
for step in range(1_000_000):
    writer.write_record(records.Record("step", step, 1.0, 1.0, scalars={"Loss": float(step)}))
    print(step, flush=True)
"""


def test_kill_9_loses_nothing_that_was_written(logdir: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(logdir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(200)]
        process.kill()
        told += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    assert process.returncode == -signal.SIGKILL
    data = load(logdir)
    steps = data.scalars("Loss")[0].tolist()
    assert steps[: len(told)] == told  # one more may have been written, and not yet told
    assert len(told) <= len(steps) <= len(told) + 1
    assert data.broken == 0
    assert data.status == "running"
