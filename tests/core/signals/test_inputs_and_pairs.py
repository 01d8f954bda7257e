"""Which inputs are looked at, and whether inputs and targets belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core.signals.inputs import measure_inputs
from cockpit_core.signals.targets import measure_pairs
from cockpit_core.signals.tensors import choose_inputs

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
