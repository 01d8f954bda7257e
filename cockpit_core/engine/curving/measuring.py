"""Curvature at the moment the backward pass begins: the user's graph is complete, and nothing has been freed yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cockpit_core.curvature import Diagonal, Eigenpair, Limits, NoCurvature, Point, diagonal, make_operator
from cockpit_core.curvature.beside import Beside, BesideOperator, diagonal_beside
from cockpit_core.curvature.recurrence import has_fused_recurrence, plain_recurrence
from cockpit_core.curvature.symmetry import roughly
from cockpit_core.distributed.eigenvalue import find_largest
from cockpit_core.distributed.group import Group
from cockpit_core.engine.capture import Captured, Pass
from cockpit_core.engine.clock import Clock
from cockpit_core.engine.curving.points import Places
from cockpit_core.engine.making import Maker
from cockpit_core.engine.quiet import Quiet
from cockpit_core.engine.statistics import Request, reduce_layer
from cockpit_core.layers.contribution import Contribution, Summed
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.registry import Call, NotCovered
from cockpit_core.layers.scratch import Scratch

SMALL = 1000
"""With up to this many parameters products are cheap, and even eigenvalues that differ by a percent are told apart."""

FEWEST_VECTORS, MOST_VECTORS = 8, 32
"""Vectors that Lanczos may hold, each as long as all parameters together. They fill half of the memory budget, but a
few are always needed."""

SEVERAL = "the step has several backward passes, and their eigenvalues do not add up"
FindBeside = Callable[[], Beside | None]
Kinds = dict[str, set[str]]
"""{"diagonal": kinds, "eigenvalue": kinds}; "" stands for the run's own kind."""


@dataclass
class Asked:
    """What a step wants to know about its first backward pass, or about one of ``several``."""

    kinds: Kinds
    several: bool
    """Eigenvalues of micro-batches do not add up to the eigenvalue of the batch."""
    is_first: bool
    rough: bool
    """The forward pass ran in mixed precision."""
    elements: bool = True
    """Is the diagonal itself looked at, or only its sums?"""


@dataclass
class CurvatureResult:
    """For one loss: what was measured, by kind, or why not, by "need kind"; ``part`` of the samples; a ``note`` on
    costs."""

    diagonals: dict[str, Diagonal] = field(default_factory=dict)
    eigenpairs: dict[str, Eigenpair] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    part: str = ""
    note: str = ""
    is_done: bool = False


