"""From the scalar that the user differentiates to the losses of its samples, by its own graph.

Exact where every addend of the loss is known to belong to one sample, or to none: a penalty on parameters counts
equally for each, so that the mean over samples is the loss. Otherwise there are no individual losses, and the reason
names the line of code that would provide them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cockpit_core.curvature.autograd_graph import kind_of, output_shape
from cockpit_core.engine.loss.graph import Entries, Term, Terms, weigh_linear
from cockpit_core.engine.loss.individual import REMEDY, NoIndividualLosses
from cockpit_core.engine.loss.roots import Root
from cockpit_core.engine.loss.samples import (
    Boundary,
    add_by_number,
    add_by_shape,
    find_boundary,
    find_numbers,
    is_row_by_row,
    stays_apart,
)
from cockpit_core.engine.loss.terms import Unreadable

PRECISION = {torch.float64: 1e-8, torch.float32: 1e-4}


@dataclass(frozen=True)
class Given:
    """Individual losses that the user has handed over for one loss, which is a part of the root or all of it."""

    losses: Tensor
    value: Tensor


@dataclass
class Reading:
    """``losses``: per call of the model, [B] with that call's part of the loss as their mean. ``terms``: the addends."""

    losses: dict[int, Tensor] = field(default_factory=dict)
    reason: str = ""
    terms: list[Term] = field(default_factory=list)


class Verified:
    """Losses of the same shape were seen to keep their samples apart; asked again at the 2nd, 4th, 8th, ... time."""

    def __init__(self) -> None:
        self.seen: dict[tuple, int] = {}

    def is_due(self, key: tuple) -> bool:
        count = self.seen[key] = self.seen.get(key, 0) + 1
        return count.bit_count() == 1

    def forget(self, key: tuple) -> None:
        self.seen.pop(key, None)


def read_root(root: Root, parts: Terms, origin: tuple[int, int], batch_dim: int, verified: Verified) -> Reading:
    """``origin``: the call of the model that the loss belongs to, and its samples, as far as its graph does not tell."""
    reading = Reading(terms=parts.terms)
    try:
        ends = [t.edge for t in parts.terms] + [e for e, _ in parts.given] + parts.factors
        weights = weigh_linear(root, len(ends), ends + [e for _, e in parts.constants])
        for term, weight in zip(parts.terms, weights, strict=False):
            term.weight = weight
        if not origin[1]:
            raise NoIndividualLosses("the number of samples is not known: the model itself was not called")
        reading.losses = _Sum(root, origin, batch_dim, verified).add_all(parts, weights[len(parts.terms) :])
    except (NoIndividualLosses, Unreadable) as reason:
        text = str(reason)
        reading.reason = text if REMEDY in text else f"{text}; {REMEDY}"
    except RuntimeError as error:  # torch: a saved tensor was changed in place, a node gives out nothing
        reading.reason = f"the graph of the loss cannot be read ({str(error).splitlines()[0][:150]}); {REMEDY}"
    return reading


