"""Tr(H) = Tr(G) + Tr(R) lies where its standard error says, for networks of any wiring; G itself is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit_core.curvature import Limits, NoCurvature, Point, diagonal
from cockpit_core.curvature.apart import make_individuals
from cockpit_core.curvature.gauss_newton import GaussNewton
from cockpit_core.curvature.loss_hessian import LossHessian
from cockpit_core.curvature.signs import random_signs
from cockpit_core.curvature.sites import find_sites
from cockpit_core.curvature.split import _Rest, estimate_split
from cockpit_core.curvature.spread import Draws, widening
from tests.core.curvature.points import full_ggn, full_hessian

B, CLASSES = 8, 3


class Encoder(nn.Module):
    """Attention works with time first inside, so the samples of its maps are not the leading rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 5, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class Recurrent(nn.Module):
    """Weights that are used at every time step, each behind the one before."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell, self.head = kind(2, 3, batch_first=True), nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class TiedTable(nn.Module):
    """The output layer shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(6, 3), nn.Linear(3, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(torch.tanh(self.table(tokens))))
        return F.linear(hidden, self.table.weight).mean(1)[:, :CLASSES]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.square, self.last = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.square(torch.tanh(self.square(x)))))


def _flat(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(B, *shape, dtype=torch.float64)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.GELU(), nn.Linear(5, CLASSES)),
        _flat(4),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 2, groups=2),
            nn.GroupNorm(2, 4),
            nn.SiLU(),
            nn.ConvTranspose2d(4, 2, 2, stride=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(32, CLASSES),
        ),
        _flat(2, 3, 3),
    ),
    "transformer": (Encoder, _flat(3, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), _flat(3, 2)),
    "gru": (lambda: Recurrent(nn.GRU), _flat(3, 2)),
    "tied table": (TiedTable, lambda: torch.randint(6, (B, 4))),
    "twice": (Twice, _flat(4)),
}
LABELS = torch.arange(B) % CLASSES


def make_point(network: str) -> Point:
    build, draw = NETWORKS[network]
    return point_of(build().double(), draw(), lambda o: F.cross_entropy(o, LABELS))


def point_of(model: nn.Module, inputs: Tensor, loss_of: Callable[[Tensor], Tensor]) -> Point:
    with sdpa_kernel(SDPBackend.MATH):
        outputs = model(inputs)
    return Point(loss_of(outputs), dict(model.named_parameters()), len(inputs), outputs, loss_of)


def by_parameter(point: Point, matrix: Tensor) -> dict[str, Tensor]:
    parts = matrix.diagonal().split([p.numel() for p in point.trainable.values()])
    return {name: part.reshape(p.shape) for (name, p), part in zip(point.trainable.items(), parts, strict=True)}


@pytest.mark.parametrize("network", ["mlp", "cnn", "transformer", "lstm"])
def test_of_two_hundred_draws_95_in_100_lie_within_two_standard_errors(network: str) -> None:
    """Errors that are too small leave more of them out, errors that are too large none. No parameter has a bias."""
    torch.manual_seed(4)
    point = make_point(network)
    truth = {name: float(part.sum()) for name, part in by_parameter(point, full_hessian(point)).items()}
    rounding = 1e-10 * sum(abs(t) for t in truth.values())
    scores, layers = [], []
    for seed in range(200):
        made = estimate_split(point, torch.Generator().manual_seed(seed), target=0.0, max_probes=3)
        scores.append((sum(made.traces.values()) - sum(truth.values())) / (made.trace_error + rounding))
        layers.append([(made.traces[n] - truth[n]) / (made.errors[n] + rounding) for n in truth])
    found, each = torch.tensor(scores), torch.tensor(layers)
    within = float((found.abs() <= 2).double().mean())
    assert 0.92 <= within <= 0.998, within  # 0.954 is meant, with a standard deviation of 0.015
    assert float(each.mean(0).abs().max()) <= 5 / 200**0.5 * max(1.0, float(each.std(0).max()))
    assert 0.6 <= float(found.std()) <= 1.15


