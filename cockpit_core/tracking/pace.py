"""When to measure what: schedules, the budget, triggers, and what several processes have agreed on."""

from __future__ import annotations

from collections.abc import Sequence

from cockpit_core.distributed.agreement import Agreed
from cockpit_core.distributed.group import Group
from cockpit_core.engine.plan import Plan, Plans
from cockpit_core.quantities import Quantity
from cockpit_core.quantities.needs import CHEAP
from cockpit_core.schedules import Schedule, as_schedule, find_next
from cockpit_core.tracking.account import Account
from cockpit_core.tracking.spikes import Spikes
from cockpit_core.tracking.within_budget import Pacer


class Pace:
    """Makes the plan of each step; the run carries it out."""

    def __init__(
        self,
        quantities: list[Quantity],
        schedule: Schedule,
        *,
        budget: float | None,
        loan: float = 0.0,
        memory_budget: int,
        group: Group,
    ):
        self.quantities, self.schedule = quantities, schedule
        self.budget, self.memory_budget, self.group = budget, memory_budget, group
        self.own_schedules = {q.name: as_schedule(q.schedule) for q in quantities if q.schedule is not None}
        self.deciders: Sequence[Schedule] = (schedule, *self.own_schedules.values())
        self.idle_until = 0  # before this step no schedule has to be asked
        self.spikes = Spikes()
        self.plans = Plans()
        self.trigger = ""  # why the next step is tracked in full, whatever the schedule
        self.rests_until = 0  # the step before which the budget allows nothing, as agreed
        self.by_spike = False  # the trigger is a loss out of line, no wish of the user's
        self.pacer = Pacer(quantities, budget, loan) if budget is not None and group.paces_each else None
        self.account = Account(budget or 0.0) if self.pacer is None else self.pacer.account
        self.booked = 0  # the first step that is not in the account yet

    @property
    def seconds(self) -> float:
        """Seconds that tracking has taken so far."""
        return self.account.seen

    def open(self, step: int, now: float) -> None:
        """Training begins: nothing that was done before counts."""
        self.booked = step
        self.account.open(now)

    def book(self, step: int, plan: Plan, seconds: dict[str, float], known: float, now: float) -> None:
        """The steps before ``step`` are over. ``known``: what the last one is known to have cost, if it was tracked."""
        steps, self.booked = step - self.booked, step
        if not plan.active:
            self.account.book_idle(steps, now)
            return
        cost = self.account.book_step(known, steps, now)
        if self.pacer is not None:
            self.pacer.learn(plan, seconds, cost)

    def describe(self) -> str:
        """What the budget never allows, for the header."""
        return "" if self.pacer is None else self.pacer.describe()

    def may_probe(self) -> bool:
        return self.pacer is None or self.pacer.may_probe()

    def schedule_of(self, quantity: Quantity) -> Schedule:
        return self.own_schedules.get(quantity.name, self.schedule)

    def is_due(self, step: int) -> bool:
        """Does any schedule name this step? If none does, none is asked again before ``idle_until``."""
        if self.pacer is not None and step < self.pacer.idle_until:
            self.idle_until = self.pacer.idle_until
            return False
        if any(decide(step) for decide in self.deciders):
            return True
        self.idle_until = min(find_next(decide, step) for decide in self.deciders)
        return False

    def might_be_due(self, step: int) -> bool:
        """True also if a schedule fails: the long way asks it again and reports the error."""
        try:
            return self.is_due(step)
        except Exception:
            return True

    def plan(self, step: int, ends_alpha: bool) -> Plan:
        """What to measure at the coming step. ``ends_alpha``: the step before waits for its far end."""
        group, trigger = self.group, self.trigger
        if group.broken or (step < self.rests_until and not trigger):
            return self.plans.make([], False, False, ends_alpha and not group.broken, memory_budget=self.memory_budget)
        due = self._due(step)
        if not due and not ends_alpha and self.pacer is not None and self.pacer.may_glance(step):
            return self._plan_cheap(False, True, triggered=False)
        alpha = any("alpha" in q.needs for q in due)
        return self.plans.make(due, bool(due), alpha, ends_alpha, bool(trigger), memory_budget=self.memory_budget)

    def _due(self, step: int) -> list[Quantity]:
        if self.trigger:
            by_spike, self.by_spike = self.by_spike, False
            spared = by_spike and self.pacer is not None
            return self.pacer.choose_after_spike(self.quantities) if spared else list(self.quantities)  # type: ignore[union-attr]
        shared = self.schedule(step)
        due = list(self.quantities) if shared else []
        if self.own_schedules:
            own = {name: decide(step) for name, decide in self.own_schedules.items()}
            due = [q for q in self.quantities if own.get(q.name, shared)]
        return due if self.pacer is None else self.pacer.choose(due, step)

    def plan_for_spike(self, ends_alpha: bool) -> Plan:
        """The loss of a step that nobody scheduled has broken: records what is available without individual
        gradients."""
        return self._plan_cheap(ends_alpha, not ends_alpha, triggered=True)

    def _plan_cheap(self, ends_alpha: bool, by_products_only: bool, *, triggered: bool) -> Plan:
        cheap = [q for q in self.quantities if set(q.needs) <= CHEAP]
        return self.plans.make(cheap, True, False, ends_alpha, triggered, by_products_only, self.memory_budget)

    def follow(self, agreed: Agreed) -> None:
        """What all processes have decided, from the next step on."""
        self.rests_until = agreed.rests_until
        self.trigger = agreed.trigger or self.trigger
