"""The claim of the docs: samples with the largest gradients are the wrongly labelled ones."""

from __future__ import annotations

from pathlib import Path

from examples.find_wrong_labels import train


def test_most_of_the_worst_samples_are_flipped_ones(tmp_path: Path) -> None:
    *_, (worst, few) = train(tmp_path, seed=0, epochs=8)
    assert worst >= 0.7
    assert few >= 0.85
