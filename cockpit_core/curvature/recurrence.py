"""Recurrent layers that a library computes in one piece: the graph shows nothing of them unless they are computed
step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .autograd_graph import kind_of, reachable
from .point import Point

_FUSED = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")


def has_fused_recurrence(point: Point) -> bool:
    return any(kind_of(node) in _FUSED for node in reachable([point.loss.grad_fn]))


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Inside, recurrent layers compute one time step after the other, from plain operations.

    The flags of torch's own context managers, without the warnings that some of those give.
    """
    onednn, cudnn = torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(onednn)
        torch._C._set_cudnn_enabled(cudnn)
