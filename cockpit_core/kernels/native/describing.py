"""Mean, size and spread of some short vectors with one call: of a batch's losses, of its slopes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import TYPES, find_library
from cockpit_core.kernels.native.reducing import address_of

add = np.add.reduce
"""``sum`` without what numpy does for arrays of any kind."""


class Described(NamedTuple):
    mean: float
    size: float
    """The mean of the absolute values."""
    spread: float
    """The sum of squared distances from the mean."""


def describe(vectors: Sequence[Tensor]) -> list[Described]:
    """In double precision; each has one dimension. Of nothing all three are zero."""
    library = find_library()
    dtype = vectors[0].dtype if vectors else torch.float64
    if library is None or dtype not in TYPES or any(v.dtype is not dtype or not v.is_cpu for v in vectors):
        return [describe_array(v.detach().double().cpu().numpy()) for v in vectors]
    jobs, sums = array("q"), array("d", bytes(24 * len(vectors)))
    for vector in vectors:
        (size,), (step,) = vector.shape, vector.stride()
        jobs.extend((vector.data_ptr(), size, step))
    library.function("describe_vectors", dtype)(address_of(jobs), len(vectors), address_of(sums))
    each = []
    for k in range(len(vectors)):
        count, (total, sizes, spread) = max(1, jobs[3 * k + 1]), sums[3 * k : 3 * k + 3]
        each.append(Described(total / count, sizes / count, spread))
    return each


def describe_array(values: np.ndarray) -> Described:
    count = max(1, len(values))
    with np.errstate(all="ignore"):  # they may be infinite
        mean = float(add(values)) / count
        apart = values - mean
        return Described(mean, float(add(np.abs(values))) / count, float(apart @ apart))
