"""Llama and BERT of Hugging Face as people train them: default attention, the model's own loss, one added line.

Every quantity of "full" has a value, or a reason that is a fact about the network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core import quantities
from tests.core.integrations.test_integrations import let_torchvision_be_imported

STEPS = 2
B, LENGTH = 4, 6


def build_llama(transformers: Any) -> nn.Module:
    """Grouped queries, rotary positions, RMSNorm, a gated MLP."""
    config = transformers.LlamaConfig(
        vocab_size=17, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def configure_bert(transformers: Any) -> Any:
    return transformers.BertConfig(
        vocab_size=17, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, num_labels=3,
        max_position_embeddings=16,
    )  # fmt: skip


def build_bert(transformers: Any) -> nn.Module:
    """Dropout, padding, a pooled head over classes."""
    return transformers.BertForSequenceClassification(configure_bert(transformers))


def build_masked_bert(transformers: Any) -> nn.Module:
    """Its head holds a bias that belongs to the layer inside it, and shares the embedding's weight."""
    return transformers.BertForMaskedLM(configure_bert(transformers))


def make_batch(name: str, step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(1, 17, (B, LENGTH), generator=generator)
    if name == "bert":
        mask = (torch.arange(LENGTH) < torch.tensor([6, 6, 4, 5])[:, None]).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.sum(1) % 3}
    return {"input_ids": ids, "labels": ids}


BUILD = {"llama": build_llama, "bert": build_bert, "masked bert": build_masked_bert}


def train(name: str, logdir: Path | None) -> tuple[nn.Module, Any]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    let_torchvision_be_imported()
    torch.manual_seed(0)
    model = BUILD[name](transformers)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(1)
    run = (
        None if logdir is None else cockpit_core.track(model, None, optimizer, logdir, config="full", on_error="raise")
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        model(**make_batch(name, step)).loss.backward()
        optimizer.step()
    if run is not None:
        run.close()
    return model, None if run is None else run.data


@pytest.mark.parametrize("name", BUILD)
def test_every_quantity_of_full_has_a_value_or_a_fact_about_the_network(name: str, tmp_path: Path) -> None:
    model, data = train(name, tmp_path / "run")
    untracked, _ = train(name, None)
    for (key, mine), (_, theirs) in zip(model.state_dict().items(), untracked.state_dict().items(), strict=True):
        assert torch.equal(mine, theirs), key
    assert data.header.covered == 1.0
    assert data.header.batch_size == B
    planned = [info for info in data.header.quantities if not info.kind.startswith(("histogram", "parameters"))]
    assert {info.name for info in planned} >= {q.name for q in quantities.configuration("full")} - {
        "GradHist1d",
        "GradHist2d",
    }
    for info in planned:
        steps, values = data.scalars(info.name)
        reasons = [m.reason for m in data.missing if m.name == info.name]
        last = STEPS - 1 if info.name == "Alpha" else STEPS  # the far end of the last step's comes with the next
        explained = info.name == "TICDiag" and len(steps) + len(reasons) >= last and all(map(is_fact, reasons))
        assert len(steps) == last or explained, (info.name, reasons)
        assert np.isfinite(values).all(), info.name


def is_fact(reason: str) -> bool:
    """Attention joins all positions, so that the Hessian's diagonal is estimated; a quotient by it would be noise."""
    return "the diagonal is an estimate here" in reason
