"""How many gradient values lie in each bin, and how many outside: the table that every kernel adds to."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cockpit_core.foundation.records import Histogram
from cockpit_core.kernels.bins import GRADIENT_EXTRA, PARAMETER_EXTRA, AnyBins, Spec
from cockpit_core.kernels.log_bins import LogBins

PACKED_FROM = 20_000
"""Elements of a table that is worth packing."""


def _fold(table: np.ndarray) -> np.ndarray:
    """Move the rows "below" and "above" of a table of finite categories into the outermost bins."""
    folded = table[1:-1].copy()
    folded[0] += table[0]
    folded[-1] += table[-1]
    return folded


def _trim(counts: np.ndarray, all_counts: np.ndarray, bins: AnyBins, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """What a record holds along an axis, and the edges. Of logarithmic bins it holds those that ``all_counts``
    occupy."""
    if not isinstance(bins, LogBins):
        return counts, bins.edges
    return bins.trim(counts, bins.find_occupied(all_counts, axis), axis)


class Counts:
    """Counts of one layer (or, added up, of the network) in int64, on the device of the gradients until they are
    read.

    ``table1d`` is [gradient categories], ``table2d`` [gradient categories, parameter categories] (see ``bins`` for
    what a category is). Reading any property moves the tables to the CPU once; adding to them afterwards is allowed
    and moves them again.
    """

    def __init__(self, spec: Spec, table1d: Tensor | None, table2d: Tensor | None) -> None:
        self.spec = spec
        self.table1d = table1d
        self._whole2d = table2d
        self._box: tuple[int, int, Tensor] | None = (
            None  # first row, first column, and what is not empty of a packed table
        )
        self._shape2d = None if table2d is None else table2d.shape
        self._host: tuple[np.ndarray | None, np.ndarray | None] | None = None

    @classmethod
    def zeros(cls, spec: Spec, device: torch.device | str = "cpu") -> Counts:
        table1d = table2d = None
        if spec.gradient is not None and not spec.is_marginal:
            table1d = torch.zeros(spec.gradient.count + GRADIENT_EXTRA, dtype=torch.int64, device=device)
        if spec.joint is not None:
            shape = (spec.joint[0].count + GRADIENT_EXTRA, spec.joint[1].count + PARAMETER_EXTRA)
            table2d = torch.zeros(shape, dtype=torch.int64, device=device)
        return cls(spec, table1d, table2d)

    @property
    def table2d(self) -> Tensor | None:
        """Whole, to be added to."""
        if self._box is not None:
            self._whole2d, self._box = self._unpack(), None
        return self._whole2d

    def replace(self, key: str, table: Tensor) -> None:
        """The same numbers, elsewhere."""
        setattr(self, "table1d" if key == "table1d" else "_whole2d", table)

    def pack(self) -> None:
        """Nothing more is added: keep what is not empty. A table over all magnitudes takes more than a megabyte."""
        table = self._whole2d
        if table is None or not table.is_cpu or table.numel() < PACKED_FROM:
            return
        rows, columns = table.any(1).nonzero(), table.any(0).nonzero()
        if not len(rows):
            rows = columns = torch.zeros(1, 1, dtype=torch.int64)
        (top, bottom), (left, right) = ((int(place[0]), int(place[-1]) + 1) for place in (rows, columns))
        self._box, self._whole2d, self._host = (top, left, table[top:bottom, left:right].clone()), None, None

    @property
    def is_packed(self) -> bool:
        return self._box is not None

    def _unpack(self) -> Tensor:
        assert self._box is not None and self._shape2d is not None
        top, left, inner = self._box
        table = torch.zeros(self._shape2d, dtype=torch.int64)
        table[top : top + inner.shape[0], left : left + inner.shape[1]] = inner
        return table

    def touch(self) -> None:
        """Forget what was read; a kernel calls it whenever it adds to the tables."""
        self._host = None

    def add(self, table: Tensor) -> None:
        """Add a table of the 1D histogram that a kernel has filled separately."""
        assert self.table1d is not None, "the 1D histogram is not counted separately"
        self.table1d += table
        self.touch()

    def merge(self, other: Counts) -> Counts:
        """Add another layer's or micro-batch's counts to these, in place."""
        if other.spec != self.spec:
            raise ValueError(f"counts over different bins cannot be added: {self.spec} and {other.spec}")
        self.touch()
        if self.table1d is not None and other.table1d is not None:
            self.table1d += other.table1d.to(self.table1d.device)
        if self._shape2d is None:
            return self
        mine = self.table2d
        if mine is not None and other._box is not None:
            top, left, inner = other._box
            mine[top : top + inner.shape[0], left : left + inner.shape[1]] += inner.to(mine.device)
        elif mine is not None and other.table2d is not None:
            mine += other.table2d.to(mine.device)
        return self

    def __add__(self, other: Counts) -> Counts:
        return self.copy().merge(other)

    def copy(self) -> Counts:
        if self._shape2d is None and self.table1d is not None:
            return Counts(self.spec, self.table1d.clone(), None)
        whole = self._whole2d if self._box is None else self._unpack()
        return Counts(self.spec, *(None if table is None else table.clone() for table in (self.table1d, whole)))

    def _read(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        if self._host is not None:
            return self._host
        if self._shape2d is None and self.table1d is not None:
            self._host = (self.table1d.cpu().numpy(), None)
            return self._host
        whole = self._whole2d if self._box is None else self._unpack()
        table1d, table2d = (None if t is None else t.cpu().numpy() for t in (self.table1d, whole))
        if self.spec.is_marginal and table2d is not None:
            table1d = table2d.sum(axis=1)
        if self._box is None:
            self._host = (table1d, table2d)
        return table1d, table2d

    def _need(self, dimensions: int) -> np.ndarray:
        table = self._read()[dimensions - 1]
        if table is None:
            raise ValueError(f"the {dimensions}D histogram was not asked for in the Spec")
        return table

    def _specials(self) -> list[int]:
        table1d, table2d = self._read()
        if table1d is not None:
            return [int(value) for value in table1d[-3:]]
        return [0, 0, 0] if table2d is None else [int(row.sum()) for row in table2d[-3:]]

    def _pairs(self) -> np.ndarray:
        """The part of the 2D table in which both gradient and parameter are finite."""
        return self._need(2)[:-3, :-1]

    @property
    def nan(self) -> int:
        return self._specials()[0]

    @property
    def pos_inf(self) -> int:
        return self._specials()[1]

    @property
    def neg_inf(self) -> int:
        return self._specials()[2]

    @property
    def counts1d(self) -> np.ndarray:
        """[gradient bins]; values outside are in the outermost bins."""
        return _fold(self._need(1)[:-3])

    @property
    def below1d(self) -> int:
        return int(self._need(1)[0])

    @property
    def above1d(self) -> int:
        return int(self._need(1)[-4])

    @property
    def counts2d(self) -> np.ndarray:
        """[gradient bins, parameter bins]; pairs outside are in the outermost bins."""
        return np.ascontiguousarray(_fold(_fold(self._pairs()).T).T)

    @property
    def below2d(self) -> int:
        return int(self._pairs()[0].sum())

    @property
    def above2d(self) -> int:
        return int(self._pairs()[-1].sum())

    @property
    def parameter_below(self) -> int:
        return int(self._pairs()[:, 0].sum())

    @property
    def parameter_above(self) -> int:
        return int(self._pairs()[:, -1].sum())

    @property
    def parameter_not_finite(self) -> int:
        """Pairs of a finite gradient and a NaN or infinite parameter: in no bin of the 2D histogram."""
        return int(self._need(2)[:-3, -1].sum())

    def histogram1d(
        self, step: int, layer: str = "", quantity: str = "GradHist1d", within: Counts | None = None
    ) -> Histogram:
        """The record. ``within``: the counts of the network, whose bins all layers have."""
        bins, table = self.spec.gradient, self._need(1)
        assert bins is not None, "the 1D histogram was not asked for in the Spec"
        own = _fold(table[:-3])
        among = own if within is None or not isinstance(bins, LogBins) else within.counts1d
        counts, edges = _trim(own, among, bins, 0)
        above, nan, pos_inf, neg_inf = table[-4:].tolist()
        return Histogram(
            quantity=quantity, step=step, layer=layer, counts=counts, edges=edges,
            nan=nan, pos_inf=pos_inf, neg_inf=neg_inf, below=int(table[0]), above=above,
        )  # fmt: skip

    def histogram2d(
        self, step: int, layer: str = "", quantity: str = "GradHist2d", within: Counts | None = None
    ) -> Histogram:
        """The record; a pair whose parameter is not finite counts as NaN there, whichever kind it is."""
        assert self.spec.joint is not None, "the 2D histogram was not asked for in the Spec"
        (gradient, parameter), all_counts = self.spec.joint, (within or self).counts2d
        counts, edges = _trim(self.counts2d, all_counts, gradient, 0)
        counts, parameter_edges = _trim(counts, all_counts, parameter, 1)
        return Histogram(
            quantity=quantity, step=step, layer=layer, counts=counts, edges=edges,
            parameter_edges=parameter_edges, nan=self.nan + self.parameter_not_finite, pos_inf=self.pos_inf,
            neg_inf=self.neg_inf, below=self.below2d, above=self.above2d,
            parameter_below=self.parameter_below, parameter_above=self.parameter_above,
        )  # fmt: skip
