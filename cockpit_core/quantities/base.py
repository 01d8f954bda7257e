"""The contract of a quantity: it declares what statistics it needs and turns them into numbers.

A quantity programs no hooks, buffers or caches. ``needs`` names rows of the table in ``needs.py``; "losses", "gradients" and
so on are then in the ``Statistics`` that ``measure`` gets, once they are complete. Besides words it takes extensions
of BackPACK, as instances (``DiagGGNExact()``): ``statistics.backpack["diag_ggn_exact"]`` has their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from cockpit_core.foundation.faults import Explained

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from cockpit_core.curvature import Diagonal, Eigenpair
    from cockpit_core.foundation.records import Histogram
    from cockpit_core.foundation.transfer import Transfer
    from cockpit_core.kernels import Counts, Spec
    from cockpit_core.quantities.measured import Activations, Gram, OwnBatch, ParameterState
    from cockpit_core.schedules import Schedule


class NoValue(Explained):
    """Raised by ``measure``: there is no value at this step; the message is the reason that the user reads."""


@dataclass(frozen=True)
class Statistics:
    """Everything measured at one step. Mappings go from layer name to tensor; asked for by ``needs``."""

    step: int
    batch_size: int
    loss: float
    time: float = 0.0
    backward_seen: bool = False
    """A backward pass was seen, so ``loss`` is known, even where the number of samples is not."""
    losses: Tensor | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    gradients: Mapping[str, Tensor] = field(default_factory=dict)
    start: Mapping[str, Tensor] = field(default_factory=dict)
    update: Mapping[str, Tensor] = field(default_factory=dict)
    norms: Mapping[str, Tensor] = field(default_factory=dict)
    dots: Mapping[str, Tensor] = field(default_factory=dict)
    squares: Mapping[str, Tensor] = field(default_factory=dict)
    counts: Mapping[str, Counts] = field(default_factory=dict)
    gradient_norms: Mapping[str, float] = field(default_factory=dict)
    diagonals: Mapping[str, Diagonal] = field(default_factory=dict)
    eigenpairs: Mapping[str, Eigenpair] = field(default_factory=dict)
    curvature: str = "hessian"
    curvature_part: str = ""
    learning_rates: tuple[float, ...] = ()
    optimizer: Mapping[str, ParameterState] = field(default_factory=dict)
    own_batch: OwnBatch | None = None
    activations: Activations | None = None
    gram: Gram | None = None
    labels: Tensor | None = None
    ids: np.ndarray | None = None
    backpack: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By name of the extension, then by parameter; asking for one that has no value raises ``NoValue``."""
    no_value: Mapping[str, str] = field(default_factory=dict)
    known_norms: dict[str, dict[str, float]] = field(default_factory=dict)
    known_arrays: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    known_products: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    known_sums: dict[str, tuple[float, float]] = field(default_factory=dict)
    """What the gradient tests share."""
    transfer: Transfer | None = None
    """What else is wanted on the host; it arrives with the first that is read."""

    def with_more(self, **more: Any) -> Statistics:
        """The same, and what is known by now."""
        later = object.__new__(Statistics)
        vars(later).update(vars(self), **more)
        return later

    def norms_of(self, what: str) -> dict[str, float]:
        """``||x||_2`` per layer of "parameters", "update", "gradients", or "moved" (since the start of the run):
        measured once, whoever asks. The first and the last are measured together, because each measurement waits for
        the device."""
        if what not in self.known_norms:
            from cockpit_core.foundation.transfer import Transfer
            from cockpit_core.quantities.norms import measure_norms, measure_places

            if what == "moved" or (what == "parameters" and self.start):
                own, moved = measure_places(self.parameters, self.start, self.transfer or Transfer())
                self.known_norms.update(parameters=own, moved=moved)
            else:
                self.known_norms[what] = measure_norms(getattr(self, what), self.transfer)
        return self.known_norms[what]

    def arrays_of(self, what: str) -> dict[str, np.ndarray]:
        """ "norms" or "dots" [B] per layer as arrays, where so few numbers are added faster than torch could be asked to."""
        known = self.known_arrays.get(what)
        if known is None:
            known = self.known_arrays[what] = {
                n: v.numpy() if v.is_cpu else v.cpu().numpy() for n, v in getattr(self, what).items()
            }
        return known

    def products_of(self, one: str, other: str) -> dict[str, float]:
        """``x . y`` per layer of two of "parameters", "update", "gradients": measured once, whoever asks."""
        if (one, other) not in self.known_products:
            from cockpit_core.quantities.products import measure_products

            self.known_products[one, other] = measure_products(getattr(self, one), getattr(self, other))
        return self.known_products[one, other]

    def reason(self, need: str, default: str = "it was not measured") -> str:
        """Why a statistic is not there."""
        return self.no_value.get(need, default)


@dataclass
class Value:
    """A network-wide number, numbers per layer, and how far they may be off (None: exact up to rounding).

    ``reason``: why there is no network-wide number. ``parts``: further numbers of the same measurement; "angle" of
    UpdateRatio is recorded as "UpdateRatio/angle". ``table``: numbers that are looked at one step at a time, stored like a
    histogram (``run.data.histogram(name).counts``). ``histograms``: what is stored that way, of the network and by layer.
    """

    network: float | None = None
    layers: dict[str, float] = field(default_factory=dict)
    error: float | None = None
    method: str = ""
    reason: str = ""
    parts: dict[str, Value] = field(default_factory=dict)
    table: np.ndarray | None = None
    histograms: tuple[Histogram, dict[str, Histogram]] | None = None


class Quantity:
    """Subclass it, name what you need, return a float or a ``Value``; raise ``NoValue(reason)`` where there is none."""

    needs: ClassVar[tuple[Any, ...]] = ()
    configurations: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[str] = "scalar"
    layerwise: ClassVar[bool] = False
    unit: ClassVar[str] = ""
    description: ClassVar[str] = ""
    defined_for_sgd: ClassVar[bool] = False
    formula: ClassVar[str] = ""
    """The value at step t, as the table of the documentation has it (Markdown)."""
    question: ClassVar[str] = ""
    """The question that it answers. A quantity with a question is listed among the instruments beyond the paper."""
    cost: ClassVar[str] = ""
    """The cost in words, beside a question."""
    default_panel: ClassVar[bool] = False
    """A plain curve will do: it has no panel of its own on purpose."""
    headline: ClassVar[bool] = False
    """Written as a plain scalar too, for TensorBoard's own tab and other trackers."""

    def __init__(self, *, schedule: int | Schedule | None = None):
        self.schedule = schedule

    @property
    def name(self) -> str:
        return type(self).__name__

    def measure(self, statistics: Statistics) -> float | Value:
        raise NoValue(f"{self.name} defines no measure()")

    def counted(self) -> Spec | None:
        """What is to be counted of the elements of individual gradients, for those that need "histogram"."""
        return None

    def options(self) -> dict[str, str]:
        """What the header says about this instance."""
        return {
            key: str(value)
            for key, value in vars(self).items()
            if key != "schedule" and value is not None and key[0] != "_"
        }


def check_positive(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f"{name} must be a positive number, got {value!r}")
    return float(value)


def check_window(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"window counts tracked steps: a whole number of at least 1, got {value!r}")
    return value
