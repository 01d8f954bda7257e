"""Answers that depend on other samples, or on tokens that are asked for: found by exchanging them, silent where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.recording.mixing import map_tensors
from cockpit_core.recording.probes import PREFIX


class Reader(nn.Module):
    """Which of four tokens stands at the place that the first token names: nothing can be known without attention."""

    def __init__(self, batch_first: bool):
        super().__init__()
        self.tokens, self.places = nn.Embedding(8, 16), nn.Parameter(torch.randn(6, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=batch_first)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.tokens(x) + self.places)[:, 0])


class Nodes(nn.Module):
    """Rows that belong together, and a table that says how."""

    def __init__(self, samples: int):
        super().__init__()
        self.register_buffer("beside", torch.eye(samples).roll(1, 0))
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.beside @ x.float())


def train(model: nn.Module, logdir: Path, steps: int = 130) -> list:
    g = torch.Generator().manual_seed(3)
    optimizer, loss_fn = torch.optim.Adam(model.parameters(), lr=3e-3), nn.CrossEntropyLoss()
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config="economy", schedule=2):
        for _ in range(steps):
            x = torch.randint(4, 8, (32, 6), generator=g)
            y = x[:, 3] - 4
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
    return cockpit_core.diagnose(logdir)


def test_attention_over_the_batch_is_named(tmp_path: Path) -> None:
    torch.manual_seed(0)
    found = {finding.name: finding for finding in train(Reader(False), tmp_path)}
    assert found["samples_mixed"].severity == "likely"
    assert "batch_first" in found["samples_mixed"].remedy
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "mixed")[1].min() > 0.02


def test_samples_that_are_answered_alone_are_not(tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert "samples_mixed" not in {finding.name for finding in train(Reader(True), tmp_path)}
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "mixed")[1].max() < 1e-6


def test_the_nodes_of_a_graph_are_no_samples(tmp_path: Path) -> None:
    torch.manual_seed(0)
    assert "samples_mixed" not in {finding.name for finding in train(Nodes(32), tmp_path)}
    data = cockpit_core.load(tmp_path)
    assert data.scalars(PREFIX + "half")[1].max() == 0
    with pytest.raises(KeyError):
        data.scalars(PREFIX + "mixed")


def test_the_number_is_that_of_a_model_of_its_own(tmp_path: Path) -> None:
    """At a step where the probe was made: the same answers with the second half exchanged, from a copy in eval mode."""
    torch.manual_seed(0)
    model, g = nn.Sequential(nn.Linear(5, 8), Centred(), nn.Dropout(0.5), nn.Linear(8, 3)), torch.Generator()
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=1e-4), nn.CrossEntropyLoss()
    expected = {}
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=1):
        for step in range(40):
            x, y = torch.randn(12, 5, generator=g), torch.randint(0, 3, (12,), generator=g)
            model.eval()
            with torch.no_grad():
                a, b = model(x)[:6], model(torch.cat([x[:6], x[:6]]))[:6]
            expected[step] = float((a - b).norm() / a.norm())
            model.train()
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()
    steps, values = cockpit_core.load(tmp_path).scalars(PREFIX + "mixed")
    assert len(steps) >= 1
    for step, value in zip(steps.tolist(), values.tolist(), strict=True):
        assert value == pytest.approx(expected[step], rel=1e-4)


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_inputs_of_unknown_kinds_are_refused() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(2, 2)])
    with pytest.raises(NotRepeatable):
        map_tensors((packed,), lambda t: t)


# ---- texts ----


class Writer(nn.Module):
    """One block of attention over a text; with ``labels`` it gives its loss as well."""

    def __init__(self, causal: bool):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(7, 16), nn.Parameter(torch.randn(8, 16))
        self.qkv, self.head, self.causal, self.dropout = nn.Linear(16, 48), nn.Linear(16, 7), causal, nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.tokens(x) + self.places).chunk(3, -1)
        causal = self.causal or not self.training  # right in evaluation, wrong in training
        return self.head(self.dropout(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)))


def write(model: nn.Module, logdir: Path, shifted: bool = True) -> dict:
    g, optimizer = torch.Generator().manual_seed(3), torch.optim.Adam(model.parameters(), lr=3e-3)
    with cockpit_core.track(model, optimizer=optimizer, logdir=logdir, config="economy", schedule=2):
        for _ in range(50):
            text = (
                torch.randint(0, 7, (16, 1), generator=g) + torch.arange(9) * torch.randint(1, 3, (16, 1), generator=g)
            ) % 7
            y = text[:, 1:] if shifted else text[:, :-1].flip(1)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
    return {finding.name: finding for finding in cockpit_core.diagnose(logdir)}


def test_a_text_that_sees_its_next_token(tmp_path: Path) -> None:
    found = write(Writer(False), tmp_path)
    assert found["target_in_inputs"].severity == "broken"
    assert "is_causal" in found["target_in_inputs"].remedy


def test_one_with_a_mask_does_not(tmp_path: Path) -> None:
    assert "target_in_inputs" not in write(Writer(True), tmp_path)
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "looks_ahead")[1].max() < 1e-5


def test_a_tagger_may_look_at_all_of_its_text(tmp_path: Path) -> None:
    assert "target_in_inputs" not in write(Writer(False), tmp_path, shifted=False)
    with pytest.raises(KeyError):
        cockpit_core.load(tmp_path).scalars(PREFIX + "ahead")


def test_looking_ahead_leaves_no_trace(tmp_path: Path) -> None:
    def train(logdir: Path | None) -> tuple[dict, Tensor]:
        model = Writer(False)
        torch.manual_seed(5)
        if logdir:
            write(model, logdir)
        else:
            g, optimizer = torch.Generator().manual_seed(3), torch.optim.Adam(model.parameters(), lr=3e-3)
            for _ in range(50):
                start, pace = torch.randint(0, 7, (16, 1), generator=g), torch.randint(1, 3, (16, 1), generator=g)
                text = (start + torch.arange(9) * pace) % 7
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
                optimizer.step()
        return model.state_dict(), torch.get_rng_state()

    (plain, random), (tracked, after) = train(None), train(tmp_path)
    assert cockpit_core.load(tmp_path).scalars(PREFIX + "ahead")[1].max() == 1
    assert all(torch.equal(plain[name], tracked[name]) for name in plain)
    assert torch.equal(random, after)
