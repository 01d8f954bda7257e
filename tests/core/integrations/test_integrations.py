"""The real libraries, on the CPU: their loops are measured like any other, and their loggers get the headlines."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests import slow_truth
from tests.core.integrations.integration_cases import fit
from tests.training import ECONOMY, assert_true, by_step, start, truth_of


def let_torchvision_be_imported() -> None:
    """BackPACK asks for torchvision, nothing here uses it. One whose binary does not fit this torch fails on import, and
    with it every library that looks for it: the two operators that it misses are declared (and never called)."""
    try:
        importlib.import_module("torchvision")
    except ImportError:
        return
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            MISSING.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


MISSING = torch.library.Library("torchvision", "FRAGMENT")


let_torchvision_be_imported()


pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own advice about workers, devices and loggers


def make_lightning(name: str, as_function: bool = False) -> Any:
    pl = pytest.importorskip(
        "lightning.pytorch", reason="Lightning is not installed (pip install torch-cockpit[integrations])"
    )
    training = start(name, "momentum")

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = training.model
            self.loss_fn = None if as_function else training.loss_fn

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            inputs, targets = batch
            return (
                nn.functional.cross_entropy(self.net(inputs), targets)
                if as_function
                else self.loss_fn(self.net(inputs), targets)
            )

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return training.optimizer

    return pl, Module(), training


def rename(truth: slow_truth.RunTruth, prefix: str) -> slow_truth.RunTruth:
    truth.layers = {name: {prefix + layer: v for layer, v in layers.items()} for name, layers in truth.layers.items()}
    truth.names = [prefix + name for name in truth.names]
    return truth


def test_lightning_is_measured_as_a_plain_loop(tmp_path: Path) -> None:
    pl, module, training = make_lightning("mlp")
    from cockpit_core.integrations.lightning import CockpitCallback

    logger = pl.loggers.CSVLogger(tmp_path, name="csv")
    fit(
        pl,
        module,
        training.batches(4),
        tmp_path,
        [CockpitCallback(tmp_path / "run", config="economy", on_error="raise")],
        logger=logger,
    )
    data = cockpit_core.load(tmp_path / "run")
    assert data.status == "finished"
    assert_true(data, rename(truth_of(start("mlp", "momentum"), training.batches(4)), "net."))
    table = next((tmp_path / "csv").rglob("metrics.csv")).read_text()
    assert "cockpit/NormTest" in table.splitlines()[0]
    assert len(table.splitlines()) == 5


def test_lightning_with_accumulation_and_clipping(tmp_path: Path) -> None:
    """Lightning runs the last backward pass inside ``optimizer.step(closure)``, and clips there too."""
    pl, module, training = make_lightning("mlp")
    from cockpit_core.integrations.lightning import CockpitCallback

    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.01, "logger": False}
    fit(
        pl,
        module,
        training.batches(6),
        tmp_path,
        [CockpitCallback(tmp_path / "run", config="economy", on_error="raise")],
        **options,
    )
    data = cockpit_core.load(tmp_path / "run")
    model = start("mlp").model
    batches = list(training.batches(6))[:2]
    inputs, targets = torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches])
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)])
        for loss in losses
    ]
    G = torch.stack(rows).numpy()
    assert by_step(data, "NormTest")[0] == pytest.approx(slow_truth.norm_test(G), rel=1e-5)
    assert by_step(data, "GradNorm")[0] == pytest.approx(slow_truth.grad_norm(G), rel=1e-5)
    assert by_step(data, "GradNormClipped")[0] == pytest.approx(0.01, rel=1e-3)
    assert data.scalars("NormTest")[0].tolist() == [0, 1, 2]
    assert len(data.alphas) == 2


def test_lightning_loss_that_is_a_function(tmp_path: Path) -> None:
    pl, module, training = make_lightning("mlp", as_function=True)
    from cockpit_core.integrations.lightning import CockpitCallback

    fit(pl, module, training.batches(2), tmp_path, [CockpitCallback(tmp_path / "run", config="economy")], logger=False)
    data = cockpit_core.load(tmp_path / "run")
    truth = truth_of(start("mlp", "momentum"), training.batches(2))
    assert_true(data, rename(truth, "net."))


def test_lightning_stops_when_asked_and_records_a_failure(tmp_path: Path) -> None:
    pl, module, training = make_lightning("mlp")
    from cockpit_core.integrations.lightning import CockpitCallback

    ours = CockpitCallback(tmp_path / "run", config="economy")

    class Asks(pl.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 1:
                ours.run.request_stop()

    fit(pl, module, training.batches(6), tmp_path, [Asks(), ours], logger=False)
    assert cockpit_core.load(tmp_path / "run").status == "stopped"
    assert list(by_step(cockpit_core.load(tmp_path / "run"), "Loss")) == [0, 1]

    class Fails(pl.Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise ValueError("the user's own")

    pl, module, training = make_lightning("mlp")
    with pytest.raises(ValueError, match="the user's own"):
        fit(
            pl,
            module,
            training.batches(2),
            tmp_path,
            [CockpitCallback(tmp_path / "failed", config="economy"), Fails()],
            logger=False,
        )
    assert cockpit_core.load(tmp_path / "failed").status == "failed"


def test_lightning_that_resumes_from_a_checkpoint_goes_on_at_its_step(tmp_path: Path) -> None:
    """Killed some steps after the checkpoint: those steps are done again, and stand in the log once."""
    from cockpit_core.integrations.lightning import CockpitCallback

    pl, module, training = make_lightning("mlp")
    batches = list(training.batches(8))
    ours = CockpitCallback(tmp_path / "run", config="economy", on_error="raise")

    class Saves(pl.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
            if trainer.global_step == 4:
                trainer.save_checkpoint(tmp_path / "at4.ckpt")

    fit(pl, module, batches[:6], tmp_path, [ours, Saves()], logger=False)
    for callback in (
        CockpitCallback(tmp_path / "run", config="economy", on_error="raise"),
        ours,
    ):  # a new process, and the same one
        pl, module, _ = make_lightning("mlp")
        fit(pl, module, batches, tmp_path, [callback], logger=False, ckpt_path=tmp_path / "at4.ckpt")
        data = cockpit_core.load(tmp_path / "run")
        assert data.scalars("Loss")[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
        assert data.status == "finished"
    truth = truth_of(start("mlp", "momentum"), batches[:4] * 2)  # inside an epoch, Lightning begins the data again
    for name in ECONOMY:
        assert by_step(data, name) == pytest.approx(truth.scalars[name], rel=1e-5), name


def test_lightning_counts_rounds_where_a_checkpoint_does_not_know_us(tmp_path: Path) -> None:
    from cockpit_core.integrations.lightning import CockpitCallback

    trainer: Any = types.SimpleNamespace(global_step=12, optimizers=[1, 2, 3])
    ours = CockpitCallback(tmp_path / "run", config="economy")
    assert ours._find_step(trainer) == 4
    ours.load_state_dict({"step": 5})
    assert ours._find_step(trainer) == 5
    trainer.global_step = 0
    assert ours._find_step(trainer) == 0
