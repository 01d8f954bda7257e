"""One step measured by several processes: each its own samples, then one batch. The definitions are in ``distributed``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cockpit_core.curvature import Eigenpair, NoCurvature, largest_eigenvalue
from cockpit_core.curvature.operators import flatten, unflatten
from cockpit_core.distributed.group import Group, OutOfStep, attempt, first_problem, reason_of
from cockpit_core.engine.capture import contribution_of, find_own_rule, free
from cockpit_core.engine.layer_result import check, method_of, note_costs, reduce_parts, use_next_way
from cockpit_core.engine.statistics import LayerStatistics
from cockpit_core.foundation.sharded import contains_sharded_modules, is_sharded, whole
from cockpit_core.layers.contribution import Contribution, Zeros
from cockpit_core.layers.fallback import gradients_of
from cockpit_core.layers.registry import NotCovered, find_rule

if TYPE_CHECKING:
    from cockpit_core.engine.engine import Engine
    from cockpit_core.engine.step import StepState


@dataclass
class Joint:
    """What the ranks know of their common step."""

    batch_size: int
    loss: float
    losses: Tensor | None
    no_losses: str


def measure_together(engine: Engine) -> None:
    """All passes of the step are there, and the gradient is reduced: measure, and join what the ranks have."""
    state, group = engine.step, engine.group
    assert group is not None
    state.measured = True
    mine = (len(state.passes), state.batch_size, state.loss, state.losses(), state.why_no_losses())
    answers = group.gather("batch", mine)
    silent = [str(rank) for rank, answer in enumerate(answers) if not answer[0]]
    group.most_passes = max(answer[0] for answer in answers)
    if silent:
        reason = f"rank {', '.join(silent)} saw no backward pass of its loss"
        state.no_value["individual"] = reason
        for found in state.passes:  # the losses of some ranks are not those of the batch
            found.losses, found.no_losses = None, reason
        return
    state.joint = join_batches(answers)
    if state.plan.individual:
        reduce_together(engine, group, state.joint.batch_size)
    if state.plan.curvature_kinds.get("diagonal"):
        join_diagonals(engine, group)


def join_batches(answers: list[Any]) -> Joint:
    """``L`` is the mean of the ranks' losses; a rank's individual losses have its mean, so each counts B / (R B_r)."""
    total, ranks = sum(answer[1] for answer in answers), len(answers)
    loss = sum(answer[2] for answer in answers) / ranks
    missing = next((answer[4] for answer in answers if answer[3] is None), "")
    losses = None if missing else torch.cat([answer[3].cpu() * (total / (ranks * answer[1])) for answer in answers])
    return Joint(total, loss, losses, missing)


def reduce_together(engine: Engine, group: Group, samples: int) -> None:
    """Every layer's statistics over the global batch, with the same check that contributions add up to the gradient."""
    state = engine.step
    errors: list[Exception] = []
    parts = collect_parts(engine, samples / group.size / state.loss_scale, errors)
    pending = [n for n in state.gradients if n in parts or n in state.failures]
    while pending:
        local = reduce_locally(engine, parts, pending, errors)
        vectors = {n: vectors_of(s) for n, s in local.items()}
        answers = group.gather("layers", (vectors, dict(state.failures)))
        again = []
        for name in pending:
            failure = first_problem([answer[1].get(name, "") for answer in answers])
            if failure:
                state.failures.setdefault(name, failure)
                state.reduced.pop(name, None)
                continue
            state.reduced[name] = replace_vectors(local[name], [answer[0][name] for answer in answers], samples)
            problem = check(engine, name, of_length(state, name), samples)
            if problem is not None:
                again.append((name, problem))
        pending = choose_retries(engine, group, parts, again) if again else []
    add_sums(engine, group)
    settle(engine, parts)
    if errors:  # only now: the other processes have had their answers
        with engine.guard("individual gradients"):
            raise errors[0]


