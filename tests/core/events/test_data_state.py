"""A run that grows, ends or is empty, as ``load`` shows it; tables of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events import data as reading
from cockpit_core.events.data import RunData, load
from cockpit_core.events.reader import read_events
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.quantities import ALL
from tests import synthetic
from tests.core.events.data_cases import make_header, make_step, write_run


@pytest.fixture
def run(logdir: Path) -> RunData:
    return write_run(logdir)


ROOT = Path(__file__).parents[3]


def test_refresh_reads_only_what_is_new(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        for step in range(2000):
            writer.write_record(make_step(step))
        run = load(logdir)
        file = run.files[0]
        before, size = file.bytes_read, writer.path.stat().st_size
        writer.write_record(make_step(2000))
        run.refresh()
        assert file.bytes_read - before == writer.path.stat().st_size - size
        run.refresh()
        assert file.bytes_read == writer.path.stat().st_size
    assert run.scalars("Loss")[0].size == 2001


FOLLOWED = """
import sys, time
from cockpit_core.foundation import records
from cockpit_core.events.writer import EventWriter
with EventWriter(sys.argv[1]) as writer:
    print("begun", flush=True)
    writer.write_header(records.Header("id", "run", 1.0))
    for step in range(600):
        writer.write_record(records.Record("step", step, time.time(), 1.0, scalars={"Loss": float(step)}))
        time.sleep(0.001)
    writer.write_record(records.Record("end", 600, time.time(), 1.0, status="finished"))
