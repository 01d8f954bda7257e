"""Which generators a call may have drawn from: torch's alone, where nothing but torch runs in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from cockpit_core.engine.capture import BeforeCall
from cockpit_core.layers import random_state


class Own(nn.MultiheadAttention):
    """Of the user: it may do anything."""


def add_noise(module: nn.Module, args: tuple, output: object) -> None:
    np.random.rand()


def of_attention(change: Callable[[nn.Module], object] = lambda module: None) -> BeforeCall:
    module = nn.MultiheadAttention(8, 2, dropout=0.5)
    change(module)
    x = torch.randn(3, 2, 8)
    return BeforeCall.of(module, (x, x, x), {})


def put_forward(module: nn.Module) -> None:
    module.forward = lambda *args, **kwargs: (args[0], None)  # type: ignore[method-assign]


def test_of_torch_alone_only_its_generators_are_noted() -> None:
    before = of_attention()
    assert before.state.is_of_torch
    assert before.random_state.keys() == {torch.device("cpu")}
    assert random_state.is_same(before.random_state, random_state.take([], of_torch=True))
    torch.rand(1)
    assert not random_state.is_same(before.random_state, random_state.take([], of_torch=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.register_forward_hook(add_noise),
        lambda module: module.out_proj.register_forward_pre_hook(lambda *args: None),
        put_forward,
        lambda module: setattr(module, "inner", Own(8, 2)),
        lambda module: setattr(module, "sampler", add_noise),
    ],
    ids=["hook", "hook inside", "forward of its own", "module of the user", "function of the user"],
)
def test_where_code_of_the_user_may_run_all_are_noted(change: Callable[[nn.Module], object]) -> None:
    before = of_attention(change)
    assert not before.state.is_of_torch
    assert {"numpy", "python"} < before.random_state.keys()


def test_hooks_on_all_modules_and_modes_are_code_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = register_module_forward_hook(add_noise)
    try:
        assert not of_attention().state.is_of_torch
    finally:
        handle.remove()

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Mode():
        assert not of_attention().state.is_of_torch
    assert of_attention().state.is_of_torch

    def forward(self: nn.Module, *args: Tensor) -> tuple[Tensor, None]:
        return args[0] + np.random.rand(), None

    monkeypatch.setattr(nn.MultiheadAttention, "forward", forward)
    assert not of_attention().state.is_of_torch
