"""What the tests of ``compare`` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records

Curves = Callable[[np.ndarray, np.random.Generator], dict[str, np.ndarray]]


def write_run(
    path: Path,
    curves: Curves,
    *,
    optimizer: str = "SGD",
    lr: float = 0.1,
    seed: int = 0,
    steps: Iterable[int] = range(400),
    accuracy: Callable[[float], float] | None = None,
    end: str = "finished",
    width: int = 4,
    loss: str = "CrossEntropyLoss",
    **header: object,
) -> Path:
    """A run with these curves; seconds are a hundredth of the step."""
    at = np.array(list(steps))
    columns = curves(at, np.random.default_rng(seed + 1000 * len(optimizer)))
    options = {"seed": str(seed), "memory_budget": "1", **dict(header.pop("options", {}))}
    groups = [{"lr": f"{lr:g}", "betas": "(0.9, 0.999)"} if optimizer == "Adam" else {"lr": f"{lr:g}", "momentum": "0"}]
    layers = [records.LayerInfo("fc.weight", (width, 3), 3 * width)]
    versions = dict(header.pop("versions", {"cockpit": "0.1.0"}))
    described = records.Header(
        run_id=str(path), name=path.name, created=0.0, model="Net", num_parameters=3 * width, layers=layers, loss=loss,
        optimizers=[records.OptimizerInfo(optimizer, groups)], options=options, batch_size=64, versions=versions,
        quantities=[records.QuantityInfo(name) for name in columns], **header,
    )  # fmt: skip
    with EventWriter(path) as writer:
        writer.write_header(described)
        for number, step in enumerate(at):
            scalars = {name: float(values[number]) for name, values in columns.items()}
            writer.write_record(records.Record("step", int(step), 0.01 * step, 0.01 * step, scalars=scalars))
            if accuracy is not None and number % 10 == 9:
                logged = {"log/valid_accuracy": accuracy(float(step))}
                writer.write_record(records.Record("log", int(step), 0.01 * step, 0.01 * step, scalars=logged))
        if end:
            writer.write_record(records.Record("end", int(at[-1]), 0.01 * at[-1], 0.01 * at[-1], status=end))
    return path


def noisy(random: np.random.Generator, values: np.ndarray, width: float = 0.05) -> np.ndarray:
    return values * random.lognormal(0, width, len(values))


def story(loss_from: int = 200, update_from: int = 40, stronger: float = 3.0) -> Curves:
    """The update is ``stronger`` times as long from one step on, the loss falls faster from a later one on."""

    def draw(steps: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
        late = np.maximum(steps - loss_from, 0) / 60
        return {
            "Loss": noisy(random, 2.3 * np.exp(-steps / 400 - (late if stronger > 1 else 0)) + 0.05),
            "UpdateSize": noisy(random, np.where(steps >= update_from, 0.1 * stronger, 0.1)),
            "GradNorm": noisy(random, np.full(len(steps), 1.5)),
            "ParamNorm": noisy(random, np.full(len(steps), 10.0), 0.01),
            "NormTest": noisy(random, np.full(len(steps), 0.5)),
        }

    return draw


def write_pair(folder: Path, seeds: int = 3) -> list[Path]:
    """Adam's accuracy runs ahead from step 240 on."""
    runs = []
    for seed in range(seeds):
        options = {"optimizer": "Adam", "lr": 0.001, "seed": seed, "accuracy": lambda t: t / 600 + 0.2 * (t > 240)}
        runs.append(write_run(folder / f"adam{seed}", story(), **options))
        runs.append(write_run(folder / f"sgd{seed}", story(stronger=1.0), seed=seed, accuracy=lambda t: t / 600))
    return runs
