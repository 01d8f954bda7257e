"""Where curvature is taken: the loss of one backward pass as a function of the parameters and of the outputs.

On the user's graph, which is complete when the backward pass begins; or on a forward pass of our own, where that
graph hands out its tensors only once, or only some of the samples are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from cockpit_core.curvature import NoCurvature, Point
from cockpit_core.curvature.autograd_graph import reachable, variable_of
from cockpit_core.curvature.beside import Beside
from cockpit_core.curvature.quadratic import LossAtOutputs
from cockpit_core.engine.cover import Cover
from cockpit_core.engine.curving.parts import Parts, refuse_mixing_loss, rerun_model
from cockpit_core.engine.forward import Forward
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
from cockpit_core.engine.loss.prepared import Output
from cockpit_core.engine.loss.roots import Root
from cockpit_core.layers.module_state import LossAgain, NotRepeatable
from cockpit_core.layers.seeds import flatten_tensors

Squares = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""``sum_n (J_n^T seed_n)^2`` per parameter, from outputs and seed."""


@dataclass
class Scene:
    """The network as its last forward passes left it."""

    cover: Cover
    batch_dim: int
    forward: Forward | None
    outputs: list[Output]
    last_layer: Output | None
    samples: int | None
    """Measure the curvature of this many samples of the batch; None: of all."""
    mixed: bool
    """One sample's output depends on others, or may: there are no squares per sample."""
    squares: Squares

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self.cover.trainable())

    @property
    def samples_first(self) -> bool:
        return self.batch_dim == 0

    def squares_at(self, outputs: Tensor) -> Callable[[Tensor], dict[str, Tensor]] | None:
        return None if self.mixed else partial(self.squares, outputs)

    def parts(
        self, outputs: Tensor, loss_of: Callable[[Tensor], Tensor], forward: Forward | None = None, **take: Any
    ) -> Parts:
        return Parts(
            self.cover.model, self.parameters, self.batch_dim, outputs, loss_of, forward or self.forward, **take
        )

    def cutter(self, B: int, k: int) -> Callable[[Any], Any]:
        """The first k samples of whatever counts B of them."""
        dim = self.batch_dim

        def cut(value: Any) -> Any:
            batched = isinstance(value, Tensor) and value.dim() > dim and value.shape[dim] == B
            return value.narrow(dim, 0, k) if batched and k < B else value

        return cut


class Places(Protocol):
    """The two ways to a point, and what the second one restricts it to ("64 of 128 samples")."""

    B: int
    part: str

    def plain(self) -> Point: ...

    def beside(self) -> Beside | None: ...

    def separate(self) -> Point: ...


class ModuleLoss:
    """For a loss module: the loss is evaluated once more on the same outputs, on top of the user's graph."""

    def __init__(self, scene: Scene, B: int, again: LossAgain, args: tuple, kwargs: dict, factor: Tensor):
        self.scene, self.B, self.part = scene, B, ""
        self.again, self.args, self.kwargs, self.factor = again, args, kwargs, factor

    def plain(self) -> Point:
        scene, args = self.scene, self.args
        outputs = args[0] if args and isinstance(args[0], Tensor) and args[0].requires_grad else None
        loss = evaluate(self.again, args, self.kwargs) * self.factor
        if outputs is None:
            return Point(loss, scene.parameters, self.B, samples_first=scene.samples_first)

        def loss_of(values: Tensor) -> Tensor:
            return evaluate(self.again, (values, *args[1:]), self.kwargs) * self.factor

        squares, parts = scene.squares_at(outputs), scene.parts(outputs, loss_of)
        return Point(loss, scene.parameters, self.B, outputs, loss_of, squares, scene.samples_first, parts)

    def beside(self) -> Beside | None:
        return None

    def separate(self) -> Point:
        """The forward once more on (the first samples of) the batch: copies of the buffers, the same random state."""
        scene, B, args = self.scene, self.B, self.args
        k = B if scene.samples is None else min(scene.samples, B)
        cut = scene.cutter(B, k)
        outputs = rerun_model(scene.cover.model, cut, scene.forward)
        if not isinstance(outputs, Tensor) or outputs.shape[1:] != args[0].shape[1:]:
            raise NoCurvature(
                "the loss does not take the model's own output, so the forward pass cannot be repeated for it"
            )
        rest, sums = tuple(cut(v) for v in args[1:]), getattr(self.again.module, "reduction", "mean") == "sum"
        weight = self.factor * (B / k) if sums else self.factor

        def loss_of(values: Tensor) -> Tensor:
            return evaluate(self.again, (values, *rest), {key: cut(v) for key, v in self.kwargs.items()}) * weight

        if k < B:
            self.part = f"{k} of {B} samples"
        parts = scene.parts(outputs, loss_of)
        return Point(loss_of(outputs), scene.parameters, k, outputs, loss_of, None, scene.samples_first, parts)


