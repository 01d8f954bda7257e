"""What we ask of TensorBoard's data provider, in its words; nothing here knows what the bytes mean.

Only the provider is asked, never a file: so every place that TensorBoard reads from (``--logdir_spec``, ``gs://``, a
data server, the Python backend) works, and a request can reach no file that TensorBoard does not show anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensorboard import plugin_util
from tensorboard.data import provider as tb
from werkzeug.wrappers import Request

from tb_plugin.loader import PLUGIN_NAME
from tb_plugin.quick import Datum, read_payloads

# "Everything": 0 would mean nothing here, although it means everything in --samples_per_plugin.
ALL = 2**31 - 1
# One answer of the data server may hold 256 MiB. A tag has at most 4,096 records of 8 kB, 32 MiB, unless someone
# else wrote it; then the newest part is better than an error.
SMALLER = (ALL, 1024, 64, 1)


@dataclass(frozen=True)
class Asker:
    """The data provider, with what it wants to know about the request."""

    provider: Any
    context: Any
    experiment: str

    @classmethod
    def of(cls, provider: Any, request: Request) -> Asker:
        return cls(provider, plugin_util.context(request.environ), plugin_util.experiment_id(request.environ))

    def list_runs(self) -> list[str]:
        """Names of all runs in the order in which TensorBoard shows and colours them: by start time, then by name."""
        runs = self.provider.list_runs(self.context, experiment_id=self.experiment)
        born = sorted((math.inf if run.start_time is None else run.start_time, run.run_name) for run in runs)
        return [name for _, name in born]

    def list_tensors(self, runs: Iterable[str] | None, tags: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        return self.provider.list_tensors(self.context, **self._what(runs, tags))

    def list_blobs(self, runs: Iterable[str] | None) -> dict[str, dict[str, Any]]:
        return self.provider.list_blob_sequences(self.context, **self._what(runs, None))

    def read_tensor(self, run: str, tag: str) -> list[Datum]:
        """All of one tag; the newest few of a tag that does not fit into one answer."""
        quick = read_payloads(self.provider, self.experiment, PLUGIN_NAME, run, tag, ALL)
        if quick is not None:
            return quick
        for downsample in SMALLER:
            try:
                return self.read_newest([run], [tag], downsample).get(run, {}).get(tag, [])
            except Exception as error:
                if downsample == 1 or not _is_too_large(error):
                    raise
        return []

    def read_newest(self, runs: Iterable[str], tags: Iterable[str], count: int) -> dict[str, dict[str, list[Datum]]]:
        """The provider keeps the last datum when it thins out, so ``count=1`` is the newest record."""
        answer = self.provider.read_tensors(self.context, downsample=count, **self._what(runs, tags))
        return {
            run: {tag: [(d.step, d.wall_time, _payload(d.numpy)) for d in series] for tag, series in by_tag.items()}
            for run, by_tag in answer.items()
        }

    def read_blob_keys(self, run: str, tag: str) -> dict[int, tuple[str, ...]]:
        """The keys of all blobs of a sequence by event step, without the blobs."""
        answer = self.provider.read_blob_sequences(self.context, downsample=ALL, **self._what([run], [tag]))
        return {d.step: tuple(ref.blob_key for ref in d.values) for d in answer.get(run, {}).get(tag, [])}

    def read_blob(self, key: str) -> bytes:
        return self.provider.read_blob(self.context, blob_key=key)

    def _what(self, runs: Iterable[str] | None, tags: Iterable[str] | None) -> dict[str, Any]:
        return {
            "experiment_id": self.experiment,
            "plugin_name": PLUGIN_NAME,
            "run_tag_filter": tb.RunTagFilter(runs=runs, tags=tags),
        }


def _payload(array: Any) -> bytes:
    """A rank-0 string tensor; whatever else carries our name is an empty, hence broken, record."""
    value = array.item() if array.size == 1 else b""
    return value if isinstance(value, bytes) else b""


def _is_too_large(error: Exception) -> bool:
    code = getattr(error, "code", None)
    return callable(code) and getattr(code(), "name", "") == "RESOURCE_EXHAUSTED"
