"""DeadUnits, Saturation, ActivationScale, AttentionEntropy: read from the graph, against a forward pass by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import cockpit_core
from cockpit_core import quantities as q
from cockpit_core.engine import activations
from tests.networks import NETWORKS, Decoder
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, loop

NAMES = ("DeadUnits", "Saturation", "ActivationScale", "AttentionEntropy")


def config() -> list[q.Quantity]:
    return [getattr(q, name)() for name in NAMES]


class Convolutional(nn.Module):
    """Functions and modules, in place and not, with units that die and ends that saturate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5)
        self.line, self.deep, self.head = nn.Linear(20, 8), nn.Linear(8, 7), nn.Linear(7, 3)
        with torch.no_grad():
            self.norm.bias[1:3] = -50.0
            self.line.bias[0] = -50.0
            self.deep.bias[:4] = 9.0

    def forward(self, x: Tensor, seen: Callable[[str, Tensor], Tensor] = lambda name, h: h) -> Tensor:
        h = seen("norm.weight", F.relu(self.norm(self.conv(x)), inplace=True))
        h = seen("line.weight", F.gelu(self.line(h.flatten(1)).relu()))
        return self.head(seen("deep.weight", torch.tanh(self.deep(h))))


def track_once(model: nn.Module, loss_fn: nn.Module, batches: list, logdir: Path) -> cockpit_core.RunData:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config(), on_error="raise") as run:
        loop(model, loss_fn, optimizer, batches)
    return run.data


def test_convolutions_and_functions_are_the_truth(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x, y = Convolutional().double(), torch.randn(6, 2, 4, 4).double(), torch.randint(3, (6,))
    seen: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(lambda m, a, out, name=name: outputs.__setitem__(name, out.detach().clone()))
        for name, module in model.named_children()
    ]
    logits = model(x, lambda name, h: seen.setdefault(name, h.clone()))
    for handle in handles:
        handle.remove()
    data = track_once(model, nn.CrossEntropyLoss(), [(x, y)], tmp_path / "run")
    dead = seen["norm.weight"].amax((0, 2, 3)) == 0
    assert by_step(data, "DeadUnits", "norm.weight")[0] == pytest.approx(dead.double().mean().item())
    assert dead.sum() >= 2
    line_dead = (outputs["line"].relu().amax(0) == 0).sum()
    assert by_step(data, "DeadUnits", "line.weight")[0] == pytest.approx(line_dead.item() / 8)
    assert by_step(data, "DeadUnits")[0] == pytest.approx((dead.sum() + line_dead).item() / 13)
    stuck = (seen["deep.weight"].abs() > 0.99).double().mean().item()
    assert by_step(data, "Saturation", "deep.weight")[0] == pytest.approx(stuck)
    assert by_step(data, "Saturation")[0] == pytest.approx(stuck)
    assert 0.3 < stuck < 0.9
    for name, h in outputs.items():
        rms = h.square().mean().sqrt().item()
        assert by_step(data, "ActivationScale", f"{name}.weight")[0] == pytest.approx(rms, rel=1e-6)
    assert by_step(data, "ActivationScale")[0] == pytest.approx(logits.square().mean().sqrt().item(), rel=1e-9)
    sizes = seen["deep.weight"].abs().mean(0)
    dormant = (sizes <= 0.025 * sizes.mean()).double().mean().item()
    assert data.scalars("DeadUnits/dormant", "deep.weight")[1][0] == pytest.approx(dormant)
    assert {m.name: m.reason for m in data.missing} == {
        "AttentionEntropy": "no attention was seen between the parameters and the loss"
    }
    assert not data.estimates


