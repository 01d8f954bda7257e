"""Is a second derivative symmetric, as a Hessian is? Some functions of torch have a wrong one, and nothing else shows it.

``u . H v = v . H u`` for any two vectors. The products that eigenvalues and traces take anyway are compared, so the check
costs nothing; what is not symmetric is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .point import NoCurvature

_ALLOWED = {torch.float64: 1e-6}
_ALLOWED_IN_SINGLE = 2e-3
_ALLOWED_ROUGHLY = 0.1
_rough = False


@contextmanager
def roughly(rough: bool) -> Iterator[None]:
    """Inside, products were computed in half precision (autocast), whatever the type of the parameters."""
    global _rough
    before, _rough = _rough, rough
    try:
        yield
    finally:
        _rough = before


def refuse_asymmetry(difference: float, scale: float, dtype: torch.dtype) -> None:
    """``difference`` of two numbers that should be equal, in a matrix with entries of the size of ``scale``."""
    allowed = _ALLOWED_ROUGHLY if _rough else _ALLOWED.get(dtype, _ALLOWED_IN_SINGLE)
    if difference > allowed * scale:
        raise NoCurvature(
            f"the second derivative that torch gives for this network is not symmetric (off by {difference / scale:.2g} of "
            "its size), so it is no Hessian: some function in it has a wrong second derivative (torch's weight_norm)"
        )


def refuse_asymmetric(small: Tensor, dtype: torch.dtype) -> None:
    """A matrix [k, k] of products ``u_i . H u_j``."""
    refuse_asymmetry(float((small - small.T).abs().max()), float(small.abs().max()), dtype)
