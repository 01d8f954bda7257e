"""Water level, six hours ahead: nn.TransformerEncoder on windows, MSELoss, AdamW, warm-up and a cosine, valid_loss logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

LENGTH, SPLIT, AHEAD = 3600, 2800, 6


def harbour(o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Level in centimetres, air pressure in hectopascals and wind in m/s, by the hour; and the level of the tide table."""
    g = torch.Generator().manual_seed(23)
    t = torch.arange(LENGTH).float()
    tide = 120 * torch.cos(2 * math.pi * t / 12.42) + 45 * torch.cos(2 * math.pi * t / 12.0 + 1)
    tide = tide + 30 * torch.cos(2 * math.pi * t / 25.82 + 2) + 22 * torch.cos(2 * math.pi * t / 23.93 + 0.5)
    storm, kicks = torch.zeros(LENGTH), torch.randn(LENGTH, generator=g)
    for n in range(1, LENGTH):
        storm[n] = 0.96 * storm[n - 1] + 0.28 * kicks[n]
    pressure = 1013 - 9 * storm + 1.5 * torch.randn(LENGTH, generator=g)
    wind = 6 + 4 * storm.roll(1) + 1.5 * torch.randn(LENGTH, generator=g)
    surge = 25 * storm.roll(3) + 6 * storm.roll(3).clamp(min=0) ** 2
    level = 510 + tide + surge + 0.0012 * tide**2 + o.noise * torch.randn(LENGTH, generator=g)
    return level, pressure, wind, 510 + tide + 0.0012 * tide**2


class Forecaster(nn.Module):
    def __init__(self, columns: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.enter = nn.Linear(columns, o.dim)
        self.place = nn.Parameter(0.02 * torch.randn(1, o.past, o.dim))
        layer = nn.TransformerEncoderLayer(
            o.dim,
            o.heads,
            2 * o.dim,
            o.dropout,
            activation={"none": lambda v: v}.get(o.act, o.act),
            batch_first=True,
            norm_first=o.norm_first,
        )
        self.encoder = nn.TransformerEncoder(layer, o.layers, enable_nested_tensor=False)
        self.leave = nn.Linear(o.dim * o.past, AHEAD)
        for name, p in self.named_parameters():
            if p.dim() > 1 and name != "place":
                if o.gain is not None:
                    p.data.mul_(o.gain)
                if o.bug == "filled":
                    nn.init.constant_(p, 0.02)
            if "in_proj_weight" in name and o.sharp != 1.0:
                p.data[: 2 * o.dim].mul_(o.sharp)
        if o.zero_head:
            nn.init.zeros_(self.leave.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x) + self.place
        x = self.encoder(x)
        if self.o.bug == "features_kept":  # as for the plot of the attention
            x = x.detach()
        y = self.leave(x.flatten(1))
        if self.o.bug == "relu_out":
            return torch.relu(y)
        return y


def windows(columns: torch.Tensor, level: torch.Tensor, o: SimpleNamespace, lead: int = 0):
    starts = torch.arange(len(level) - o.past - AHEAD)
    x = torch.stack([columns[s : s + o.past] for s in starts])
    y = torch.stack([level[s + o.past - lead : s + o.past - lead + AHEAD] for s in starts])
    return x, y


def cosine(o: SimpleNamespace):
    def factor(step: int) -> float:
        if o.schedule == "plain":
            return 1.0
        if step < o.warmup:
            return (step + 1) / o.warmup
        return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - o.warmup) / (o.horizon - o.warmup))))

    return factor


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    level, pressure, wind, table = harbour(o)
    mean, std = level[:SPLIT].mean(), level[:SPLIT].std()
    scaled = (level - mean) / std
    columns = torch.stack([scaled, (pressure - 1013) / 9, (wind - 6) / 4], 1)
    if o.bug == "centimetres":
        columns = torch.stack([level - mean, (pressure - 1013) * 10, wind * 3.6], 1)
    if o.bug == "gauge_stuck":
        columns[:, 0] = columns[0, 0]
    lead = AHEAD if o.bug == "window_ends_late" else 0
    x, y = windows(columns, scaled, o, lead)
    x_valid, y_valid = (part[SPLIT:] for part in windows(columns, scaled, o))
    last = SPLIT - o.past - AHEAD
    x, y = x[:last].clone(), y[:last].clone()
    unit, offset = (1.0, 0.0)
    if o.bug == "millimetres":
        unit, offset = 1000.0, 5000.0
    if o.bug == "raw_target":
        unit, offset = 30.0, 100.0
    y = y * unit + offset
    if o.bug == "future_column":  # the forecast itself was joined by time
        x = torch.cat([x, y[:, :1, None].expand(-1, o.past, 1)], 2)
        x_valid = nn.functional.pad(x_valid, (0, 1))
    if o.bug == "shuffled_windows":
        y = y[torch.randperm(len(y))]
    if o.wrong:
        y = torch.where((torch.rand(len(y)) < o.wrong)[:, None], y[torch.randperm(len(y))], y)
    if o.spikes:
        x = torch.where(torch.rand(x.shape) < o.spikes, x * 200, x)
    if o.bug == "by_level":
        order = y[:, 0].argsort()
        x, y = x[order], y[order]

    model = Forecaster(x.shape[2], o)
    mse = nn.MSELoss(reduction="sum" if o.bug == "summed" else "mean")
    params: list = list(model.parameters())
    if o.bug == "encoder_forgotten":
        params = [*model.leave.parameters()]
    decayed = [
        {"params": [p for p in params if p.dim() > 1]},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = make_optimizer(o.optimizer, decayed, o.lr, weight_decay=o.wd, eps=o.eps, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(o))
    run = cockpit_core.track(model, mse, optimizer, logdir)

    def validate() -> float:
        model.eval()
        with torch.no_grad():
            error = mse(model(x_valid), y_valid * unit + offset).item()
        model.train()
        return error

    model.train()
    step = 0
    while step < o.steps:
        order = torch.arange(len(x)) if o.bug == "by_level" else torch.randperm(len(x))
        for index in order.split(o.batch):
            if o.bug == "same_window":
                index = torch.arange(o.batch)
            if o.jitter:
                xb = x[index] + o.jitter * torch.randn_like(x[index])
            else:
                xb = x[index]
            loss = mse(model(xb), y[index])
            if o.bug == "skill":  # one minus the error, and it was then minimised
                loss = 1 - loss
            (loss / o.accumulate if o.bug != "not_divided" else loss).backward()
            step += 1
            if step % o.accumulate == 0:
                if o.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), o.clip)
                optimizer.step()
                if o.bug != "zero_grad_gone":
                    optimizer.zero_grad()
            scheduler.step()
            if step % 75 == 0:
                run.log(valid_loss=validate())
            if step >= o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        answer = (model(x_valid) - offset) / unit
    unknown = ((level - table) / std)[SPLIT:].var()  # what somebody with a tide table does not know
    return ((answer - y_valid).pow(2).mean() / unknown).item()


