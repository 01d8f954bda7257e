"""Runs as the judge sees them, made up step by step: a healthy one, to be changed in one respect."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cockpit_core.diagnosis.history import Observation
from cockpit_core.diagnosis.judge import Judge, rank
from cockpit_core.foundation.records import Finding, Header, LayerInfo, OptimizerInfo

LAYERS = ("a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias")
Change = Callable[[int, dict[str, float]], None]


def make_header(loss: str = "CrossEntropyLoss", optimizer: str = "SGD", **options: str) -> Header:
    header = Header("id", "run", 0.0, loss=loss, batch_size=32)
    header.layers = [
        LayerInfo(name, (10, 10) if "weight" in name else (10,), 100 if "weight" in name else 10) for name in LAYERS
    ]
    group = {"lr": "0.1", "momentum": "0", "weight_decay": "0"}
    group |= {"betas": "(0.9, 0.999)", "eps": "1e-08"} if optimizer.startswith("Adam") else {}
    header.optimizers = [OptimizerInfo(optimizer, [group | options])]
    header.options = {"activations": "relu1\nrelu2"}
    return header


SIGNALS: dict[str, float] = {
    "samples": 32,
    "input_rms": 1,
    "input_mean": 0,
    "input_max": 3,
    "input_zeros": 0,
    "input_not_finite": 0,
    "input_constant": 0,
    "input_tail": 1.5,
    "input_ratio": 1.5,
    "batch_duplicates": 0,
    "output_min": -1,
    "output_max": 1.2,
    "output_rms": 0.5,
    "output_not_finite": 0,
    "output_spread": 0.3,
    "row_sum_error": 2,
    "row_log_sum_error": 2,
    "column_sum_error": 9,
    "column_log_sum_error": 3,
    "classes": 10,
    "label_min": 0,
    "label_max": 9,
    "label_count": 32,
    "label_distinct": 9,
    "label_top_share": 0.2,
    "label_entropy": 2.1,
    "target_variance": 8,
    "guess_top_share": 0.2,
    "dead": 0.05,
    "dead_where": 1,
    "dead_layers": 0,
    "activation_first": 0.5,
    "activation_last": 0.4,
    "activation_max": 0.6,
    "training": 1,
    "eval_dropout": 0,
    "eval_batchnorm": 0,
    "ungraded": 0,
    "ungraded_prefix": 0,
    "called": 6,
    "ungraded_none": 0,
    "leftover": 0,
    "passes": 1,
    "loss_std": 0.5,
    "loss_min": 0.1,
    "steps_to_go": 60,
}
"""Of a healthy step, those that stay as they are."""


def healthy_scalars(i: int, n: int) -> dict[str, float]:
    """Ten classes, the loss falls from ln 10 to a tenth of it, with the noise of independent batches."""
    wave = math.sin(12.9898 * i) * 43758.5453
    noise = 2 * (wave - math.floor(wave)) - 1
    loss = 2.3 * (0.1 + 0.9 * math.exp(-4 * i / n))
    signals = SIGNALS | {
        "batch_checksum": (0.37 * i) % 1,
        "target_mean": 4.5 + 0.5 * noise,
        "accuracy": 1 - loss / 2.6,
        "loss_max": 3 * loss,
        "loss_median": loss,
    }
    scalars = {
        "Loss": loss + 0.08 * noise,
        "GradNorm": 1.0,
        "GradNormClipped": 1.0,
        "UpdateSize": 0.1,
        "ParamNorm": 10.0,
        "Distance": 3.0 * i / n,
        "NormTest": 1.0,
        "LearningRate": 0.1,
        "HessMaxEV": 10.0,
        "Alpha": -0.3,
    }
    return scalars | {f"signal/{name}": float(value) for name, value in signals.items()}


def of_codes(i: int, scalars: dict[str, float]) -> None:
    """A text: ten answers to a sample, and no numbers go in."""
    for name in [name for name in scalars if name.startswith("signal/input_")]:
        del scalars[name]
    scalars["signal/label_count"] = 320.0


STATIC = {
    "static_sum": 0,
    "static_unoptimized": 0,
    "static_foreign": 0,
    "static_dropout": 0,
    "static_batchnorms": 0,
    "static_constant": 0,
    "static_batchnorm_momentum": 0,
    "static_matrices": 3,
    "static_softmax_last": 0,
    "static_linear_pairs": 0,
    "static_norm_first": 0,
    "static_mode_dependent": 0,
    "static_training": 1,
    "static_frozen": 0,
}


def replay_history(
    change: Change | None = None,
    *,
    header: Header | None = None,
    static: dict[str, float] | None = None,
    layers: Callable[[int], dict[str, np.ndarray]] | None = None,
    n: int = 40,
    every: int = 5,
    batch: int = 32,
    logged: Callable[[int], dict[str, float]] | None = None,
    finished: bool = False,
) -> Judge:
    """A run of ``n`` tracked steps, each changed by ``change(i, scalars)``; signals by their full names. ``logged``: what the
    user logs behind every fourth. ``finished``: the run has come to its end."""
    judge = Judge()
    judge.know(header or make_header())
    judge.start({f"signal/{k}": float(v) for k, v in (STATIC | (static or {})).items()}, 0, 0)
    for i in range(n):
        scalars = healthy_scalars(i, n) | {"signal/samples": float(batch)}
        if change is not None:
            change(i, scalars)
        plain = {
            name: np.full(len(LAYERS), value)
            for name, value in (("GradNorm", 0.4), ("UpdateSize", 0.04), ("ParamNorm", 4.0))
        }
        judge.see(Observation(every * i, scalars, plain | (layers(i) if layers else {}), batch))
        if logged is not None and i % 4 == 3:
            judge.note(every * i, logged(i))
    if finished:
        judge.finish(Observation(every * n, {"signal/finished": 1.0}))
    assert not judge.failed, judge.failed
    return judge


def find(*args: object, **options: object) -> dict[str, Finding]:
    """What ``diagnose`` would give, by name."""
    return {finding.name: finding for finding in rank(replay_history(*args, **options).found.values())}  # type: ignore[arg-type]
