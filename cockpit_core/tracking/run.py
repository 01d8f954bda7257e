"""What a user holds: a tracked run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import Tensor

from cockpit_core.engine.loss.handed_over import attach_function_loss
from cockpit_core.events.data import RunData
from cockpit_core.foundation.records import Finding
from cockpit_core.recording.header import show
from cockpit_core.tracking.tracker import Tracker


class Run:
    """Made by ``cockpit_core.track``; the documentation of its options is there.

    All that works behind it is ``_tracker``, for our own integrations and tests; it is not part of the public
    interface.
    """

    def __init__(self, tracker: Tracker):
        self._tracker = tracker
        self._data: RunData | None = None

    # ---- while training -----------------------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """Anything else worth plotting, any time; ``epoch=`` sets the epoch of the steps that follow."""
        if self._tracker.log.write_logged(values, max(self._tracker.step - 1, 0)):
            self._tracker.request_stop()

    def trigger(self, reason: str = "run.trigger()") -> None:
        """Track the next step in full, whatever the schedule; if this step's loss was evaluated already, the one after.

        With several processes the next tracked step of the schedule carries the wish, and the step after it is tracked.
        """
        self._tracker.trigger(reason)

    def backward(self, loss: Tensor, individual_losses: Tensor | None = None, **kwargs: Any) -> None:
        """``loss.backward(**kwargs)``, with individual losses that the graph of the loss does not tell.

        ``individual_losses`` [B], one per sample, average to the loss (or add up to it).
        """
        attach_function_loss(loss, individual_losses)
        loss.backward(**kwargs)

    def batch(self, ids: Any) -> None:
        """Say who the samples of the coming batch are, one whole number each (their indices in the dataset), before its
        forward pass; with micro-batches, before each of them. HardSamples then follows samples over the run."""
        self._tracker.note_ids(ids)

    def stepping(self) -> AbstractContextManager[None]:
        """``with run.stepping(): ...``: what is done in there is one step, whatever is called.

        For a two-step optimizer that never calls ``step``, for a wrapper that moves the parameters once more after it, for
        updates by hand. It begins after the (first) ``loss.backward()``; further backward passes inside are the
        optimizer's own.
        """
        return self._tracker.stepping()

    def note_settings(self, **settings: Any) -> None:
        """What else sets this run apart, e.g. ``seed=3, width=256``: goes into the header, where ``compare`` finds it."""
        self._tracker.note_settings({name: show(value) for name, value in settings.items()})

    def request_stop(self) -> None:
        """Ask the training loop to end: it should look at ``run.should_stop`` at each step.

        With several processes it turns True on all of them together, at the end of the next tracked step.
        """
        self._tracker.request_stop()

    @property
    def should_stop(self) -> bool:
        """Somebody asked the training to end: ``request_stop``, a page, or a finding (``stop_on``)."""
        return self._tracker.should_stop

    def close(self, status: str = "finished", error: str = "") -> None:
        """Write what is pending and take all hooks off. Closing twice does nothing."""
        self._tracker.close(status, error)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._tracker.end(error)

    # ---- looking ------------------------------------------------------------------------------------------------

    @property
    def data(self) -> RunData:
        """Everything written so far, from the log itself."""
        if self._data is None:
            self._data = RunData(self.logdir)
        return self._data.refresh()

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, as far as is known by now: worst first, causes only. See docs/diagnosis.md."""
        return self._tracker.log.live.findings

    @property
    def cost_share(self) -> float:
        """Share of the elapsed time that tracking took."""
        return self._tracker.pace.seconds / max(self._tracker.log.elapsed, 1e-9)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back on the training thread after each record; returns how to end it."""
        return self._tracker.log.subscribe(callback)

    def report(self, output: str | Path, **options: Any) -> Path:
        """One self-contained HTML file of this run."""
        from cockpit_core.report.write import write_report

        return write_report([self.logdir], output, **options)

    @property
    def _writer(self) -> Any:
        """For a widget, which listens to what is written instead of reading it back."""
        return self._tracker.log.writer

    @property
    def logdir(self) -> Path:
        return self._tracker.log.logdir

    @property
    def step(self) -> int:
        """How many steps the optimizer has taken; the coming one has this number."""
        return self._tracker.step

    @property
    def status(self) -> str:
        """ "waiting", "running", "finished", "stopped" or "failed"."""
        return self._tracker.log.status
