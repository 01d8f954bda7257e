"""Which inputs are looked at, and whether inputs and targets belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.signals.inputs import measure_checksum, measure_codes, measure_inputs
from cockpit_core.signals.order import Order
from cockpit_core.signals.targets import mark_order, measure_labels, measure_likeness, measure_pairs, measure_targets
from cockpit_core.signals.tensors import choose_inputs, identify_by

B = 16
CODES, NUMBERS = torch.randint(5, (B, 3)), torch.randn(B, 4)


def test_numbers_beside_categories_are_inputs() -> None:
    numbers, codes = choose_inputs([CODES, NUMBERS], B)
    assert numbers is NUMBERS
    assert codes is CODES


@pytest.mark.parametrize("other", [torch.ones(B, 3), torch.randn(2, B, 8), torch.rand(B), torch.randn(7, 4)])
def test_masks_states_and_weights_beside_codes_are_none(other: torch.Tensor) -> None:
    assert choose_inputs([CODES, other], B) == (None, CODES)


def test_numbers_first_are_all() -> None:
    assert choose_inputs([NUMBERS, CODES], B) == (NUMBERS, None)
    assert choose_inputs([CODES], B) == (None, CODES)


def test_nothing_but_zeros_beside_codes_is_a_state() -> None:
    assert measure_inputs(torch.zeros(B, 4), True).value == {}
    assert measure_inputs(torch.zeros(B, 4)).value["input_constant"] == 1


def test_columns_of_a_table_with_categories_are_on_record(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(5, 4), nn.Linear(16, 1)

        def forward(self, kinds: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
            return self.out(torch.cat([self.table(kinds).flatten(1), numbers], 1))[:, 0]

    model, loss_fn = Net(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path, config="economy", schedule=1):
        for _ in range(4):
            numbers = torch.randn(B, 4) * torch.tensor([1.0, 1.0, 0.0, 1.0])
            optimizer.zero_grad()
            loss_fn(model(torch.randint(5, (B, 3)), numbers), numbers[:, 1]).backward()
            optimizer.step()
    data = cockpit_core.load(tmp_path)
    assert data.scalars("signal/input_constant")[1].tolist() == [0.25] * 4
    assert data.scalars("signal/input_target_where")[1].tolist() == [1.0] * 4
    assert len(set(data.scalars("signal/batch_checksum")[1].tolist())) == 4


def test_pictures_are_like_their_own_targets() -> None:
    small = torch.randn(B, 3, 8, 8)
    large = small.repeat_interleave(2, 2).repeat_interleave(2, 3) + 0.1 * torch.randn(B, 3, 16, 16)
    assert measure_pairs(small, large).value["pair_likeness"] > 0.5
    assert abs(measure_pairs(small, large.roll(5, 0)).value["pair_likeness"]) < 0.2
    rows = torch.randn(B, 40)
    assert measure_pairs(rows, rows).value["pair_likeness"] == pytest.approx(1, abs=0.2)


def test_pairs_of_other_shapes_are_not_compared() -> None:
    assert measure_pairs(torch.randn(B, 40), torch.randn(B)).value == {}
    assert measure_pairs(torch.randn(4, 40), torch.randn(4, 40)).value == {}
    assert measure_pairs(torch.zeros(B, 40), torch.randn(B, 40)).value == {}


def test_batches_of_codes_with_the_same_sum_are_others() -> None:
    """One category of a table: the hours of two batches add up to the same by accident, and begin and end alike."""
    hours = torch.tensor([0, 23, 5, 9, 11, 12, 7, 1])
    others = torch.tensor([0, 23, 6, 8, 11, 12, 7, 1])
    first, second, again = (measure_checksum(h).value["batch_checksum"] for h in (hours, others, hours.flip(0)))
    assert abs(first - second) > 1e-6
    assert first == pytest.approx(again, abs=1e-12)


def test_all_codes_and_numbers_tell_batches_apart() -> None:
    hour, day, mask = torch.randint(24, (B,)), torch.randint(7, (B,)), torch.ones(B)
    assert [t is s for t, s in zip(identify_by([hour, NUMBERS, day], B), (hour, day, NUMBERS), strict=True)] == [
        True
    ] * 3
    assert identify_by([hour, mask], B)[0] is hour
    assert len(identify_by([hour, mask], B)) == 1
    assert identify_by([NUMBERS, hour], B)[0] is NUMBERS
    assert identify_by([], B) == []
    one, other = (measure_checksum(hour, d).value["batch_checksum"] for d in (day, (day + 1) % 7))
    assert abs(one - other) > 1e-9


def test_codes_that_are_the_same_for_all_samples() -> None:
    lookups = [torch.zeros(B, dtype=torch.long), torch.arange(B), torch.zeros(B, 5, dtype=torch.long)]
    assert measure_codes("codes", lookups).value == {"codes": 1}
    assert measure_codes("codes", lookups[2:]).value == {}
    assert measure_codes("codes", [torch.zeros(4, dtype=torch.long)]).value == {}


@pytest.mark.parametrize("first", [False, True])
def test_channels_that_hold_one_value(first: bool) -> None:
    x = torch.randn(B, 20, 4)
    x[:, :, 1] = 0.7
    x[:, :, 2] = 1.0  # a mask
    assert measure_inputs(x.transpose(1, 2) if first else x).value["input_stuck"] == 0.25
    assert measure_inputs(x[:, 0]).value["input_stuck"] == 0.25
    assert "input_stuck" not in measure_inputs(torch.full((B, 8, 8), 0.7)).value  # a picture
    assert measure_inputs(torch.zeros(B, 20, 4)).value["input_stuck"] == 0


@pytest.mark.parametrize(("columns", "stuck"), [([1], 0.0), ([1, 2], 0.5)])
def test_one_column_of_ones_is_an_intercept_and_two_are_not(columns: list[int], stuck: float) -> None:
    x = torch.randn(B, 4)
    x[:, columns] = 1.0
    assert measure_inputs(x).value["input_stuck"] == stuck


def test_batches_of_sorted_data_differ_from_one_another() -> None:
    torch.manual_seed(0)
    data = torch.randn(40 * B, 12)
    data[:, :4] += torch.arange(40).repeat_interleave(B)[:, None] % 5
    sorted_, shuffled = Order(), Order()
    apart = [sorted_.compare(part.numpy()) for part in data.split(B)]
    mixed = [shuffled.compare(part.numpy()) for part in data[torch.randperm(len(data))].split(B)]
    assert apart[0] == {}
    shifts, usual = ([n["input_shift"] for n in numbers[1:]] for numbers in (apart, mixed))
    assert 0.3 < sum(usual) / len(usual) < 2
    assert max(usual) < 6
    assert sorted(shifts)[len(shifts) // 2] > 4
    assert Order().compare(data[:B, :3].numpy()) == {}


def test_targets_among_the_places_of_a_sequence() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(B, 26, 3), torch.randn(B, 6)
    none = measure_likeness(x, y).value
    assert none["targets_found"] == 0
    x[:, 20:, 1] = 3 * y + 1
    assert measure_likeness(x, y).value["targets_found"] == 1
    x[:, 21:, 1] = 0
    found = measure_likeness(x, y).value
    assert found["targets_found"] == pytest.approx(1 / 6)
    assert found["input_target_where"] == 20 * 3 + 1
    assert measure_likeness(torch.randn(B, 8), y).value == {}  # a state and its next one, perhaps


def test_a_feature_that_only_rises_with_the_target_gives_it_away() -> None:
    torch.manual_seed(0)
    count = torch.poisson(torch.full((B,), 4.0))
    x = torch.stack([torch.randn(B), (0.7 * count).log1p()], 1)
    assert torch.corrcoef(torch.stack([x[:, 1], count]))[0, 1] < 0.999
    assert measure_likeness(x, count).value == {"input_target": pytest.approx(1), "input_target_where": 1}
    x[:, 1] += 0.3 * torch.randn(B)
    assert measure_likeness(x, count).value["input_target"] < 0.999


def test_targets_in_one_order_have_one_mark() -> None:
    labels, values = torch.randint(0, 5, (40,)), torch.randn(40, 3)
    other = labels.clone()
    other[7], other[8] = (labels[7] + 1) % 5, labels[7]
    marks = [measure_labels(y, 40).value["target_order"] for y in (labels, labels.clone(), other)]
    assert marks[0] == marks[1] != marks[2]
    assert measure_targets(values).value["target_order"] != measure_targets(values.flip(0)).value["target_order"]


@pytest.mark.parametrize(
    "targets",
    [
        torch.arange(32) // 4,  # sorted
        torch.arange(32) % 4,  # an episode
        torch.zeros(32, dtype=torch.long),
        torch.arange(32).roll(16),  # the other picture of the same thing, half a batch away
        torch.arange(32) ^ 1,  # or beside it
        torch.randint(0, 5, (12,)),  # so few are alike by accident
    ],
)
def test_targets_that_are_the_same_by_design_have_none(targets: torch.Tensor) -> None:
    assert mark_order(targets.numpy()) == {}
