"""One run: make the program, seed the fault, train with Cockpit, write the validation loss beside the log."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import Tensor, nn

import cockpit_core
from benchmarks.diagnosis.faults import FAULTS, Job
from benchmarks.diagnosis.healthy import AWKWARD, draw
from benchmarks.diagnosis.programs import PROGRAMS, Settings

LEAN = ("Loss", "GradNorm", "UpdateSize", "ParamNorm", "Distance", "NormTest", "Alpha", "HessMaxEV")
TRACKING = {"full": ("full", 5), "default": ("economy", 1), "lean": (LEAN, 5)}


def make_job(program_name: str, case: str, seed: int) -> Job:
    """``case`` is "healthy", "awkward/<name>", "severe/<fault>" or "mild/<fault>"."""
    program, (grade, _, what) = PROGRAMS[program_name], case.partition("/")
    torch.manual_seed(1000 * seed + 17)
    settings = draw(program, seed) if grade == "healthy" and seed else Settings(**vars(program.settings))
    data = program.make_data(torch.Generator().manual_seed(seed))
    job = Job(program, settings, data, program.make_model(settings), program.make_loss(), mild=grade == "mild")
    initialise(job.model, settings.init)
    if grade in ("severe", "mild"):
        FAULTS[what][0](job)
    elif grade == "awkward":
        AWKWARD[what](job)
    if job.optimizer is None:
        job.remake_optimizer()
    return job


def initialise(model: nn.Module, how: str) -> None:
    ways = {"kaiming": nn.init.kaiming_normal_, "xavier": nn.init.xavier_uniform_, "orthogonal": nn.init.orthogonal_}
    if how in ways:
        for module in model.modules():
            if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
                ways[how](module.weight)


def rate_factor(s: Settings, step: int) -> float:
    if s.schedule == "exponential":
        return s.decay**step
    if s.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / s.steps))
    if s.schedule == "warmup":
        return min(1.0, (step + 1) / (0.1 * s.steps)) * 0.5 * (1 + math.cos(math.pi * step / s.steps))
    return 0.3 ** (step * 3 // s.steps) if s.schedule == "steps" else 1.0


def batches(job: Job, seed: int):
    """Indices of one batch after the other, epoch by epoch."""
    g, n, size = torch.Generator().manual_seed(seed), len(job.data.x), min(job.settings.batch, len(job.data.x))
    while True:
        order = torch.randperm(n, generator=g) if job.shuffle else torch.arange(n)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]
            if job.same_batch:
                order[size:] = order[: n - size].clone()
                break
        if job.same_batch:
            first = order[:size]
            while True:
                yield first


def train(job: Job, logdir: Path, seed: int, tracking: str) -> None:
    s, model, optimizer = job.settings, job.model, job.optimizer
    assert optimizer is not None
    config, schedule = TRACKING[tracking]
    if tracking == "lean":  # the same evidence as "full" where time is short: curvature at every other tracked step
        config = [cockpit_core.quantities.named(name) for name in LEAN]
        config[-1].schedule = 10
    model.train(not job.eval_mode)
    rates = [group["lr"] for group in optimizer.param_groups]
    run = cockpit_core.track(model, job.loss, optimizer, logdir, config=config, schedule=schedule)
    source = batches(job, seed)
    for step in range(s.steps):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * rate_factor(s, step)
        at = next(source)
        if job.zero_grad:
            optimizer.zero_grad()
        for part in at.chunk(s.accumulate):
            output = model(job.data.x[part])
            output = job.output(output) if job.output else output
            loss = job.loss(output, job.data.y[part])
            (job.sign * loss / (s.accumulate if job.divide else 1)).backward()
        if s.clip:
            nn.utils.clip_grad_norm_(model.parameters(), s.clip)
        optimizer.step()
    run.close()


def validate(job: Job) -> float:
    """Error on fresh data that no fault touches: share of wrong answers, or squared error over variance."""
    model, data = job.model.eval(), job.data
    with torch.no_grad():
        z = model(data.valid_x)
        if job.program.kind in ("classes", "tokens"):
            return float((z.argmax(1) != data.valid_y).float().mean())
        y = data.valid_y.reshape(len(data.valid_y), -1)
        error: Tensor = (z.reshape(len(z), -1) - y).square().mean() / y.var()
        return min(float(error), 100.0) if math.isfinite(float(error)) else 100.0


def run_case(program: str, case: str, seed: int, folder: Path, tracking: str) -> None:
    job = make_job(program, case, seed)
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of [B, 1] against [B], which is one of the faults
        train(job, folder / "log", seed, tracking)
    result = {
        "program": program,
        "case": case,
        "seed": seed,
        "validation": validate(job),
        "settings": vars(job.settings),
    }
    (folder / "result.json").write_text(json.dumps(result))
