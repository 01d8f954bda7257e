"""Layer by layer from what the backward passes left to results, over the samples of all processes.

One process takes one layer after the other; several take all of them at once, because every round takes messages. A layer
whose contributions do not add up to its gradient is tried the next way, if every process has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cockpit_core.distributed.group import Group, first_problem, reason_of
from cockpit_core.engine import by_products, folded_layers, small_layers
from cockpit_core.engine.capture import Pass
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.layer_result import Job, LayerResult, judge, reduce_parts
from cockpit_core.engine.making import Maker
from cockpit_core.engine.statistics import LayerStatistics
from cockpit_core.foundation.sharded import contains_sharded_modules, is_sharded, whole
from cockpit_core.layers.contribution import Contribution, Outer, Positions, Rows
from cockpit_core.layers.conv import Patches
from cockpit_core.layers.fallback import ModuleGradients, gradients_of
from cockpit_core.layers.registry import NotCovered, Repeating, find_rule
from cockpit_core.layers.standing_in import Tried

KIND_OF: dict[type, Any] = {Rows: small_layers, Outer: by_products, Positions: by_products, Patches: folded_layers}
"""Who may reduce such contributions of many layers together, at the end of the pass."""
KINDS = tuple(dict.fromkeys(KIND_OF.values()))


class Reducer:
    """Reduces what a job asks for; it knows the network, the other processes and the clock, and keeps nothing."""

    def __init__(self, cover: Cover, maker: Maker, group: Group, clock: Clock):
        self.cover, self.maker, self.group, self.clock = cover, maker, group, clock

    def reduce(self, job: Job, names: list[str]) -> Iterator[LayerResult]:
        """One result for every layer that something is asked of, still to be settled. All but the last no longer need
        formed gradients."""
        if self.cover.sharded:
            lend_parameters(self.cover, job.passes)
        for some in self.group.rounds(names):
            results = [result for name in some if (result := self._collect(job, name)) is not None]
            self._reduce_each(job, results, may_wait=True)
            yield from results

    def settle(self, job: Job, results: list[LayerResult]) -> None:
        """Judge all of them at once, over the samples of all processes. What does not add up is tried the next way."""
        self._reduce_waiting(job, [result for result in results if result.along is not None])
        pending = results
        while pending:
            mine = {r.name: r.reason or vectors_of(r.statistics) for r in pending}
            pending = self._judge(job, pending, self.group.gather("layers", mine))
            self._reduce_each(job, pending)
        self._add_sums([r.statistics for r in results if r.statistics is not None])

    def _collect(self, job: Job, name: str) -> LayerResult | None:
        """Its parts, one per pass. What cannot be had is a reason."""
        gradient, result = job.gradient(name), LayerResult(name)
        own = [is_used(pass_, name) for pass_ in job.passes]
        used, result.directions = self.group.may_use(any(own)), job.directions(name, gradient)
        if not result.directions or (not used and not bool(gradient.any())):
            return None  # what is left of another backward pass: the generator's, where the discriminator is trained
        try:
            for pass_, there in zip(job.passes, own, strict=True):
                make = self.maker.nothing if used and not there else self.maker.of_parameter
                result.parts.append(make(pass_, name, job.scale))
        except Exception as error:
            self._give_up(result, error)
        return result

    def _give_up(self, result: LayerResult, error: Exception) -> None:
        result.statistics, result.reason = None, reason_of(error)
        if not isinstance(error, NotCovered):
            self.group.hold_back(error)
            result.error = error

    def _reduce_waiting(self, job: Job, results: list[LayerResult]) -> None:
        """All layers that need no turn of their own."""
        try:
            for kind in KINDS:
                some = [result for result in results if result.waits_for is kind]
                kind.reduce_waiting(some, job, self.clock)
        except Exception as error:
            for result in results:
                self._give_up(result, error)
        for result in results:
            result.along = None

    def _reduce_each(self, job: Job, results: list[LayerResult], *, may_wait: bool = False) -> None:
        """This process's samples; formed gradients of one module are dropped before the next one's are made."""
        last: ModuleGradients | None = None
        for result in results:
            directions, result.directions = result.directions, None  # worked out when it was collected
            if directions is None:
                directions = job.directions(result.name, job.gradient(result.name))
            if self.cover.sharded:
                directions = {key: whole(direction) for key, direction in directions.items()}  # by all processes alike
            parameter = self.cover.parameters[result.name]
            value = parameter if job.request.spec is None else whole(parameter)
            if result.reason:
                continue
            if may_wait and (kind := find_kind(result, directions, job)) is not None:
                result.along, result.waits_for = directions, kind
                continue
            try:
                reduce_parts(result, directions, job, value, self.clock)
            except Exception as error:
                self._give_up(result, error)
            held = gradients_of(result.parts[0])
            if last is not None and last is not held and not job.keep:
                last.whole = None
            last = held

    def _judge(self, job: Job, results: list[LayerResult], answers: list[dict[str, Any]]) -> list[LayerResult]:
        """The samples of all processes side by side, checked against the gradient; returns what is to be tried again."""
        for result in results:
            each = [answer.get(result.name, "it has no gradient there") for answer in answers]
            problem = first_problem([own if isinstance(own, str) else "" for own in each])
            if problem:
                result.statistics, result.reason = None, result.reason or problem
            elif result.statistics is not None:
                result.statistics = join_vectors(result.statistics, each, job.samples)
        there = [result for result in results if result.statistics is not None]
        gradients = {r.name: as_long(job.gradient(r.name), job.lengths, r.name) for r in there}
        failed = judge(there, gradients, job)
        if not failed:
            return []
        can = self.group.gather("ways", {r.name: use_next_way(r.parts) for r in results if r.name in failed})
        again = []
        for result in (r for r in results if r.name in failed):
            if all(answer[result.name] for answer in can):
                again.append(result)
            else:
                result.statistics, result.reason = None, failed[result.name]
        return again

    def _add_sums(self, layers: list[LayerStatistics]) -> None:
        sums: list[Tensor] = []
        for statistics in layers:
            if statistics.squares is not None:
                statistics.squares = self.group.own(statistics.squares)
                sums.append(statistics.squares)
            if statistics.counts is not None:
                sums += self.group.own_tables(statistics.counts)
        self.group.add(sums)


def find_kind(result: LayerResult, directions: dict[str, Tensor], job: Job) -> Any:
    """The module that will reduce this layer together with others of its kind; None where it needs a turn of its own."""
    part = result.parts[0] if len(result.parts) == 1 else None
    kind = KIND_OF.get(type(part.part if isinstance(part, Tried) else part))
    return kind if kind is not None and kind.may_wait(result, directions, job) else None


def drop_formed(known: list[LayerResult], following: LayerResult, keep: bool) -> None:
    """Gradients that a module without a rule has formed are used by its own parameters only."""
    last = gradients_of(known[-1].parts[0]) if known and known[-1].parts else None
    if last is not None and not keep and (not following.parts or last is not gradients_of(following.parts[0])):
        last.whole = None


def is_used(pass_: Pass, name: str) -> bool:
    return name in pass_.by_parameter or name in pass_.direct or name in pass_.shared


def use_next_way(parts: list[Contribution]) -> bool:
    """Every part moves on, even if another one cannot."""
    moved = [part.next_way() for part in parts]
    return all(moved)


def as_long(gradient: Tensor, lengths: Mapping[str, float], name: str) -> Tensor:
    """The gradient, or where it is sharded something as long: the check looks at nothing else."""
    return torch.tensor([lengths[name]], dtype=gradient.dtype) if is_sharded(gradient) else gradient


def vectors_of(statistics: LayerStatistics | None) -> tuple[Tensor | None, dict[str, Tensor]]:
    assert statistics is not None
    return statistics.norms, statistics.projections


def join_vectors(mine: LayerStatistics, vectors: list[Any], samples: int) -> LayerStatistics:
    """Samples of all ranks side by side; sums stay this rank's until they are added."""
    if len(vectors) == 1:
        return mine
    norms = None if mine.norms is None else torch.cat([v[0] for v in vectors])
    common = [key for key in mine.projections if all(key in v[1] for v in vectors)]  # hooks may be on one rank only
    projections = {key: torch.cat([v[1][key] for v in vectors]) for key in common}
    return LayerStatistics(samples, norms, projections, mine.squares, mine.counts)


def lend_parameters(cover: Cover, passes: list[Pass]) -> None:
    """Modules without a rule are run again, and attention in part: where parameters are sharded, they need whole ones.

    Decided by what all ranks know alike, so that all of them gather the same.
    """
    values: dict[Any, dict[str, Tensor]] = {}
    for module, locals_ in cover.hooked_modules().items():
        rule = find_rule(module)
        repeats = isinstance(rule, Repeating)
        runs_again = rule is None or repeats or any("." in local for local in locals_)
        if runs_again and (repeats or not contains_sharded_modules(module)):
            values[module] = {name: whole(p) for name, p in module.named_parameters()}
    for pass_ in passes:
        for held in pass_.captured.values():
            held.call.parameters = values.get(held.call.module, {})
