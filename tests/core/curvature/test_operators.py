"""Products against full matrices, and what is said where a second derivative does not exist."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cockpit_core.curvature import GGNOperator, HessianOperator, NoCurvature, Point, diagonal
from cockpit_core.curvature.operators import flatten, unflatten
from tests.core.curvature.points import HARD_NETWORKS, NETWORKS, full_ggn, full_hessian, make_point


@pytest.mark.parametrize("network", NETWORKS | HARD_NETWORKS)
def test_products_are_those_of_the_full_matrix(network: str) -> None:
    point = make_point(network)
    for operator, matrix in ((HessianOperator(point), full_hessian(point)), (GGNOperator(point), full_ggn(point))):
        rows = torch.randn(3, len(matrix), dtype=torch.float64)
        one = flatten(operator.matvec(unflatten(rows[0], operator.parameters)))
        torch.testing.assert_close(one, matrix @ rows[0])
        several = operator.matmat(unflatten(rows, operator.parameters))
        torch.testing.assert_close(torch.cat([s.reshape(3, -1) for s in several], 1), rows @ matrix)
        operator.close()


def test_products_are_looped_where_vmap_has_no_rule(monkeypatch) -> None:
    point = make_point("mlp")
    whole = HessianOperator._apply

    def without_vmap(self, vectors, batched):
        if batched:
            raise RuntimeError("Batching rule not implemented")
        return whole(self, vectors, batched)

    monkeypatch.setattr(HessianOperator, "_apply", without_vmap)
    operator, matrix = HessianOperator(point), full_hessian(point)
    rows = torch.randn(3, len(matrix), dtype=torch.float64)
    several = operator.matmat(unflatten(rows, operator.parameters))
    torch.testing.assert_close(torch.cat([s.reshape(3, -1) for s in several], 1), rows @ matrix)


def test_the_hessian_of_a_linear_loss_is_zero() -> None:
    weight = torch.randn(4, requires_grad=True)
    operator = HessianOperator(Point(weight.sum(), {"weight": weight}, 1))
    assert not operator.matvec([torch.ones(4)])[0].any()


def test_a_loss_that_no_parameter_reaches_has_a_hessian_of_zeros() -> None:
    weight, outputs = torch.randn(4, requires_grad=True), torch.randn(3, requires_grad=True)
    operator = HessianOperator(Point(outputs.square().sum(), {"weight": weight}, 1))
    assert torch.equal(operator.matvec([torch.ones(4)])[0], torch.zeros(4))
    assert torch.equal(operator.matmat([torch.ones(8, 4)])[0], torch.zeros(8, 4))


def _fused_attention() -> Point:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(3, 4, 8)
    return Point(layer(x, x, x, need_weights=False)[0].square().sum(), dict(layer.named_parameters()), 3)


def _embedding_bag() -> Point:
    layer = nn.EmbeddingBag(6, 4)
    return Point(layer(torch.randint(6, (3, 4))).square().sum(), dict(layer.named_parameters()), 3)


def _once_differentiable() -> Point:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    weight = torch.randn(4, requires_grad=True)
    return Point(Once.apply(weight).sum(), {"weight": weight}, 1)


def _ctc() -> Point:
    layer = nn.Linear(4, 5)
    scores = layer(torch.randn(6, 2, 4)).log_softmax(2)
    loss = F.ctc_loss(scores, torch.randint(1, 5, (2, 3)), torch.tensor([6, 6]), torch.tensor([3, 3]))
    return Point(loss, dict(layer.named_parameters()), 2)


@pytest.mark.parametrize("make", [_fused_attention, _embedding_bag, _once_differentiable, _ctc])
def test_a_missing_second_derivative_is_explained_once_and_clearly(make) -> None:
    with pytest.raises(NoCurvature, match=r"second derivative|differentiable only once"):
        diagonal(make(), "hessian")


def test_an_error_of_another_kind_is_not_hidden() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise RuntimeError("the user's own mistake")

    weight = torch.randn(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="own mistake") as caught:
        HessianOperator(Point(Broken.apply(weight).sum(), {"weight": weight}, 1))
    assert not isinstance(caught.value, NoCurvature)


def test_a_graph_that_was_freed_is_explained() -> None:
    point = make_point("tanh mlp")
    point.loss.backward()
    with pytest.raises(NoCurvature, match="freed"):
        diagonal(point)
