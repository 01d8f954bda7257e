"""What every quantity of the folder must do, a new one unasked: right steps, no trace, survival, a whole return."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import cockpit_core
from tests.training import QUANTITIES, by_step, quantities, start

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
