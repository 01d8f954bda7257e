"""Probes of ``R = H - G``: over all unit changes in place of random ones, their sum is the trace itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cockpit_core.curvature import Point
from cockpit_core.curvature.apart import make_individuals
from cockpit_core.curvature.at_outputs import MixedSigns, SignsAtOutputs
from cockpit_core.curvature.pushing import ChangeOfParameter
from cockpit_core.curvature.rest import RestProbes
from cockpit_core.curvature.signs import SWEEP, Codes
from cockpit_core.curvature.sites import find_sites
from cockpit_core.curvature.split import _Rest, estimate_split
from tests.core.curvature.points import full_ggn, full_hessian
from tests.core.curvature.test_split import CLASSES, LABELS, B, Recurrent, by_parameter, make_point, point_of


def make_probes(point: Point, budget: int = 2**27) -> RestProbes:
    individuals, uncovered = make_individuals(point, find_sites(point, torch.Generator().manual_seed(0)), 2**27)
    assert not uncovered
    return RestProbes(point, individuals, {}, budget)


def sum_over_units(probes: RestProbes, name: str, code: int) -> float:
    """The changes of one parameter alone, one unit after the other in the basis in which they are drawn. A code turns
    units round, which changes nothing."""
    one = probes._drawn[name]
    one.draw(torch.Generator().manual_seed(0), torch.zeros((), dtype=torch.float64))
    bases = one._base if isinstance(one, SignsAtOutputs) else [one._base]
    before, again = probes._drawn, probes._again
    probes._drawn, probes._again = {name: one}, [n for n in again if n == name]
    row, total = list(probes._individuals).index(name), 0.0
    for k in range(len(bases)):
        for j in range(bases[k].numel()):
            units = [torch.zeros(b.shape, dtype=b.dtype) for b in bases]
            units[k].view(-1)[j] = 1.0
            if isinstance(one, MixedSigns):
                one.take(units[0])
            else:
                one._base = units if isinstance(one, SignsAtOutputs) else units[0]
            made = [probes._prepare(Codes(code), [])]
            images = probes._images([m.seeds for m in made])
            back = probes._further_images([m.starts for m in made])
            total += float(probes._pair(made[0], images[0], back[0])[row].sum())
    probes._drawn, probes._again = before, again
    return total


def traces_of_rest(point: Point) -> dict[str, float]:
    both = [by_parameter(point, matrix) for matrix in (full_hessian(point), full_ggn(point))]
    return {name: float((both[0][name] - both[1][name]).sum()) for name in point.trainable}


@pytest.mark.parametrize("budget", [2**27, 0])
@pytest.mark.parametrize("network", ["cnn", "lstm", "tied table", "twice"])
@pytest.mark.parametrize("code", [0, 3])
def test_all_unit_changes_together_are_the_trace(network: str, budget: int, code: int) -> None:
    torch.manual_seed(0)
    point = make_point(network)
    probes, truth = make_probes(point, budget), traces_of_rest(point)
    for name, expected in truth.items():
        found = sum_over_units(probes, name, code) if name in probes._drawn else 0.0
        assert found == pytest.approx(expected, abs=1e-9), name


def test_how_changes_are_drawn_goes_by_positions_and_memory() -> None:
    def kinds(network: str, budget: int = 2**27) -> dict[str, type]:
        return {name: type(drawn) for name, drawn in make_probes(make_point(network), budget)._drawn.items()}

    assert kinds("tied table")["table.weight"] is ChangeOfParameter  # looked up, and multiplied with
    assert kinds("tied table", 0)["table.weight"] is SignsAtOutputs
    assert kinds("lstm")["cell.weight_hh_l0"] is MixedSigns
    assert kinds("transformer")["layer.linear1.bias"] is ChangeOfParameter
    assert kinds("mlp")["0.weight"] is MixedSigns


class Long(Recurrent):
    def __init__(self) -> None:
        super().__init__(nn.LSTM)


def long_point() -> Point:
    torch.manual_seed(0)
    inputs = torch.randn(B, 6, 2, dtype=torch.float64)
    return point_of(Long().double(), inputs, lambda o: F.cross_entropy(o, LABELS))


def test_recurrent_layers_are_probed_in_sweeps_with_a_true_error() -> None:
    point = long_point()
    truth = float(full_hessian(point).trace())
    made = [estimate_split(point, torch.Generator().manual_seed(s)) for s in range(40)]
    assert made[0].probes % SWEEP == 0
    found = torch.tensor([(sum(m.traces.values()) - truth) / m.trace_error for m in made])
    assert float(found.abs().max()) <= 4
    assert abs(float(found.mean())) <= 4 / 40**0.5


def test_probes_at_once_are_those_one_after_the_other() -> None:
    drawn: list[Tensor] = []
    for batched in (True, False):
        probes = make_probes(long_point())
        probes._sender._batched = batched
        drawn.append(probes.probe(torch.Generator().manual_seed(1), SWEEP)[0])
        assert probes._sender._batched == batched
    torch.testing.assert_close(drawn[0], drawn[1])


def test_groups_of_a_sweep_cancel_each_other() -> None:
    signs = torch.stack([Codes(n).of_features(4 * SWEEP, 0, torch.zeros(())) for n in range(SWEEP)])
    products = signs.T @ signs / SWEEP
    groups = torch.arange(4 * SWEEP) // 4
    assert torch.equal(products, (groups.unsqueeze(0) == groups.unsqueeze(1)).float())


def test_probes_of_a_convolution_are_little_noise() -> None:
    """Changes of the weights, not of all pixels: with signs at the outputs the spread was more than three times as large."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.GroupNorm(3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(192, CLASSES)
    )
    point = point_of(model.double(), torch.rand(B, 2, 8, 8, dtype=torch.float64), lambda o: F.cross_entropy(o, LABELS))
    individuals, _ = make_individuals(point, find_sites(point, torch.Generator().manual_seed(0)), 2**27)
    spreads = []
    for budget in (2**27, 0):
        rest = _Rest(point, individuals, {}, budget)
        for _ in range(10):
            rest.probe(torch.Generator().manual_seed(rest.draws))
        spreads.append(rest.traces().errors["0.weight"])
    assert spreads[1] > 3 * spreads[0]


