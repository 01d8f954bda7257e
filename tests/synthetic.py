"""A plausible run without any training: everything a log can hold, written through the real writer.

``python -m tests.synthetic runs/demo --steps 500`` makes one to look at. The numbers have the right shapes and scales
(a decaying loss, alpha around 0.3, a correlated cloud in the 2D histogram), nothing more.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cockpit_core.events.writer import EventWriter
from cockpit_core.foundation import records
from cockpit_core.quantities import ALL, HEADLINES, Quantity
from cockpit_core.recording.header import describe_quantity
from cockpit_core.schedules import as_schedule, describe

BATCH = 64
STEPS_PER_EPOCH = 50
CREATED = 1_700_000_000.0
HISTOGRAMS = ("histogram1d", "histogram2d")
OWN = records.QuantityInfo("WeightSparsity", "scalar", False, "", "Share of weights that are nearly zero.", "")
"""As a user writes one."""


def choose_quantities(instruments: bool) -> dict[str, type[Quantity]]:
    """Those of the paper, or with ``instruments`` all there are: a class that is added is in the runs unasked."""
    return {name: cls for name, cls in ALL.items() if instruments or not cls.question}


LAYERWISE = [name for name, cls in choose_quantities(False).items() if cls.layerwise and cls.kind == "scalar"]


@dataclass
class Story:
    """Everything that stays the same from step to step."""

    random: np.random.Generator
    layers: list[records.LayerInfo]
    steps: int
    sick: int | None
    warnings: bool
    epochs: bool
    instruments: bool = False


def make_layers(count: int) -> list[records.LayerInfo]:
    """``conv1.weight, conv1.bias, ...`` and a linear layer at the end."""
    infos: list[records.LayerInfo] = []
    for index in range(count):
        number, bias = index // 2 + 1, index % 2 == 1
        last = index >= count - 2
        module = "Linear" if last else "Conv2d"
        name = f"{'fc' if last else 'conv'}{number}.{'bias' if bias else 'weight'}"
        width = 8 * number
        shape: tuple[int, ...] = (width,) if bias else ((10, width) if last else (width, width, 3, 3))
        infos.append(records.LayerInfo(name, shape, math.prod(shape), module, "rule"))
    return infos


def make_header(
    name: str, layers: list[records.LayerInfo], every: int, epochs: bool, instruments: bool = False
) -> records.Header:
    schedule = as_schedule(every)
    classes = choose_quantities(instruments).values()
    quantities = [*(describe_quantity(cls(), schedule) for cls in classes), replace(OWN, schedule=describe(schedule))]
    group = {"lr": "0.1", "momentum": "0.9", "weight_decay": "0.0005"}
    return records.Header(
        run_id=f"synthetic-{name}",
        name=name,
        created=CREATED,
        model="SmallConvNet",
        num_parameters=sum(layer.size for layer in layers),
        layers=layers,
        loss="CrossEntropyLoss",
        optimizers=[records.OptimizerInfo("SGD", [group], [[layer.name for layer in layers]])],
        config="full",
        schedule=describe(schedule),
        curvature="hessian",
        quantities=quantities,
        versions={"python": "3.11.0", "torch": "2.13.0", "torch-cockpit": "0.1.0"},
        git_commit="0123456789abcdef0123456789abcdef01234567",
        batch_size=BATCH,
        notes=["made up, not measured"],
        options={"logdir": name},
        steps_per_epoch=STEPS_PER_EPOCH if epochs else 0.0,
    )


def _draw_scalars(story: Story, step: int) -> dict[str, float]:
    """What is told of each quantity; of one that this story does not know, some number."""
    told = _tell_scalars(story, step)
    others = np.random.default_rng(step)
    chosen = choose_quantities(story.instruments)
    return told | {n: others.lognormal(-1, 0.2) for n, c in chosen.items() if c.kind == "scalar" and n not in told}


def _tell_scalars(story: Story, step: int) -> dict[str, float]:
    random, progress = story.random, step / max(1, story.steps)
    loss = 0.08 + 2.2 * math.exp(-5 * progress) * random.lognormal(0, 0.08)
    noise = 0.3 + 1.5 * progress
    gradient = 1.5 * math.exp(-2 * progress) * random.lognormal(0, 0.15) * (6 if story.sick is not None else 1)
    trace = 40 + 160 * (1 - math.exp(-4 * progress)) * random.lognormal(0, 0.05)
    inner, ortho = noise * random.lognormal(0, 0.1), 2 * noise * random.lognormal(0, 0.1)
    rate = 0.1 * (0.1 if progress > 0.7 else 1.0)
    return {
        "Loss": loss,
        "Time": 0.021 * step,
        "GradNorm": gradient,
        "Distance": 6 * math.sqrt(progress),
        "UpdateSize": rate * gradient,
        "ParamNorm": 9 + 3 * progress,
        "NormTest": math.hypot(inner, ortho),
        "InnerTest": inner,
        "OrthoTest": ortho,
        "MeanGSNR": 0.2 * math.exp(-3 * progress) * random.lognormal(0, 0.1),
        "EarlyStopping": -2 * math.exp(-4 * progress) + 0.6 * progress + 0.05 * random.normal(),
        "CABS": 20 + 400 * progress * random.lognormal(0, 0.1),
        "HessTrace": trace,
        "HessMaxEV": 0.12 * trace * random.lognormal(0, 0.05),
        "TICDiag": 300 * noise * random.lognormal(0, 0.2),
        "TICTrace": noise * gradient**2 / trace * BATCH,
        "WeightSparsity": 0.02 + 0.1 * progress,
        "LearningRate": rate,
        "GradNormClipped": min(gradient, 1.0),
        "TopSampleNorm": 5 * gradient * random.lognormal(0, 0.2),
    }


def _draw_layers(story: Story, scalars: dict[str, float]) -> dict[str, np.ndarray]:
    """Norms add up in squares to the network's; the layer that is sick has next to no gradient."""
    sizes = np.array([layer.size for layer in story.layers], dtype=float)
    share = np.sqrt(sizes / sizes.sum())
    vectors = {}
    for name in (name for name in scalars if name in ALL and ALL[name].layerwise):
        spread = share * story.random.lognormal(0, 0.2, sizes.size)
        if ("Norm" in name and name != "NormTest") or name in ("Distance", "UpdateSize"):
            spread /= np.linalg.norm(spread)
        elif name == "HessTrace":
            spread /= spread.sum()
        else:
            spread = story.random.lognormal(0, 0.3, sizes.size)
        vectors[name] = scalars[name] * spread
        if story.sick is not None and name in ("GradNorm", "UpdateSize"):
            vectors[name][story.sick] *= 1e-6
    return vectors


