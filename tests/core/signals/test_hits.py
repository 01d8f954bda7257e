"""Right answers, and the place of the label among the scores where an answer is wrong: against counting one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit_core
from cockpit_core.events.data import load
from cockpit_core.signals import between, outputs
from cockpit_core.signals.between import Between


def count(z: Tensor, labels: Tensor, ignored: int = -100) -> dict[str, float]:
    """[N, C] and [N], one row after the other; of equal scores the earlier one is the answer, and half count as above."""
    places, right = [], 0
    rows = [(row, int(y)) for row, y in zip(z.double().tolist(), labels.tolist(), strict=True) if y != ignored]
    for row, label in rows:
        if row.index(max(row)) == label:
            right += 1
            continue
        above = sum(v > row[label] for v in row) + (sum(v == row[label] for v in row) - 1) / 2
        places.append(max(0.0, above - 1) / (len(row) - 2))
    numbers = {"accuracy": right / len(rows), "label_rows": float(len(rows))}
    if places:
        low = sum(1.0 if p > 0.5 else 0.5 if p == 0.5 else 0.0 for p in places)
        numbers |= {"wrong_rank": sum(places) / len(places), "wrong_low": low / len(places)}
    return numbers


def random_rows(n: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, classes, generator=g), torch.randint(0, classes, (n,), generator=g)


def known(numbers: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if name != "guess_top_share"}


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_places_of_labels(classes: int, dtype: torch.dtype) -> None:
    z, y = random_rows(50, classes)
    z = z.to(dtype)
    assert known(outputs.measure_hits(z, y).value) == pytest.approx(count(z, y))


def test_equal_scores_and_ignored_labels() -> None:
    z, y = random_rows(40, 6)
    z = z.round()
    y[::5] = -100
    assert known(outputs.measure_hits(z, y, -100).value) == pytest.approx(count(z, y))
    same = outputs.measure_hits(torch.zeros(8, 5), torch.arange(8) % 5).value
    assert same["accuracy"] == 0.25 and same["wrong_rank"] == pytest.approx(1 / 3)
    assert outputs.measure_hits(torch.zeros(2, 5), torch.full((2,), -100), -100).value == {}
    broken = outputs.measure_hits(torch.full((4, 5), math.nan), torch.arange(4)).value
    assert broken == {}, "scores that are no numbers are neither right nor wrong"


def test_two_classes_have_no_places() -> None:
    z, y = random_rows(20, 2)
    assert "wrong_rank" not in outputs.measure_hits(z, y).value
    assert outputs.measure_hits(z, y[:3]).value == {}
    assert outputs.measure_hits(z[:, :1], y).value == {}


def test_several_labels_of_a_sample() -> None:
    g = torch.Generator().manual_seed(1)
    z, y = torch.randn(6, 5, 4, 3, generator=g), torch.randint(0, 5, (6, 4, 3), generator=g)
    rows = z.permute(0, 2, 3, 1).reshape(-1, 5)
    assert known(outputs.measure_hits(z, y).value) == pytest.approx(count(rows, y.reshape(-1)))


def test_of_large_tables_evenly_spread_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_SCORES", 640)
    z, y = random_rows(400, 10)
    few = outputs.measure_hits(z, y).value
    assert few["label_rows"] == 58
    assert known(few) == pytest.approx(count(z[::7], y[::7]))
    g = torch.Generator().manual_seed(1)
    z, y = torch.randn(40, 10, 16, generator=g), torch.randint(0, 10, (40, 16), generator=g)
    scores, labels = outputs.label_rows(z, y, 64)  # type: ignore[misc]
    at = torch.arange(0, 640, 11)  # ten would be even: the same places of every sample
    assert torch.equal(scores, z.transpose(1, 2).reshape(-1, 10)[at])
    assert torch.equal(labels, y.reshape(-1)[at])


@pytest.mark.parametrize("how", ["module", "function"])
def test_steps_between_records_are_added_up(how: str) -> None:
    seen, total = Between(0), []
    for seed in range(4):
        z, y = random_rows(16, 7, seed)
        y[0] = -100
        z.requires_grad_()
        if how == "module":
            seen.look_at_call(nn.CrossEntropyLoss(), (z, y), {})
        else:
            seen.look_at_root(F.cross_entropy(z * 2, y))
        total.append((z.detach(), y))
    truth = count(torch.cat([z for z, _ in total]), torch.cat([y for _, y in total]))
    renamed = {f"between_{name.removeprefix('label_').removeprefix('wrong_')}": value for name, value in truth.items()}
    assert seen.take() == pytest.approx(renamed)
    assert seen.take() == {}


def test_losses_without_classes_are_left_alone_soon() -> None:
    seen = Between(0)
    for _ in range(5):
        seen.look_at_call(nn.MSELoss(), (torch.randn(4, 1), torch.randn(4, 1)), {})
    assert not any(seen.is_due() for _ in range(100))


def test_a_run_has_them_between_its_records(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (Between(10**6).every, Between(1000).every) == (5, 20)
    monkeypatch.setattr(between, "SMALL", 0)
    torch.manual_seed(0)
    model, loss_fn = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = cockpit_core.track(model, loss_fn, optimizer, tmp_path, schedule=20)
    x, y = torch.randn(30, 6), torch.arange(30) % 5
    truth: list[float] = []
    for step in range(41):
        optimizer.zero_grad()
        z = model(x)
        if step in (23, 28, 33, 38):  # steps behind a record (1, 21) end its measurement: they are not idle
            truth.append(float((z.argmax(1) == y).float().mean()))
        loss_fn(z, y).backward()
        optimizer.step()
    run.close()
    columns = load(tmp_path).table.columns
    assert columns["signal/between_rows"].get()[1].tolist() == [3 * 30.0, 4 * 30.0]
    assert columns["signal/between_accuracy"].get()[1][-1] == pytest.approx(np.mean(truth))


def test_a_softmax_along_samples_or_places_shows_in_the_columns() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(6, 5, 4, generator=g)  # samples, places, classes
    for dim in (0, 1):
        rows = z.softmax(dim).reshape(-1, 4)
        assert outputs.measure_sums(rows).value["column_sum_error"] < 1e-5
    assert outputs.measure_sums(z.softmax(2).reshape(-1, 4)).value["column_sum_error"] > 0.1
    assert outputs.measure_sums(z.reshape(-1, 4)).value["column_sum_error"] > 0.1
    assert outputs.measure_sums(torch.ones(6, 4)).value["column_sum_error"] == 5, (
        "scores that are all one are no softmax"
    )
