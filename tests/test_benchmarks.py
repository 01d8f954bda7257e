"""The benchmarks still run, and the pages show what they measured. How fast anything is, is not asked here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import intervals, measure, pages, results
from benchmarks.architectures import NETWORKS
from benchmarks.networks import PAPER, TINY

SCRIPTS = {  # script: what it writes
    "overhead": ("overhead_configurations.json", "overhead_quantities.svg", "overhead_networks.png"),
    "intervals": ("intervals.json", "intervals.png"),
    "idle": ("idle.json",),
    "scaling": ("scaling.json", "scaling.svg"),
    "eigenvalue": ("eigenvalue.json", "eigenvalue.svg"),
    "histogram_kernels": ("histogram_kernels.json", "histogram_balance.svg"),
    "memory": ("memory_peaks.json", "memory_timelines.json", "memory_timeline.svg"),
    "naive": ("against_naive.json", "against_naive.png"),
    "depth": ("memory_depth.json",),
    "instruments": ("instruments.json",),
}
MORE = {"overhead": ["--networks", "mnist_logreg"]}


SLOW = ("memory", "overhead", "depth")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SCRIPTS])
def test_benchmark_runs_and_writes_its_results(name: str, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    script = importlib.import_module(f"benchmarks.{name}")
    script.main(["--quick", "--threads", "1", "--results", str(tmp_path), *MORE.get(name, [])])
    torch.set_num_threads(threads)
    for file in SCRIPTS[name]:
        assert (tmp_path / file).stat().st_size > 100
    for path in tmp_path.glob("*.json"):
        content = json.loads(path.read_text())
        assert content["machine"]["torch"] == torch.__version__
        assert content["machine"]["threads"] == 1
        assert content.get("complete", True)


@pytest.mark.parametrize("network", PAPER.values(), ids=lambda network: network.name)
def test_network_is_the_one_of_the_paper(network) -> None:
    model = network.make()  # checks the number of parameters
    inputs, labels = network.batch(256)
    assert model(inputs[:2]).shape == (2, int(labels.max()) + 1)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in PAPER])
def test_common_network_is_tracked_and_covered(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    with measure.tracked(network.train(), config="economy") as training:
        training(*network.batch(4))
        run = training.run
        run._tracker.log.write_header(run._tracker.cover)
        assert run._tracker.log.header.covered == 1.0
    assert training.run is None


def test_a_network_that_fails_does_not_stop_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overhead = importlib.import_module("benchmarks.overhead")

    def measure_network(network, options) -> dict:
        if network.name == "mnist_logreg":
            raise ValueError("broken")
        return {title: make_row(2.0) for title in ("untracked", "economy, SGD")}

    monkeypatch.setattr(overhead, "measure_network", measure_network)
    monkeypatch.setattr(overhead, "compile_kernels", lambda: None)
    arguments = ["--parts", "networks", "--networks", "mnist_logreg", "mnist_mlp", "--results", str(tmp_path)]
    with pytest.raises(SystemExit, match="failed: mnist_logreg"):
        overhead.main(arguments)
    found = pages.load(tmp_path)
    assert list(found["overhead_networks"]["networks"]) == ["mnist_mlp"]
    shown = pages.write_block("networks", found)
    assert "mnist_logreg failed: ValueError: broken" in shown
    assert "| mnist_mlp | 1,336,610 | 128 | 2000.00 | 2x (3) |" in shown


def test_norms_of_the_peers_are_those_of_individual_gradients() -> None:
    from benchmarks.worker_peers import ByFunctions, find_able

    model = TINY.make()
    inputs, labels = TINY.batch(4)
    squares = []
    for x, y in zip(inputs, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        squares.append(sum(g.square().sum() for g in gradients))
    peer = ByFunctions(model)
    peer(inputs, labels)
    torch.testing.assert_close(peer.norms, torch.stack(squares).sqrt())

    def refuse(model: torch.nn.Module) -> ByFunctions:
        raise ValueError("not for this network")

    able, reasons = find_able(TINY, 4, {"can": ByFunctions, "cannot": refuse})
    assert list(able) == ["can"]
    assert reasons == {"cannot": "ValueError: not for this network"}


def test_naive_statistics_are_those_of_individual_gradients() -> None:
    """A contestant that computes something else would be no comparison."""
    from benchmarks.naive import NaiveEconomy

    model = torch.nn.Linear(3, 2)
    inputs, labels = torch.rand(4, 3), torch.tensor([0, 1, 1, 0])
    expected = []
    for x, y in zip(inputs, labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
        expected.append(torch.autograd.grad(loss, model.weight)[0].square().sum())
    naive = NaiveEconomy(model)
    naive(inputs, labels)
    torch.testing.assert_close(naive.statistics["weight"]["norms"], torch.stack(expected))


def test_contestants_take_turns_on_the_same_batch() -> None:
    seen: list[tuple[str, int]] = []
    batches = iter(range(10))
    contestants = {name: (lambda x, y, name=name: seen.append((name, x))) for name in "ab"}
    times = measure.take_turns(contestants, lambda: (next(batches), 0), measure.Effort(rounds=2, warm=1))
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_time_limit_ends_the_rounds_but_not_before_the_least() -> None:
    effort = measure.Effort(rounds=50, least=2, seconds=0.0, warm=1)
    times = measure.take_turns({"a": lambda x, y: None}, lambda: (0, 0), effort)
    assert len(times["a"]) == 2


def test_a_warm_up_that_uses_up_the_time_is_the_measurement() -> None:
    steps: list[int] = []
    effort = measure.Effort(rounds=5, seconds=0.0, warm=1)
    times = measure.take_turns({"a": lambda x, y: steps.append(x)}, lambda: (0, 0), effort)
    assert len(times["a"]) == len(steps) == 1


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path) -> None:
    options = results.parse(results.make_parser(None, 1), ["--results", str(tmp_path)])
    content: dict = {"rows": {}}
    drawn: list[dict] = []

    def measure_until_stopped() -> None:
        with results.kept("some", content, options, lambda content, _: drawn.append(content)) as save:
            content["rows"]["first"] = 1.0
            save()
            raise KeyboardInterrupt

    with pytest.raises(SystemExit, match=r"kept in some\.json"):
        measure_until_stopped()
    written = json.loads((tmp_path / "some.json").read_text())
    assert written["rows"] == {"first": 1.0}
    assert written["complete"] is False
    assert drawn == [content]


def test_an_interruption_before_the_first_result_leaves_older_ones(tmp_path: Path) -> None:
    options = results.parse(results.make_parser(None, 1), ["--results", str(tmp_path)])
    (tmp_path / "some.json").write_text("older")

    def stop_at_once() -> None:
        with results.kept("some", {"rows": {}}, options):
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        stop_at_once()
    assert (tmp_path / "some.json").read_text() == "older"


def test_cells_of_long_intervals_add_up() -> None:
    """A cycle of 4 with known times: combining must find again what measuring finds, and carry on to longer cycles."""
    ours = np.array([[9.0, 2.0, 1.0, 1.0]] * 3)
    plain = np.ones((3, 4))
    phases = intervals.find_phases(ours, plain)
    assert intervals.measure_cell(ours, plain)["median"] == intervals.combine(phases, 4)["median"] == 13 / 4
    assert intervals.combine(phases, 16)["median"] == (9 + 2 + 14) / 16


def test_cycles_start_with_a_tracked_step() -> None:
    schedule = intervals.schedule_after_warming(4)
    assert [step for step in range(12) if schedule(step)] == [0, 2, 6, 10]


def make_row(median: float) -> dict:
    spread = {"low": median, "median": median, "high": median}
    return {"multiple": spread, "seconds": spread, "rounds": 3}


def make_machine(**facts: object) -> dict:
    machine = {"cores": 2, "processor": "some", "threads": 2, "torch": "2", "clock": "wall", "date": "2026-01-01"}
    return machine | {"load before": 0.1, "load after": 0.2, "took": 9} | facts


def fill_costs(text: str, **others: dict) -> str:
    rows = {"economy, SGD": make_row(1.87), "untracked, SGD": make_row(0.1)}
    return pages.fill(
        text, {"overhead_configurations": {"machine": make_machine(), "rounds": 3, "rows": rows}, **others}
    )


COSTS = "before\n<!-- costs: written by benchmarks/run.py -->\nold\n<!-- /costs -->\nafter"


def test_page_shows_what_was_measured() -> None:
    filled = fill_costs(COSTS)
    assert "| economy, SGD, every step | 1.9x |" in filled
    assert "old" not in filled
    assert filled.startswith("before\n")
    assert filled.endswith("\nafter")
    assert fill_costs(filled) == filled


@pytest.mark.parametrize("facts", [{}, {"clock": "cpu"}, {"threads": 1}])
def test_readme_never_mixes_clocks(facts: dict) -> None:
    old = {"machine": make_machine(**facts), "rows": {"economy, SGD": {**make_row(10.8), "extra MB": 955.0}}}
    assert ("10.8x, +955 MB" in fill_costs(COSTS, against_2021=old)) == (not facts)


def test_tables_of_the_pages_are_those_of_the_results() -> None:
    """Whoever measures again also writes the pages: python benchmarks/run.py --pages."""
    found = pages.load(results.RESULTS)
    for page in pages.PAGES:
        assert pages.fill(page.read_text(), found) == page.read_text(), f"{page.name} is not up to date"


def test_results_are_small_and_name_no_machine() -> None:
    import socket

    for path in results.RESULTS.iterdir():
        assert path.stat().st_size < 300_000
        if path.suffix == ".json":
            assert socket.gethostname() not in path.read_text()
            assert str(results.ROOT) not in path.read_text()


def test_one_command_knows_every_script() -> None:
    command = [sys.executable, "benchmarks/run.py", "--help"]
    shown = subprocess.check_output(command, cwd=results.ROOT, text=True)
    assert "--pages" in shown
    run = importlib.import_module("benchmarks.run")
    assert set(run.SCRIPTS) == {*SCRIPTS, "against_2021"}
    assert run.MINUTES < 30
    assert "tb_load" in run.OPTIONAL