class _Sum:
    """Adds the terms up, per call of the model and sample, and at the end compares with the loss itself."""

    def __init__(self, root: Root, origin: tuple[int, int], batch_dim: int, verified: Verified):
        self.root, self.origin, self.batch_dim, self.verified = root, origin, batch_dim, verified
        self.parts: dict[int, Tensor] = {}  # [B] each, adding up to the loss
        self.shared, self.scale = 0.0, abs(root.value)
        self.precision = max(PRECISION.get(t.dtype, 3e-2) for t in root.tensors)

    def add_all(self, parts: Terms, rest: list[Tensor | None]) -> dict[int, Tensor]:
        for term in parts.terms:
            if term.weight is not None:
                self._add(term)
        for (_, given), weight in zip(parts.given, rest, strict=False):
            if weight is not None:
                self._add_given(given, weight)
        self._add_constants(parts.constants, rest[len(parts.given) + len(parts.factors) :])
        return self._finish()

    def _add(self, term: Term) -> None:
        entries = term.entries()
        self.precision = max(self.precision, PRECISION.get(entries.values.dtype, 3e-2))
        if term.shared:
            self.shared += float(entries.values.double().sum())
            self.scale += abs(self.shared)
            return
        boundary = find_boundary(term.edge.node, self.origin[1])
        sizes = {b.samples for b in boundary} or {self.origin[1]}
        if len(sizes) > 1:
            raise NoIndividualLosses("one part of the loss looks at batches of different sizes")
        forward, B = max((b.forward for b in boundary), default=self.origin[0]), sizes.pop()
        self._put(forward, self._assign(term, entries, B, boundary))
        self.scale += float(entries.values.abs().double().sum())

    def _assign(self, term: Term, entries: Entries, B: int, boundary: list[Boundary]) -> Tensor:
        """[B] sums, by shape where that is known to be right, else as the graph tells."""
        values, dim = entries.values, self.batch_dim
        if B == 1:
            return values.double().sum().reshape(1)
        shape = tuple(values.shape)
        key = (term.kind, shape, B, tuple((output_shape(b.edge.node), b.batch_dim, b.rows is None) for b in boundary))
        one_each = len(shape) > dim and shape[dim] == B
        if dim == 0 and is_row_by_row(term.edge.node, B, boundary):
            apart: bool | None = shape[:1] != () and shape[0] % B == 0
        elif one_each and not self.verified.is_due(key):
            apart = True
        else:
            apart = stays_apart(entries, B, dim, boundary)
        if apart or (apart is None and one_each):
            rows = add_by_shape(values, B, dim)
            assert rows is not None
            return rows
        self.verified.forget(key)
        if values.dim() == 0:
            raise NoIndividualLosses(
                f"the loss has a part ({term.kind}) that is one number for all {B} samples, and not a sum over them"
            )
        return add_by_number(values, find_numbers(entries, B, boundary) - 1, B)

    def _put(self, forward: int, sums: Tensor) -> None:
        self.parts[forward] = self.parts[forward] + sums if forward in self.parts else sums

    def _add_given(self, given: Given, weight: Tensor) -> None:
        from cockpit_core.engine.loss.handed_over import scale_losses

        B = self.origin[1]
        losses = scale_losses(given.losses, given.value, B)
        self._put(self.origin[0], losses.double() * weight.double() / B)
        self.precision = max(self.precision, PRECISION.get(given.value.dtype, 3e-2))

    def _left(self) -> float:
        return self.root.value - self.shared - sum(float(part.sum()) for part in self.parts.values())

    def _is_small(self, left: float) -> bool:
        return abs(left) <= self.precision * max(self.scale, 1e-30)

    def _add_constants(self, constants: list[tuple[Any, Any]], weights: list[Tensor | None]) -> None:
        """No graph shows what is added and does not depend on the network. The part of a divergence follows from its
        targets, a number that is the same for all entries from what is left; other constants of samples remain unknown."""
        unknown: list[tuple[Tensor, bool]] = []
        for (node, _), weight in zip(constants, weights, strict=True):
            if weight is None or weight.dim() == 0 or kind_of(node) not in ("Add", "Sub", "Rsub"):
                continue
            known = constant_of_divergence(node)
            rows = None if known is None else add_by_shape(weight * known, self.origin[1], self.batch_dim)
            if rows is None:
                unknown.append((weight, is_one_number(node)))
            else:
                self._put(self.origin[0], rows)
        if unknown and not (len(unknown) == 1 and self._add_number(*unknown[0])):
            raise NoIndividualLosses("a constant is added to the losses of the samples, and the graph does not keep it")

    def _add_number(self, weight: Tensor, is_one: bool) -> bool:
        """Was the same number added to each entry (``is_one``), or 1 or -1? Then what is left is that times the sum of the
        weights."""
        total, left = float(weight.double().sum()), self._left()
        if self._is_small(total) or not (is_one or self._is_small(abs(left) - abs(total))):
            return False
        rows = add_by_shape(weight.double() * (left / total), self.origin[1], self.batch_dim)
        if rows is not None:
            self._put(self.origin[0], rows)
        return rows is not None

    def _finish(self) -> dict[int, Tensor]:
        left = self._left()
        if not self._is_small(left) and torch.isfinite(torch.tensor(left)):
            raise NoIndividualLosses(
                f"the parts of the loss that are known add up to {self.root.value - left:.6g}, but it is {self.root.value:.6g}"
            )
        if not self.parts:
            self.parts[self.origin[0]] = torch.zeros(self.origin[1], dtype=torch.float64)
        samples = sum(len(part) for part in self.parts.values())
        if len({len(part) for part in self.parts.values()}) == 1:
            samples = len(next(iter(self.parts.values())))
            share = self.shared / len(self.parts)
            return {forward: part * samples + share for forward, part in self.parts.items()}
        return {f: part * len(part) + self.shared * len(part) / samples for f, part in self.parts.items()}


def is_one_number(node: Any) -> bool:
    """``2 - x``: a node of its own, for a number and not for a tensor."""
    return node.name() in ("RsubBackward1", "AddBackward1", "SubBackward1")


def constant_of_divergence(node: Any) -> Tensor | None:
    """``kl_div`` is ``t log t - t x``: the part that does not depend on the network, from the ``t`` of the other."""
    if kind_of(node) != "Sub" or len(node.next_functions) != 2 or node.next_functions[0][0] is not None:
        return None
    product = node.next_functions[1][0]
    if product is None or kind_of(product) != "Mul" or product.next_functions[0][0] is not None:
        return None
    target = getattr(product, "_saved_self", None)
    if not isinstance(target, Tensor) or tuple(target.shape) != output_shape(node):
        return None
    return torch.xlogy(target, target)
