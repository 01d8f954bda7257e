"""The quick way to the payloads gives what the ordinary way gives, in both backends, and steps aside when in doubt."""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard import context
from tensorboard.backend.event_processing import data_ingester
from tensorboard.data import provider as tb
from tensorboard.data import server_ingester
from tensorboard.util import grpc_util

from cockpit_core.schema.tags import HEADER, records_tag
from tb_plugin.loader import PLUGIN_NAME
from tb_plugin.provider import ALL, Asker
from tb_plugin.quick import read_payloads
from tests.tb import logs

TAG = records_tag(0)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    logs.write_run(root / "small", range(300))
    logs.write_broken(root / "broken")
    return root


@pytest.fixture(scope="module", params=["data server", "python"])
def provider(request: pytest.FixtureRequest, logdir: Path) -> Iterator[Any]:
    if request.param == "python":
        flags = argparse.Namespace(
            samples_per_plugin={PLUGIN_NAME: 0},
            purge_orphaned_data=True,
            max_reload_threads=1,
            reload_multifile=True,
            reload_multifile_inactive_secs=86400,
            detect_file_replacement=None,
            logdir=str(logdir),
            logdir_spec="",
            reload_interval=0,
            reload_task="blocking",
        )
        ingester = data_ingester.LocalDataIngester(flags)
    else:
        ingester = server_ingester.SubprocessServerDataIngester(
            server_ingester.get_server_binary(),
            str(logdir),
            reload_interval=0,
            channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
            samples_per_plugin={PLUGIN_NAME: 0},
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it lets its own folder and process go without a word
        ingester.start()
        gc.collect()
    provider = ingester.data_provider
    deadline = time.monotonic() + 20
    while len(read_payloads(provider, "", PLUGIN_NAME, "small", TAG, ALL) or []) < 302:
        assert time.monotonic() < deadline, "not loaded"
        time.sleep(0.1)
    yield provider
    if request.param == "data server":
        ingester._stdin_handle.close()  # it ends by itself then


def read_ordinarily(provider: Any, run: str, tag: str) -> list[tuple[int, float, bytes]]:
    asker = Asker(provider, context.RequestContext(), "")
    return asker.read_newest([run], [tag], ALL)[run][tag]


@pytest.mark.parametrize(("run", "tag"), [("small", TAG), ("small", HEADER), ("broken", TAG), ("broken", HEADER)])
def test_both_ways_give_the_same(provider: Any, run: str, tag: str) -> None:
    quick = read_payloads(provider, "", PLUGIN_NAME, run, tag, ALL)
    assert quick == read_ordinarily(provider, run, tag)
    assert quick


def test_what_does_not_exist_is_left_to_the_ordinary_way(provider: Any) -> None:
    assert read_payloads(provider, "", PLUGIN_NAME, "nobody", TAG, ALL) is None
    assert read_payloads(provider, "", PLUGIN_NAME, "small", "cockpit/records/000077", ALL) is None


def test_a_provider_that_is_not_known_is_asked_the_ordinary_way() -> None:
    class GrpcDataProvider:
        """A later version without the attribute that we look for."""

        def read_tensors(self, _: Any, **__: Any) -> Any:
            import numpy as np

            return {"a": {TAG: [tb.TensorDatum(step=1, wall_time=2.0, numpy=np.array(b"x", dtype=object))]}}

    assert read_payloads(GrpcDataProvider(), "", PLUGIN_NAME, "a", TAG, ALL) is None
    assert read_payloads(object(), "", PLUGIN_NAME, "a", TAG, ALL) is None
    assert Asker(GrpcDataProvider(), None, "").read_tensor("a", TAG) == [(1, 2.0, b"x")]