@pytest.mark.parametrize("network", ["gru", "tied table", "twice"])
def test_weights_that_are_used_again_have_their_further_term(network: str) -> None:
    """Without bias: the mean of many probes, per parameter. Half or twice the term would be many errors off."""
    torch.manual_seed(3)
    point = make_point(network)
    truth = {name: float(part.sum()) for name, part in by_parameter(point, full_hessian(point)).items()}
    ggn = GaussNewton(point, torch.Generator().manual_seed(1), 2**27, elements=False)
    ggn.add_fixed_columns()
    rest = _Rest(point, ggn.individuals, ggn.leaves, 2**27)
    for _ in range(300):
        rest.probe(ggn.generator)
    one, two = ggn.traces(), rest.traces()
    for name, expected in truth.items():
        away = abs(one.traces[name] + two.traces[name] - expected)
        assert away <= 4 * two.errors[name] + 1e-9
        assert two.errors[name] < 0.3 * sum(one.traces.values())


@pytest.mark.parametrize("network", NETWORKS)
def test_gauss_newton_is_exact_for_few_classes(network: str) -> None:
    point = make_point(network)
    truth = by_parameter(point, full_ggn(point))
    for elements in (True, False):
        made = estimate_split(point, torch.Generator().manual_seed(0), elements=elements, max_probes=2)
        assert made.ggn_exact
        assert bool(made.ggn) == elements
        for name, part in truth.items():
            assert made.ggn_traces[name] == pytest.approx(float(part.sum()), rel=1e-9)
            if elements:
                torch.testing.assert_close(made.ggn[name], part)


def test_pixels_of_few_classes_are_drawn_around_what_they_have_in_common() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.Conv2d(3, CLASSES, 1)).double()
    labels = torch.arange(B * 16).reshape(B, 4, 4) % CLASSES
    point = point_of(model, torch.randn(B, 1, 5, 5, dtype=torch.float64), lambda o: F.cross_entropy(o, labels))
    truth = by_parameter(point, full_ggn(point))
    whole = sum(float(part.sum()) for part in truth.values())
    found = [
        estimate_split(point, torch.Generator().manual_seed(seed), elements=True, target=0.2, max_probes=2)
        for seed in range(20)
    ]
    assert not found[0].ggn_exact
    traces = torch.tensor([sum(made.ggn_traces.values()) for made in found])
    assert abs(float(traces.mean()) - whole) <= 4 * float(traces.std()) / 20**0.5
    assert float(traces.std()) < 0.1 * whole
    for name, part in truth.items():
        several = torch.stack([made.ggn[name] for made in found])
        assert bool(((several.mean(0) - part).abs() <= 5 * several.std(0) / 20**0.5 + 1e-12).all())


def test_constant_columns_and_centred_draws_are_the_whole_hessian_of_the_loss() -> None:
    outputs = torch.randn(2, 3, 20, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(40).reshape(2, 20) % 3
    loss = LossHessian(Point(F.cross_entropy(outputs, labels), {}, 2, outputs, lambda o: F.cross_entropy(o, labels)))
    columns = torch.cat([s.columns for s in loss.constant_seeds(2)]).reshape(3, -1)
    drawn = loss.draw(40_000, torch.Generator().manual_seed(0), centred=True).columns.reshape(40_000, -1)
    every = torch.cat([s.columns for s in loss.seeds(50)]).reshape(-1, 120)
    found, truth = columns.T @ columns + drawn.T @ drawn / 40_000, every.T @ every
    same = torch.block_diag(torch.ones(60, 60), torch.ones(60, 60)).bool()  # columns of two samples are sent together
    assert float(((found - truth)[same]).abs().max()) < 0.05 * float(truth.max())


class Rolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x).roll(1, 0)))


@pytest.mark.parametrize("kind", ["rolled", "batch norm"])
def test_mixed_samples_share_their_signs(kind: str) -> None:
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))
    model = Rolled() if kind == "rolled" else normed
    point = point_of(model.double(), _flat(4)(), lambda o: F.cross_entropy(o, LABELS))
    with pytest.raises(NoCurvature, match="mixed"):
        make_individuals(point, find_sites(point, torch.Generator()), 2**27)
    truth, ggn = float(full_hessian(point).trace()), by_parameter(point, full_ggn(point))
    made = [estimate_split(point, torch.Generator().manual_seed(s), elements=True) for s in range(60)]
    assert set(made[0].uncovered) == set(point.trainable)
    assert not made[0].ggn_exact
    assert max(abs(sum(m.traces.values()) - truth) / m.trace_error for m in made) <= 4
    assert abs(sum(sum(m.traces.values()) - truth for m in made)) <= 4 * sum(m.trace_error**2 for m in made) ** 0.5
    for name, part in ggn.items():
        several = torch.stack([m.ggn[name] for m in made])
        assert bool(((several.mean(0) - part).abs() <= 5 * several.std(0) / 60**0.5 + 1e-12).all())


