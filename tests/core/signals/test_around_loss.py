"""What lies around the loss, in every term of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core.signals.around_loss import measure_around
from cockpit_core.signals.graph_losses import read_graph_loss

B, T, C = 8, 5, 3


def around(loss: Tensor) -> dict[str, float]:
    return measure_around(loss.grad_fn)


def test_broadcast_in_one_term_of_a_sum() -> None:
    h, y = nn.Linear(4, 1)(torch.randn(B, 4)), torch.randn(B)
    scores, labels = nn.Linear(4, C)(torch.randn(B, 4)), torch.randint(C, (B,))
    wrong = F.cross_entropy(scores, labels) + 0.5 * ((h - y) ** 2).mean()
    right = F.cross_entropy(scores, labels) + 0.5 * F.mse_loss(h[:, 0], y)
    with pytest.warns(UserWarning, match="size"):
        expanded = F.cross_entropy(scores, labels) + 0.5 * F.mse_loss(h, y)
    assert around(expanded)["broadcast"] == B
    assert around(right)["broadcast"] == 1
    assert around(wrong)["broadcast"] == B
    assert around(((h[:, 0] - y) ** 2).mean())["broadcast"] == 1


@pytest.mark.parametrize(("dim", "over"), [(0, 1.0), (-3, 1.0), (2, 0.0), (-1, 0.0), (1, 0.0)])
def test_softmax_along_the_batch_of_sequences(dim: int, over: float) -> None:
    scores = nn.Linear(4, C)(torch.randn(B, T, 4)).softmax(dim)
    labels = torch.randint(C, (B, T))
    assert around(F.cross_entropy(scores.view(-1, C), labels.view(-1)))["batch_softmax"] == over
    assert around(F.cross_entropy(scores.transpose(1, 2), labels))["batch_softmax"] == over


def test_softmax_of_attention_over_the_first_dimension_is_no_softmax_of_scores() -> None:
    weights = nn.Linear(4, 1)(torch.randn(B, 4)).softmax(0)
    pooled = nn.Linear(4, C)((weights * torch.randn(B, 4)).sum(0, keepdim=True))
    assert around(F.cross_entropy(pooled, torch.tensor([1])))["batch_softmax"] == 0


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_findings_where_another_loss_is_used_than_was_named(tmp_path: Path) -> None:
    """A loss module was given to ``track``, and the loop computes something else."""
    torch.manual_seed(0)
    model, named = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with cockpit_core.track(model, named, optimizer, tmp_path / "run", config="economy") as run:
        for _ in range(12):
            x = torch.randn(B, 4)
            optimizer.zero_grad()
            F.mse_loss(torch.sigmoid(model(x)), (x[:, 0] > 0).float()).backward()
            optimizer.step()
    assert run.findings[0].name == "loss_broadcast"


def test_findings_where_the_softmax_of_sequences_runs_over_the_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, C), nn.Softmax(0)), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy") as run:
        for _ in range(12):
            x = torch.randn(B, T, 4)
            optimizer.zero_grad()
            loss_fn(model(x).view(-1, C), x.argmax(2).view(-1) % C).backward()
            optimizer.step()
    assert run.findings[0].name == "softmax_over_batch"


class Margin(nn.Module):
    """A loss of pairs, as people write it: its second argument is no target."""

    def forward(self, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
        gap = F.pairwise_distance(a, b)
        return (same * gap.square() + (1 - same) * (1 - gap).relu().square()).mean()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, C)

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.layer(a), dim=1), F.normalize(self.layer(b), dim=1)


def test_what_hangs_on_parameters_is_no_target(tmp_path: Path) -> None:
    """The second view of each pair was taken for its target: "the data are not shuffled"."""
    torch.manual_seed(0)
    model, loss_fn = Tower(), Margin()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy") as run:
        for _ in range(4):
            a, b = torch.randn(2, 16, 4)
            optimizer.zero_grad()
            loss_fn(*model(a, b), (a[:, 0] * b[:, 0] > 0).float()).backward()
            optimizer.step()
    assert len(run.data.scalars("signal/output_rms")[0]) == 4
    with pytest.raises(KeyError):
        run.data.scalars("signal/target_mean")


def test_target_may_come_first_where_that_is_the_same() -> None:
    h, y = nn.Linear(4, 1)(torch.randn(B, 4))[:, 0], torch.randn(B)
    known = read_graph_loss(F.mse_loss(y, h).grad_fn, None)
    assert known is not None and known.target is not None
    assert torch.equal(known.output, h) and torch.equal(known.target, y)
    swapped = read_graph_loss(F.binary_cross_entropy_with_logits(y, h).grad_fn, None)
    assert swapped is not None and swapped.target is not None and torch.equal(swapped.target, h)
    views = read_graph_loss(F.mse_loss(h, 2 * h.relu()).grad_fn, None)
    assert views is not None and views.target is None


def test_a_softmax_that_the_loss_takes_again() -> None:
    """Of some places only, in another shape: the numbers that the loss gets do not show it."""
    scores, labels = nn.Linear(4, C)(torch.randn(B, T, 4)), torch.randint(C, (B, T))
    picked = labels[:, 2:].flatten()
    for squash, twice in ((torch.softmax, 1), (torch.log_softmax, 0)):
        given = squash(scores, -1)[:, 2:].flatten(0, 1)
        assert around(F.cross_entropy(given, picked))["squashed"] == twice
    assert around(F.cross_entropy(scores[:, 2:].flatten(0, 1), picked))["squashed"] == 0
    wanted = torch.rand(B, T)
    assert around(F.binary_cross_entropy_with_logits(scores[..., 0].sigmoid(), wanted))["squashed"] == 1
    assert around(F.binary_cross_entropy_with_logits(scores[..., 0], wanted))["squashed"] == 0


def test_a_term_that_is_subtracted() -> None:
    h = nn.Linear(4, 1)(torch.randn(B, 4))
    added, subtracted = (h.abs().mean() + sign * F.mse_loss(h[:, 0], torch.randn(B)) for sign in (1, -1))
    difference = h.abs().mean() - F.mse_loss(h[:, 0], torch.randn(B))
    factors = [read_graph_loss(loss.grad_fn, None).factor for loss in (added, subtracted, difference)]  # type: ignore[union-attr]
    assert factors == [1.0, -1.0, -1.0]


def test_broadcast_under_any_loss() -> None:
    """A quantile, a logarithm of a cosine: what is made of the difference does not matter."""
    h, y = nn.Linear(4, 1)(torch.randn(B, 4)), torch.randn(B)
    assert around(torch.maximum(0.1 * (y - h), -0.9 * (y - h)).mean())["broadcast"] == B
    assert around((h - y).cosh().log().mean())["broadcast"] == B
    assert around((h[:, 0] - y).cosh().log().mean())["broadcast"] == 1


def test_all_pairs_are_no_broadcast() -> None:
    """A distance of two distributions compares all outputs with one another, and with all targets."""
    h, y = nn.Linear(4, 1)(torch.randn(B, 4)), torch.randn(B)
    distance = 2 * (h - y).abs().mean() - (h - h[:, 0]).abs().mean()
    assert around(distance)["broadcast"] == 1


@pytest.mark.parametrize(
    ("loss_of", "over"),
    [
        (lambda z, y: F.nll_loss(F.log_softmax(z, 0), y), 1.0),
        (lambda z, y: F.nll_loss(z.softmax(0).log(), y), 1.0),
        (lambda z, y: F.nll_loss(F.log_softmax(z, 1), y), 0.0),
        (lambda z, y: F.cross_entropy(z, y), 0.0),
        (lambda z, y: F.nll_loss(F.log_softmax(z @ z.T, 0), torch.arange(B)), 0.0),  # pairs, from both sides
    ],
)
def test_labels_that_pick_from_a_softmax_along_the_batch(loss_of, over: float) -> None:
    scores, labels = nn.Linear(4, C)(torch.randn(B, 4)), torch.randint(C, (B,))
    assert around(loss_of(scores, labels))["batch_softmax"] == over


def test_rows_that_meet_the_targets_of_all_others() -> None:
    p, y = nn.Linear(4, C)(torch.randn(B, 4)).sigmoid(), torch.rand(B, C)
    by_hand = lambda goal: -(goal * p.log() + (1 - goal) * (1 - p).log()).mean()  # noqa: E731
    assert around(by_hand(y[:, None]))["broadcast"] == B
    assert around(by_hand(y))["broadcast"] == 1
    assert around(((p - y[:, None]) ** 2).mean())["broadcast"] == B


def test_scores_that_were_viewed_where_dimensions_were_to_be_exchanged() -> None:
    scores, labels = nn.Linear(4, C)(torch.randn(B, T, 4)), torch.randint(C, (B, T))
    assert around(F.cross_entropy(scores.view(B, C, T), labels))["scrambled"] == 1
    assert "scrambled" not in around(F.cross_entropy(scores.transpose(1, 2), labels))
    assert "scrambled" not in around(F.cross_entropy(scores.reshape(-1, C), labels.reshape(-1)))
    pictures, places = nn.Conv2d(2, C, 3)(torch.randn(B, 2, 8, 7)), torch.randint(C, (B, 6, 5))
    assert around(F.cross_entropy(pictures.reshape(-1, C), places.reshape(-1)))["scrambled"] == 1
    assert "scrambled" not in around(F.cross_entropy(pictures.permute(0, 2, 3, 1).reshape(-1, C), places.reshape(-1)))
    assert "scrambled" not in around(F.cross_entropy(pictures, places))
    pooled = nn.Conv2d(2, C, 3)(torch.randn(B, 2, 3, 3))
    assert "scrambled" not in around(F.cross_entropy(pooled.reshape(-1, C), torch.randint(C, (B,)))), "one place"
