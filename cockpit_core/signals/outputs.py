"""What the loss gets from the network: range, sums of rows and columns, shapes, whether it depends on the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cockpit_core.signals.tensors import as_rows

CLASSES_LAST = 1  # cross-entropy counts classes by dimension 1


def measure_outputs(z: Tensor) -> dict[str, float]:
    """``output_spread``: root mean square over units of the standard deviation over samples."""
    rows = as_rows(z)
    finite = torch.isfinite(rows)
    good = torch.where(finite, rows, torch.zeros_like(rows))
    numbers = torch.stack([good.min(), good.max(), good.square().mean().sqrt(), (~finite).sum().float()]).tolist()
    found = dict(zip(("output_min", "output_max", "output_rms", "output_not_finite"), numbers, strict=True))
    if not found["output_not_finite"]:
        del found["output_not_finite"]
    if rows.shape[0] >= 4:
        found["output_spread"] = float(good.var(0, correction=0).mean().sqrt())
    return found


def measure_sums(z: Tensor, logs: bool = True) -> dict[str, float]:
    """How far rows and columns of scores [B, C, ...] are from adding up to one: largest distance. Zero means that a
    softmax was taken; a row sum of one for the scores that cross-entropy gets means that it is taken twice. ``logs``:
    also of exponentials, where zero means a log_softmax."""
    if z.dim() < 2 or z.shape[1] < 2 or not z.is_floating_point():
        return {}
    scores = z[:256].float() if z.dim() == 2 else z[:64].float().reshape(min(64, z.shape[0]), z.shape[1], -1)[:, :, :8]
    found = {
        "row_sum_error": float((scores.sum(1) - 1).abs().max()),
        "row_log_sum_error": float(scores.logsumexp(1).abs().max()),
    }
    if z.dim() == 2 and 1 < z.shape[0] <= 4096:
        found["column_sum_error"] = float((z.float().sum(0) - 1).abs().max())
        found["column_log_sum_error"] = float(z.float().logsumexp(0).abs().max())
    return {name: value for name, value in found.items() if math.isfinite(value) and (logs or "_log_" not in name)}


def measure_broadcast(z: Tensor, y: Tensor) -> dict[str, float]:
    """By how much an elementwise loss grows two shapes that differ: 1 = not at all. [B, 1] against [B] gives B."""
    try:
        shape = torch.broadcast_shapes(z.shape, y.shape)
    except RuntimeError:
        return {}
    largest = max(z.numel(), y.numel())
    return {"broadcast": math.prod(shape) / max(1, largest)}


def measure_hits(z: Tensor, labels: Tensor) -> dict[str, float]:
    """Share of samples whose largest score is that of their label."""
    if z.dim() != 2 or labels.dim() != 1 or len(z) != len(labels):
        return {}
    guess = z.argmax(1)
    found = torch.stack([(guess == labels).float().mean(), (guess == guess.mode().values).float().mean()]).tolist()
    return dict(zip(("accuracy", "guess_top_share"), found, strict=True))


def measure_binary_hits(z: Tensor, y: Tensor, border: float) -> dict[str, float]:
    """The same for answers of yes or no: share of right ones, and of the commoner target."""
    if z.shape != y.shape or not z.numel():
        return {}
    yes = y > 0.5
    hits, share = torch.stack([((z > border) == yes).float().mean(), yes.float().mean()]).tolist()
    return {"accuracy": hits, "label_top_share": max(share, 1 - share)}
