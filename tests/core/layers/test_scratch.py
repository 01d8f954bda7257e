"""Memory that is used again: what is formed in it is right, and what is formed without it stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.layers.contribution import Contribution, Positions
from cockpit_core.layers.conv import Patches
from cockpit_core.layers.registry import RULES, Call
from cockpit_core.layers.scratch import Scratch


def positions() -> Contribution:
    return Positions(torch.randn(6, 5, 3), torch.randn(6, 5, 4), torch.Size((3, 4)), 6.0)


def patches() -> Contribution:
    module, inputs = nn.Conv2d(4, 6, 3, padding=1, groups=2), torch.randn(6, 4, 5, 5)
    part = RULES[nn.Conv2d](Call(module, (inputs,), {}, 6, 0, training=True), torch.randn(6, 6, 5, 5), 6.0)["weight"]
    assert isinstance(part, Patches)
    return part


@pytest.mark.parametrize("make", [positions, patches])
def test_blocks_are_formed_in_the_same_memory_with_the_same_values(make) -> None:
    part, scratch = make(), Scratch()
    expected = part.form(0, 6)
    addresses, blocks = set(), []
    for lo in (0, 2, 4):
        block = part.form(lo, lo + 2, scratch)
        addresses.add(block.data_ptr())
        blocks.append(block.clone())
    assert len(addresses) == 1
    assert torch.equal(torch.cat(blocks), expected)


@pytest.mark.parametrize("make", [positions, patches])
def test_gradients_formed_without_scratch_are_not_overwritten(make) -> None:
    part = make()
    first = part.form(0, 3)
    before = first.clone()
    part.form(3, 6)
    assert torch.equal(first, before)


def test_scratch_grows_and_keeps_purposes_and_types_apart() -> None:
    scratch, like = Scratch(), torch.zeros(1)

    def take(purpose: str, shape: tuple[int, ...], like: Tensor = like) -> Tensor:
        return scratch.take(purpose, shape, like)

    small = take("gradients", (2, 3)).fill_(1)
    others = [take("patches", (2, 3)), take("gradients", (2, 3), like.double())]
    for other in others:
        other.fill_(2)
    assert torch.equal(small, torch.ones(2, 3))
    large = take("gradients", (5, 4))
    assert large.shape == (5, 4) and large.is_contiguous()
    assert take("gradients", (2, 3)).data_ptr() == large.data_ptr()