class RootLoss:
    """For a loss that is not the tracked module's, or not alone: its own graph, from the scalar to the outputs."""

    def __init__(self, scene: Scene, root: Root, B: int, scale: float, terms: list[Term]):
        self.scene, self.root, self.B, self.scale, self.terms = scene, root, B, scale, terms
        self.part = ""
        self.loss = root.scalar() if scale == 1 else root.scalar() / scale
        self.chosen: list[Any] = choose_outputs(root, scene.outputs, B, scene.batch_dim)
        if not self.chosen and scene.last_layer is not None:
            self.chosen = choose_outputs(root, [scene.last_layer], B, scene.batch_dim)

    def plain(self) -> Point:
        scene, loss, B = self.scene, self.loss, self.B
        tensors = [output.tensor for output in self.chosen]
        alone = Point(loss, scene.parameters, B, samples_first=scene.samples_first)
        if not tensors or depends_beside([loss.grad_fn], tensors, scene.parameters):
            return alone
        try:
            join = Join(tensors, B, scene.batch_dim)
        except NoCurvature:
            return alone
        loss_of, outputs = LossAtOutputs(loss, tensors, join, join.part), join(tensors)
        parts = scene.parts(outputs, loss_of, self.chosen[0].forward, take=taken_again(self.chosen, join))
        nodes = tuple(t.grad_fn for t in tensors if t.grad_fn is not None)
        squares = scene.squares_at(outputs)
        return Point(loss, scene.parameters, B, outputs, loss_of, squares, scene.samples_first, parts, nodes)

    def beside(self) -> Beside | None:
        """Where the loss uses parameters not only through the outputs: what Gauss-Newton is made of there."""
        scene, tensors = self.scene, [output.tensor for output in self.chosen]
        if not tensors or not depends_beside([self.loss.grad_fn], tensors, scene.parameters):
            return None
        below = {id(variable_of(n)) for n in reachable([t.grad_fn for t in tensors])}
        shared = {name: p for name, p in scene.parameters.items() if id(p) in below}
        join, penalty = Join(tensors, self.B, scene.batch_dim), penalty_of(self.terms)
        loss_of, outputs = LossAtOutputs(self.loss, tensors, join, join.part), join(tensors)
        if depends_beside([s.grad_fn for s in loss_of.slopes if s is not None], tensors, shared):
            raise NoCurvature("the loss multiplies weights of the network with what its outputs give")
        squares, first = scene.squares_at(outputs), scene.samples_first
        network = Point(loss_of(outputs), scene.parameters, self.B, outputs, loss_of, squares, first)
        used = {id(variable_of(n)) for n in reachable([self.loss.grad_fn])}
        own = {n: p for n, p in scene.parameters.items() if n not in shared and id(p) in used}
        beside = Beside(network, tensors, None if penalty is None else penalty / self.scale, own, self.loss)
        beside.refuse_unless_whole(loss_of.slopes)
        return beside

    def separate(self) -> Point:
        """The forward pass once more, and the loss as its graph tells it on top."""
        scene, B, first = self.scene, self.B, self.scene.samples_first
        k = B if scene.samples is None else min(scene.samples, B)
        chosen = [output for output in self.chosen if output.forward is not None]
        nodes: list[Any] = [term.edge.node for term in self.terms if not term.shared] or [self.loss.grad_fn]
        if not chosen or depends_beside(nodes, [output.tensor for output in chosen], scene.parameters):
            return self._computed_again(whole=k == B)
        tensors = [output.tensor for output in chosen]
        join, forward = Join(tensors, B, scene.batch_dim), call_of(chosen)
        known = LossAtOutputs(self.loss, tensors, join, join.part)
        take = taken_again(chosen, join)
        outputs = take(rerun_model(scene.cover.model, scene.cutter(B, k), forward or scene.forward))
        if k < B:
            return self._some(k, outputs, known, join(tensors).detach())
        penalty = penalty_of(self.terms)
        if penalty is not None:
            return Point(known(outputs) + penalty / self.scale, scene.parameters, B, samples_first=first)
        parts = scene.parts(outputs, known, forward, take=take)
        return Point(known(outputs), scene.parameters, B, outputs, known, None, first, parts)

    def _computed_again(self, whole: bool) -> Point:
        """The losses that the model itself has computed."""
        scene, computed = self.scene, scalars_of(self.root, self.scene.outputs)
        if not computed or not whole:
            raise NoCurvature(
                "the loss is not a function of the outputs of one call of the model, so that call cannot be repeated"
            )
        forward = call_of([o for o, _ in computed]) or scene.forward
        result = flatten_tensors(rerun_model(scene.cover.model, lambda v: v, forward))
        again = torch.stack([result[o.position] * (weight / self.scale) for o, weight in computed]).sum()
        return Point(again, scene.parameters, self.B, samples_first=scene.samples_first)

    def _some(self, k: int, outputs: Tensor, known: LossAtOutputs, rest: Tensor) -> Point:
        """The loss of the first k samples, with the others' outputs as they were."""
        scene, B, dim, penalty = self.scene, self.B, self.scene.batch_dim, penalty_of(self.terms)
        if rest.shape[dim] != B:
            raise NoCurvature("the outputs are not one per sample, so curvature_samples cannot choose some")
        refuse_mixing_loss(known, rest, dim, 0, k)
        self.part = f"{k} of {B} samples"

        def loss_of(values: Tensor) -> Tensor:
            return known(torch.cat([values, rest.narrow(dim, k, B - k)], dim)) * (B / k)

        if penalty is not None:
            total = loss_of(outputs) + penalty / self.scale
            return Point(total, scene.parameters, k, samples_first=scene.samples_first)
        return Point(loss_of(outputs), scene.parameters, k, outputs, loss_of, None, scene.samples_first)


def evaluate(again: LossAgain, args: tuple, kwargs: dict) -> Tensor:
    """The user's loss once more."""
    try:
        return again.forward(*args, **kwargs)
    except NotRepeatable as reason:
        raise NoCurvature(f"the loss cannot be evaluated once more: {reason}") from reason


def mixes_samples(model: nn.Module) -> bool:
    """BatchNorm in training mode: a column of one sample then reaches all of them, and squares per sample are wrong."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())
