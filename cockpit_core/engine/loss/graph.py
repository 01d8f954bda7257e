"""The loss taken apart by its own graph: its addends, and which of them belong to samples.

Above its first nonlinear nodes a loss is linear: means, sums, masks, weights, the factor of a GradScaler. So
``L = sum_k <dL/dV_k, V_k>`` over these nodes k with values ``V_k``, whatever was summed and averaged in which order. A node
that depends on parameters alone (``lam * p.pow(2).sum()``) counts alike for every sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from cockpit_core.curvature.autograd_graph import kind_of, output_shape
from cockpit_core.engine.broadcast import TAG
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.loss.terms import FROM_INPUT, LINEAR, LOSSES, Unreadable, elements_of, is_linear

OUTPUT, GIVEN, LOSS = f"{TAG} output", f"{TAG} given", f"{TAG} loss"
"""Marks on nodes: an output of the model with its values; a loss with the user's own individual losses; a loss module's."""

SCALED = frozenset({"Add", "Sub", "Rsub", "Mul", "Div", "Neg", "ToCopy", "Clone", "Alias", "View"})
PRODUCTS = frozenset({"Mm", "Bmm", "Mv", "Dot", "Addmm", "Linalg"})
CHOICES = frozenset({"Index", "IndexSelect", "Gather", "Embedding", "MaskedSelect", "IndexAdd", "ScatterAdd"})


def mark(tensor: Tensor, key: str, value: Any) -> None:
    """On the node, which dies with the user's graph: nothing of ours keeps that alive. ``value`` must hold no graph."""
    if tensor.grad_fn is not None:
        marks: Any = tensor.grad_fn.metadata
        marks.setdefault(key, {})[tensor.output_nr] = value


class Held:
    """Values in a mark, which the step lets go of at its end: the user's loss keeps its graph for longer than that."""

    __slots__ = ("__weakref__", "values")

    def __init__(self, values: Tensor) -> None:
        self.values: Tensor | None = values


def marked(node: Any, key: str, number: int) -> Any:
    return node.metadata.get(key, {}).get(number)


@dataclass(frozen=True)
class Entries:
    """``values`` add up to a part of the loss. They are ``unit * source`` in the user's graph, if that has them."""

    values: Tensor
    source: Tensor | GradientEdge | None
    unit: Tensor


@dataclass(eq=False)
class Term:
    """One first node: its edge, dL/dV of it, and whether it depends on parameters alone."""

    edge: GradientEdge
    shared: bool
    weight: Tensor | None = None

    @property
    def kind(self) -> str:
        return kind_of(self.edge.node)

    def entries(self) -> Entries:
        """Its part of the loss, entry by entry."""
        assert self.weight is not None
        known = marked(self.edge.node, OUTPUT, self.edge.output_nr)
        if known is not None and known.values is not None:
            return Entries((self.weight * known.values).detach(), self.edge, self.weight)
        with torch.enable_grad():
            entries = self.weight * self._elements()
        return Entries(entries.detach(), entries if entries.requires_grad else None, torch.ones_like(entries))

    def _elements(self) -> Tensor:
        """Values, or the addends of a loss that was reduced in its node; with their graph where torch keeps it."""
        node = self.edge.node
        variable = getattr(node, "variable", None)
        if variable is not None:
            return variable
        if hasattr(node, "_forward_cls"):
            raise Unreadable(f"the loss uses a function of its own ({node.name()})")
        return elements_of(node)


@dataclass
class Terms:
    terms: list[Term] = field(default_factory=list)
    given: list[tuple[GradientEdge, Any]] = field(default_factory=list)
    constants: list[tuple[Any, GradientEdge]] = field(default_factory=list)
    """Nodes that add something which no graph shows."""
    factors: list[GradientEdge] = field(default_factory=list)
    """What depends on parameters alone and multiplies a part of the loss."""


def roots_of(root: Root) -> list[tuple[Any, int]]:
    return [(t.grad_fn, t.output_nr) for t in root.tensors if t.grad_fn is not None]