def weights_by_hand(qkv: Tensor, heads: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Logits and attention weights [B, heads, L, L] of projected queries, keys and values [B, L, 3 E]."""
    query, key, _ = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if causal:
        scores = scores + torch.full_like(scores, -math.inf).triu(1)
    return scores, torch.softmax(scores, -1)


def entropy_by_hand(p: Tensor) -> float:
    return float(np.mean([-sum(v * math.log(v) for v in row if v > 0) for row in p.flatten(0, -2).tolist()]))


class Causal(Decoder):
    """With heads: four dimensions, which the fused kernels take."""

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.embedding(tokens)
        parts = self.query_key_value(self.norm(h)).chunk(3, -1)
        heads = (part.unflatten(-1, (2, 2)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        return self.output(h + self.project(mixed)).transpose(1, 2)


@pytest.mark.parametrize(("build", "heads"), [(Causal, 2), (Decoder, 1)])
def test_causal_attention_is_the_truth(build: type[Decoder], heads: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, tokens, labels = build().double(), torch.randint(7, (4, 4)), torch.randint(7, (4, 4))
    with torch.no_grad():
        model.query_key_value.weight.mul_(4)
    qkv = model.query_key_value(model.norm(model.embedding(tokens))).detach()
    data = track_once(model, nn.CrossEntropyLoss(), [(tokens, labels)], tmp_path / "run")
    scores, p = weights_by_hand(qkv, heads, causal=True)
    expected = entropy_by_hand(p)
    assert by_step(data, "AttentionEntropy")[0] == pytest.approx(expected, rel=1e-9)
    assert by_step(data, "AttentionEntropy", "query_key_value.weight")[0] == pytest.approx(expected, rel=1e-6)
    if build is Causal:
        largest = scores[scores > -math.inf].abs().max().item()
        assert data.scalars("AttentionEntropy/largest_logit")[1][0] == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize("name", ["attention", "encoder_layer"])
def test_torchs_own_attention_and_its_relu_are_the_truth(name: str, tmp_path: Path) -> None:
    model, loss_fn, batches = NETWORKS[name].make()
    ((x, y),) = batches(1)
    inner = model.inner.self_attn if name == "encoder_layer" else model.inner
    qkv = F.linear(x, inner.in_proj_weight, inner.in_proj_bias).detach()
    hidden = []
    if name == "encoder_layer":
        handle = model.inner.linear1.register_forward_hook(lambda m, a, out: hidden.append(out.detach().relu()))
        model(x)
        handle.remove()
    data = track_once(model, loss_fn, [(x, y)], tmp_path / "run")
    expected = entropy_by_hand(weights_by_hand(qkv, 2, causal=False)[1])
    assert by_step(data, "AttentionEntropy")[0] == pytest.approx(expected, rel=1e-9)
    for h in hidden:
        dead = (h.amax((0, 1)) == 0).double().mean().item()
        assert by_step(data, "DeadUnits", "inner.linear1.weight")[0] == pytest.approx(dead)


def test_lstm_says_what_it_does_not_show(tmp_path: Path) -> None:
    model, loss_fn, batches = NETWORKS["lstm"].make()
    ((x, y),) = batches(1)
    out = model.inner(x)[0].detach()
    data = track_once(model, loss_fn, [(x, y)], tmp_path / "run")
    assert {m.name for m in data.missing} >= {"AttentionEntropy"}
    rms = out.square().mean().sqrt().item()
    assert by_step(data, "ActivationScale", "inner.weight_ih_l0")[0] == pytest.approx(rms, rel=1e-6)


def test_micro_batches_are_one_batch(tmp_path: Path) -> None:
    found = []
    for parts in ([slice(0, 6)], [slice(0, 2), slice(2, 6)]):
        torch.manual_seed(0)
        model, x, y = Convolutional().double().eval(), torch.randn(6, 2, 4, 4).double(), torch.randint(3, (6,))
        loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
        logdir = tmp_path / f"{len(parts)}"
        with cockpit_core.track(model, loss_fn, optimizer, logdir, config=config(), on_error="raise") as run:
            for part in parts:
                (loss_fn(model(x[part]), y[part]) * len(x[part]) / 6).backward()
            optimizer.step()
        names = ("DeadUnits", "DeadUnits/dormant", "Saturation", "ActivationScale")
        found.append([run.data.scalars(name)[1].tolist() for name in names])
    assert found[0] == [pytest.approx(values) for values in found[1]]


def test_large_activations_are_looked_at_in_part_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "MOST", 64)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model[0].bias[:2] = -50.0
    data = track_once(model, nn.CrossEntropyLoss(), [(torch.randn(64, 5), torch.randint(3, (64,)))], tmp_path / "run")
    assert by_step(data, "DeadUnits")[0] == 0.25
    assert "of the elements" in data.estimates["DeadUnits"].methods[0]


def test_part_of_an_output_meets_all_of_its_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: every third element of an output with three features was always the same feature."""
    monkeypatch.setattr(activations, "MOST", 1000)
    monkeypatch.setattr(activations, "AT_ONCE", 1000)
    for features in (3, 4, 30, 97):
        output = torch.ones(8, 3000 // features + 1, features)
        output[..., 0] = 10.0
        found = activations.measure_scale("", output)
        assert found.part < 0.5
        assert found.squares / found.elements == pytest.approx(float(output.square().mean()), rel=0.1), features


def test_checkpointed_activations_are_not_recomputed(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.calls = nn.Sequential(nn.Linear(4, 5), nn.ReLU()), 0
            self.head = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            def run(x: Tensor) -> Tensor:
                self.calls += 1
                return self.block(x)

            return self.head(checkpoint(run, x, use_reentrant=False))

    torch.manual_seed(0)
    model = Block()
    data = track_once(model, nn.CrossEntropyLoss(), [(torch.randn(6, 4), torch.randint(3, (6,)))], tmp_path / "run")
    assert model.calls == 2
    assert "checkpointed" in {m.name: m.reason for m in data.missing}["DeadUnits"]


@pytest.mark.parametrize("problem", ["cnn", "dropout", "encoder_layer", "lstm"])
def test_watching_is_neutral(problem: str, tmp_path: Path) -> None:
    ends = []
    for tracked in (False, True):
        model, loss_fn, batches = {**PROBLEMS, **NETWORKS}[problem].make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        torch.manual_seed(1)
        run = tracked and cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config())
        loop(model, loss_fn, optimizer, batches(3))
        ends.append([*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()])
        if run:
            run.close()
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
