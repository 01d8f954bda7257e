"""What the model should return: label counts, or the scale of real targets."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from cockpit_core.signals.given import measure_given
from cockpit_core.signals.inputs import make_weights
from cockpit_core.signals.reading import Steps, lower_median, signal
from cockpit_core.signals.tensors import as_rows

MOST_CLASSES = 100_000
MOST_LABELS = 65536
COARSE = 8


@signal
def measure_labels(labels: Tensor, batch_size: int, ignored: int | None = None) -> Steps[dict[str, float]]:
    """Counts of class indices. ``label_entropy`` in nats. With several labels per sample (tokens, pixels) the spread is that
    of the means of samples: labels of one sample go together; ``token_entropy``: what their frequencies alone would cost."""
    (flat,) = yield [labels.reshape(-1)[:MOST_LABELS]]
    whole = flat.size == labels.numel() and batch_size > 1 and flat.size % batch_size == 0
    rows = flat.reshape(batch_size, -1).mean(1) if whole and flat.size > batch_size else None
    if ignored is not None and (flat == ignored).any():
        flat, rows = flat[flat != ignored], None
    if not flat.size:
        return {}
    low, high = int(flat.min()), int(flat.max())
    numbers = {"label_min": float(low), "label_max": float(high), "label_count": float(flat.size)}
    if low < 0 or high >= MOST_CLASSES:
        return numbers
    counts = np.bincount(flat.astype(np.int64, copy=False)).astype(np.float64)
    shares = counts[counts > 0] / flat.size
    numbers["label_top_share"] = float(shares.max())
    if flat.size == batch_size:
        place = np.arange(len(counts), dtype=np.float64)
        mean = float(counts @ place) / flat.size
        numbers["label_entropy"] = float(-(shares @ np.log(shares)))
        numbers["target_rows"] = float(flat.size)
        numbers |= mark_order(flat)
        numbers["target_mean"] = mean
        numbers["target_variance"] = float(counts @ (place - mean) ** 2) / flat.size
        return numbers
    if flat.size > 3 * len(shares):  # of few labels the entropy comes out too small: about (K - 1) / 2N (Miller, 1955)
        numbers["token_entropy"] = float(-(shares @ np.log(shares))) + (len(shares) - 1) / (2 * flat.size)
    if rows is not None:
        numbers |= {
            "target_rows": float(batch_size),
            "target_mean": float(rows.mean()),
            "target_variance": float(rows.var()),
        }
    return numbers


@signal
def measure_targets(y: Tensor) -> Steps[dict[str, float]]:
    """Real targets. ``target_scale`` is the median of their sizes: heavy tails do not move it. ``target_std`` is the
    deviation over samples, output by output: what is left of a squared error when each output is always its mean.
    (The mean over all targets: the mean of a batch of 8 fits those 8 by an eighth too well.)"""
    (rows,) = yield [as_rows(y)]
    broken = rows.size - int(np.count_nonzero(np.isfinite(rows)))
    if broken:
        return {"target_not_finite": float(broken)}
    rows = rows.astype(np.float64)
    per_sample, flat = rows.mean(1), rows.reshape(-1)
    numbers = {
        "target_scale": lower_median(np.abs(flat)),
        "target_std": math.sqrt(rows.var(0, ddof=int(len(rows) > 1)).mean()),
        "target_spread": lower_median(np.abs(flat - lower_median(flat))),
        "target_min": flat.min(),
        "target_max": flat.max(),
        "target_mean": per_sample.mean(),
        "target_variance": per_sample.var(),
        "target_rows": len(rows),
    }
    known = {name: float(value) for name, value in numbers.items() if math.isfinite(value)}
    return known | mark_order(flat)


LEAST_ORDERED, MOST_ORDERED = 16, 512  # targets


def mark_order(targets: np.ndarray) -> dict[str, float]:
    """``target_order``: a number that is the same for the same targets in the same order, whatever was done to their inputs. None
    where they are sorted or repeat themselves (pairs, episodes with a few samples of each class, labels of an adversary), nor
    where whole numbers name places in the batch (the other picture of the same thing)."""
    y = targets[:MOST_ORDERED].astype(np.float64)
    steps = np.diff(y)
    if y.size < LEAST_ORDERED or not ((steps > 0).any() and (steps < 0).any()):
        return {}
    if targets.dtype.kind in "iu" and np.unique(y).size == y.size:
        return {}
    periods = np.flatnonzero(y[1 : y.size // 2 + 1] == y[0])[:32] + 1
    if any((y[period:] == y[:-period]).all() for period in periods.tolist()):
        return {}
    return {"target_order": float(np.modf(y @ make_weights(y.size))[0])}


MOST_PLACES = 8192
MOST_FEATURES = 1024  # of a sequence
MOST_TARGETS = 16  # of a sample, each of which is looked for among the features
SAME_NUMBERS = 1e-7  # correlations of the same numbers, scaled in single precision, are as close to 1
RISES = 0.5  # correlation above which a rising function is looked for


def as_columns(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets as rows of features and one target each: those of places, where both are pictures of the same
    size (a mask, and a channel that shows it)."""
    labels = y[:, None] if y.dim() == x.dim() - 1 else y
    alike = x.dim() > 2 and labels.dim() == x.dim() and labels.shape[1] == 1 and labels.shape[2:] == x.shape[2:]
    if not alike or len(labels) != len(x):
        return x, y
    count = max(1, MOST_PLACES // max(1, labels[0].numel()))
    return x[:count].movedim(1, -1).reshape(-1, x.shape[1]), labels[:count].reshape(-1)


@signal
def measure_likeness(x: Tensor, y: Tensor) -> Steps[dict[str, float]]:
    """The largest correlation of one input feature with the target [B], and which it is. 1: the target is among the
    inputs. Of the feature that is most like it also that of the ranks: any function that only rises gives a target away. Of
    sequences every feature at every place counts by itself. Of several targets (a forecast) ``targets_found``: the share that is
    among the inputs, number for number. Not of reconstructions, whose targets are as many as the inputs, nor of inputs too wide to
    look at whole."""
    y = y.reshape(len(y), -1) if y.dim() else y.reshape(1, 1)
    if x.dim() == 3 and x[0].numel() <= MOST_FEATURES:
        x = x.flatten(1)
    several = y.shape[1] > 1
    if x.dim() != 2 or len(y) != len(x) or len(x) < 8 or x.shape[1] < 2 or x.numel() > 65536:
        return {}
    if several and (y.shape[1] > MOST_TARGETS or x.shape[1] < 2 * y.shape[1] or not y.is_floating_point()):
        return {}
    rows, goal = yield [x.double(), y.double()]
    rows, goal = rows - rows.mean(0), goal - goal.mean(0)
    lengths = np.outer(np.linalg.norm(goal, axis=0), np.linalg.norm(rows, axis=0))
    each = np.where(lengths > 0, np.abs(goal.T @ rows) / lengths, 0.0)
    if not np.isfinite(lengths).all() or not np.isfinite(each).all():
        return {}
    likeness = each.max(0)
    top = int((likeness > likeness.max() - SAME_NUMBERS).argmax())
    most = float(likeness[top])
    if several:
        share = float((each.max(1) > 1 - SAME_NUMBERS).mean())
        return {"input_target": most, "input_target_where": float(top), "targets_found": share}
    if RISES < most < 1 - SAME_NUMBERS:
        most = max(most, abs(float(np.corrcoef(rank(rows[:, top]), rank(goal[:, 0]))[0, 1])))
    return {"input_target": most, "input_target_where": float(top)}


def rank(values: np.ndarray) -> np.ndarray:
    """Places in the order of size; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


@signal
def measure_pairs(x: Tensor, y: Tensor) -> Steps[dict[str, float]]:
    """``pair_likeness``: by how much more an input is like its own target than like that of another sample (correlations of what
    differs from the mean of the batch). Of pictures of any two sizes, coarsely, and of targets that have the shape of inputs."""
    pictures = x.dim() == 4 and y.dim() == 4
    if not (pictures or (x.dim() > 1 and x.shape == y.shape)) or len(x) != len(y) or len(x) < 8:
        return {}
    ours, theirs = yield [coarse(t).double() if pictures else as_rows(t, 8192).double() for t in (x, y)]
    ours, theirs = (rows - rows.mean(0) for rows in (ours, theirs))
    lengths = np.linalg.norm(ours, axis=1), np.linalg.norm(theirs, axis=1)
    if not (lengths[0].all() and lengths[1].all()):
        return {}
    ours, theirs = ours / lengths[0][:, None], theirs / lengths[1][:, None]
    apart = (ours * theirs).sum(1).mean() - (ours * np.roll(theirs, 1, 0)).sum(1).mean()
    return {"pair_likeness": float(apart)} if math.isfinite(apart) else {}


BESIDE_INPUTS = (measure_pairs, measure_given)


def coarse(pictures: Tensor) -> Tensor:
    """[B, 64]: 8 by 8 places, all channels together."""
    return adaptive_avg_pool2d(pictures.float().mean(1), COARSE).flatten(1)


@signal
def measure_constant(loss_fn: nn.Module, y: Tensor) -> Steps[dict[str, float]]:
    """``target_chance``: what L1, smooth L1 and Huber losses are when each output is always the median of its targets."""
    if len(y) < 4 or not isinstance(loss_fn, (nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)):
        return {}
    (rows,) = yield [y.reshape(len(y), -1)[:, :256].float()]
    columns = np.ascontiguousarray(rows.T, dtype=np.float64)
    gap = np.abs(columns - lower_median(columns)[:, None])
    if isinstance(loss_fn, nn.L1Loss):
        return {"target_chance": float(gap.mean())}
    border = loss_fn.beta if isinstance(loss_fn, nn.SmoothL1Loss) else loss_fn.delta
    loss = np.where(gap < border, gap**2 / 2, border * (gap - border / 2))
    if isinstance(loss_fn, nn.SmoothL1Loss):  # the same curve, scaled; an L1 loss where the border is zero
        loss = loss / border if border > 0 else gap
    return {"target_chance": float(loss.mean())}


@signal
def measure_likelihood(loss_fn: nn.Module, y: Tensor) -> Steps[dict[str, float]]:
    """``likelihood_chance``: what a likelihood of counts or of a normal density is when the answer is always the mean (and
    variance) of each output. ``likelihood_floor``: the least that counts allow."""
    counts = isinstance(loss_fn, nn.PoissonNLLLoss) and loss_fn.log_input and not loss_fn.full
    if len(y) < 4 or not (counts or (isinstance(loss_fn, nn.GaussianNLLLoss) and not loss_fn.full)):
        return {}
    (rows,) = yield [y.reshape(len(y), -1)[:, :256].double()]
    middle = rows.mean(0)
    if counts:
        chance, floor = middle - times_log(middle), rows - times_log(rows)
        return {"likelihood_chance": float(chance.mean()), "likelihood_floor": float(floor.mean())}
    spread = rows.var(0, ddof=1)
    return {"likelihood_chance": float(0.5 * (np.log(np.maximum(spread, 1e-30)) + 1).mean())} if spread.all() else {}


def times_log(values: np.ndarray) -> np.ndarray:
    """``y log y``, 0 at 0."""
    return values * np.log(np.where(values > 0, values, 1.0))
