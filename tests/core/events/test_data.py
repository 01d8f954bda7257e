"""``load`` and what it returns."""

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
from tests import synthetic

ROOT = Path(__file__).parents[3]
LAYERS = ["a", "b"]


def make_header(layers: list[str] = LAYERS, run_id: str = "id") -> records.Header:
    infos = [records.LayerInfo(name, (1,), 1) for name in layers]
    quantities = [records.QuantityInfo("Loss"), records.QuantityInfo("CABS")]
    return records.Header(run_id, "run", 1.0, layers=infos, quantities=quantities)


def make_step(step: int, value: float = 0.0) -> records.Record:
    layers = {"GradNorm": np.array([value, step], dtype=float)}
    return records.Record("step", step, time.time(), float(step), scalars={"Loss": value}, layers=layers)


def make_histogram(step: int, layer: str = "", count: int = 1) -> records.Histogram:
    return records.Histogram("GradHist1d", step, np.full(3, count, np.uint32), np.linspace(0, 1, 4), layer=layer)


def write_steps(writer: EventWriter, steps: range, value: float = 0.0) -> None:
    for step in steps:
        layers = [make_histogram(step, "a", int(value) + 1), None]
        writer.write_heavy("GradHist1d", step, make_histogram(step, "", int(value) + 1), layers)
        record = make_step(step, value)
        if step:
            record.alphas = [records.AlphaFit(step - 1, value, *[1.0] * 12)]
        record.notices = [records.Notice(step, "note", f"{value}")]
        record.missing = {"CABS": f"{value}"}
        writer.write_record(record)


@pytest.fixture
def run(logdir: Path) -> RunData:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        write_steps(writer, range(5))
        log = records.Record("log", 4, time.time(), 5.0, scalars={"log/valid_accuracy": 0.5})
        writer.write_record(log)
        writer.write_record(records.Record("end", 5, time.time(), 6.0, status="finished"))
    return load(logdir)


def test_names_have_values_and_come_in_the_order_of_the_header(run: RunData) -> None:
    assert run.names == ["Loss", "log/valid_accuracy", "Alpha", "GradHist1d", "GradNorm"]
    assert run.layers == LAYERS


def test_scalars_of_network_and_layer(run: RunData) -> None:
    steps, values = run.scalars("Loss")
    assert (steps.dtype, values.dtype) == (np.int64, np.float64)
    assert steps.tolist() == list(range(5))
    assert run.scalars("GradNorm", layer="b")[1].tolist() == [0, 1, 2, 3, 4]


def test_logged_values_are_found_with_and_without_their_prefix(run: RunData) -> None:
    for name in ("valid_accuracy", "log/valid_accuracy"):
        assert [x.tolist() for x in run.scalars(name)] == [[4], [0.5]]


def test_alpha_has_the_step_that_it_describes(run: RunData) -> None:
    assert run.scalars("Alpha")[0].tolist() == [0, 1, 2, 3]
    assert len(run.alphas) == 4


def test_alpha_without_a_value_is_no_scalar(logdir: Path) -> None:
    record = make_step(1)
    record.alphas = [records.AlphaFit(0, None, *[1.0] * 12)]
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        writer.write_record(record)
    assert load(logdir).scalars("Alpha")[0].size == 0
    assert len(load(logdir).alphas) == 1
    assert "Alpha" not in load(logdir).names


def test_unknown_names_list_the_known_ones(run: RunData) -> None:
    with pytest.raises(KeyError, match=r"'Lost'.*Loss.*GradNorm"):
        run.scalars("Lost")
    with pytest.raises(KeyError, match=r"layer called 'c'.*a, b"):
        run.scalars("GradNorm", layer="c")
    with pytest.raises(KeyError, match=r"layer-wise values called 'Loss'.*GradNorm"):
        run.scalars("Loss", layer="a")
    with pytest.raises(KeyError, match=r"'GradHist3d'.*GradHist1d"):
        run.histogram("GradHist3d")
    with pytest.raises(KeyError, match=r"step 77.*4"):
        run.histogram("GradHist1d", step=77)
    with pytest.raises(KeyError, match="'b' has no GradHist1d at step 4"):
        run.histogram("GradHist1d", layer="b")


def test_quantity_that_has_no_value_yet_is_empty(run: RunData) -> None:
    assert [x.size for x in run.scalars("CABS")] == [0, 0]


def test_histograms_of_network_layer_and_step(run: RunData) -> None:
    assert run.histogram("GradHist1d").step == 4
    assert run.histogram("GradHist1d", step=2).step == 2
    assert run.histogram("GradHist1d", layer="a").layer == "a"
    assert run.histogram_steps("GradHist1d") == [0, 1, 2, 3, 4]


def test_lists_and_estimates(logdir: Path) -> None:
    record = make_step(3)
    record.estimates = {"HessMaxEV": (0.5, "lanczos residual")}
    record.missing = {"CABS": "no"}
    record.costs = {"step": 0.25}
    record.triggered = True
    record.epoch = 1.5
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        writer.write_record(record)
    run = load(logdir)
    assert run.missing == [(3, "CABS", "no")]
    steps, errors, methods = run.estimates["HessMaxEV"]
    assert (steps.tolist(), errors.tolist(), methods) == ([3], [0.5], ["lanczos residual"])
    assert [x.tolist() for x in run.scalars("cost/step")] == [[3], [0.25]]
    assert "cost/step" not in run.names
    assert (run.rows.triggered.tolist(), run.rows.epoch.tolist()) == ([1], [1.5])


