"""A loss that is still that of guessing, where no finding says so: told as the page does (``js/src/judge/health.ts``)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cockpit_core.events.data import RunData, get_values
from cockpit_core.foundation.records import Evidence, Finding
from cockpit_core.report.terminal import format_number

ENOUGH = 50  # steps, and losses; before, a network may still be warming up
ACCURACY = re.compile(
    r"^log/(.*[_\-./ ])?(acc|accuracy|top[-_]?1)([_\-./ ](train|val|test|eval|dev)\w*)?$", re.IGNORECASE
)
HELD_OUT = re.compile("val|test|eval", re.IGNORECASE)
CLASS_LOSSES = ("CrossEntropyLoss", "NLLLoss")


def add_unlearned(data: RunData, findings: Sequence[Finding]) -> list[Finding]:
    """``findings``, behind "not learning" where that holds and nothing else is said. Labels that were suspected and taken
    back, because the loss moved a little, are a suspicion again."""
    told = data.findings and any(own.name == "not_learning" and not own.retracted for own in findings)
    silent = not told and all(own.retracted or own.severity == "advice" for own in findings)
    unlearned = find_unlearned(data) if silent else None
    if unlearned is None:
        return list(findings)
    again = [
        replace(own, retracted=False, severity="advice") if own.retracted and own.name == "labels_random" else own
        for own in findings
        if own.name != "not_learning" or own.retracted
    ]
    return [unlearned, *sorted(again, key=lambda own: own.retracted)]


def find_unlearned(data: RunData) -> Finding | None:
    steps, losses = get_values(data, "Loss")
    if len(losses) < ENOUGH or steps[-1] < ENOUGH:
        return None
    guess = guess_loss(data, losses)
    third = len(losses) // 3
    begun, ended = middle(losses[:third]), middle(losses[-third:])
    if guess is None or not ended >= 0.97 * guess[0] or not ended >= 0.97 * begun or beats_guessing(data):
        return None
    spread = float(np.subtract(*np.nanpercentile(losses[-third:], [75, 25])))
    doubted = any(own.name == "labels_random" and own.retracted for own in data.findings)
    if data.status == "running" and begun - ended > spread and not doubted:  # slow, and on its way
        return None
    value, why = guess
    text = f"Not learning: the loss is {format_number(ended)}, guessing {format_number(value)} ({why})."
    evidence = [Evidence("Loss", ended, high=value, step=int(steps[-1]))]
    return Finding("not_learning", "likely", text, int(steps[0]), evidence=evidence, step=int(steps[-1]))


def guess_loss(data: RunData, losses: np.ndarray) -> tuple[float, str] | None:
    """The loss of a network that knows nothing, and where that number is from; none where the log does not tell."""
    header = data.header
    loss = header.loss or header.options.get("loss function", "")
    if loss.startswith(CLASS_LOSSES):
        if (classes := count_classes(data)) < 2:
            return None
        entropy = label_entropy(data)
        value = math.log(classes) if entropy is None else min(math.log(classes), entropy)
        # The last tensor need not be the output: a network begins near guessing, or falls back to it.
        near = any(0.3 * value < end < 5 * value for end in (losses[0], losses[-1]))
        return (value, f"ln({classes})" if entropy is None else "label entropy") if near else None
    spread = average(data, "signal/target_std", 2) if loss.startswith("MSELoss") else None
    return (spread, "target variance") if spread else None


def beats_guessing(data: RunData) -> bool:
    """A score that nobody gets by guessing, nor by always naming the most common label."""
    classes = count_classes(data)
    scores = [name for name in data.table.columns if ACCURACY.search(name)]
    held_out = [name for name in scores if HELD_OUT.search(name)]
    if classes < 2 or not scores:
        return False
    now = get_values(data, (held_out or scores)[0])[1][-1]
    most = max(1 / classes, average(data, "signal/label_top_share") or 0.0)
    return bool((now / 100 if now > 1 else now) > most + (1 - most) / 10)


def count_classes(data: RunData) -> int:
    """Outputs of the last tensor, where the loss is one over classes; 0 where it is not."""
    loss, layers = data.header.loss or data.header.options.get("loss function", ""), data.header.layers
    return int(layers[-1].shape[0]) if loss.startswith(CLASS_LOSSES) and layers and len(layers[-1].shape) else 0


def label_entropy(data: RunData) -> float | None:
    """With few labels the entropy is too small, by about (kinds - 1) / (2 labels) (Miller and Madow, 1955): that is added."""
    entropy, labels = average(data, "signal/label_entropy"), average(data, "signal/label_count")
    if entropy is None:
        return None
    return entropy + ((math.exp(entropy) - 1) / (2 * labels) if labels else 0.0)


def average(data: RunData, name: str, power: int = 1) -> float | None:
    values = get_values(data, name)[1] if name in data.table.columns else np.empty(0)
    finite = values[np.isfinite(values)]
    return float(np.mean(finite**power)) if len(finite) else None


def middle(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else math.nan
