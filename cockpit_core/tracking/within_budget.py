"""Within a budget: which of the due quantities are measured at a step, each at its own pace by what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cockpit_core.engine.plan import Plan
from cockpit_core.quantities import Quantity
from cockpit_core.quantities.needs import BASE
from cockpit_core.tracking.account import LATER, Account
from cockpit_core.tracking.bundles import LONGEST, Bundle, Bundles

NEARLY = 0.6
"""What has waited nearly as long for its cost is measured too: one tracked step for both is cheaper than one for
each."""
FARTHEST = 64
"""Steps ahead that are planned at most, or a quarter of those that were taken: times change, and planning costs too."""
IN_DEBT = 256
"""The same where the account is overdrawn: whatever the times are by then, little is missed."""
GROWTH = 3
"""At most so many times the steps that were taken: early times mislead."""
AFTER_A_SPIKE = (BASE, "activations", "individual")
EARLY = frozenset([1, 2, 5, 11, 23, 43, 83, 163, 313, 643])
"""Steps that are tracked on credit as long as there is some: what is wrong with a training mostly shows there. Primes: at
multiples of 20 an epoch of 20 or 40 steps, in a fixed order, would show the same batch again and again."""
SHOWN = 0.4
"""Share of the loan that may go into a first look at expensive quantities; the rest is for steps that diagnoses
need."""
GLANCES = frozenset(
    [2, 5, 11, 23, 43, 61, 83, 103, 127, 163, 197, 241, 293, 313, 397, 487, 593, 643, 797, 997, 1279, 1597, 1997, 2557]
)
"""Steps at which the loss, the length of the step and that of the weights are put on record where no more can be afforded."""
PURSE, PURSE_SHARE = 0.03, 0.02
"""Seconds, and share of the time trained, that glances may take together."""
PROBES, PROBE_STEPS = 0.25, 10
"""Where a budget is named: the share of it that probes of a suspicion may take, and the steps that one takes, before one was
made."""
GLANCE = 2e-3
"""Seconds that one glance takes at most; anything beyond is a busy machine."""


class Pacer:
    """The bundle that has waited longest for its cost is next, and is measured when the account covers it."""

    def __init__(self, quantities: Sequence[Quantity], share: float, loan: float = 0.0):
        """``loan``: seconds by which the account may be overdrawn for early steps; what comes in later pays them."""
        self.account = Account(share)
        self.account.may_rest = True
        self.loan = loan
        self.bundles = Bundles(quantities)
        self.idle_until = 0
        self.begun = False
        self.glanced = 0.0  # seconds spent on glances
        self.shown = 0.0  # seconds lent for what had never been measured
        self.probed, self.probe_cost = 0.0, 0.0  # seconds spent on probes, and on the last one
        self.weighed = 0  # the step at which it was last found out what never fits
        self.left_out: dict[str, float] = {}
        """Names of quantities that never fit, with the steps that one measurement would have to be saved for."""

    def choose(self, due: Sequence[Quantity], step: int) -> list[Quantity]:
        """Which of the due quantities to measure now."""
        if (
            self._is_in_debt(step) and step < 4 * self.weighed
        ):  # whosever turn it is: weighing them would only add to it
            self._wait(step, -self.account.balance)
            return []
        waiting = self._bundle(due)
        if not waiting:
            return []
        if not self.begun:  # the first measurement may go into debt: it shows what a record costs
            self.begun = True
            cheapest = min(waiting, key=lambda bundle: bundle.price)
            return self._take([cheapest], due)
        account, lends = self.account, bool(self.loan) and step in EARLY
        if not account.step_time and not lends:
            self.idle_until = step + 1
            return []
        self.weighed = step
        self._leave_out(waiting)
        if self._is_in_debt(step):
            self._wait(step, -account.balance)
            return []
        waiting = [bundle for bundle in waiting if not self.left_out.keys() & {q.name for q in bundle.quantities}]
        if not waiting:
            self.idle_until = step + max(FARTHEST, step // 4)
            return []
        chosen, missing = self._afford(waiting)
        if not chosen and step in EARLY:
            chosen = self._borrow(waiting)
        if not chosen:
            self._wait(step, missing)
        return self._take(chosen, due)

    def _is_in_debt(self, step: int) -> bool:
        lends = bool(self.loan) and step in EARLY
        return self.begun and bool(self.account.step_time) and self.account.balance < 0 and not lends

    def _wait(self, step: int, missing: float) -> None:
        """Until the account may have so many seconds more."""
        farthest, rate = max(FARTHEST if self.account.balance >= 0 else IN_DEBT, step // 4), self.account.rate
        wait = math.ceil(missing / rate) if rate > 0 else farthest
        early = min((other - step for other in GLANCES if other > step), default=farthest) if self.loan else farthest
        self.idle_until = step + min(max(wait, 1), farthest, max(GROWTH * step, 1), early)

    def may_glance(self, step: int) -> bool:
        """Where early steps may be tracked on credit, what costs next to nothing has its own budget."""
        allowed = PURSE + PURSE_SHARE * self.account.trained
        return bool(self.loan) and step in GLANCES and self.begun and self.glanced < allowed

    def may_probe(self) -> bool:
        """A probe is no quantity that waits for its turn. What it takes is paid back later, so it has a share of its own."""
        account = self.account
        price = self.probe_cost or PROBE_STEPS * account.step_time
        return bool(self.loan) or 0 < self.probed + price <= PROBES * account.share * account.trained

    def _borrow(self, waiting: Sequence[Bundle]) -> list[Bundle]:
        """What is cheap, as far as the loan goes; and one quantity that was never measured, so that a short run has
        some of everything."""
        chosen: list[Bundle] = []
        step_time, purse = self.account.step_time, self.account.balance + self.loan
        by_price = sorted(waiting, key=lambda bundle: bundle.price)
        for bundle in by_price:
            if bundle.name in AFTER_A_SPIKE and self.bundles.cost_of([*chosen, bundle], step_time) <= purse:
                chosen.append(bundle)
        unseen = next((b for b in by_price if b.cost is None and b.name not in AFTER_A_SPIKE), None)
        if unseen is not None:
            known = self.bundles.cost_of(chosen, step_time) if chosen else 0.0
            more = self.bundles.cost_of([*chosen, unseen], step_time) - known
            if known + more <= purse and self.shown + more <= SHOWN * self.loan:
                self.shown += more
                chosen.append(unseen)
        return chosen

    def _bundle(self, due: Sequence[Quantity]) -> list[Bundle]:
        names = dict.fromkeys(self.bundles.name_of(quantity) for quantity in due)
        return [self.bundles.all[name] for name in names]

    def _take(self, chosen: Sequence[Bundle], due: Sequence[Quantity]) -> list[Quantity]:
        """Those of the bundles, and with any of them what comes with every record."""
        names = {bundle.name for bundle in chosen}
        wanted = names | {BASE}
        return [q for q in due if self.bundles.name_of(q) in wanted] if names else []

    def _afford(self, waiting: Sequence[Bundle]) -> tuple[list[Bundle], float]:
        """Whose turn it is, if the account covers it; else nothing, and what is missing."""
        account, bundles = self.account, self.bundles
        ratios = {b.name: bundles.ratio(b, account.trained, account.step_time) for b in waiting}
        order = sorted(waiting, key=lambda bundle: -ratios[bundle.name])
        dearest = max(bundles.cost_of([bundle], account.step_time) for bundle in waiting)
        account.limit(2 * dearest)
        chosen: list[Bundle] = []
        for bundle in order:
            if chosen and ratios[bundle.name] < NEARLY * ratios[order[0].name]:
                break
            cost = bundles.cost_of([*chosen, bundle], account.step_time)
            if cost > account.balance:
                if not chosen:
                    return [], cost - account.balance
                continue
            chosen.append(bundle)
        return chosen, 0.0

    def choose_after_spike(self, due: Sequence[Quantity]) -> list[Quantity]:
        """A loss is out of line: what is cheap, and what else the account covers."""
        account = self.account
        chosen: list[Bundle] = []
        for bundle in sorted(self._bundle(due), key=lambda bundle: bundle.price):
            cost = self.bundles.cost_of([*chosen, bundle], account.step_time)
            if bundle.name in AFTER_A_SPIKE or cost <= account.balance:
                chosen.append(bundle)
        return self._take(chosen, due)

    def _leave_out(self, waiting: Sequence[Bundle]) -> None:
        hopeless = self.bundles.find_hopeless(self.account.rate, self.account.step_time)
        self.left_out = {
            quantity.name: hopeless[bundle.name]
            for bundle in waiting
            if bundle.name in hopeless
            for quantity in bundle.quantities
        }

    def learn(self, plan: Plan, seconds: dict[str, float], cost: float) -> None:
        if plan.probe:  # comes once in a while: the next record does not cost as much
            self.probe_cost = min(cost, LATER * seconds.get("probe", 0.0))
            self.probed += self.probe_cost
            cost -= self.probe_cost
        if plan.record and not plan.by_products_only:
            self.bundles.learn(plan, seconds, cost, self.account.trained)
        elif plan.record and not plan.triggered:
            self.glanced += min(cost, GLANCE)
        elif plan.alpha_end:
            self.bundles.learn_end(cost)

    def describe(self) -> str:
        """For the header: what is never measured, and why."""
        if not self.left_out:
            return ""
        return f"{', '.join(sorted(self.left_out))}: one measurement takes what more than {LONGEST:,} steps allow"
