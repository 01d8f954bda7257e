"""Stand-ins for what surrounds the widget: a clock, a comm, a run that is being trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cockpit_core.events.data import RunData
from cockpit_core.events.writer import EventWriter
from cockpit_core.schema import batches
from cockpit_widget.feed import split_frames
from tests import synthetic


class FakeClock:
    """Stands still until told to move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class FakeComm:
    """What ipywidgets needs of a comm; keeps what was sent. ``broken`` makes sending fail."""

    def __init__(self) -> None:
        self.comm_id = f"comm-{id(self)}"
        self.sent: list[tuple[dict[str, Any], list[bytes]]] = []
        self.broken: Exception | None = None
        self.closed = False
        self._msg_callback: Callable[[Any], None] | None = None

    def on_msg(self, callback: Callable[[Any], None] | None) -> None:
        self._msg_callback = callback

    def send(self, data: Any = None, metadata: Any = None, buffers: Any = None) -> None:
        if self.broken is not None:
            raise self.broken
        self.sent.append((data, [bytes(buffer) for buffer in buffers or []]))

    def close(self, *args: Any, **kwargs: Any) -> None:
        self.closed = True

    def handle_msg(self, msg: Any) -> None:
        raise AssertionError("the widget must not use the handler that fires post_execute")

    # ---- what a browser would do ----

    def ask(self, content: Any) -> None:
        """A custom message from the page."""
        self._receive({"method": "custom", "content": content})

    def set(self, **state: Any) -> None:
        """The page changes traits that it owns."""
        self._receive({"method": "update", "state": state, "buffer_paths": []})

    def _receive(self, data: dict[str, Any]) -> None:
        self.handle_msg({"content": {"data": data}, "buffers": []})

    @property
    def messages(self) -> list[tuple[dict[str, Any], list[bytes]]]:
        return [(data["content"], buffers) for data, buffers in self.sent if data["method"] == "custom"]

    @property
    def keyframes(self) -> list[bytes]:
        return [b[0] for d, b in self.sent if d["method"] == "update" and d.get("buffer_paths") == [["_keyframe"]]]


class FakeRun:
    """A run of this process, with the real writer and no training: ``step()`` writes one record and calls back."""

    def __init__(self, logdir: Path, layers: int = 2, resume: bool = False) -> None:
        self.logdir = logdir
        self.writer = self._writer = EventWriter(logdir, resume=resume)
        self.should_stop = False
        self.status = "running"
        self.callbacks: list[Callable[[], Any]] = []
        infos = synthetic.make_layers(layers)
        self._story = synthetic.Story(synthetic.np.random.default_rng(0), infos, 1000, None, False, True)
        self._waiting: list[Any] = []
        self._step = 0
        self.writer.write_header(synthetic.make_header(logdir.name, infos, 1, True))
        self.writer.write_record(synthetic.records.Record("start", 0, synthetic.CREATED, 0.0))
        self.data = RunData(logdir)

    def subscribe(self, callback: Callable[[], Any]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def request_stop(self) -> None:
        self.should_stop = True

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            synthetic._write_step(self.writer, self._story, self._step, self._step, self._waiting)
            self._step += 1
            self._notify()

    def close(self, status: str = "finished", error: str = "") -> None:
        end = synthetic.CREATED + 0.021 * self._step
        record = synthetic.records.Record("end", self._step, end, end - synthetic.CREATED, status=status, error=error)
        self.writer.write_record(record)
        self.status = status
        self._notify()
        self.writer.close()

    def _notify(self) -> None:
        for callback in list(self.callbacks):
            callback()


class FakePage:
    """What a page knows after reading messages: values by (run, name, layer, seq), later ones win."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], dict[int, float]] = {}
        self.steps: dict[tuple[str, int], int] = {}
        self.alphas: dict[tuple[str, int], float | None] = {}
        self.histograms: dict[tuple[str, str, int, str], Any] = {}
        self.states: dict[str, str] = {}

    def read(self, frames: bytes) -> FakePage:
        for blob in split_frames(frames):
            batch = batches.decode_batch(blob)
            rows = zip(batch.seq.tolist(), batch.step.tolist(), strict=True)
            self.steps |= {(batch.run, seq): step for seq, step in rows}
            for column in batch.columns:
                seqs = batch.seq if column.rows is None else batch.seq[column.rows]
                known = self.values.setdefault((batch.run, column.name, column.layer), {})
                known |= dict(zip(seqs.tolist(), column.values.tolist(), strict=True))
            self.alphas |= {(batch.run, fit.step): fit.alpha for fit in batch.alphas}
            self.histograms |= {(batch.run, h.quantity, h.step, h.layer): h for h in batch.histograms}
            if batch.state:
                self.states[batch.run] = batch.state
        return self

    def read_all(self, comm: FakeComm) -> FakePage:
        for _, buffers in comm.messages:
            for buffer in buffers:
                self.read(buffer)
        return self

    def column(self, run: str, name: str, layer: str = "") -> tuple[list[int], list[float]]:
        known = sorted(self.values.get((run, name, layer), {}).items())
        return [self.steps[run, seq] for seq, _ in known], [value for _, value in known]
