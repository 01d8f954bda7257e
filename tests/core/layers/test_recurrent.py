"""The rule of recurrent modules against one backward pass per sample through the whole module."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.layers import recurrent_slopes
from cockpit_core.layers.fallback import fallback
from cockpit_core.layers.random_state import take
from cockpit_core.layers.recurrent import keep_hidden, known_hidden, recurrence
from cockpit_core.layers.registry import Call
from cockpit_core.layers.seeds import flatten_tensors

B, T, F, H = 4, 5, 3, 2
KINDS: dict[str, Any] = {
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
}


def call_of(module: nn.RNNBase, positions: tuple[int, ...], given: bool = False) -> tuple[Call, dict[int, Tensor]]:
    torch.manual_seed(1)
    x = torch.randn((B, T, F) if module.batch_first else (T, B, F)).double()
    rows = module.num_layers * (2 if module.bidirectional else 1)
    states = tuple(torch.randn(rows, B, H).double() for _ in range(2 if module.mode == "LSTM" else 1))
    inputs = (x, states if len(states) == 2 else states[0]) if given else (x,)
    before = take([])
    results = flatten_tensors(module(*inputs))
    outputs = {k: torch.randn_like(results[k]) for k in positions if k < len(results)}
    call = Call(module, inputs, {}, B, 0 if module.batch_first else 1, (), (before, take([])))
    keep_hidden(call, results)
    return call, outputs


def assert_as_slow(call: Call, outputs: dict[int, Tensor]) -> None:
    known = recurrence(call, outputs, 4.0)
    assert known is not None
    assert set(known) == {name for name, _ in call.module.named_parameters()}
    slow = fallback(call, outputs, list(known), 4.0, 0, nullcontext)
    for name, contribution in known.items():
        torch.testing.assert_close(contribution.form(0, B), slow[name].form(0, B), msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}],
)
@pytest.mark.parametrize("given", [False, True])
def test_rule_gives_what_one_backward_pass_per_sample_gives(
    kind: str, batch_first: bool, options: dict[str, Any], given: bool
) -> None:
    module = KINDS[kind](F, H, batch_first=batch_first, **options).double()
    assert_as_slow(*call_of(module, (0,), given))


@pytest.mark.parametrize(
    ("kind", "positions"), [*((kind, p) for kind in KINDS for p in ((1,), (0, 1, 2))), ("LSTM", (2,)), ("LSTM", (0, 2))]
)
def test_last_states_may_be_part_of_the_loss(kind: str, positions: tuple[int, ...]) -> None:
    assert_as_slow(*call_of(KINDS[kind](F, H, num_layers=2, bidirectional=True).double(), positions))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}])
@pytest.mark.parametrize("batch_first", [True, False])
def test_hidden_states_are_computed_again_where_they_are_not_what_the_module_gave(
    kind: str, options: dict[str, Any], batch_first: bool
) -> None:
    call, outputs = call_of(KINDS[kind](F, H, batch_first=batch_first, **options).double(), (0, 1))
    assert known_hidden(call) is not None
    assert call.inner is not None
    call.inner.zero_()  # the user's own operation in place
    assert known_hidden(call) is None
    assert_as_slow(call, outputs)
    kept = call.inner
    call.inner = None
    keep_hidden(call, [kept.requires_grad_() * 2])  # by a hook
    assert call.inner is None
    assert_as_slow(call, outputs)


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True, "batch_first": True}])
def test_rule_needs_no_native_kernels(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent_slopes, "can_reduce", lambda like, directions: False)
    assert_as_slow(*call_of(nn.LSTM(F, H, **options).double(), (0, 1, 2)))


@pytest.mark.parametrize("options", [{"proj_size": 1}, {"dropout": 0.5, "num_layers": 2}])
def test_calls_without_a_rule_are_left_to_the_fallback(options: dict[str, Any]) -> None:
    module = nn.LSTM(F, H, batch_first=True, **options).double()
    x = torch.randn(B, T, F).double()
    assert recurrence(Call(module, (x,), {}, B, 0), {0: module(x)[0]}, 1.0) is None
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 4, 2]), batch_first=True)
    assert recurrence(Call(nn.LSTM(F, H).double(), (packed,), {}, B, 0), {}, 1.0) is None
