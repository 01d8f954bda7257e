"""What every quantity of the folder must do, a new one unasked: right steps, no trace, survival, a whole return."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from cockpit_core.quantities.needs import NEEDS
from scripts import quantity_tables
from tests.training import QUANTITIES, by_step, quantities, start

ROOT = Path(__file__).resolve().parents[3]
ALL = {quantity.__name__: quantity for quantity in cockpit_core.quantities.ALL.values()}


def steps_of(data: cockpit_core.RunData, name: str) -> list[int]:
    """Where a quantity has values: on its curve, or as a histogram (parameters are stored like those)."""
    kind = next(info.kind for info in data.header.quantities if info.name == name)
    return list(by_step(data, name)) if kind in ("scalar", "alpha") else data.histogram_steps(name)


def test_the_folder_holds_the_twenty_quantities() -> None:
    assert set(QUANTITIES) <= ALL.keys()


@pytest.mark.parametrize("name", ALL)
def test_quantity_is_measured_at_its_steps_and_only_there(name: str, tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=[ALL[name]()], schedule=2) as run:
        training.run(training.batches(6))
    without = {missing.step for missing in run.data.missing if missing.name == name and missing.reason}
    assert not (without and name in QUANTITIES)
    assert sorted({*steps_of(run.data, name), *without}) == [0, 2, 4]


@pytest.mark.parametrize("name", ALL)
def test_quantity_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    training, plain = start("dropout", "adam"), start("dropout", "adam")
    attributes = [set(vars(module)) for module in training.model.modules()]
    with training.track(tmp_path / "run", config=[ALL[name]()], schedule=2):
        training.run(training.batches(5))
    state = torch.get_rng_state()
    torch.manual_seed(0)
    plain.run(plain.batches(5))
    assert torch.equal(state, torch.get_rng_state())
    assert [set(vars(module)) for module in training.model.modules()] == attributes
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(p.grad, q.grad)
        assert set(vars(p)) == set(vars(q))


@pytest.mark.parametrize("name", [name for name, quantity in ALL.items() if quantity.kind == "scalar"])
def test_quantity_that_raises_is_named_and_training_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self, *args, **kwargs):
        raise RuntimeError("this quantity is broken")

    monkeypatch.setattr(ALL[name], "measure", fail)
    training, plain = start("mlp"), start("mlp")
    plain.run(plain.batches(4))
    other = "GradNorm" if name != "GradNorm" else "ParamNorm"
    config = quantities(name, other)
    with (
        pytest.warns(UserWarning, match=name) as caught,
        training.track(tmp_path / "run", config=config, on_error="warn") as run,
    ):
        training.run(training.batches(4))
    assert len(caught) == 1
    assert any(notice.kind == "error" and notice.quantity == name for notice in run.data.notices)
    assert list(by_step(run.data, other)) == [0, 1, 2, 3]
    for p, q in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("name", ALL)
def test_quantity_comes_back_from_the_file_as_it_was_measured(name: str, tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config=[ALL[name]()]) as run:
        training.run(training.batches(3))
        live = steps_of(run.data, name)
    data = cockpit_core.load(tmp_path / "run")
    assert steps_of(data, name) == steps_of(run.data, name) == live
    if data.header.quantities[0].kind == "scalar" and live:
        np.testing.assert_array_equal(data.scalars(name)[1], run.data.scalars(name)[1])


@pytest.mark.parametrize("name", ALL)
def test_quantity_says_what_it_is(name: str) -> None:
    assert ALL[name].description, "one sentence for someone who has not read the paper"
    assert ALL[name].__doc__


@pytest.mark.parametrize("name", ALL)
def test_quantity_needs_what_there_is(name: str) -> None:
    assert set(ALL[name].needs) <= NEEDS.keys()


@cache
def truths() -> list[str]:
    """The test files that hold a number against a slow truth: a test of theirs says so in its name."""
    others = (file for file in sorted((ROOT / "tests").rglob("test_*.py")) if file != Path(__file__))
    files = [file.read_text(encoding="utf-8") for file in others]
    return [text for text in files if any("truth" in name for name in names_of_tests(text))]


def names_of_tests(text: str) -> list[str]:
    tree = ast.parse(text)
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def has_truth(name: str) -> bool:
    return name in QUANTITIES or any(re.search(rf"\b{name}\b", text) for text in truths())


def is_documented(name: str) -> bool:
    return any(f"`{name}`" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))


def has_panel(name: str) -> bool:
    panels = (file for file in (ROOT / "js/src/panels").glob("*.ts") if not file.name.startswith("_"))
    return any(re.search(rf'"{name}["/]', file.read_text(encoding="utf-8")) for file in panels)


@pytest.mark.parametrize("name", ALL)
def test_quantity_has_a_slow_truth_a_page_and_a_panel(name: str) -> None:
    assert has_truth(name), f"no test holds {name} against a slow truth"
    assert is_documented(name), f"no page of docs/ names {name}; scripts/quantity_tables.py writes its row"
    assert ALL[name].formula, f"{name}.formula is empty: its row in the documentation is made of it"
    default = ALL[name].default_panel
    assert has_panel(name) != default, f"{name} needs a panel, or default_panel = True if a curve will do; not both"


def test_contract_can_fail() -> None:
    assert not has_truth("GradientTaste")
    assert not is_documented("GradientTaste")
    assert not has_panel("GradientTaste")


def test_tables_of_the_documentation_and_of_the_page_are_those_of_the_classes() -> None:
    for page, make in quantity_tables.FILES.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert make(page, text) == text, "run: python scripts/quantity_tables.py"