def of_length(state: StepState, name: str) -> Tensor:
    """The gradient, or where it is sharded something as long: the check looks at nothing else."""
    gradient = state.gradients[name]
    length = state.gradient_norms[name]
    return torch.tensor([length], dtype=gradient.dtype) if is_sharded(gradient) else gradient


def gather_parameters(engine: Engine) -> None:
    """Modules without a rule are run again, and attention in part: where parameters are sharded, they need whole ones.

    Decided by what all ranks know alike, so that all of them gather the same.
    """
    values: dict[Any, dict[str, Tensor]] = {}
    for module, locals_ in engine.cover.hooked_modules().items():
        runs_again = find_rule(module) is None or any("." in local for local in locals_)
        if runs_again and (find_own_rule(module) is not None or not contains_sharded_modules(module)):
            values[module] = {name: whole(p) for name, p in module.named_parameters()}
    for found in engine.step.passes:
        for held in found.captured.values():
            held.call.parameters = values.get(held.call.module, {})


def collect_parts(engine: Engine, scale: float, errors: list[Exception]) -> dict[str, list[Contribution]]:
    """By parameter, one per pass. What cannot be had is a failure; what is an error of ours goes to ``errors`` too."""
    state, parts = engine.step, {}
    if engine.cover.sharded:
        gather_parameters(engine)
    for name in state.gradients:
        if engine.cover.methods.get(name, ("",))[0] == "not covered":
            continue
        try:
            parts[name] = [part_of(engine, found, name, scale) for found in state.passes]
        except Exception as error:
            note_failure(engine, name, error, errors)
    return parts


def note_failure(engine: Engine, name: str, error: Exception, errors: list[Exception]) -> None:
    engine.step.failures[name] = reason_of(error)
    if not isinstance(error, NotCovered):
        errors.append(error)


def part_of(engine: Engine, found: Any, name: str, scale: float) -> Contribution:
    if not any(name in known for known in (found.by_parameter, found.direct, found.shared)):
        return Zeros(found.batch_size, engine.cover.parameters[name].shape, scale)
    return contribution_of(found, name, scale, engine.cover, engine.memory_budget, engine.mute)


def reduce_locally(
    engine: Engine, parts: dict[str, list[Contribution]], names: list[str], errors: list[Exception]
) -> dict[str, LayerStatistics]:
    """This rank's samples; formed gradients of one module are dropped before the next one's are made."""
    state, plan, found, last = engine.step, engine.step.plan, {}, None
    keep = plan.alpha_start and engine.keeps_contributions
    for name in names:
        directions = {"gradient": whole(state.gradients[name])} if plan.measures_individual else {}
        if plan.alpha_end and name in engine.previous_update:
            directions["step"] = whole(engine.previous_update[name])
        if engine.cover.sharded and plan.spec is not None:
            engine.cover.wholes = {name: whole(engine.cover.parameters[name])}
        if name not in parts or name in state.failures:
            continue
        try:
            found[name], *_ = reduce_parts(engine, name, parts[name], directions)
        except Exception as error:
            note_failure(engine, name, error, errors)
        held = gradients_of(parts[name][0])
        if last is not None and last is not held and not keep:
            last.whole = None
        last = held
    if last is not None and not keep:
        last.whole = None
    engine.cover.wholes = {}
    return found


def vectors_of(statistics: LayerStatistics) -> tuple[Tensor | None, dict[str, Tensor]]:
    norms = None if statistics.norms is None else statistics.norms.cpu()
    return norms, {key: projection.cpu() for key, projection in statistics.projections.items()}


def replace_vectors(mine: LayerStatistics, vectors: list[Any], samples: int) -> LayerStatistics:
    """Samples of all ranks side by side; sums stay this rank's until ``add_sums``."""
    norms = None if mine.norms is None else torch.cat([v[0] for v in vectors])
    projections = {key: torch.cat([v[1][key] for v in vectors]) for key in mine.projections}
    return LayerStatistics(samples, norms, projections, mine.squares, mine.counts)


