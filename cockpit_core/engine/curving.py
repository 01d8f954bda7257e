"""Curvature at the moment the backward pass begins: the user's graph is complete, and nothing has been freed yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit_core.curvature import (
    Diagonal,
    Eigenpair,
    Limits,
    NoCurvature,
    Point,
    diagonal,
    largest_eigenvalue,
    make_operator,
)
from cockpit_core.curvature.quadratic import LossAtOutputs
from cockpit_core.curvature.symmetry import roughly
from cockpit_core.distributed.group import Group
from cockpit_core.distributed.together import largest_together
from cockpit_core.engine.alpha.keeping import SAME, Forward
from cockpit_core.engine.capture import Captured, Pass, make_contributions
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.loss.graph import Term
from cockpit_core.engine.loss.points import (
    Join,
    call_of,
    choose_outputs,
    depends_beside,
    penalty_of,
    scalars_of,
    taken_again,
)
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.statistics import Request, reduce_layer
from cockpit_core.layers.contribution import Summed
from cockpit_core.layers.fallback import flatten_tensors
from cockpit_core.layers.module_state import LossAgain, NotRepeatable
from cockpit_core.layers.registry import Call, NotCovered
from cockpit_core.layers.scratch import Scratch

if TYPE_CHECKING:
    from cockpit_core.engine.engine import Engine


SMALL = 1000
"""Up to so many parameters products are cheap, and eigenvalues a percent apart are told apart too."""

FEWEST_VECTORS, MOST_VECTORS = 8, 32
"""Of the parameters' size, that Lanczos works with: half of the memory budget, but it needs a few."""