def is_sink(node: Any) -> bool:
    """DistributedDataParallel hands the model's outputs on through a node that changes nothing."""
    return node.name() == "_DDPSinkBackward"


def children_of(node: Any, number: int) -> list[tuple[Any, int]]:
    """What this output of a node was computed from."""
    if is_sink(node):
        ahead = len(node.next_functions) - len(node._input_metadata)
        return [node.next_functions[ahead + number]]
    return [(child, k) for child, k in node.next_functions if child is not None]


def find_terms(root: Root, B: int, batch_dim: int) -> Terms:
    """Walk from the root through what is linear, to the first nodes that are not."""
    terms, seen, waiting = Terms(), set(), roots_of(root)
    while waiting:
        node, number = waiting.pop()
        if (node, number) in seen:
            continue
        seen.add((node, number))
        edge = GradientEdge(node, number)
        given = marked(node, GIVEN, number)
        if given is not None:
            terms.given.append((edge, given))
        elif passes_on(node, number) and not brings_data(node, B, batch_dim):
            if adds_constant(node):
                terms.constants.append((node, edge))
            waiting += children_of(node, number)
        elif (split := scaled_by_parameters(node, B, batch_dim)) is not None:
            waiting.append(split[0])
            terms.factors.append(GradientEdge(*split[1]))
        else:
            terms.terms.append(Term(edge, is_shared(node, B, batch_dim)))
    return terms


def brings_data(node: Any, B: int, batch_dim: int) -> bool:
    """Does what depends on parameters alone meet the data here, as in ``transitions[labels]``? Below this, samples
    cannot be told apart."""
    if is_sink(node) or not (kind_of(node) in CHOICES or may_hold_data(node, B, batch_dim)):
        return False
    return any(is_shared(child, B, batch_dim) for child, _ in node.next_functions if child is not None)


def passes_on(node: Any, number: int) -> bool:
    return (
        marked(node, OUTPUT, number) is None
        and not hasattr(node, "variable")
        and (is_sink(node) or (not hasattr(node, "_forward_cls") and is_linear(node)))
    )


def adds_constant(node: Any) -> bool:
    kind, active = kind_of(node), [child is not None for child, _ in node.next_functions]
    if kind in ("Add", "Sub", "Rsub"):
        return not all(active) or len(active) == 1
    return kind in ("Where", "Cat", "Stack", "IndexAdd", "ScatterAdd", "IndexPut") and not all(active)


def scaled_by_parameters(node: Any, B: int, batch_dim: int) -> list[tuple[Any, int]] | None:
    """A product of something that depends on samples with something that does not (a learned weight of a loss): the
    former's edge and the latter's."""
    if kind_of(node) not in ("Mul", "Div") or hasattr(node, "_forward_cls"):
        return None
    children = [(child, k) for child, k in node.next_functions if child is not None]
    if len(children) != 2 or hasattr(node, "variable"):
        return None
    children.sort(key=lambda c: is_shared(c[0], B, batch_dim))
    own, factor = children
    apart = not is_shared(own[0], B, batch_dim) and is_shared(factor[0], B, batch_dim)
    return children if apart and (kind_of(node) == "Mul" or own == node.next_functions[0]) else None


