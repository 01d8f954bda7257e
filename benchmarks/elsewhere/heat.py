"""A heated ring: the temperature some time later from the temperature now and the heaters' power. A dataclass for the
configuration, Conv1d with tanh, nn.MSELoss, SGD with momentum and a cosine."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

POINTS = 32


@dataclass
class Config:
    # data
    runs: int = 900
    scaling: str = "standard"  # of what goes in: "standard" or "raw"
    celsius: str = "standard"  # of the targets: "standard", "raw" or "tens"
    broken: float = 0.0  # share of thermometers that show nonsense
    broken_by: float = 60.0
    jitter: float = 0.0  # noise of the measured targets
    # model
    kind: str = "mlp"
    width: int = 96
    layers: int = 2
    act: str = "tanh"
    norm: str | None = None
    dropout: float = 0.0
    skip: bool = False
    end: str | None = None
    init: str | None = None
    gain: float = 1.0
    bias: float | None = None
    zero_head: bool = False
    freeze: bool = False
    pretrain: int = 0
    # training
    loss: str = "mse"
    reduction: str = "mean"
    optimizer: str = "sgd"
    lr: float = 0.2
    momentum: float = 0.9
    nesterov: bool = False
    decay: float = 0.0
    eps: float = 1e-8
    schedule: str = "cosine"
    gamma: float = 1.0
    clip: float | None = None
    loss_scale: float = 1.0
    batch: int = 32
    accumulate: int = 1
    divide: bool = True
    steps: int = 600
    bug: str | None = None


def simulate(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Temperatures now (kelvin), power of the heaters (watt), temperatures later. Hot metal conducts better."""
    g = torch.Generator().manual_seed(seed)
    angle = 2 * math.pi * torch.arange(POINTS) / POINTS
    u = 1.0 + torch.zeros(count, POINTS)
    for k in (1, 2, 3, 5, 7):
        a, b = torch.randn(2, count, 1, generator=g) * 0.4 / k**0.7
        u = u + a * (k * angle).cos() + b * (k * angle).sin()
    u = u.clamp(0.1, 2.5)
    where, width = 2 * math.pi * torch.rand(count, 1, generator=g), 0.3 + 0.4 * torch.rand(count, 1, generator=g)
    away = (angle - where + math.pi).remainder(2 * math.pi) - math.pi
    power = torch.rand(count, 1, generator=g) * torch.exp(-((away / width) ** 2))
    now, dt = u + 0.04 * torch.randn(u.shape, generator=g), 0.05
    for _ in range(60):
        middle = 0.5 * (u + u.roll(-1, 1))
        flow = (0.2 + 3.0 * torch.sigmoid(10 * (middle - 1.1))) * (u.roll(-1, 1) - u)
        u = u + dt * (flow - flow.roll(1, 1) + 1.0 * power - 0.12 * u**4)
    return 300 + 150 * now, 2000 * power, 300 + 150 * u


class Skip(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def make_model(c: Config) -> nn.Sequential:
    act = {
        "tanh": nn.Tanh,
        "gelu": nn.GELU,
        "silu": nn.SiLU,
        "relu": nn.ReLU,
        "sigmoid": nn.Sigmoid,
        "none": nn.Identity,
    }[c.act]
    parts: list[nn.Module] = [nn.Flatten()] if c.kind == "mlp" else []
    size = 2 * POINTS if c.kind == "mlp" else 2
    for i in range(c.layers):
        if c.kind == "mlp":
            layer: nn.Module = nn.Linear(size, c.width)
        else:
            layer = nn.Conv1d(size, c.width, 5, padding=2, padding_mode="circular")
        block = [layer, act()]
        if c.norm == "batch":
            block.insert(1, nn.BatchNorm1d(c.width))
        elif c.norm == "group":
            block.insert(1, nn.GroupNorm(4, c.width))
        if c.dropout:
            block.append(nn.Dropout(c.dropout))
        parts += [Skip(nn.Sequential(*block))] if c.skip and i else block
        size = c.width
    if c.kind == "mlp":
        parts.append(nn.Linear(size, POINTS))
    else:
        parts += [nn.Conv1d(size, 1, 1), nn.Flatten()]
    if c.end:
        parts.append({"tanh": nn.Tanh, "relu": nn.ReLU}[c.end]())
    model = nn.Sequential(*parts)
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d))]
    for m in layers:
        if c.init == "xavier":
            nn.init.xavier_normal_(m.weight, gain=1.0)
            nn.init.zeros_(m.bias)
        m.weight.data *= c.gain
    for m in layers[:-1]:
        if c.bias is not None:
            nn.init.constant_(m.bias, c.bias)
    if c.zero_head:
        nn.init.zeros_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
    return model


