"""Where a network uses its parameters, and which part of each use belongs to which sample: read from the graph, any wiring.

A *site* is one node that takes one parameter. Unlike ``autograd_graph``, which proves from the kinds of all nodes that
the Hessian's diagonal is a sum of squares, nothing is assumed here about the nodes in between: whether samples stay apart,
and along which dimension they lie at a site (time first inside recurrent layers and attention), is measured. A random column
is sent back for half of the samples, zeros for the others: at a site that keeps samples apart the others' part is zero to the
bit, in one of a few layouts. Where it is in none, the samples are mixed (BatchNorm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from .autograd_graph import ROLES, Use, kind_of, output_shape, reachable, relevant_nodes, variable_of
from .point import NoCurvature, Point, explained

_CHAIN = ("T", "ToCopy", "View", "Unsqueeze")  # one parameter in another shape or type
_TRIES = 6


@dataclass(frozen=True)
class Layout:
    """How an output of shape [...] is cut into samples: along ``dim``; or along the rows of dimension 0, which are those
    of one sample after the other ("major") or those of one position after the other ("minor")."""

    batch_size: int
    dim: int = 0
    rows: str = ""

    def samples_first(self, b: Tensor) -> Tensor:
        """[V, *shape] -> [V, B, ...]; rows of dimension 0 become a dimension of positions behind the samples."""
        if self.rows == "major":
            return b.reshape(b.shape[0], self.batch_size, -1, *b.shape[2:])
        if self.rows == "minor":
            return b.reshape(b.shape[0], -1, self.batch_size, *b.shape[2:]).transpose(1, 2)
        return b.movedim(self.dim + 1, 1)

    def undo(self, b: Tensor, shape: Sequence[int]) -> Tensor:
        """The reverse: [V, B, ...] -> [V, *shape]."""
        if self.rows == "major":
            return b.reshape(b.shape[0], *shape)
        if self.rows == "minor":
            return b.transpose(1, 2).reshape(b.shape[0], *shape)
        return b.movedim(1, self.dim + 1)

    def times(self, b: Tensor, factors: Tensor) -> Tensor:
        """Each sample times its factor. b: [V, *shape], factors: [V, B]."""
        apart = self.samples_first(b)
        return self.undo(apart * factors.reshape(factors.shape + (1,) * (apart.dim() - 2)).to(b), b.shape[1:])


def candidate_layouts(shape: Sequence[int], batch_size: int) -> list[Layout]:
    layouts = [Layout(batch_size, d) for d, size in enumerate(shape[:3]) if size == batch_size]
    if shape and shape[0] > batch_size and shape[0] % batch_size == 0:
        layouts += [Layout(batch_size, rows="minor"), Layout(batch_size, rows="major")]
    return layouts


@dataclass(frozen=True)
class Site(Use):
    """A use whose samples can be told apart."""

    layout: Layout = field(default_factory=lambda: Layout(1))

    @property
    def edge(self) -> GradientEdge:
        return GradientEdge(self.node, 0)


@dataclass
class Sites:
    """By parameter, all its uses; ``uncovered``: the other parameters, with the reason."""

    by_name: dict[str, list[Site]] = field(default_factory=dict)
    uncovered: dict[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> list[Node]:
        return list(dict.fromkeys(site.node for sites in self.by_name.values() for site in sites))


def refuse_beside(point: Point) -> None:
    """Gauss-Newton and the rest make up the Hessian only where all parameters act through the outputs."""
    if point.outputs is None or point.outputs.grad_fn is None:
        raise NoCurvature("the outputs have no graph")
    wanted = {id(p) for p in point.trainable.values()}
    beside = reachable([point.loss.grad_fn], stop=point.cut or (point.outputs.grad_fn,))
    if any(id(variable_of(node)) in wanted for node in beside):
        raise NoCurvature("the loss depends on parameters not only through the outputs")


def find_sites(point: Point, generator: torch.Generator) -> Sites:
    """All uses of all trainable parameters below ``point.outputs``; NoCurvature where nothing can be told apart."""
    if point.outputs is None or point.outputs.grad_fn is None:
        raise NoCurvature("the outputs have no graph")
    if not point.samples_first or point.outputs.shape[0] % point.batch_size:
        raise NoCurvature("samples do not lie along the first dimension of the outputs")
    wanted = {id(p): name for name, p in point.trainable.items()}
    with explained():
        uses, uncovered = _find_uses(point.outputs.grad_fn, wanted, point)
        return _lay_out(point, uses, uncovered, generator)


def _find_uses(root: Node, wanted: dict[int, str], point: Point) -> tuple[dict[str, list[Use]], dict[str, str]]:
    order = reachable([root])
    inside = relevant_nodes(order, set(wanted))
    readers: dict[Node, list[tuple[Node, int]]] = {}
    for node in order:
        for i, (below, _) in enumerate(node.next_functions):
            if below is not None and below in inside:
                readers.setdefault(below, []).append((node, i))
    uses: dict[str, list[Use]] = {}
    uncovered: dict[str, str] = {}
    for leaf in order:
        name = wanted.get(id(variable_of(leaf)))
        if name is not None:
            try:
                uses[name] = [_read_use(node, i, name, turned) for node, i, turned in _ends(leaf, readers)]
            except NoCurvature as reason:
                uncovered[name] = str(reason)
    return uses, uncovered


def _ends(leaf: Node, readers: dict[Node, list[tuple[Node, int]]]) -> list[tuple[Node, int, bool]]:
    """The nodes that take the parameter, through transposes and casts of it, with the operand's number."""
    ends: list[tuple[Node, int, bool]] = []
    stack = [(leaf, False, False)]
    while stack:
        node, turned, reshaped = stack.pop()
        for reader, i in readers.get(node, ()):
            kind = kind_of(reader)
            if kind in ("Transpose", "Permute") and len(output_shape(reader)) == 2:
                kind = "T"
            if kind not in _CHAIN:
                ends.append((reader, i, turned))
                continue
            more = (reader, turned ^ (kind == "T"), reshaped or kind in ("View", "Unsqueeze"))
            if more[1] and more[2]:
                raise NoCurvature("a parameter is reshaped and transposed before it is used")
            stack.append(more)
    return ends


