"""A character-level language model: which letter comes next in a novel?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from cockpit_core import datasets
from cockpit_core.problems.base import Data, Problem, Split

LENGTH = 50
WIDTH = 128
LETTERS = "\n" + "".join(map(chr, range(32, 127)))  # 96: any text fits
ALIKE = str.maketrans(
    {"\u2014": "-", "\u2013": "-", "\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\t": " "}
)


def mobydick_char_rnn() -> Problem:
    return Problem(
        name="mobydick_char_rnn",
        description="An LSTM of two layers with 128 units reads 50 characters of Moby Dick and predicts each next one.",
        make_model=CharacterModel,
        make_loss=nn.CrossEntropyLoss,
        make_data=load_text,
        parameters=288_864,
        batch_size=50,
        epochs=20,
    )


class CharacterModel(nn.Module):
    """[B, 50] numbers of characters to [B, 96, 50] scores, classes first as ``CrossEntropyLoss`` wants them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, characters: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(characters))
        return self.head(hidden).transpose(1, 2)


def load_text(folder: Path | None) -> Data:
    """Pieces of 50 characters; the last fifth of the text is for validation and test, half of it each."""
    codes = encode(datasets.moby_dick(folder))
    count = (len(codes) - 1) // LENGTH
    inputs = torch.from_numpy(codes[: count * LENGTH].reshape(count, LENGTH))
    targets = torch.from_numpy(codes[1 : count * LENGTH + 1].reshape(count, LENGTH))
    ends = 0, count - 2 * (count // 10), count - count // 10, count
    parts = [slice(ends[i], ends[i + 1]) for i in range(3)]
    return Data(*(Split(inputs[part], targets[part]) for part in parts))


def encode(text: str) -> np.ndarray:
    """Numbers of characters; one that is not in the list counts as a question mark."""
    number = {letter: index for index, letter in enumerate(LETTERS)}
    other = number["?"]
    return np.array([number.get(letter, other) for letter in text.translate(ALIKE)], np.int64)
