"""What one use of a parameter contributes to the individual gradients, without storing them.

A contribution stands for ``g_n``, n = 1..B, of one parameter tensor from one call of one module. It can always form
``g_n`` for a few samples (``form``); where the structure allows, it answers without forming anything.
``scale`` is the factor B in ``g_n = B dL/dtheta^(n)``. It is applied here, once, in the gradient's own dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.kernels import AnyBins, Counts, ParameterBins, Spec, count_outer
from cockpit_core.kernels.native.comparing import MOST_COMPARED
from cockpit_core.kernels.native.dense import reduce_positions
from cockpit_core.kernels.native.outer import can_reduce_outer, reduce_outer
from cockpit_core.kernels.native.reducing import Reduced, can_reduce
from cockpit_core.layers import ways
from cockpit_core.layers.probe import Probe, spread_signs
from cockpit_core.layers.scratch import Scratch

SMALL = 2**12
"""Elements of a matrix below which the number of calls counts, not what they compute."""

NARROW = 32
"""Outputs of a layer so narrow that several directions are multiplied with together."""


class Contribution:
    """Individual gradients that are formed in blocks: ``make`` gives the unscaled ``[hi - lo, *shape]``.

    No ``ABC``: each step asks dozens of times of what kind one is, and an abstract class answers slowly."""

    makes_anew = False
    """What ``make`` gives is read by nobody else: it is scaled in place."""

    def __init__(self, samples: int, shape: torch.Size, scale: float):
        self.samples, self.shape, self.scale = samples, shape, scale

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        """Form the unscaled gradients of some samples; they may lie in ``scratch``, until it is used again."""
        raise NotImplementedError  # each kind of contribution has its own

    @property
    def floats_per_sample(self) -> int:
        """How many numbers forming one sample's gradient takes, working space included."""
        return self.shape.numel()

    def hold(self) -> None:
        """Stay right after the optimizer has moved the parameters: the step itself is projected on later."""

    def resolve(self) -> Contribution:
        """The gradient of its parameter has arrived, and with it whatever the contribution waited for."""
        return self

    def next_way(self) -> bool:
        """The result does not add up to the gradient: go another way, if there is one."""
        return False

    def form(self, lo: int, hi: int, scratch: Scratch | None = None) -> Tensor:
        """``g_n`` of some samples. With ``scratch`` they are overwritten by the next that are formed with it."""
        return self.scaled(self.make(lo, hi, Scratch() if scratch is None else scratch))

    def scaled(self, formed: Tensor) -> Tensor:
        """``g_n`` of what ``make`` has given, which may be overwritten."""
        if self.scale == 1:
            return formed
        return formed.mul_(self.scale) if self.makes_anew else formed * self.scale

    def norms(self) -> Tensor | None:
        """``||g_n||^2`` [B] if that is cheaper than forming the gradients, else None."""
        return None

    def project(self, direction: Tensor) -> Tensor | None:
        """``g_n . V`` [B] if that is cheaper than forming the gradients, else None."""
        return None

    def project_each(self, directions: list[Tensor]) -> list[Tensor] | None:
        """``g_n . V`` [B] for several V, if that is cheaper than one by one, else None."""
        return None

    def project_on_mean(self) -> tuple[Tensor, Probe] | None:
        """``g_n . mean_m g_m`` [B] without the mean, if that is cheaper than projecting on it; and something that tells
        whether the mean is what it is taken for."""
        return None

    def squares(self) -> Tensor | None:
        """``sum_n g_n^2`` [*shape] if that is cheaper than forming the gradients, else None."""
        return None

    def reduce(self, directions: list[Tensor], bins: AnyBins | None, compared: int = 0) -> Reduced | None:
        """``||g_n||^2``, ``g_n . V`` for each direction and, where there are bins, counts, all in one pass that stores no
        gradients; None if forming them is cheaper. Where it ``compares``, it may give that in the same pass."""
        return None

    def reduce_at_once(self, directions: list[Tensor], bins: AnyBins | None) -> Reduced | None:
        """The same where each of these has a way of its own, if one pass for all of them is cheaper."""
        return None

    def compares(self, samples: int) -> bool:
        """Does ``compare`` know a way for so many samples?"""
        return False

    def compare(self, samples: int) -> Tensor:
        """``g_n . g_m`` [samples, samples] of the first samples in float64, without gradients that are formed for it."""
        raise NotImplementedError  # asked only where ``compares`` says so

    def count(self, parameter: ParameterBins | None, spec: Spec, into: Counts) -> bool:
        """Add all elements to the histograms if that needs no formed gradients; False if it does."""
        return False


class Rows(Contribution):
    """Individual gradients that are small enough to be there already: ``rows`` is [B, *shape], unscaled."""

    def __init__(self, rows: Tensor, shape: torch.Size, scale: float):
        self.rows = rows
        super().__init__(rows.shape[0], shape, scale)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        rows = self.rows if lo == 0 and hi == self.samples else self.rows[lo:hi]
        return rows if rows.shape[1:] == self.shape else rows.reshape(hi - lo, *self.shape)


