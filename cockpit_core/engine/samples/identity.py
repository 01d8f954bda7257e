"""Who the samples of a batch are: whole numbers that the user hands over, one per sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from cockpit_core.distributed.group import Group

HINT = "run.batch(ids=...) takes one whole number per sample, such as its index in the dataset"


def as_ids(ids: Any) -> np.ndarray:
    """[B] of whole numbers; a tensor on any device, an array or a list."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise TypeError(f"{HINT}; got {type(ids).__name__}") from error
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"{HINT}; got {array.dtype} of shape {array.shape}")
    return array.astype(np.int64)


def join_ids(group: Group, parts: list[np.ndarray]) -> np.ndarray | None:
    """The ids of all micro-batches and of all processes, in order; None where none were given."""
    mine = np.concatenate(parts) if parts else None
    answers = group.gather("ids", mine)
    known = [answer for answer in answers if answer is not None]
    return np.concatenate(known) if known and len(known) == len(answers) else None