def _draw_alpha(story: Story, step: int, scalars: dict[str, float]) -> records.AlphaFit:
    alpha = float(story.random.normal(0.3, 0.25))
    if story.random.random() < 0.03:  # off the scale of every panel
        alpha = float(story.random.choice([-1.0, 4.2, -6.5, 12.0]))
    length = max(scalars["UpdateSize"], 1e-6)
    slope, start = -scalars["GradNorm"], scalars["Loss"]
    bend = max(0.0, (alpha + 1) * -slope / (2 * length))
    end, slope_end = start + slope * length + bend * length**2, slope + 2 * bend * length
    spread = (0.2 * start) ** 2, (0.3 * slope) ** 2
    return records.AlphaFit(
        step,
        alpha,
        length,
        start,
        end,
        slope,
        slope_end,
        spread[0],
        spread[0],
        spread[1],
        spread[1],
        start,
        slope,
        bend,
    )


def _draw_histogram(story: Story, quantity: str, step: int, layer: str = "", size: int = 20000) -> records.Histogram:
    progress = step / max(1, story.steps)
    sick = story.sick is not None and layer == story.layers[story.sick].name
    scale = 1e-6 if sick else 0.5 * math.exp(-progress)
    gradients = scale * story.random.standard_t(3, size)
    two = ALL[quantity].kind == "histogram2d"
    edges = np.linspace(-1, 1, 41) if two else np.linspace(-2, 2, 101)
    below, above = int((gradients < edges[0]).sum()), int((gradients > edges[-1]).sum())
    inside = np.clip(gradients, edges[0], edges[-1])
    if not two:
        counts = np.histogram(inside, edges)[0]
        return records.Histogram(quantity, step, counts, edges, layer=layer, below=below, above=above)
    weights = 0.4 * gradients + 0.5 * story.random.normal(size=size)
    parameter_edges = np.linspace(-2, 2, 51)
    counts = np.histogram2d(inside, np.clip(weights, -2, 2), [edges, parameter_edges])[0].astype(np.uint32)
    outside = int((weights < -2).sum()), int((weights > 2).sum())
    return records.Histogram(
        quantity, step, counts, edges, parameter_edges, layer, 0, 0, 0, below, above, outside[0], outside[1]
    )


