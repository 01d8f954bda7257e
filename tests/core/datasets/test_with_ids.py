"""A dataset that passes indices on: whatever shuffles, batches and fetches it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import cockpit_core
from cockpit_core import WithIds
from cockpit_core import quantities as q

INPUTS, LABELS = torch.arange(20.0).reshape(10, 2), torch.arange(10)


class Pairs(Dataset):
    classes = ("odd", "even")

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], index % 2


class Named(Pairs):
    def __getitem__(self, index: int) -> Any:
        return {"x": INPUTS[index], "y": index % 2}


class Bare(Pairs):
    def __getitem__(self, index: int) -> Any:
        return INPUTS[index]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(INPUTS)


@pytest.mark.parametrize("workers", [0, 1])
def test_ids_go_with_their_samples_through_shuffling_and_workers(workers: int) -> None:
    loader = DataLoader(WithIds(Pairs()), batch_size=3, shuffle=True, num_workers=workers)
    seen = []
    for inputs, labels, ids in loader:
        assert torch.equal(inputs, INPUTS[ids])
        assert torch.equal(labels, ids % 2)
        seen += ids.tolist()
    assert sorted(seen) == list(range(10))


def test_dictionaries_bare_samples_and_tensor_datasets() -> None:
    batch = next(iter(DataLoader(WithIds(Named()), batch_size=4)))
    assert batch["ids"].tolist() == [0, 1, 2, 3]
    inputs, ids = next(iter(DataLoader(WithIds(Bare()), batch_size=4)))
    assert torch.equal(inputs, INPUTS[ids])
    inputs, labels, ids = next(iter(DataLoader(WithIds(TensorDataset(INPUTS, LABELS)), batch_size=4, shuffle=True)))
    assert torch.equal(labels, ids)
    assert torch.equal(inputs, INPUTS[ids])


def test_a_subset_keeps_the_ids_of_the_whole() -> None:
    loader = DataLoader(Subset(WithIds(Pairs()), [7, 2, 5]), batch_size=3)
    assert next(iter(loader))[2].tolist() == [7, 2, 5]


def test_it_is_the_dataset_in_everything_else() -> None:
    wrapped = WithIds(Pairs())
    assert len(wrapped) == 10
    assert wrapped.classes == ("odd", "even")
    assert pickle.loads(pickle.dumps(wrapped))[3][2] == copy.deepcopy(wrapped)[3][2] == 3
    with pytest.raises(AttributeError):
        wrapped.targets  # noqa: B018


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match="Stream has no indices"):
        WithIds(Stream())
    with pytest.raises(ValueError, match="choose another name"):
        WithIds(Named(), key="y")[0]


def test_hard_samples_are_found_by_their_ids(tmp_path: Path) -> None:
    """One label is wrong: its sample has the largest gradients, under its index in the dataset."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 3, generator=generator)
    inputs[17] = torch.tensor([4.0, 0, 0])
    labels = (inputs[:, 0] > 0).long()
    labels[17] = 0
    torch.manual_seed(0)
    model, loss_fn = nn.Linear(3, 2), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loader = DataLoader(WithIds(TensorDataset(inputs, labels)), batch_size=8, shuffle=True, generator=generator)
    with cockpit_core.track(model, loss_fn, optimizer, tmp_path / "run", config=[q.HardSamples(top=3)]) as run:
        for _ in range(10):
            for x, y, ids in loader:
                run.batch(ids=ids)
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
    assert run.data.histogram("HardSamples").counts[0, 0] == 17
