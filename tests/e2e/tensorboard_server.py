"""A real ``tensorboard`` process on a free port, found and started as a user's would be."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = {"data server": "true", "python": "false"}  # values of --load_fast
_ADDRESS = re.compile(r"TensorBoard \S+ at (http://\S+)")


class TensorBoard:
    """``with TensorBoard("--logdir", folder) as tb: tb.get("/data/plugin/cockpit/runs")``."""

    def __init__(self, *args: str, env: Mapping[str, str] | None = None, python: tuple[str, ...] = ()) -> None:
        self._log = tempfile.NamedTemporaryFile("w+", suffix=".log", prefix="tensorboard-")  # noqa: SIM115 closed in close()
        start = python or ("-m", "tensorboard.main")
        command = [sys.executable, *start, "--port", "0", "--reload_interval", "1", *args]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        everything = {**os.environ, "PYTHONPATH": path, **(env or {})}
        self.process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=everything, cwd=ROOT)
        try:
            self.url = self._wait_for_address()
        except BaseException:
            self.close()
            raise

    def log(self) -> str:
        return Path(self._log.name).read_text(errors="replace")

    def get(self, path: str, **query: Any) -> bytes:
        status, _, body = self.request(path, **query)
        assert status == 200, f"{path} {query}: {status} {body[:300]!r}"
        return body

    def request(self, path: str, *, method: str = "GET", **query: Any) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of a route, e.g. ``request("/data/plugin/cockpit/batch", run="a")``."""
        tail = f"?{urllib.parse.urlencode(query, doseq=True)}" if query else ""
        request = urllib.request.Request(self.url.rstrip("/") + path + tail, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def runs(self) -> dict[str, dict[str, Any]]:
        return {entry["run"]: entry for entry in json.loads(self.get("/data/plugin/cockpit/runs"))}

    def wait_for_runs(self, *names: str, timeout: float = 60) -> dict[str, dict[str, Any]]:
        deadline = time.monotonic() + timeout
        while True:
            runs = self.runs()
            if set(names) <= set(runs):
                return runs
            assert time.monotonic() < deadline, f"waited for {names}, got {sorted(runs)}\n{self.log()}"
            time.sleep(0.2)

    def close(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._log.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            if match := _ADDRESS.search(self.log()):
                return match.group(1)
            time.sleep(0.05)
        raise AssertionError(f"tensorboard did not start (exit code {self.process.poll()}):\n{self.log()}")


def start_training(logdir: Path, steps: int, pause: float = 0.0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.e2e.tensorboard_training", str(logdir), str(steps), str(pause)]
    return subprocess.Popen(command, cwd=ROOT)