def below(node: Any) -> Iterator[Any]:
    """The node itself, and everything that its value was made of."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        yield current
        for child, _ in current.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


def is_shared(node: Any, B: int, batch_dim: int) -> bool:
    """Does this node depend on parameters alone? What the graph does not show is taken for data where it may be some."""
    return all(is_free_of_data(each, B, batch_dim) for each in below(node))


def is_free_of_data(node: Any, B: int, batch_dim: int) -> bool:
    variable = getattr(node, "variable", None)
    if variable is not None:
        return isinstance(variable, nn.Parameter)
    kind = kind_of(node)
    if node.metadata.get(TAG) or node.metadata.get(OUTPUT) or hasattr(node, "_forward_cls"):
        return False
    if (
        kind in LOSSES
        or kind in CHOICES
        or not (kind in LINEAR or kind in FROM_INPUT or hasattr(node, "_saved_result"))
    ):
        return False
    return not may_hold_data(node, B, batch_dim)


def may_hold_data(node: Any, B: int, batch_dim: int) -> bool:
    """Has it an operand without a graph, which may be data by its kind or shape?"""
    children = [(child, k) for child, k in node.next_functions if child is not None]
    if len(children) == len(node.next_functions):
        return False
    shape = output_shape(node)
    grows = all(torch.Size(shape).numel() > torch.Size(child._input_metadata[k].shape).numel() for child, k in children)
    counts_samples = len(shape) > batch_dim and shape[batch_dim] == B and B > 1
    return kind_of(node) in PRODUCTS or grows or counts_samples


def weigh(root: Root, edges: list[GradientEdge]) -> list[Tensor | None]:
    """dL/dV at these edges, the caller's own seeds included."""
    pairs = [(t, s) for t, s in zip(root.tensors, root.seeds, strict=True) if t.requires_grad]
    if len(pairs) == len(edges) == 1 and pairs[0][0].grad_fn is edges[0].node:
        return [pairs[0][1]]  # the root itself: nothing to compute, and no hook of the user to disturb
    gradients = torch.autograd.grad(
        [t for t, _ in pairs], edges, [s for _, s in pairs], retain_graph=True, allow_unused=True
    )
    return [None if f is None else f.detach() for f in gradients]


def weigh_linear(root: Root, ends: int, edges: list[GradientEdge]) -> list[Tensor | None]:
    """dL/dV at these edges through what is linear alone: without what reaches one of them through another of the first
    ``ends``, which are the nodes where linearity ends (``log_softmax`` below ``nll_loss``, both of them addends)."""
    weights = weigh(root, edges)
    nested = {k: find_nested(edges, k) for k in range(ends)}
    for k in sorted(nested, key=lambda k: sum(k in inner for inner in nested.values())):
        weight, inner = weights[k], nested[k]
        if weight is None or not inner:
            continue
        gradients = torch.autograd.grad(
            edges[k], [edges[j] for j in inner], weight, retain_graph=True, allow_unused=True
        )
        for j, passed in zip(inner, gradients, strict=True):
            before = weights[j]
            if passed is not None and before is not None:
                weights[j] = before - passed.detach()
    return weights


def find_nested(edges: list[GradientEdge], k: int) -> list[int]:
    """Which of the edges lie below edge k."""
    inside = set(below(edges[k].node))
    return [j for j, edge in enumerate(edges) if edge.node in inside and edge.node is not edges[k].node]


def shared_gradients(terms: list[Term], parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient of all that counts alike for every sample, by parameter: a part of what backward adds to ``p.grad``."""
    chosen = [t for t in terms if t.shared and t.weight is not None]
    if not chosen:
        return {}
    wanted = {name: p for name, p in parameters.items() if p.requires_grad}
    edges = [t.edge for t in chosen]
    gradients = torch.autograd.grad(
        edges, list(wanted.values()), [t.weight for t in chosen], retain_graph=True, allow_unused=True
    )
    return {name: g.detach() for name, g in zip(wanted, gradients, strict=True) if g is not None}


def is_loss_itself(root: Root, key: str, owner: Any) -> bool:
    """Is it the very tensor that the tracked loss module gave?"""
    (node, number), *others = roots_of(root)
    return not others and root.gradients[0] is None and marked(node, key, number) is owner


def covered_by_losses(root: Root, key: str, owner: Any) -> bool | None:
    """Is the root a sum of losses of the tracked loss module, with constant factors, and nothing else? None if it
    contains none."""
    present, other, seen, waiting = False, False, set(), roots_of(root)
    while waiting:
        node, number = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if marked(node, key, number) is owner:
            present = True
        elif is_sink(node) or (kind_of(node) in SCALED and is_linear(node)):
            waiting += children_of(node, number)
        else:
            other = True
    return (not other) if present else None
