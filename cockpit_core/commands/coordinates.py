"""The coordinate check: do activations and updates keep their size as a network gets wider?

Yang et al. 2022 (arXiv 2203.03466, appendix D): train the same network at several widths for a few steps, and compare the
RMS of each layer's outputs and the RMS of each parameter's update. In a parametrisation that scales, they do not depend on
the width; a slope against the width in a log-log plot shows a layer whose initialisation or learning rate does not
transfer.
"""

from __future__ import annotations

import importlib
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EXPECTED = "model_fn(width) returns (model, loss_fn, optimizer, (inputs, targets))"
STRAIGHT = 0.25
"""A slope between minus and plus this much is called level: a factor of 1.2 when the width doubles."""


class NotUsable(Exception):
    """What the user gave does not fit; the message says what does."""


@dataclass
class Coordinates:
    """For each layer one number per width: RMS of outputs and RMS of updates, at the last step."""

    widths: list[int]
    activations: dict[str, list[float]] = field(default_factory=dict)
    updates: dict[str, list[float]] = field(default_factory=dict)

    def slopes(self, values: dict[str, list[float]]) -> dict[str, float]:
        """The slope of log size against log width, by least squares."""
        return {name: slope(self.widths, sizes) for name, sizes in values.items()}


def slope(widths: Sequence[int], sizes: Sequence[float]) -> float:
    if len(set(widths)) < 2 or not all(size > 0 and math.isfinite(size) for size in sizes):
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(sizes), 1)[0])


def find_function(name: str) -> Callable[[int], Any]:
    """``package.module:function`` or ``folder/file.py:function``."""
    place, _, function = name.rpartition(":")
    if not place:
        raise NotUsable(f"{name}: name the function as module:function or file.py:function; {EXPECTED}")
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise NotUsable(f"{place}: no such file")
        sys.path.insert(0, str(path.resolve().parent))
        place = path.stem
    else:
        sys.path.insert(0, "")
    try:
        value = getattr(importlib.import_module(place), function)
    except (ImportError, AttributeError) as error:
        raise NotUsable(f"{name}: {error}") from error
    finally:
        sys.path.pop(0)
    return value


def check_coordinates(
    make: Callable[[int], Any], widths: Sequence[int], *, steps: int = 4, seed: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Coordinates:  # fmt: skip
    """Train at each width on one batch, and measure the last step."""
    result = Coordinates(list(widths))
    for width in widths:
        progress(f"width {width}")
        activations, updates = train_once(make, width, steps, seed)
        for into, measured in ((result.activations, activations), (result.updates, updates)):
            for name, size in measured.items():
                into.setdefault(name, []).append(size)
    whole = len(result.widths)
    for into in (result.activations, result.updates):
        for name in [name for name, sizes in into.items() if len(sizes) < whole]:
            del into[name]  # a layer that not all widths have
    return result


def train_once(make: Callable[[int], Any], width: int, steps: int, seed: int) -> tuple[dict, dict]:
    import torch

    from cockpit_core import quantities, track

    torch.manual_seed(seed)
    made = make(width)
    if not (isinstance(made, tuple) and len(made) == 4 and isinstance(made[3], tuple) and len(made[3]) == 2):
        raise NotUsable(f"{EXPECTED}; got {type(made).__name__}")
    model, loss_fn, optimizer, (inputs, targets) = made
    config = [quantities.named("ActivationScale"), quantities.named("UpdateSize")]
    with tempfile.TemporaryDirectory() as folder:
        with track(model, loss_fn, optimizer, Path(folder) / "run", config=config, schedule=1, on_error="raise") as run:
            for _ in range(steps):
                optimizer.zero_grad()
                loss_fn(model(inputs), targets).backward()
                optimizer.step()
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        outputs = last_of(run.data, "ActivationScale", {"": 1} | dict.fromkeys(sizes, 1))
        return outputs, last_of(run.data, "UpdateSize", sizes)


def last_of(data: Any, quantity: str, sizes: dict[str, int]) -> dict[str, float]:
    """RMS by layer at the last step; "" is the output of the model."""
    last = {}
    for name, size in sizes.items():
        try:
            values = data.scalars(quantity, name or None)[1]
        except KeyError:
            continue
        if len(values):
            last[name] = float(values[-1]) / math.sqrt(size)
    return last


def describe(coordinates: Coordinates, draw: Callable[[Sequence[float]], str]) -> list[list[str]]:
    """Rows of a table: what, layer, one column per width, a small picture, the slope in the log-log plot, a verdict."""
    rows = [["", "layer", *(str(width) for width in coordinates.widths), "", "slope", ""]]
    for what, values in (("output", coordinates.activations), ("update", coordinates.updates)):
        slopes = coordinates.slopes(values)
        for name, sizes in values.items():
            numbers = [f"{size:.3g}" for size in sizes]
            rows.append([what, name or "(model)", *numbers, draw(sizes), f"{slopes[name]:+.2f}", judge(slopes[name])])
    return rows


def judge(slope: float) -> str:
    if math.isnan(slope):
        return "no slope"
    return "level" if abs(slope) <= STRAIGHT else "grows" if slope > 0 else "shrinks"