def _draw_notices(story: Story, step: int, number: int) -> list[records.Notice]:
    if not story.warnings:
        return []
    layer = story.layers[story.sick or 0].name
    planned = {
        2: [records.Notice(step, "outside_range", "12 % of the values lie outside the bins.", "GradHist2d", layer)],
        5: [records.Notice(step, "edge_of_stability", "HessMaxEV is above 2 / learning rate.", "HessMaxEV")],
        7: [records.Notice(step, "error", "ZeroDivisionError: division by zero", "WeightSparsity")],
    }
    return planned.get(number, [])


def _make_record(story: Story, step: int, number: int) -> tuple[records.Record, records.AlphaFit]:
    scalars = _draw_scalars(story, step)
    heavy_curvature = number % 2 == 0
    missing = {} if heavy_curvature else {"TICTrace": "the trace is not positive"}
    estimates = {"HessMaxEV": (0.002 * scalars["HessMaxEV"], "lanczos residual")}
    if missing:
        del scalars["TICTrace"]
    costs = dict.fromkeys(("shared", "GradHist1d", "GradHist2d", "HessMaxEV", "writing"), 0.0001 * (1 + number % 3))
    record = records.Record(
        kind="step",
        step=step,
        wall_time=CREATED + 0.021 * step,
        time=0.021 * step,
        epoch=step / STEPS_PER_EPOCH if story.epochs else None,
        batch_size=BATCH,
        scalars=scalars,
        layers=_draw_layers(story, scalars),
        notices=_draw_notices(story, step, number),
        missing=missing,
        estimates=estimates,
        costs={**costs, "step": 0.021},
        top_samples=[int(i) for i in story.random.permutation(BATCH)[:5]],
        triggered=story.warnings and number == 9,
    )
    return record, _draw_alpha(story, step, scalars)


def _write_step(writer: EventWriter, story: Story, step: int, number: int, waiting: list[records.AlphaFit]) -> None:
    record, fit = _make_record(story, step, number)
    record.alphas, waiting[:] = list(waiting), [fit]
    for quantity in (name for name, cls in choose_quantities(story.instruments).items() if cls.kind in HISTOGRAMS):
        if number % 10 == 0:
            layers = [_draw_histogram(story, quantity, step, layer.name, 2000) for layer in story.layers]
            writer.write_heavy(quantity, step, _draw_histogram(story, quantity, step), layers)
    writer.write_record(record)
    writer.write_scalars({name: record.scalars[name] for name in HEADLINES}, step)


def _find_layer(layers: list[records.LayerInfo], sick: int | str | None) -> int | None:
    return [layer.name for layer in layers].index(sick) if isinstance(sick, str) else sick


def write_run(
    logdir: str | Path,
    steps: int = 200,
    layers: int = 6,
    seed: int = 0,
    *,
    finished: bool = True,
    sick_layer: int | str | None = None,
    warnings: bool = True,
    epochs: bool = True,
    every: int = 1,
    start: int = 0,
    resume: bool = False,
    instruments: bool = False,
) -> Path:
    """Write one run of ``steps`` steps, of which every ``every``-th is tracked; return its event file.

    ``sick_layer`` (index or name) has a vanishing gradient. ``resume=True`` with ``start`` continues a run from a step.
    ``instruments``: also the quantities beyond the paper.
    """
    infos = make_layers(layers)
    random = np.random.default_rng(seed)
    story = Story(random, infos, steps, _find_layer(infos, sick_layer), warnings, epochs, instruments)
    waiting: list[records.AlphaFit] = []
    with EventWriter(logdir, resume=resume) as writer:
        writer.write_header(make_header(Path(logdir).name, infos, every, epochs, instruments))
        clock = CREATED + 0.021 * start
        writer.write_record(records.Record("start", start, clock, 0.021 * start))
        for number, step in enumerate(range(start, steps, every)):
            _write_step(writer, story, step, number, waiting)
            if step % STEPS_PER_EPOCH == 0:
                accuracy = {"log/valid_accuracy": 0.97 - 0.8 * math.exp(-6 * step / max(1, steps))}
                clock = CREATED + 0.021 * step + 0.01
                writer.write_record(records.Record("log", step, clock, clock - CREATED, scalars=accuracy))
        if finished:
            clock = CREATED + 0.021 * steps
            writer.write_record(records.Record("end", steps, clock, clock - CREATED, status="finished"))
        return writer.path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logdir")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--sick-layer")
    parser.add_argument("--unfinished", action="store_true")
    given = parser.parse_args()
    options = {"sick_layer": given.sick_layer, "finished": not given.unfinished, "every": given.every}
    print(write_run(given.logdir, given.steps, given.layers, given.seed, **options))


if __name__ == "__main__":
    main()
