"""Whether batches differ from one another as samples do: neighbours in sorted data stand in one batch."""

from __future__ import annotations

import numpy as np


class Order:
    """The mean of all batches so far, beside which the next is seen; one for each run."""

    def __init__(self) -> None:
        self.count = 0
        self.middle = np.empty(0)

    def compare(self, rows: np.ndarray) -> dict[str, float]:
        """``input_shift``: the squared distance of this batch's mean [B, F] from that of those before, in units of what
        independent samples give: 1 = shuffled, B = all samples of a batch alike, and unlike others."""
        own = rows.mean(0, dtype=np.float64)
        if self.middle.shape != own.shape:
            self.count, self.middle = 1, own
            return {}
        apart, spread = own - self.middle, (rows - own.astype(rows.dtype)).reshape(-1)
        between = float(apart @ apart) * self.count / (self.count + 1)
        inside = float(spread @ spread) / max(1, len(rows) - 1)
        self.count += 1
        self.middle = self.middle + apart / self.count
        total = between + inside
        return {"input_shift": len(rows) * between / total} if 0 < total < np.inf else {}
