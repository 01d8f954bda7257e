"""The benchmarks still run, and the pages show what they measured. How fast anything is, is not asked here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import measure, pages
from benchmarks.networks import NETWORKS

SCRIPTS = {  # script: what it writes
    "overhead": ("overhead_configurations.json", "overhead_quantities.svg", "overhead_networks.json"),
    "intervals": ("intervals.json", "intervals.png"),
    "idle": ("idle.json",),
    "scaling": ("scaling.json", "scaling.svg"),
    "eigenvalue": ("eigenvalue.json",),
    "memory": ("memory_peaks.json",),
}
MORE = {"memory": ["--parts", "peaks"], "overhead": ["--networks", "mnist_logreg"]}


@pytest.mark.parametrize("name", SCRIPTS)
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
        assert content["rounds"] == 1


@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda network: network.name)
def test_network_is_the_one_of_the_paper(network) -> None:
    model = network.make()  # checks the number of parameters
    inputs, _ = network.batch(2)
    assert model(inputs).shape == (2, network.classes)


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
    times = measure.take_turns(contestants, lambda: (next(batches), 0), rounds=2, warm=1)
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def make_row(median: float) -> dict:
    spread = {"low": median, "median": median, "high": median}
    return {"multiple": spread, "seconds": spread}


def test_page_shows_what_was_measured_and_marks_what_was_not() -> None:
    machine = {"cores": 2, "processor": "some", "threads": 2, "torch": "2", "clock": "wall", "date": "2026-01-01"}
    machine |= {"load before": 0.1, "load after": 0.2}
    rows = {"economy, SGD": make_row(1.87), "untracked, SGD": make_row(1.0)}
    results = {"overhead_configurations": {"machine": machine, "rounds": 3, "rows": rows}}
    opening, closing = "<!-- costs: written by benchmarks/run.py -->", "<!-- /costs -->"
    filled = pages.fill(f"before\n{opening}\nold\n{closing}\nafter", results)
    assert "| economy, SGD, every step | 1.9x |" in filled
    assert "10.7x, +1.1 GB *" in filled
    assert "old" not in filled
    assert filled.startswith("before\n")
    assert filled.endswith("\nafter")
    assert pages.fill(filled, results) == filled


def test_tables_of_the_pages_are_those_of_the_results() -> None:
    """Whoever measures again also writes the pages: python benchmarks/run.py --pages."""
    results = pages.load(measure.RESULTS)
    for page in pages.PAGES:
        assert pages.fill(page.read_text(), results) == page.read_text(), f"{page.name} is not up to date"


def test_results_are_small_and_name_no_machine() -> None:
    import socket

    for path in measure.RESULTS.iterdir():
        assert path.stat().st_size < 300_000
        if path.suffix == ".json":
            assert socket.gethostname() not in path.read_text()
            assert str(measure.ROOT) not in path.read_text()


def test_one_command_knows_every_script() -> None:
    command = [sys.executable, "benchmarks/run.py", "--help"]
    shown = subprocess.check_output(command, cwd=measure.ROOT, text=True)
    assert "--pages" in shown
    run = importlib.import_module("benchmarks.run")
    assert set(SCRIPTS) <= set(run.SCRIPTS)
    assert sum(run.SCRIPTS.values()) <= 30
