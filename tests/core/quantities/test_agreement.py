"""Coherence, ConflictShare, EffectiveRank, ClassInterference: the Gram matrix of individual gradients is the truth."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from cockpit_core import quantities as q
from cockpit_core.kernels.native import reducing
from tests import slow_truth
from tests import slow_truth_instruments as instruments
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, by_step, loop, train_tracked, with_config

STEPS = 2
NAMES = ("Coherence", "ConflictShare", "EffectiveRank", "ClassInterference")
EVERY = {**NETWORKS, **PROBLEMS}


def config() -> list[q.Quantity]:
    return [getattr(q, name)() for name in NAMES]


def assert_truth(data: cockpit_core.RunData, truth: slow_truth.RunTruth, labels: list[list[int]]) -> None:
    B = len(labels[0])
    for layer in (None, *truth.names):
        G = [slow_truth.matrix(own, truth.names if layer is None else [layer], B) for own in truth.G]
        expected = {"Coherence": instruments.coherence, "ConflictShare": instruments.conflict_share}
        for name, formula in expected.items():
            values = {t: formula(own) for t, own in enumerate(G)}
            assert by_step(data, name, layer) == pytest.approx(values, rel=1e-6), (name, layer)
    G = [slow_truth.matrix(own, truth.names, B) for own in truth.G]
    ranks = {t: instruments.effective_rank(own) for t, own in enumerate(G)}
    assert by_step(data, "EffectiveRank") == pytest.approx(ranks, rel=1e-6)
    for t, own in enumerate(G):
        for part, value in instruments.class_interference(own, labels[t]).items():
            steps, values = data.scalars(f"ClassInterference{part}")
            assert dict(zip(steps.tolist(), values.tolist(), strict=True))[t] == pytest.approx(value, rel=1e-6), part


@pytest.mark.parametrize("budget", [256 * 2**20, 2000])
@pytest.mark.parametrize("problem", ["mlp", "cnn", "encoder_layer", "lstm", "batchnorm", "tied"])
def test_agreement_is_the_truth(problem: str, budget: int, tmp_path: Path) -> None:
    """The small budget: gradients are formed one sample at a time, block by block."""
    options = {"config": [*config(), *([q.GradHist1d()] if budget > 2000 else [])], "memory_budget": budget}
    data = train_tracked(EVERY[problem], "momentum", STEPS, tmp_path / "run", **options)
    moments = slow_truth.watch_training(EVERY[problem], OPTIMIZERS["momentum"], STEPS)
    assert_truth(data, slow_truth.truth_of_moments(moments, None), [moment.targets.tolist() for moment in moments])


@pytest.mark.parametrize("problem", ["cnn", "encoder_layer"])
def test_agreement_is_the_truth_without_kernels(problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducing, "find_library", lambda: None)
    data = train_tracked(EVERY[problem], "momentum", STEPS, tmp_path / "run", config=config())
    moments = slow_truth.watch_training(EVERY[problem], OPTIMIZERS["momentum"], STEPS)
    assert_truth(data, slow_truth.truth_of_moments(moments, None), [moment.targets.tolist() for moment in moments])


def test_micro_batches_are_one_batch(tmp_path: Path) -> None:
    found = []
    for parts in ([slice(0, 6)], [slice(0, 2), slice(2, 6)]):
        model, loss_fn, batches = PROBLEMS["cnn"].make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        options = {"config": config(), "on_error": "raise"}
        with cockpit_core.track(model, loss_fn, optimizer, tmp_path / f"{len(parts)}", **with_config(options)) as run:
            for x, y in batches(3):
                optimizer.zero_grad()
                for part in parts:
                    (loss_fn(model(x[part]), y[part]) * len(x[part]) / 6).backward()
                optimizer.step()
        names = (*NAMES, "ClassInterference/worst", "ConflictShare/lowest")
        found.append({name: run.data.scalars(name)[1].tolist() for name in names})
    assert found[0] == {name: pytest.approx(values, rel=1e-7) for name, values in found[1].items()}


def test_some_samples_are_the_first_of_each_micro_batch_and_marked(tmp_path: Path) -> None:
    model, loss_fn, batches = PROBLEMS["cnn"].make()
    optimizer, (x, y) = OPTIMIZERS["sgd"](list(model.parameters())), next(iter(batches(1)))
    config = [q.EffectiveRank(samples=3), q.ClassInterference(samples=2), q.ConflictShare(samples=3)]
    moment = slow_truth.freeze(model, loss_fn, x, y)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config, on_error="raise") as run:
        for part in (slice(0, 4), slice(4, 6)):
            (loss_fn(model(x[part]), y[part]) * len(x[part]) / 6).backward()
        optimizer.step()
    G = slow_truth.individual_gradients(moment)
    chosen = slow_truth.matrix({n: g.numpy() for n, g in G.items()}, G, 6)[[0, 1, 4]]
    assert by_step(run.data, "EffectiveRank")[0] == pytest.approx(instruments.effective_rank(chosen), rel=1e-7)
    classes = instruments.class_interference(chosen, y[[0, 1, 4]].tolist())
    assert by_step(run.data, "ClassInterference")[0] == pytest.approx(classes[""], rel=1e-7)
    assert run.data.estimates["EffectiveRank"].methods[0] == "3 of 6 samples"
    with pytest.raises(ValueError, match="samples"):
        q.EffectiveRank(samples=1)


def test_agreement_is_neutral(tmp_path: Path) -> None:
    ends = []
    for tracked in (False, True):
        model, loss_fn, batches = PROBLEMS["dropout"].make()
        optimizer = OPTIMIZERS["adam"](list(model.parameters()))
        torch.manual_seed(1)
        run = tracked and cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config())
        loop(model, loss_fn, optimizer, batches(3))
        ends.append([*model.state_dict().values(), *(p.grad for p in model.parameters()), torch.get_rng_state()])
        if run:
            run.close()
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_worst_pair_is_named_and_what_has_no_classes_says_so(tmp_path: Path) -> None:
    data = train_tracked(PROBLEMS["mlp"], "sgd", 1, tmp_path / "a", config=config())
    assert data.estimates["ClassInterference/worst"].methods[0].startswith("classes ")
    data = train_tracked(PROBLEMS["regression"], "sgd", 1, tmp_path / "b", config=config())
    assert {m.name: m.reason for m in data.missing} == {
        "ClassInterference": "the loss was given no class per sample (a vector of whole numbers)"
    }


def test_batch_of_one_and_of_one_class_say_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(4, 3), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [(torch.randn(1, 4), torch.tensor([1])), (torch.randn(3, 4), torch.tensor([2, 2, 2]))]
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=config(), on_error="raise") as run:
        loop(model, loss_fn, optimizer, batches)
    reasons = {(m.step, m.name): m.reason for m in run.data.missing}
    assert "one sample" in reasons[0, "ConflictShare"]
    assert "one class" in reasons[1, "ClassInterference"]
