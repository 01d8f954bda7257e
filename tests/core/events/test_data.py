"""``load`` and what it returns."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events.data import RunData, load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from tests.core.events.data_cases import LAYERS, make_header, make_step, write_run, write_steps


@pytest.fixture
def run(logdir: Path) -> RunData:
    return write_run(logdir)


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