def make_data(c: Config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What goes in and what should come out, for training and for validation, and the targets' mean and scale."""
    now, power, later = simulate(c.runs, 41)
    now_v, power_v, later_v = simulate(300, 42)
    x, xv = torch.stack([now, power], 1), torch.stack([now_v, power_v], 1)
    mean, std = x.mean((0, 2), keepdim=True), x.std((0, 2), keepdim=True)
    if c.scaling == "standard":
        x, xv = (x - mean) / std, (xv - mean) / std
    shift, unit = {"standard": (later.mean(), later.std()), "tens": (273.0, 10.0), "raw": (0.0, 1.0)}[c.celsius]
    y, yv = (later - shift) / unit, (later_v - shift) / unit
    if c.jitter:
        y = y + c.jitter * y.std() * torch.randn_like(y)
    if c.broken:
        x = torch.where(torch.rand_like(x) < c.broken, c.broken_by * torch.randn_like(x), x)
    if c.bug == "predicts_now":  # the row of the same time instead of the one later
        y = (now - shift) / unit
    if c.bug == "next_run":
        y = y.roll(1, 0)
    if c.bug == "answer_among_inputs":
        x[:, 1] = y
        xv[:, 1] = yv.mean()
    if c.bug == "one_reading_for_all":
        x[:, 0], xv[:, 0] = x[0, 0, 0], x[0, 0, 0]
    if c.bug == "kept_channel":  # the targets as [runs, 1, points], as what goes in
        y = y[:, None]
    return x, y, xv, yv, later_v.var() / unit**2


def fit(c: Config, logdir: str) -> float:
    x, y, xv, yv, variance = make_data(c)
    n = len(x)
    batch = min(c.batch, n)
    model = make_model(c)
    if c.pretrain:
        early = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(c.pretrain):
            pick = torch.randint(0, n, (32,))
            early.zero_grad()
            nn.functional.mse_loss(model(x[pick]), y[pick]).backward()
            early.step()
    if c.freeze:
        next(m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv1d))).requires_grad_(False)
    loss_fn = {"mse": nn.MSELoss, "huber": nn.SmoothL1Loss, "l1": nn.L1Loss}[c.loss](reduction=c.reduction)
    params = [p for p in model.parameters() if p.requires_grad]
    if c.bug == "only_the_last":
        params = list(model[-1].parameters())
    optimizer = make_optimizer(
        c.optimizer, params, c.lr, momentum=c.momentum, nesterov=c.nesterov, weight_decay=c.decay, eps=c.eps
    )

    def rate(step: int) -> float:
        if c.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / c.steps))
        if c.schedule == "warmup":
            return min(1.0, (step + 1) / 40)
        if c.schedule == "step":
            return 0.3 ** (3 * step // c.steps)
        return c.gamma**step

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    def validate() -> float:
        model.eval()
        with torch.no_grad():
            out = model(xv).reshape(yv.shape)
        model.train()
        return nn.functional.mse_loss(out, yv).item()

    def epochs():
        while True:
            order = torch.randperm(n)
            for start in range(0, n - batch + 1, batch):
                yield order[start : start + batch]

    picks = epochs()
    for step in range(c.steps):
        if c.bug != "keeps_gradients":
            optimizer.zero_grad()
        for _ in range(c.accumulate):
            pick = next(picks)
            loss = loss_fn(model(x[pick]), y[pick])
            if c.bug == "minus":
                loss = -loss
            if c.divide:
                loss = loss / c.accumulate
            (loss * c.loss_scale).backward()
        if c.clip:
            nn.utils.clip_grad_norm_(model.parameters(), c.clip)
        if c.loss_scale != 1:  # only now back to the true gradients
            for p in model.parameters():
                p.grad /= c.loss_scale
        optimizer.step()
        scheduler.step()
        if step % 75 == 74:
            run.log(valid_loss=validate())
    run.close()
    error = validate() / float(variance)
    return error if math.isfinite(error) else math.inf


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    return fit(Config(**vars(o)), logdir)


PROGRAM = Program(
    name="heat",
    half="K",
    train=train,
    settings={key: value for key, value in dataclasses.asdict(Config()).items() if key != "bug"},
    faults=[
        severe("learning_rate_too_high", lr=5.0),
        mild("learning_rate_too_high", lr=1.2),
        severe("learning_rate_too_low", lr=7e-4),
        mild("learning_rate_too_low", lr=7e-3),
        severe("schedule_too_fast", schedule="exp", gamma=0.95),
        severe("clipping_too_hard", clip=1e-3),
        severe("weight_decay_too_high", decay=0.3),
        mild("weight_decay_too_high", decay=0.06),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=4),
        severe("momentum_too_high", momentum=0.999),
        mild("momentum_too_high", momentum=0.99),
        severe("gradients_not_zeroed", bug="keeps_gradients"),
        severe("parameters_not_optimized", bug="only_the_last"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), scaling="raw"),
        severe("input_outliers", broken=0.03, broken_by=60.0),
        severe("targets_not_scaled", celsius="raw"),
        mild("targets_not_scaled", celsius="tens"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="predicts_now"),
        severe("labels_random", ("labels_random", "samples_mixed"), bug="next_run"),
        severe("target_in_inputs", bug="answer_among_inputs"),
        severe("constant_feature", bug="one_reading_for_all"),
        severe("loss_sign", bug="minus"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        severe("loss_broadcast", bug="kept_channel"),
        severe("output_activation", ("output_activation", "dead_units"), end="relu"),
        severe("saturated_units", bias=6.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", layers=9),
        mild("missing_nonlinearity", act="none"),
        mild("label_noise", jitter=1.0),
        mild("overfitting", runs=80),
        severe(
            "clipped_before_unscaled", ("clipped_before_unscaled", "clipping_too_hard"), loss_scale=8192.0, clip=1.0
        ),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            batch=4,
            accumulate=8,
            divide=False,
            steps=400,
        ),
    ],
    healthy=[
        healthy("adamw", optimizer="adamw", lr=5e-3, decay=0.01),
        healthy("adam_constant", optimizer="adam", lr=4e-3, schedule="exp"),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=5e-3),
        healthy("nesterov", nesterov=True),
        healthy("no_momentum", momentum=0.0, lr=1.0, schedule="warmup"),
        healthy("rate_halved", lr=0.1),
        healthy("rate_doubled", lr=0.4),
        healthy("warmup", schedule="warmup"),
        healthy("step", schedule="step"),
        healthy("conv", kind="conv", width=16, layers=3, lr=0.1),
        healthy("wide", width=200),
        healthy("skip_gelu", skip=True, act="gelu", layers=3),
        healthy("silu_groupnorm", act="silu", norm="group"),
        healthy("xavier", init="xavier"),
        healthy("zero_head", zero_head=True),
        healthy("clip_1", clip=1.0),
        healthy("huber", loss="huber"),
        healthy("accumulation", batch=8, accumulate=4, steps=500),
        healthy("fine_tuning", pretrain=400, lr=0.1, steps=300),
        healthy("frozen_first", freeze=True, width=200),
        healthy("jitter_5_percent", jitter=0.05),
    ],
)
