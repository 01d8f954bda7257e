"""The rule of self-attention against one backward pass per sample through the whole module."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.layers.attention import self_attention
from cockpit_core.layers.fallback import fallback
from cockpit_core.layers.registry import Call

B, S, E = 4, 3, 6


def call_of(module: nn.MultiheadAttention, **more: object) -> tuple[Call, dict[int, Tensor]]:
    torch.manual_seed(1)
    shape = (B, S, E) if module.batch_first else (S, B, E)
    x, b = torch.randn(shape).double(), torch.randn(shape).double()
    before = torch.get_rng_state()
    module(x, x, x, **more)
    states = (before, torch.get_rng_state())
    return Call(module, (x, x, x), dict(more), B, 0 if module.batch_first else 1, (), states), {0: b}


def mask(kind: str) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "bool":
        return torch.ones(S, S).triu(1).bool()
    causal = torch.ones(S, S).double().triu(1) * -1e9
    return causal if kind == "float" else causal.expand(B * 2, S, S).contiguous()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "per head"])
@pytest.mark.parametrize(("dropout", "bias"), [(0.0, True), (0.3, True), (0.0, False)])
def test_rule_gives_what_one_backward_pass_per_sample_gives(
    batch_first: bool, kind: str, dropout: float, bias: bool
) -> None:
    module = nn.MultiheadAttention(E, 2, dropout=dropout, bias=bias, batch_first=batch_first).double()
    call, outputs = call_of(module, attn_mask=mask(kind), need_weights=False)
    known = self_attention(call, outputs, 4.0)
    assert known is not None
    assert set(known) == {name for name, _ in module.named_parameters()}
    slow = fallback(call, outputs, list(known), 4.0, 0, nullcontext)
    for name, contribution in known.items():
        torch.testing.assert_close(contribution.form(0, B), slow[name].form(0, B), msg=name)


def test_calls_that_are_not_plain_self_attention_are_left_to_the_fallback() -> None:
    module = nn.MultiheadAttention(E, 2, dropout=0.3, batch_first=True).double()
    call, outputs = call_of(module, need_weights=True)
    assert self_attention(call, outputs, 1.0) is None  # dropout is drawn in another order there
    call.inputs = (call.inputs[0], call.inputs[0] + 1, call.inputs[0] + 1)
    call.kwargs = {"need_weights": False}
    assert self_attention(call, outputs, 1.0) is None  # keys of another sequence
