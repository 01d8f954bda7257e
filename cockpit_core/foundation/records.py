"""What the engine hands to the writer, and what readers get back: plain records, no torch, no protobuf."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass
class LayerInfo:
    """One parameter tensor, named as in ``model.named_parameters()``."""

    name: str
    shape: tuple[int, ...]
    size: int
    module: str = ""
    method: str = ""
    reason: str = ""


@dataclass
class QuantityInfo:
    name: str
    kind: str = "scalar"
    layerwise: bool = False
    unit: str = ""
    description: str = ""
    schedule: str = ""
    options: dict[str, str] = field(default_factory=dict)
    defined_for_sgd: bool = False


@dataclass
class OptimizerInfo:
    name: str
    groups: list[dict[str, str]] = field(default_factory=list)
    group_layers: list[list[str]] = field(default_factory=list)


@dataclass
class Header:
    run_id: str
    name: str
    created: float
    revision: int = 0
    model: str = ""
    num_parameters: int = 0
    layers: list[LayerInfo] = field(default_factory=list)
    loss: str = ""
    optimizers: list[OptimizerInfo] = field(default_factory=list)
    config: str = ""
    schedule: str = ""
    curvature: str = ""
    quantities: list[QuantityInfo] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    git_commit: str = ""
    batch_size: int = 0
    covered: float = 1.0
    notes: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    steps_per_epoch: float = 0.0


@dataclass
class AlphaFit:
    """The quadratic through both ends of one step; ``alpha`` is None where it has no value."""

    step: int
    alpha: float | None
    length: float
    loss_start: float
    loss_end: float
    slope_start: float
    slope_end: float
    loss_var_start: float
    loss_var_end: float
    slope_var_start: float
    slope_var_end: float
    w0: float
    w1: float
    w2: float


@dataclass
class Notice:
    """Something the user should look at. ``kind`` is one of those listed in the schema's Warning."""

    step: int
    kind: str
    message: str
    quantity: str = ""
    layer: str = ""


@dataclass
class Evidence:
    """One number that a finding rests on; ``low`` to ``high`` is its range in healthy runs, infinite where open."""

    name: str
    value: float
    low: float = -math.inf
    high: float = math.inf
    unit: str = ""
    step: int = 0
    layer: str = ""
    text: str = ""


@dataclass
class Finding:
    """What is wrong with a run: one sentence, since when, where, on which numbers, and what to try.

    ``severity`` is "broken" (an invariant of a right program is violated), "likely" (the dynamics say so) or "advice"
    (true, harm unproven; never an alarm). ``confidence`` is an estimate of how often the diagnosis is right when it is
    named. ``explains`` names the symptoms that hold too and follow from this one. ``step`` is that of the last change.
    """

    name: str
    severity: str
    text: str
    since: int = 0
    layers: list[str] = field(default_factory=list)
    evidence: list[Evidence] = field(default_factory=list)
    remedy: str = ""
    confidence: float = 0.0
    explains: list[str] = field(default_factory=list)
    retracted: bool = False
    step: int = 0


@dataclass
class Histogram:
    """Counts of one quantity at one step; ``layer`` is "" for the network.

    ``counts`` is [gradient bins] or [gradient bins, parameter bins]. Values outside the range are in the outermost
    bins and counted again in ``below`` / ``above``; NaN and infinities are counted apart and are in no bin.
    """

    quantity: str
    step: int
    counts: np.ndarray
    edges: np.ndarray
    parameter_edges: np.ndarray | None = None
    layer: str = ""
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    below: int = 0
    above: int = 0
    parameter_below: int = 0
    parameter_above: int = 0


@dataclass
class Record:
    """The light record: one per tracked step, one per ``run.log``, one at each start and end.

    ``kind`` is "step", "log", "start" or "end". ``layers`` maps a name to one float per layer of the header (NaN is a
    value); ``layers_missing`` maps the same name to a boolean array, True where a layer has none.
    """

    kind: str
    step: int
    wall_time: float
    time: float
    seq: int = 0
    generation: int = 0
    epoch: float | None = None
    batch_size: int = 0
    scalars: dict[str, float] = field(default_factory=dict)
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    layers_missing: dict[str, np.ndarray] = field(default_factory=dict)
    alphas: list[AlphaFit] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    estimates: dict[str, tuple[float, str]] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    top_samples: list[int] = field(default_factory=list)
    status: str = ""
    error: str = ""
    triggered: bool = False
    findings: list[Finding] = field(default_factory=list)


@dataclass
class BatchColumn:
    """Values of one name (and layer); ``rows`` are indices into the batch's rows, None = every row has a value."""

    name: str
    values: np.ndarray
    layer: str = ""
    rows: np.ndarray | None = None
    decimated: bool = False


@dataclass
class Batch:
    """The columns of one run, whole or since a cursor: what a host sends to a page. See the schema for the rules."""

    run: str
    run_id: str
    from_seq: int
    to_seq: int
    seq: np.ndarray
    step: np.ndarray
    time: np.ndarray
    wall_time: np.ndarray
    epoch: np.ndarray | None = None
    triggered: np.ndarray | None = None
    replace: bool = False
    header: Header | None = None
    columns: list[BatchColumn] = field(default_factory=list)
    alphas: list[AlphaFit] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    missing: dict[int, dict[str, str]] = field(default_factory=dict)  # by row
    top_samples: dict[int, list[int]] = field(default_factory=dict)  # by row
    heavy: dict[str, list[int]] = field(default_factory=dict)  # quantity -> steps with a histogram
    histograms: list[Histogram] = field(default_factory=list)
    state: str = ""
    error: str = ""
    last_wall_time: float = 0.0
    records: int = 0
    expected: int = 0
    broken: int = 0
    drop_from_step: int = -1
    findings: list[Finding] = field(default_factory=list)
