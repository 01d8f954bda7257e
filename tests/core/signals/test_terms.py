"""What signals see of losses of several terms, of masks, and of sequences."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals.targets import as_columns, measure_labels, measure_likeness


def record(tmp_path, model: nn.Module, compute, steps: int = 3) -> dict[str, list[float]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with cockpit_core.track(model, None, optimizer, tmp_path, config=("Loss",), schedule=1, on_error="raise"):
        for step in range(steps):
            optimizer.zero_grad()
            compute(model, step).backward()
            optimizer.step()
    return {name: column.get()[1].tolist() for name, column in load(tmp_path).table.columns.items()}


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_known_term_of_a_loss_is_told_by_itself(tmp_path, factor: float) -> None:
    torch.manual_seed(0)
    x, y, terms = torch.randn(12, 5), torch.arange(12) % 4, []

    def compute(model, step):
        z = model(x)
        terms.append(factor * F.cross_entropy(z, y).item())
        return factor * F.cross_entropy(z, y) + 3 * z.square().mean()

    columns = record(tmp_path, nn.Linear(5, 4), compute)
    assert columns["signal/loss_term"] == pytest.approx(terms, rel=1e-5)


def test_a_loss_of_one_term_is_all_of_it(tmp_path) -> None:
    x, y = torch.randn(12, 5), torch.arange(12) % 4
    columns = record(tmp_path, nn.Linear(5, 4), lambda model, step: F.cross_entropy(model(x), y))
    assert "signal/loss_term" not in columns


def test_a_channel_that_shows_the_mask() -> None:
    torch.manual_seed(0)
    mask = (torch.rand(6, 1, 9, 9) > 0.7).float()
    x = torch.cat([torch.randn(6, 2, 9, 9), mask], 1)
    for y in (mask, mask[:, 0], mask[:, 0].long()):
        assert measure_likeness(*as_columns(x, y)).value == {
            "input_target": pytest.approx(1.0), "input_target_where": 2.0,
        }  # fmt: skip
    assert measure_likeness(*as_columns(x[:, :2], mask)).value["input_target"] < 0.2
    assert measure_likeness(*as_columns(x[:, 2:], mask)).value == {}  # a reconstruction
    table, goal = torch.randn(9, 4), torch.randn(9)
    assert as_columns(table, goal)[0] is table


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.before, self.out = nn.Embedding(9, 8), nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, source, before):
        return self.out(self.source(source).mean(1, keepdim=True) + self.before(before))


@pytest.mark.parametrize(("shifted", "share"), [(False, 1.0), (True, 0.0)])
def test_a_decoder_that_is_given_its_targets(tmp_path, shifted: bool, share: float) -> None:
    """Not the first of its inputs, but the second."""
    source, target = torch.arange(30).view(6, 5) % 9, torch.arange(24).view(6, 4) % 9
    before = target.roll(1, 1) if shifted else target

    def compute(model, step):
        return F.cross_entropy(model(source, before).flatten(0, 1), target.flatten())

    assert record(tmp_path, Decoder(), compute)["signal/target_is_input"] == [share] * 3


class WithLabels(Decoder):
    """Labels go through the forward pass and are not looked up: so do many models that return their loss."""

    def forward(self, source, labels):
        return self.out(self.source(source)), labels


def test_labels_that_are_handed_to_the_model_are_no_inputs(tmp_path) -> None:
    source, target = torch.arange(24).view(6, 4) % 9, (torch.arange(24).view(6, 4) + 1) % 9

    def compute(model, step):
        scores, labels = model(source, target)
        return F.cross_entropy(scores.flatten(0, 1), labels.flatten())

    assert record(tmp_path, WithLabels(), compute)["signal/target_is_input"] == [0.0] * 3


def test_several_labels_of_a_sample_are_one_mean() -> None:
    labels = torch.randint(0, 7, (8, 5))
    numbers = measure_labels(labels.flatten(), 8).value
    rows = labels.double().mean(1)
    assert numbers["target_rows"] == 8
    assert numbers["target_mean"] == pytest.approx(float(rows.mean()))
    assert numbers["target_variance"] == pytest.approx(float(rows.var(correction=0)))
    assert "target_rows" not in measure_labels(labels.flatten()[:-1], 8).value
    labels[0, 0] = -100
    assert "target_rows" not in measure_labels(labels.flatten(), 8, -100).value


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.cell, self.out = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, codes, state):
        h, _ = self.cell(self.table(codes), state)
        return self.out(h)


def test_codes_are_the_input_and_a_state_is_not(tmp_path) -> None:
    """The same text again and again, with a state that changes: the batch is the same."""
    codes = torch.arange(24).view(6, 4) % 9

    def compute(model, step):
        return F.cross_entropy(model(codes, torch.randn(1, 6, 8)).flatten(0, 1), codes.roll(1, 1).flatten())

    columns = record(tmp_path, Reader(), compute)
    assert len(set(columns["signal/batch_checksum"])) == 1
    assert "signal/input_rms" not in columns


def test_several_calls_of_a_step_are_counted(tmp_path) -> None:
    fixed, model = torch.zeros(1, 5), nn.Linear(5, 4)

    def compute(model, step):
        return model(torch.randn(6, 5)).square().mean() + model(fixed).square().sum()

    assert record(tmp_path, model, compute)["signal/calls"] == [2, 2, 2]