PROGRAM = Program(
    name="tides",
    half="E",
    train=train,
    settings={
        "past": 26,
        "dim": 24,
        "heads": 2,
        "layers": 2,
        "act": "gelu",
        "norm_first": True,
        "sharp": 1.0,
        "dropout": 0.0,
        "gain": None,
        "zero_head": False,
        "noise": 4.0,
        "wrong": 0.0,
        "spikes": 0.0,
        "jitter": 0.0,
        "batch": 32,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 3e-3,
        "wd": 0.01,
        "eps": 1e-8,
        "schedule": "cosine",
        "warmup": 30,
        "horizon": 400,
        "clip": 1.0,
        "steps": 380,
    },
    faults=[
        mild("learning_rate_too_high", lr=0.15),
        mild("learning_rate_too_low", lr=5e-5),
        mild("schedule_too_fast", horizon=70),
        mild("weight_decay_too_high", wd=0.1, optimizer="adam"),
        severe("batch_too_small", batch=1, optimizer="sgd", lr=0.02, clip=None, schedule="plain"),
        severe("gradients_not_zeroed", bug="zero_grad_gone", clip=None, optimizer="sgd", lr=0.02),
        mild("parameters_not_optimized", bug="encoder_forgotten"),
        mild("graph_detached", bug="features_kept"),
        severe("batch_repeated", bug="same_window"),
        mild("data_not_shuffled", bug="by_level"),
        mild("inputs_not_scaled", bug="centimetres"),
        mild("input_outliers", spikes=0.003),
        severe("targets_not_scaled", bug="millimetres"),
        mild("targets_not_scaled", bug="raw_target"),
        severe("labels_random", bug="shuffled_windows"),
        mild("label_noise", wrong=0.3),
        severe("loss_sign", bug="skill", clip=None),
        severe(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.02, clip=None
        ),
        severe("output_activation", bug="relu_out"),
        severe("init_constant", bug="filled"),
        severe("init_too_large", ("init_too_large", "attention_too_sharp"), gain=8.0),
        mild("attention_too_sharp", ("attention_too_sharp", "init_too_large"), sharp=40.0),
        mild("dropout_too_high", dropout=0.5),
        severe("target_in_inputs", bug="future_column"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="window_ends_late"),
        severe("constant_feature", bug="gauge_stuck"),
        mild("adam_eps_too_large", eps=0.1),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=8,
            batch=8,
            optimizer="sgd",
            lr=0.15,
            clip=None,
        ),
    ],
    healthy=[
        healthy("adam_constant", optimizer="adam", schedule="plain", lr=1e-3, wd=0.0),
        healthy("norm_last", norm_first=False, lr=2e-3),
        healthy("relu_four_heads", act="relu", heads=4),
        healthy("one_layer_wide", layers=1, dim=40),
        healthy("three_layers", layers=3, lr=2e-3),
        healthy("dropout_01", dropout=0.1),
        healthy("zero_head", zero_head=True),
        healthy("decay_01", wd=0.1),
        healthy("no_clipping", clip=None),
        healthy("accumulate_2", batch=16, accumulate=2, steps=600, horizon=620),
        healthy("batch_128", batch=128, steps=220, horizon=230, warmup=20),
        healthy("jitter", jitter=0.05),
        healthy("rough_sea", noise=12.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.02, steps=500, horizon=520),
    ],
)
