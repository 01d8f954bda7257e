"""The way to a node that was once searched for is tried first, and is left where the graph has become another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cockpit_core.foundation.graph_leaves import variable_of
from cockpit_core.layers import attention
from cockpit_core.layers.attention import find_inner, follow
from cockpit_core.layers.registry import Call


def call_it(module: nn.MultiheadAttention, x: Tensor, **options: bool) -> tuple[Tensor, object]:
    """What ``find_inner`` finds: what the last map was given, and the node before the heads."""
    output, _ = module(x, x, x, **options)
    call = Call(module, (x, x, x), options, x.shape[0], 0)
    node = find_inner(call, [output])
    assert node is not None
    assert call.inner is not None
    return call.inner, node


def search_anew(module: nn.MultiheadAttention, x: Tensor, **options: bool) -> Tensor:
    attention._ways.pop(module, None)
    return call_it(module, x, **options)[0]


@pytest.mark.parametrize("bias", [True, False])
def test_the_same_is_read_whatever_the_call_before_was(bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=True, bias=bias)
    x = torch.randn(3, 4, 8, requires_grad=True)
    ways = [{"need_weights": False}, {"need_weights": True}, {"need_weights": True, "average_attn_weights": False}]
    for options in [*ways, *ways[::-1], ways[0]]:
        for given in (x, x.detach(), torch.randn(2, 5, 8)):
            inner, _ = call_it(module, given, **options)
            again = search_anew(module, given, **options)
            assert torch.equal(inner, again)
            assert inner.shape == (given.shape[0] * given.shape[1], 8)


def test_a_weight_that_was_replaced_is_searched_for_again() -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8)
    call_it(module, x)
    module.in_proj_weight = nn.Parameter(torch.randn(24, 8))
    _, node = call_it(module, x)
    held = [variable_of(child) for child, _ in node.next_functions if child is not None]  # type: ignore[attr-defined]
    assert any(variable is module.in_proj_bias for variable in held)


def test_a_way_that_is_not_there_leads_nowhere() -> None:
    node = (torch.ones(2, requires_grad=True) * 2).sum().grad_fn
    assert follow(node, None) is None
    assert follow(node, ()) is node
    assert follow(node, (0, 1)) is None  # the other factor is no tensor
    assert follow(node, (0, 7)) is None
    assert follow(node, (0, 1, 0)) is None


def test_only_leaves_have_a_variable() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable = x  # a name of the user's
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    x = torch.ones(2, requires_grad=True)
    node = Own.apply(x).grad_fn
    assert variable_of(node) is None
    assert variable_of(node.next_functions[0][0]) is x