"""


def test_run_can_be_followed_while_another_process_writes(logdir: Path) -> None:
    command = [sys.executable, "-c", FOLLOWED, str(logdir)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        run = load(logdir)
        sizes, end = [], time.time() + 60
        while run.status != "finished" and time.time() < end:
            run.refresh()
            sizes.append(len(run.rows.seq))
    assert run.status == "finished"
    assert len(set(sizes)) > 5
    assert sizes == sorted(sizes)
    assert run.scalars("Loss")[1].tolist() == list(range(600))
    assert run.broken == 0


def test_replaced_run_is_read_anew(run: RunData, logdir: Path) -> None:
    for path in logdir.iterdir():
        path.unlink()
    with EventWriter(logdir) as writer:
        writer.write_header(records.Header("new", "run", 1.0))
        writer.write_record(records.Record("step", 0, 1.0, 1.0, scalars={"Loss": 9.0}))
    run.refresh()
    assert run.header.run_id == "new"
    assert run.scalars("Loss")[1].tolist() == [9.0]


def make_status(logdir: Path, *entries: records.Record, age: float = 0.0) -> str:
    with EventWriter(logdir) as writer:
        for record in entries:
            record.wall_time = time.time() - age
            writer.write_record(record)
    os.utime(writer.path, (time.time() - age,) * 2)
    run = load(logdir)
    run._last_event = min(run._last_event, time.time() - age)
    return run.status


def test_status_tells_how_a_run_is(tmp_path: Path) -> None:
    start, step = records.Record("start", 0, 1.0, 1.0), make_step(0)
    step.layers = {}
    assert make_status(tmp_path / "0", start) == "waiting"
    assert make_status(tmp_path / "1", start, step) == "running"
    assert make_status(tmp_path / "2", start, step, age=100.0) == "crashed"
    for status in ("finished", "failed", "stopped"):
        end = records.Record("end", 1, 1.0, 1.0, status=status)
        assert make_status(tmp_path / status, start, step, end, age=100.0) == status


def test_slow_run_is_given_more_time(logdir: Path) -> None:
    now = time.time()
    with EventWriter(logdir) as writer:
        for step in range(5):
            writer.write_record(records.Record("step", step, now - 100 - 30 * (5 - step), 1.0))
    os.utime(writer.path, (now - 100,) * 2)
    run = load(logdir)
    run._last_event = now - 100
    assert run.status == "running"
    run._last_event = now - 700
    os.utime(writer.path, (now - 700,) * 2)
    assert run._patience() == 600.0


def test_directory_without_a_run_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"events\.out\.tfevents\.\*\.cockpit"):
        load(tmp_path)
    EventWriter(tmp_path / "inside").close()
    with pytest.raises(FileNotFoundError, match=r"Runs are in .*inside"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(tmp_path / "nothing")


def test_single_file_can_be_loaded(run: RunData, logdir: Path) -> None:
    assert load(next(logdir.iterdir())).names == run.names


def test_empty_run_has_a_blank_header_and_no_names(logdir: Path) -> None:
    EventWriter(logdir).close()
    run = load(logdir)
    assert (run.header.name, run.names, run.layers, run.status) == ("run", [], [], "waiting")
    assert run.rows.seq.size == 0


def test_host_can_feed_what_it_read_elsewhere(run: RunData, logdir: Path) -> None:
    fed = RunData()
    for event in read_events(next(logdir.iterdir()))[0]:
        for value in event.values:
            blobs = value.strings()
            if value.tag == "cockpit/header":
                assert fed.feed_header(blobs[0])
            elif value.tag.startswith("cockpit/records/"):
                assert fed.feed_record(blobs[0])
                assert fed.feed_record(blobs[0])  # known: ignored
            else:
                fed.feed_heavy("GradHist1d", event.step, blobs.__getitem__)
    assert fed.names == run.names
    np.testing.assert_array_equal(fed.scalars("Loss"), run.scalars("Loss"))
    assert fed.histogram("GradHist1d", 2, "a").step == 2
    assert not fed.feed_record(b"\xff")
    assert (fed.broken, fed.received, fed.refresh().status) == (1, 7, "finished")


def test_rows_since_a_record(run: RunData) -> None:
    assert run.rows_since(5).seq.tolist() == [5, 6]


def test_pandas_gets_one_row_per_record(run: RunData) -> None:
    frame = run.to_pandas()
    assert len(frame) == 7
    assert frame["Loss"].count() == 5
    assert frame["GradNorm[b]"].tolist()[:5] == [0, 1, 2, 3, 4]
    assert frame["Alpha"].count() == 4
    assert frame["kind"].tolist() == ["step"] * 5 + ["log", "end"]


def test_missing_pandas_names_the_remedy(run: RunData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"torch-cockpit\[pandas\]"):
        run.to_pandas()


def test_changed_file_is_noticed_when_a_histogram_is_fetched(run: RunData, logdir: Path) -> None:
    path = next(logdir.iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ValueError, match="has changed"):
        run.histogram("GradHist1d")


HEAVY_MODULES = ("torch", "tensorboard", "tensorflow", "pandas")


def find_heavy_imports(statement: str) -> str:
    code = f"{statement}; import sys; print([x for x in {HEAVY_MODULES} if x in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.strip()


def test_reading_and_writing_import_nothing_heavy() -> None:
    modules = "data, batch, writer, pandas_table"
    assert find_heavy_imports(f"from cockpit_core.events import {modules}") == "[]"


def test_the_import_test_can_fail() -> None:
    assert find_heavy_imports("import tensorboard") == "['tensorboard']"


def test_synthetic_run_has_every_quantity(logdir: Path) -> None:
    synthetic.write_run(logdir, 60, 6, sick_layer="conv2.weight", instruments=True)
    run = load(logdir)
    assert set(run.names) >= {name for name, cls in ALL.items() if cls.kind != "parameters"}
    assert run.status == "finished"
    sick, well = (np.median(run.scalars("GradNorm", layer=x)[1]) for x in ("conv2.weight", "conv1.weight"))
    assert sick < 1e-3 * well
    assert reading.load(logdir).broken == 0


def test_layer_values_that_need_64_bits_keep_them(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        for step, value in enumerate([0.5, 1e300, 0.25]):
            record = make_step(step)
            record.layers = {"X": np.array([value, 1.0])}
            writer.write_record(record)
    assert load(logdir).scalars("X", layer="a")[1].tolist() == [0.5, 1e300, 0.25]


def test_files_with_odd_names_do_not_disturb(run: RunData, logdir: Path) -> None:
    (logdir / "tfevents.cockpit").write_bytes(b"")
    (logdir / "events.out.tfevents.\u00b2.h.1.\u00b2.cockpit").mkdir()
    assert load(logdir).names == run.names
    with EventWriter(logdir, resume=True) as writer:
        assert writer.next_seq == 7
