"""When to measure what: schedules, the budget, triggers, and what several processes have agreed upon."""

from __future__ import annotations

from collections.abc import Sequence

from cockpit_core.distributed.group import Group
from cockpit_core.distributed.together import Wish, agree, rest_until
from cockpit_core.engine.plan import Plan
from cockpit_core.quantities import Quantity
from cockpit_core.quantities.needs import CHEAP
from cockpit_core.schedules import Schedule, as_schedule, find_next
from cockpit_core.tracking.spikes import Spikes


class Pace:
    """Makes the plan of each step; the run carries it out."""

    def __init__(
        self,
        quantities: list[Quantity],
        schedule: Schedule,
        *,
        budget: float | None,
        memory_budget: int,
        group: Group | None,
    ):
        self.quantities, self.schedule = quantities, schedule
        self.budget, self.memory_budget, self.group = budget, memory_budget, group
        self.own_schedules = {q.name: as_schedule(q.schedule) for q in quantities if q.schedule is not None}
        self.deciders: Sequence[Schedule] = (schedule, *self.own_schedules.values())
        self.idle_until = 0  # before this step no schedule has to be asked
        self.spikes = Spikes()
        self.trigger = ""  # why the next step is tracked in full, whatever the schedule
        self.wish = Wish("", False, 0.0, 0.0)  # what this process would like the others to agree to
        self.rests_until = 0
        self.seconds = 0.0  # that tracking has taken so far

    def schedule_of(self, quantity: Quantity) -> Schedule:
        return self.own_schedules.get(quantity.name, self.schedule)

    def is_due(self, step: int) -> bool:
        """Does any schedule name this step? If none does, none is asked again before ``idle_until``."""
        if any(decide(step) for decide in self.deciders):
            return True
        self.idle_until = min(find_next(decide, step) for decide in self.deciders)
        return False

    def plan(self, step: int, elapsed: float, ends_alpha: bool) -> Plan:
        """What to measure at the coming step. ``ends_alpha``: the step before waits for its far end."""
        group, trigger = self.group, self.trigger
        if group is not None and (group.broken or (step < self.rests_until and not trigger)):
            return Plan([], False, False, ends_alpha and not group.broken, memory_budget=self.memory_budget)
        due = self._due(step, elapsed)
        alpha = any("alpha" in q.needs for q in due)
        return Plan(due, bool(due), alpha, ends_alpha, bool(trigger), memory_budget=self.memory_budget)

    def _due(self, step: int, elapsed: float) -> list[Quantity]:
        if self.trigger:
            return list(self.quantities)
        if self.budget is not None and self.group is None and step > 0 and self.seconds > self.budget * elapsed:
            return []
        shared = self.schedule(step)
        own = {name: decide(step) for name, decide in self.own_schedules.items()}
        return [q for q in self.quantities if own.get(q.name, shared)]

    def plan_for_spike(self, ends_alpha: bool) -> Plan:
        """The loss of a step that nobody scheduled has broken: what can be had without its individual gradients."""
        cheap = [q for q in self.quantities if set(q.needs) <= CHEAP]
        return Plan(cheap, True, False, ends_alpha, True, not ends_alpha, self.memory_budget)

    def agree(self, group: Group, step: int, elapsed: float) -> Wish:
        """Triggers, stops and the budget: what one process wants, all of them do, from the next step on."""
        self.wish.seconds, self.wish.elapsed = self.seconds, elapsed
        agreed, self.wish = agree(group, self.wish), Wish("", False, 0.0, 0.0)
        self.rests_until = rest_until(agreed, step, self.budget) if self.budget is not None else 0
        self.trigger = agreed.trigger or self.trigger
        return agreed
