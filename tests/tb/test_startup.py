"""TensorBoard as users start it: without torch, with something broken, behind prefixes and proxies, on many runs."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from pathlib import Path

import pytest

from cockpit_core.schema import cockpit_pb2 as pb
from tests.e2e.tensorboard_proxy import stripping_proxy
from tests.e2e.tensorboard_server import BACKENDS, ROOT, TensorBoard
from tests.tb import logs

BATCH = "/data/plugin/cockpit/batch"
BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} or name.startswith({name!r} + "."):
            raise ImportError("broken on purpose: " + name)
sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logdir")
    logs.write_run(folder / "a", range(30))
    logs.write_run(folder / "b", range(20))
    return folder


def without(folder: Path, module: str) -> dict[str, str]:
    """An environment in which ``module`` cannot be imported by any process."""
    (folder / "sitecustomize.py").write_text(BLOCKER.format(name=module))
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def count_records(board: TensorBoard, run: str) -> int:
    return pb.Batch.FromString(board.get(BATCH, run=run)).status.records


def test_the_tab_works_where_torch_is_not_installed(root: Path, tmp_path: Path) -> None:
    with TensorBoard("--logdir", str(root), env=without(tmp_path, "torch")) as board:
        board.wait_for_runs("a", "b")
        assert count_records(board, "a") == 32


@pytest.mark.parametrize("module", ["tb_plugin.plugin", "tb_plugin.cache", "cockpit_core", "cockpit_core.schema"])
def test_tensorboard_starts_although_a_module_of_ours_is_broken(root: Path, tmp_path: Path, module: str) -> None:
    with TensorBoard("--logdir", str(root), env=without(tmp_path, module)) as board:
        assert "cockpit" not in json.loads(board.get("/data/plugins_listing"))
        assert "scalars" in json.loads(board.get("/data/plugins_listing"))
        assert "The Cockpit tab is switched off in this TensorBoard" in board.log()
        assert f"broken on purpose: {module}" in board.log()


def test_the_tab_is_hidden_where_there_is_no_data(tmp_path: Path) -> None:
    with TensorBoard("--logdir", str(tmp_path)) as board:
        assert json.loads(board.get("/data/plugins_listing"))["cockpit"]["enabled"] is False
        assert board.runs() == {}


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_path_prefix_is_kept(root: Path, backend: str) -> None:
    arguments = ("--logdir", str(root), "--path_prefix", "/some/where", "--load_fast", BACKENDS[backend])
    with TensorBoard(*arguments) as board:
        assert board.url.endswith("/some/where/")
        board.wait_for_runs("a", "b")
        assert count_records(board, "b") == 22
        entry = board.get("/data/plugin_entry.html", name="cockpit").decode()
        assert '<base href="plugin/cockpit/"' in entry
        assert "security_validator" not in board.log()


def test_a_logdir_spec_works(root: Path) -> None:
    with TensorBoard("--logdir_spec", f"first:{root / 'a'},second:{root / 'b'}") as board:
        board.wait_for_runs("first/.", "second/.")
        assert count_records(board, "first/.") == 32
        assert pb.Batch.FromString(board.get(BATCH, run="second/.")).run_id == "id-b"


def test_a_run_in_the_log_directory_itself_works(root: Path) -> None:
    with TensorBoard("--logdir", str(root / "a")) as board:
        board.wait_for_runs(".")
        assert count_records(board, ".") == 32


def test_a_proxy_that_strips_a_prefix_works(root: Path) -> None:
    with TensorBoard("--logdir", str(root)) as board, stripping_proxy(board.url, "/user/me/proxy/6006") as address:
        board.wait_for_runs("a", "b")
        page = urllib.request.urlopen(f"{address}data/plugin_entry.html?name=cockpit", timeout=30).read().decode()
        module = page.partition('import("')[2].partition('"')[0]
        assert module.startswith("./static/")
        script = urllib.request.urlopen(f"{address}data/plugin/cockpit/{module[2:]}", timeout=30)
        assert script.headers["Content-Type"].startswith("text/javascript")
        body = urllib.request.urlopen(f"{address}data/plugin/cockpit/batch?run=a", timeout=30).read()
        assert pb.Batch.FromString(body).status.records == 32


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_a_hundred_runs_are_listed_quickly(tmp_path: Path, backend: str) -> None:
    for number in range(100):
        logs.write_run(tmp_path / f"run{number:03d}", range(5))
    with TensorBoard("--logdir", str(tmp_path), "--load_fast", BACKENDS[backend]) as board:
        board.wait_for_runs(*(f"run{number:03d}" for number in range(100)))
        deadline = time.monotonic() + 30
        while any(entry["state"] != "finished" for entry in board.runs().values()):
            assert time.monotonic() < deadline
        start = time.monotonic()
        assert len(board.runs()) == 100
        assert time.monotonic() - start < 2  # a few milliseconds; generous, because tests share machines
