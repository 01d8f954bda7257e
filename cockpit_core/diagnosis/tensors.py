"""What single tensors say: which stand still, which get no gradient, where gradients vanish."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from cockpit_core.diagnosis.left import Left
from cockpit_core.diagnosis.reading import median, nan, ratio
from cockpit_core.foundation.kept import kept

T = TypeVar("T")


class Tensors(Left):
    """Features of the layers' vectors."""

    def gradient_share(self, names: Iterable[str]) -> float:
        """Share of the squared gradient that belongs to these tensors."""
        rows, chosen = self.stack("GradNorm"), set(names)
        if not len(rows):
            return nan
        squares = np.nan_to_num(rows, nan=0.0, posinf=0.0) ** 2
        own = squares[:, [i for i, layer in enumerate(self.facts.layers) if layer in chosen]].sum(1)
        return median(ratio(float(a), float(b)) for a, b in zip(own, squares.sum(1), strict=True))

    def weight_share(self, names: Iterable[str]) -> float:
        """Share of all weights that belong to these tensors."""
        chosen, sizes = set(names), dict(zip(self.facts.layers, self.facts.sizes, strict=True))
        return ratio(sum(size for name, size in sizes.items() if name in chosen), sum(sizes.values()))

    def matrix_share(self, names: Iterable[str]) -> float:
        """Share of all matrices that are among these tensors: layers, large or small."""
        chosen = set(names)
        matrices = [name for name, shape in zip(self.facts.layers, self.facts.shapes, strict=True) if len(shape) > 1]
        return ratio(sum(name in chosen for name in matrices), len(matrices))

    def _of_the_start(self, name: str, make: Callable[[], T]) -> T:
        """What rests on the vectors of the first records and on the header alone, once for all judgements."""
        known, rests_on = self.history.of_the_start, (self.facts, *map(len, self.history.first_vectors.values()))
        if name not in known or known[name][0] != rests_on:
            known[name] = rests_on, make()
        return known[name][1]  # type: ignore[return-value]

    @kept
    def weight_scale(self) -> float:
        """Median over the matrices: length of the first weights over that of torch's default initialisation."""
        return self._of_the_start("weight_scale", self._find_weight_scale)

    @kept
    def least_scale(self) -> float:
        """The same of the matrix that has least of it."""
        return self._of_the_start("least_scale", lambda: min(self._scales(), default=nan))

    def _find_weight_scale(self) -> float:
        return median(self._scales())

    def _scales(self) -> list[float]:
        rows = self.stack("ParamNorm", start=True)
        chosen = [i for i, shape in enumerate(self.facts.shapes) if len(shape) > 1]
        if not len(rows):
            return []
        return [float(rows[0][i]) / math.sqrt(self.facts.shapes[i][0] / 3) for i in chosen]

    def are_fresh(self, names: Iterable[str]) -> bool:
        """Were half of these weights or more as torch initialises them when the run began? What was trained before is not."""
        chosen = set(names)
        matrices = [name for name, shape in zip(self.facts.layers, self.facts.shapes, strict=True) if len(shape) > 1]
        own, fresh = [name for name in matrices if name in chosen], set(self.facts.names("fresh weights"))
        return not self.history.resumed and bool(own) and 2 * sum(name in fresh for name in own) >= len(own)

    def stack(self, name: str, start: bool = False) -> np.ndarray:
        """[steps, layers]: the last few vectors of a quantity, or those of the start."""
        rows: Iterable[np.ndarray] = (self.history.first_vectors if start else self.history.vectors).get(name, ())
        width = len(self.facts.layers)
        rows = [row for row in rows if row.size == width]
        return np.array(rows) if rows else np.empty((0, width))

    @kept
    def still(self) -> list[str]:
        """Tensors that get a gradient and did not move at any of the last tracked steps, while others did."""
        gradients, updates = self.stack("GradNorm"), self.stack("UpdateSize")
        if len(gradients) < 2 or len(updates) < 2:
            return []
        with np.errstate(invalid="ignore"):
            idle = (gradients > 0).all(0) & (updates == 0).all(0)
            moving = (updates > 0).any()
        return [self.facts.layers[i] for i in np.flatnonzero(idle)] if moving else []

    @kept
    def silent(self) -> list[str]:
        """Tensors whose gradient is exactly zero at all of the last tracked steps, while others have one."""
        gradients = self.stack("GradNorm")
        if len(gradients) < 3:
            return []
        zero = (gradients == 0).all(0)
        with np.errstate(invalid="ignore"):
            any_left = (gradients > 0).any()
        return [self.facts.layers[i] for i in np.flatnonzero(zero)] if any_left else []

    @kept
    def dead(self) -> float:
        """Share of dead units of the layer that has most: of the last looks, since units may come back. Where gradients are
        exactly zero by now, the last look is enough."""
        last = self.last("signal/dead")
        return last if self.silent else min(self.typical("dead"), last)

    @kept
    def unreached(self) -> list[str]:
        """Tensors that have no gradient at any of the last tracked steps, not even one of zeros, while others have one."""
        gradients = self.stack("GradNorm")
        if len(gradients) < 3:
            return []
        none = np.isnan(gradients).all(0)
        with np.errstate(invalid="ignore"):
            any_left = (gradients > 0).any()
        return [self.facts.layers[i] for i in np.flatnonzero(none)] if any_left else []

    @kept
    def vanishing(self) -> tuple[float, str]:
        """The smallest over the largest gradient per element (root mean square) of early weights, and which weight
        has it."""
        if self.static("static_constant") > 0:  # behind a weight of zeros no gradient comes through at first
            return self._find_vanishing(self.stack("GradNorm"))
        return self._of_the_start("vanishing", lambda: self._find_vanishing(self.stack("GradNorm", start=True)))

    def _find_vanishing(self, gradients: np.ndarray) -> tuple[float, str]:
        if not len(gradients):
            return nan, ""
        chosen = [i for i, shape in enumerate(self.facts.shapes) if len(shape) > 1]
        if len(chosen) < 3:
            return nan, ""
        sizes = np.sqrt(np.array([max(1, self.facts.sizes[i]) for i in chosen], dtype=float))
        with np.errstate(all="ignore"):
            typical = np.median(gradients[:, chosen], axis=0) / sizes
        if not np.isfinite(typical).all() or not typical.max() > 0:
            return nan, ""
        least = int(typical[:-1].argmin())
        return float(typical[least] / typical.max()), self.facts.layers[chosen[least]]
