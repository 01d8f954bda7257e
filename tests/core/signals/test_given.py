"""A class that is written into the inputs is found, wherever it stands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cockpit_core.signals.given import measure_given

B, K = 32, 4
LABELS = torch.arange(B) % K


def look(x: Tensor, labels: Tensor = LABELS) -> dict[str, float]:
    return measure_given(x, labels).value


def test_a_label_left_in_a_pixel() -> None:
    x = torch.randn(B, 1, 8, 8)
    assert look(x) == {"label_given": 0}
    x[:, 0, 0, 3] = 2.0 * LABELS
    assert look(x) == {"label_given": 1, "label_given_where": 3}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_label_left_by_one_hot(dtype: torch.dtype) -> None:
    x = torch.cat([torch.randn(B, 5), 8 * F.one_hot(LABELS, K)], 1).to(dtype)
    assert look(x) == {"label_given": 1, "label_given_where": 5}


def test_a_feature_that_tells_some_classes_tells_some() -> None:
    x = torch.randn(B, 5)
    x[:, 2] = (LABELS == 1).float()
    assert look(x) == {"label_given": 0.5, "label_given_where": 2}  # class 1, and one of the others


def test_a_value_that_a_class_has_by_accident_tells_nothing() -> None:
    x = torch.randn(B, 5)
    x[:, 0] = 1.0  # all have it
    x[0, 1] = x[4, 1] = 9.0  # two of eight
    assert look(x) == {"label_given": 0}
    alone = LABELS.clone()
    alone[0] = K  # one sample of its class in this batch: it has one value of everything
    assert look(x, alone) == {"label_given": 0}


@pytest.mark.parametrize(("classes", "samples"), [(2, 16), (20, 48), (100, 32)])
def test_features_of_few_values_tell_the_classes_of_a_batch_by_accident(classes: int, samples: int) -> None:
    g = torch.Generator().manual_seed(0)
    drawn = (torch.rand(classes, 196, generator=g) < 0.3).float()
    for _ in range(20):
        labels = torch.randint(0, classes, (samples,), generator=g)
        x = (drawn[labels] - (torch.rand(samples, 196, generator=g) < 0.05).float()).abs()
        assert look(x, labels).get("label_given", 0) < 1


def test_what_is_not_a_number_tells_nothing() -> None:
    x = torch.randn(B, 5)
    x[:, 1] = torch.where(LABELS == 0, torch.nan, 1.0)
    assert look(x) == {"label_given": 0}


@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (torch.randint(9, (B, 5)), LABELS),  # tokens: the answer may be one of them by right
        (torch.randn(8, 5), LABELS[:8]),
        (torch.randn(B, 5), torch.randn(B)),
        (torch.randn(B, 5), torch.zeros(B, dtype=torch.long)),
        (torch.randn(B, 5), LABELS.reshape(-1, 2)),
        (torch.randn(B), LABELS),
        (torch.randn(B, 40_000), LABELS),
    ],
)
def test_where_nothing_can_be_said_nothing_is(x: Tensor, labels: Tensor) -> None:
    assert look(x, labels) == {}
