"""The batch that the model sees: its scale, its outliers, whether it is the same again."""

from __future__ import annotations

import torch
from torch import Tensor

from cockpit_core.signals.tensors import as_rows

ENOUGH = 4  # samples, below which scales of features say nothing


def measure_inputs(x: Tensor) -> dict[str, float]:
    """Scale, feature scales, tail of sample lengths and constant features of a floating point input [B, ...].

    ``input_ratio`` is the largest root mean square of a feature over their median; ``input_tail`` is the length of the
    longest sample (after the mean is taken off) over the median length. Sparse inputs (one-hot, bags of words) have
    large ratios and mislead; ``input_zeros`` tells them apart.
    """
    rows = as_rows(x)
    finite = torch.isfinite(rows)
    good = torch.where(finite, rows, torch.zeros_like(rows))
    whole = torch.stack([good.square().mean().sqrt(), (good == 0).float().mean()])
    broken = (~finite).sum()
    found = dict(zip(("input_rms", "input_zeros"), whole.tolist(), strict=True))
    if bool(broken):
        found["input_not_finite"] = float(broken)
    if rows.shape[0] >= ENOUGH:
        found |= _compare(good)
    return found


def _compare(rows: Tensor) -> dict[str, float]:
    """Between features (columns) and between samples (rows)."""
    centre = rows.median(0).values
    spread = rows.sub(centre)
    scales = rows.square().mean(0).sqrt()
    lengths = spread.norm(dim=1)
    constant = (spread == 0).all(0)
    few = torch.stack([lengths.max(), lengths.median(), constant.float().mean()])
    longest, middle, share = few.tolist()
    found = {"input_constant": share}
    if middle > 0:
        found["input_tail"] = longest / middle
    live = scales[scales > 0]
    if rows.shape[1] > 1 and live.numel() > 1:
        top, typical = torch.stack([live.max(), live.median()]).tolist()
        found["input_ratio"] = top / typical
    return found


def measure_checksum(x: Tensor) -> dict[str, float]:
    """A number that is the same for the same batch in any order, and the share of samples that occur twice in it."""
    rows = as_rows(x, 8192) if x.is_floating_point() else as_rows(x.double() if x.numel() < 8192 else x, 8192)
    if not bool(torch.isfinite(rows).all()):
        return {}
    weights = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=torch.float64)
    marks = rows.double() @ (weights * 0.7548776662466927).frac()  # the plastic ratio: multiples spread evenly
    marks = torch.sort(marks).values
    found = {"batch_checksum": float(torch.frac(marks.sum() * 1e-3 + marks[0] * 0.137 + marks[-1] * 0.731))}
    if len(marks) > 1:
        found["batch_duplicates"] = float((marks[1:] == marks[:-1]).float().mean())
    return found
