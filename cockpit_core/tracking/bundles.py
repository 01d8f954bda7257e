"""What is measured together, what it costs, and whose turn it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cockpit_core.engine.plan import Plan
from cockpit_core.quantities import Quantity
from cockpit_core.quantities.needs import BASE, bundle_of, price_of, weight_of

FIXED = 3e-3
"""Seconds that any record takes, before one was written: judging it, writing it."""
HOOKS = "hooks"
LONGEST = 50_000
"""What would be measured more rarely than once in this many steps never fits."""

DOUBT = 4
"""What was never measured may be cheaper than expected, so it is given this many times as long."""


@dataclass
class Bundle:
    """Quantities that share their work. ``cost``: seconds beyond those of any tracked step, once measured."""

    name: str
    quantities: list[Quantity] = field(default_factory=list)
    price: float = 0.0
    weight: float = 1.0
    cost: float | None = None
    since: float = 0.0
    """When it was measured last, in seconds of training."""

    def estimate(self, step_time: float) -> float:
        if self.cost is not None:
            return self.cost
        return self.price * step_time + (FIXED if self.name == BASE else FIXED / 3)


class Bundles:
    """``hooks``: the extra cost of a step once its layers are watched; ``end``: the step after an Alpha."""

    def __init__(self, quantities: Iterable[Quantity]):
        self.all: dict[str, Bundle] = {BASE: Bundle(BASE, price=1.0, weight=weight_of(BASE))}
        for quantity in quantities:
            name = bundle_of(quantity.needs)
            bundle = self.all.setdefault(name, Bundle(name, price=price_of(name), weight=weight_of(name)))
            bundle.quantities.append(quantity)
        self.names = {id(quantity): bundle.name for bundle in self.all.values() for quantity in bundle.quantities}
        self.hooks: float | None = None
        self.end: float | None = None

    def name_of(self, quantity: Quantity) -> str:
        """Of the bundle that it is in; asked for all of them whenever a step is planned."""
        return self.names.get(id(quantity)) or bundle_of(quantity.needs)

    def cost_of(self, chosen: Iterable[Bundle], step_time: float) -> float:
        """Seconds of a tracked step that measures these."""
        bundles = {bundle.name: bundle for bundle in (self.all[BASE], *chosen)}
        hooks = (step_time if self.hooks is None else self.hooks) if len(bundles) > 1 else 0.0
        end = (2 * step_time if self.end is None else self.end) if "alpha" in bundles else 0.0
        return hooks + end + sum(bundle.estimate(step_time) for bundle in bundles.values())

    def ratio(self, bundle: Bundle, trained: float, step_time: float) -> float:
        return bundle.weight * (trained - bundle.since) / max(self.cost_of([bundle], step_time), 1e-9)

    def learn(self, plan: Plan, seconds: dict[str, float], total: float, trained: float) -> None:
        """A tracked step has cost ``total``, of which ``seconds`` are known by kind of work."""
        names = {quantity.name: self.name_of(quantity) for quantity in plan.quantities}
        users = plan.users
        known = dict.fromkeys(names.values(), 0.0)
        for work, spent in seconds.items():
            owners = {names[name] for name in users.get(work, ())}
            for owner in owners:
                known[owner] += spent / len(owners)
        rest = max(0.0, total - sum(known.values()))
        rest = self._learn_rest(known, rest + known.get(BASE, 0.0))
        dearest = max(known, key=price_of, default=BASE)
        for name, cost in known.items():
            bundle = self.all[name]
            bundle.since = trained
            if name != BASE:
                bundle.cost = smooth(bundle.cost, cost + (rest if name == dearest else 0.0))

    def _learn_rest(self, known: dict[str, float], rest: float) -> float:
        """What no clock of ours billed to a bundle: the record, the hooks. Returns what is too much for these: it
        belongs to the most expensive bundle of the step."""
        base = self.all[BASE]
        if known.keys() <= {BASE}:
            base.cost = smooth(base.cost, rest)
            return 0.0
        if base.cost is None:
            base.cost = rest / 2
        hooks = max(0.0, rest - base.cost)
        usual = base.cost if self.hooks is None else max(self.hooks, base.cost)
        self.hooks = smooth(self.hooks, min(hooks, 2 * usual))
        return max(0.0, hooks - 2 * usual)

    def learn_end(self, total: float) -> None:
        """What the step after an Alpha cost, which finds its far end."""
        self.end = smooth(self.end, total)

    def find_hopeless(self, rate: float, step_time: float) -> dict[str, float]:
        """Bundles that could be afforded too rarely, with the steps that one measurement would have to be saved for."""
        if not step_time:
            return {}
        weights = sum(bundle.weight for bundle in self.all.values() if bundle.quantities)
        hopeless = {}
        for bundle in self.all.values():
            wait = self.cost_of([bundle], step_time) * weights / bundle.weight / max(rate, 1e-12)
            longest = LONGEST if bundle.cost is not None else DOUBT * LONGEST
            if bundle.name != BASE and wait > longest:
                hopeless[bundle.name] = wait
        return hopeless


def smooth(known: float | None, new: float) -> float:
    return new if known is None else 0.5 * known + 0.5 * new
