"""Hugging Face and Accelerate, the real libraries, on the CPU."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import cockpit_core
from tests import slow_truth
from tests.core.integrations.test_integrations import let_torchvision_be_imported
from tests.distributed_worker import STEPS, problem_of
from tests.processes import launch, result
from tests.training import ECONOMY, OPTIMIZERS, by_step, loop

let_torchvision_be_imported()

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries' own advice about workers, devices and loggers


def make_gpt2() -> nn.Module:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (torch-cockpit[integrations])"
    )
    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_layer": 2, "n_head": 2}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drops)).double()


def make_bert() -> nn.Module:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (torch-cockpit[integrations])"
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, num_labels=3,
        max_position_embeddings=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).double()


def gpt2_losses(output: Any, inputs: dict[str, Any]) -> Tensor:
    """One loss per sample: all of them have as many tokens."""
    logits, labels = output.logits[:, :-1], inputs["labels"][:, 1:]
    return nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none").mean(1)


def bert_losses(output: Any, inputs: dict[str, Any]) -> Tensor:
    return nn.functional.cross_entropy(output.logits, inputs["labels"], reduction="none")


MODELS = {"gpt2": (make_gpt2, gpt2_losses), "bert": (make_bert, bert_losses)}


def make_inputs(name: str, seed: int) -> dict[str, Tensor]:
    ids = torch.randint(11, (6, 6), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids if name == "gpt2" else ids.sum(1) % 3}


@pytest.mark.parametrize("name", MODELS)
def test_hugging_face_model_is_exact_through_run_backward(name: str, tmp_path: Path) -> None:
    """As many positions as samples, tied weights, fused attention, and no loss module."""
    make, losses_of = MODELS[name]
    model, twin = make(), make()
    optimizer, other = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, twin))
    with cockpit_core.track(model, None, optimizer, tmp_path / "run", config="business", on_error="raise") as run:
        for step in range(2):
            inputs = make_inputs(name, step)
            optimizer.zero_grad()
            output = model(**inputs)
            run.backward(output.loss, losses_of(output, inputs))
            optimizer.step()
    data = run.data
    assert data.header.covered == 1.0
    for step in range(2):
        inputs = make_inputs(name, step)
        output = twin(**inputs)
        losses = losses_of(output, inputs)
        named = {n: p for n, p in twin.named_parameters() if p.requires_grad}
        rows = [
            torch.autograd.grad(loss, list(named.values()), retain_graph=True, materialize_grads=True)
            for loss in losses
        ]
        G = {n: torch.stack([row[i] for row in rows]).flatten(1).numpy() for i, n in enumerate(named)}
        for layer, matrix in G.items():
            if np.abs(matrix).max() > 1e-9:  # key biases have no effect on a softmax
                measured = by_step(data, "NormTest", layer)[step]
                assert measured == pytest.approx(slow_truth.norm_test(matrix), rel=1e-5, abs=1e-7), layer
        whole = np.concatenate(list(G.values()), 1)
        assert by_step(data, "NormTest")[step] == pytest.approx(slow_truth.norm_test(whole), rel=1e-5)
        assert by_step(data, "InnerTest")[step] == pytest.approx(slow_truth.inner_test(whole), rel=1e-5)
        assert by_step(data, "Loss")[step] == pytest.approx(float(output.loss), rel=1e-9)
        other.zero_grad()
        output.loss.backward()
        other.step()
    assert len(data.alphas) == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


class Rows(Dataset):
    def __init__(self, inputs: dict[str, Tensor]) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[index] for name, value in self.inputs.items()}


def train_with_trainer(folder: Path, callbacks: list, size: int = 3, resume: bool = False, **options: Any) -> Any:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (torch-cockpit[integrations])"
    )
    pytest.importorskip("accelerate", reason="the Hugging Face Trainer needs accelerate (torch-cockpit[integrations])")
    options = {"save_strategy": "no", "max_steps": 4, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), use_cpu=True, logging_steps=1, report_to=[],
        disable_tqdm=True, max_grad_norm=0.0, per_device_train_batch_size=size, **options,
    )  # fmt: skip
    model = make_gpt2()
    trainer = transformers.Trainer(model, arguments, train_dataset=Rows(make_inputs("gpt2", 0)), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_hugging_face_trainer_is_measured_and_logs_the_headlines(tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed (torch-cockpit[integrations])"
    )
    from cockpit_core.integrations.huggingface import CockpitCallback

    seen: list[dict] = []

    class Reporter(transformers.TrainerCallback):
        """As the reporters do it: it stands before the user's own callbacks."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    ours = CockpitCallback(config="economy", individual_losses=gpt2_losses, on_error="raise")
    train_with_trainer(tmp_path, [Reporter(), ours])
    data = cockpit_core.load(tmp_path / "cockpit")
    assert data.status == "finished"
    assert data.header.covered == 1.0
    assert data.scalars("NormTest")[0].tolist() == [0, 1, 2, 3]
    assert len(data.alphas) == 3
    assert [logs["cockpit/GradNorm"] for logs in seen if "cockpit/GradNorm" in logs] == list(
        by_step(data, "GradNorm").values()
    )


