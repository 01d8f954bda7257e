"""Answers that depend on other samples, or on tokens that are asked for: found by exchanging them, silent where they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.engine.forward import Forward
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.recording.mixing import map_tensors, measure_looking_ahead, measure_mixing
from cockpit_core.recording.probes import PREFIX
from cockpit_core.signals.outputs import measure_same
from tests.core.diagnosis.test_diagnoses import put
from tests.histories import find


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


def write(model: nn.Module, logdir: Path, shifted: bool = True, same: bool = False) -> dict:
    g, optimizer = torch.Generator().manual_seed(3), torch.optim.Adam(model.parameters(), lr=3e-3)
    with cockpit_core.track(model, optimizer=optimizer, logdir=logdir, config="economy", schedule=2):
        for _ in range(50):
            text = (
                torch.randint(0, 7, (16, 1), generator=g) + torch.arange(9) * torch.randint(1, 3, (16, 1), generator=g)
            ) % 7
            y = text[:, :-1] if same else text[:, 1:] if shifted else text[:, :-1].flip(1)
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


@pytest.mark.parametrize("causal", [True, False])
def test_only_a_network_that_sees_no_later_place_should_be_asked_for_the_next_token(
    causal: bool, tmp_path: Path
) -> None:
    """One that sees all of a text may have to give it back: an autoencoder."""
    found = write(Writer(causal), tmp_path, same=True)
    assert {name: finding.severity for name, finding in found.items() if name.startswith("target")} == (
        {"targets_not_shifted": "likely"} if causal else {"targets_not_shifted": "advice"}
    )
    assert found["targets_not_shifted"].retracted is not causal


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


# ---- right programs in which answers depend on one another ----


def forward_of(model: nn.Module, *args: Tensor) -> Forward:
    return Forward.of(model, args, {}, len(args[0]))


class Pairs(nn.Module):
    """Pictures and captions: how well does each fit each?"""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b.T


def test_a_table_of_all_pairs_is_no_mixing() -> None:
    with pytest.raises(NotRepeatable, match="compared with all others"):
        measure_mixing(Pairs(), forward_of(Pairs(), torch.randn(8, 3), torch.randn(8, 3)), 0)


def test_rows_of_many_sizes_are_the_parts_of_one_thing() -> None:
    def mixing(sizes: list[float]) -> dict:
        return put(**{"probe/mixed": 0.5, "probe/half": 1.0}, samples=lambda i: sizes[i % len(sizes)])

    assert "samples_mixed" in find(mixing([32.0, 32.0, 32.0, 20.0]))
    assert "samples_mixed" not in find(mixing([7.0, 12.0, 9.0, 15.0]))


class Translator(nn.Module):
    def __init__(self, causal: bool):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.causal = nn.Embedding(9, 8), causal

    def forward(self, source: Tensor, written: Tensor, mask: Tensor) -> Tensor:
        h = self.tokens(written)
        seen = h.cumsum(1) if self.causal else h.flip(1).cumsum(1)
        return seen + (self.tokens(source) * mask[..., None]).mean(1, keepdim=True)


@pytest.mark.parametrize("causal", [True, False])
def test_a_decoder_may_see_all_that_is_translated(causal: bool) -> None:
    mask = (torch.arange(8) < torch.randint(3, 9, (6, 1))).long()
    model, texts = Translator(causal), torch.randint(0, 9, (2, 6, 8))
    moved = measure_looking_ahead(model, forward_of(model, *texts, mask))
    assert moved < 1e-6 if causal else moved > 0.01


class WithLoss(nn.Module):
    def forward(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.eye(9)[x]
        return (h.sum(-1) * labels).mean(), h.flip(1).cumsum(1)


def test_labels_beside_a_text_do_not_hide_that_it_is_seen() -> None:
    x = torch.randint(0, 9, (6, 8))
    labels = torch.where(torch.rand(6, 8) < 0.3, -100, x)
    assert measure_looking_ahead(WithLoss(), forward_of(WithLoss(), x, labels)) > 0.01
    assert measure_looking_ahead(WithLoss(), forward_of(WithLoss(), x, x.clone())) > 0.01


def test_a_text_that_hardly_changes_has_next_tokens_that_tell_nothing() -> None:
    x = torch.randint(2, 12, (8, 3)).repeat_interleave(20, 1)
    x[:, 20:40] = x[:, :20] + 12  # a change at each border
    assert measure_same([x], x).value["target_is_next"] == 0
    assert measure_same([x[:, :-1]], x[:, 1:]).value["target_is_next"] == 1
    assert measure_same([torch.zeros(4, 6).long()], torch.zeros(4, 6).long()).value["target_is_next"] == 0


def test_targets_that_are_shifted_twice() -> None:
    x = torch.randint(0, 12, (8, 20))
    for shift, name in ((1, "target_is_next"), (2, "target_is_later")):
        seen = measure_same([x[:, :-2]], x[:, shift : 18 + shift]).value
        assert {key: value for key, value in seen.items() if value > 0.5} == {name: 1}
    found = find(put(target_is_next=0.1, target_is_later=1.0))
    assert found["targets_not_shifted"].text.startswith("The targets are shifted twice")
    assert find(put(target_is_next=1.0, target_is_later=1.0)) == {}, "one and the same pair of tokens all the time"


def test_a_text_that_is_seen_by_way_of_other_samples() -> None:
    """Heads are taken apart with view: places of one sample end up in others."""
    seen = {
        "probe/mixed": 0.04,
        "probe/half": 1.0,
        "probe/looks_ahead": 0.03,
        "probe/ahead": 1.0,
        "target_is_next": 1.0,
    }
    found = find(put(**seen))
    assert list(found) == ["samples_mixed"]
    assert found["samples_mixed"].severity != "advice"
    assert found["samples_mixed"].explains == ["target_in_inputs"]
