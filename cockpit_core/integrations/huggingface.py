"""Hugging Face: ``Trainer(..., callbacks=[CockpitCallback()])``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from cockpit_core.engine.hooks import Handles, Hook
from cockpit_core.engine.loss.handed_over import attach_function_loss
from cockpit_core.integrations.findings import count_findings, take_latest, with_printing
from cockpit_core.integrations.folders import choose_folder, continue_at
from cockpit_core.tracking.run import Run
from cockpit_core.tracking.track import track


class CockpitCallback(TrainerCallback):
    """Tracks ``trainer.train()``; the options are those of ``cockpit_core.track``.

    The model computes its own loss; the losses of its samples are read from its graph. individual_losses: for a graph
    that does not tell them, a function of the model's outputs and its inputs that gives one loss per sample [B], up
    to a common factor (the trainer divides by its own number of tokens). logdir: by default the folder ``cockpit`` in
    the
    output directory. log: add headline scalars to what the trainer logs, as ``cockpit/<name>``.

    Training that resumes from a checkpoint continues in the same log, at the trainer's step.
    """

    def __init__(
        self,
        logdir: str | Path | None = None,
        *,
        individual_losses: Callable[[Any, dict[str, Any]], Tensor] | None = None,
        log: bool = True,
        **options: Any,
    ):
        self.logdir, self.individual_losses, self.log, self.options = logdir, individual_losses, log, options
        self.run: Run | None = None
        self.handles = Handles()

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        self._move_to_front()
        if self.run is not None:  # left by a training that ended in an exception: callbacks are not told
            self._end("failed")
        step = int(state.global_step)
        folder = choose_folder(self.logdir, args.output_dir, resumes=step > 0)
        optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        options = with_printing(continue_at(step, folder, self.options))
        self.run = track(model, None, optimizer, folder, **options)
        if self.individual_losses is not None:
            self.handles.add(self.run._tracker.model.register_forward_hook(Hook(self, "on_forward"), with_kwargs=True))

    def _move_to_front(self) -> None:
        """What is added to the logs must be there before the reporters read them; ours was added after them."""
        frame = sys._getframe(1)
        while frame is not None:
            handler: Any = frame.f_locals.get("self")
            if frame.f_code.co_name == "call_event" and self in getattr(handler, "callbacks", ()):
                handler.callbacks = [self, *(other for other in handler.callbacks if other is not self)]
                return
            frame = frame.f_back  # type: ignore[assignment]

    def on_forward(self, module: nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        run = self.run
        if run is None or run._tracker.closed or run._tracker.engine.muted or not torch.is_grad_enabled():
            return
        loss = output.get("loss") if hasattr(output, "get") else output[0] if isinstance(output, tuple) else None
        if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.requires_grad:
            return
        individual = None
        if self.individual_losses is not None and run._tracker.engine.step.plan.active:
            with torch.no_grad():
                individual = self.individual_losses(output, kwargs)
                individual = individual * (loss.detach() / individual.mean())
        attach_function_loss(loss, individual)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None and state.epoch is not None:
            self.run._tracker.log.epoch = float(state.epoch)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.run is not None and self.run.should_stop:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        latest = {} if self.run is None or not self.log or logs is None else take_latest(self.run)
        if latest and self.run is not None and logs is not None:
            logs.update(latest)
            logs.update(count_findings(self.run.findings))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end("finished")

    def _end(self, status: str) -> None:
        self.handles.remove()
        if self.run is not None:
            self.run.close(status)
