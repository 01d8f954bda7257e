"""What Cockpit writes by hand is what TensorBoard reads: its own messages, and both of its backends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing import data_provider as providers
from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.compat.proto import event_pb2, summary_pb2, types_pb2
from tensorboard.context import RequestContext
from tensorboard.data.server_ingester import NoDataServerError, SubprocessServerDataIngester, get_server_binary
from tensorboard.util import grpc_util

from cockpit_core.events.framing import FOOT, look
from cockpit_core.events.reader import read_events
from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.schema import wire

CONTEXT = RequestContext()
PLUGIN = {"experiment_id": "", "plugin_name": "cockpit"}


def write(logdir: Path, steps: int) -> Path:
    with EventWriter(logdir) as writer:
        writer.write_header(records.Header("id", "run", 1.0, layers=[records.LayerInfo("a", (1,), 1)]))
        for step in range(steps):
            histogram = records.Histogram("GradHist1d", step, np.ones(3, np.uint32), np.linspace(0, 1, 4))
            writer.write_heavy("GradHist1d", step, histogram, [histogram])
            writer.write_record(records.Record("step", step, 1.0 + step, 1.0, scalars={"Loss": float(step)}))
            writer.write_scalars({"Loss": float(step), "Odd": float("nan"), "Huge": 1e300}, step)
    return writer.path


def parse_events(path: Path) -> Iterator[event_pb2.Event]:
    data, position = path.read_bytes(), 0
    while position < len(data):
        found = look(data, position)
        yield event_pb2.Event.FromString(data[found.start : found.end - FOOT])
        position = found.end


def test_tensorboards_messages_hold_what_was_written(logdir: Path) -> None:
    version, header, heavy, record, plain, *_ = parse_events(write(logdir, 2))
    assert version.file_version == "brain.Event:2"
    (value,) = header.summary.value
    assert value.tag == "cockpit/header"
    assert value.metadata.plugin_data.plugin_name == "cockpit"
    assert value.metadata.data_class == summary_pb2.DATA_CLASS_TENSOR
    assert value.tensor.dtype == types_pb2.DT_STRING
    assert len(value.tensor.tensor_shape.dim) == 0
    assert wire.decode_header(value.tensor.string_val[0]).run_id == "id"
    (value,) = heavy.summary.value
    assert value.metadata.data_class == summary_pb2.DATA_CLASS_BLOB_SEQUENCE
    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [2]
    assert wire.decode_histogram(value.tensor.string_val[1]).counts.sum() == 3
    assert (record.step, record.wall_time) == (0, 1.0)
    assert wire.decode_record(record.summary.value[0].tensor.string_val[0]).scalars == {"Loss": 0.0}
    assert [value.tag for value in plain.summary.value] == ["cockpit/Loss", "cockpit/Odd", "cockpit/Huge"]
    np.testing.assert_equal([value.simple_value for value in plain.summary.value], [0.0, np.nan, np.inf])


def test_metadata_stands_on_the_first_value_of_each_tag_only(logdir: Path) -> None:
    seen: set[str] = set()
    for event in parse_events(write(logdir, 3)):
        for value in event.summary.value:
            if value.HasField("tensor"):
                assert value.HasField("metadata") == (value.tag not in seen)
                seen.add(value.tag)
    assert len(seen) == 3


def test_own_reader_agrees_with_tensorboards_messages(logdir: Path) -> None:
    path = write(logdir, 3)
    for mine, theirs in zip(read_events(path)[0], parse_events(path), strict=True):
        assert (mine.step, mine.wall_time, mine.version) == (theirs.step, theirs.wall_time, theirs.file_version)
        for value, other in zip(mine.values, theirs.summary.value, strict=True):
            assert value.tag == other.tag
            assert value.strings() == list(other.tensor.string_val)


def open_python_backend(logdir: Path) -> Any:
    multiplexer = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"cockpit": 0})
    multiplexer.AddRunsFromDirectory(str(logdir))
    multiplexer.Reload()
    return providers.MultiplexerDataProvider(multiplexer, str(logdir))


def check_backend(provider: Any, count: int) -> None:
    tags = provider.list_tensors(CONTEXT, **PLUGIN)["run"]
    assert set(tags) == {"cockpit/header", *(f"cockpit/records/{k:06d}" for k in range(-(-count // 4096)))}
    read = provider.read_tensors(CONTEXT, **PLUGIN, downsample=10**9)["run"]
    payloads = [datum.numpy.item() for tag in sorted(tags) if tag != "cockpit/header" for datum in read[tag]]
    steps = [wire.decode_record(payload).step for payload in payloads]
    assert steps == list(range(count))
    blobs = provider.read_blob_sequences(CONTEXT, **PLUGIN, downsample=10**9)["run"]["cockpit/heavy/GradHist1d"]
    assert [datum.step for datum in blobs[:10]] == list(range(10))
    last = provider.read_blob(CONTEXT, blob_key=blobs[-1].values[1].blob_key)
    assert wire.decode_histogram(last).step == blobs[-1].step
    scalars = provider.list_scalars(CONTEXT, experiment_id="", plugin_name="scalars")["run"]
    assert set(scalars) == {"cockpit/Loss", "cockpit/Odd", "cockpit/Huge"}


def test_python_backend_reads_everything(tmp_path: Path) -> None:
    write(tmp_path / "run", 300)
    check_backend(open_python_backend(tmp_path), 300)


def check_rust_backend(logdir: str, count: int) -> None:
    """In a process of its own: TensorBoard leaves the pipe to its data server to the garbage collector."""
    ingester = SubprocessServerDataIngester(
        server_binary=get_server_binary(),
        logdir=logdir,
        reload_interval=1,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin={"cockpit": 0},
    )
    ingester.start()
    provider, end = ingester.data_provider, time.time() + 30
    while time.time() < end:
        read = provider.read_tensors(CONTEXT, **PLUGIN, downsample=10**9).get("run", {})
        if sum(map(len, read.values())) > count:
            break
        time.sleep(0.1)
    check_backend(provider, count)


def test_rust_backend_reads_5000_of_5000(tmp_path: Path) -> None:
    try:
        get_server_binary()
    except NoDataServerError as error:
        pytest.skip(f"TensorBoard has no data server for this platform: {error}")
    write(tmp_path / "run", 5000)
    code = f"from tests.core.events.test_tensorboard_reads import *; check_rust_backend({str(tmp_path)!r}, 5000)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("cut", [1, 7])
def test_torn_file_does_not_stop_the_python_backend(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "run", 12)
    path.write_bytes(path.read_bytes()[:-cut])
    check_backend(open_python_backend(tmp_path), 12)
