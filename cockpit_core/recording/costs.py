"""What a tracked step cost, by quantity."""

from __future__ import annotations

from cockpit_core.engine.clock import split_costs
from cockpit_core.engine.plan import Plan


def bill(seconds: dict[str, float], plan: Plan, total: float, *, step: float, before: float) -> dict[str, float]:
    """``seconds`` by kind of work. ``step``: the whole step, ours and the user's; ``before``: the run's costs so far."""
    costs = split_costs(seconds, plan.users, total)
    costs["step"] = step
    costs["run"] = before + total
    return costs
