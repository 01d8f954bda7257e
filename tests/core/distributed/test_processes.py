"""Several processes: every number is the one of a single process that sees the joined batch."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import cockpit_core
from tests.distributed_worker import NEUTRAL, SIZE, UNEQUAL, OnlySome, problem_of, share
from tests.fault_scenarios import FAULTS
from tests.processes import result
from tests.training import OPTIMIZERS, QUANTITIES, by_step, loop, quantities, with_config

NETWORKS = ("mlp", "cnn", "tied", "encoder_layer", "decoder", "own_parameter", "lstm", "broadcast")


def train_alone(
    name: str, logdir: Path, *, optimizer: str = "momentum", clip: bool = False, **options: Any
) -> cockpit_core.RunData:
    """One process, the joined batch."""
    problem = problem_of(name)
    model, loss_fn, batches = problem.make()
    optim = OPTIMIZERS[optimizer](problem.groups(model))
    options = {"config": quantities(*QUANTITIES), "on_error": "raise", **options}
    with cockpit_core.track(model, loss_fn, optim, logdir, **with_config(options)):
        for inputs, targets in batches(3):
            optim.zero_grad()
            loss_fn(model(inputs), targets).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optim.step()
    return cockpit_core.load(logdir)


def assert_same(together: cockpit_core.RunData, alone: cockpit_core.RunData, skip: tuple[str, ...] = ()) -> None:
    """All scalars, layers, alphas and histograms."""
    assert together.layers == alone.layers
    assert together.header.covered == alone.header.covered
    assert together.header.batch_size == SIZE
    for name in (*QUANTITIES, "GradNormClipped", "TopSampleNorm"):
        if name in ("Time", "Parameters", "GradHist1d", "GradHist2d", "Alpha", *skip):
            continue
        if name in together.names or name in alone.names:
            tolerance = 2e-3 if name == "HessMaxEV" else 1e-5
            assert by_step(together, name) == pytest.approx(by_step(alone, name), rel=tolerance, abs=1e-7), name
    for layer in alone.layers:
        for name in ("GradNorm", "NormTest", "InnerTest", "OrthoTest", "HessTrace"):
            if name not in skip:
                assert by_step(together, name, layer) == pytest.approx(by_step(alone, name, layer), rel=1e-5, abs=1e-7)
    fits = [[asdict(fit) for fit in data.alphas] for data in (together, alone)]
    assert len(fits[0]) == len(fits[1]) > 0
    for one, other in zip(*fits, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-9)
    for name in ("GradHist1d", "GradHist2d"):
        first, second = together.histogram(name, 2).counts, alone.histogram(name, 2).counts
        assert first.sum() == second.sum()
        assert np.abs(first.astype(int) - second.astype(int)).sum() <= 0.05 * first.sum()  # rounding at the edges


@pytest.mark.parametrize("name", NETWORKS)
def test_two_processes_are_one_batch(name: str, two: Path, tmp_path: Path) -> None:
    together = cockpit_core.load(two / name)
    assert together.header.options["processes"] == "2"
    assert_same(together, train_alone(name, tmp_path / "alone"))


@pytest.mark.parametrize("name", ["mlp", "residual_relu"])
def test_four_processes_are_one_batch(name: str, four: Path, tmp_path: Path) -> None:
    assert_same(cockpit_core.load(four / name), train_alone(name, tmp_path / "alone"))


@pytest.mark.parametrize("processes", [2, 4])
def test_each_process_counts_alike_where_local_batches_differ(
    processes: int, two: Path, four: Path, tmp_path: Path
) -> None:
    """The loss is the mean of the local means: a sample of a small local batch weighs more."""
    problem = problem_of("mlp")
    model, _, batches = problem.make()
    optimizer = OPTIMIZERS["momentum"](problem.groups(model))
    weights = torch.cat([torch.full((b,), SIZE / (processes * b), dtype=torch.float64) for b in UNEQUAL[processes]])
    config = quantities(*QUANTITIES)
    with cockpit_core.track(model, None, optimizer, tmp_path / "alone", config=config, on_error="raise") as run:
        for inputs, targets in batches(3):
            optimizer.zero_grad()
            losses = weights * nn.functional.cross_entropy(model(inputs), targets, reduction="none")
            run.backward(losses.mean(), losses)
            optimizer.step()
    together = cockpit_core.load((two if processes == 2 else four) / "unequal")
    assert_same(together, cockpit_core.load(tmp_path / "alone"))


def test_gauss_newton_is_that_of_the_joined_batch(two: Path, tmp_path: Path) -> None:
    assert_same(cockpit_core.load(two / "ggn"), train_alone("regression", tmp_path / "alone", curvature="ggn"))


def test_micro_batches_without_synchronisation_belong_to_the_batch(two: Path, tmp_path: Path) -> None:
    alone = train_alone("mlp", tmp_path / "alone", optimizer="adam")
    together = cockpit_core.load(two / "accumulated")
    assert_same(together, alone, skip=("HessMaxEV",))
    assert {missing.name for missing in together.missing} >= {"HessMaxEV"}


def test_gradient_is_taken_before_it_is_clipped(two: Path, tmp_path: Path) -> None:
    assert_same(cockpit_core.load(two / "clipped"), train_alone("mlp", tmp_path / "alone", clip=True))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", NEUTRAL)
def test_training_is_bit_for_bit_the_same(name: str, rank: int, two: Path) -> None:
    untracked, tracked = result(two, "neutrality", rank)[name]
    assert len(untracked) > 5
    assert [part for part in untracked if untracked[part] != tracked.get(part)] == []
    assert untracked.keys() == tracked.keys()
    assert cockpit_core.load(two / f"neutral {name}").scalars("HessMaxEV")[0].tolist() == [0, 2]


def test_static_graph_loses_only_the_curvature_of_its_first_step(two: Path, tmp_path: Path) -> None:
    together = cockpit_core.load(two / "static")
    alone = train_alone("mlp", tmp_path / "alone")
    assert_same(together, alone, skip=("HessTrace", "HessMaxEV", "TICDiag", "TICTrace"))
    assert list(by_step(together, "HessTrace")) == [1, 2]
    assert "static_graph" in next(m.reason for m in together.missing if m.name == "HessTrace")


def test_samples_that_do_not_use_a_parameter_count_as_zero(two: Path) -> None:
    """Rank 1 never runs the branch; its samples' gradients there are zero, and they are part of the batch."""
    data = cockpit_core.load(two / "some")
    assert data.header.covered == 1.0
    torch.manual_seed(0)
    model = OnlySome().double()
    x = torch.randn(SIZE, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    y = torch.arange(SIZE) % 3
    rows: list[Tensor] = []
    for rank in range(2):
        mine = share(x, rank, 2).clone()
        mine[0, 0] = 1.0 if rank == 0 else -1.0
        losses = nn.functional.cross_entropy(model(mine), share(y, rank, 2), reduction="none")
        for loss in losses:
            gradient = torch.autograd.grad(loss, model.branch.weight, retain_graph=True, materialize_grads=True)[0]
            rows.append(gradient.flatten())
    G = torch.stack(rows).numpy()
    g = G.mean(0)
    expected = np.sqrt(((G**2).sum() / (g @ g) - SIZE) / (SIZE * (SIZE - 1)))
    assert by_step(data, "NormTest", "branch.weight")[0] == pytest.approx(expected, rel=1e-5)


def test_wishes_of_one_process_reach_all_at_the_same_step(two: Path) -> None:
    first, second = result(two, "wishes", 0), result(two, "wishes", 1)
    assert first == second
    assert first["stopped"] == 12
    assert first["steps"] == [
        0,
        2,
        4,
        8,
        12,
    ]  # wished at step 1, agreed there (the end of step 0's Alpha), tracked at 2
    assert cockpit_core.load(two / "wishes").status == "stopped"


def test_budget_is_kept_by_all_processes_alike(two: Path) -> None:
    steps = result(two, "budget", 0)
    assert steps == result(two, "budget", 1)
    assert 1 <= len(steps) < 40


def test_nobody_waits_for_a_process_that_has_joined(two: Path) -> None:
    assert [result(two, "join", rank) for rank in (0, 1)] == [2, 3]
    assert cockpit_core.load(two / "join").status == "finished"


def test_different_arguments_are_refused_on_all_processes(two: Path) -> None:
    for rank in (0, 1):
        assert "the arguments differ between ranks" in result(two, "different_arguments", rank)


def test_log_that_rank_0_cannot_open_is_refused_on_all_processes(two: Path) -> None:
    for rank in (0, 1):
        assert "FileExistsError" in result(two, "directory_in_use", rank)


def test_call_by_one_process_only_is_refused_instead_of_waiting(two: Path) -> None:
    assert "call it in every process" in result(two, "one_rank_only", 0)


def test_model_that_nobody_wrapped_is_measured_alone_and_says_so(two: Path) -> None:
    assert "the numbers are those of this process alone" in result(two, "unwrapped", 1)


def test_process_that_dies_leaves_a_readable_log_and_no_hang(two: Path) -> None:
    assert result(two, "death", 0).startswith("user: ")  # the error of DistributedDataParallel, unchanged
    data = cockpit_core.load(two / "death")
    assert data.scalars("Loss")[0].tolist() == [0, 1, 2]
    assert data.broken == 0


# ---- an error on one process only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_error_on_one_process_keeps_nobody_waiting(fault: str, two: Path) -> None:
    """Quickly over, nothing broken, and what the error did not touch is there at every step."""
    for rank in (0, 1):
        found = result(two, "faults", rank)[fault]
        assert found["broken"] == ""
        assert found["seconds"] < 20
    data = cockpit_core.load(two / f"fault {fault}")
    assert data.scalars("Loss")[0].tolist() == [0, 1, 2]
    assert data.scalars("GradNorm")[0].tolist() == [0, 1, 2]
    if fault != "losses":
        assert data.scalars("NormTest")[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("fault", ["point", "operator", "product of rank 0", "product of rank 1"])
def test_curvature_that_one_process_lacks_has_no_value_with_its_reason(fault: str, two: Path) -> None:
    data = cockpit_core.load(two / f"fault {fault}")
    reasons = {missing.reason for missing in data.missing if missing.name == "HessMaxEV"}
    assert "HessMaxEV" not in data.names or len(data.scalars("HessMaxEV")[0]) < 3
    rank = 0 if fault.endswith("0") else 1
    assert reasons == {f"rank {rank}: Odd: only here"}


def test_process_that_does_not_answer_is_given_up(two: Path) -> None:
    for rank in (0, 1):
        found = result(two, "silence", rank)
        assert found["broken"]
        assert found["step"] == 3  # training went on
    assert "Timed out" in result(two, "silence", 0)["broken"]
    assert cockpit_core.load(two / "silence").status == "finished"


# ---- SyncBatchNorm ---------------------------------------------------------------------------------------------------

CURVATURE = ("HessTrace", "HessMaxEV", "TICDiag", "TICTrace")


def test_shared_batch_statistics_are_those_of_the_joined_batch(two: Path, tmp_path: Path) -> None:
    """SyncBatchNorm on two processes is BatchNorm on one; its curvature would need products that talk, so it has none."""
    together = cockpit_core.load(two / "sync")
    assert_same(together, train_alone("batchnorm", tmp_path / "alone"), skip=CURVATURE)
    methods = {info.name: (info.method, info.reason) for info in together.header.layers}
    assert methods["1.weight"][0] == "contribution"
    assert "SyncBatchNorm" in methods["1.weight"][1]
    reasons = {m.name: m.reason for m in together.missing}
    assert all("SyncBatchNorm" in reasons[name] for name in ("HessTrace", "HessMaxEV"))


@pytest.mark.parametrize("rank", [0, 1])
def test_shared_batch_statistics_are_neutral(rank: int, two: Path) -> None:
    untracked, tracked = result(two, "sync_batch_norm", rank)["batchnorm"]
    assert untracked == tracked


def test_shared_batch_statistics_in_eval_mode_are_constants(two: Path, tmp_path: Path) -> None:
    data = cockpit_core.load(two / "sync eval")
    assert {info.method for info in data.header.layers} == {"rule"}
    assert data.scalars("HessMaxEV")[0].tolist() == [0, 1, 2]


def test_single_process_needs_no_group(tmp_path: Path) -> None:
    problem = problem_of("mlp")
    model, loss_fn, batches = problem.make()
    optimizer = OPTIMIZERS["sgd"](problem.groups(model))
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config="economy") as run:
        loop(model, loss_fn, optimizer, batches(1))
        assert run._tracker.group.size == 1
    assert "processes" not in run.data.header.options
