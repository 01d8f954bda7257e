"""The Gram matrix of a few stored gradients: half of it, in pieces that stay in the first cache, many small blocks with one
call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cockpit_core.kernels.native import find_library

MOST_COMPARED = 16
"""Samples that kernels compare with each other, as in comparing.h."""


def compare_blocks(blocks: Sequence[Tensor], scales: Sequence[float]) -> list[Tensor]:
    """``scale^2 G G'`` [n, n] in float64 of each block [n, D], all of one dtype, n at most ``MOST_COMPARED``."""
    library = find_library()
    assert library is not None
    if any(len(G) > MOST_COMPARED or G.dtype != blocks[0].dtype for G in blocks):
        raise ValueError(f"blocks of one dtype and of at most {MOST_COMPARED} rows are compared together")
    held = [G if G.shape[1] < 2 or G.stride(1) == 1 else G.contiguous() for G in blocks]
    jobs = np.array([[G.data_ptr(), G.stride(0), *G.shape] for G in held], np.int64)
    factors, products = np.array(scales, np.float64), torch.zeros(len(held), MOST_COMPARED**2, dtype=torch.float64)
    library.function("compare_blocks", held[0].dtype)(
        jobs.ctypes.data, factors.ctypes.data, len(held), products.data_ptr()
    )
    return [own[: len(G) ** 2].view(len(G), len(G)) for own, G in zip(products.unbind(), held, strict=True)]