class Curvature:
    """Measures what the plan asks for, once per step, on its first backward pass. ``kind`` is the run's own."""

    def __init__(
        self,
        kind: str,
        *,
        maker: Maker,
        quiet: Quiet,
        group: Group,
        clock: Clock,
        guard: Callable[[str], Any],
        seed: int,
    ):
        self.kind, self.maker, self.quiet = kind, maker, quiet
        self.group, self.clock, self.guard = group, clock, guard
        self.memory_budget = maker.memory_budget
        self.generator = torch.Generator().manual_seed(seed)
        self.eigenvectors: dict[str, dict[str, Tensor]] = {}
        self.due: list[str] | None = None
        """Eigenvalues that the other processes will ask this one about at this step; None: not known yet."""
        self.edges: list[tuple[Call, list[str], int, Any]] = []

    def forget_step(self, passes: list[Pass]) -> None:
        gone = {forward for result in passes if not result.keeps_graph for forward in result.sizes}
        for call, *_ in self.edges:
            if call.forward in gone:
                call.release()
        self.edges.clear()
        self.due = None

    def note(self, call: Call, names: list[str], position: int, output: Tensor) -> None:
        """Remember where this output sits in the graph; the edge survives if the tensor is overwritten in place."""
        self.edges.append((call, names, position, torch.autograd.graph.get_gradient_edge(output)))

    # ---- by which graph -----------------------------------------------------------------------------------------

    def measure(self, asked: Asked, make: Callable[[], Places], samples: int | None) -> CurvatureResult:
        """Measures the loss that ``make`` sets up.

        A graph that hands out its saved tensors only once (checkpointing, offloading) is left alone: the forward pass
        is repeated instead. The same is done, with the plain kernels, where fused attention has no second derivative.
        """
        result = CurvatureResult()
        if self._begin(asked, result):
            with torch.enable_grad(), self._passing(asked, result):
                self._try_ways(asked, make(), samples, result)
                result.is_done = True
        return result

    @contextmanager
    def _passing(self, asked: Asked, result: CurvatureResult) -> Iterator[None]:
        """Passes of ours through the user's graph, where they leave no trace; else there is no value."""
        try:
            with self.quiet.mute(), roughly(asked.rough):
                yield
        except NotRepeatable as reason:
            self._give_up(asked, result, NoCurvature(f"the backward pass runs code of yours, and {reason}"))

    def _names(self, kinds: Kinds) -> list[str]:
        return [f"{need} {kind or self.kind}" for need, own in kinds.items() for kind in own]

    def _give_up(self, asked: Asked, result: CurvatureResult, reason: NoCurvature) -> None:
        result.reasons.update(dict.fromkeys(self._names(asked.kinds), str(reason)))
        self._answer(asked, result, reason)

    def _try_ways(self, asked: Asked, places: Places, samples: int | None, result: CurvatureResult) -> None:
        """On the user's graph. Or on a forward pass of our own: if the graph hands out its tensors only once, for
        some of the samples, or with the plain kernels where fused attention has no second derivative."""
        apart = self.quiet.packed or (samples is not None and samples < places.B)
        if apart:
            self._attempt_fill(asked, places.separate, result)
        else:
            self._attempt_fill(asked, partial(self._unfused, asked, places), result, places.beside)
        again = {name for name, reason in result.reasons.items() if "attention" in reason}
        if again and asked.is_first:
            with sdpa_kernel(SDPBackend.MATH):
                kinds = {
                    need: {k for k in own if f"{need} {k or self.kind}" in again} for need, own in asked.kinds.items()
                }
                for name in again:
                    result.reasons.pop(name)
                self.due = self._eigenvalues(replace(asked, kinds=kinds))
                self._attempt_fill(replace(asked, kinds=kinds), places.separate, result)
        result.part = places.part

    def _unfused(self, asked: Asked, places: Places) -> Point:
        """The user's graph; but where recurrent layers are one node of it, a forward pass of our own, step by step: probes
        per sample need to see where each weight is used."""
        point = places.plain()
        hessian = "hessian" in {kind or self.kind for kind in asked.kinds.get("diagonal", ())}
        if not hessian or not asked.is_first or not has_fused_recurrence(point):
            return point
        try:
            with plain_recurrence():
                return places.separate()
        except NoCurvature:
            return point

    def _attempt_fill(
        self, asked: Asked, make: Callable[[], Point], result: CurvatureResult, beside: FindBeside = lambda: None
    ) -> None:
        try:
            kinds = {p.dtype for p in self.maker.cover.trainable().values()}
            if kinds & {torch.float16, torch.bfloat16}:
                raise NoCurvature("parameters in half precision give second derivatives that are mostly rounding")
            if any(kind.is_complex for kind in kinds):
                raise NoCurvature("second derivatives by complex parameters are not measured")
            point = make()
        except NoCurvature as reason:
            self._give_up(asked, result, reason)
            return
        self._fill(asked, point, result, beside)

    # ---- with other processes -----------------------------------------------------------------------------------

    def answer_others(self, asked: Asked, reason: Exception) -> CurvatureResult:
        """Other processes are about to ask this one for products: it answers with the reason why it has none."""
        result = CurvatureResult()
        self._answer(asked, result, reason)
        return result

    def _answer(self, asked: Asked, result: CurvatureResult, reason: Exception) -> None:
        if not self.group.expects_answers:
            return
        if self.due is None and not self._begin(asked, result):
            return

        def make() -> Any:
            raise reason

        while self.due:
            self._attempt(result, "eigenvalue", self.due[0], partial(self._ask_all, self.due[0], make, None))

    def _ask_all(self, kind: str, make: Callable[[], Any], start: Any, **effort: Any) -> tuple[Eigenpair, Any]:
        if self.due and kind in self.due:
            self.due.remove(kind)
        return find_largest(self.group, make, start, self.generator, **effort)

    def _begin(self, asked: Asked, result: CurvatureResult) -> bool:
        """Is there anything to measure, and if so, what will the processes ask each other for?"""
        self.due = []
        if not asked.kinds:
            return False
        refusal = self.group.refusal(self.maker.cover.model)
        if refusal:
            result.reasons.update(dict.fromkeys(self._names(asked.kinds), refusal))
            return False
        self.due = self._eigenvalues(asked)
        return True

    def _eigenvalues(self, asked: Asked) -> list[str]:
        return [] if asked.several else sorted({kind or self.kind for kind in asked.kinds.get("eigenvalue", ())})

    # ---- the numbers --------------------------------------------------------------------------------------------

    def _fill(self, asked: Asked, point: Point, result: CurvatureResult, beside: FindBeside) -> None:
        """Eigenvalue first: a diagonal that needs products too shares its gradient graph."""
        diagonals = {k or self.kind for k in asked.kinds.get("diagonal", ())}
        eigenvalues = {k or self.kind for k in asked.kinds.get("eigenvalue", ())}
        for kind in sorted(diagonals | eigenvalues):
            operator: list[Any] = []
            if kind in eigenvalues and asked.several:
                result.reasons[f"eigenvalue {kind}"] = SEVERAL
            elif kind in eigenvalues:
                self._attempt(
                    result, "eigenvalue", kind, partial(self._eigenpair, point, kind, operator, result, beside)
                )
            if kind in diagonals:
                self._attempt(result, "diagonal", kind, partial(self._diagonal, asked, point, kind, operator, beside))
            for made in operator:
                made.close()

    def _attempt(self, result: CurvatureResult, need: str, kind: str, compute: Callable[[], Any]) -> None:
        into: dict[str, Any] = result.eigenpairs if need == "eigenvalue" else result.diagonals
        with self.guard(f"{need} {kind}"):
            try:
                into[kind] = self.clock.timed(need, compute)
            except NoCurvature as reason:
                result.reasons[f"{need} {kind}"] = str(reason)

    def _diagonal(
        self, asked: Asked, point: Point, kind: str, operator: list[Any], find_beside: FindBeside
    ) -> Diagonal:
        once: dict[str, Any] = {"max_columns": 0, "max_probes": 0} if self.quiet.packed else {}
        limits = Limits(memory_budget=self.memory_budget, elements=asked.elements, **once)
        beside = find_beside() if kind != "hessian" and point.outputs is None else None
        if beside is not None:
            result, more = diagonal(beside.network, kind, self.generator, limits=limits), diagonal_beside(beside)
            return replace(result, values={n: v + more[n] if n in more else v for n, v in result.values.items()})
        shared = operator[0] if operator and kind != "ggn_mc" else None
        return diagonal(point, kind, self.generator, operator=shared, limits=limits)

    def _eigenpair(
        self, point: Point, kind: str, made: list[Any], result: CurvatureResult, find_beside: FindBeside
    ) -> Eigenpair:
        def make() -> Any:
            beside = find_beside() if kind != "hessian" and point.outputs is None else None
            operator = make_operator(point, kind, self.memory_budget // 2) if beside is None else BesideOperator(beside)
            made.append(operator)
            if operator.note:
                result.note = f"the largest eigenvalue takes {operator.note}"
            return operator

        names = list(point.trainable)
        known = self.eigenvectors.get(kind)
        start = [known[name] for name in names] if known and set(known) == set(names) else None
        small = sum(p.numel() for p in point.trainable.values()) <= SMALL
        effort: dict[str, Any] = {"tolerance": 1e-7, "max_products": 128, "max_vectors": 128} if small else {}
        if not small:
            each = sum(p.nbytes for p in point.trainable.values())
            effort["max_vectors"] = max(FEWEST_VECTORS, min(MOST_VECTORS, self.memory_budget // 2 // each))
        pair, _ = self._ask_all(kind, make, start, **effort)
        if not pair.start:
            return pair
        self.eigenvectors[kind] = dict(zip(names, pair.start, strict=True))
        return pair

    def sum_of_squares(self, scratch: Scratch, outputs: Tensor, seed: Tensor) -> dict[str, Tensor]:
        """``sum_n (J_n^T seed_n)^2`` per parameter: one backward pass to the layers' outputs, then the layer rules."""
        if not self.edges:
            raise NoCurvature("no layer was seen in the forward pass")
        gradients = torch.autograd.grad(outputs, [e[3] for e in self.edges], seed, retain_graph=True, allow_unused=True)
        held: dict[int, Captured] = {}
        for (call, names, position, _), gradient in zip(self.edges, gradients, strict=True):
            if gradient is not None:
                held.setdefault(id(call), Captured(call, names)).gradients[position] = gradient
        parts: dict[str, list[Contribution]] = {}
        try:
            for captured in held.values():
                own = dict(captured.call.module.named_parameters(remove_duplicate=False))
                for local, contribution in self.maker.of_call(captured, 1.0).items():
                    parts.setdefault(self.maker.cover.names[id(own[local])], []).append(contribution)
            joined = {name: result[0] if len(result) == 1 else Summed(result) for name, result in parts.items()}
            return {name: squares_of(part, self.memory_budget, scratch) for name, part in joined.items()}
        except NotCovered as reason:
            raise NoCurvature(str(reason)) from reason


def squares_of(contribution: Any, memory_budget: int, scratch: Scratch) -> Tensor:
    request = Request(squares=True, memory_budget=memory_budget, scratch=scratch)
    squares = reduce_layer(contribution, {}, request, None, Clock()).squares
    assert squares is not None
    return squares
