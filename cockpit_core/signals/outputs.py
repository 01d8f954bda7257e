"""What the loss gets from the network: range, sums of rows and columns, shapes, whether it depends on the input."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from cockpit_core.signals.inputs import add, highest, lowest, mean_size, without_broken
from cockpit_core.signals.reading import Steps, signal
from cockpit_core.signals.tensors import as_rows

AT_HAND = (torch.float32, torch.float64)
every = np.logical_and.reduce
MOST_SCORES, FEWEST_ROWS, MOST_ROWS = 65536, 64, 8192  # that are compared with those of their labels


@signal
def measure_outputs(z: Tensor) -> Steps[dict[str, float]]:
    """``output_spread``: root mean square over units of the standard deviation over samples."""
    (rows,) = yield [as_rows(z)]
    rows, broken, size = without_broken(rows)
    numbers = {"output_min": float(lowest(rows, None)), "output_max": float(highest(rows, None)), "output_rms": size}
    if broken:
        numbers["output_not_finite"] = float(broken)
    if rows.shape[0] >= 4:
        numbers["output_spread"] = mean_size(rows - add(rows, 0) / np.float32(rows.shape[0]))
    return numbers


@signal
def measure_sums(z: Tensor, logs: bool = True) -> Steps[dict[str, float]]:
    """How far rows and columns of scores [B, C, ...] are from adding up to one: largest distance. Zero means that a
    softmax was taken; a row sum of one for the scores that cross-entropy gets means that it is taken twice. ``logs``:
    also of exponentials, where zero means a log_softmax."""
    if z.dim() < 2 or z.shape[1] < 2 or not z.is_floating_point():
        return {}
    scores = z[:256] if z.dim() == 2 else z[:64].reshape(min(64, z.shape[0]), z.shape[1], -1)[:, :, :8]
    tables, names = [(scores.float(), 1)], ["row"]
    if z.dim() == 2 and 1 < z.shape[0] <= 4096:
        tables.append((z.float(), 0))
        names.append("column")
    sums = yield [part for table, dim in tables for part in add_up(table, dim, logs)]
    numbers, each = {}, 2 if logs else 1
    for place, name in enumerate(names):
        total = sums[each * place]
        numbers[f"{name}_sum_error"] = float(np.abs(total - (1 if name == "row" else whole(total, len(z)))).max())
        if logs:
            numbers[f"{name}_log_sum_error"] = float(np.abs(sums[each * place + 1]).max())
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def whole(sums: np.ndarray, rows: int) -> float:
    """What sums over the rows would be behind a softmax along them: 1, or a whole number where rows are those of several
    such groups (samples and places in one table)."""
    middle = float(sums.mean())
    return float(round(middle)) if 1.5 < middle < rows - 0.5 else 1.0


def add_up(scores: Tensor, dim: int, logs: bool) -> list[Tensor]:
    """There may be many classes, so sums are taken on their device."""
    return [scores.sum(dim), scores.logsumexp(dim)] if logs else [scores.sum(dim)]


def measure_broadcast(z: Tensor, y: Tensor) -> dict[str, float]:
    """By how much an elementwise loss grows two shapes that differ: 1 = not at all. [B, 1] against [B] gives B."""
    try:
        shape = torch.broadcast_shapes(z.shape, y.shape)
    except RuntimeError:
        return {}
    largest = max(z.numel(), y.numel())
    return {"broadcast": math.prod(shape) / max(1, largest)}


@signal
def measure_hits(
    z: Tensor, labels: Tensor, ignored: int | None = None, most: int = MOST_ROWS
) -> Steps[dict[str, float]]:
    """Scores [B, C] or [B, C, ...] against class indices: the share of rows whose largest score is that of their label, and
    the place of the label among the scores of those that are wrong. ``wrong_rank``: 0 = second best, 1 = last, on average;
    a label that has nothing to do with the sample is anywhere (0.5), one that is mistaken for another comes soon after it.
    ``wrong_low``: the share that is in the lower half. Of large tables evenly spread rows are looked at."""
    rows = label_rows(z, labels, most)
    if rows is None:
        return {}
    scores, labels = rows
    if scores.is_cpu and labels.is_cpu:
        table, truth = yield [scores if scores.dtype in AT_HAND else scores.float(), labels.long()]
        own = table[np.arange(len(table)), np.clip(truth, 0, z.shape[1] - 1)][:, None]
        guess, above, level = table.argmax(1), add(table > own, 1), add(table >= own, 1)
    else:
        own = scores.gather(1, labels.clamp(0, z.shape[1] - 1).long()[:, None])
        guess, truth, above, level = yield [scores.argmax(1), labels, (scores > own).sum(1), (scores >= own).sum(1)]
    # A score that is no number is above nothing, not even itself.
    counted = (truth >= 0) & (truth < z.shape[1]) & (level > 0)
    if ignored is not None:
        counted &= truth != ignored
    if not every(counted):
        guess, truth, above, level = (part[counted] for part in (guess, truth, above, level))
    return summarise_hits(guess, truth, (above + level - 1) / 2, z.shape[1])


def label_rows(z: Tensor, labels: Tensor, most: int) -> tuple[Tensor, Tensor] | None:
    """Scores [N, C] and labels [N], at most so many rows and ``MOST_SCORES`` of the former; None where shapes do not fit."""
    if z.dim() < 2 or not z.shape[1] > 1 or labels.shape != (z.shape[0], *z.shape[2:]) or not labels.numel():
        return None
    most = min(most, max(FEWEST_ROWS, MOST_SCORES // z.shape[1]))
    if z.dim() == 2:
        gap = -(-len(z) // most)
        return (z, labels) if gap == 1 else (z[::gap], labels[::gap])
    gap = -(-labels.numel() // most)
    flat, places = z.reshape(z.shape[0], z.shape[1], -1), labels.reshape(len(labels), -1)
    if gap > 1:
        while math.gcd(gap, places.shape[1]) > 1:  # not the same place of every sample
            gap += 1
        at = torch.arange(0, places.numel(), gap, device=z.device)
        sample, place = at // places.shape[1], at % places.shape[1]
        return flat[sample, :, place], places[sample, place]
    return flat.transpose(1, 2).reshape(-1, z.shape[1]), places.reshape(-1)


def summarise_hits(guess: np.ndarray, truth: np.ndarray, rank: np.ndarray, classes: int) -> dict[str, float]:
    """``rank``: how many scores are above the label's; of equal ones half."""
    if not guess.size:
        return {}
    wrong = guess != truth
    count = int(np.count_nonzero(wrong))
    numbers = {
        "accuracy": 1 - count / guess.size,
        "guess_top_share": float(np.bincount(guess).max()) / guess.size,
        "label_rows": float(guess.size),
    }
    if count and classes > 2:
        place = np.maximum(rank[wrong] - 1, 0) / (classes - 2)
        numbers["wrong_rank"] = float(place.mean())
        numbers["wrong_low"] = float((np.count_nonzero(place > 0.5) + np.count_nonzero(place == 0.5) / 2) / count)
    return numbers


