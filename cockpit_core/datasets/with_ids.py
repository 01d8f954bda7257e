"""A dataset that says who its samples are, for ``run.batch(ids=...)``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset, IterableDataset

KEY = "ids"


class WithIds(Dataset):
    """Every sample of ``dataset``, followed by its index: ``(inputs, label)`` becomes ``(inputs, label, index)``.

    A sample that is a dictionary gets one more key (``ids``, or ``key=``); any other sample becomes a pair. Shuffling,
    samplers, workers and collating are as before, and everything else (``classes``, ``targets``, ...) is the dataset's own.
    The index is the one in ``dataset``: put ``WithIds`` around the whole dataset and take subsets of it, so that ids
    mean the
    same in every split.
    """

    def __init__(self, dataset: Any, *, key: str = KEY):
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                f"{type(dataset).__name__} has no indices: it is read one sample after the other. Let it give a number per "
                "sample itself, and hand that to run.batch(ids=...)"
            )
        self.dataset, self.key = dataset, key

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self._join(self.dataset[index], index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Several at once, where the dataset can: DataLoader asks for this."""
        fetch = getattr(self.dataset, "__getitems__", None)
        samples = fetch(indices) if fetch is not None else [self.dataset[index] for index in indices]
        return [self._join(sample, index) for sample, index in zip(samples, indices, strict=True)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # not there while it is unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def _join(self, sample: Any, index: int) -> Any:
        if isinstance(sample, Mapping):
            if self.key in sample:
                raise ValueError(f"a sample has a {self.key!r} already; choose another name: WithIds(dataset, key=...)")
            return {**sample, self.key: int(index)}
        if isinstance(sample, tuple) and not hasattr(sample, "_fields"):
            return (*sample, int(index))
        return [*sample, int(index)] if isinstance(sample, list) else (sample, int(index))
