"""What a quantity reads: ``statistics.backpack["diag_ggn_exact"]``, by parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cockpit_core.quantities.base import NoValue


@dataclass(frozen=True)
class BackpackValues(Mapping[str, Mapping[str, Any]]):
    """Name of the extension (its ``savefield``) -> parameter -> value, for all parameters that have a gradient.

    Where BackPACK has none for some parameter, asking raises ``NoValue`` with the reason, so that no sum over parameters
    is silently one over a part of them; ``partial`` gives what there is.
    """

    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name in self.reasons:
            raise NoValue(self.reasons[name])
        if name not in self.measured:
            raise NoValue(f"no quantity of this step names the BackPACK extension {name!r} in its needs")
        return self.measured[name]

    def partial(self, name: str) -> Mapping[str, Any]:
        return self.measured.get(name) or self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(name for name in self.measured if name not in self.reasons)

    def __len__(self) -> int:
        return len(list(iter(self)))
