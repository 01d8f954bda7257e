"""What to measure at one step: the union of what the due quantities need."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cockpit_core.engine.extensions import find_extensions
from cockpit_core.engine.statistics import Request
from cockpit_core.kernels import Spec
from cockpit_core.layers.scratch import Scratch
from cockpit_core.quantities import Quantity
from cockpit_core.quantities.needs import INDIVIDUAL, REPEATED, WATCHED, Moment, moment_of, work_of

EVERY_SAMPLE = 2**31


@dataclass
class Plan:
    """``record``: write a record at this step. ``alpha_end``: only finish the Alpha of the step before. ``probe``:
    the name of an expensive probe that a diagnosis has asked for. Nothing in it changes once it is made: what every
    layer needs is worked out once.
    """

    quantities: list[Quantity] = field(default_factory=list)
    record: bool = False
    alpha_start: bool = False
    alpha_end: bool = False
    triggered: bool = False
    by_products_only: bool = False
    memory_budget: int = 256 * 2**20
    probe: str = ""

    def __post_init__(self) -> None:
        self.needs = {need for quantity in self.quantities for need in quantity.needs}
        if self.record and not self.by_products_only:
            self.needs.add("losses")
        if self.probe:
            self.needs.add("update")
        self.extensions = find_extensions(self.quantities) if self.record and not self.by_products_only else {}
        self.counting = [q for q in self.quantities if type(q).counted is not Quantity.counted]
        self.spec = self.make_spec()
        self.active = self.record or self.alpha_end  # an attribute, because every idle step asks

    def make_spec(self) -> Spec | None:
        """One pass counts for all quantities: of several that count the same way, the first decides the bins."""
        wanted = [spec for quantity in self.counting if (spec := quantity.counted()) is not None]
        one = next((spec.gradient for spec in wanted if spec.gradient), None)
        two = next((spec.joint for spec in wanted if spec.joint), None)
        return Spec(gradient=one, joint=two) if one or two else None

    def measured_at(self, moment: Moment) -> list[Quantity]:
        """The quantities whose statistics are complete at this moment, and not sooner."""
        return self._by_moment.get(moment, [])

    @cached_property
    def _by_moment(self) -> dict[Moment, list[Quantity]]:
        by_moment: dict[Moment, list[Quantity]] = {}
        for quantity in self.quantities:
            by_moment.setdefault(moment_of(quantity.needs), []).append(quantity)
        return by_moment

    @cached_property
    def individual(self) -> bool:
        """Are individual gradients looked at in any way?"""
        return not self.by_products_only and (self.alpha_end or bool(self.needs & INDIVIDUAL))

    @cached_property
    def measures_individual(self) -> bool:
        """More than the far end of an Alpha."""
        return not self.by_products_only and self.record and bool(self.needs & INDIVIDUAL)

    @cached_property
    def asks_dots(self) -> bool:
        """Are projections on the gradient looked at? A quantity that is not ours may do so without saying it."""
        others = any(not type(q).__module__.startswith("cockpit_core.") for q in self.quantities)
        return others or bool(self.needs & {"dots", "alpha", "gram"}) or self.alpha_start or self.alpha_end

    @cached_property
    def repeats(self) -> bool:
        """Are the samples of this step looked at again, once it is taken?"""
        return self.record and not self.by_products_only and bool(self.needs & REPEATED)

    @cached_property
    def keeps_calls(self) -> bool:
        """Are the calls of the model and of the loss noted, so that they can be repeated?"""
        return self.repeats or bool(self.extensions) or bool(self.probe)

    @cached_property
    def gram_samples(self) -> int:
        """How many samples of the batch the Gram matrix is asked for; 0: it is not."""
        wanted = [getattr(q, "samples", None) or EVERY_SAMPLE for q in self.quantities if "gram" in q.needs]
        return max(wanted, default=0) if self.measures_individual else 0

    @cached_property
    def watched(self) -> frozenset[str]:
        return WATCHED & self.needs if self.record and not self.by_products_only else frozenset()

    @cached_property
    def curvature_kinds(self) -> dict[str, set[str]]:
        """{"diagonal": kinds, "eigenvalue": kinds}; None stands for the run's own kind."""
        kinds: dict[str, set[str]] = {"diagonal": set(), "eigenvalue": set()}
        for quantity in self.quantities:
            for need in kinds:
                if need in quantity.needs:
                    kinds[need].add(getattr(quantity, "curvature", None) or "")
        return {} if self.by_products_only else {need: chosen for need, chosen in kinds.items() if chosen}

    def request(self, scratch: Scratch) -> Request:
        request = Request(memory_budget=self.memory_budget, scratch=scratch)
        if self.measures_individual:
            request.norms, request.squares = "norms" in self.needs or self.record, "squares" in self.needs
            request.dots = self.asks_dots
            request.spec = self.spec
        return request

    @cached_property
    def users(self) -> dict[str, list[str]]:
        """Which quantities asked for which work; forming gradients is shared by all that read their elements. The
        time that a quantity takes itself has a name of its own."""
        users: dict[str, list[str]] = {}
        for quantity in self.quantities:
            for work in work_of(quantity.needs):
                users.setdefault(work, []).append(quantity.name)
        readers = [q.name for q in self.quantities if INDIVIDUAL & set(q.needs)]
        if readers:
            users["form"] = readers
        return users | {f"own {quantity.name}": [quantity.name] for quantity in self.quantities}


class Plans:
    """Makes plans. A plan that asks for the same as an earlier one is that plan, with all that was worked out for it.
    Most steps do.
    Bins may have moved meanwhile, where their range follows the gradients."""

    KEPT = 4

    def __init__(self) -> None:
        self.known: list[tuple[tuple[Any, ...], dict[str, Any], Plan]] = []

    def make(self, *args: Any, **options: Any) -> Plan:
        for known, known_options, plan in self.known:
            if known == args and known_options == options and plan.spec == plan.make_spec():
                return plan
        plan = Plan(*args, **options)
        self.known = [(args, options, plan), *self.known[: self.KEPT - 1]]
        return plan
