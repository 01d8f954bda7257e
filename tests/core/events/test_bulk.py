"""Many records at once must give exactly what one at a time gives."""

from __future__ import annotations

import dataclasses
import gc

import numpy as np
import pytest

from cockpit_core.events import bulk
from cockpit_core.events.data import RunData
from cockpit_core.foundation import records
from cockpit_core.schema import wire
from tests.core.events.test_wire import assert_equal

LAYERS = ["a", "b", "c"]


def make_record(random: np.random.Generator, seq: int, step: int, generation: int) -> records.Record:
    """Alike for a stretch, as in a run, with everything rare in some stretches, and rarely in between."""
    rare = np.random.default_rng(seq // 50).random(8) < 0.3
    if random.random() < 0.02:
        rare = ~rare
    scalars = {"Loss": float(random.normal()), "GradNorm": float("nan") if rare[0] else 1.0}
    if rare[1]:
        scalars["HessMaxEV"] = float("inf")
    fits = [records.AlphaFit(max(0, step - 1), None if rare[2] else 0.5, *random.normal(size=12).tolist())]
    layers = {"GradNorm": random.normal(size=3)}
    absent = {"GradNorm": random.random(3) < 0.5} if rare[3] else {}
    kind = "log" if rare[4] and seq % 3 else "step"
    return records.Record(
        kind,
        step,
        1e9 + seq,
        float(seq),
        seq=seq,
        generation=generation,
        epoch=None if rare[5] else step / 7,
        batch_size=300 if rare[0] else int(random.integers(1, 100)),
        scalars=scalars,
        layers={} if kind == "log" else layers,
        layers_missing={} if kind == "log" else absent,
        alphas=fits if step and kind == "step" else [],
        notices=[records.Notice(step, "note", "n")] if rare[6] else [],
        missing={"CABS": "no"} if rare[7] else {},
        estimates={"HessMaxEV": (0.1 * seq, "xtrace" if rare[0] else "lanczos")},
        costs={"step": float(random.random()) if not rare[1] else 0.0, "shared": 0.0},
        top_samples=random.integers(0, 300 if rare[6] else 100, 5).tolist(),
        triggered=bool(rare[2]),
    )


def make_run(seed: int, count: int = 600) -> list[bytes]:
    """Three generations that each go back a little, an end in between, and some damage."""
    random = np.random.default_rng(seed)
    payloads, step, generation = [], 0, 0
    for seq in range(count):
        if seq in (count // 3, count // 2):
            end = records.Record("end", step, 1.0, 1.0, seq=seq, generation=generation, status="failed", error="e")
            payloads.append(wire.encode_record(end))
            generation, step = generation + 1, max(0, step - 40)
            continue
        record = make_record(random, seq, step, generation)
        step += record.kind == "step"
        payload = wire.encode_record(record)
        payloads.append(payload[:-3] if random.random() < 0.01 else payload)
    return payloads


def make_empty() -> RunData:
    run = RunData()
    header = records.Header("id", "run", 1.0, layers=[records.LayerInfo(name, (1,), 1) for name in LAYERS])
    run.feed_header(wire.encode_header(header))
    return run


def describe(run: RunData) -> dict[str, object]:
    """All that a run can be asked for."""
    names = [*run.table.columns, *run.table.layer_columns]
    scalars = {name: [x.tolist() for x in run.scalars(name)] for name in run.table.columns}
    layers = {
        f"{n}/{x}": [y.tolist() for y in run.scalars(n, layer=x)] for n in run.table.layer_columns for x in LAYERS
    }
    fits = [dataclasses.astuple(x) for x in run.alphas]
    lists = [fits, run.notices, run.missing, *([seq for seq, _ in x.between(0, 10**9)] for x in run.table.lists())]
    lists.append(list(run.table.top_samples))
    counts = [run.broken, run.received, run.expected, run.status, run.error, run.table.steps_taken, run.table.drops]
    rows = [x.tolist() for x in run.rows]
    return {"names": names, "scalars": scalars, "layers": layers, "lists": lists, "counts": counts, "rows": rows}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("piece", [1, 5, 37, 1000])
def test_bulk_gives_what_one_by_one_gives(seed: int, piece: int) -> None:
    payloads = make_run(seed)
    single, bulk = make_empty(), make_empty()
    for payload in payloads:
        single.feed_record(payload)
    for start in range(0, len(payloads), piece):
        bulk.feed_records(payloads[max(0, start - 3) : start + piece])  # with some that are known
    repeated = describe(bulk)
    expected = describe(single)
    expected["counts"][0] = repeated["counts"][0]  # type: ignore[index]  # damage is met again where pieces overlap
    assert_equal(repeated, expected)


def test_most_records_of_these_runs_go_in_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would prove nothing."""
    single: list[bytes] = []
    run = make_empty()
    real = run.feed_record
    monkeypatch.setattr(run, "feed_record", lambda payload: single.append(payload) or real(payload))
    payloads = make_run(0)
    run.feed_records(payloads)
    assert 5 < len(single) < len(payloads) / 2


def test_damage_is_counted_once_in_bulk() -> None:
    payloads = make_run(3)
    single, bulk = make_empty(), make_empty()
    for payload in payloads:
        single.feed_record(payload)
    bulk.feed_records(payloads)
    assert bulk.broken == single.broken > 0


def test_running_run_read_in_bulk_is_running() -> None:
    random = np.random.default_rng(0)
    bulk = make_empty()
    made = [make_record(random, seq, seq, 0) for seq in range(40)]
    bulk.feed_records([wire.encode_record(dataclasses.replace(record, kind="step")) for record in made])
    assert bulk.table.steps_taken == 40


def test_few_records_of_a_live_run_go_in_bulk_once_their_pattern_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of a slow loop brings ten: one by one, fifty columns each, they took half of its time."""
    random = np.random.default_rng(0)
    made = [dataclasses.replace(make_record(random, seq, seq, 0), kind="step", notices=[]) for seq in range(150)]
    payloads = [wire.encode_record(dataclasses.replace(made[0], seq=seq, step=seq, alphas=[])) for seq in range(1, 150)]
    run, single = make_empty(), []
    real = run.feed_record
    monkeypatch.setattr(run, "feed_record", lambda payload: single.append(payload) or real(payload))
    run.feed_record(payloads[0])
    run.feed_records(payloads[1:40])
    single.clear()
    for start in range(40, 120, 4):
        run.feed_records(payloads[start : start + 4])
    assert not single
    run.feed_records(payloads[120:122])
    assert len(single) == 2  # and two are not worth it
    assert run.table.steps_taken == 122


def test_live_run_is_read_with_the_pattern_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking a record apart costs as much as reading fifty: not again for every message of a live run."""
    made: list[bytes] = []
    real = bulk.Pattern
    monkeypatch.setattr(bulk, "Pattern", lambda payload: made.append(payload) or real(payload))
    steps = (records.Record("step", n, 1.0, 1.0, seq=n, scalars={"Loss": float(n)}) for n in range(1, 121))
    payloads = [wire.encode_record(record) for record in steps]
    run = make_empty()
    for start in range(0, 120, 20):
        run.feed_records(payloads[start : start + 20])
    assert run.scalars("Loss")[1].tolist() == list(map(float, range(1, 121)))
    assert len(made) == 1


@pytest.mark.parametrize("piece", [1, 100])
def test_records_leave_nothing_for_the_garbage_collector_to_look_at(piece: int) -> None:
    """It goes over every tracked object again and again, in the middle of training: a fifth of a second each time that
    a notebook has a quarter more of them."""
    random = np.random.default_rng(0)
    payloads = [wire.encode_record(make_record(random, i, i, 0)) for i in range(1100)]
    run = make_empty()
    run.feed_records(payloads[:100])
    gc.collect()
    before = len(gc.get_objects())
    for start in range(100, 1100, piece):
        run.feed_records(payloads[start : start + piece])
    gc.collect()
    assert len(gc.get_objects()) - before < 300  # 4,000 as lists of objects
    assert len(run.alphas) > 500 and len(list(run.table.top_samples)) > 900 and run.missing
