"""What Gauss-Newton leaves out of the Hessian, ``R = H - G``: its trace, from random signs per sample.

``R`` is the Hessian of ``<lambda, outputs>`` with lambda, the gradient of the loss by the outputs, held fixed. A change e of
the output z of a linear map stands for a change of its weights, ``dz = dW a``; so with K the second derivative by the e of all
uses and D the map from weights to e, ``R = D^T K D`` and ``Tr(R) = E sum_n <D_n^T v_n, D_n^T (K v)_n>`` for random signs v.
K does not join samples where the network does not, so only what a sample gives by itself is added up: its noise is that of B
independent probes, and far smaller than that of one random vector of the parameters' size where networks are wide.

A weight W that is used several times, at u and then behind it at t, has a further term: its gradient at t is ``b_t a_t^T``, and
a_t changes with e_u. ``2 sum_{u,t} <v_u a_u^T, b_t (da_t/de v)^T>`` is what it adds to the trace, found by one more backward pass
that starts at the inputs a_t with ``sum_u (v_u a_u^T)^T b_t``.
Parameters whose samples cannot be told apart get random signs of their own, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .autograd_graph import reachable
from .factors import Factors, Outer
from .individual import Individual, merge, products
from .operators import refuse_once_differentiable
from .point import NoCurvature, Point, explained
from .symmetry import refuse_asymmetric


class RestProbes:
    """One gradient graph, as many probes as wanted. ``close`` frees it."""

    def __init__(self, point: Point, individuals: dict[str, Individual], leaves: dict[str, Tensor]):
        assert point.outputs is not None and point.loss_of is not None
        self._individuals, self._batch_size = individuals, point.batch_size
        self._leaves = leaves
        sites = [piece.site for one in individuals.values() for piece in one.pieces]
        self._nodes: list[Node] = list(dict.fromkeys(site.node for site in sites))
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
        self._again = {name: one for name, one in individuals.items() if _needs_further_term(one)}

    def probe(self, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        """One draw: of the covered parameters [P, B], and per element of the others."""
        seeds = [None if s is None else random_signs(s, generator) for s in self._slopes]
        images = self._image(seeds)
        self._check_symmetry(seeds, images)
        at = {node: i for i, node in enumerate(self._nodes)}
        rows = []
        for one in self._individuals.values():
            numbers = [at[piece.site.node] for piece in one.pieces]
            rows.append(self._pair(one, [seeds[i] for i in numbers], [images[i] for i in numbers]))
        drawn = torch.stack(rows) if rows else torch.zeros(0, self._batch_size)
        for name, term in self._further_terms(seeds, at).items():
            drawn[list(self._individuals).index(name)] += term
        others = {
            name: torch.zeros_like(p) if v is None or w is None else v * w
            for (name, p), v, w in zip(
                self._leaves.items(), seeds[len(self._nodes) :], images[len(self._nodes) :], strict=True
            )
        }
        if not bool(torch.isfinite(drawn).all()):
            raise NoCurvature("the Hessian is not finite at this step")
        return drawn, others

    def _check_symmetry(self, seeds: list[Tensor | None], images: list[Tensor | None]) -> None:
        """Of the second probe with the first: ``u . K v = v . K u``, which holds for every Hessian."""
        self._probed += 1
        if self._probed == 1:
            self._first = seeds, images
        elif self._first is not None:
            ours, first = (seeds, images), self._first
            table = [[_dot(v[0], w[1]) for w in (first, ours)] for v in (first, ours)]
            dtype = next((v.dtype for v in seeds if v is not None), torch.float32)
            refuse_asymmetric(torch.tensor(table, dtype=torch.float64), dtype)
            self._first = None

    def _image(self, seeds: Sequence[Tensor | None]) -> list[Tensor | None]:
        """``K v``"""
        pairs = [(s, v) for s, v in zip(self._slopes, seeds, strict=True) if s is not None and s.requires_grad]
        if not pairs:
            return [None] * len(self._inputs)
        with explained():
            found = torch.autograd.grad(
                [s for s, _ in pairs], self._inputs, [v for _, v in pairs], retain_graph=True, allow_unused=True
            )
        return [None if f is None else f.detach() for f in found]

    def _pair(self, one: Individual, vs: list[Tensor | None], ws: list[Tensor | None]) -> Tensor:
        """[B]; a use whose second derivative is zero, or that nothing reaches, counts with zeros."""
        if all(w is None for w in ws):
            return torch.zeros(self._batch_size, dtype=torch.float64)
        like = next(w for w in ws if w is not None)
        filled = []
        for piece, given in zip(one.pieces * 2, [*vs, *ws], strict=True):
            shape = tuple(piece.site.node._input_metadata[0].shape)
            filled.append((like.new_zeros(shape) if given is None else given).unsqueeze(0))
        return one.inner_products(filled[: len(vs)], filled[len(vs) :]).double().cpu()

    def _further_terms(self, seeds: Sequence[Tensor | None], at: dict[Node, int]) -> dict[str, Tensor]:
        """By parameter, [B]."""
        starts: list[GradientEdge] = []
        values: list[Tensor] = []
        for one in self._again.values():
            numbers = [at[piece.site.node] for piece in one.pieces]
            slopes = [self._slopes[i] for i in numbers]
            if any(s is None for s in slopes):
                raise NoCurvature("a weight that is used several times, and not for nothing each time")
            vs = [v for v in (seeds[i] for i in numbers) if v is not None]
            for edge, value in input_seeds(one, vs, [s.detach() for s in slopes if s is not None]):
                starts.append(edge)
                values.append(value)
        if not starts:
            return {}
        with explained():
            back = torch.autograd.grad(
                starts, self._inputs[: len(self._nodes)], values, retain_graph=True, allow_unused=True
            )
        found: dict[str, Tensor] = {}
        for name, one in self._again.items():
            total = torch.zeros(self._batch_size, dtype=torch.float64)
            for piece in one.pieces:
                i = at[piece.site.node]
                v, w = seeds[i], back[i]
                if v is not None and w is not None:
                    both = piece.site.layout.samples_first((v * w.detach()).unsqueeze(0))[0]
                    total += 2 * both.flatten(1).sum(1).double().cpu()
            found[name] = total
        return found

    def close(self) -> None:
        self._first = None
        self._slopes, self._inputs, self._nodes, self._leaves = [], [], [], {}


def _dot(vs: list[Tensor | None], ws: list[Tensor | None]) -> float:
    pairs = [(v, w) for v, w in zip(vs, ws, strict=True) if v is not None and w is not None]
    return float(torch.stack([(v * w).sum(dtype=torch.float64) for v, w in pairs]).sum()) if pairs else 0.0


def random_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Shaped and typed like ``like``. Seven bytes of every number that is drawn are used, bit by bit."""
    drawn = torch.empty(-(-like.numel() // 56), dtype=torch.int64, device=generator.device).random_(generator=generator)
    bits = torch.arange(8, dtype=torch.uint8, device=generator.device)
    used = drawn.view(torch.uint8).reshape(-1, 8)[:, :7].reshape(-1, 1)
    signs = (used >> bits).bitwise_and_(1).reshape(-1)[: like.numel()]
    return signs.to(like).mul_(2).sub_(1).reshape(like.shape)


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


def input_seeds(one: Individual, vs: list[Tensor], bs: list[Tensor]) -> list[tuple[GradientEdge, Tensor]]:
    """For every linear map t: ``sum over the other uses u of (v_u a_u^T)^T b_t``, shaped like its input."""
    outer = [p for p in one.pieces if isinstance(p, Outer)]
    whole = slice(None)
    made = [p.factors(p.arrange(v.unsqueeze(0)), whole) for p, v in zip(outer, vs, strict=True)]
    owners = _owners([(u, f.positions) for u, f in enumerate(made) if isinstance(f.left, Tensor)], made[0].right)
    merged, found = merge(made), []
    for turned in (False, True):
        targets = [t for t, p in enumerate(outer) if p.input_edge is not None and p.turned == turned]
        if not targets:
            continue
        b = torch.cat([outer[t].gradient_factor(bs[t]) for t in targets], -1)  # [1, n, 1, O, T]
        lengths = [made[t].positions for t in targets]
        same = owners.unsqueeze(1) == _owners(list(zip(targets, lengths, strict=True)), b)
        total = sum(_pull(f, b, turned, same) for f in merged)
        assert isinstance(total, Tensor)
        for t, seed in zip(targets, total.split(lengths, -1), strict=True):
            edge = outer[t].input_edge
            assert edge is not None
            found.append((edge, outer[t].input_seed(seed)))
    return found


def _owners(uses: list[tuple[int, int]], like: Tensor) -> Tensor:
    """Which use each position belongs to."""
    numbers = [torch.full((length,), use, device=like.device) for use, length in uses]
    return torch.cat(numbers) if numbers else torch.zeros(0, device=like.device)


def _pull(f: Factors, b: Tensor, turned: bool, same: Tensor) -> Tensor:
    """``(l r^T)^T b``, or ``l r^T b`` if turned, without what a use has from itself: [n, I, T]. b: [1, n, 1, O, T]."""
    inner = products(f.right if turned else f.left, b)  # [1, n, S, T]
    if isinstance(f.left, Tensor):
        inner = inner.masked_fill(same, 0.0)
        return ((f.left if turned else f.right)[:, :, 0] @ inner)[0]
    if not turned:
        return (f.right[:, :, 0] @ inner)[0]
    table = inner.new_zeros(inner.shape[1], f.left.rows, inner.shape[3])
    places = f.left.indices.unsqueeze(-1).expand(-1, -1, inner.shape[3])
    return table.scatter_add_(1, places, inner[0] * f.left.kept.unsqueeze(-1))
