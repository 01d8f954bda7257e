"""Lightning: ``Trainer(callbacks=[CockpitCallback()])``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.loss import _Loss

from cockpit_core.integrations.findings import count_findings, take_latest, with_printing
from cockpit_core.integrations.folders import choose_folder, continue_at
from cockpit_core.tracking.run import Run
from cockpit_core.tracking.track import track

try:
    import lightning.pytorch as pl
except ImportError:  # the older name of the same library
    import pytorch_lightning as pl  # type: ignore[no-redef]


class CockpitCallback(pl.Callback):
    """Tracks ``trainer.fit``; the options are those of ``cockpit_core.track``.

    loss_fn: the loss module that ``training_step`` calls, or the name of the attribute that holds it. By default the
        only loss module of the LightningModule; where there is none, the loss that ``training_step`` returns is
        read from its graph.
    logdir: by default the folder ``cockpit`` beside the logger's files.
    log: hand headline scalars to the logger of the trainer, as ``cockpit/<name>``.

    Training that resumes from a checkpoint continues in the same log (with a ``logdir``, or if the logger's folder is
    the
    same), at the trainer's step.
    """

    def __init__(
        self,
        logdir: str | Path | None = None,
        *,
        loss_fn: nn.Module | str | None = None,
        log: bool = True,
        **options: Any,
    ):
        self.logdir, self.loss_fn, self.log, self.options = logdir, loss_fn, log, options
        self.run: Run | None = None
        self.logged_step = -1
        self.checkpointed = 0  # the step of the checkpoint that was loaded

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.loss = find_loss(pl_module, self.loss_fn)
        if self.run is not None:
            self.run.close()
        step = self._find_step(trainer)
        folder = choose_folder(self.logdir, trainer.log_dir or trainer.default_root_dir, resumes=step > 0)
        model = (
            trainer.strategy.model
            if isinstance(trainer.strategy.model, nn.parallel.DistributedDataParallel)
            else pl_module
        )
        optimizers = [getattr(optimizer, "optimizer", optimizer) for optimizer in trainer.optimizers]
        options = with_printing(continue_at(step, folder, self.options))
        self.run = track(model, self.loss, optimizers, folder, **options)

    def _find_step(self, trainer: pl.Trainer) -> int:
        """How many steps were made so far: as the checkpoint says, else as the trainer counts. It counts the steps
        of every optimizer; ours are rounds of all of them."""
        if trainer.global_step == 0:
            return 0
        return self.checkpointed or trainer.global_step // max(len(trainer.optimizers), 1)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds about us."""
        return {} if self.run is None else {"step": self.run.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.checkpointed = int(state_dict.get("step", 0))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """``training_step`` may call only a part of the module, so the module's own inputs are never seen."""
        run = self.run
        if run is None or run._tracker.closed:
            return
        run._tracker.engine.note_batch(batch)
        batches = trainer.num_training_batches
        run._tracker.log.epoch = trainer.current_epoch + (
            batch_idx / batches if batches and batches != float("inf") else 0.0
        )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        run = self.run
        if run is None or run._tracker.closed:
            return
        latest = take_latest(run) if self.log and run.step - 1 != self.logged_step else {}
        if latest:
            self.logged_step = run.step - 1
            values = latest | count_findings(run.findings)
            pl_module.log_dict(values, on_step=True, on_epoch=False, batch_size=1)
        if run.should_stop:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.run is not None:
            self.run.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if self.run is not None:
            self.run.__exit__(type(exception), exception, None)


def find_loss(module: nn.Module, chosen: nn.Module | str | None) -> nn.Module | None:
    """The user's choice; else the only loss module there is; with several of them the user has to choose."""
    if isinstance(chosen, str):
        loss = getattr(module, chosen)
        if not isinstance(loss, nn.Module):
            raise TypeError(f"CockpitCallback(loss_fn={chosen!r}): that attribute is not an nn.Module")
        return loss
    if chosen is not None:
        return chosen
    losses = {name: m for name, m in module.named_modules() if isinstance(m, _Loss)}
    if len(losses) > 1:
        raise ValueError(
            f"the module has several losses ({', '.join(losses)}): choose with CockpitCallback(loss_fn=...)"
        )
    return next(iter(losses.values()), None)
