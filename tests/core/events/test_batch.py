"""Columns for a page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cockpit_core.events.batch import decimate, encode_batch, make_batch, sample
from cockpit_core.events.data import RunData, load
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.schema import batches
from tests import synthetic


@pytest.fixture
def run(logdir: Path) -> RunData:
    synthetic.write_run(logdir, 120, 4)
    return load(logdir)


def decode(run: RunData, since: int = 0, **options: object) -> records.Batch:
    return batches.decode_batch(encode_batch(run, since, run="demo", **options))  # type: ignore[arg-type]


def read_column(batch: records.Batch, name: str, layer: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one column, as a page puts them together."""
    (column,) = [x for x in batch.columns if (x.name, x.layer) == (name, layer)]
    rows = np.arange(batch.seq.size) if column.rows is None else column.rows
    return batch.step[rows], column.values


def test_whole_run_has_every_value(run: RunData) -> None:
    batch = decode(run)
    for name in ("Loss", "HessMaxEV", "log/valid_accuracy", "cost/step", "TICTrace", "WeightSparsity"):
        np.testing.assert_array_equal(read_column(batch, name), run.scalars(name))
    for layer in run.layers:
        np.testing.assert_array_equal(read_column(batch, "GradNorm", layer), run.scalars("GradNorm", layer=layer))
    np.testing.assert_array_equal(read_column(batch, "error/HessMaxEV")[1], run.estimates["HessMaxEV"].errors)
    assert batch.alphas == run.alphas
    assert batch.notices == run.notices
    assert batch.header == run.header
    assert batch.heavy == {name: run.histogram_steps(name) for name in ("GradHist1d", "GradHist2d")}
    assert sum(len(x) for x in batch.missing.values()) == len(run.missing)
    assert len(batch.top_samples) == 120
    assert (batch.replace, batch.run, batch.run_id, batch.drop_from_step) == (True, "demo", "synthetic-run", -1)
    assert (batch.state, batch.records, batch.expected, batch.broken) == ("finished", 125, 125, 0)


@pytest.mark.parametrize("since", [0, 1, 60, 115, 123, 124])
def test_columns_that_are_copied_as_they_lie_there_are_the_same(logdir: Path, since: int) -> None:
    """Of a live run: some have a value in every row, some in a few; of the network, or of a layer."""
    synthetic.write_run(logdir, 120, 4, finished=False)
    run = load(logdir)
    quick, slow = decode(run, since), make_batch(run, since, run="demo")
    columns = [
        {(x.name, x.layer): (x.values.tolist(), None if x.rows is None else x.rows.tolist()) for x in own.columns}
        for own in (quick, slow)
    ]
    assert columns[0].keys() == columns[1].keys()
    assert repr(columns[0]) == repr({key: columns[1][key] for key in columns[0]})  # NaN equals NaN
    assert quick.seq.tolist() == slow.seq.tolist()
    whole = {rows is None for _, rows in columns[0].values()}
    assert whole == ({True, False} if since == 115 else {True} if since == 123 else set() if since == 124 else {False})


def test_pieces_add_up_to_the_whole(run: RunData) -> None:
    first, second = decode(run), decode(run, 60)
    assert not second.replace
    assert second.header is None
    assert (second.from_seq, second.to_seq) == (60, 125)
    assert second.seq.tolist() == list(range(60, 125))
    late = first.seq >= 60
    steps, values = read_column(second, "Loss")
    whole = read_column(first, "Loss")
    np.testing.assert_array_equal(values, whole[1][np.isin(whole[0], steps)])
    assert second.epoch is not None
    assert first.epoch is not None
    np.testing.assert_array_equal(second.epoch, first.epoch[late])


def test_nothing_new_is_small(run: RunData) -> None:
    batch = decode(run, run.expected)
    assert (batch.seq.size, batch.columns, batch.alphas, batch.notices) == (0, [], [], [])
    assert len(encode_batch(run, run.expected, run="demo")) < 500


