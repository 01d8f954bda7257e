"""What ordinary programs, written by somebody who did not know the rules, had taught: how far weights have come when a run is
over, layers that run without a graph, scores that end in a sigmoid, statistics that never arrive, a loss that is scaled by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import cockpit_core
from cockpit_core.signals.around_loss import measure_around
from cockpit_core.signals.inside import measure_inside
from tests.core.diagnosis.test_at_the_end import LONG, at, tried
from tests.core.diagnosis.test_diagnoses import both, put, with_fresh
from tests.core.diagnosis.test_harm import severity
from tests.histories import find, make_header, of_codes

FRESH = {"header": with_fresh(), **LONG}


def grown(times: float, first: float = 0.09):
    """By steps that were ``first`` times as long as the weights at the start, and a hundredth later."""
    length = {"UpdateSize": lambda i: 10 * first if i < 3 else 0.1}
    return put(ParamNorm=lambda i: 10 * (1 + (times - 1) * i / 59), Distance=lambda i: 10 * times * i / 59, **length)


def test_weights_that_have_become_several_times_as_long() -> None:
    far = both(at(0.25, accuracy=0.8), grown(4.0))
    assert severity("learning_rate_too_high", far, **FRESH) == "likely"
    assert severity("learning_rate_too_high", far, header=with_fresh(), n=60) == "", "it is not over"
    slowly = both(at(0.25, accuracy=0.8), grown(4.0, first=0.05))
    assert severity("learning_rate_too_high", slowly, **FRESH) == "", "all short steps went one way"
    fair = {"logged": lambda i: {"valid_accuracy": 0.88}}
    assert severity("learning_rate_too_high", far, **fair, **FRESH) == "", "dropout, or augmentation, leaves the rest"
    assert severity("learning_rate_too_high", far, **LONG) == "", "weights that were trained before may have any length"
    assert severity("learning_rate_too_high", both(at(0.25, accuracy=0.8), grown(2.0)), **FRESH) == ""
    assert severity("learning_rate_too_high", both(at(0.02, accuracy=0.99), grown(4.0)), **FRESH) == "", (
        "nothing is left"
    )
    texts = both(at(0.6, accuracy=0.4), grown(2.9), of_codes)
    assert severity("learning_rate_too_high", texts, **FRESH) == "", "of texts much is left in any case"
    texts = both(at(0.6, accuracy=0.4), grown(4.0), of_codes)
    assert severity("learning_rate_too_high", texts, **FRESH) == "likely"


def test_gradients_that_somebody_adds_up_by_hand() -> None:
    growing = both(at(1.5, accuracy=0.1), put(GradNorm=1.0, GradNormClipped=lambda i: float(i + 1)))
    found = find(growing, **LONG)["gradients_not_zeroed"]
    assert found.severity == "broken"
    assert "p.grad" in found.remedy
    scaled = both(at(1.5, accuracy=0.1), put(GradNorm=1.0, GradNormClipped=8.0))
    assert severity("gradients_not_zeroed", scaled, **LONG) == "", "so much at the first step too: a factor"


def test_the_rate_is_named_as_it_was_set() -> None:
    """A cosine has taken it to nothing by the time the run is over."""
    cosine = put(LearningRate=lambda i: 0.1 * (1 + math.cos(math.pi * i / 59)) / 2 + 1e-9)
    found = find(both(at(0.25, accuracy=0.8), grown(4.0), cosine), **FRESH)["learning_rate_too_high"]
    assert "learning rate 0.1 is too high" in found.text
    assert "by about 9, to 0.011" in found.remedy


def test_momentum_is_the_reason_where_there_is_so_much_of_it() -> None:
    header = make_header(momentum="0.99")
    header.options |= with_fresh().options
    found = find(both(at(0.25, accuracy=0.8), grown(4.0)), header=header, **LONG)
    assert found["momentum_too_high"].severity == "likely"
    assert "learning_rate_too_high" in found["momentum_too_high"].explains


def test_weights_that_decay_has_taken_away() -> None:
    """When they are gone, decay has nothing left to pull at, and labels are not to blame."""
    gone = both(at(1.0, accuracy=0.1), put(ParamNorm=lambda i: 10 * math.exp(-i / 5) + 0.01, NormTest=2.0))
    found = find(gone, header=make_header(weight_decay="0.3"), **LONG)
    assert found["weight_decay_too_high"].severity == "likely"
    assert not found["weight_decay_too_high"].retracted
    assert "labels_random" not in found or "labels_random" in found["weight_decay_too_high"].explains
    assert severity("weight_decay_too_high", gone, **LONG) == "", "there is none"


def test_decay_that_still_pulls_in_the_end() -> None:
    def worn(gradient: float):
        return both(
            at(0.3, accuracy=0.8), put(ParamNorm=lambda i: 10 - 2 * i / 59, GradNormClipped=gradient, NormTest=1.0)
        )

    header = make_header(weight_decay="0.05")
    assert severity("weight_decay_too_high", worn(1.0), header=header, **LONG) == "likely"  # 0.05 x 8 = 40 % of it
    assert severity("weight_decay_too_high", worn(1.0), header=header, n=60) == "", "it is not over"
    assert severity("weight_decay_too_high", worn(4.0), header=header, **LONG) == "", "a tenth is what it is for"


def test_no_step_of_the_whole_run_was_long() -> None:
    short = both(at(0.2, 0.8, accuracy=0.8, UpdateSize=0.03, Distance=4.0), tried(1e-3, 0.97))
    assert severity("learning_rate_too_low", short, **FRESH) == "likely"
    longer = both(short, put(UpdateSize=lambda i: 0.2 if i == 2 else 0.03))
    assert severity("learning_rate_too_low", longer, **FRESH) == ""
    bent = both(at(0.2, 0.8, accuracy=0.8, UpdateSize=0.03, Distance=4.0), tried(1e-3, 0.3))
    assert severity("learning_rate_too_low", bent, **FRESH) == "", "longer ones would not do as well"


def test_gradients_of_weights_that_begin_too_large_are_clipped() -> None:
    clipped = put(GradNormClipped=1e-3, UpdateSize=1e-4, Distance=0.01, Loss=lambda i: 40 - 1e-4 * i, accuracy=0.1)
    found = find(clipped, **LONG)
    assert "clipping_too_hard" in found["init_too_large"].explains


def test_a_short_run_whose_samples_never_agreed() -> None:
    lost = both(at(0.982, accuracy=0.1, UpdateSize=0.2, Distance=4.0, NormTest=1.0), tried(0.01, 0.8))
    short = {"n": 12, "every": 13, "finished": True}
    assert severity("labels_random", lost, **short) == "likely"
    assert severity("labels_random", both(lost, put(NormTest=0.6)), **short) == "", "they did"
    assert severity("labels_random", lost, n=8, every=10, finished=True) == "", "too short"


# ---- read from the graph ----


def test_scores_before_a_softmax() -> None:
    scores, labels = nn.Linear(4, 3)(torch.randn(8, 4)), torch.randint(3, (8,))
    assert measure_around(F.cross_entropy(scores.sigmoid(), labels).grad_fn)["sigmoid_scores"] == 1
    assert measure_around(F.cross_entropy(scores.tanh(), labels).grad_fn)["tanh_scores"] == 1
    capped = F.cross_entropy(30 * (scores / 30).tanh(), labels)  # so wide that it is no bound
    assert not {"sigmoid_scores", "tanh_scores"} & set(measure_around(capped.grad_fn))
    assert measure_around(F.cross_entropy(scores.log_softmax(0), labels).grad_fn)["batch_softmax"] == 1
    assert measure_around(F.cross_entropy(scores.log_softmax(1), labels).grad_fn)["batch_softmax"] == 0


def test_the_number_before_a_loss() -> None:
    scores, labels = nn.Linear(4, 3)(torch.randn(8, 4)), torch.randint(3, (8,))
    loss = F.cross_entropy(scores, labels)
    assert measure_around((loss * 1024 / 2).grad_fn)["root_factor"] == 512
    assert "root_factor" not in measure_around(loss.grad_fn)
    assert "root_factor" not in measure_around((loss + 2 * scores.square().mean()).grad_fn), "of one term only"


def test_a_softmax_at_the_end_is_no_attention() -> None:
    scores = 9 * nn.Linear(4, 6)(torch.randn(8, 5, 4))
    sharp = scores.softmax(-1)
    assert "attention_share" not in measure_inside(sharp.log().mean().grad_fn, 8)
    assert measure_inside((sharp @ torch.randn(8, 6, 4, requires_grad=True)).mean().grad_fn, 8)["attention_share"] < 0.9


# ---- real runs ----


def run(model: nn.Module, logdir: Path, forward=None, scale: float = 1.0, steps: int = 90, shift: float = 0.0) -> dict:
    g = torch.Generator().manual_seed(0)
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)
    centres = torch.randn(4, 6, generator=g)
    with cockpit_core.track(model, loss_fn, optimizer, logdir, config="economy", schedule=2):
        for _ in range(steps):
            y = torch.randint(0, 4, (24,), generator=g)
            x = centres[y] + 0.3 * torch.randn(24, 6, generator=g) + shift
            optimizer.zero_grad()
            (scale * loss_fn((forward or model)(x), y)).backward()
            for p in model.parameters():
                p.grad = None if p.grad is None else p.grad / scale
            optimizer.step()
    return {finding.name: finding for finding in cockpit_core.diagnose(logdir)}


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


def test_layers_that_run_without_a_graph(tmp_path: Path) -> None:
    model = make_net()

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            h = model[:4](x)
        return model[4:](h)

    found = run(model, tmp_path / "cut", forward)
    assert found["graph_detached"].severity == "broken"
    assert found["graph_detached"].step <= 10, "a fact, that need not wait for harm"
    assert found["graph_detached"].layers == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert "graph_detached" not in run(make_net(), tmp_path / "whole")


def test_a_look_at_validation_between_steps_cuts_nothing(tmp_path: Path) -> None:
    model = make_net()

    def forward(x: Tensor) -> Tensor:
        with torch.no_grad():
            model(x + 1)
        return model(x)

    assert "graph_detached" not in run(model, tmp_path, forward)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_loss_that_is_scaled_by_hand_is_no_large_one(tmp_path: Path, scale: float) -> None:
    assert not {f.name for f in run(make_net(), tmp_path, scale=scale).values() if f.severity != "advice"}


@pytest.mark.parametrize(("momentum", "told"), [(1e-4, "likely"), (0.1, None)])
def test_statistics_that_never_arrive(tmp_path: Path, momentum: float, told: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32, momentum=momentum), nn.ReLU(), nn.Linear(32, 4))
    found = run(model, tmp_path, steps=120, shift=5.0)
    assert (found["batchnorm_momentum"].severity if "batchnorm_momentum" in found else None) == told
