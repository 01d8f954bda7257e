"""The parameters at the beginning of a run, kept beside its log, so that a resumed run measures Distance from there too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from cockpit_core.foundation.faults import text_of

NAME = "start.pt"


class StartUnknown(Exception):
    """The message says why, and what to do."""


def copy_parameters(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in parameters.items()}


def save_start(folder: Path, run_id: str, start: Mapping[str, Tensor], limit: int) -> str:
    """Store them if they take at most ``limit`` bytes. Returns "yes", or why not.

    Written under another name at first, so that a killed process leaves no half-written file. Nobody waits for the
    disk: what a
    power failure leaves is checked when it is read.
    """
    size = sum(p.nbytes for p in start.values())
    if size > limit:
        forget_start(folder)  # of a run that began here before
        return f"no: {size / 2**20:.0f} MB are more than keep_start ({limit / 2**20:.0f} MB)"
    partial = folder / f"{NAME}.{os.getpid()}"
    try:
        torch.save({"run_id": run_id, "parameters": {n: p.cpu().clone() for n, p in start.items()}}, partial)
        os.replace(partial, folder / NAME)
    except (OSError, RuntimeError) as error:
        partial.unlink(missing_ok=True)
        return f"no: {text_of(error)}"
    return "yes"


def forget_start(folder: Path) -> None:
    (folder / NAME).unlink(missing_ok=True)


def load_start(folder: Path, run_id: str, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The start of the present parameters, on their device and in their type; StartUnknown if one is missing."""
    path, again = folder / NAME, "so it is not known how far they have come"
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
        known, owner = stored["parameters"], stored["run_id"]
    except FileNotFoundError:
        raise StartUnknown(
            f"the parameters at the beginning of this run were not kept (see keep_start of track), {again}"
        ) from None
    except Exception as error:
        raise StartUnknown(f"{path} cannot be read ({text_of(error)}), {again}") from error
    if owner != run_id:
        raise StartUnknown(f"{path} belongs to another run, {again}")
    for name, p in parameters.items():
        kept = known.get(name)
        if not isinstance(kept, Tensor) or kept.shape != p.shape:
            raise StartUnknown(f"{name} was not trained, or had another shape, when this run began, {again}")
    return {name: known[name].to(device=p.device, dtype=p.dtype) for name, p in parameters.items()}