def test_cursor_beyond_the_end_asks_for_everything(run: RunData) -> None:
    assert decode(run, 10_000).replace


def test_names_and_layers_can_be_chosen(run: RunData) -> None:
    batch = decode(run, names=["GradNorm", "valid_accuracy", "HessMaxEV"], layers=["conv1.weight"])
    names = [(column.name, column.layer) for column in batch.columns]
    expected = [("GradNorm", ""), ("HessMaxEV", ""), ("error/HessMaxEV", ""), ("log/valid_accuracy", "")]
    assert sorted(names) == sorted([*expected, ("GradNorm", "conv1.weight")])
    assert batch.alphas == []
    assert all(column.layer == "" for column in decode(run, layers=[]).columns)


def test_histograms_come_along_when_asked_for(run: RunData) -> None:
    assert decode(run).histograms == []
    last = decode(run, histograms=True).histograms
    assert len(last) == 2 * 5
    assert {x.step for x in last} == {110}
    np.testing.assert_array_equal(last[0].counts, run.histogram("GradHist1d").counts)
    some = decode(run, histograms=3, layers=[]).histograms
    assert [x.step for x in some if x.quantity == "GradHist1d"] == [0, 60, 110]


def test_new_header_is_sent_again(logdir: Path) -> None:
    with EventWriter(logdir) as writer:
        header = records.Header("id", "run", 1.0)
        writer.write_header(header)
        writer.write_record(records.Record("step", 0, 1.0, 1.0))
        run = load(logdir)
        assert decode(run, 1).header is None
        header.batch_size = 7
        writer.write_header(header)
        again = decode(run.refresh(), 1).header
    assert again is not None
    assert (again.batch_size, again.revision) == (7, 1)


def test_resumed_run_tells_from_where_rows_are_replaced(run: RunData, logdir: Path) -> None:
    known = run.expected
    synthetic.write_run(logdir, 110, 4, start=90, resume=True)
    run.refresh()
    batch = decode(run, known)
    assert (batch.drop_from_step, batch.replace) == (90, False)
    assert batch.seq.min() == known
    assert decode(run).drop_from_step == -1
    assert decode(run, run.expected).drop_from_step == -1


def test_run_without_epochs_and_triggers_leaves_them_out(logdir: Path) -> None:
    synthetic.write_run(logdir, 12, 2, epochs=False, warnings=False)
    batch = decode(load(logdir))
    assert batch.epoch is None
    assert batch.triggered is None


def test_decimation_keeps_extremes_ends_and_oddities() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=10_000)
    values[[777, 5555]] = 50.0, -50.0
    values[3000], values[4000] = np.nan, np.inf
    keep = decimate(values, 100)
    assert {0, 777, 3000, 4000, 5555, 9999} <= set(keep.tolist())
    assert keep.size <= 104
    assert np.all(np.diff(keep) > 0)
    np.testing.assert_array_equal(keep, decimate(values.copy(), 100))


def test_decimation_keeps_the_extremes_of_every_stretch() -> None:
    values = np.random.default_rng(1).normal(size=1003)
    keep = decimate(values, 40)
    for part in np.array_split(np.arange(1000), 10):
        assert {values[part].argmin() + part[0], values[part].argmax() + part[0]} & set(keep.tolist())


@pytest.mark.parametrize("values", [np.full(500, np.nan), np.full(500, np.inf), np.zeros(500)])
def test_decimation_of_monotonous_columns(values: np.ndarray) -> None:
    keep = decimate(values, 20)
    assert 2 <= keep.size <= 40
    assert keep[-1] == 499


@pytest.mark.parametrize("count", [0, 1, 2, 3, 19, 20, 21])
def test_decimation_of_short_columns(count: int) -> None:
    assert decimate(np.arange(count, dtype=float), 20).size == count or count > 20


