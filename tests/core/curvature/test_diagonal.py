"""Diagonals against the full matrices, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit_core.curvature import Limits, NoCurvature, Point, columns, diagonal
from tests.core.curvature.points import (
    BATCH,
    HARD_NETWORKS,
    LOSSES,
    NETWORKS,
    flat,
    full_ggn,
    full_hessian,
    make_point,
    point_of,
)

TRUTH = {"hessian": full_hessian, "ggn": full_ggn}


def assert_right(point: Point, kind: str, method: str, **options) -> None:
    truth = TRUTH[kind](point).diagonal()
    found = diagonal(point, kind, **options)
    assert found.exact
    assert found.method == method, found.note
    torch.testing.assert_close(flat(found.values), truth, rtol=1e-9, atol=1e-12)
    assert found.trace == pytest.approx(float(truth.sum()), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_that_the_graph_can_be_read_of_is_exact(network: str, kind: str) -> None:
    assert_right(make_point(network), kind, "columns")


@pytest.mark.parametrize("kind", TRUTH)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("network", ["mlp", "tanh residual"])
def test_the_loss_hessian_is_right_for_every_loss(network: str, loss: str, kind: str) -> None:
    assert_right(make_point(network, loss), kind, "columns")


@pytest.mark.parametrize("network", HARD_NETWORKS)
def test_a_hessian_that_is_no_sum_of_squares_comes_from_products(network: str) -> None:
    assert_right(make_point(network), "hessian", "products")


@pytest.mark.parametrize("network", ["layer norm", "group norm"])
def test_gauss_newton_passes_through_normalisations(network: str) -> None:
    assert_right(make_point(network), "ggn", "columns")


@pytest.mark.parametrize("network", ["batch norm", "tied"])
def test_gauss_newton_of_mixed_samples_or_shared_weights_is_not_guessed(network: str) -> None:
    assert_right(make_point(network), "ggn", "products")


@pytest.mark.parametrize("kind", TRUTH)
def test_pixels_and_tokens_are_columns_of_their_sample(kind: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2)).double()
    pixels = torch.arange(20).reshape(BATCH, 2, 2) % 3
    images = model(torch.randn(BATCH, 2, 3, 3, dtype=torch.float64))
    assert_right(point_of(model, images, lambda o: F.cross_entropy(o, pixels)), kind, "columns")
    words = torch.arange(20) % 3
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Flatten(0, 1)).double()
    tokens = model(torch.randn(BATCH, 4, 4, dtype=torch.float64))
    assert_right(point_of(model, tokens, lambda o: F.cross_entropy(o, words)), kind, "columns")


@pytest.mark.parametrize("at_once", [1, 2, 100])
@pytest.mark.parametrize("budget", [1, 2**27])
def test_chunks_and_groups_do_not_change_the_result(at_once: int, budget: int, monkeypatch) -> None:
    monkeypatch.setattr(columns.Squares, "columns_at_once", at_once)
    assert_right(make_point("tanh residual", "not convex"), "hessian", "columns", limits=Limits(memory_budget=budget))


def test_a_loop_serves_where_vmap_has_no_rule(monkeypatch) -> None:
    whole = columns.Sender._grad

    def without_vmap(self, source, seed, nodes, batched):
        if batched:
            raise RuntimeError("Batching rule not implemented")
        return whole(self, source, seed, nodes, batched)

    monkeypatch.setattr(columns.Sender, "_grad", without_vmap)
    assert_right(make_point("in-place cnn"), "hessian", "columns")


def test_samples_that_are_moved_or_mixed_are_noticed() -> None:
    class Mixing(nn.Module):
        def __init__(self, how):
            super().__init__()
            self.layer, self.how = nn.Linear(BATCH, BATCH), how

        def forward(self, x: Tensor) -> Tensor:
            return self.how(self.layer(x))

    mixtures = [
        lambda h: h.T,
        lambda h: h + h.mean(0),
        lambda h: h.softmax(0),
        lambda h: h.flip(0),
        lambda h: h - h[:1],
    ]
    mixtures += [lambda h: h.permute(1, 0), lambda h: torch.cumsum(h, 0)]
    for how in mixtures:
        model = Mixing(how).double()
        outputs = model(torch.randn(BATCH, BATCH, dtype=torch.float64))
        assert_right(point_of(model, outputs, LOSSES["squared error"]), "ggn", "products")


def test_a_function_written_by_the_user_is_left_to_products() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            return 3 * ctx.saved_tensors[0] ** 2 * grad

    model = nn.Linear(4, 3).double()
    outputs = Cube.apply(model(torch.randn(BATCH, 4, dtype=torch.float64)))
    for kind in TRUTH:
        assert_right(point_of(model, outputs, LOSSES["squared error"]), kind, "products")


def test_a_node_that_hides_what_it_saved_is_left_to_products(monkeypatch) -> None:
    def hidden(*_) -> None:
        raise AttributeError("'AddmmBackward0' object has no attribute '_saved_mat1'")

    monkeypatch.setitem(columns.WAYS, ("Addmm", "weight"), hidden)
    assert_right(make_point("mlp"), "hessian", "products")


def test_a_loss_with_a_term_beside_the_outputs_is_noticed() -> None:
    model = nn.Linear(4, 3).double()
    outputs = model(torch.randn(BATCH, 4, dtype=torch.float64))
    loss_of = LOSSES["cross entropy"]
    decayed = Point(
        loss_of(outputs) + 0.1 * model.weight.square().sum(), dict(model.named_parameters()), BATCH, outputs, loss_of
    )
    assert_right(decayed, "hessian", "products")


def test_a_loss_that_couples_samples_is_noticed() -> None:
    model = nn.Linear(4, 3).double()
    outputs = model(torch.randn(BATCH, 4, dtype=torch.float64))
    assert_right(point_of(model, outputs, lambda o: o.mean(0).square().sum()), "ggn", "products")


def test_a_loss_of_another_scale_than_given_is_noticed() -> None:
    point = make_point("mlp")
    wrong = Point(3 * point.loss, point.parameters, BATCH, point.outputs, point.loss_of)
    assert_right(wrong, "hessian", "products")


def test_parameters_that_are_not_used_have_zeros_and_frozen_ones_are_left_out() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "frozen": nn.Linear(4, 4), "unused": nn.Linear(2, 2)}).double()
    model["frozen"].requires_grad_(False)
    outputs = model["used"](torch.relu(model["frozen"](torch.randn(BATCH, 4, dtype=torch.float64))))
    found = diagonal(point_of(model, outputs, LOSSES["cross entropy"]))
    assert set(found.values) == {"used.weight", "used.bias", "unused.weight", "unused.bias"}
    assert not found.values["unused.weight"].any()
    assert found.exact


def test_given_squares_serve_networks_that_cannot_be_read() -> None:
    point = make_point("tied", "not convex")
    assert point.outputs is not None
    names, parameters = list(point.trainable), list(point.trainable.values())

    def sum_of_squares(seed: Tensor) -> dict[str, Tensor]:
        total = {n: torch.zeros_like(p) for n, p in point.trainable.items()}
        for n in range(BATCH):
            mask = torch.zeros(BATCH, 1, dtype=torch.float64)
            mask[n] = 1
            grads = torch.autograd.grad(point.outputs, parameters, seed * mask, retain_graph=True)
            for name, grad in zip(names, grads, strict=True):
                total[name] += grad.square()
        return total

    given = Point(point.loss, point.parameters, BATCH, point.outputs, point.loss_of, sum_of_squares)
    assert_right(given, "ggn", "columns")


@pytest.mark.parametrize(
    ("network", "loss"),
    [
        ("mlp", "cross entropy"),
        ("mlp", "squared error"),
        ("mlp", "norm of the output"),
        ("cnn", "class weights"),
        ("tokens", "cross entropy"),
        ("batch norm", "cross entropy"),
        ("tied", "cross entropy"),
    ],
)
def test_monte_carlo_is_unbiased_and_its_error_covers(network: str, loss: str) -> None:
    point = make_point(network, loss)
    truth = full_ggn(point).diagonal()
    generator = torch.Generator().manual_seed(1)
    draws = [diagonal(point, "ggn_mc", generator) for _ in range(300)]
    assert not draws[0].exact
    values = torch.stack([flat(d.values) for d in draws])
    spread = values.sum(1).std()
    assert abs(float(values.sum(1).mean() - truth.sum())) <= 4 * float(spread) / 300**0.5 + 1e-12
    deviation = (values.mean(0) - truth).abs()
    assert bool((deviation <= 6 * values.std(0) / 300**0.5 + 1e-9).all())
    errors = torch.tensor([d.trace_error for d in draws])
    assert float(errors.square().mean().sqrt()) >= 0.9 * float(spread)


def test_monte_carlo_refuses_a_loss_that_is_not_convex() -> None:
    with pytest.raises(NoCurvature, match="not convex"):
        diagonal(make_point("mlp", "not convex"), "ggn_mc")


def test_gauss_newton_of_a_functional_loss_has_no_value() -> None:
    point = make_point("mlp")
    bare = Point(point.loss, point.parameters, BATCH)
    with pytest.raises(NoCurvature, match="function of the model's outputs alone"):
        diagonal(bare, "ggn")
    assert_right(bare, "hessian", "products")


def test_too_many_columns_or_parameters_give_an_estimate_that_says_so() -> None:
    point = make_point("tanh mlp")
    truth = full_hessian(point).diagonal()
    limits = Limits(max_columns=3, max_dimension=10)
    found = diagonal(point, "hessian", torch.Generator().manual_seed(3), limits=limits)
    assert not found.exact
    assert "8 columns" in found.note
    assert found.trace_error is not None
    assert abs(found.trace - float(truth.sum())) <= 4 * found.trace_error + 1e-12
    assert set(found.trace_errors) == set(found.values)


def test_sequences_first_are_never_read_node_by_node() -> None:
    model = nn.Linear(BATCH, 3).double()
    outputs = model(torch.randn(BATCH, BATCH, BATCH, dtype=torch.float64))
    loss_of = LOSSES["squared error"]
    point = Point(loss_of(outputs), dict(model.named_parameters()), BATCH, outputs, loss_of, samples_first=False)
    assert_right(point, "hessian", "products")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="ggn_mc"):
        diagonal(make_point("mlp"), "fisher")
