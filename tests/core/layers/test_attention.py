"""The rule of attention against one backward pass per sample through the whole module."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.layers import attention as attention_module
from cockpit_core.layers.attention import attention
from cockpit_core.layers.fallback import fallback
from cockpit_core.layers.random_state import take
from cockpit_core.layers.registry import INNER, Call, find_inner

B, S, E = 4, 3, 6


def call_of(
    module: nn.MultiheadAttention, sides: tuple[Tensor, ...] | None = None, weights: bool = False, **more: object
) -> tuple[Call, dict[int, Tensor]]:
    """One call in training mode with its random state, and gradients for the output (and for the weights)."""
    torch.manual_seed(1)
    x = torch.randn((B, S, E) if module.batch_first else (S, B, E)).double()
    sides = sides or (x, x, x)
    before = take([])
    out = module(*sides, **more)
    states = (before, take([]))
    outputs = {k: torch.randn_like(out[k]) for k in ((0, 1) if weights else (0,))}
    return Call(module, sides, dict(more), B, 0 if module.batch_first else 1, (), states), outputs


def assert_as_slow(call: Call, outputs: dict[int, Tensor]) -> None:
    known = attention(call, outputs, 4.0)
    assert known is not None
    assert set(known) == {name for name, _ in call.module.named_parameters()}
    slow = fallback(call, outputs, list(known), 4.0, 0, nullcontext)
    for name, contribution in known.items():
        truth = slow[name].form(0, B)
        torch.testing.assert_close(contribution.form(0, B), truth, msg=name)
        norms, projection = contribution.norms(), contribution.project(truth.sum(0))
        if norms is not None:
            torch.testing.assert_close(norms, truth.flatten(1).square().sum(1), msg=name)
        if projection is not None:
            torch.testing.assert_close(projection, truth.flatten(1) @ truth.sum(0).flatten(), msg=name)


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
    assert_as_slow(*call_of(module, attn_mask=mask(kind), need_weights=False))


def three_sides(widths: tuple[int, int], batch_first: bool = True) -> tuple[Tensor, ...]:
    shapes = [(B, S, E), (B, 5, widths[0]), (B, 5, widths[1])]
    return tuple(torch.randn(shape if batch_first else (shape[1], B, shape[2])).double() for shape in shapes)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("widths", [(E, E), (4, 5)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_queries_may_look_at_another_sequence(
    batch_first: bool, need_weights: bool, widths: tuple[int, int], dropout: float
) -> None:
    kdim, vdim = widths
    module = nn.MultiheadAttention(E, 2, dropout=dropout, batch_first=batch_first, kdim=kdim, vdim=vdim).double()
    assert_as_slow(*call_of(module, three_sides(widths, batch_first), need_weights=need_weights))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_weights_may_be_part_of_the_loss(average: bool, dropout: float) -> None:
    module = nn.MultiheadAttention(E, 2, dropout=dropout, batch_first=True).double()
    assert_as_slow(*call_of(module, weights=True, need_weights=True, average_attn_weights=average))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
def test_padding_is_not_looked_at(need_weights: bool, kind: str) -> None:
    module = nn.MultiheadAttention(E, 2, batch_first=True).double()
    padding = torch.zeros(B, S).bool()
    padding[1, -1] = padding[2, -2:] = True
    causal = mask(kind)
    padded = padding if kind != "float" else torch.zeros(B, S).double().masked_fill(padding, -1e9)
    assert_as_slow(*call_of(module, attn_mask=causal, key_padding_mask=padded, need_weights=need_weights))


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_calls_without_a_rule_are_left_to_the_fallback(options: dict[str, bool]) -> None:
    module = nn.MultiheadAttention(E, 2, batch_first=True, **options).double()
    assert attention(*call_of(module, need_weights=False), 1.0) is None


def gradients_of_pass(module: nn.MultiheadAttention, **more: object) -> tuple[Call, dict[int, Tensor]]:
    """One call and a backward pass through it, in which what passes by inside is noted."""
    call, _ = call_of(module)
    before = take([])
    out = [tensor for tensor in module(*call.inputs, **more) if tensor is not None]
    call.kwargs, call.random_state = dict(more), (before, take([]))
    gradients = {k: torch.randn_like(tensor) for k, tensor in enumerate(out)}
    node, seeds = find_inner(call, out), list(gradients.values())
    if node is not None:
        node.register_prehook(lambda given: gradients.__setitem__(INNER, given[0]))
    torch.autograd.backward(out, seeds)
    return call, gradients


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize(("dropout", "bias"), [(0.0, True), (0.3, True), (0.0, False)])
def test_what_passes_by_in_the_graph_serves_without_a_repetition(
    monkeypatch: pytest.MonkeyPatch, batch_first: bool, need_weights: bool, dropout: float, bias: bool
) -> None:
    module = nn.MultiheadAttention(E, 2, dropout=dropout, bias=bias, batch_first=batch_first).double()
    call, gradients = gradients_of_pass(module, need_weights=need_weights)
    assert INNER in gradients
    monkeypatch.setattr(attention_module, "attend", None)
    assert_as_slow(call, gradients)
    known = attention(call, gradients, 1.0)
    assert known is not None
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(known[name].resolve().form(0, B).sum(0), parameter.grad, msg=name)


def test_what_did_not_pass_by_is_repeated() -> None:
    call, gradients = gradients_of_pass(nn.MultiheadAttention(E, 2, batch_first=True).double())
    del gradients[INNER]
    assert_as_slow(call, gradients)


def test_the_graph_of_other_attention_is_left_alone() -> None:
    module = nn.MultiheadAttention(E, 2, batch_first=True).double()
    other = torch.randn(B, 5, E).double()
    call, _ = call_of(module, (torch.randn(B, S, E).double(), other, other))
    assert find_inner(call, [module(*call.inputs)[0]]) is None  # two products with parts of one matrix
    module.in_proj_weight.requires_grad_(False)
    call, _ = call_of(module)
    assert find_inner(call, [module(*call.inputs)[0]]) is None
    assert call.inner is None
