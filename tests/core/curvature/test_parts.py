"""Products of a matrix whose graph would exceed the memory budget: part of the batch by part, exactly, or as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core.curvature import GGNOperator, HessianOperator, NoCurvature, Point, make_operator
from cockpit_core.curvature.autograd_graph import activation_bytes
from cockpit_core.curvature.operators import InParts, flatten, unflatten
from cockpit_core.engine.curving.parts import refuse_mixing_loss, refuse_other_outputs
from tests import slow_truth
from tests.core.curvature.points import full_ggn, full_hessian
from tests.core.engine.test_neutrality import assert_bit_for_bit, train_tracked, train_untracked
from tests.networks import NETWORKS
from tests.problems import PROBLEMS
from tests.training import OPTIMIZERS, assert_close, by_step, quantities
from tests.training import train_tracked as train

EVERYWHERE = {**PROBLEMS, **NETWORKS}


def make_splittable(samples: int = 7) -> Point:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs, targets = torch.randn(samples, 4, dtype=torch.float64), torch.randint(3, (samples,))
    loss_fn, parameters = nn.CrossEntropyLoss(), dict(model.named_parameters())

    def part(lo: int, hi: int) -> Point:
        outputs = model(inputs[lo:hi])

        def loss_of(values: Tensor) -> Tensor:
            return loss_fn(values, targets[lo:hi]) * ((hi - lo) / samples)

        return Point(loss_of(outputs), parameters, hi - lo, outputs, loss_of)

    whole = part(0, samples)
    return Point(whole.loss, parameters, samples, whole.outputs, whole.loss_of, part=part)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_add_up_to_the_full_matrix(size: int) -> None:
    point = make_splittable()
    for make, matrix in ((HessianOperator, full_hessian(point)), (GGNOperator, full_ggn(point))):
        operator, rows = InParts(point, make, size), torch.randn(3, len(matrix), dtype=torch.float64)
        one = flatten(operator.matvec(unflatten(rows[0], operator.parameters)))
        torch.testing.assert_close(one, matrix @ rows[0])
        several = operator.matmat(unflatten(rows, operator.parameters))
        torch.testing.assert_close(torch.cat([s.reshape(3, -1) for s in several], 1), rows @ matrix)


def test_as_many_parts_as_the_budget_asks_for() -> None:
    point = make_splittable()
    needed = activation_bytes(point.loss)
    assert isinstance(make_operator(point, "hessian", 2 * needed), HessianOperator)
    half = make_operator(point, "hessian", needed)
    assert isinstance(half, InParts)
    assert half.note.startswith("3 parts")  # of three samples at the most: the activations are there once more
    assert make_operator(point, "ggn", 0).note.startswith("7 parts")


def test_activations_are_counted_once_and_views_and_parameters_not_at_all() -> None:
    layer = nn.Linear(3, 5)
    loss = layer(torch.randn(2, 3)).relu().reshape(10).view(5, 2).T.sum()
    assert activation_bytes(loss) == 4 * (10 + 10 + 1)


def test_what_has_no_parts_is_taken_as_a_whole_and_says_so() -> None:
    point = make_splittable()
    alone = Point(point.loss, point.parameters, point.batch_size)
    assert "MB beyond memory_budget, because" in make_operator(alone, "hessian", 1).note

    def refuse(lo: int, hi: int) -> Point:
        raise NoCurvature("samples are glued together")

    glued = Point(point.loss, point.parameters, point.batch_size, part=refuse)
    assert make_operator(glued, "hessian", 1).note.endswith("because samples are glued together")


def check_note(data: cockpit_core.RunData) -> None:
    notes = [note for note in data.header.notes if note.startswith("the largest eigenvalue takes")]
    assert len(notes) == 1
    assert "parts of the batch" in notes[0] or "beyond memory_budget, because" in notes[0]


@pytest.mark.parametrize("name", PROBLEMS)
def test_eigenvalue_and_trace_are_the_truth_however_little_memory_there_is(name: str, tmp_path: Path) -> None:
    problem, names = PROBLEMS[name], ["HessMaxEV", "HessTrace"]
    data = train(problem, "sgd", 2, tmp_path / "run", config=quantities(*names), memory_budget=1)
    truth = slow_truth.truth_of_run(problem, OPTIMIZERS["sgd"], 2)
    for name in names:
        assert_close(by_step(data, name), truth.scalars[name], name)
    check_note(data)


@pytest.mark.parametrize("name", NETWORKS)
def test_eigenvalue_does_not_depend_on_the_memory_there_is(name: str, tmp_path: Path) -> None:
    found = []
    for budget in (2**30, 1):
        options = {"config": quantities("HessMaxEV"), "memory_budget": budget}
        data = train(NETWORKS[name], "sgd", 2, tmp_path / str(budget), **options)
        found.append(by_step(data, "HessMaxEV"))
    assert_close(found[1], found[0], "HessMaxEV")
    if found[1]:
        check_note(data)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlp", "parts of the batch"),
        ("cnn", "parts of the batch"),
        ("batchnorm", "because the model does not take a part of its batch"),
        ("dropout", "because the model draws random numbers"),
    ],
)
def test_the_header_says_which_way_the_eigenvalue_was_had(name: str, words: str, tmp_path: Path) -> None:
    data = train(EVERYWHERE[name], "sgd", 2, tmp_path / "run", config=quantities("HessMaxEV"), memory_budget=1)
    assert words in "\n".join(data.header.notes)


@pytest.mark.parametrize("name", ["cnn", "dropout", "batchnorm"])
def test_parts_are_neutral(name: str, tmp_path: Path) -> None:
    """At every seventh step: each is taken sample by sample."""
    tracked = train_tracked(name, "momentum", tmp_path / "run", config="full", schedule=7, memory_budget=1)
    assert_bit_for_bit(tracked, train_untracked(name, "momentum"))


def test_a_loss_that_mixes_samples_is_noticed() -> None:
    values = torch.randn(6, 3, dtype=torch.float64)
    refuse_mixing_loss(lambda v: v.logsumexp(1).mean(), values, 0, 0, 2)
    refuse_mixing_loss(lambda v: v.sum(), values, 0, 0, 2)
    with pytest.raises(NoCurvature, match="mixes samples"):
        refuse_mixing_loss(lambda v: (v @ v.T).logsumexp(1).mean(), values, 0, 0, 2)


def test_outputs_of_a_part_must_be_those_of_the_whole() -> None:
    values = torch.randn(6, 3)
    refuse_other_outputs(values + 1e-6, values)
    with pytest.raises(NoCurvature, match="other outputs"):
        refuse_other_outputs(values + 1e-2, values)


def test_graph_that_is_used_twice_is_still_measured(tmp_path: Path) -> None:
    """A measured layer lets go of its inputs, but not while the user keeps the graph for a second look."""
    model, loss_fn = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", on_error="raise", config="economy") as run:
        for _ in range(3):
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), targets)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()
    steps, norms = run.data.scalars("NormTest")
    assert len(steps) >= 2
    assert not run.data.missing or all("measured again" in m.reason for m in run.data.missing)
    assert (norms > 0).all()
