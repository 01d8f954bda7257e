"""Facts that the graph of a loss shows, in small programs: a sigmoid of a sigmoid, a softmax of one number, a ReLU before the
probabilities, losses that were written out though a module was named, layers that the model does not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core.foundation.records import Finding

Loss = Callable[[Tensor, Tensor], Tensor]


def make_net(last: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, last))


def learn(
    folder: Path, model: nn.Module, named: nn.Module, loss: Loss, *, steps: int = 60, kind: str = "answers"
) -> list[Finding]:
    """Who is above the middle: of one output an answer, of three a class."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with cockpit_core.track(model, named, optimizer, folder / "run", config="economy", schedule=1) as run:
        for _ in range(steps):
            x = torch.randn(32, 4)
            y = (x[:, 0] > 0).float() if kind == "answers" else x[:, :3].argmax(1)
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
    return run.findings


def alarms(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.severity != "advice"]


def likelihood(p: Tensor, y: Tensor) -> Tensor:
    return (y * torch.log(p + 1e-7) + (1 - y) * torch.log(1 - p + 1e-7)).mean()


def test_a_sigmoid_of_a_sigmoid_in_front_of_a_binary_cross_entropy(tmp_path: Path) -> None:
    bce = nn.BCELoss()
    found = learn(tmp_path, make_net(), bce, lambda z, y: bce(z.sigmoid().sigmoid()[:, 0], y))
    assert alarms(found)[0] == "double_softmax" and "never below 0.5" in found[0].text


def test_one_sigmoid_is_as_it_should_be(tmp_path: Path) -> None:
    bce = nn.BCELoss()
    assert alarms(learn(tmp_path, make_net(), bce, lambda z, y: bce(z.sigmoid()[:, 0], y))) == []


def test_a_softmax_over_a_single_output(tmp_path: Path) -> None:
    bce = nn.BCELoss()
    found = learn(tmp_path, make_net(), bce, lambda z, y: bce(z.softmax(1)[:, 0], y), steps=12)
    assert alarms(found) == ["output_activation"] and "single output" in found[0].text


def test_a_relu_before_the_sigmoid(tmp_path: Path) -> None:
    """No answer is below a half, so that "no" is never said."""
    bce = nn.BCELoss()
    found = learn(tmp_path / "a", make_net(), bce, lambda z, y: bce(z.relu().sigmoid()[:, 0], y), steps=150)
    assert alarms(found)[:1] == ["output_activation"] and "no answer is below 0.5" in found[0].text


def test_a_likelihood_that_is_written_out_without_its_minus(tmp_path: Path) -> None:
    """A module was named, and the loop computes the loss itself."""
    found = learn(tmp_path / "a", make_net(), nn.BCELoss(), lambda z, y: likelihood(z.sigmoid()[:, 0], y), steps=12)
    assert alarms(found)[0] == "loss_sign"
    right = learn(tmp_path / "b", make_net(), nn.BCELoss(), lambda z, y: -likelihood(z.sigmoid()[:, 0], y))
    assert alarms(right) == []


@pytest.mark.parametrize("pick", ["gather", "index"])
def test_the_likelihood_of_labels_without_its_minus(tmp_path: Path, pick: str) -> None:
    def picked(z: Tensor, y: Tensor) -> Tensor:
        logs = F.log_softmax(z, 1)
        return (logs.gather(1, y[:, None]) if pick == "gather" else logs[torch.arange(len(y)), y]).mean()

    found = learn(tmp_path / "a", make_net(3), nn.NLLLoss(), picked, steps=12, kind="classes")
    assert alarms(found)[0] == "loss_sign"
    right = learn(tmp_path / "b", make_net(3), nn.NLLLoss(), lambda z, y: -picked(z, y), kind="classes")
    assert alarms(right) == []


def test_a_written_likelihood_of_every_output_and_every_target(tmp_path: Path) -> None:
    found = learn(tmp_path, make_net(), nn.BCELoss(), lambda z, y: -likelihood(z.sigmoid(), y), steps=12)
    assert alarms(found)[0] == "loss_broadcast"


def test_probabilities_instead_of_their_logarithms_are_no_wrong_sign(tmp_path: Path) -> None:
    nll = nn.NLLLoss()
    found = learn(tmp_path, make_net(3), nll, lambda z, y: nll(z.softmax(1), y), steps=12, kind="classes")
    assert alarms(found) == ["double_softmax"]


def test_the_logarithm_of_a_softmax_that_became_zero(tmp_path: Path) -> None:
    """Weights that are too large lead there; log_softmax would not mind."""
    nll, model = nn.NLLLoss(), make_net(3)
    with torch.no_grad():
        model[2].weight.mul_(2000)
    found = learn(tmp_path, model, nll, lambda z, y: nll(z.softmax(1).log(), y), steps=12, kind="classes")
    assert found[0].name == "not_finite" and "log_softmax" in found[0].remedy


class Hidden(nn.Module):
    """Its first layers are in a plain list."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh()]
        self.layers = nn.ModuleList(layers) if registered else layers
        self.last = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.last(x)[:, 0]


@pytest.mark.parametrize(("registered", "told"), [(False, ["parameters_not_optimized"]), (True, [])])
def test_layers_in_a_plain_list(tmp_path: Path, registered: bool, told: list[str]) -> None:
    bce, model = nn.BCEWithLogitsLoss(), Hidden(registered)
    found = learn(tmp_path, model, bce, lambda z, y: bce(z, (y > 0).float().roll(0)), steps=150)
    assert [name for name in alarms(found) if name == "parameters_not_optimized"] == told


def test_a_network_behind_another_that_somebody_else_trains(tmp_path: Path) -> None:
    """The generator's parameters are behind the output of the discriminator, and change."""
    torch.manual_seed(0)
    maker, critic, bce = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), nn.BCEWithLogitsLoss()
    own, other = (torch.optim.SGD(net.parameters(), lr=0.01) for net in (critic, maker))
    with cockpit_core.track(critic, bce, own, tmp_path / "run", config="economy", schedule=1) as run:
        for _ in range(40):
            loss = bce(critic(maker(torch.randn(16, 4))), torch.ones(16))
            own.zero_grad()
            other.zero_grad()
            loss.backward()
            own.step()
            other.step()
    assert "parameters_not_optimized" not in [finding.name for finding in run.findings]


class Reader(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.last = nn.GRU(3, 8, batch_first=batch_first), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rnn(x)[0][:, -1])[:, 0]


@pytest.mark.parametrize(("batch_first", "told"), [(False, ["samples_mixed"]), (True, [])])
def test_a_recurrent_layer_that_runs_along_the_batch(tmp_path: Path, batch_first: bool, told: list[str]) -> None:
    """What decides stands at the first step of a sequence, and the answer is read at its last."""
    model, bce = Reader(batch_first), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    with cockpit_core.track(model, bce, optimizer, tmp_path / "run", config="economy", schedule=2) as run:
        for _ in range(160):
            x = torch.randn(32, 4, 3)
            optimizer.zero_grad()
            bce(model(x), (x[:, 0, 0] > 0).float()).backward()
            optimizer.step()
    named = [finding for finding in run.findings if finding.name == "samples_mixed" and finding.severity != "advice"]
    assert [finding.name for finding in named] == told
    assert all("runs along the batch" in finding.text for finding in named)
