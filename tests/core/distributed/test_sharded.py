"""``fully_shard``: every process holds some rows of each parameter, and every number is still that of the global batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import cockpit_core
from tests.core.distributed.test_processes import assert_same, train_alone
from tests.distributed_worker import SIZE, UNEQUAL, problem_of
from tests.processes import result
from tests.sharded_scenarios import SHARDED, SHARDED_NEUTRAL
from tests.training import OPTIMIZERS, QUANTITIES, by_step, quantities

CURVATURE = ("HessTrace", "HessMaxEV", "TICDiag", "TICTrace")


def test_sharded_runs_are_marked(two: Path) -> None:
    assert cockpit_core.load(two / "sharded mlp").header.options["processes"] == "2"
    assert len(list((two / "sharded mlp").iterdir())) == 1, "one rank writes"


@pytest.mark.parametrize("name", [name for name in SHARDED if name != "resnet"])
def test_sharded_processes_are_one_batch(name: str, two: Path, tmp_path: Path) -> None:
    """All quantities but curvature, whole network and layer by layer, alphas and histograms."""
    assert_same(cockpit_core.load(two / f"sharded {name}"), train_alone(name, tmp_path / "alone"), skip=CURVATURE)


def test_parts_that_are_sharded_on_their_own_are_one_batch(two: Path, tmp_path: Path) -> None:
    assert_same(cockpit_core.load(two / "sharded parts"), train_alone("mlp", tmp_path / "alone"), skip=CURVATURE)


def test_four_sharded_processes_are_one_batch(four: Path, tmp_path: Path) -> None:
    alone = train_alone("decoder", tmp_path / "alone", optimizer="adam")
    assert_same(cockpit_core.load(four / "sharded decoder"), alone, skip=CURVATURE)


def test_micro_batches_that_are_not_reduced_belong_to_the_batch(two: Path, tmp_path: Path) -> None:
    alone = train_alone("mlp", tmp_path / "alone", optimizer="adam")
    assert_same(cockpit_core.load(two / "sharded accumulated"), alone, skip=CURVATURE)


def test_gradient_of_shards_is_taken_before_it_is_clipped(two: Path, tmp_path: Path) -> None:
    alone = train_alone("mlp", tmp_path / "alone", clip=True)
    assert_same(cockpit_core.load(two / "sharded clipped"), alone, skip=CURVATURE)


def test_each_sharded_process_counts_alike_where_local_batches_differ(two: Path, tmp_path: Path) -> None:
    problem = problem_of("mlp")
    model, _, batches = problem.make()
    optimizer = OPTIMIZERS["adam"](problem.groups(model))
    weights = torch.cat([torch.full((b,), SIZE / (2 * b), dtype=torch.float64) for b in UNEQUAL[2]])
    config = quantities(*QUANTITIES)
    with cockpit_core.track(model, None, optimizer, tmp_path / "alone", config=config, on_error="raise") as run:
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            losses = weights * nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            run.backward(losses.mean(), losses)
            optimizer.step()
    assert_same(cockpit_core.load(two / "sharded unequal"), cockpit_core.load(tmp_path / "alone"), skip=CURVATURE)


def test_batch_statistics_of_each_process_are_its_own(two: Path) -> None:
    """BatchNorm without synchronisation: contributions of the local batches, and the check holds on all layers."""
    data = cockpit_core.load(two / "sharded resnet")
    assert data.header.covered == 1.0
    assert data.scalars("NormTest")[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("quantity", CURVATURE)
def test_curvature_of_shards_has_no_value_and_says_why(quantity: str, two: Path) -> None:
    data = cockpit_core.load(two / "sharded mlp")
    assert quantity not in data.names
    assert {m.step for m in data.missing if m.name == quantity} == {0, 1, 2}
    assert all("sharded over processes" in m.reason for m in data.missing if m.name == quantity)


def test_recurrent_module_that_is_sharded_by_itself_has_a_rule(two: Path, tmp_path: Path) -> None:
    alone = train_alone("lstm", tmp_path / "alone")
    assert_same(cockpit_core.load(two / "sharded lstm in parts"), alone, skip=CURVATURE)


def test_module_that_cannot_be_run_again_is_left_out_by_name(two: Path) -> None:
    """A PReLU has no rule; ``fully_shard`` on the PReLU itself would gather its parameters when it is run again."""
    data = cockpit_core.load(two / "sharded prelu in parts")
    methods = {info.name: (info.method, info.reason) for info in data.header.layers}
    assert methods["1.weight"][0] == "not covered"
    assert "apply it to a module around it" in methods["1.weight"][1]
    assert methods["0.weight"][0] == "rule"
    assert 0 < data.header.covered < 1
    assert set(by_step(data, "NormTest", "1.weight")) == set()
    assert set(by_step(data, "NormTest", "0.weight")) == {0, 1, 2}
    assert set(by_step(data, "GradNorm", "1.weight")) == {0, 1, 2}


def test_parameters_that_are_broadcast_over_the_batch_are_never_guessed(two: Path, tmp_path: Path) -> None:
    data, alone = cockpit_core.load(two / "sharded broadcast"), train_alone("broadcast", tmp_path / "alone")
    methods = {info.name: info.method for info in data.header.layers}
    assert methods["positions"] == methods["token"] == "not covered"
    for layer in alone.layers:
        measured = by_step(data, "NormTest", layer)
        expected = {step: value for step, value in by_step(alone, "NormTest", layer).items() if step in measured}
        assert measured == pytest.approx(expected, rel=1e-5, abs=1e-7), layer
        assert by_step(data, "GradNorm", layer) == pytest.approx(by_step(alone, "GradNorm", layer), rel=1e-5)
        assert len(measured) == (0 if methods[layer] == "not covered" else 3)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", SHARDED_NEUTRAL)
def test_sharded_training_is_bit_for_bit_the_same(name: str, rank: int, two: Path) -> None:
    untracked, tracked = result(two, "sharded_neutrality", rank)[name]
    assert [part for part in untracked if untracked[part] != tracked.get(part)] == []
    assert untracked.keys() == tracked.keys()


def test_other_ways_of_sharding_are_refused_by_name(two: Path) -> None:
    some, replicas = result(two, "sharded_otherwise", 0)
    assert some.startswith("TypeError: 1.weight is not sharded")
    assert replicas.startswith("TypeError: the parameter weight is sharded as (Replicate")
    assert "DistributedDataParallel" in replicas
