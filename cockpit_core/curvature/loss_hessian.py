"""The Hessian of the loss with respect to the network's outputs, as a sum of (signed) squares of columns.

The form is found from the loss itself, by its products with a random vector, not from the name of a loss module: so
class weights, ``ignore_index``, label smoothing, any reduction and losses written by the user are all right, and a loss
that couples samples is noticed and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cockpit_core.foundation.accelerator import read_numbers

from .operators import differentiable_gradient, gradient_of_one
from .point import NoCurvature, Point
from .tokens import read_tokens

_FEW_CLASSES = 6
_MAX_DENSE = 256  # outputs per sample up to which a general Hessian is formed and decomposed, [B, K, K]


@dataclass(frozen=True)
class Seeds:
    """Columns [V, *outputs.shape] to be propagated back; ``signs`` [V, B], or None if all count positively."""

    columns: Tensor
    signs: Tensor | None = None


@dataclass(frozen=True)
class Attempt:
    """A form that the Hessian may have. ``asked``: whether it has a negative part, and how far it is from the truth
    (once or twice). ``keep`` it if it is close. Of a form that is out of the question nothing is asked."""

    asked: list[Tensor]
    keep: Callable[[bool], None]

    def take(self, numbers: Sequence[float], dtype: torch.dtype) -> bool:
        parts = [numbers[k : k + 3] for k in range(1, len(numbers), 3)]
        if not parts or not all(is_close(*part, dtype=dtype) for part in parts):
            return False
        self.keep(bool(numbers[0]))
        return True


def distances(product: Tensor, image: Tensor, rounding: Tensor | None) -> list[Tensor]:
    """Numbers for ``is_close``. rounding: the sizes that are subtracted from each other in ``image``. Where little is
    left of them, what is left is rounding."""
    lost = image.new_zeros(()) if rounding is None else rounding.norm()
    return [(product - image).norm(), image.norm(), lost]


def is_close(difference: float, size: float, lost: float, *, dtype: torch.dtype) -> bool:
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    return difference <= tolerance * size + 8 * torch.finfo(dtype).eps * lost


def check_same(ours: float, theirs: float, dtype: torch.dtype) -> None:
    """A loss with further terms, or with another scale, must not be taken for the one that is differentiated."""
    tolerance = 1e-3 if dtype in (torch.float32, torch.float64) else 2e-2
    if not abs(ours - theirs) <= tolerance * max(abs(ours), abs(theirs)):
        raise NoCurvature("the loss is not the given function of the outputs alone")


class LossHessian:
    """``d^2 loss / d outputs^2 = sum_v signs_v columns_v columns_v^T``, block-diagonal over samples.

    count: columns needed per sample. Forms: "zero", "softmax" (rank C - 1 at each position), "diagonal", "dense";
    "tokens": a softmax over so many classes that columns are only drawn, one at a time (tokens.py).
    """

    def __init__(self, point: Point):
        if point.outputs is None or point.loss_of is None:
            raise NoCurvature("needs a loss that is a function of the model's outputs alone")
        self._tokens = read_tokens(point)
        if self._tokens is not None:
            self.form, self.count, self.batch_size = "tokens", self._tokens.count, point.batch_size
            return
        outputs = point.outputs.detach().clone()  # the user's loss may write into what it is given
        self._apart = outputs.dim() > 0 and outputs.shape[0] % point.batch_size == 0
        if outputs.numel() == 0 or (point.samples_first and not self._apart):
            raise NoCurvature("the outputs do not have the samples along their first dimension")
        if outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        self.shape, self.batch_size = outputs.shape, point.batch_size
        self._own_shape = outputs.shape
        self._leaf = outputs.requires_grad_()
        with torch.enable_grad():
            loss = point.loss_of(self._leaf)
            self._slope = differentiable_gradient(loss, [self._leaf])
        self.form, self.count, self._has_negative = "", 0, True
        self._recognise(loss, point.loss)
        self._slope = []

    def _product(self, vector: Tensor) -> Tensor:
        return gradient_of_one(self._slope, self._leaf, [vector.reshape(self._own_shape)]).reshape(self.shape)

    def _recognise(self, loss: Tensor, given: Tensor) -> None:
        """The usual forms are tried at once, and judged by numbers that are waited for together."""
        generator = torch.Generator().manual_seed(2021)  # of its own: the form must not depend on the run
        dtype = self._leaf.dtype
        probes = [torch.randn(self.shape, generator=generator, dtype=dtype).to(self._leaf.device) for _ in range(2)]
        images = [self._product(v) for v in probes]
        asked = [part for i in images for part in (torch.isfinite(i).all(), i.any())]
        tried = [self._try_softmax(probes, images), self._try_diagonal(probes, images)]
        sizes = [len(attempt.asked) for attempt in tried]
        numbers = iter(read_numbers([loss, given, *asked, *(n for attempt in tried for n in attempt.asked)]))
        check_same(next(numbers), next(numbers), given.dtype)
        first_finite, first_any, second_finite, second_any = (next(numbers) for _ in asked)
        softmax, diagonal = ([next(numbers) for _ in range(size)] for size in sizes)
        if not (first_finite and second_finite):
            raise NoCurvature("the loss is not finite at this step")
        if not (first_any or second_any):
            self.form, self.count = "zero", 0
        elif not (
            tried[0].take(softmax, dtype) or self._try_classes_last(probes, images) or tried[1].take(diagonal, dtype)
        ):
            self._decompose(probes[0], images[0])

    def _try_softmax(self, probes: list[Tensor], images: list[Tensor]) -> Attempt:
        """Cross entropy in all its variants: ``c (diag(p) - p p^T)`` over dimension 1, c per sample and position."""
        if len(self.shape) < 2 or self.shape[1] < 2:
            return Attempt([], lambda negative: None)
        p = self._leaf.detach().reshape(self.shape).softmax(1)
        top = torch.zeros_like(p).scatter_(1, p.argmax(1, keepdim=True), 1.0)
        # Away from the top class ``c (diag(p) - p p^T) e_top`` has no cancellation, however sure the network is.
        there = (self._product(top) * (1 - top)).sum(1, keepdim=True)
        expected = (-p * (1 - top) * (p * top).sum(1, keepdim=True)).sum(1, keepdim=True)
        scale = torch.where(expected < 0, there / expected.clamp_max(-torch.finfo(p.dtype).tiny), 0.0)
        directions = [p * (v - (p * v).sum(1, keepdim=True)) for v in probes]
        asked = [distances(scale * d, i, scale * p * v) for d, i, v in zip(directions, images, probes, strict=True)]
        shape = self.shape

        def keep(negative: bool) -> None:
            self.shape, self._root, self._scale, self._has_negative = shape, p.sqrt(), scale, negative
            self.form, self.count = "softmax", (shape[1] - 1) * (self._per_sample // shape[1])

        return Attempt([(scale < 0).any(), *asked[0], *asked[1]], keep)

    def _try_classes_last(self, probes: list[Tensor], images: list[Tensor]) -> bool:
        """Tokens: [B, T, C] is [B T, C], the T rows of a sample one after the other."""
        if len(self.shape) < 3 or not self._apart or self._own_shape[0] != self.batch_size:
            return False
        self.shape = torch.Size((-1, self._own_shape[-1]))
        flat = [[t.reshape(self.shape) for t in some] for some in (probes, images)]
        self.shape = flat[0][0].shape
        attempt = self._try_softmax(*flat)
        if attempt.take(read_numbers(attempt.asked), self._leaf.dtype):
            return True
        self.shape = self._own_shape
        return False

    @property
    def _per_sample(self) -> int:
        return self._leaf.numel() // self.batch_size

    def _try_diagonal(self, probes: list[Tensor], images: list[Tensor]) -> Attempt:
        """Losses that treat each output by itself: squared error, binary cross entropy, Huber."""
        diagonal = images[0] / probes[0]

        def keep(negative: bool) -> None:
            self._diagonal, self._has_negative = diagonal, negative
            self.form, self.count = "diagonal", self._per_sample

        return Attempt([(diagonal < 0).any(), *distances(diagonal * probes[1], images[1], None)], keep)

    def _decompose(self, probe: Tensor, image: Tensor) -> None:
        size = self._per_sample
        if size > _MAX_DENSE or not self._apart:
            raise NoCurvature(f"the loss couples {size} outputs of a sample")
        units = torch.eye(size).to(self._leaf).unsqueeze(1).expand(size, self.batch_size, size)
        rows = [self._product(unit.reshape(self.shape)).reshape(self.batch_size, size) for unit in units]
        blocks = torch.stack(rows, 1)  # [B, K, K]
        product = (blocks @ probe.reshape(self.batch_size, size, 1)).reshape(self.shape)
        if not is_close(*read_numbers(distances(product, image, None)), dtype=image.dtype):
            raise NoCurvature("the loss couples the samples of the batch")
        values, vectors = torch.linalg.eigh((blocks + blocks.mT) / 2)
        kept = values.abs() > 1e-7 * values.abs().max()
        order = kept.any(0)
        self._values, self._vectors = values[:, order], vectors[:, :, order]
        self.form, self.count = "dense", int(order.sum())

    def seeds(self, chunk: int) -> Iterator[Seeds]:
        """All columns, ``chunk`` at a time."""
        if self._tokens is not None:
            raise NoCurvature(f"the loss of so many classes takes {self.count} columns")
        for begin in range(0, self.count, chunk):
            yield self._columns(torch.arange(begin, min(begin + chunk, self.count), device=self._leaf.device))

    def _columns(self, numbers: Tensor) -> Seeds:
        if self.form == "softmax":
            columns, negative = self._softmax_columns(numbers)
        elif self.form == "diagonal":
            columns, negative = self._diagonal_columns(numbers)
        else:
            values = self._values[:, numbers]  # [B, V]
            columns = (self._vectors[:, :, numbers] * values.abs().sqrt().unsqueeze(1)).permute(2, 0, 1)
            negative = (values < 0).T
        columns = columns.reshape(-1, *self._own_shape)
        signed = self._has_negative and bool(negative.any())
        return Seeds(columns, 1.0 - 2.0 * negative.to(columns) if signed else None)

    def _softmax_columns(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """``sqrt(c p) * (e_k - u_k / (1 + u_C) (u + e_C))`` with u = sqrt(p): an orthonormal basis of the complement
        of u, by one Householder reflection, so that C - 1 columns suffice.
        """
        classes, batch = self.shape[1], self.batch_size
        rows = self.shape[0] // batch  # rows of dimension 0 that belong to one sample
        places = self._per_sample // (classes * rows)  # positions behind the class dimension
        k, place = numbers % (classes - 1), numbers // (classes - 1)
        row, rest, each = place // places, place % places, torch.arange(len(numbers), device=numbers.device)
        u = self._root.reshape(batch, rows, classes, places)[:, row, :, rest]  # [V, B, C]
        ratio = u[each, :, k] / (1 + u[each, :, -1])  # [V, B]
        basis = -ratio.unsqueeze(-1) * u
        basis[..., -1] -= ratio
        basis[each, :, k] += 1.0
        scale = self._scale.reshape(batch, rows, places)[:, row, rest].T  # [V, B]
        columns = u.new_zeros(len(numbers), batch, rows, classes, places)
        columns[each, :, row, :, rest] = u * basis * scale.abs().sqrt().unsqueeze(-1)
        return columns, scale < 0

    def _diagonal_columns(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        diagonal = self._diagonal.reshape(self.batch_size, -1)[:, numbers].T  # [V, B]
        columns = torch.zeros(len(numbers), self.batch_size, self._per_sample).to(diagonal)
        columns[torch.arange(len(numbers)), :, numbers] = diagonal.abs().sqrt()
        return columns, diagonal < 0

    @property
    def _constant(self) -> bool:
        """Are the columns that are the same at all positions of a sample treated separately? Yes for few classes and
        many positions."""
        classes = self.shape[1] if self.form == "softmax" else 0
        return 0 < classes <= _FEW_CLASSES and self._per_sample > _FEW_CLASSES * classes

    def constant_seeds(self, chunk: int) -> Iterator[Seeds]:
        """``S eps_c`` with eps_c of length 1, the same at all positions for class c and zero for the others."""
        if not self._constant:
            return
        classes, u = self.shape[1], self._root
        weight = (self._per_sample // classes) ** -0.5
        for numbers in torch.arange(classes, device=u.device).split(chunk):
            eps = torch.zeros(len(numbers), *self.shape).to(u)
            eps[torch.arange(len(numbers)), :, numbers] = weight
            columns = u * (eps - u * (u * eps).sum(2, keepdim=True)) * self._scale.abs().sqrt()
            if self._has_negative:
                raise NoCurvature("the loss is not convex in the outputs: Monte-Carlo Gauss-Newton is not defined")
            yield Seeds(columns.reshape(-1, *self._own_shape))

    def _centre(self, signs: Tensor) -> Tensor:
        """Without their mean over the positions of a sample, [count, *shape]."""
        classes, batch = self.shape[1], self.batch_size
        apart = signs.reshape(len(signs), batch, self.shape[0] // batch, classes, -1)
        return (apart - apart.mean((2, 4), keepdim=True)).reshape(signs.shape)

    def draw(self, count: int, generator: torch.Generator, centred: bool = False) -> Seeds:
        """Columns S eps with random signs eps: ``E[column column^T]`` is the whole Hessian of a sample.

        The signs are drawn from ``generator`` alone. Only for losses whose Hessian has no negative part.
        centred: without the part that ``constant_seeds`` cover.
        """
        if self._tokens is not None:
            if count == 1:
                return Seeds(self._tokens.draw(generator).unsqueeze(0))
            return Seeds(torch.stack([self._tokens.draw(generator) for _ in range(count)]))
        if self.form == "softmax":
            signs = self._signs((count, *self.shape), generator)
            signs = self._centre(signs) if centred and self._constant else signs
            u = self._root
            drawn = u * (signs - u * (u * signs).sum(2, keepdim=True)) * self._scale.abs().sqrt()
            negative = self._scale < 0
        elif self.form == "diagonal":
            drawn = self._signs((count, *self.shape), generator) * self._diagonal.abs().sqrt()
            negative = self._diagonal < 0
        elif self.form == "dense":
            signs = self._signs((count, self.batch_size, 1, self.count), generator)
            drawn = (signs * self._vectors * self._values.abs().sqrt().unsqueeze(1)).sum(-1).reshape(count, *self.shape)
            negative = self._values < 0
        else:
            drawn, negative = torch.zeros(count, *self.shape).to(self._leaf.detach()), torch.zeros(1)
        if self._has_negative and bool(negative.any()):
            raise NoCurvature("the loss is not convex in the outputs: Monte-Carlo Gauss-Newton is not defined")
        return Seeds(drawn.reshape(count, *self._own_shape))

    def _signs(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        drawn = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        return (2 * drawn - 1).to(self._leaf.detach())
