"""A loss known by its graph alone, as a function of several outputs, of which some are computed from others."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit_core.curvature import Point
from cockpit_core.curvature.quadratic import LossAtOutputs
from cockpit_core.curvature.split import estimate_split
from cockpit_core.engine.loss.points import Join
from tests.core.curvature.points import full_hessian

B = 4


class Autoencoder(nn.Module):
    """What is decoded is computed from the code, and the loss looks at both; the code's halves come from one node."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 4), nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 5))

    def forward(self, x: Tensor) -> list[Tensor]:
        mean, log_variance = self.encode(x).chunk(2, 1)
        return [self.decode(mean + (log_variance / 2).exp()), mean, log_variance]


def losses_of(x: Tensor, decoded: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """The outputs meet each other in the loss too, so that its Hessian has blocks beside the diagonal."""
    divergence = (mean**2 + log_variance.exp() - log_variance).sum(1) / 2
    return (decoded - x).square().sum(1) + divergence + (decoded[:, :2] * mean).sum(1).sin()


def make() -> tuple[nn.Module, Tensor, list[Tensor], Tensor, LossAtOutputs, Join]:
    torch.manual_seed(0)
    model, x = Autoencoder().double(), torch.randn(B, 5, dtype=torch.float64)
    outputs = model(x)
    loss, join = losses_of(x, *outputs).mean(), Join(outputs, B, 0)
    return model, x, outputs, loss, LossAtOutputs(loss, outputs, join, join.part), join


def test_slope_and_curvature_are_those_of_the_loss_and_not_of_the_decoder() -> None:
    _, x, outputs, _, known, join = make()

    def plainly(values: Tensor) -> Tensor:
        return losses_of(x, *join.part(values)).mean()

    at = join(outputs).detach()
    slope, hessian = (f(plainly, at) for f in (torch.autograd.functional.jacobian, torch.autograd.functional.hessian))
    leaf = at.clone().requires_grad_()
    (found,) = torch.autograd.grad(known(leaf), leaf, create_graph=True)
    torch.testing.assert_close(found.detach(), slope)
    v = torch.randn_like(at)
    (image,) = torch.autograd.grad(found, leaf, v)
    torch.testing.assert_close(image, torch.tensordot(hessian, v, 2))


def test_user_graph_lets_everything_through_again() -> None:
    model, _, outputs, loss, known, join = make()
    parameters = list(model.parameters())
    before = torch.autograd.grad(loss, parameters, retain_graph=True)
    known(join(outputs).detach().requires_grad_())
    after = torch.autograd.grad(loss, parameters)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_trace_of_a_network_with_such_outputs_lies_within_its_error() -> None:
    model, _, outputs, loss, known, join = make()
    nodes = tuple(t.grad_fn for t in outputs if t.grad_fn is not None)
    point = Point(loss, dict(model.named_parameters()), B, join(outputs), known, cut=nodes)
    truth = float(full_hessian(point).trace())
    found = estimate_split(point, torch.Generator().manual_seed(0), max_probes=200, target=0.01)
    assert abs(sum(found.traces.values()) - truth) <= 4 * found.trace_error
    assert found.trace_error < 0.05 * truth