def choose_retries(engine: Engine, group: Group, parts: dict, again: list[tuple[str, str]]) -> list[str]:
    """Contributions that did not add up are tried the other way, if every rank has one left."""
    can = {name: use_next_way(parts[name]) for name, _ in again}
    answers = group.gather("ways", can)
    retry = [name for name, _ in again if all(answer[name] for answer in answers)]
    for name, problem in again:
        engine.step.reduced.pop(name)
        if name not in retry:
            engine.step.failures[name] = problem
    return retry


def add_sums(engine: Engine, group: Group) -> None:
    state, sums = engine.step, []
    for name in sorted(state.reduced):
        statistics = state.reduced[name]
        if statistics.squares is not None:
            statistics.squares = statistics.squares.clone(memory_format=torch.contiguous_format)
            sums.append(statistics.squares)
        if statistics.counts is not None:
            statistics.counts.touch()
            sums += [table for table in (statistics.counts.table1d, statistics.counts.table2d) if table is not None]
    group.add(sums)


def settle(engine: Engine, parts: dict[str, list[Contribution]]) -> None:
    state = engine.step
    for name in state.reduced:
        note_costs(engine, parts[name])
        engine.cover.methods.setdefault(name, method_of(state.passes, name))
        if state.plan.alpha_start and (engine.keeps_contributions or state.stale):
            state.kept.add(name, parts[name], may_repeat=False)
    for name in state.gradients:
        for found in state.passes:
            free(found, name)


def join_slopes(group: Group, samples: int, compute: Any) -> tuple[dict[str, Tensor], bool]:
    """``g_n . s`` of the global batch per layer; a layer that one rank lacks has none.

    Where a layer moved along its gradient, its slopes come from projections that are joined already.
    """
    found, problem = attempt(compute)
    slopes, parallel = found if not problem else ({}, False)
    answers = group.gather("slopes", {n: None if len(slope) == samples else slope.cpu() for n, slope in slopes.items()})
    joined = {}
    for name, slope in slopes.items():
        parts = [answer.get(name, "missing") for answer in answers]
        if all(part is None for part in parts):
            joined[name] = slope
        elif all(isinstance(part, Tensor) for part in parts):
            joined[name] = torch.cat(parts)
    return joined, parallel


# ---- curvature ------------------------------------------------------------------------------------------------------


def join_diagonals(engine: Engine, group: Group) -> None:
    """The Hessian of a mean of losses is the mean of their Hessians; independent probes, so variances of the sum add."""
    state = engine.step
    kinds = sorted({kind or engine.curvature.kind for kind in state.plan.curvature_kinds["diagonal"]})
    mine = {kind: describe_diagonal(state, kind) for kind in kinds}
    answers = group.gather("diagonals", mine)
    for kind in kinds:
        problem = first_problem([answer[kind][0] for answer in answers])
        if not problem and len({tuple(answer[kind][1]) for answer in answers}) > 1:
            problem = "the ranks used different parameters"
        if problem:
            state.diagonals.pop(kind, None)
            state.no_value.setdefault(f"diagonal {kind}", problem)
            continue
        diagonal = state.diagonals[kind]
        values = {
            name: diagonal.values[name].clone(memory_format=torch.contiguous_format) for name in sorted(diagonal.values)
        }
        group.add(list(values.values()))
        errors = [answer[kind][2] for answer in answers]
        estimated = any(error is not None for error in errors)
        error = math.sqrt(sum(e * e for e in errors if e is not None)) / group.size if estimated else None
        exact = all(answer[kind][3] for answer in answers)
        shared = {name: value / group.size for name, value in values.items()}
        state.diagonals[kind] = replace(
            diagonal, values=shared, exact=exact, trace_error=error, trace_errors={}, errors=None
        )


