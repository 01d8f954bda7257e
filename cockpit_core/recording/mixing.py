"""Does the answer to a sample depend on the other samples of its batch? In evaluation mode it must not. Does that to a place of
a text depend on later places? Where the next token is asked for, it must not either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cockpit_core.engine.forward import Forward
from cockpit_core.layers.module_state import NotRepeatable
from cockpit_core.layers.seeds import flatten_tensors

FEWEST = 4  # samples, or places of a text


def measure_mixing(model: nn.Module, forward: Forward, batch_dim: int) -> tuple[float, float]:
    """How far the answers to the first half of the batch move, over their own length, when the other half is replaced by
    the first; and how far answers lie apart, over the same. The size of the batch stays: a model may count on it."""
    samples = forward.batch_size
    if samples < FEWEST or not is_plain(model, forward, samples):
        raise NotRepeatable("not a batch of samples that could be exchanged")
    exchange = exchanger(samples, batch_dim)
    args, kwargs = map_tensors(forward.args, exchange), map_tensors(forward.kwargs, exchange)
    with torch.no_grad():
        before = list(answers(forward.repeat(model, same=False), samples, batch_dim))
        after = list(answers(forward.repeat(model, args, kwargs, same=False), samples, batch_dim))
    if any(answer.shape == (samples, samples) for answer in before):
        raise NotRepeatable("each sample is compared with all others")
    if not before or len(before) != len(after):
        raise NotRepeatable("the model gives no answer for each sample")
    moved = max(distance(a, b, samples // 2, batch_dim) for a, b in zip(before, after, strict=True))
    return moved, max(distance(a, a.roll(1, batch_dim), samples, batch_dim) for a in before)


def is_plain(model: nn.Module, forward: Forward, samples: int) -> bool:
    """Rows that are tied to one another are no samples (the nodes of a graph, with a table of who is beside whom), and
    normalising over the batch is meant to mix them."""
    given = list_tensors(forward)
    tied = any(t.dim() >= 2 and t.shape[0] == t.shape[1] == samples for t in (*given, *model.buffers()))
    edges = any(t.dim() == 2 and len(t) == 2 != samples and not t.is_floating_point() for t in given)
    normalised = any(getattr(module, "track_running_stats", True) is False for module in model.modules())
    return not (tied or edges or normalised)


def list_tensors(forward: Forward) -> list[Tensor]:
    """All that the model was given, of any type."""
    tensors: list[Tensor] = []
    map_tensors((forward.args, forward.kwargs), partial(note, tensors))
    return tensors


def note(tensors: list[Tensor], value: Tensor) -> Tensor:
    tensors.append(value)
    return value


def exchanger(samples: int, dim: int) -> Callable[[Tensor], Tensor]:
    half = samples // 2
    places = torch.cat([torch.arange(half), torch.arange(samples - half) % half])

    def exchange(value: Tensor) -> Tensor:
        counts = value.dim() > dim and value.shape[dim] == samples
        return value.index_select(dim, places.to(value.device)) if counts else value

    return exchange


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same structure with other tensors. What is not known to be plain (packed sequences) is refused."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(map_tensors(item, change) for item in value)
    if type(value) is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    if flatten_tensors(value):
        raise NotRepeatable("inputs of a kind that cannot be exchanged")
    return value


def answers(result: Any, samples: int, dim: int) -> Iterator[Tensor]:
    for tensor in flatten_tensors(result):
        if tensor.is_floating_point() and tensor.dim() > dim and tensor.shape[dim] == samples:
            yield tensor.detach()


def distance(before: Tensor, after: Tensor, half: int, dim: int) -> float:
    a, b = before.narrow(dim, 0, half).double(), after.narrow(dim, 0, half).double()
    return float(torch.linalg.vector_norm(a - b) / torch.linalg.vector_norm(a).clamp_min(1e-30))


def measure_looking_ahead(model: nn.Module, forward: Forward) -> float:
    """How far the answers to all but the last quarter of the places move, over their own length, when the tokens of that quarter
    are exchanged among the samples. In the mode in which the network trains, with the same random numbers. Of several texts
    each by itself, the one that moves them least: a decoder may see all of what is translated, but not of what it writes. What
    the last answers do not depend on is no text that is read (labels, beside which the model gives its loss)."""
    moved, fits = [0.0], False
    with torch.no_grad():
        given = forward.repeat(model, same=False)
        for text in find_texts(forward):
            samples, places = text.shape
            if not (before := list(answers_at(given, samples, places))):
                continue  # what is translated may be of another length
            fits, kept = True, places - max(1, places // 4)
            exchange = partial(exchange_later, text, kept)
            args, kwargs = map_tensors(forward.args, exchange), map_tensors(forward.kwargs, exchange)
            after = list(answers_at(forward.repeat(model, args, kwargs, same=False), samples, places))
            pairs = list(zip(before, after, strict=True))
            if any(not torch.equal(a[:, kept:], b[:, kept:]) for a, b in pairs):
                moved.append(max(distance(a, b, kept, 1) for a, b in pairs))
    if not fits:
        raise NotRepeatable("the model gives no answer for each place")
    return min(moved[1:] or moved)


def find_texts(forward: Forward) -> list[Tensor]:
    """The tokens that the model was given, each once (they may be its labels as well), without masks beside them."""
    codes = [t for t in list_tensors(forward) if t.dim() == 2 and not t.is_floating_point() and t.shape[1] >= FEWEST]
    if not codes or len(codes[0]) < 2 or any(len(t) != len(codes[0]) for t in codes):
        raise NotRepeatable("no tokens")
    texts: list[Tensor] = []
    for code in [t for t in codes if t.max().long() - t.min().long() > 1] or codes:
        if not any(t.shape == code.shape and torch.equal(code, t) for t in texts):
            texts.append(code)
    return texts


def exchange_later(text: Tensor, kept: int, value: Tensor) -> Tensor:
    if value.is_floating_point() or value.shape != text.shape or not torch.equal(value, text):
        return value
    return torch.cat([value[:, :kept], value[:, kept:].roll(1, 0)], 1)


def answers_at(result: Any, samples: int, places: int) -> Iterator[Tensor]:
    """[samples, places, ...], however the model arranges them."""
    for tensor in flatten_tensors(result):
        if not tensor.is_floating_point() or tensor.dim() < 2:
            continue
        if tensor.shape[:2] == (samples, places):
            yield tensor.detach()
        elif tensor.dim() == 3 and tensor.shape[0] == samples and tensor.shape[2] == places:
            yield tensor.detach().transpose(1, 2)
        elif len(tensor) == samples * places:
            yield tensor.detach().reshape(samples, places, -1)
