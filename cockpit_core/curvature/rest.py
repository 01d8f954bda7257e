"""What Gauss-Newton leaves out of the Hessian, ``R = H - G``: its trace, from random changes of the parameters per sample.

``R`` is the Hessian of ``<lambda, outputs>`` with lambda, the gradient of the loss by the outputs, held fixed. A change dW_n of a
weight, another one for each sample, moves the output of the use by ``e_n = dW_n a_n``. With K the second derivative by the e of
all uses, ``Tr(R) = E sum_n <e_n, (K e)_n>`` for random dW_n with unit variance. K does not join samples where the network does
not, so only what a sample gives by itself is added up: its noise is that of B independent probes.

A weight W that is used several times, at u and then behind it at t, has a further term: its gradient at t is ``b_t a_t^T``, and
a_t changes with e_u. ``2 sum_t <dW^T b_t, da_t/de e>`` is what it adds, found by one more backward pass that starts at the inputs
a_t with ``dW^T b_t``.

How dW_n is drawn decides the noise, which is ``2 ||R_n||^2`` without the diagonal: see ``pushing.py`` and
``at_outputs.py``. Parameters whose samples cannot be told apart get random signs of their own, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .at_outputs import MixedSigns, SignsAtOutputs
from .autograd_graph import reachable
from .columns import SMALL
from .factors import Outer
from .individual import Individual
from .operators import refuse_once_differentiable
from .point import NoCurvature, Point, explained
from .pushing import ChangeOfParameter, sum_by_sample
from .signs import SWEEP, Codes, random_signs
from .symmetry import refuse_asymmetric

Probed = ChangeOfParameter | SignsAtOutputs | MixedSigns


class _Prepared(NamedTuple):
    """One probe: changes by parameter, their sum at all inputs, and where the further term starts."""

    changes: dict[str, list[Tensor]]
    seeds: list[Tensor | None]
    starts: list[tuple[GradientEdge, Tensor]]


class _Sender:
    """Several sets of seeds through one graph: at once where that is small and vmap knows every operation of it."""

    def __init__(self, small: int):
        self._small, self._batched = small, True

    def send(self, roots: Sequence[Any], inputs: list[Any], several: list[list[Tensor]]) -> list[list[Tensor | None]]:
        if not roots:
            return [[None] * len(inputs) for _ in several]
        if self._batched and len(several) > 1 and sum(v.nbytes for one in several for v in one) <= self._small:
            try:
                seeds = [torch.stack(some) for some in zip(*several, strict=True)]
                gradients = self._grad(roots, inputs, seeds, batched=True)
                return [[None if f is None else f[k] for f in gradients] for k in range(len(several))]
            except NoCurvature:
                raise
            except (RuntimeError, UserWarning):
                self._batched = False
        return [self._grad(roots, inputs, seeds, batched=False) for seeds in several]

    @staticmethod
    def _grad(roots: Sequence[Any], inputs: list[Any], seeds: list[Tensor], batched: bool) -> list[Tensor | None]:
        with explained():
            gradients = torch.autograd.grad(
                list(roots), inputs, seeds, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        return [None if f is None else f.detach() for f in gradients]


class RestProbes:
    """One gradient graph, as many probes as wanted. ``close`` frees it."""

    def __init__(
        self, point: Point, individuals: dict[str, Individual], leaves: dict[str, Tensor], memory_budget: int = 2**27
    ):
        assert point.outputs is not None and point.loss_of is not None
        self._individuals, self._batch_size = individuals, point.batch_size
        self._leaves = leaves
        sites = [piece.site for one in individuals.values() for piece in one.pieces]
        self._nodes: list[Node] = list(dict.fromkeys(site.node for site in sites))
        self._at = {node: i for i, node in enumerate(self._nodes)}
        self._inputs: list[Any] = [*(GradientEdge(node, 0) for node in self._nodes), *leaves.values()]
        refuse_once_differentiable(point.outputs)
        leaf = point.outputs.detach().clone().requires_grad_()
        with torch.enable_grad(), explained():
            (slope,) = torch.autograd.grad(point.loss_of(leaf), leaf, allow_unused=True, materialize_grads=True)
            self._slopes: list[Tensor | None] = list(
                torch.autograd.grad(point.outputs, self._inputs, slope.detach(), create_graph=True, allow_unused=True)
            )
        self._first: tuple[list[Tensor | None], list[Tensor | None]] | None = None
        self._probed = 0
        self._again = [name for name, one in individuals.items() if _needs_further_term(one)]
        self._sender = _Sender(min(memory_budget // 4, SWEEP * SMALL if self.gated else SMALL))  # many small operations
        most = memory_budget // 4 // point.loss.element_size()
        self._drawn = {
            name: _choose(one, number, most, [self._slopes[i] for i in self._places(one)])
            for number, (name, one) in enumerate(individuals.items())
            if name in self._again or any(_bends(self._slopes[i]) for i in self._places(one))
        }

    def _places(self, one: Individual) -> list[int]:
        return [self._at[piece.site.node] for piece in one.pieces]

    @property
    def gated(self) -> bool:
        """Is a weight used many times, each behind the one before? Then sweeps of probes are less noisy (signs.py)."""
        return any(len(self._individuals[name].pieces) >= SWEEP for name in self._again)

    @torch.no_grad()
    def probe(self, generator: torch.Generator, sweep: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
        """One draw, the mean of a sweep of probes: of the covered parameters [P, B], and per element of the others."""
        like = next((s.detach() for s in self._slopes if s is not None), torch.zeros(()))
        for drawn in self._drawn.values():
            drawn.draw(generator, like)
        rest = self._slopes[len(self._nodes) :]
        signs = [None if s is None else random_signs(tuple(s.shape), s, generator) for s in rest]
        made = [self._prepare(Codes(number), signs) for number in range(sweep)]
        responses = self._images([one.seeds for one in made])
        back = self._further_images([one.starts for one in made])
        for one, images in zip(made, responses, strict=True):
            self._check_symmetry(one.seeds, images)
        mean = torch.stack([self._pair(*each) for each in zip(made, responses, back, strict=True)]).mean(0)
        if not bool(torch.isfinite(mean).all()):
            raise NoCurvature("the Hessian is not finite at this step")
        others = [self._elements(signs, images[len(self._nodes) :]) for images in responses]
        return mean, {name: torch.stack([each[name] for each in others]).mean(0) for name in self._leaves}

    def _prepare(self, codes: Codes, signs: list[Tensor | None]) -> _Prepared:
        changes = {name: one.changes(codes) for name, one in self._drawn.items()}
        seeds: list[Tensor | None] = [*[None] * len(self._nodes), *signs]
        for name, own in changes.items():
            for i, e in zip(self._places(self._individuals[name]), own, strict=True):
                before = seeds[i]
                seeds[i] = e if before is None else before + e
        starts: list[tuple[GradientEdge, Tensor]] = []
        for name in self._again:
            slopes = [self._slopes[i] for i in self._places(self._individuals[name])]
            known = [s.detach() for s in slopes if s is not None]
            if len(known) < len(slopes):
                raise NoCurvature("a weight that is used several times, where not every use matters")
            starts += self._drawn[name].starts(known)
        return _Prepared(changes, seeds, starts)

    def _pair(self, made: _Prepared, images: list[Tensor | None], back: list[Tensor | None]) -> Tensor:
        drawn = torch.zeros(len(self._individuals), self._batch_size, dtype=torch.float64)
        for row, (name, one) in enumerate(self._individuals.items()):
            if name in self._drawn:
                places = self._places(one)
                drawn[row] = self._drawn[name].pair(made.changes[name], [images[i] for i in places])
                if back and name in self._again:
                    drawn[row] += 2 * sum_by_sample(one, made.changes[name], [back[i] for i in places])
        return drawn

    def _elements(self, signs: list[Tensor | None], images: list[Tensor | None]) -> dict[str, Tensor]:
        return {
            name: torch.zeros_like(p) if v is None or w is None else v * w
            for (name, p), v, w in zip(self._leaves.items(), signs, images, strict=True)
        }

    def _images(self, several: list[list[Tensor | None]]) -> list[list[Tensor | None]]:
        """``K v`` for each."""
        kept = [i for i, s in enumerate(self._slopes) if _bends(s) and several[0][i] is not None]
        roots = [s for i in kept if (s := self._slopes[i]) is not None]
        seeds = [[v for i in kept if (v := one[i]) is not None] for one in several]
        return self._sender.send(roots, self._inputs, seeds)

    def _further_images(self, several: list[list[tuple[GradientEdge, Tensor]]]) -> list[list[Tensor | None]]:
        """At all nodes; empty where no weight is used several times."""
        if not several[0]:
            return [[] for _ in several]
        edges, seeds = [edge for edge, _ in several[0]], [[value for _, value in one] for one in several]
        return self._sender.send(edges, self._inputs[: len(self._nodes)], seeds)

    def _check_symmetry(self, seeds: list[Tensor | None], images: list[Tensor | None]) -> None:
        """Compares the second probe with the first: ``u . K v = v . K u`` holds for every Hessian."""
        self._probed += 1
        if self._probed == 1:
            self._first = seeds, images
        elif self._first is not None:
            ours, first = (seeds, images), self._first
            table = [[_dot(v[0], w[1]) for w in (first, ours)] for v in (first, ours)]
            dtype = next((v.dtype for v in seeds if v is not None), torch.float32)
            refuse_asymmetric(torch.tensor(table, dtype=torch.float64), dtype)
            self._first = None

    def close(self) -> None:
        self._first = None
        self._slopes, self._inputs, self._nodes, self._leaves = [], [], [], {}
        self._drawn, self._at = {}, {}


def _choose(one: Individual, number: int, most: int, slopes: Sequence[Tensor | None]) -> Probed:
    """The least noisy changes of a parameter that take at most ``most`` numbers: as many as it has inputs, or positions."""
    outer = [p for p in one.pieces if isinstance(p, Outer)]
    alike = len(outer) == len(one.pieces) and len({(p.turned, p.one_hot is None) for p in outer}) == 1
    positions = sum(p.positions for p in outer)
    fits = one.small or one.batch_size * one.elements <= most
    again, dense = _needs_further_term(one), bool(outer) and outer[0].one_hot is None
    if alike and again and dense and all(p.site.kind != "Convolution" for p in outer):
        return MixedSigns(one, number, slopes, again)
    # Of the two ways of a convolution, this one is far cheaper to prepare, and about as noisy.
    many = positions * (2 if outer and outer[0].site.kind == "Convolution" else 1)
    if fits and (not alike or again or many > outer[0].inputs):
        return ChangeOfParameter(one, number)
    if not alike or again or one.batch_size * outer[0].groups * positions**2 > most:
        return SignsAtOutputs(one, number)
    return MixedSigns(one, number, slopes, again)


def _bends(slope: Tensor | None) -> bool:
    return slope is not None and slope.requires_grad


def _dot(vs: list[Tensor | None], ws: list[Tensor | None]) -> float:
    pairs = [(v, w) for v, w in zip(vs, ws, strict=True) if v is not None and w is not None]
    sums = [(v * w).sum(dtype=torch.promote_types(v.dtype, torch.float32)) for v, w in pairs]
    return float(torch.stack([s.double() for s in sums]).sum()) if pairs else 0.0


def _needs_further_term(one: Individual) -> bool:
    """Used several times, and the gradient of a use contains what it was given: all but biases and embeddings do."""
    return len(one.pieces) > 1 and any(isinstance(p, Outer) and p.input_edge is not None for p in one.pieces)


def refuse_repeated(one: Individual) -> None:
    """The further term is known for linear maps; other uses of one parameter must not follow each other."""
    pieces = one.pieces
    known = all(isinstance(p, Outer) and p.site.kind != "Convolution" for p in pieces)
    if len(pieces) == 1 or known or all(p.site.role.startswith("bias") for p in pieces):
        return
    nodes = {p.site.node for p in pieces}
    for node in nodes:
        below = reachable([f for f, _ in node.next_functions])
        if nodes & set(below):
            raise NoCurvature("a parameter that is used again behind itself, not in a linear map")
