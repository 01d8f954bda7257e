"""What Figures 3, 4 and 10 share: the gradients of the very first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import cockpit_core
from cockpit_core import quantities


@dataclass(frozen=True)
class FirstStep:
    counts: np.ndarray  # [gradient bins, parameter bins] of the whole network
    layer_counts: dict[str, np.ndarray]
    edges: np.ndarray
    norms: dict[str, float]  # of the gradient, by layer
    norm: float

    def share_outside(self) -> float:
        """In the two outermost gradient bins, which hold everything beyond the range too."""
        marginal = self.counts.sum(1)
        return float((marginal[0] + marginal[-1]) / marginal.sum())

    def share_center(self, layer: str | None = None) -> float:
        """In the two gradient bins around zero."""
        marginal = (self.counts if layer is None else self.layer_counts[layer]).sum(1)
        half = len(marginal) // 2
        return float(marginal[half - 1 : half + 1].sum() / marginal.sum())


def measure(
    model: nn.Module, loss_fn: nn.Module, batch: tuple[Tensor, Tensor], logdir: Path, *,
    gradients: tuple[float, float], parameters: tuple[float, float], bins: tuple[int, int],
) -> FirstStep:  # fmt: skip
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    chosen = [
        quantities.Loss(),
        quantities.GradNorm(),
        quantities.GradHist2d(range=gradients, parameter_range=parameters, bins=bins),
    ]
    memory = 2**31  # VGG16 has a layer of 400 MB
    with cockpit_core.track(
        model, loss_fn, optimizer, logdir, config=chosen, on_error="raise", memory_budget=memory
    ) as run:
        optimizer.zero_grad()
        loss_fn(model(batch[0]), batch[1]).backward()
        optimizer.step()
    data = run.data
    whole = data.histogram("GradHist2d", 0)
    for missing in data.missing:
        print(f"  {missing.name} at step {missing.step}: {missing.reason}", flush=True)
    for layer in data.header.layers:
        if layer.method != "rule" or layer.reason:
            print(f"  {layer.name} {layer.shape}: {layer.method} {layer.reason}", flush=True)
    layers = {name: counts for name in data.layers if (counts := read_counts(data, name)) is not None}
    norms = {name: float(data.scalars("GradNorm", name)[1][0]) for name in data.layers}
    return FirstStep(whole.counts.astype(float), layers, whole.edges, norms, float(data.scalars("GradNorm")[1][0]))


def read_counts(data: cockpit_core.RunData, layer: str) -> np.ndarray | None:
    """None where the layer has no histogram: one of more than 100 million parameters may have none."""
    try:
        return data.histogram("GradHist2d", 0, layer).counts.astype(float)
    except KeyError:
        return None
