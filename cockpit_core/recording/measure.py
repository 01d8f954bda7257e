"""From the statistics of one step to its record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cockpit_core.distributed.together import join_slopes
from cockpit_core.engine.activations import join_activations
from cockpit_core.engine.alpha import ends as alpha
from cockpit_core.engine.alpha.keeping import at, project_again
from cockpit_core.engine.clock import split_costs
from cockpit_core.engine.extensions import BackpackValues
from cockpit_core.engine.extensions.finding import measure_extensions, why_not_here
from cockpit_core.engine.layer_result import tolerance_of
from cockpit_core.engine.optimizer_state import ParameterState, read_states
from cockpit_core.engine.own_batch import (
    OwnBatch,
    Setting,
    explain,
    is_turn,
    measure_own_batch,
    share_own_batch,
    why_not_again,
)
from cockpit_core.engine.plan import REPEATED
from cockpit_core.engine.preconditioned import PreconditionedHessian, find_largest
from cockpit_core.engine.samples.identity import join_ids
from cockpit_core.foundation.faults import text_of
from cockpit_core.foundation.records import AlphaFit, Histogram, Notice, Record
from cockpit_core.foundation.sharded import whole, whole_of_each
from cockpit_core.kernels import Counts
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import NotCovered
from cockpit_core.quantities import NoValue, Quantity, Statistics, Value
from cockpit_core.quantities.norms import combine, measure_norms
from cockpit_core.quantities.second_moments import find_preconditioners
from cockpit_core.recording.notices import find_notices
from cockpit_core.signals.gradients import measure_reach, measure_steps_to_go
from cockpit_core.signals.losses import measure_spread

if TYPE_CHECKING:
    from cockpit_core.tracking.run import Run

TOP_SAMPLES = 5
ASIDE = 1e-2  # of a step: so far its end may be from where the next gradient is taken
MOVED = "the parameters were moved after optimizer.step() and before the next gradient"
THEN = (
    ": such steps have no Alpha, and UpdateSize is that of step() alone. If the move belongs to the step (Lookahead, clipped "
    "weights), put both into `with run.stepping():`."
)
HEADLINES = (
    "Loss",
    "GradNorm",
    "UpdateSize",
    "ParamNorm",
    "Distance",
    "NormTest",
    "HessMaxEV",
    "HessTrace",
    "TICDiag",
    "LearningRate",
)


class Measurement:
    """Made when the optimizer is about to step, finished when it has."""

    def __init__(self, run: Run, optimizer: torch.optim.Optimizer):
        self.run, self.optimizer, self.state = run, optimizer, run.engine.step
        self.plan = self.state.plan
        self.record = Record(
            "step", run.step, time.time(), run.elapsed, epoch=run.epoch_at(run.step), triggered=self.plan.triggered
        )
        self.norms: dict[str, dict[str, float]] = {}  # of parameters and update, measured once
        self.ids: np.ndarray | None = None
        self.backpack = BackpackValues()
        self.heavy: list[tuple[Histogram, list[Histogram | None]]] = []
        self.rates = tuple(float(g["lr"]) for o in run.optimizers for g in o.param_groups if "lr" in g)
        self._copy_parameters()
        if not self.state.in_closure:
            self._finish_alpha()
            self._measure_before()

    def _copy_parameters(self) -> None:
        if self.plan.alpha_start or "update" in self.plan.needs or self.state.in_closure:
            self.state.theta = {
                n: p.detach().clone()
                for n, p in self.run.cover.trainable().items()
                if self.state.in_closure or p.grad is not None
            }

    def _finish_alpha(self) -> None:
        """The batch of this step is the far end of the step before."""
        pending, self.run.pending = self.run.pending, None
        if pending is None or not self.plan.alpha_end:
            return
        if self._was_moved():
            self.record.missing["Alpha"] = MOVED
            self.run.warn("moved", f"Cockpit: {MOVED}{THEN}")
            return
        fit = self.run.engine.clock.timed("alpha", alpha.finish, pending, self.state)
        if isinstance(fit, AlphaFit):
            self.run.alphas.append(fit)
        else:
            self.record.missing["Alpha"] = fit
        self.run.engine.previous_update = {}

    def _was_moved(self) -> bool:
        """Between the end of the step before and this one's gradient: Lookahead, averages, clipped or pruned weights."""
        landed, length = self.run.engine.landed
        place = self.state.place
        return landed is not None and place is not None and not landed.is_near(ASIDE * length, place.values)

    def _measure_before(self) -> None:
        if not self.plan.record:
            return
        self._note_coverage()
        if "ids" in self.plan.needs:
            self.ids = join_ids(self.run.engine.group, self.state.ids)
        if self.plan.watched:
            self.state.activations = join_activations(self.run.engine.group, self.state.activations)
        if self.plan.extensions:
            self.backpack = self.run.engine.clock.timed("backpack", self._run_extensions)
        statistics = self._statistics()
        for quantity in self.plan.quantities:
            if "update" not in quantity.needs:
                self._measure(quantity, statistics)
        self._add_by_products(statistics)

    def _run_extensions(self) -> BackpackValues:
        """Those of BackPACK that quantities of this step name."""
        state, engine, cover = self.state, self.run.engine, self.run.cover
        refusal = why_not_here(
            in_closure=state.in_closure,
            processes=engine.group is not None,
            sharded=bool(cover.sharded),
            batch_dim=engine.batch_dim,
        )
        chosen = {n: p for n, p in cover.trainable().items() if n in state.gradient_norms}
        with engine.mute():
            return measure_extensions(
                self.plan.extensions, cover.model, self.run.loss_fn, chosen, state.again, state.passes,
                state.loss_scale, refusal,
            )  # fmt: skip

    def _note_coverage(self) -> None:
        run = self.run
        for name, reason in run.engine.settle_cover():
            run.notices.append(Notice(run.step, "coverage", f"{name} is not covered: {reason}", layer=name))
            run.warn(f"coverage {name}", f"Cockpit: individual gradients of {name} are left out: {reason}.")
        trainable = run.cover.trainable()
        run.without_gradient = {n for n in trainable if n not in self.state.gradient_norms}
        if self.state.batch_size and not run.header.batch_size:
            run.header.batch_size = self.state.batch_size

    def _statistics(self, **more: Any) -> Statistics:
        state, cover = self.state, self.run.cover
        reduced = {n: s for n, s in state.reduced.items() if "gradient" in s.projections}
        names = list(state.gradient_norms)
        if self.plan.needs & {"norms", "dots", "squares", "histogram"} and not reduced and state.failures:
            state.no_value.setdefault("individual", next(iter(state.failures.values())))
        return Statistics(
            step=self.run.step, batch_size=state.batch_size, loss=state.loss, losses=state.losses(),
            backward_seen=bool(state.passes),
            time=self.run.elapsed,
            parameters={n: state.theta.get(n, cover.parameters[n].detach()) for n in names},
            gradients=state.gradients, start=self.run.start, gradient_norms=state.gradient_norms,
            norms={n: s.norms for n, s in reduced.items() if s.norms is not None},
            dots={n: s.projections["gradient"] for n, s in reduced.items()},
            squares={n: s.squares for n, s in reduced.items() if s.squares is not None},
            counts={n: s.counts for n, s in reduced.items() if s.counts is not None},
            diagonals=state.diagonals, eigenpairs=state.eigenpairs, curvature=self.run.engine.curvature.kind,
            curvature_part=state.curvature_part, activations=state.activations if self.plan.watched else None,
            gram=state.gram, labels=state.labels(), ids=self.ids, backpack=self.backpack,
            learning_rates=self.rates, no_value=state.no_value, known_norms=self.norms, **more,
        )  # fmt: skip

    def _measure(self, quantity: Quantity, statistics: Statistics) -> None:
        """One quantity: an error in it is its own affair."""
        if quantity.kind == "alpha":
            return
        if "start" in quantity.needs and self.run.no_start:
            self.record.missing[quantity.name] = self.run.no_start
            return
        if self.run.cover.sharded:
            statistics = show_whole(statistics, quantity)
        with self.run.guard(quantity.name):
            try:
                start = time.perf_counter()
                if quantity.kind.startswith("histogram"):
                    self._take_histograms(quantity, statistics)
                elif quantity.kind == "parameters":
                    self._take_parameters(quantity, statistics)
                else:
                    self._take_value(quantity.name, quantity.measure(statistics))
                self.run.engine.clock.seconds[f"own {quantity.name}"] += time.perf_counter() - start
            except NoValue as reason:
                self.record.missing[quantity.name] = text_of(reason)

    def _take_value(self, name: str, value: float | Value | Any) -> None:
        if not isinstance(value, Value):
            value = Value(float(value))
        if value.network is not None:
            self.record.scalars[name] = float(value.network)
        if value.layers:
            known = self.run.cover.parameters
            column = np.array([value.layers.get(n, math.nan) for n in known], dtype=np.float64)
            self.record.layers[name] = column
            self.record.layers_missing[name] = np.array([n not in value.layers for n in known])
        if value.error is not None or value.method:
            self.record.estimates[name] = (math.nan if value.error is None else float(value.error), value.method)
        if value.reason:
            self.record.missing[name] = value.reason
        if value.table is not None:
            self.heavy.append((Histogram(name, self.run.step, value.table, np.zeros(0)), []))
        for part, more in value.parts.items():
            self._take_value(f"{name}/{part}", more)

    def _take_histograms(self, quantity: Any, statistics: Statistics) -> None:
        if not statistics.counts:
            raise NoValue(statistics.reason("individual", "no layer has individual gradients"))
        whole: Counts | None = None
        for counts in statistics.counts.values():
            whole = counts.copy() if whole is None else whole.merge(counts)
        assert whole is not None
        make = "histogram1d" if quantity.kind == "histogram1d" else "histogram2d"
        network = getattr(whole, make)(self.run.step, quantity=quantity.name)
        layers = [
            getattr(statistics.counts[n], make)(self.run.step, n, quantity.name) if n in statistics.counts else None
            for n in self.run.cover.parameters
        ]
        quantity.follow(network.counts, network.below, network.above)
        self.heavy.append((network, layers))

    def _take_parameters(self, quantity: Quantity, statistics: Statistics) -> None:
        def stored(name: str, tensor: Tensor) -> Histogram:
            values = whole(tensor.detach()).cpu().numpy().copy()  # the optimizer is about to overwrite it
            return Histogram(quantity.name, self.run.step, values, np.zeros(0), layer=name)

        names = list(self.run.cover.parameters)
        layers = [stored(n, statistics.parameters[n]) if n in statistics.parameters else None for n in names]
        self.heavy.append((Histogram(quantity.name, self.run.step, np.zeros(0), np.zeros(0)), layers))

    def _add_by_products(self, statistics: Statistics) -> None:
        record = self.record
        record.batch_size = statistics.batch_size
        for index, rate in enumerate(self.rates):
            record.scalars["LearningRate" if index == 0 else f"LearningRate/{index}"] = rate
        record.scalars["GradNormClipped"] = combine(self._norms_at_the_step())
        if statistics.norms:
            total = sum(statistics.norms.values())
            assert isinstance(total, Tensor)
            values, order = torch.topk(total, min(TOP_SAMPLES, len(total)))
            record.top_samples = order.tolist()
            record.scalars["TopSampleNorm"] = (
                math.sqrt(max(float(values[0]), 0.0)) if not math.isnan(float(values[0])) else math.nan
            )

    def _norms_at_the_step(self) -> dict[str, float]:
        """Of ``p.grad`` as the optimizer gets it. Where nobody wrote into it since the backward pass, they are known."""
        state, engine = self.state, self.run.engine
        known = {
            n: norm
            for n, norm in state.gradient_norms.items()
            if engine.is_unchanged(n) and state.before.get(n) is None and state.loss_scale == 1
        }
        gradients = {n: p.grad for n, p in self.run.cover.trainable().items() if p.grad is not None}
        rest = {n: g for n, g in gradients.items() if n not in known and not g.is_sparse}
        return known | measure_norms(rest)

    # ---- after the step -----------------------------------------------------------------------------------------

    def finish(self, began: float) -> None:
        """The optimizer has moved the parameters: measure the move, write the record."""
        if self.state.in_closure:
            if not self.state.measured and (self.state.passes or self.run.group is not None):
                self.run.engine.measure()  # the closure did no backward pass: the gradient was there before
            self._finish_alpha()
            self._measure_before()
        update = self._find_update()
        if self.plan.alpha_start:
            self.run.engine.clock.timed("project step", self._start_alpha, update)
        self.state.kept.clear()
        self.state.scratch.clear()
        if not self.plan.record:
            return
        statistics = self._statistics(update=update, **self._look_again(update))
        for quantity in self.plan.quantities:
            if "update" in quantity.needs:
                self._measure(quantity, statistics)
        self._write(began)

    def _look_again(self, update: dict[str, Tensor]) -> dict[str, Any]:
        """What only some quantities ask for, once the step is taken."""
        found: dict[str, Any] = {}
        if "optimizer" in self.plan.needs:
            found["optimizer"] = read_states(self.run.optimizers, self.run.cover.parameters)
        if self.plan.repeats:
            own = found["own_batch"] = self.run.engine.clock.timed("own batch", self._measure_own_batch, update)
            if "preconditioned" in self.plan.needs and "preconditioned" not in own.reasons:
                states = {n: found["optimizer"][n] for n in update if n in found["optimizer"]}
                self.run.engine.clock.timed("preconditioned", self._find_preconditioned, own, states)
        return found

    def _find_preconditioned(self, own: OwnBatch, states: dict[str, ParameterState]) -> None:
        """Into ``own``: the largest eigenvalue as the optimizer sees it, or why there is none."""
        state, engine, cover = self.state, self.run.engine, self.run.cover
        known = engine.curvature.eigenvectors.get("preconditioned", {})
        try:
            if engine.group is not None:
                raise NoValue("with several processes it is not measured: a product would take all of them")
            made = find_preconditioners(states)
            losses = partial(state.again.losses, cover.model, self._loss_module(), state.passes, state.loss_scale)
            start = [known[n] for n in made] if known.keys() == made.keys() else None
            with at(cover.parameters, state.theta), engine.mute():
                operator = PreconditionedHessian(losses, len(state.passes), cover.parameters, made)
                pair = find_largest(operator, start, engine.curvature.generator, engine.memory_budget)
            own.preconditioned = pair
            engine.curvature.eigenvectors["preconditioned"] = dict(zip(made, pair.start, strict=False))
        except Exception as error:
            own.reasons["preconditioned"] = explain(error)

    def _loss_module(self) -> torch.nn.Module | None:
        return self.run.loss_fn if isinstance(self.run.loss_fn, torch.nn.Module) else None

    def _measure_own_batch(self, update: dict[str, Tensor]) -> OwnBatch:
        """The samples of this step once more, where it began and where it ended."""
        state, engine, cover = self.state, self.run.engine, self.run.cover
        reason = why_not_again(cover, self.run.loss_fn, in_closure=state.in_closure, processes=engine.group is not None)
        if reason or not update:
            return OwnBatch(reasons=dict.fromkeys(REPEATED, reason or "no parameter has a gradient"))
        setting = Setting(
            losses=partial(state.again.losses, cover.model, self._loss_module(), state.passes, state.loss_scale),
            parameters=cover.parameters,
            at_start=partial(at, cover.parameters, state.theta),
            update=update,
            gradients={n: state.gradients[n] for n in update},
            loss=state.loss,
            length=combine(self._norms_of_update(update)),
            gradient_norm=combine({n: state.gradient_norms[n] for n in update}),
            share=partial(share_own_batch, engine.group),
        )
        with engine.mute():
            found = measure_own_batch(setting, self.plan.needs, is_turn(engine.looked_again + 1))
        engine.looked_again += not found.reasons
        return found

    def _norms_of_update(self, update: dict[str, Tensor]) -> dict[str, float]:
        if "update" not in self.norms:
            self.norms["update"] = measure_norms(update)
        return self.norms["update"]

    def _find_update(self) -> dict[str, Tensor]:
        theta, parameters = self.state.theta, self.run.cover.parameters
        names = [n for n in theta if n in self.state.gradient_norms]
        if not names:
            return {}
        return dict(
            zip(
                names,
                torch._foreach_sub([parameters[n].detach() for n in names], [theta[n] for n in names]),
                strict=True,
            )
        )

    def _start_alpha(self, update: dict[str, Tensor]) -> None:
        state, engine, losses = self.state, self.run.engine, self.state.losses()
        if losses is None:
            self.record.missing["Alpha"] = state.why_no_losses()
            return
        self.norms["update"] = measure_norms(update)
        gradients = self._known_gradients()
        project = partial(alpha.project_on_update, state, update, self.norms["update"], gradients)
        slopes, parallel = project() if engine.group is None else join_slopes(engine.group, len(losses), project)
        self._repeat_for_alpha(slopes, update, gradients)
        part = self._find_uncovered(update)
        if part:
            self.record.missing["Alpha"] = f"the step moved {part}, whose individual gradients are not measured"
            return
        measured = [n for n in state.reduced if n in update]
        if len(slopes) < len(measured) or not slopes:
            self.record.missing["Alpha"] = engine.never_repeats or state.no_value.get(
                "individual", "the step was not along the gradient as before; measured from the next step on"
            )
            engine.keeps_contributions = True
            return
        engine.keeps_contributions = not parallel
        length = combine({n: self.norms["update"][n] for n in slopes})
        total = sum(slopes.values())
        assert isinstance(total, Tensor)
        start = alpha.observe_end(losses, total / length if length > 0 else total)
        self.run.pending = alpha.Pending(self.run.step, length, start, frozenset(slopes))
        engine.previous_update = {n: update[n] for n in slopes}
        place, began = engine.find_place(), self.state.place
        engine.landed = place, 0.0 if place is None or began is None else place.distance(began.values)

    def _find_uncovered(self, update: dict[str, Tensor]) -> str:
        """A layer that moved without being measured: the losses of Alpha would be of a longer step than its slopes."""
        moved = [n for n in update if n not in self.state.reduced and self.norms["update"][n] > 0]
        cover = self.run.cover
        left_out = [n for n, p in cover.parameters.items() if n not in cover.selected and p.grad is not None]
        names = [*moved, *left_out]
        return "" if not names else names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"

    def _known_gradients(self) -> dict[str, Tensor]:
        """Those of the backward pass: copies, if somebody is known to write into ``p.grad``, else ``p.grad`` itself."""
        state, engine = self.state, self.run.engine
        unchanged = {n: g for n, g in state.gradients.items() if engine.is_unchanged(n)}
        engine.gradients_change = len(unchanged) < len(state.gradients)
        return state.gradients if state.copied else unchanged

    def _repeat_for_alpha(
        self, slopes: dict[str, Tensor], update: dict[str, Tensor], gradients: dict[str, Tensor]
    ) -> None:
        """What was not kept, because it would exceed the memory budget, is computed again at the parameters before."""
        engine, kept = self.run.engine, self.state.kept
        again = [n for n in kept.repeated if n in update and n not in slopes]
        if not again or engine.never_repeats:
            return
        megabytes = sum(kept.repeated[n] for n in again) / 2**20
        first = f"{again[0]} and {len(again) - 1} more" if len(again) > 1 else again[0]
        try:
            slopes.update(project_again(engine, again, update, gradients, partial(tolerance_of, engine)))
            note = f"the forward and backward pass is repeated for {first}, rather than keeping {megabytes:.0f} MB"
        except (NotRepeatable, NotCovered) as reason:
            engine.never_repeats = str(reason)
            note = f"{megabytes:.0f} MB are kept beyond memory_budget for {first}, because {reason}"
        engine.cost_notes["Alpha"] = f"Alpha: {note}"

    def _collect_signals(self) -> None:
        """The numbers that diagnoses rest on; see ``cockpit_core.signals``."""
        run, state, losses = self.run, self.state, self.state.losses()
        places = {name: place for place, name in enumerate(run.cover.parameters)}
        called = list(run.signals.called)
        fit = run.alphas[-1] if run.alphas else None
        parts: list[tuple[str, Callable[[], dict[str, float]]]] = [
            ("gradients", lambda: measure_reach(called, state.gradient_norms, places)),
            ("step", lambda: {"leftover": float(state.stale), "passes": float(len(state.passes))}),
        ]
        if losses is not None:
            parts.append(("losses", lambda: measure_spread(losses)))
        if fit is not None:
            parts.append(("alpha", lambda: measure_steps_to_go(fit.loss_start, fit.slope_start, fit.length)))
        if state.loss_scale != 1:
            parts.append(("scale", lambda: {"loss_scale": state.loss_scale}))
        self.record.scalars |= run.signals.collect(parts)
        if run.signals.activity_names:
            run.header.options["activations"] = "\n".join(run.signals.activity_names)

    def _write(self, began: float) -> None:
        run, record = self.run, self.record
        run.engine.clock.timed("signals", self._collect_signals)
        run.header.notes = list(run.engine.cost_notes.values())
        run.write_header()
        networks = [histogram for histogram, _ in self.heavy if histogram.edges.size]
        layers = [h for _, per_layer in self.heavy for h in per_layer if h is not None and h.edges.size]
        found = [*find_notices(record, networks, self.state.gradient_norms), *worst_layers(layers)]
        record.notices = [*run.notices, *run.repeats.thin(found, self.state.loss)]
        record.alphas, run.alphas, run.notices = run.alphas, [], []
        with run.guard("diagnosis"):
            record.findings = run.engine.clock.timed("diagnosis", run.live.see, run.header, record)
        total = self.state.overhead + time.perf_counter() - began
        record.costs = self._costs(total)
        run.write(record)
        run.announce(record.findings)
        for network, per_layer in self.heavy:
            run.writer.write_heavy(network.quantity, record.step, network, per_layer, keep=record.triggered)
        run.writer.write_scalars({n: record.scalars[n] for n in HEADLINES if n in record.scalars}, record.step)

    def _costs(self, total: float) -> dict[str, float]:
        seconds = self.run.engine.clock.reset()
        own = {f"own {q.name}": [q.name] for q in self.plan.quantities}
        costs = split_costs(seconds, self.plan.users() | own, total)
        costs["step"] = time.perf_counter() - self.run.step_began
        costs["run"] = self.run.pace.seconds + total
        return costs


def show_whole(statistics: Statistics, quantity: Quantity) -> Statistics:
    """A sharded tensor may answer arithmetic with this process's part of the number. Ours that only take norms know
    that; every other quantity is given whole tensors."""
    if type(quantity).__module__.startswith("cockpit_core.") and not {"gradients", "squares"} & set(quantity.needs):
        return statistics
    chosen = [name for name in ("gradients", "parameters", "start", "update") if name in quantity.needs]
    changes: dict[str, Any] = {name: whole_of_each(getattr(statistics, name)) for name in chosen}
    return replace(statistics, **changes)


def worst_layers(histograms: list[Histogram], most: int = 3) -> list[Notice]:
    """Of the layers that are out of range only the worst: a notice per layer and step would drown the page."""
    from cockpit_core.recording.notices import check_histogram

    found = [(h.below + h.above + h.nan, notice) for h in histograms for notice in check_histogram(h)]
    return [notice for _, notice in sorted(found, key=lambda pair: -pair[0])[:most]]