def _read_use(node: Node, i: int, name: str, transposed: bool) -> Use:
    kind = kind_of(node)
    roles = ROLES.get(kind, ())
    if i >= len(roles) or not roles[i]:
        raise NoCurvature(f"no rule for a parameter in {kind}")
    below = node.next_functions[i][0]
    assert below is not None
    shape = output_shape(below) if variable_of(below) is None else tuple(variable_of(below).shape)  # type: ignore[union-attr]
    if kind in ("Add", "Mul") and (transposed or shape == output_shape(node)):
        raise NoCurvature(f"a parameter in {kind} cannot be told apart from an activation")
    return Use(node, kind, name, roles[i], shape, transposed)


def _lay_out(point: Point, uses: dict[str, list[Use]], uncovered: dict[str, str], generator: torch.Generator) -> Sites:
    nodes = list(dict.fromkeys(use.node for some in uses.values() for use in some))
    layouts = find_layouts(point, nodes, generator)
    sites = Sites(uncovered=dict(uncovered))
    for name, some in uses.items():
        known = [layouts.get(use.node) for use in some]
        if any(layout is None for layout in known):
            sites.uncovered[name] = "samples are mixed, or cannot be told apart, where it is used"
            continue
        sites.by_name[name] = [
            Site(use.node, use.kind, use.name, use.role, use.operand, use.transposed, layout)
            for use, layout in zip(some, known, strict=True)
            if layout is not None
        ]
    return sites


def find_layouts(point: Point, nodes: list[Node], generator: torch.Generator) -> dict[Node, Layout]:
    """Measured: see above. Nodes whose samples are not apart are left out.

    Rows that nothing arrives at fit several layouts: then other halves are tried, until one layout is left or none matters.
    """
    possible = {node: candidate_layouts(output_shape(node), point.batch_size) for node in nodes}
    arrived: set[Node] = set()
    for _ in range(_TRIES):
        unclear = [node for node, layouts in possible.items() if layouts and (len(layouts) > 1 or node not in arrived)]
        if not unclear:
            break
        chosen = _choose_samples(point.batch_size, generator)
        for node, b in _send_to(point, unclear, chosen, generator):
            if bool(b.any()):
                arrived.add(node)
                possible[node] = [layout for layout in possible[node] if _is_apart(b, chosen, layout)]
    return {node: layouts[0] for node, layouts in possible.items() if layouts and node in arrived}


def _choose_samples(batch_size: int, generator: torch.Generator) -> Tensor:
    """Half of the samples, as booleans [B]; a single sample is always chosen."""
    chosen = torch.zeros(batch_size, dtype=torch.bool)
    chosen[torch.randperm(batch_size, generator=generator, device=generator.device)[: (batch_size + 1) // 2].cpu()] = (
        True
    )
    return chosen


def _send_to(point: Point, nodes: list[Node], chosen: Tensor, generator: torch.Generator) -> list[tuple[Node, Tensor]]:
    """Sends a random column for the chosen samples. For each node that it reaches: where it is not zero, by row and
    column."""
    outputs = point.outputs
    assert outputs is not None
    rows = chosen.repeat_interleave(outputs.shape[0] // point.batch_size).reshape((-1,) + (1,) * (outputs.dim() - 1))
    random = torch.randn(outputs.shape, generator=generator, device=generator.device)
    edges: list[Any] = [GradientEdge(node, 0) for node in nodes]
    seed = (random * rows.to(random)).to(outputs)
    gradients = torch.autograd.grad([outputs], edges, [seed], retain_graph=True, allow_unused=True)
    return [(node, _map_of(b.detach())) for node, b in zip(nodes, gradients, strict=True) if b is not None]


def _map_of(b: Tensor) -> Tensor:
    """Where it is not zero, along its first three dimensions: samples lie along one of these."""
    return (b.flatten(3).abs().amax(3) if b.dim() > 3 else b).ne(0).cpu()


def _is_apart(b: Tensor, chosen: Tensor, layout: Layout) -> bool:
    return not bool(layout.samples_first(b.unsqueeze(0))[0][~chosen].any())
