"""Kinds of networks whose layers see the batch in another form: windows of images, sentences of documents, sorted sequences."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.kinds import B, E, Kind, sequence, squares


class Windows(nn.Module):
    """Attention inside windows, of which each image has as many as there are samples, shifted and put back."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(3, E), nn.Linear(E, 2)
        self.inside = nn.MultiheadAttention(E, 2, batch_first=True)
        self.bias = nn.Parameter(torch.randn(4, 4) / 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.roll(self.into(x), (-1, -1), (1, 2))
        windows = x.view(-1, 2, 2, 2, 2, E).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, E)
        seen = self.inside(windows, windows, windows, attn_mask=self.bias)[0]
        back = seen.view(-1, 2, 2, 2, 2, E).permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        return self.head(torch.roll(back, (1, 1), (1, 2)).mean((1, 2)))


class Axes(nn.Module):
    """Attention along rows, then along columns with time first."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.head = nn.Linear(3, E), nn.Linear(E, 2)
        self.along, self.across = nn.MultiheadAttention(E, 2, batch_first=True), nn.MultiheadAttention(E, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        rows = y.flatten(0, 1)
        y = y + self.along(rows, rows, rows, need_weights=False)[0].view_as(y)
        columns = y.permute(1, 0, 2, 3).flatten(1, 2)
        y = y + self.across(columns, columns, columns, need_weights=False)[0].view(4, -1, 4, E).transpose(0, 1)
        return self.head(y.mean((1, 2)))


class Sentences(nn.Module):
    """One recurrence over the words of each sentence, another over the sentences of each document."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.sentences = nn.GRU(3, E, batch_first=True), nn.GRU(E, E, batch_first=True)
        self.head = nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        each = self.words(x.flatten(0, 1))[1][0].view(len(x), -1, E)
        return self.head(self.sentences(each)[1][0])


class Sorted(nn.Module):
    """Samples in another order while a layer with a batch of its own works on them, as for packed sequences."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.into, self.inner, self.head = nn.Linear(E, E), inner, nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0, 0].argsort(descending=True)
        y = self.into(x)[order]
        if isinstance(self.inner, nn.MultiheadAttention):
            y = self.inner(y, y, y)[0]
        elif self.inner.batch_first:
            y = self.inner(y)[0]
        else:
            y = self.inner(y.transpose(0, 1))[0].transpose(0, 1)
        return self.head(y[order.argsort()].mean(1))


class Own(nn.Module):
    """No rule of ours: parameters of its own on k B rows, with as many positions as samples."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(E, E)), nn.Parameter(torch.ones(E))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.tanh(rows @ self.weight) * self.scale


class Folded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.inner, self.head = nn.Linear(3, E), Own(), nn.Linear(E, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        return self.head(self.inner(y.flatten(0, 1)).view_as(y).mean((1, 2)))


def images() -> tuple[Tensor]:
    return (torch.randn(B, 4, 4, 3).double(),)


REGROUPED: dict[str, Kind] = {
    "windows": Kind(Windows, images, squares),
    "axes": Kind(Axes, images, squares),
    "sentences": Kind(Sentences, images, squares),
    "sorted, attention": Kind(lambda: Sorted(nn.MultiheadAttention(E, 2, batch_first=True)), sequence, squares),
    "sorted, batch first": Kind(lambda: Sorted(nn.LSTM(E, E, batch_first=True)), sequence, squares),
    "sorted, time first": Kind(lambda: Sorted(nn.GRU(E, E)), sequence, squares),
    "folded": Kind(Folded, images, squares),
}
