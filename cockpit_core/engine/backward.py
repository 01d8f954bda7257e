"""The backward side of the engine: what passes leave behind, reduced as soon as the batch is complete, and the step's end."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from cockpit_core.distributed.joining import join_batches, join_diagonals
from cockpit_core.engine.alpha_side import AlphaSide
from cockpit_core.engine.broadcast import Entry, pull_entry
from cockpit_core.engine.capture import Pass, add_pass, add_up, free, keeps_graph
from cockpit_core.engine.layer_result import Job, LayerResult, directions_to_check, method_of
from cockpit_core.engine.loss.prepared import spread_penalties
from cockpit_core.engine.reducing import drop_formed
from cockpit_core.engine.step import GradientMark
from cockpit_core.foundation.sharded import any_nonzero
from cockpit_core.foundation.ungraded import ungraded
from cockpit_core.layers.hook_watch import has_foreign_hooks
from cockpit_core.layers.registry import Call
from cockpit_core.quantities.norms import measure_norms

WAITING = 4
"""Layers that wait to be checked may hold this part of the memory budget."""
CHANGED = "the number of backward passes per step changed; the next step is measured again"
SCALED = "a GradScaler was noticed only at the step, after gradients had been reduced; the next step is measured again"
TAKEN = "gradients were taken away inside the backward pass, as by an optimizer that steps in a hook"


class BackwardSide(AlphaSide):
    """Opens a pass when a loss is differentiated, and closes it when its backward pass ends."""

    def open_pass(self, origin: tuple[int, int], loss_size: int | None) -> Pass:
        """Two losses in one backward are one pass; another backward is another micro-batch."""
        task = torch._C._current_graph_task_id()
        state = self.step
        if state.open is not None and state.open.task == task:
            state.open.part = origin[1] or state.open.part
            state.open.note_size(*origin)
            return state.open
        state.open = None  # an earlier backward was interrupted: what it captured is void
        self.drop_zeroed()
        pass_ = Pass(task, origin[1] or loss_size or 0, keeps_graph=keeps_graph())
        pass_.part = pass_.batch_size
        pass_.note_size(*origin)
        if state.plan.individual:
            trained = self.cover.trainable().items()
            pass_.hooked = frozenset(name for name, p in trained if has_foreign_hooks(p))
        if not state.passes:
            state.place, trained = self.find_place(), self.cover.trainable().items()
            state.before = {n: None if p.grad is None else p.grad.detach().clone() for n, p in trained}
            state.stale = any_nonzero(b for b in state.before.values() if b is not None)
            state.loss_scale = self.loss_scale()
        state.open = pass_
        self.quiet.watch.listen(self.cover.parameters.values())
        torch.autograd.Variable._execution_engine.queue_callback(self.on_backward_end)
        return pass_

    def on_output_gradient(self, call: Call, names: list[str], position: int, gradient: Tensor) -> None:
        if self.quiet.muted:
            return
        if self.alpha.repetition is not None:
            self.alpha.repetition.take(call, names, position, gradient.detach())
            return
        pass_ = self.step.open
        if pass_ is None or call.unbatched or not self.step.plan.individual:
            return
        with self.guard("output hooks"):
            call.batch_size = call.batch_size or pass_.batch_size
            call.interacts = call.interacts or self.quiet.watch.altered
            self.step.half |= gradient.dtype in (torch.float16, torch.bfloat16)
            pass_.bytes += gradient.nbytes
            for tensor, _ in call.versions:
                if tensor.layout == torch.strided:  # sparse ones tell no size
                    pass_.bytes += tensor.nbytes
            pass_.add(call, names, self.cover, position, gradient.detach())

    def on_entry(self, entry: Entry, gradients: tuple[Tensor | None, ...]) -> None:
        """Called with the gradient of the batched result."""
        pass_ = self.step.open
        if self.quiet.muted or pass_ is None or gradients[0] is None or not self.step.plan.individual:
            return
        with self.guard("broadcast parameters"), torch.no_grad():
            self.step.interacts = self.step.interacts or self.quiet.watch.altered
            pulled = pull_entry(entry, gradients[0], self.cover, self.quiet.mute)
            for call, names, position, gradient in pulled.outputs:
                pass_.add(call, names, self.cover, position, gradient)
            for name, row in pulled.rows.items():
                add_up(pass_.direct.setdefault(name, {}), {entry.forward: row})

    def on_parameter(self, p: Tensor) -> None:
        pass_ = self.step.open
        if pass_ is None:
            return
        pass_.accumulated = True
        if self.quiet.muted or self.step.passes or not self.step.plan.individual:
            return
        if p.grad is None:
            self.step.no_value["individual"] = TAKEN
            return
        name = self.cover.names[id(p)]
        pass_.arrived.append(name)
        if self.step.deferred and not self._stops_waiting(pass_):
            return
        pass_.gradients[name] = self.gradient(name)
        full = pass_.bytes - pass_.settled > self.memory_budget // WAITING
        if not (full or pass_.hooked):
            return  # all are reduced at the end, small ones together: in between each would wait for code and caches
        start = self.clock.mark()
        with self.guard("individual gradients"):
            self._reduce_arrived(pass_)
            if full:
                self._settle_pass(pass_)
        self.clock.add_overhead(start)

    def _reduce_arrived(self, pass_: Pass) -> None:
        names, pass_.arrived = pass_.arrived, []
        for name in names:
            if name not in pass_.gradients:  # it came before it was known that nobody waits
                pass_.gradients[name] = self.gradient(name)
        if names:
            self._add_results(pass_.unjudged, self._job_of(pass_), names)

    def _job_of(self, pass_: Pass) -> Job:
        """The same for all layers of a pass, unless another batch appears."""
        job = pass_.job
        if job is None or job.samples != pass_.batch_size:
            job = pass_.job = self._job([pass_], pass_.batch_size, pass_.gradients)
        job.half = self.step.half
        return job

    def _settle_pass(self, pass_: Pass) -> None:
        """Reduce and check what came so far: once per pass, unless what waits exceeds the memory budget."""
        if not (self.step.deferred or self.step.passes):
            self._reduce_arrived(pass_)
        results: list[LayerResult] = [r for r in pass_.unjudged if r.samples in (None, pass_.batch_size)]
        job = self._job_of(pass_) if results else None
        pass_.gradients, pass_.job, pass_.unjudged, pass_.settled = {}, None, [], pass_.bytes
        if job is not None:
            self._take_layers(job, results)

    def _stops_waiting(self, pass_: Pass) -> bool:
        """Whether the first step has one backward pass or several shows at its end; too much memory cannot wait for it.

        If more passes come after all, the step has no individual gradients, and the next one is measured again.
        """
        self.step.deferred = self.passes_per_step != 0 or self.group.reduces_late or pass_.bytes <= self.memory_budget
        return not self.step.deferred

    def on_backward_end(self) -> None:
        """Nothing waits for the device inside a backward pass. Where its end is announced, we wait for ``after_root``."""
        self.group.when_reduced(self.end_backward if self.prepared is None else self.prepared.note_end)

    @ungraded
    def end_backward(self) -> None:
        pass_ = self.step.open
        if pass_ is None:
            return
        self.step.open = None
        self.quiet.watch.end_listening()
        start = self.clock.mark()
        with self.guard("end of backward"):
            only_looked_at = not pass_.accumulated and not self.cover.sharded  # torch.autograd.grad, no training
            if self.layer_handles and only_looked_at:
                if not self.step.passes:
                    self.discard()
                return
            pass_.ask_losses(self.step.transfer)
            if self.step.place is not None and self.step.plan.alpha_end:
                self.step.place.ask(self.step.transfer)
            self._settle_pass(pass_)
            pass_.read_losses()
            self.step.ended = pass_
            self.step.entangled = add_pass(self.step.passes, pass_) or self.step.entangled
            self._note_gradients()
            if pass_.is_union:  # what was reduced before the second batch was seen has the scale of the first
                self.joins_batches, reduced = True, self.step.reduced
                self.step.reduced = {n: s for n, s in reduced.items() if s.samples == pass_.batch_size}
            if self.step.in_closure and not self.step.measured:
                self.measure()
        self.clock.add_overhead(start)

    def _note_gradients(self) -> None:
        """Norms (and, if asked for, elements) of the gradient before anybody clips it."""
        state = self.step
        gradients = {n: self.gradient(n) for n, p in self.cover.trainable().items() if p.grad is not None}
        state.marks = {n: GradientMark.of(self.cover.parameters[n]) for n in gradients}
        state.gradient_norms = self._norms(gradients)
        copies = state.copied = (
            "gradients" in state.plan.needs
            or (state.plan.alpha_start and self.gradients_change)
            or (state.plan.individual and state.deferred)
        )
        if copies or state.plan.alpha_start:
            own = {n: state.loss_scale != 1 or state.before.get(n) is not None or not copies for n in gradients}
            state.gradients = {n: g if own[n] else g.clone() for n, g in gradients.items()}

    def _norms(self, gradients: dict[str, Tensor]) -> dict[str, float]:
        """The norms of all gradients; those that the check of this pass has measured are known."""
        seen = self.step.seen_norms
        known = {n: seen[n][0] for n in gradients if n in seen and seen[n][1].fits(self.cover.parameters[n])}
        rest = measure_norms({n: g for n, g in gradients.items() if n not in known})
        return {n: known[n] if n in known else rest[n] for n in gradients}

    # ---- individual gradients -----------------------------------------------------------------------------------

    def _job(self, passes: list[Pass], samples: int, gradients: dict[str, Tensor]) -> Job:
        """What the plan asks of every layer."""
        state, plan = self.step, self.step.plan
        return Job(
            passes=passes,
            samples=samples,
            scale=samples / self.group.size / state.loss_scale,
            request=plan.request(state.scratch),
            gradient=gradients.__getitem__,
            directions=partial(self._directions, frozenset().union(*(pass_.hooked for pass_ in passes))),
            keep=self.alpha.keeps(plan, state.stale),
            gram=self.group.comparable(plan.gram_samples),
            half=state.half,
            lengths=state.gradient_norms,
            left_over=measure_norms({n: b for n, b in state.before.items() if b is not None}) if state.stale else {},
            longest=max((norm for norm, _ in state.seen_norms.values() if math.isfinite(norm)), default=0.0),
            transfer=state.transfer,
            owns_all=self.group.owns_gradient and len(passes) == 1,
        )

    def _directions(self, hooked: frozenset[str], name: str, gradient: Tensor) -> dict[str, Tensor]:
        plan, may_change = self.step.plan, name in hooked or name in self.step.swapped
        along = directions_to_check(gradient, may_change) if plan.measures_individual else {}
        step = self.alpha.direction(name) if plan.alpha_end else None
        return along if step is None else along | {"step": step.to(gradient.dtype)}  # the model may have been cast

    def _take_layers(self, job: Job, results: list[LayerResult]) -> None:
        self.reducer.settle(job, results)
        errors: list[Exception] = []
        for result in results:
            self._take_layer(job, result)
            errors += [result.error] if result.error is not None else []
            for pass_ in job.passes:
                free(pass_, result.name)
        if errors:
            with self.guard("individual gradients"):
                raise errors[0]

    def _take_layer(self, job: Job, result: LayerResult) -> None:
        """Into the state of the step."""
        state, name = self.step, result.name
        if result.norm is not None:
            state.seen_norms[name] = result.norm, GradientMark.of(self.cover.parameters[name])
        if result.statistics is None:
            state.reduced.pop(name, None)
            state.failures[name] = result.reason
            return
        state.reduced[name] = result.statistics
        method, reason, interacts = method_of(job.passes, name)
        self.cover.note_method(name, method, reason, state.interacts or interacts)
        self.cost_notes |= self.fallback_costs.note(result.parts)
        if result.gram is not None:
            state.gram.add(name, result.gram)
            state.gram.choose([part.samples for part in result.parts], job.gram)
        if job.keep:
            self.alpha.keep(result, job.passes, self.may_repeat)

    # ---- the step -----------------------------------------------------------------------------------------------

    def measure(self) -> None:
        """All passes of the step, and of all processes, are there: reduce what waited for the last of them."""
        state, self.step.measured = self.step, True
        spread_penalties(state.passes)
        joint = join_batches(self.group, state.batch)
        if isinstance(joint, str):
            state.no_value["individual"] = joint
            for pass_ in state.passes:
                pass_.losses, pass_.no_losses = None, joint
            return
        state.joint = joint
        if state.plan.individual and state.passes:
            self._reduce_rest()
        if state.plan.curvature_kinds.get("diagonal"):
            self._join_diagonals()

    def _reduce_rest(self) -> None:
        state = self.step
        if state.entangled or ((state.backward_passes > 1 or state.scaled_late) and state.reduced):
            # Reduced as if the first pass were the only one, or its loss not scaled: the numbers have the wrong scale.
            for part in (state.reduced, state.gram, state.failures):
                part.clear()
            self.alpha.begin(state.plan)
            state.no_value["individual"] = state.entangled or (SCALED if state.scaled_late else CHANGED)
        elif not state.reduced and not state.failures:
            names = [name for name in state.gradients if not self.cover.is_left_out(name)]
            job = self._job(state.passes, state.batch_size, state.gradients)
            self._take_layers(job, self._add_results([], job, names))

    def _add_results(self, results: list[LayerResult], job: Job, names: list[str]) -> list[LayerResult]:
        for result in self.reducer.reduce(job, names):
            drop_formed(results, result, job.keep)
            results.append(result)
        return results

    def _join_diagonals(self) -> None:
        state = self.step
        kinds = sorted({kind or self.curvature.kind for kind in state.plan.curvature_kinds["diagonal"]})
        for kind, diagonal in join_diagonals(self.group, kinds, state.diagonals, state.no_value).items():
            if isinstance(diagonal, str):
                state.diagonals.pop(kind, None)
                state.no_value.setdefault(f"diagonal {kind}", diagonal)
            else:
                state.diagonals[kind] = diagonal

    def settle_cover(self) -> list[tuple[str, str]]:
        """Layers that failed the check move to the enclosing module; returns what became final, with the reason."""
        final, changed = [], False
        for name, reason in self.step.failures.items():
            if self.step.plan.measures_individual and not self.cover.is_left_out(name):
                changed = True
                if not self.cover.escalate(name, reason):
                    final.append((name, reason))
        if changed:
            self.rehook()
        return final

    def free(self) -> None:
        """The individual gradients of this step are no longer needed."""
        self.alpha.begin(self.step.plan)
        self.step.scratch.clear()
