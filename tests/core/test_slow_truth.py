"""The slow truths must agree with each other, or nothing that is compared with them means anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests import slow_truth as truth
from tests.problems import PROBLEMS

SAMPLES_DO_NOT_MIX = [name for name in PROBLEMS if name != "batchnorm"]


def first_moment(name: str) -> truth.Moment:
    model, loss_fn, batches = PROBLEMS[name].make()
    torch.manual_seed(3)
    return truth.freeze(model, loss_fn, *next(batches(1)))


@pytest.mark.parametrize("name", PROBLEMS)
def test_individual_gradients_average_to_what_backward_leaves(name: str) -> None:
    moment = first_moment(name)
    G = truth.individual_gradients(moment)
    model = first_moment(name).model
    torch.set_rng_state(moment.random_state)
    moment.loss_fn(model(moment.inputs), moment.targets).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert list(G) == list(expected)
    for layer, gradient in expected.items():
        torch.testing.assert_close(G[layer].mean(0), gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", PROBLEMS)
def test_individual_losses_average_to_the_loss(name: str) -> None:
    moment = first_moment(name)
    losses = truth.individual_losses(moment.loss_fn, moment.predict(moment.parameters()), moment.targets)
    torch.testing.assert_close(losses.mean(), moment.loss(moment.parameters()), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", SAMPLES_DO_NOT_MIX)
def test_contributions_are_the_individual_gradients_where_samples_do_not_mix(name: str) -> None:
    moment = first_moment(name)
    G, contributions = truth.individual_gradients(moment), truth.contributions(moment)
    assert list(G) == list(contributions)
    for layer in G:
        torch.testing.assert_close(G[layer], contributions[layer], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["mlp", "cnn", "regression", "residual_relu", "called_twice", "tied"])
def test_a_sample_alone_has_the_same_gradient(name: str) -> None:
    moment = first_moment(name)
    G = truth.individual_gradients(moment)
    for n in range(len(moment.inputs)):
        alone = truth.freeze(moment.model, moment.loss_fn, moment.inputs[n : n + 1], moment.targets[n : n + 1])
        theta = alone.parameters()
        gradients = torch.autograd.grad(alone.loss(theta), list(theta.values()))
        for layer, gradient in zip(theta, gradients, strict=True):
            torch.testing.assert_close(G[layer][n], gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["regression", "residual_tanh", "batchnorm", "ignored"])
def test_the_hessian_is_the_slope_of_the_gradient(name: str) -> None:
    moment = first_moment(name)
    theta = moment.parameters()
    H = truth.hessian(moment, theta)
    np.testing.assert_allclose(H, H.T, atol=1e-12)
    direction = {
        n: torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(5)) for n, p in theta.items()
    }

    def gradient_at(h: float) -> torch.Tensor:
        moved = {n: (p + h * direction[n]).detach().requires_grad_() for n, p in theta.items()}
        return truth.flatten(torch.autograd.grad(moment.loss(moved), list(moved.values())))

    slope = (gradient_at(1e-6) - gradient_at(-1e-6)) / 2e-6
    np.testing.assert_allclose(H @ truth.flatten(direction.values()).numpy(), slope.numpy(), rtol=1e-5, atol=1e-6)


def test_gauss_newton_is_the_hessian_of_a_linear_network() -> None:
    inputs, targets = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    moment = truth.freeze(nn.Linear(4, 3).double(), nn.CrossEntropyLoss(), inputs, targets)
    names = list(moment.parameters())
    np.testing.assert_allclose(truth.gauss_newton(moment, names), truth.hessian(moment, names), atol=1e-14)


def test_the_three_tests_are_the_spread_around_the_mean() -> None:
    G = np.random.default_rng(0).normal(size=(6, 11)) + 0.5
    B, g = 6, G.mean(0)
    np.testing.assert_allclose(truth.norm_test(G) ** 2, ((G - g) ** 2).sum() / (g @ g) / (B * (B - 1)))
    np.testing.assert_allclose(truth.inner_test(G) ** 2, ((G @ g / (g @ g) - 1) ** 2).sum() / (B * (B - 1)))
    np.testing.assert_allclose(truth.norm_test(G) ** 2, truth.inner_test(G) ** 2 + truth.ortho_test(G) ** 2)


@pytest.mark.parametrize(("step", "alpha"), [(0.5, -0.5), (1.0, 0.0), (2.0, 1.0)])
def test_alpha_of_a_parabola_says_where_the_step_ended(step: float, alpha: float) -> None:
    """f = (tau - 1)^2 with the floor at 1, observed with the same noise at both ends."""
    noise = np.array([-0.3, 0.1, 0.2])
    start = truth.Observation(1 + noise, -2 + noise)
    end = truth.Observation((step - 1) ** 2 + noise, 2 * (step - 1) + noise)
    fit = truth.fit_alpha(start, end, step)
    assert fit["alpha"] == pytest.approx(alpha, abs=1e-9)
    assert [fit["w0"], fit["w1"], fit["w2"]] == pytest.approx([1, -2, 1])


def test_histograms_keep_what_lies_outside_in_the_outermost_bins() -> None:
    G, theta = np.array([[-5.0, 0.01, 5.0]]), np.array([-3.0, 0.01, 3.0])
    counts, edges = truth.histogram_1d(G)
    assert counts[[0, 50, 99]].tolist() == [1, 1, 1]
    assert edges[[0, -1]].tolist() == [-2, 2]
    counts, _, _ = truth.histogram_2d(G, theta)
    assert counts[[0, 20, 39], [0, 25, 49]].tolist() == [1, 1, 1]
    assert counts.sum() == 3