def test_signs_of_a_convolution_are_those_of_another_basis() -> None:
    """An orthogonal one, for each sample, or the mean of the probes would not be the trace."""
    probes = make_probes(make_point("cnn"))
    for name in ("0.weight", "3.weight"):  # with groups, and transposed
        one = ChangeOfParameter(probes._individuals[name], 0)
        assert one._turn is not None
        size = one._one.elements
        units = torch.eye(size, dtype=torch.float64).unsqueeze(1).expand(size, B, size)
        made = torch.stack([one._turn(unit.reshape(B, *one._one.shape)).reshape(B, size) for unit in units], 1)
        torch.testing.assert_close(made @ made.mT, torch.eye(size, dtype=torch.float64).expand(B, size, size))
        assert not torch.allclose(made[0], made[1])


def test_what_positions_have_in_common_is_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a ReLU what a convolution sees is positive, and R is largest along its mean."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(1, 4), nn.Tanh(), nn.Flatten(), nn.Linear(144, CLASSES))
    point = point_of(model.double(), 1 + torch.rand(B, 3, 8, 8).double(), lambda o: F.cross_entropy(o, LABELS))

    def spread() -> float:
        probes, generator = make_probes(point), torch.Generator().manual_seed(1)
        row = list(probes._individuals).index("0.weight")
        return float(torch.stack([probes.probe(generator)[0][row] for _ in range(40)]).var(0).sum())

    turned = spread()
    monkeypatch.setattr("cockpit_core.curvature.pushing._Turn.__call__", lambda self, signs: signs)
    assert turned < 0.75 * spread()