def describe_diagonal(state: Any, kind: str) -> tuple[str, list[str], float | None, bool]:
    found = state.diagonals.get(kind)
    if found is None or not found.values:
        return state.no_value.get(f"diagonal {kind}", "no diagonal was measured"), [], None, False
    return "", sorted(found.values), found.trace_error, found.exact


class SharedOperator:
    """The mean of all ranks' matrices: rank 0 asks for a product, the others ``serve``."""

    def __init__(self, local: Any, group: Group):
        self.local, self.group, self.parameters = local, group, local.parameters
        self.column_bytes, self.note = local.column_bytes, local.note
        self.problem = ""

    def matvec(self, vector: Any) -> list[Tensor]:
        flat = flatten(vector).detach().cpu().contiguous()
        self.group.send_from_first(torch.ones(1))
        self.group.send_from_first(flat)
        return unflatten(self._product(flat).to(self.parameters[0].device), self.parameters)

    def matmat(self, vectors: Any) -> list[Tensor]:
        columns = [self.matvec([v[k] for v in vectors]) for k in range(len(vectors[0]))]
        return [torch.stack(parts) for parts in zip(*columns, strict=True)]

    def close(self) -> None:
        self.local.close()

    def serve(self) -> None:
        """Until rank 0 has converged."""
        go_on = torch.ones(1)
        flat = torch.zeros_like(flatten([p.detach() for p in self.parameters])).cpu()
        while True:
            self.group.send_from_first(go_on)
            if not bool(go_on):
                return
            self.group.send_from_first(flat)
            self._product(flat)

    def _product(self, flat: Tensor) -> Tensor:
        product, self.problem = attempt(
            lambda: flatten(self.local.matvec(unflatten(flat.to(self.parameters[0].device), self.parameters)))
        )
        image = torch.full_like(flat, math.nan) if self.problem else product.to(flat).cpu().contiguous()
        self.group.add([image])  # a rank that failed makes all of it NaN, which rank 0 notices
        return image / self.group.size


def largest_together(
    group: Group, make: Any, start: Any, generator: torch.Generator, **effort: Any
) -> tuple[Eigenpair, Any]:
    """The largest eigenvalue of the global batch's matrix, on every rank; only rank 0 knows the vector."""
    local, problem = attempt(make)
    problem = first_problem(group.gather("eigenvalue", problem))
    if problem:
        raise NoCurvature(problem)
    operator, pair, failure = SharedOperator(local, group), None, ""
    try:
        if group.rank == 0:
            pair, failure = attempt(lambda: largest_eigenvalue(operator, start, generator, **effort))
            group.send_from_first(torch.zeros(1))
        else:
            operator.serve()
    except Exception as error:
        group.broken = group.broken or f"another process cannot be reached: {error}"
        raise OutOfStep(group.broken) from error
    answers = group.gather(
        "eigenpair", (None if pair is None else replace(pair, vector=[], start=[]), operator.problem, failure)
    )
    shared, _, failure = answers[0]
    if failure:
        raise NoCurvature(first_problem([answer[1] for answer in answers]) or failure)
    return pair or shared, local


# ---- what the ranks agree on at the end of a tracked step -----------------------------------------------------------


@dataclass
class Wish:
    """Decisions that depend on one rank's clock, loss or user, made by all of them alike."""

    trigger: str
    stop: bool
    seconds: float
    elapsed: float


def agree(group: Group, wish: Wish) -> Wish:
    """Anybody's trigger or stop counts; the clock is that of rank 0."""
    answers = group.gather("end of step", wish)
    trigger = next((answer.trigger for answer in answers if answer.trigger), "")
    return Wish(trigger, any(answer.stop for answer in answers), answers[0].seconds, answers[0].elapsed)


def rest_until(wish: Wish, step: int, budget: float) -> int:
    """The step at which the budget allows to measure again, if steps take as long as they did so far."""
    missing = wish.seconds / budget - wish.elapsed
    return step + 1 + max(0, math.ceil(missing / max(wish.elapsed / (step + 1), 1e-9)))
