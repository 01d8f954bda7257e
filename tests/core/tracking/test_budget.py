"""``budget=``: at most a share of the training time, cheap quantities often, dear ones rarely. And what is the default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cockpit_core
from cockpit_core import quantities as q
from cockpit_core.distributed.group import Group
from cockpit_core.quantities.needs import BASE, bundle_of
from cockpit_core.schedules import as_schedule
from cockpit_core.tracking.account import IDLE, Account
from cockpit_core.tracking.pace import Pace
from cockpit_core.tracking.within_budget import Pacer
from tests.training import by_step, start

WORK = {"individual": "norms", "histogram": "histogram", "alpha": "alpha", "diagonal": "diagonal", "gram": "gram"}
"""The work that the made-up clock bills to a bundle."""


class World:
    """A training whose steps and measurements take as long as we say. ``costs`` by bundle, in seconds."""

    def __init__(self, budget: float, step: float, costs: dict[str, float], schedule: int = 1, loan: float = 0.0):
        self.step_time, self.costs = step, costs
        self.pace = Pace(
            q.everything(), as_schedule(schedule), budget=budget, memory_budget=2**28, group=Group(), loan=loan
        )
        self.now = self.extra = 0.0
        self.measured: dict[str, list[int]] = {}

    def run(self, steps: int) -> World:
        pace = self.pace
        pace.open(0, self.now)
        plan, ends_alpha = pace.plan(0, False), False
        for step in range(steps):
            self.now += self.step_time + IDLE
            self.extra += IDLE
            known, seconds = self._measure(plan, step, ends_alpha) if plan.active else (0.0, {})
            ends_alpha = plan.alpha_start
            if not plan.active and not ends_alpha and step + 1 < pace.idle_until:
                continue
            if not plan.active and not ends_alpha and not pace.is_due(step + 1):
                continue
            pace.book(step + 1, plan, seconds, known, self.now)
            plan = pace.plan(step + 1, ends_alpha)
            pace.account.book_planning(self.now)
        return self

    def _measure(self, plan, step: int, ends_alpha: bool) -> tuple[float, dict[str, float]]:
        bundles = {bundle_of(quantity.needs) for quantity in plan.quantities}
        for name in bundles:
            self.measured.setdefault(name, []).append(step)
        cost = sum(self.costs.get(name, 0.01) for name in bundles) + (0.005 if ends_alpha else 0.0)
        self.now += cost
        self.extra += cost
        return cost, {WORK[name]: self.costs.get(name, 0.01) for name in bundles if name in WORK}

    @property
    def share(self) -> float:
        return self.extra / (self.now - self.extra)


COSTS = {BASE: 4e-3, "individual": 15e-3, "histogram": 20e-3, "diagonal": 1.0, "eigenvalue": 2.0, "preconditioned": 3.0}


@pytest.mark.parametrize("budget", [0.02, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("step", [2e-3, 10e-3, 0.2])
def test_budget_holds_from_the_beginning(budget: float, step: float) -> None:
    for steps, allowed in ((300, budget + 0.03), (1000, budget + 0.01), (6_000, budget)):
        assert World(budget, step, COSTS).run(steps).share <= allowed


def test_budget_is_used_and_dear_ones_are_rare() -> None:
    world = World(0.1, 10e-3, COSTS).run(50_000)
    assert world.share > 0.06
    often = {name: len(steps) for name, steps in world.measured.items()}
    assert often.keys() == world.pace.pacer.bundles.all.keys()
    assert often[BASE] > often["individual"] > 5 * often["diagonal"] > 0
    assert often["diagonal"] >= often["preconditioned"]
    assert world.measured[BASE][0] == 0


def test_what_costs_more_than_expected_is_paid_back() -> None:
    world = World(0.1, 10e-3, {**COSTS, "individual": 2.0}).run(5_000)
    assert world.share <= 0.11


def test_probes_take_a_share_of_their_own_and_make_records_no_dearer() -> None:
    """A probe of 0.1 s in the first 300 steps of 9 ms took a budget of 5 % to 9 %; the next record was expected to cost as much."""
    pace = World(0.05, 10e-3, COSTS).run(300).pace
    assert not pace.may_probe()  # expected to take 0.1 s, and 3 s of training have brought 0.15 s for everything
    pace = World(0.05, 10e-3, COSTS).run(1_000).pace
    assert pace.may_probe()
    base = pace.pacer.bundles.all[BASE].cost
    probing = replace(pace.plans.make([q.Loss()], True, False, False, memory_budget=2**28), probe="line")
    pace.pacer.learn(probing, {"probe": 0.1}, base + 0.115)
    assert pace.pacer.bundles.all[BASE].cost == pytest.approx(base)
    assert not pace.may_probe()
    by_default = World(0.05, 10e-3, COSTS, loan=0.15).run(20).pace
    assert by_default.may_probe()  # suspicions are looked into at once


def test_what_never_fits_is_named_and_not_measured() -> None:
    world = World(0.05, 0.6e-3, {**COSTS, BASE: 4e-3}).run(8_000)
    assert world.share <= 0.06
    assert "HessMaxEV" in world.pace.describe()
    assert "eigenvalue" not in world.measured


def test_a_short_run_has_some_of_all_that_is_not_dear_and_the_loan_is_its_bound() -> None:
    """Alpha and histograms had no value in a training of a second."""
    costs = {BASE: 0.003, "individual": 0.002, "histogram": 0.004, "alpha": 0.004, "diagonal": 0.3, "eigenvalue": 0.3}
    world = World(0.1, 0.002, costs, loan=0.15).run(300)
    assert {"alpha", "histogram", "individual"} <= world.measured.keys()
    assert len(world.measured["individual"]) >= 4
    assert world.extra <= 0.1 * world.now + 0.15 + 0.03 + 0.3  # the loan, glances, and one estimate that was too low
    assert "alpha" not in World(0.1, 0.002, costs, loan=0.0).run(100).measured


def test_schedule_and_budget_both_bound() -> None:
    world = World(0.1, 10e-3, COSTS, schedule=7).run(5_000)
    assert world.share <= 0.1
    assert {step % 7 for steps in world.measured.values() for step in steps} == {0}


def test_rest_earns_no_more_than_some_steps() -> None:
    account = Account(0.1)
    account.open(0.0)
    account.book_idle(10, 0.1)
    before = account.earned
    account.book_idle(1, 3600.0)
    assert account.earned - before < 0.1


def test_length_of_a_step_shows_what_our_clocks_do_not() -> None:
    account = Account(0.1)
    account.open(0.0)
    account.book_idle(100, 1.0)
    assert account.book_step(0.01, 1, 1.0 + 0.01 + 0.015) == pytest.approx(0.015 * 1.15, rel=0.05)


# ---- track(...) -------------------------------------------------------------------------------------------------------


def test_without_config_and_schedule_a_tenth_of_the_time_is_spent_on_everything(tmp_path: Path) -> None:
    training, plain = start("mlp", "adam"), start("mlp", "adam")
    state = torch.get_rng_state()
    with cockpit_core.track(training.model, training.loss_fn, training.optimizer, tmp_path / "run") as run:
        assert torch.equal(state, torch.get_rng_state())
        training.run(training.batches(60))
    plain.run(plain.batches(60))
    header = run.data.header
    assert header.options["budget"] == "0.1"
    assert header.options["lent for early steps"] == "0.15 s"
    assert {info.name for info in header.quantities} == {quantity.name for quantity in q.everything()}
    assert 0 in by_step(run.data, "Loss")
    for ours, other in zip(training.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, other)


def test_config_alone_means_every_step_and_schedule_alone_economy(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "a", config=[q.Loss(), q.NormTest()]) as run:
        training.run(training.batches(4))
    assert list(by_step(run.data, "NormTest")) == [0, 1, 2, 3]
    with training.track(tmp_path / "b", schedule=2) as run:
        training.run(training.batches(4))
    assert list(by_step(run.data, "NormTest")) == [0, 2]
    assert run.data.header.config == "economy"


def test_budget_bounds_a_config(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="full", budget=0.05) as run:
        training.run(training.batches(60))
    tracked = by_step(run.data, "Loss")
    assert "lent for early steps" not in run.data.header.options
    assert 0 in tracked
    assert len(tracked) < 10
    assert {info.name for info in run.data.header.quantities} == {c.name for c in q.configuration("full")}


def test_trigger_is_worth_any_budget(tmp_path: Path) -> None:
    training = start("mlp")
    with training.track(tmp_path / "run", config="economy", budget=0.01) as run:
        training.run(training.batches(5))
        run.trigger()
        training.run(training.batches(1))
    assert 5 in by_step(run.data, "NormTest")


@pytest.mark.parametrize("budget", [0, -0.1, 1.5])
def test_budget_that_is_no_share_is_refused(budget: float, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="share of the training time"):
        start("mlp").track(tmp_path / "run", budget=budget)


def test_in_debt_nothing_is_weighed_but_what_never_fits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighing all quantities takes as long as some steps of a tiny network, and no cost fits into a debt."""
    weighed: list[float] = []
    afford = Pacer._afford

    def note(self: Pacer, waiting: list) -> tuple:
        weighed.append(self.account.balance)
        return afford(self, waiting)

    monkeypatch.setattr(Pacer, "_afford", note)
    world = World(0.05, 0.6e-3, {**COSTS, BASE: 4e-3}).run(300)
    assert world.pace.account.balance < 0
    assert all(balance >= 0 for balance in weighed)
    assert "HessMaxEV" in world.pace.describe()
    rich = World(0.5, 10e-3, COSTS).run(300)
    assert weighed
    assert len(rich.measured[BASE]) > 10