def test_decimated_batch_refers_to_the_right_rows(run: RunData) -> None:
    batch = make_batch(run, run="demo", max_points=20, names=["Loss", "Alpha", "GradNorm"], layers=[])
    steps, values = run.scalars("Loss")
    truth = dict(zip(steps.tolist(), values.tolist(), strict=True))
    shown = dict(zip(*(x.tolist() for x in read_column(batch, "Loss")), strict=True))
    assert shown.items() <= truth.items()
    assert {max(truth.values()), min(truth.values())} <= set(shown.values())
    assert len(shown) <= 24
    assert batch.seq.size < 60
    assert len(batch.alphas) <= 24
    assert all(column.decimated for column in batch.columns)


def test_the_two_parts_of_a_ratio_are_thinned_to_the_same_steps(run: RunData) -> None:
    """The page divides them where it has both: thinned each by itself they met at one step in five."""
    batch = make_batch(run, run="demo", max_points=20)
    layers = ["", *run.layers]
    assert len(layers) > 2
    for layer in layers:
        above, below = (read_column(batch, name, layer) for name in ("UpdateSize", "ParamNorm"))
        assert above[0].tolist() == below[0].tolist()
        truth = dict(zip(*(x.tolist() for x in run.scalars("UpdateSize", layer=layer or None)), strict=True))
        assert {max(truth.values()), min(truth.values())} <= set(above[1].tolist())
        assert len(above[0]) <= 48


def test_decimated_batch_keeps_triggered_rows_and_the_last(run: RunData) -> None:
    batch = make_batch(run, run="demo", max_points=4, names=["Loss"], layers=[])
    assert batch.triggered is not None
    assert batch.step[batch.triggered == 1].tolist() == [9]
    assert batch.seq[-1] == run.expected - 1
    assert batch.seq.size < 10


def test_thinned_alphas_keep_the_shape_of_their_distribution() -> None:
    """Extremes of every stretch, as for curves, would turn one hump at 0.3 into two at its flanks."""
    values = np.random.default_rng(0).normal(0.3, 0.25, 5000)
    kept = values[sample(values, 400)]
    assert len(kept) <= 400
    np.testing.assert_allclose(np.quantile(kept, [0.25, 0.5, 0.75]), np.quantile(values, [0.25, 0.5, 0.75]), atol=0.05)
    assert kept.max() == values.max()
    assert kept.min() == values.min()


def test_a_stretch_is_that_part_of_the_whole(run: RunData) -> None:
    whole, part = make_batch(run, run="demo"), make_batch(run, 20, run="demo", until=60)
    inside = (whole.seq >= 20) & (whole.seq < 60)
    assert (part.from_seq, part.to_seq, part.replace, part.header) == (20, 60, False, None)
    assert part.seq.tolist() == whole.seq[inside].tolist()
    for column in part.columns:
        twin = next(x for x in whole.columns if (x.name, x.layer) == (column.name, column.layer))
        rows = np.arange(whole.seq.size) if twin.rows is None else twin.rows
        chosen = (whole.seq[rows] >= 20) & (whole.seq[rows] < 60)
        np.testing.assert_array_equal(column.values, twin.values[chosen])
    assert 0 < len(part.alphas) < len(whole.alphas)
    assert all(20 <= seq < 60 for seq in part.seq[sorted(part.missing)].tolist())


def test_a_stretch_may_be_thinned_empty_or_beyond_the_end(run: RunData) -> None:
    thinned = make_batch(run, 20, run="demo", until=80, max_points=8, names=["Loss"], layers=[])
    assert thinned.columns[0].decimated
    assert len(thinned.columns[0].values) <= 10
    assert make_batch(run, 50, run="demo", until=50).seq.size == 0
    assert make_batch(run, 50, run="demo", until=30).seq.size == 0
    assert make_batch(run, 50, run="demo", until=10**9).to_seq == run.expected
