"""One run: make the program, seed the fault, train with Cockpit, write the validation error beside the log.

The log has all that rules read, so that runs are scored again when rules change, without training again.
"""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import cockpit_core
from benchmarks.diagnosis.faults import FAULTS
from benchmarks.diagnosis.healthy import AWKWARD, draw
from benchmarks.diagnosis.job import Job
from benchmarks.diagnosis.programs import PROGRAMS, Settings

LOOKS = 10  # at validation data, over the run
UNREAD = ("GradHist1d", "GradHist2d", "HessTrace", "TICDiag")  # of "full", and dear: no rule looks at them


def choose_tracking(tracking: str) -> dict[str, Any]:
    """Arguments of ``track``: "full" at every 5th step; the same without what no rule reads; or nothing at all."""
    if tracking == "default":
        return {}
    whole = cockpit_core.quantities.configuration("full")
    kept = [quantity for quantity in whole if tracking == "full" or type(quantity).__name__ not in UNREAD]
    return {"config": kept, "schedule": 5}


def make_job(program_name: str, case: str, seed: int) -> Job:
    """``case`` is "plain" (the program's own settings), "healthy" (drawn), "awkward/<name>", "severe/<fault>" or
    "mild/<fault>". Of one seed all have the same data."""
    program, (grade, _, what) = PROGRAMS[program_name], case.partition("/")
    torch.manual_seed(1000 * seed + 17)
    settings = draw(program, seed) if grade == "healthy" else Settings(**vars(program.settings))
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
    chosen = choose_tracking(tracking)
    model.train(not job.eval_mode)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(s, step))
    scaler = torch.amp.GradScaler("cpu", init_scale=job.loss_scale or 1.0, enabled=job.loss_scale > 0)
    run = cockpit_core.track(model, job.loss, optimizer, logdir, **chosen)
    source = batches(job, seed)
    for step in range(s.steps):
        if job.resume_at and step == job.resume_at:
            run.close()
            run = cockpit_core.track(model, job.loss, optimizer, logdir, resume=True, step=step, **chosen)
        if job.scheduler_first:
            scheduler.step()
        take_step(job, next(source), optimizer, scaler)
        if not job.scheduler_first:
            scheduler.step()
        if (step + 1) % (s.steps // LOOKS) == 0:
            run.log(**look_at_validation(job))
    run.close()


def look_at_validation(job: Job) -> dict[str, float]:
    """What a user would log now and then: the loop's own loss on data that are not trained on, and the share of right
    answers. These data are without the fault's noise: rules may use that a loss rises, not that it is lower there."""
    model, data = job.model, job.data
    mode = model.training
    with torch.no_grad():
        output = model.eval()(data.valid_x)
        found = {"valid_loss": float(job.loss(job.output(output) if job.output else output, data.valid_y))}
        if job.program.kind in ("classes", "tokens"):
            found["valid_accuracy"] = float((output.argmax(1) == data.valid_y).float().mean())
    model.train(mode)
    return found


def take_step(job: Job, at: Tensor, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
    s = job.settings
    if job.zero_grad:
        optimizer.zero_grad()
    for part in at.chunk(s.accumulate):
        output = job.model(job.data.x[part])
        output = job.output(output) if job.output else output
        loss = job.loss(output, job.data.y[part])
        scaler.scale(job.sign * loss / (s.accumulate if job.divide else 1)).backward()
    if s.clip:
        nn.utils.clip_grad_norm_(job.model.parameters(), s.clip)
    scaler.step(optimizer)
    scaler.update()


def validate(job: Job) -> float:
    """Error on fresh data that no fault touches: share of wrong answers, or squared error over variance; for texts, where
    several letters may follow and the best answer is mostly wrong, cross-entropy over that of a guess."""
    model, data = job.model.eval(), job.data
    with torch.no_grad():
        z = model(data.valid_x).float()
        if job.program.kind == "tokens":
            surprise = float(nn.functional.cross_entropy(z, data.valid_y)) / math.log(z.shape[1])
            return min(surprise, 100.0) if math.isfinite(surprise) else 100.0
        if job.program.kind == "classes":
            return float((z.argmax(1) != data.valid_y).float().mean())
        y = data.valid_y.reshape(len(data.valid_y), -1).float()
        error: Tensor = (z.reshape(len(z), -1) - y).square().mean() / y.var()
        return min(float(error), 100.0) if math.isfinite(float(error)) else 100.0


def run_case(program: str, case: str, seed: int, folder: Path, tracking: str) -> None:
    job = make_job(program, case, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of [B, 1] against [B] and of schedulers, which are faults here
        train(job, folder / "log", seed, tracking)
    result = {
        "program": program,
        "case": case,
        "seed": seed,
        "validation": validate(job),
        "settings": vars(job.settings),
        "where": job.where,
        "inputs": [float(job.data.x.min()), float(job.data.x.max())],
    }
    (folder / "result.json").write_text(json.dumps(result))
