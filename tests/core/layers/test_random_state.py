"""What is drawn again is the same, and no generator notices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cockpit_core.layers.random_state import is_same, restored, take


def test_the_same_is_drawn_again_and_nobody_notices() -> None:
    state = take([torch.ones(2)])
    first = torch.rand(3)
    after = take([])
    assert not is_same(state, after)
    with restored(state):
        assert torch.equal(torch.rand(3), first)
    assert is_same(after, take([]))


def test_generators_are_put_back_after_an_error() -> None:
    state = take([])
    torch.rand(3)
    after = take([])
    with pytest.raises(ZeroDivisionError), restored(state):
        1 / int(torch.rand(1))
    assert is_same(after, take([]))


def test_without_a_state_nothing_is_put_back() -> None:
    before = take([])
    with restored(None):
        torch.rand(3)
    assert not is_same(before, take([]))


def test_generators_of_accelerators_are_read_and_put_back(monkeypatch) -> None:
    """No accelerator here: a stand-in for the part of torch that knows about it."""
    states = {torch.device("cuda", 1): torch.tensor([7])}
    module = SimpleNamespace(get_rng_state=lambda device: states[device].clone())
    module.set_rng_state = lambda state, device: states.update({device: state})
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    taken = take([SimpleNamespace(device=torch.device("cuda", 1))])  # type: ignore[list-item]
    states[torch.device("cuda", 1)] = torch.tensor([8])
    with restored(taken):
        assert int(states[torch.device("cuda", 1)]) == 7
        states[torch.device("cuda", 1)] = torch.tensor([9])
    assert int(states[torch.device("cuda", 1)]) == 8