class Outer(Contribution):
    """``g_n = b_n a_n^T``: one position per sample. Nothing of size [B, out, in] ever exists.

    ``||g_n||^2 = ||a_n||^2 ||b_n||^2``, ``sum_n g_n^2 = (b^2)^T (a^2)``, ``g_n . V = b_n^T V a_n``.
    """

    def __init__(self, b: Tensor, a: Tensor, shape: torch.Size, scale: float):
        self.b, self.a = (b * scale if scale != 1 else b), a
        super().__init__(b.shape[0], shape, 1.0)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return (self.b[lo:hi, :, None] * self.a[lo:hi, None, :]).reshape(hi - lo, *self.shape)

    def norms(self) -> Tensor:
        if can_reduce_outer(self.b, self.a, []):
            return reduce_outer(self.b, self.a, [], None).norms
        return (torch.linalg.vector_norm(self.b, dim=1) * torch.linalg.vector_norm(self.a, dim=1)).square_()

    def project(self, direction: Tensor) -> Tensor:
        shape = (self.b.shape[1], self.a.shape[1])  # [out, in]
        V = direction if direction.shape == shape else direction.reshape(shape)
        if shape[0] < shape[1] and V.numel() > SMALL:
            return ((self.a @ V.T) * self.b).sum(1)
        return ((self.b @ V) * self.a).sum(1)

    def project_each(self, directions: list[Tensor]) -> list[Tensor] | None:
        """Of a layer with few outputs: a product with all of them takes little longer than one with one."""
        shape, dtype = (self.b.shape[1], self.a.shape[1]), self.b.dtype
        if not shape[0] <= NARROW or shape[0] >= shape[1] or any(V.dtype != dtype for V in directions):
            return None
        rows = torch.cat([V if V.shape == shape else V.reshape(shape) for V in directions])  # [k out, in]
        along = torch.mm(rows, self.a.T).view(len(directions), shape[0], self.samples)
        return list(along.mul_(self.b.T).sum(1).unbind())

    def reduce_at_once(self, directions: list[Tensor], bins: AnyBins | None) -> Reduced | None:
        """Of a layer with few outputs, likewise."""
        narrow = self.b.shape[1] <= NARROW and self.b.shape[1] < self.a.shape[1]
        if not narrow or not can_reduce_outer(self.b, self.a, directions):
            return None
        return reduce_outer(self.b, self.a, directions, bins)

    def project_on_mean(self) -> tuple[Tensor, Probe] | None:
        """``g_n . g_m = (a_n . a_m) (b_n . b_m)``, and ``u^T g_n v``."""
        if not ways.takes_pairs(self.samples, self.a.shape[1], self.b.shape[1]):
            return None
        pairs = torch.mm(self.a, self.a.T).mul_(torch.mm(self.b, self.b.T))
        left, right = spread_signs(self.b.shape[1], self.b.dtype), spread_signs(self.a.shape[1], self.a.dtype)
        seen = torch.mv(self.b, left).mul_(torch.mv(self.a, right))
        return pairs.sum(1, dtype=torch.float64).div_(self.samples), Probe(left, right, seen)

    def squares(self) -> Tensor:
        return (self.b.square().T @ self.a.square()).reshape(self.shape)

    def count(self, parameter: ParameterBins | None, spec: Spec, into: Counts) -> bool:
        count_outer(self.b, self.a, parameter, spec, into)
        return True