@signal
def measure_binary_hits(z: Tensor, y: Tensor, border: float) -> Steps[dict[str, float]]:
    """The same for yes-or-no answers: the share of right ones, and of the more common target."""
    if z.shape != y.shape or not z.numel():
        return {}
    yes = y > 0.5
    hits, share = yield [((z > border) == yes).float().mean(), yes.float().mean()]
    return {"accuracy": float(hits), "label_top_share": max(float(share), 1 - float(share))}


@signal
def measure_same(tokens: list[Tensor], y: Tensor) -> Steps[dict[str, float]]:
    """Share of targets that are the very token at the same place of an input: a decoder has an input of its own.
    ``target_is_next``: that are the token at the next place, where that is another one (a text that stays what it is for long,
    or is padded, has next tokens that tell nothing). ``target_is_later``: at the place after that."""
    rows = [own for own in tokens if own.dim() == 2 and own.shape[1] > 2]
    ahead = [share_of_later(own, y.reshape(own.shape), places) for places in (1, 2) for own in rows]
    shares = yield [*((own.reshape(-1) == y.reshape(-1)).float().mean() for own in tokens), *ahead]
    same, following = shares[: len(tokens)], shares[len(tokens) :]
    numbers = {"target_is_input": max(float(share) for share in same)}
    for name, first in (("target_is_next", 0), ("target_is_later", len(rows))):
        numbers |= {name: max(float(share) for share in following[first : first + len(rows)])} if rows else {}
    return numbers


def share_of_later(own: Tensor, y: Tensor, places: int) -> Tensor:
    moves = own[:, places:] != own[:, places - 1 : -1]
    return ((own[:, places:] == y[:, :-places]) & moves).sum() / moves.sum().clamp_min(1)