def test_absent_layer_values_are_absent_and_nan_is_a_value(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        record = make_step(0)
        record.layers = {"X": np.array([np.nan, np.nan])}
        record.layers_missing = {"X": np.array([False, True])}
        writer.write_record(record)
    np.testing.assert_array_equal(load(logdir).scalars("X", layer="a")[1], [np.nan])
    assert load(logdir).scalars("X", layer="b")[1].size == 0


def test_record_that_does_not_fit_the_header_is_counted(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header(["a"]))
        writer.write_record(make_step(0))  # two values for one layer
        writer.write_record(records.Record("step", 1, 1.0, 1.0, scalars={"Loss": 1.0}))
    assert load(logdir).broken == 1
    assert load(logdir).scalars("Loss")[0].tolist() == [1]


def test_columns_grow_past_every_doubling(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        writer.write_header(make_header())
        for step in range(100):
            writer.write_record(make_step(step, float(step)))
    assert load(logdir).scalars("GradNorm", layer="a")[1].tolist() == list(range(100))


# ---- resuming ----


def resume(logdir: Path, start: int, stop: int, value: float, layers: list[str] = LAYERS) -> EventWriter:
    with EventWriter(logdir, resume=True) as writer:
        writer.write_header(make_header(layers, run_id="another"))
        writer.write_record(records.Record("start", start, time.time(), 9.0))
        write_steps(writer, range(start, stop), value)
    return writer


def test_resumed_run_continues_in_a_file_of_its_own(run: RunData, logdir: Path) -> None:
    writer = resume(logdir, 5, 7, 1.0)
    assert writer.past is not None
    assert (writer.past.last_step, writer.past.next_seq, writer.generation) == (5, 7, 1)
    assert len(list(logdir.iterdir())) == 2
    assert [path.name for path in sorted(logdir.iterdir())][-1] == writer.path.name  # the order TensorBoard reads in
    run.refresh()
    assert run.header.run_id == "id"
    assert run.header.revision == 1
    assert run.scalars("Loss")[0].tolist() == list(range(7))
    assert run.rows.seq.tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9]  # without the end, which was none
    assert run.status == "running"


def test_steps_after_a_checkpoint_are_replaced_for_every_reader(run: RunData, logdir: Path) -> None:
    resume(logdir, 3, 6, 1.0)
    for reader in (run.refresh(), load(logdir)):
        assert [x.tolist() for x in reader.scalars("Loss")] == [[0, 1, 2, 3, 4, 5], [0, 0, 0, 1, 1, 1]]
        assert reader.scalars("GradNorm", layer="a")[1].tolist() == [0, 0, 0, 1, 1, 1]
        assert reader.scalars("valid_accuracy")[0].size == 0
        assert [x.tolist() for x in reader.scalars("Alpha")] == [[0, 1, 2, 3, 4], [0, 0, 1, 1, 1]]
        assert [(x.step, x.message) for x in reader.notices][2:4] == [(2, "0.0"), (3, "1.0")]
        assert [x.reason for x in reader.missing] == ["0.0"] * 3 + ["1.0"] * 3
        assert reader.histogram_steps("GradHist1d") == [0, 1, 2, 3, 4, 5]
        assert [int(reader.histogram("GradHist1d", s).counts[0]) for s in range(6)] == [1, 1, 1, 2, 2, 2]
        assert reader.rows.seq.tolist() == [0, 1, 2, 7, 8, 9, 10]
        assert (reader.received, reader.expected, reader.broken) == (11, 11, 0)


def test_start_and_log_of_the_resumed_run_itself_are_kept(run: RunData, logdir: Path) -> None:
    with EventWriter(logdir, resume=True) as writer:
        writer.write_record(records.Record("start", 3, time.time(), 9.0))
        writer.write_record(records.Record("log", 3, time.time(), 9.0, scalars={"log/x": 1.0}))
        writer.write_record(make_step(3))
    assert load(logdir).scalars("x")[0].tolist() == [3]


def test_run_can_be_resumed_twice_and_from_a_torn_file(run: RunData, logdir: Path) -> None:
    first = resume(logdir, 3, 6, 1.0)
    os.truncate(first.path, first.path.stat().st_size - 5)
    resume(logdir, 2, 4, 2.0)
    reader = load(logdir)
    assert [x.tolist() for x in reader.scalars("Loss")] == [[0, 1, 2, 3], [0, 0, 2, 2]]
    assert np.all(np.diff(reader.rows.seq) > 0)
    assert reader.broken == 0


def test_resuming_an_empty_directory_starts_a_run(logdir: Path) -> None:
    with EventWriter(logdir, resume=True) as writer:
        assert (writer.generation, writer.next_seq, writer.past) == (0, 0, None)


def test_layers_may_change_when_a_run_is_resumed(run: RunData, logdir: Path) -> None:
    resume(logdir, 5, 7, 1.0, ["b", "c"])
    run.refresh()
    assert run.layers == ["b", "c"]
    assert run.scalars("GradNorm", layer="a")[0].tolist() == [0, 1, 2, 3, 4]
    assert run.scalars("GradNorm", layer="b")[1].tolist() == [0, 1, 2, 3, 4, 1, 1]
    assert run.scalars("GradNorm", layer="c")[1].tolist() == [5, 6]


# ---- following ----


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


# ---- states and errors ----


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
    modules = "data, batch, writer, frame"
    assert find_heavy_imports(f"from cockpit_core.events import {modules}") == "[]"


def test_the_import_test_can_fail() -> None:
    assert find_heavy_imports("import tensorboard") == "['tensorboard']"


def test_synthetic_run_has_every_quantity(logdir: Path) -> None:
    synthetic.write_run(logdir, 60, 6, sick_layer="conv2.weight")
    run = load(logdir)
    assert set(run.names) >= {name for name, kind, _ in synthetic._QUANTITIES if kind != "parameters"}
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
