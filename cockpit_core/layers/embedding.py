"""Embedding and EmbeddingBag: only the rows that a sample looked up have a gradient; the others are never formed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cockpit_core.kernels import Counts, ParameterBins, Spec, count_values
from cockpit_core.layers.contribution import Contribution
from cockpit_core.layers.registry import Call, NotCovered, match_dtype, rule, samples_first
from cockpit_core.layers.scratch import Scratch


class Lookups(Contribution):
    """``g_n[v] = sum_{s: index_{n,s} = v} b_{n,s}``; ``index`` is [B, S], ``b`` is [B, S, E].

    Everything is computed on the pairs (sample, row) that occur, U of them, at most B * S.
    """

    def __init__(self, index: Tensor, b: Tensor, shape: torch.Size, scale: float):
        self.index, self.b = index, b
        super().__init__(len(index), shape, scale)
        self._touched: tuple[Tensor, Tensor, Tensor] | None = None

    def touched(self) -> tuple[Tensor, Tensor, Tensor]:
        """Sample [U], row [U] and summed gradient [U, E] of each pair that occurs, scaled."""
        if self._touched is None:
            sample = torch.arange(self.samples, device=self.index.device)[:, None].expand_as(self.index)
            keys, slot = torch.unique(sample * self.shape[0] + self.index, return_inverse=True)
            sums = self.b.new_zeros(len(keys), self.shape[1])
            sums.index_add_(0, slot.flatten(), self.b.reshape(-1, self.shape[1]))
            self._touched = keys // self.shape[0], keys % self.shape[0], sums * self.scale
        return self._touched

    def make(self, lo: int, hi: int, scratch: Scratch) -> Tensor:
        dense = self.b.new_zeros(hi - lo, *self.shape)
        sample = torch.arange(hi - lo, device=self.index.device)[:, None].expand_as(self.index[lo:hi])
        dense.index_put_((sample, self.index[lo:hi]), self.b[lo:hi], accumulate=True)
        return dense

    def norms(self) -> Tensor:
        sample, _, sums = self.touched()
        return sums.new_zeros(self.samples).index_add_(0, sample, sums.square().sum(1))

    def project(self, direction: Tensor) -> Tensor:
        return (self.b * direction[self.index]).sum((1, 2)) * self.scale

    def squares(self) -> Tensor:
        _, row, sums = self.touched()
        return sums.new_zeros(self.shape).index_add_(0, row, sums.square())

    def count(self, parameter: ParameterBins | None, spec: Spec, into: Counts) -> bool:
        """The U touched rows one by one; all other elements are zeros, which are added in one go."""
        _, row, sums = self.touched()
        rows, columns = self.shape
        zeros = self.samples * rows * columns - sums.numel()
        if into.table1d is not None and spec.gradient is not None:
            count_values(
                sums,
                None,
                Spec(gradient=spec.gradient),
                only := Counts.zeros(Spec(gradient=spec.gradient), sums.device),
            )
            into.table1d.add_(only.table1d)  # type: ignore[arg-type]
            into.table1d[spec.gradient.category(0.0)] += zeros
        if into.table2d is not None and spec.joint is not None and parameter is not None:
            self.count_joint(parameter, spec, into, row, sums)
        into.touch()
        return True

    def count_joint(self, parameter: ParameterBins, spec: Spec, into: Counts, row: Tensor, sums: Tensor) -> None:
        assert spec.joint is not None and into.table2d is not None
        categories = parameter.categories.reshape(self.shape)
        width, zero = into.table2d.shape[1], spec.joint[0].category(0.0)
        flat = categories[row].long()  # [U, E]
        touched = ParameterBins(categories[row].reshape(-1), tuple(sums.shape), parameter.count)
        only = Counts.zeros(Spec(joint=spec.joint), sums.device)
        count_values(sums[None], touched, Spec(joint=spec.joint), only)
        into.table2d.add_(only.table2d)  # type: ignore[arg-type]
        everywhere = torch.bincount(parameter.categories.long(), minlength=width) * self.samples
        into.table2d[zero] += everywhere - torch.bincount(flat.reshape(-1), minlength=width)


@rule(nn.Embedding)
def embedding(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    module: nn.Embedding = call.module  # type: ignore[assignment]
    weight, B = module.weight, call.batch_size
    index = samples_first(call.input, call, 0).reshape(B, -1)  # [B, S]
    b = match_dtype(samples_first(b, call, 1), weight).reshape(B, index.shape[1], -1)  # [B, S, E]
    if module.padding_idx is not None:
        b = b * (index != module.padding_idx)[..., None]
    if module.scale_grad_by_freq:
        b = b / torch.bincount(call.input.flatten(), minlength=weight.shape[0])[index][..., None]
    return {"weight": Lookups(index, b, weight.shape, scale)}


@rule(nn.EmbeddingBag)
def embedding_bag(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """Each bag is one position: ``sum`` hands its gradient to every member, ``mean`` divides by their number."""
    module: nn.EmbeddingBag = call.module  # type: ignore[assignment]
    if module.mode == "max" or module.scale_grad_by_freq:
        raise NotCovered("EmbeddingBag with mode='max' or scale_grad_by_freq has no rule; use mode='sum' or 'mean'")
    weight, index = module.weight, call.input
    given = dict(zip(("input", "offsets", "per_sample_weights"), call.inputs, strict=False)) | call.kwargs
    if index.dim() != 2:
        index, spread = bags_by_offset(module, given, b)
        return {"weight": group_bags(index, spread, call, scale)}
    counts = torch.ones_like(index, dtype=b.dtype)
    if module.padding_idx is not None:
        counts = counts * (index != module.padding_idx)
    shares = counts if given.get("per_sample_weights") is None else counts * given["per_sample_weights"]
    if module.mode == "mean":
        shares = shares / counts.sum(1, keepdim=True).clamp(min=1)
    spread = match_dtype(b[:, None, :] * shares[..., None], weight)
    return {"weight": group_bags(index, spread, call, scale)}


def group_bags(index: Tensor, spread: Tensor, call: Call, scale: float) -> Contribution:
    """From [bags, S] to the bags of each sample: one, or several (a bag for each feature of the sample)."""
    index, spread = samples_first(index, call, 1), samples_first(spread, call, 2)
    if index.dim() == 3:
        index, spread = index.flatten(1), spread.flatten(1, 2)
    return Lookups(index, spread, call.module.weight.shape, scale)  # type: ignore[arg-type]


def bags_by_offset(module: nn.EmbeddingBag, given: dict[str, Tensor], b: Tensor) -> tuple[Tensor, Tensor]:
    """Flat indices with offsets: pad the bags to the longest, padded places with zero gradient."""
    flat, offsets = given["input"], given["offsets"]
    ends = offsets[1:] if module.include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(flat)])])
    starts = offsets[:-1] if module.include_last_offset else offsets
    sizes = ends - starts
    place = torch.arange(int(sizes.max()) if len(sizes) else 0, device=flat.device)[None, :]
    inside = place < sizes[:, None]
    source = (starts[:, None] + place).clamp(max=max(len(flat) - 1, 0))
    index = flat[source]
    counts = inside.to(b.dtype)
    if module.padding_idx is not None:
        counts = counts * (index != module.padding_idx)
    weights = given.get("per_sample_weights")
    shares = counts if weights is None else counts * weights[source]
    if module.mode == "mean":
        shares = shares / counts.sum(1, keepdim=True).clamp(min=1)
    return index, match_dtype(b[:, None, :] * shares[..., None], module.weight)