class Positions(Contribution):
    """``g_n = sum_s b_{n,s} a_{n,s}^T`` with many positions s: tokens of a Linear.

    ``b`` is [B, S, out], ``a`` is [B, S, in]. ``||g_n||^2 = <A_n A_n^T, B_n B_n^T>`` where ``ways`` says so.
    """

    makes_anew = True

    def __init__(self, b: Tensor, a: Tensor, shape: torch.Size, scale: float):
        self.b, self.a = b, a
        super().__init__(b.shape[0], shape, scale)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        formed = scratch.take("gradients", (hi - lo, self.b.shape[2], self.a.shape[2]), self.b)
        return torch.bmm(self.b[lo:hi].transpose(1, 2), self.a[lo:hi], out=formed).view(hi - lo, *self.shape)

    def norms(self) -> Tensor | None:
        if not ways.takes_gram(self.a.shape[1], self.a.shape[2], self.b.shape[2], has_kernel=can_reduce(self.b, 1)):
            return None
        block = max(1, 2**20 // self.a.shape[1] ** 2)  # a few MB of Gram matrices at a time
        parts = []
        for lo in range(0, self.samples, block):
            A, B = self.a[lo : lo + block], self.b[lo : lo + block]
            parts.append((torch.bmm(A, A.transpose(1, 2)) * torch.bmm(B, B.transpose(1, 2))).sum((1, 2)))
        return torch.cat(parts) * self.scale**2

    def _has_kernel(self, directions: int = 0) -> bool:
        return can_reduce(self.b, directions) and self.a.dtype == self.b.dtype and ways.fits(self.a, self.b)

    def reduce(self, directions: list[Tensor], bins: AnyBins | None, compared: int = 0) -> Reduced | None:
        if not self._has_kernel(len(directions)):
            return None
        return reduce_positions(self.b, self.a, self.scale, directions, bins, compared)

    def compares(self, samples: int) -> bool:
        return samples <= MOST_COMPARED and self._has_kernel()

    def compare(self, samples: int) -> Tensor:
        reduced = reduce_positions(self.b[:samples], self.a[:samples], self.scale, [], None, samples)
        assert reduced.gram is not None
        return reduced.gram

    def project(self, direction: Tensor) -> Tensor:
        V = direction.reshape(self.b.shape[2], self.a.shape[2])  # [out, in]
        if V.shape[0] <= V.shape[1]:
            return ((self.a @ V.T) * self.b).sum((1, 2)) * self.scale
        return ((self.b @ V) * self.a).sum((1, 2)) * self.scale


class Summed(Contribution):
    """A parameter used several times: all uses of sample n count into ``g_n``, before anything is squared."""

    def __init__(self, parts: list[Contribution]):
        self.parts = parts
        super().__init__(parts[0].samples, parts[0].shape, 1.0)

    @property
    def floats_per_sample(self) -> int:
        return max(part.floats_per_sample for part in self.parts) + self.shape.numel()

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        total = self.parts[0].form(lo, hi)
        for part in self.parts[1:]:
            total = total + part.form(lo, hi)
        return total

    def hold(self) -> None:
        for part in self.parts:
            part.hold()

    def next_way(self) -> bool:
        moved = [part.next_way() for part in self.parts]
        return any(moved)

    def project(self, direction: Tensor) -> Tensor | None:
        projections = [part.project(direction) for part in self.parts]
        if any(projection is None for projection in projections):
            return None
        return torch.stack(projections).sum(0)  # type: ignore[arg-type]


class Zeros(Contribution):
    """A parameter that these samples have not used, though others did."""

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return torch.zeros(hi - lo, *self.shape, dtype=torch.float64)


class Same(Contribution):
    """A gradient that is the same for every sample: that of a penalty on the parameters. ``row`` is unscaled."""

    def __init__(self, row: Tensor, samples: int, scale: float):
        self.row = row
        super().__init__(samples, row.shape, scale)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return self.row.expand(hi - lo, *self.shape)

    def norms(self) -> Tensor:
        return (self.row.double().square().sum() * self.scale**2).expand(self.samples)

    def project(self, direction: Tensor) -> Tensor:
        dot = torch.linalg.vecdot(self.row.reshape(-1).double(), direction.reshape(-1).double())
        return (dot * self.scale).to(direction.dtype).expand(self.samples)


class Joined(Contribution):
    """Samples of several calls of the model, side by side: batches of different sizes in one backward pass."""

    def __init__(self, parts: list[Contribution]):
        self.parts = parts
        super().__init__(sum(part.samples for part in parts), parts[0].shape, 1.0)

    @property
    def floats_per_sample(self) -> int:
        return max(part.floats_per_sample for part in self.parts)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        rows, start = [], 0
        for part in self.parts:
            first, last = max(lo - start, 0), min(hi - start, part.samples)
            if first < last:
                rows.append(part.form(first, last))
            start += part.samples
        wide = max((row.dtype for row in rows if row.numel()), key=lambda dtype: torch.finfo(dtype).bits)
        return torch.cat([row.to(wide) for row in rows])

    def hold(self) -> None:
        for part in self.parts:
            part.hold()

    def next_way(self) -> bool:
        moved = [part.next_way() for part in self.parts]
        return any(moved)

    def norms(self) -> Tensor | None:
        norms = [part.norms() for part in self.parts]
        return None if any(norm is None for norm in norms) else torch.cat(norms)  # type: ignore[arg-type]

    def project(self, direction: Tensor) -> Tensor | None:
        projections = [part.project(direction) for part in self.parts]
        return None if any(f is None for f in projections) else torch.cat(projections)  # type: ignore[arg-type]


class Stacked(Contribution):
    """Blocks of rows with contributions of their own: the three projections that attention keeps in one matrix."""

    def __init__(self, parts: list[Contribution], shape: torch.Size):
        self.parts = parts
        super().__init__(parts[0].samples, shape, 1.0)

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        return torch.cat([part.form(lo, hi) for part in self.parts], 1)

    def norms(self) -> Tensor | None:
        norms = [part.norms() for part in self.parts]
        return None if any(norm is None for norm in norms) else torch.stack(norms).sum(0)  # type: ignore[arg-type]

    def project(self, direction: Tensor) -> Tensor | None:
        pieces = direction.reshape(self.shape).split([part.shape[0] for part in self.parts])
        projections = [part.project(piece) for part, piece in zip(self.parts, pieces, strict=True)]
        return None if any(f is None for f in projections) else torch.stack(projections).sum(0)  # type: ignore[arg-type]
