"""What a user hands to ``run.log``: a number, of whatever library."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

from cockpit_core.foundation.faults import text_of


def as_number(name: str, value: Any) -> float:
    """As a float; TypeError if it is no number. A number that no float can hold is infinite."""
    try:
        if hasattr(value, "detach"):  # a tensor; one that requires a gradient warns when it is converted
            value = value.detach()
        if getattr(value, "ndim", None):  # an array with one element
            value = value.item()
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except Exception as error:
        raise TypeError(f"run.log({name}=...) takes a number, got {type(value).__name__} ({text_of(error)})") from error


def is_too_large(value: Any) -> bool:
    """Finite, but beyond what a float can hold."""
    if not isinstance(value, (int, Fraction, Decimal)):
        return False
    try:
        return math.isinf(float(value)) and isinstance(value, Decimal) and value.is_finite()
    except (OverflowError, ValueError):
        return True
