"""What is asked of the data provider, and how often: it can only give whole tags, so every question counts."""

from __future__ import annotations

import random
import time
import tracemalloc
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tensorboard import errors
from tensorboard.data import provider as tb

from cockpit_core.foundation import records
from cockpit_core.schema import cockpit_pb2 as pb
from cockpit_core.schema import wire
from cockpit_core.schema.tags import HEADER, records_tag
from tb_plugin import cache as cache_module
from tb_plugin import follower as follower_module
from tb_plugin.cache import Cache
from tb_plugin.follower import Follower, Wanted
from tb_plugin.provider import Asker
from tests.tb import logs

PER_TAG = 4096


class TooLargeError(Exception):
    """What gRPC raises where an answer is larger than 256 MiB."""

    def code(self) -> Any:
        return type("Code", (), {"name": "RESOURCE_EXHAUSTED"})


@dataclass
class FakeProvider:
    """A data provider in memory that notes what it was asked."""

    tensors: dict[str, dict[str, list[tuple[int, float, bytes]]]] = field(default_factory=dict)
    blobs: dict[str, dict[str, list[tuple[int, list[bytes]]]]] = field(default_factory=dict)
    reads: list[tuple[str, str, int]] = field(default_factory=list)
    listed: list[Any] = field(default_factory=list)
    largest: int = 10**9

    def add(self, run: str, tag: str, step: int, payload: bytes, wall_time: float | None = None) -> None:
        series = self.tensors.setdefault(run, {}).setdefault(tag, [])
        series.append((step, float(step + 1) if wall_time is None else wall_time, payload))

    def add_header(self, run: str, revision: int = 0, wall_time: float = 0.0, **header: Any) -> None:
        self.add(run, HEADER, revision, wire.encode_header(logs.make_header(revision=revision, **header)), wall_time)

    def add_records(self, run: str, first: int, last: int, layers: int = 2) -> None:
        for seq in range(first, last):
            record = logs.make_record(seq, layers)
            record.seq, record.wall_time = seq, float(seq + 1)
            self.add(run, records_tag(seq // PER_TAG), seq, wire.encode_record(record))

    def list_runs(self, _: Any, *, experiment_id: str) -> list[tb.Run]:
        return [tb.Run(run_id=name, run_name=name, start_time=1.0) for name in self.tensors]

    def list_tensors(self, _: Any, *, experiment_id: str, plugin_name: str, run_tag_filter: Any) -> Any:
        self.listed.append(run_tag_filter.tags)
        return self._list(self.tensors, run_tag_filter)

    def list_blob_sequences(self, _: Any, *, experiment_id: str, plugin_name: str, run_tag_filter: Any) -> Any:
        return self._list(self.blobs, run_tag_filter)

    def _list(self, data: Any, wanted: Any) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for run, tags in data.items():
            for tag, series in tags.items():
                if (wanted.runs is None or run in wanted.runs) and (wanted.tags is None or tag in wanted.tags):
                    wall = max(x[1] for x in series) if data is self.tensors else float(len(series))
                    meta = tb.TensorTimeSeries(
                        max_step=series[-1][0], max_wall_time=wall, plugin_content=b"", description="", display_name=""
                    )
                    found.setdefault(run, {})[tag] = meta
        return found

    def read_tensors(
        self, _: Any, *, experiment_id: str, plugin_name: str, downsample: int, run_tag_filter: Any
    ) -> Any:
        found: dict[str, dict[str, list[tb.TensorDatum]]] = {}
        for run in run_tag_filter.runs:
            for tag in run_tag_filter.tags:
                series = self.tensors.get(run, {}).get(tag, [])
                self.reads.append((run, tag, downsample))
                if min(len(series), downsample) > self.largest:
                    raise TooLargeError
                if len(series) > downsample:
                    kept = sorted(random.Random(0).sample(range(len(series) - 1), downsample - 1))
                    series = [series[i] for i in kept] + series[-1:]
                data = [tb.TensorDatum(step, wall, np.array(payload, dtype=object)) for step, wall, payload in series]
                found.setdefault(run, {})[tag] = data
        return found


@pytest.fixture
def provider() -> FakeProvider:
    fake = FakeProvider()
    fake.add_header("a", name="a")
    return fake


@pytest.fixture
def asker(provider: FakeProvider) -> Asker:
    return Asker(provider, None, "")


def read(follower: Follower, asker: Asker, since: int = 0) -> pb.Batch:
    content, to_seq = follower.encode_batch(asker, Wanted(since))
    batch = pb.Batch.FromString(content)
    assert batch.to_seq == to_seq
    return batch


def test_only_the_newest_tag_is_read_again(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 2 * PER_TAG + 10)
    follower = Follower("a")
    assert read(follower, asker).status.records == 2 * PER_TAG + 10
    provider.reads.clear()
    provider.listed.clear()
    provider.add_records("a", 2 * PER_TAG + 10, 2 * PER_TAG + 15)
    assert wire.unpack_array(read(follower, asker, since=2 * PER_TAG + 10).seq).size == 5
    assert [tag for _, tag, _ in provider.reads] == [records_tag(2)]
    assert provider.listed == [{HEADER, records_tag(2), records_tag(3)}]


def test_a_poll_without_news_reads_nothing(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 20)
    follower = Follower("a")
    read(follower, asker)
    provider.reads.clear()
    read(follower, asker, since=20)
    assert provider.reads == []


def test_the_next_tag_is_found_when_one_is_full(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, PER_TAG - 1)
    follower = Follower("a")
    read(follower, asker)
    provider.add_records("a", PER_TAG - 1, 3 * PER_TAG + 1)  # three tags further while nobody looked
    assert read(follower, asker).status.records == 3 * PER_TAG + 1


def test_a_long_run_arrives_in_parts(provider: FakeProvider, asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.add_records("a", 0, 3 * PER_TAG)
    monkeypatch.setattr(follower_module, "PATIENCE", 0.0)
    follower = Follower("a")
    parts = [read(follower, asker), read(follower, asker, PER_TAG), read(follower, asker, 2 * PER_TAG)]
    assert [batch.to_seq for batch in parts] == [PER_TAG, 2 * PER_TAG, 3 * PER_TAG]
    assert [batch.status.records for batch in parts] == [PER_TAG, 2 * PER_TAG, 3 * PER_TAG]
    assert {batch.status.expected for batch in parts} == {3 * PER_TAG}
    assert np.concatenate([wire.unpack_array(batch.seq) for batch in parts]).tolist() == list(range(3 * PER_TAG))


def test_a_tag_that_is_too_large_is_read_in_part(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 2000)
    provider.largest = 1500
    status = read(Follower("a"), asker).status
    assert (status.records, status.expected) == (1024, 2000)


def test_another_error_of_the_provider_is_not_hidden(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 20)

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("gone")

    provider.read_tensors = fail  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        read(Follower("a"), asker)


def test_records_fit_the_header_of_their_time(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 30)
    provider.add_header("a", revision=1, wall_time=30.5, name="a", layers=("w", "b", "c"))
    provider.add_records("a", 30, 60, layers=3)
    batch = read(Follower("a"), asker)
    assert batch.status.broken == 0
    assert batch.status.records == 60
    columns = {x.layer: wire.unpack_array(x.values).size for x in batch.columns if x.name == "GradNorm"}
    assert columns == {"": 60, "w": 60, "b": 60, "c": 30}


def test_a_header_that_comes_later_reaches_a_page_that_knows_the_records(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 30)
    follower = Follower("a")
    read(follower, asker)
    provider.add_header("a", revision=1, wall_time=30.5, name="a", layers=("w", "b"))
    assert read(follower, asker, since=30).header.revision == 1


def test_another_run_under_the_same_name_is_not_mixed_with_the_old_one(provider: FakeProvider, asker: Asker) -> None:
    """The Python backend keeps what it read of files that were deleted since: both runs are in the same tags."""
    provider.add_records("a", 0, 50)
    follower = Follower("a")
    assert read(follower, asker).run_id == "id-a"
    provider.add_header("a", wall_time=1000.0, name="other")
    for seq in range(20):
        record = logs.make_record(seq)
        record.seq = seq
        provider.add("a", records_tag(0), seq, wire.encode_record(record), 1001.0 + seq)
    batch = read(follower, asker, since=50)
    assert batch.run_id == "id-other"
    assert batch.replace
    assert batch.status.records == 20


def test_a_run_that_lost_records_is_read_again(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 50)
    follower = Follower("a")
    read(follower, asker)
    del provider.tensors["a"][records_tag(0)][10:]
    assert read(follower, asker).status.records == 10


def test_a_record_that_is_no_text_is_broken(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 3)
    provider.tensors["a"][records_tag(0)].append((3, 9.0, 3.5))  # type: ignore[arg-type]
    assert read(Follower("a"), asker).status.broken == 1


def test_requests_for_unknown_runs_leave_nothing_behind(asker: Asker) -> None:
    cache = Cache()
    for number in range(50):
        with pytest.raises(errors.NotFoundError):
            cache.encode_batch(asker, f"nobody {number}", Wanted())
    assert cache._followers == {}


def test_a_run_that_vanished_is_forgotten(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 3)
    cache = Cache()
    cache.encode_batch(asker, "a", Wanted())
    assert [entry["run"] for entry in cache.list_runs(asker)] == ["a"]
    del provider.tensors["a"]
    assert cache.list_runs(asker) == []
    assert cache._followers == {}
    with pytest.raises(errors.NotFoundError):
        cache.encode_batch(asker, "a", Wanted())


def test_states_of_many_runs_are_found_out_over_several_listings(
    provider: FakeProvider, asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = records.Record("end", 3, 1.0, 1.0, seq=3, status="failed")
    for number in range(30):
        provider.add_header(f"run{number}", name=f"run{number}")
        provider.add_records(f"run{number}", 0, 3)
        provider.add(f"run{number}", records_tag(0), 3, wire.encode_record(end))
    cache = Cache()
    monkeypatch.setattr(cache_module, "PATIENCE", -1.0)
    assert {entry["state"] for entry in cache.list_runs(asker)} == {"", "waiting"}  # "a" has no record at all
    monkeypatch.setattr(cache_module, "PATIENCE", 10.0)
    assert {entry["state"] for entry in cache.list_runs(asker) if entry["run"] != "a"} == {"failed"}
    provider.reads.clear()
    cache.list_runs(asker)
    assert provider.reads == []


def test_a_run_without_a_header_stays_in_the_list(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("headless", 0, 3)
    cache = Cache()
    first, second = cache.list_runs(asker), cache.list_runs(asker)
    assert [entry["run"] for entry in first] == [entry["run"] for entry in second] == ["a", "headless"]


def test_a_new_run_is_listed_as_soon_as_its_header_is_there(provider: FakeProvider, asker: Asker) -> None:
    provider.add_records("a", 0, 2 * PER_TAG)
    cache = Cache()
    cache.list_runs(asker)
    provider.add_header("b", name="b")
    assert cache.list_runs(asker)[-1] == {"run": "b", "run_id": "id-b", "seq": 0, "state": "waiting"}
    provider.add_records("b", 0, 3)
    assert cache.list_runs(asker)[-1]["seq"] == 3


def test_a_run_before_its_first_record_waits_and_has_not_crashed(provider: FakeProvider, asker: Asker) -> None:
    """It may load its data for minutes; only its header says that it lives."""
    now = time.time()
    provider.add_header("b", name="b", wall_time=now)
    provider.add_header("gone", name="gone", wall_time=now - 3600)
    for run, state in (("b", "waiting"), ("gone", "crashed")):
        follower = Follower(run)
        read(follower, asker)
        assert follower.data.status == state


# ---- numbers that TensorBoard can hold and a run cannot ----


@pytest.mark.parametrize("step", [2**32, 2**62, -1, -(2**62)])
def test_steps_beyond_32_bits_are_no_error(provider: FakeProvider, asker: Asker, step: int) -> None:
    """TensorBoard's steps have 64 bits and a sign: a page that asked for this run got an error 500."""
    provider.add_records("a", 0, 3)
    provider.add("a", records_tag(0), step, b"rubbish", 9.0)
    batch = read(Follower("a"), asker)
    assert (batch.status.records, batch.status.broken) == (3, 1)
    assert batch.status.expected in (3, 2**32 - 1)
    (entry,) = Cache().list_runs(asker)
    assert 0 <= entry["seq"] <= 2**32 - 1


@pytest.mark.parametrize("step", [2**32, 2**62, -1])
def test_histograms_of_such_steps_are_skipped_and_counted(step: int) -> None:
    data = follower_module.FedRun()
    assert data.feed_heavy("H", 1, lambda index: b"")
    assert not data.feed_heavy("H", step, lambda index: b"")
    assert (data.histogram_steps("H"), data.broken) == ([1], 1)


def test_state_of_a_run_that_ended_is_a_word(provider: FakeProvider, asker: Asker) -> None:
    status = "\x1b[31mfin\nished" + "x" * 1000
    record = records.Record("end", 1, 5.0, 1.0, seq=0, status=status)
    provider.add("a", records_tag(0), 0, wire.encode_record(record))
    (entry,) = Cache().list_runs(asker)
    assert entry["state"].isprintable()
    assert len(entry["state"]) <= 40


def test_histogram_that_would_inflate_is_refused_before_it_does(provider: FakeProvider, asker: Asker) -> None:
    array = pb.Array(dtype=pb.DTYPE_UINT8, shape=[2**27], codec=pb.CODEC_ZLIB, data=zlib.compress(bytes(2**27), 9))
    bomb = pb.Histogram(counts=array, edges=pb.Array(dtype=pb.DTYPE_FLOAT64, shape=[0])).SerializeToString()
    provider.add_records("a", 0, 3)
    follower = Follower("a")
    read(follower, asker)
    follower.data.feed_heavy("H", 1, lambda index: bomb)
    tracemalloc.start()
    try:
        with pytest.raises(errors.NotFoundError, match="too large"):
            follower.read_histogram(asker, "H", 1, "")
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