def test_hugging_face_trainer_with_accumulation_stops_when_asked(tmp_path: Path) -> None:
    from cockpit_core.integrations.huggingface import CockpitCallback

    class Asking(CockpitCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                self.run.request_stop()

    train_with_trainer(tmp_path, [Asking(on_error="raise")], gradient_accumulation_steps=2)
    data = cockpit_core.load(tmp_path / "cockpit")
    assert data.status == "stopped"
    assert data.scalars("Loss")[0].tolist() == [0, 1]
    assert data.header.batch_size == 6


def test_hugging_face_trainer_that_resumes_goes_on_at_its_step(tmp_path: Path) -> None:
    from cockpit_core.integrations.huggingface import CockpitCallback

    class Fails(CockpitCallback):
        """A training that breaks off tells its callbacks nothing."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                raise ConnectionError("the user's own")

    options = {"save_strategy": "steps", "save_steps": 2}
    ours = Fails(config="economy", individual_losses=gpt2_losses, on_error="raise")
    with pytest.raises(ConnectionError):
        train_with_trainer(tmp_path, [ours], **options)
    assert by_step(ours.run.data, "Loss").keys() == {0, 1, 2}
    ours.run.close("failed")
    again = CockpitCallback(config="economy", individual_losses=gpt2_losses, on_error="raise")
    train_with_trainer(tmp_path, [again], resume=True, **options)
    data = cockpit_core.load(tmp_path / "cockpit")
    assert data.scalars("Loss")[0].tolist() == [0, 1, 2, 3]
    assert data.status == "finished"
    train_with_trainer(
        tmp_path / "whole", [CockpitCallback(config="economy", individual_losses=gpt2_losses, on_error="raise")]
    )
    whole = cockpit_core.load(tmp_path / "whole" / "cockpit")
    for name in ("Loss", "Distance", "UpdateSize", "NormTest"):
        assert by_step(data, name) == pytest.approx(by_step(whole, name), rel=1e-9), name


def test_accelerate_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed (torch-cockpit[integrations])")
    example = Path(__file__).parents[3] / "examples" / "accelerate_loop.py"
    runpy.run_path(str(example))["main"](str(tmp_path / "run"), 1)
    data = cockpit_core.load(tmp_path / "run")
    assert set(ECONOMY) <= set(data.names)
    assert data.header.covered == 1.0
    assert len(data.scalars("Loss")[0]) == 8


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for library in ("lightning", "transformers", "accelerate"):
        pytest.importorskip(library, reason=f"{library} is not installed (torch-cockpit[integrations])")
    folder = tmp_path_factory.mktemp("libraries")
    launch(2, folder, "lightning", "huggingface", timeout=180)
    return folder


@pytest.mark.slow
def test_lightning_on_two_processes_is_one_batch(two_processes: Path, tmp_path: Path) -> None:
    assert result(two_processes, "lightning", 1) == 2
    together = cockpit_core.load(two_processes / "lightning")
    assert len(list((two_processes / "lightning").glob("events*"))) == 1, "one rank writes"
    assert together.header.options["processes"] == "2"
    model, loss_fn, batches = problem_of("mlp").make()
    optimizer = OPTIMIZERS["momentum"](problem_of("mlp").groups(model))
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="full", on_error="raise") as alone:
        loop(model, loss_fn, optimizer, batches(STEPS))
    for name in (*ECONOMY, "HessTrace", "HessMaxEV", "TICDiag"):
        tolerance = 2e-3 if name == "HessMaxEV" else 1e-5
        assert by_step(together, name) == pytest.approx(by_step(alone.data, name), rel=tolerance), name
    assert [fit.alpha for fit in together.alphas] == pytest.approx([fit.alpha for fit in alone.data.alphas], rel=1e-5)


@pytest.mark.slow
def test_hugging_face_trainer_on_two_processes_is_one_batch(two_processes: Path, tmp_path: Path) -> None:
    from cockpit_core.integrations.huggingface import CockpitCallback

    assert result(two_processes, "huggingface", 1) == 2
    together = cockpit_core.load(two_processes / "huggingface")
    assert len(list((two_processes / "huggingface").glob("events*"))) == 1, "one rank writes"
    train_with_trainer(
        tmp_path,
        [CockpitCallback(tmp_path / "run", config="economy", individual_losses=gpt2_losses, on_error="raise")],
        size=6,
    )
    alone = cockpit_core.load(tmp_path / "run")
    assert together.header.batch_size == alone.header.batch_size == 6
    for name in ECONOMY:
        assert by_step(together, name) == pytest.approx(by_step(alone, name), rel=1e-5), name
    assert [fit.alpha for fit in together.alphas] == pytest.approx([fit.alpha for fit in alone.alphas], rel=1e-5)