def test_samples_are_found_where_as_many_positions_as_samples_lie_beside() -> None:
    build, _ = NETWORKS["transformer"]
    model = build().double()
    point = point_of(model, torch.randn(B, B, 4, dtype=torch.float64), lambda o: F.cross_entropy(o, LABELS))
    sites = find_sites(point, torch.Generator().manual_seed(0))
    assert not sites.uncovered
    assert sites.by_name["layer.self_attn.in_proj_weight"][0].layout.rows == "minor"
    assert sites.by_name["layer.linear1.weight"][0].layout.rows == "major"
    truth = by_parameter(point, full_ggn(point))
    made = estimate_split(point, torch.Generator().manual_seed(0), elements=True, max_probes=2)
    for name, part in truth.items():
        torch.testing.assert_close(made.ggn[name], part)


def test_a_parameter_without_rule_gets_random_signs_of_its_own() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, CLASSES)
            self.odd = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.tanh(torch.where(x[:, :1] > 0, self.odd.exp(), 1.0) * self.first(x)))

    torch.manual_seed(1)
    point = point_of(Odd().double(), _flat(4)(), lambda o: F.cross_entropy(o, LABELS))
    truth = float(full_hessian(point).diagonal().sum())
    made = [estimate_split(point, torch.Generator().manual_seed(s), max_probes=12, target=0) for s in range(20)]
    assert list(made[0].uncovered) == ["odd"]
    assert max(abs(sum(m.traces.values()) - truth) / m.trace_error for m in made) <= 4


def test_fused_attention_is_refused_before_anything_is_computed() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 64, dropout=0.0, batch_first=True).double()
    outputs = model(torch.randn(B, 3, 8, dtype=torch.float64))
    point = Point(outputs.square().mean(), dict(model.named_parameters()), B, outputs, lambda o: o.square().mean())
    if "ScaledDotProduct" not in "".join(str(n) for n in _nodes(outputs)):
        pytest.skip("no fused attention on this machine")
    with pytest.raises(NoCurvature, match="attention"):
        diagonal(point, "hessian", limits=Limits(max_dimension=0))


def _nodes(outputs: Tensor) -> list[object]:
    from cockpit_core.curvature.autograd_graph import reachable

    return [node.name() for node in reachable([outputs.grad_fn])]


def test_the_diagonal_says_what_its_elements_are() -> None:
    point = make_point("transformer")
    made = diagonal(point, "hessian", limits=Limits(max_dimension=0))
    truth = by_parameter(point, full_ggn(point))
    assert not made.exact
    assert made.elements == "Gauss-Newton diagonal"
    torch.testing.assert_close(made.values["head.weight"], truth["head.weight"])
    whole = float(full_hessian(point).diagonal().sum())
    assert abs(made.trace - whole) <= 4 * (made.trace_error or 0)
    only = diagonal(point, "hessian", limits=Limits(max_dimension=0, elements=False))
    assert not only.values
    assert set(only.traces) == set(point.trainable)


def test_signs_are_signs() -> None:
    drawn = random_signs((1000, 7), torch.zeros(()), torch.Generator().manual_seed(0))
    assert set(drawn.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(drawn.mean())) < 0.06
    assert float(drawn.mean(0).abs().max()) < 0.15


def test_errors_are_wide_where_one_sample_carries_everything() -> None:
    generator = torch.Generator().manual_seed(0)
    even, alone = Draws(), Draws()
    for _ in range(3):
        draw = torch.randn(1, 400, generator=generator)
        even.add(draw)
        alone.add(draw * (torch.arange(400) == 0))
    assert even.finish()[2] == pytest.approx((400 / 3) ** 0.5, rel=0.15)
    assert widening(2.0) > 2 > 1.01 > widening(1000.0) > 1
    assert alone.finish()[2] > widening(2.0) * 0.05
