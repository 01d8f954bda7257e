"""What the model shall give: label counts, or the scale of real targets."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from cockpit_core.signals.tensors import as_rows

MOST_CLASSES = 100_000


def measure_labels(labels: Tensor, batch_size: int, ignored: int | None = None) -> dict[str, float]:
    """Counts of class indices. ``label_entropy`` in nats. With several labels a sample (tokens, pixels) only the range
    and the commonest share: those of one sample go together, so that their spread over batches says nothing."""
    flat = labels.reshape(-1)
    if ignored is not None:
        flat = flat[flat != ignored]
    flat = flat[:65536]
    if not flat.numel():
        return {}
    low, high = int(flat.min()), int(flat.max())
    found = {"label_min": float(low), "label_max": float(high), "label_count": float(flat.numel())}
    if low < 0 or high >= MOST_CLASSES:
        return found
    counts = torch.bincount(flat.long()).double()
    shares = counts[counts > 0] / counts.sum()
    found["label_top_share"] = float(shares.max())
    if flat.numel() == batch_size:
        place = torch.arange(len(counts), device=counts.device, dtype=torch.float64)
        mean = float((counts * place).sum() / counts.sum())
        found["label_entropy"] = float(-(shares * shares.log()).sum())
        found["target_mean"] = mean
        found["target_variance"] = float((counts * (place - mean) ** 2).sum() / counts.sum())
    return found


def measure_targets(y: Tensor) -> dict[str, float]:
    """Real targets. ``target_scale`` is the median of their sizes: heavy tails do not move it. ``target_std`` is that over
    samples, output by output: what is left of a squared error when each output is always its mean."""
    rows = as_rows(y)
    if not bool(torch.isfinite(rows).all()):
        return {"target_not_finite": float((~torch.isfinite(rows)).sum())}
    per_sample = rows.mean(1)
    flat = rows.reshape(-1)
    middle = flat.median()
    numbers = torch.stack(
        [flat.abs().median(), rows.var(0, correction=0).mean().sqrt(), (flat - middle).abs().median(), flat.min(), flat.max(),
         per_sample.mean(), per_sample.var(correction=0)]
    ).tolist()  # fmt: skip
    names = ("scale", "std", "spread", "min", "max", "mean", "variance")
    found = {f"target_{name}": value for name, value in zip(names, numbers, strict=True)}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def measure_likeness(x: Tensor, y: Tensor) -> dict[str, float]:
    """The largest correlation of one input feature with the target [B], and which it is. 1: the target is among the
    inputs. Not of reconstructions, whose targets have the shape of the inputs, nor of inputs too wide to look at whole."""
    y = y.reshape(len(y), -1) if y.dim() else y.reshape(1, 1)
    if x.dim() != 2 or y.shape[1] != 1 or len(y) != len(x) or len(x) < 8 or x.shape[1] < 2 or x.numel() > 65536:
        return {}
    rows, goal = x.double(), y[:, 0].double()
    rows, goal = rows - rows.mean(0), goal - goal.mean()
    lengths = rows.norm(dim=0) * goal.norm()
    likeness = torch.where(lengths > 0, (goal @ rows).abs() / lengths, torch.zeros_like(lengths))
    if not bool(torch.isfinite(likeness).all()):
        return {}
    top = likeness.max(0)
    return {"input_target": float(top.values), "input_target_where": float(top.indices)}


def measure_constant(loss_fn: nn.Module, y: Tensor) -> dict[str, float]:
    """``target_chance``: what L1, smooth L1 and Huber losses are when each output is always the median of its targets."""
    if len(y) < 4:
        return {}
    rows = y.reshape(len(y), -1)[:, :256].float()
    gap = rows - rows.median(0).values
    zero = torch.zeros_like(gap)
    if isinstance(loss_fn, nn.SmoothL1Loss):
        return {"target_chance": float(functional.smooth_l1_loss(gap, zero, beta=loss_fn.beta))}
    if isinstance(loss_fn, nn.HuberLoss):
        return {"target_chance": float(functional.huber_loss(gap, zero, delta=loss_fn.delta))}
    return {"target_chance": float(gap.abs().mean())} if isinstance(loss_fn, nn.L1Loss) else {}