class Curvature:
    """Measures what the plan asks for, once per step, on the first backward pass of it.

    ``kind`` is the run's own; ``samples`` restricts curvature to the first samples of the batch (a separate forward).
    """

    def __init__(self, kind: str, *, samples: int | None, memory_budget: int, seed: int = 0):
        self.kind, self.samples, self.memory_budget = kind, samples, memory_budget
        self.generator = torch.Generator().manual_seed(seed)
        self.eigenvectors: dict[str, dict[str, Tensor]] = {}
        self.group: Group | None = None
        self.packed = False
        self.due: list[str] | None = None
        """Eigenvalues that the other processes will ask this one about at this step; None: not known yet."""
        self.edges: list[tuple[Call, list[str], int, Any]] = []

    def forget_step(self, passes: list[Pass]) -> None:
        gone = {forward for found in passes if not found.keeps_graph for forward in found.sizes}
        for call, *_ in self.edges:
            if call.forward in gone:
                call.release()
        self.edges.clear()
        self.due = None

    def note(self, call: Call, names: list[str], position: int, output: Tensor) -> None:
        """Remember where this output sits in the graph; the edge survives that the tensor is overwritten in place."""
        self.edges.append((call, names, position, torch.autograd.graph.get_gradient_edge(output)))

    def measure(self, engine: Engine, found: Pass, again: LossAgain, args: tuple, kwargs: dict, factor: Tensor) -> None:
        """For a loss module: the loss is evaluated once more on the same outputs, on top of the user's graph.

        A graph that hands out its saved tensors only once (checkpointing, offloading) is left alone: the forward is
        repeated instead. So it is where fused attention has no second derivative, with the plain kernels.
        """
        kinds = engine.step.plan.curvature_kinds
        if not self._begin(engine, kinds):
            return
        calls = again, args, kwargs, factor
        with torch.enable_grad(), self._passing(engine, kinds):
            plain, separate = partial(self._point, engine, found, *calls), partial(self._separate_point, engine, found)
            self._try_ways(engine, kinds, found.part, plain, partial(separate, *calls))
            found.curved = True

    @contextmanager
    def _passing(self, engine: Engine, kinds: dict[str, set[str]]) -> Iterator[None]:
        """Passes of ours through the user's graph, where they leave no trace; else there is no value."""
        rough = engine.forward is not None and bool(engine.forward.autocast)
        try:
            with engine.mute(), roughly(rough):
                yield
        except NotRepeatable as reason:
            self._give_up(engine, kinds, NoCurvature(f"the backward pass runs code of yours, and {reason}"))

    def _give_up(self, engine: Engine, kinds: dict[str, set[str]], reason: NoCurvature) -> None:
        names = [f"{need} {kind or self.kind}" for need, found_kinds in kinds.items() for kind in found_kinds]
        engine.step.no_value.update(dict.fromkeys(names, str(reason)))
        self.answer_others(engine, reason)

    def _try_ways(
        self,
        engine: Engine,
        kinds: dict[str, set[str]],
        B: int,
        plain: Callable[[], Point],
        separate: Callable[[], Point],
    ) -> None:
        """On the user's graph; or on a forward pass of our own, if the graph gives its tensors once only, for some of the
        samples, and with the plain kernels where fused attention has no second derivative."""
        if engine.step.packed or (self.samples is not None and self.samples < B):
            self._attempt_fill(engine, kinds, separate)
        else:
            self._attempt_fill(engine, kinds, plain)
        again = {n for n, reason in engine.step.no_value.items() if "attention" in reason}
        if again and not engine.step.passes:
            with sdpa_kernel(SDPBackend.MATH):
                wanted = {
                    need: {k for k in found_kinds if f"{need} {k or self.kind}" in again}
                    for need, found_kinds in kinds.items()
                }
                for name in again:
                    engine.step.no_value.pop(name)
                self.due = self._eigenvalues(engine, wanted)
                self._attempt_fill(engine, wanted, separate)

    def _attempt_fill(self, engine: Engine, kinds: dict[str, set[str]], make: Callable[[], Point]) -> None:
        try:
            if any(p.dtype in (torch.float16, torch.bfloat16) for p in engine.cover.trainable().values()):
                raise NoCurvature("parameters in half precision give second derivatives that are mostly rounding")
            point = make()
        except NoCurvature as reason:
            self._give_up(engine, kinds, reason)
            return
        self.packed = engine.step.packed
        self._fill(engine, kinds, point)

    def answer_others(self, engine: Engine, reason: Exception) -> None:
        """Other processes are about to ask this one for products: it answers with the reason why it has none."""
        if self.group is None or self.group.broken:
            return
        if self.due is None and not self._begin(engine, engine.step.plan.curvature_kinds):
            return

        def make() -> Any:
            raise reason

        while self.due:
            self._attempt(engine, "eigenvalue", self.due[0], partial(self._ask_all, self.due[0], make, None))

    def _ask_all(self, kind: str, make: Callable[[], Any], start: Any, **effort: Any) -> tuple[Eigenpair, Any]:
        assert self.group is not None
        if self.due and kind in self.due:
            self.due.remove(kind)
        return largest_together(self.group, make, start, self.generator, **effort)

    def _begin(self, engine: Engine, kinds: dict[str, set[str]]) -> bool:
        """Is there anything to measure, and if so, what will the processes ask each other for?"""
        self.due = []
        if not kinds or self._must_wait(engine, kinds):
            return False
        self.due = self._eigenvalues(engine, kinds)
        return True

    def _eigenvalues(self, engine: Engine, kinds: dict[str, set[str]]) -> list[str]:
        asked = sorted({kind or self.kind for kind in kinds.get("eigenvalue", ())})
        return [kind for kind in asked if not self._is_one_of_several(engine, kind)]

    def measure_root(self, engine: Engine, root: Root, B: int, scale: float, terms: list[Term]) -> None:
        """For a loss that is not the tracked module's, or not alone: its own graph, from the scalar to the outputs."""
        kinds = engine.step.plan.curvature_kinds
        if not self._begin(engine, kinds):
            return
        try:
            with torch.enable_grad(), self._passing(engine, kinds):
                loss = root.scalar() if scale == 1 else root.scalar() / scale
                chosen = choose_outputs(root, engine.outputs, B, engine.batch_dim)
                if not chosen and engine.last_layer is not None:
                    chosen = choose_outputs(root, [engine.last_layer], B, engine.batch_dim)
                plain = partial(self._root_point, engine, loss, B, chosen)
                separate = partial(self._separate_root_point, engine, root, loss, B, chosen, scale, terms)
                self._try_ways(engine, kinds, B, plain, separate)
        except Exception as error:
            self.answer_others(engine, error)
            raise

    def _root_point(self, engine: Engine, loss: Tensor, B: int, chosen: list[Any]) -> Point:
        parameters, first = dict[str, Tensor](engine.cover.trainable()), engine.batch_dim == 0
        tensors = [output.tensor for output in chosen]
        if not chosen or depends_beside([loss.grad_fn], tensors, parameters):
            return Point(loss, parameters, B, samples_first=first)
        try:
            join = Join(tensors, B, engine.batch_dim)
        except NoCurvature:
            return Point(loss, parameters, B, samples_first=first)
        loss_of, outputs = LossAtOutputs(loss, tensors, join, join.part), join(tensors)
        mixed = engine.unbatched or mixes_samples(engine.cover.model)
        squares = None if mixed else partial(self._sum_of_squares, engine, outputs)
        parts = Parts(engine, outputs, loss_of, chosen[0].forward, taken_again(chosen, join))
        nodes = tuple(t.grad_fn for t in tensors if t.grad_fn is not None)
        return Point(loss, parameters, B, outputs, loss_of, squares, first, parts, nodes)

    def _separate_root_point(
        self, engine: Engine, root: Root, loss: Tensor, B: int, chosen: list[Any], scale: float, terms: list[Term]
    ) -> Point:
        """The forward pass once more, and the loss as its graph tells it on top."""
        dim, k = engine.batch_dim, B if self.samples is None else min(self.samples, B)
        parameters, first = dict[str, Tensor](engine.cover.trainable()), dim == 0
        chosen = [output for output in chosen if output.forward is not None]
        nodes: list[Any] = [term.edge.node for term in terms if not term.shared] or [loss.grad_fn]
        if not chosen or depends_beside(nodes, [output.tensor for output in chosen], parameters):
            computed = scalars_of(root, engine.outputs)
            if not computed or k < B:
                raise NoCurvature(
                    "the loss is not a function of the outputs of one call of the model, so that call cannot be repeated"
                )
            result = flatten_tensors(rerun_model(engine, lambda v: v, call_of([o for o, _ in computed])))
            again = torch.stack([result[o.position] * (weight / scale) for o, weight in computed]).sum()
            return Point(again, parameters, B, samples_first=first)
        tensors = [output.tensor for output in chosen]
        join, forward = Join(tensors, B, dim), call_of(chosen)
        known = LossAtOutputs(loss, tensors, join, join.part)

        def cut(value: Any) -> Any:
            batched = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == B
            return value.narrow(dim, 0, k) if batched and k < B else value

        outputs = taken_again(chosen, join)(rerun_model(engine, cut, forward))
        penalty = penalty_of(terms)
        if penalty is not None and k == B:
            return Point(known(outputs) + penalty / scale, parameters, B, samples_first=first)
        if k == B:
            parts = Parts(engine, outputs, known, forward, taken_again(chosen, join))
            return Point(known(outputs), parameters, B, outputs, known, None, first, parts)
        rest = join(tensors).detach()
        if rest.shape[dim] != B:
            raise NoCurvature("the outputs are not one per sample, so that curvature_samples cannot choose some")
        refuse_mixing_loss(known, rest, dim, 0, k)
        engine.step.curvature_part = f"{k} of {B} samples"

        def loss_of(values: Tensor) -> Tensor:
            return known(torch.cat([values, rest.narrow(dim, k, B - k)], dim)) * (B / k)

        if penalty is not None:
            return Point(loss_of(outputs) + penalty / scale, parameters, k, samples_first=first)
        return Point(loss_of(outputs), parameters, k, outputs, loss_of, None, first)

    def _must_wait(self, engine: Engine, kinds: dict[str, set[str]]) -> bool:
        """Does a pass of ours through this graph disturb the other processes?"""
        if self.group is None:
            return False
        reason = ""
        if self.group.sharded:
            reason = "the parameters are sharded over processes, and gone from the graph that second derivatives need"
        elif self.group.delays_reduction:
            reason = "the first backward pass of DistributedDataParallel(static_graph=True) must be the user's own"
        elif any(isinstance(m, nn.SyncBatchNorm) and m.training for m in engine.cover.model.modules()):
            reason = "SyncBatchNorm mixes the samples of several processes and has no second derivative"
        names = [f"{need} {kind or self.kind}" for need, found_kinds in kinds.items() for kind in found_kinds]
        engine.step.no_value.update(dict.fromkeys(names, reason) if reason else {})
        return bool(reason)

    def _point(self, engine: Engine, found: Pass, again: LossAgain, args: tuple, kwargs: dict, factor: Tensor) -> Point:
        outputs = args[0] if args and isinstance(args[0], Tensor) and args[0].requires_grad else None
        loss = evaluate(again, args, kwargs) * factor
        parameters: dict[str, Tensor] = dict(engine.cover.trainable())
        if outputs is None:
            return Point(loss, parameters, found.part, samples_first=engine.batch_dim == 0)

        def loss_of(values: Tensor) -> Tensor:
            return evaluate(again, (values, *args[1:]), kwargs) * factor

        mixed = engine.unbatched or mixes_samples(engine.cover.model)
        squares = None if mixed else partial(self._sum_of_squares, engine, outputs)
        parts = Parts(engine, outputs, loss_of)
        return Point(loss, parameters, found.part, outputs, loss_of, squares, engine.batch_dim == 0, parts)

    def _separate_point(
        self, engine: Engine, found: Pass, again: LossAgain, args: tuple, kwargs: dict, factor: Tensor
    ) -> Point:
        """The forward once more on (the first samples of) the batch: copies of the buffers, the same random state."""
        B, dim = found.part, engine.batch_dim
        k = B if self.samples is None else min(self.samples, B)

        def cut(value: Any) -> Any:
            batched = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == B
            return value.narrow(dim, 0, k) if batched and k < B else value

        outputs = rerun_model(engine, cut)
        if not isinstance(outputs, Tensor) or outputs.shape[1:] != args[0].shape[1:]:
            raise NoCurvature(
                "the loss does not take the model's own output, so the forward pass cannot be repeated for it"
            )
        rest, sums = tuple(cut(v) for v in args[1:]), getattr(again.module, "reduction", "mean") == "sum"
        weight = factor * (B / k) if sums else factor

        def loss_of(values: Tensor) -> Tensor:
            return evaluate(again, (values, *rest), {key: cut(v) for key, v in kwargs.items()}) * weight

        if k < B:
            engine.step.curvature_part = f"{k} of {B} samples"
        parameters: dict[str, Tensor] = dict(engine.cover.trainable())
        parts = Parts(engine, outputs, loss_of)
        return Point(loss_of(outputs), parameters, k, outputs, loss_of, None, engine.batch_dim == 0, parts)

    def _fill(self, engine: Engine, kinds: dict[str, set[str]], point: Point) -> None:
        """Eigenvalue first: a diagonal that needs products too shares its gradient graph."""
        diagonals = {k or self.kind for k in kinds.get("diagonal", ())}
        eigenvalues = {k or self.kind for k in kinds.get("eigenvalue", ())}
        for kind in sorted(diagonals | eigenvalues):
            operator: list[Any] = []
            if kind in eigenvalues and not self._is_one_of_several(engine, kind):
                self._attempt(engine, "eigenvalue", kind, partial(self._eigenpair, engine, point, kind, operator))
            if kind in diagonals:
                self._attempt(engine, "diagonal", kind, partial(self._diagonal, point, kind, operator))
            for made in operator:
                made.close()

    def _is_one_of_several(self, engine: Engine, kind: str) -> bool:
        """Eigenvalues of micro-batches do not add up to the eigenvalue of the batch."""
        state = engine.step
        curved = state.open is not None and state.open.curved
        usual = engine.passes_per_step if self.group is None else self.group.most_passes
        if not state.passes and not curved and usual < 2:
            return False
        state.eigenpairs.pop(kind, None)
        state.no_value[f"eigenvalue {kind}"] = (
            "the step has several backward passes, and their eigenvalues do not add up"
        )
        return True

    def _attempt(self, engine: Engine, need: str, kind: str, compute: Callable[[], Any]) -> None:
        into = engine.step.eigenpairs if need == "eigenvalue" else engine.step.diagonals
        with engine.guard(f"{need} {kind}"):
            try:
                found = engine.clock.timed(need, compute)
                into[kind] = add_diagonals(into[kind], found) if kind in into else found
            except NoCurvature as reason:
                engine.step.no_value[f"{need} {kind}"] = str(reason)

    def _diagonal(self, point: Point, kind: str, operator: list[Any]) -> Diagonal:
        limits = Limits(memory_budget=self.memory_budget, **({"max_columns": 0} if self.packed else {}))
        shared = operator[0] if operator and kind != "ggn_mc" else None
        return diagonal(point, kind, self.generator, operator=shared, limits=limits)

    def _eigenpair(self, engine: Engine, point: Point, kind: str, made: list[Any]) -> Eigenpair:
        def make() -> Any:
            operator = make_operator(point, kind, self.memory_budget // 2)
            if operator.note:
                engine.cost_notes["eigenvalue"] = f"the largest eigenvalue takes {operator.note}"
            return operator

        names = list(point.trainable)
        known = self.eigenvectors.get(kind)
        start = [known[name] for name in names] if known and set(known) == set(names) else None
        small = sum(p.numel() for p in point.trainable.values()) <= SMALL
        effort: dict[str, Any] = {"tolerance": 1e-7, "max_products": 128, "max_vectors": 128} if small else {}
        if not small:
            each = sum(p.nbytes for p in point.trainable.values())
            effort["max_vectors"] = max(FEWEST_VECTORS, min(MOST_VECTORS, self.memory_budget // 2 // each))
        if self.group is None:
            made.append(make())
            pair = largest_eigenvalue(made[0], start, self.generator, **effort)
        else:
            pair, local = self._ask_all(kind, make, start, **effort)
            made.append(local)
        if not pair.start:
            return pair
        self.eigenvectors[kind] = dict(zip(names, pair.start, strict=True))
        return pair

    def _sum_of_squares(self, engine: Engine, outputs: Tensor, seed: Tensor) -> dict[str, Tensor]:
        """``sum_n (J_n^T seed_n)^2`` per parameter: one backward pass to the layers' outputs, then the layer rules."""
        if not self.edges:
            raise NoCurvature("no layer was seen in the forward pass")
        gradients = torch.autograd.grad(outputs, [e[3] for e in self.edges], seed, retain_graph=True, allow_unused=True)
        held: dict[int, Captured] = {}
        for (call, names, position, _), gradient in zip(self.edges, gradients, strict=True):
            if gradient is not None:
                held.setdefault(id(call), Captured(call, names)).gradients[position] = gradient
        parts: dict[str, list] = {}
        for captured in held.values():
            own = dict(captured.call.module.named_parameters(remove_duplicate=False))
            try:
                made = make_contributions(captured, 1.0, engine.cover, self.memory_budget, engine.mute)
            except NotCovered as reason:
                raise NoCurvature(str(reason)) from reason
            for local, contribution in made.items():
                parts.setdefault(engine.cover.names[id(own[local])], []).append(contribution)
        try:
            return {
                name: squares_of(
                    found[0] if len(found) == 1 else Summed(found), self.memory_budget, engine.step.scratch
                )
                for name, found in parts.items()
            }
        except NotCovered as reason:
            raise NoCurvature(str(reason)) from reason


def evaluate(again: LossAgain, args: tuple, kwargs: dict) -> Tensor:
    """The user's loss once more."""
    try:
        return again.forward(*args, **kwargs)
    except NotRepeatable as reason:
        raise NoCurvature(f"the loss cannot be evaluated once more: {reason}") from reason


def mixes_samples(model: nn.Module) -> bool:
    """BatchNorm in training mode: a column of one sample then reaches all of them, and squares per sample are wrong."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())


class Parts:
    """Some samples on a graph of their own: their forward pass once more, with the others' outputs as they were.

    Curvatures of such parts add up to the whole if neither the model nor the loss mixes samples; both are looked at.
    """

    def __init__(
        self,
        engine: Engine,
        outputs: Tensor,
        loss_of: Callable[[Tensor], Tensor],
        forward: Forward | None = None,
        take: Callable[[Any], Any] = lambda result: result,
    ):
        self.engine, self.values, self.loss_of, self.checked = engine, outputs.detach(), loss_of, False
        self.forward, self.take = forward or engine.forward, take

    def __call__(self, lo: int, hi: int) -> Point:
        dim, values, forward = self.engine.batch_dim, self.values, self.forward
        B = 0 if forward is None else forward.batch_size

        def cut(value: Any) -> Any:
            batched = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == B
            return value.narrow(dim, lo, hi - lo) if batched else value

        if values.dim() <= dim or values.shape[dim] < hi:
            raise NoCurvature("the outputs are not one per sample")
        found = self.take(rerun_model(self.engine, cut, forward))
        known = values.narrow(dim, lo, hi - lo)
        if not isinstance(found, Tensor) or found.shape != known.shape:
            raise NoCurvature("the loss does not take the model's own output, sample by sample")
        if not self.checked:
            if forward is not None and forward.draws:
                raise NoCurvature("the model draws random numbers, and would draw others for a part of the batch")
            refuse_other_outputs(found.detach(), known)
            refuse_mixing_loss(self.loss_of, values, dim, lo, hi)
            self.checked = True
        around = values.narrow(dim, 0, lo), values.narrow(dim, hi, values.shape[dim] - hi)

        def loss_of(part: Tensor) -> Tensor:
            return self.loss_of(torch.cat([around[0], part, around[1]], dim))

        parameters: dict[str, Tensor] = dict(self.engine.cover.trainable())
        return Point(loss_of(found), parameters, hi - lo, found, loss_of, None, dim == 0)


def refuse_other_outputs(found: Tensor, known: Tensor) -> None:
    away = float(torch.linalg.vector_norm(found - known)) / max(float(torch.linalg.vector_norm(known)), 1e-30)
    if not away <= SAME.get(known.dtype, 5e-2):
        raise NoCurvature("the model mixes samples: a part of them has other outputs")


def refuse_mixing_loss(loss_of: Callable[[Tensor], Tensor], values: Tensor, dim: int, lo: int, hi: int) -> None:
    """The second derivative of the loss by outputs of two different samples must vanish."""
    leaf = values.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(leaf), leaf, create_graph=True)
    if not slope.requires_grad:
        return
    seed = torch.zeros_like(values)
    seed.narrow(dim, lo, hi - lo).copy_(values.narrow(dim, lo, hi - lo) + 1)
    (bent,) = torch.autograd.grad(slope, leaf, seed, allow_unused=True, materialize_grads=True)
    largest = float(bent.abs().amax())
    bent.narrow(dim, lo, hi - lo).zero_()
    if float(bent.abs().amax()) > 1e-6 * largest:
        raise NoCurvature("the loss mixes samples")


def rerun_model(engine: Engine, cut: Callable[[Any], Any], forward: Forward | None = None) -> Any:
    forward = forward or engine.forward
    if forward is None:
        raise NoCurvature("the model itself was not called, so its forward pass cannot be repeated")
    args, kwargs = tuple(cut(v) for v in forward.args), {key: cut(v) for key, v in forward.kwargs.items()}
    whole = all(a is b for a, b in zip(args, forward.args, strict=True))
    whole = whole and all(value is forward.kwargs[key] for key, value in kwargs.items())
    try:
        return forward.repeat(engine.cover.model, *(() if whole else (args, kwargs)))
    except NotRepeatable as reason:
        raise NoCurvature(str(reason)) from reason
    except Exception as error:
        taken = "cannot be run again" if whole else "does not take a part of its batch"
        raise NoCurvature(f"the model {taken} ({type(error).__name__}: {error})") from error


def add_diagonals(first: Diagonal, second: Diagonal) -> Diagonal:
    """Micro-batches: curvatures of a sum of losses add up, and so do the variances of their estimates."""
    if not first.values or not second.values:
        return first if first.values else second
    values = {name: first.values[name] + second.values[name] for name in first.values}
    errors = [e for e in (first.trace_error, second.trace_error) if e is not None]
    error = math.sqrt(sum(e * e for e in errors)) if errors else None
    return replace(
        first, values=values, exact=first.exact and second.exact, trace_error=error, errors=None, trace_errors={}
    )


def squares_of(contribution: Any, memory_budget: int, scratch: Scratch) -> Tensor:
    request = Request(squares=True, memory_budget=memory_budget, scratch=scratch)
    squares = reduce_layer(contribution, {}, request, None, Clock()).squares
    assert squares is not None
    return squares
