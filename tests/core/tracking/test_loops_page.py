"""Every snippet of docs/loops.md runs as it stands there, and has the values that the page promises."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

import cockpit_core
from cockpit_core.tracking.alive import ALIVE
from tests.core.integrations.test_huggingface import gpt2_losses, train_with_trainer
from tests.core.integrations.test_integrations import let_torchvision_be_imported
from tests.training import by_step

PAGE = Path(__file__).parents[3] / "docs" / "loops.md"
QUANTITIES = ("Loss", "GradNorm", "NormTest", "HessTrace", "HessMaxEV")


def read_snippets() -> dict[str, str]:
    """By heading; the block before the first heading is run before each of them."""
    head, *sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    setup = re.findall(r"```python\n(.*?)```", head, flags=re.DOTALL)[-1]
    blocks = {s.splitlines()[0]: re.search(r"```python\n(.*?)```", s, flags=re.DOTALL) for s in sections}
    found = {title: block.group(1) for title, block in blocks.items() if block is not None}
    decoder = found["The model computes its loss"].split("\n\n\nmodel = ")[0]
    return {t: f"{setup}\n{decoder}\n{code}" if "Decoder" in code else f"{setup}\n{code}" for t, code in found.items()}


SNIPPETS = read_snippets()
NO_VALUE = {
    "Contrastive pairs": {"Alpha": "the loss mixes samples"},
    "Learned weights of losses": {"Alpha": "the step moved logs"},
    "Accumulation, autocast, GradScaler": {"HessMaxEV": "several backward passes"},
    "Reinforcement learning, episode by episode": {"HessMaxEV": "several backward passes"},
}


def test_page_has_a_snippet_for_each_loop() -> None:
    assert len(SNIPPETS) == 15


@pytest.mark.filterwarnings("ignore", "error:Cockpit.*failed")  # ignored: those of the libraries that a snippet imports
@pytest.mark.parametrize("title", SNIPPETS)
def test_snippet_runs_and_has_what_the_page_says(title: str, tmp_path: Path) -> None:
    if title == "Hugging Face":
        let_torchvision_be_imported()
    before, names = os.getcwd(), {}
    os.chdir(tmp_path)
    try:
        exec(compile(SNIPPETS[title], f"docs/loops.md: {title}", "exec"), names)
    finally:
        os.chdir(before)
        for run in list(ALIVE):
            run.close()
    assert torch.autograd.backward.__module__ == "torch.autograd"
    data, refused = cockpit_core.load(tmp_path / names["run"].logdir), NO_VALUE.get(title, {})
    reasons = {missing.name: missing.reason for missing in data.missing}
    for name, reason in refused.items():
        assert reason in reasons[name]
    for name in {*QUANTITIES} - {*refused}:
        if not (name == "NormTest" and title == "Graphs with batch vectors"):
            assert len(by_step(data, name)) == 3, (name, reasons)
    assert bool(data.alphas) == ("Alpha" not in refused), reasons
    for name in ("AlphaOwnBatch", "BatchSharpness"):
        if name in {quantity.name for quantity in data.header.quantities}:
            assert len(by_step(data, name)) == 3, (name, reasons)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore", "error:Cockpit.*failed")
def test_trainer_of_hugging_face_has_every_panel_of_full_with_its_default_attention(tmp_path: Path) -> None:
    """One line, no individual losses handed over: read from the graph they are the same as handed over by hand."""
    let_torchvision_be_imported()
    pytest.importorskip("accelerate", reason="the Hugging Face Trainer needs accelerate (torch-cockpit[integrations])")
    from cockpit_core.integrations.huggingface import CockpitCallback

    read = CockpitCallback(tmp_path / "read", config="full", on_error="raise")
    given = CockpitCallback(tmp_path / "given", config="economy", individual_losses=gpt2_losses, on_error="raise")
    for callback in (read, given):
        train_with_trainer(tmp_path / "output", [callback], max_steps=2)
    data, known = cockpit_core.load(tmp_path / "read"), cockpit_core.load(tmp_path / "given")
    planned = {quantity.name for quantity in data.header.quantities}
    assert {"Alpha", "HessTrace", "HessMaxEV", "TICDiag", "GradHist1d", "GradHist2d"} <= planned
    assert {missing.name for missing in data.missing} <= {"TICDiag"}
    assert {name for name in planned if name in data.names} >= {"Loss", "NormTest", "HessTrace", "HessMaxEV"}
    assert data.alphas
    assert [fit.alpha for fit in data.alphas] == pytest.approx([fit.alpha for fit in known.alphas])
    assert data.alphas[0].loss_var_start == pytest.approx(known.alphas[0].loss_var_start, rel=1e-4)
