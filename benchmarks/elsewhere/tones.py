"""Sounds of six kinds: a one-dimensional convolutional network with BatchNorm, loss module, SGD or Adam, accuracy logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

SAMPLES, KINDS = 192, 6


def record(count: int, weights: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tone, rising chirp, falling chirp, two tones, trembling tone, clicks; with noise and random loudness."""
    kind = torch.multinomial(torch.tensor(weights), count, replacement=True)
    t = torch.linspace(0, 1, SAMPLES).expand(count, -1)
    f = torch.rand(count, 1) * 14 + 12
    phase = torch.rand(count, 1) * 2 * math.pi
    tau = 2 * math.pi
    waves = torch.stack(
        [
            torch.sin(tau * f * t + phase),
            torch.sin(tau * f * t * (0.5 + 0.6 * t) + phase),
            torch.sin(tau * f * t * (1.6 - 0.6 * t) + phase),
            0.7 * torch.sin(tau * f * t + phase) + 0.7 * torch.sin(tau * 1.9 * f * t),
            torch.sin(tau * f * t + phase) * (0.5 + 0.5 * torch.sin(tau * 4 * t + phase)),
            (torch.sin(tau * f / 3 * t + phase) > 0.97).float() * 2,
        ]
    )
    sound = waves[kind, torch.arange(count)] * (torch.rand(count, 1) + 0.5) + 0.4 * torch.randn(count, SAMPLES)
    return sound[:, None], kind


class Conv(nn.Sequential):
    def __init__(self, cin: int, cout: int, o: SimpleNamespace) -> None:
        act = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU}[o.activation]()
        norm = nn.BatchNorm1d(cout) if o.norm else nn.Identity()
        super().__init__(nn.Conv1d(cin, cout, 7, stride=2, padding=3, bias=not o.norm), norm, act)


class Listener(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        w = o.width
        self.body = nn.Sequential(Conv(1, w, o), Conv(w, 2 * w, o), Conv(2 * w, 2 * w, o), nn.Dropout(o.dropout))
        self.hidden = nn.Linear(4 * w, 32)
        self.squash = nn.BatchNorm1d(32) if o.norm else nn.Identity()
        self.classify = nn.Linear(32, KINDS)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        h = self.body(sound)
        h = torch.cat([h.mean(-1), h.amax(-1)], 1)
        out = self.classify(torch.relu(self.squash(self.hidden(h))))
        return out.softmax(1) if self.bug == "softmax_in_model" else out


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = record(o.count, o.weights)
    xv, yv = record(400, [1.0] * KINDS)
    if o.bug == "int16":  # wave files as they are read
        x, xv = (x * 8000).round(), (xv * 8000).round()
    y = corrupt(y, o.noise, KINDS)
    if o.bug == "files_and_labels_apart":
        y = y[torch.randperm(len(y))]
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    loader = DataLoader(TensorDataset(x, y), o.batch, shuffle=o.bug not in ("sorted", "same_batch"), drop_last=True)
    model = Listener(o)
    for m in model.modules():
        if isinstance(m, nn.Conv1d | nn.Linear) and o.init is not None:
            nn.init.normal_(m.weight, std=o.init) if o.init > 0 else nn.init.zeros_(m.weight)
        if isinstance(m, nn.BatchNorm1d) and o.bug == "negative_beta":
            nn.init.constant_(m.bias, -5.0)
    loss_fn = nn.CrossEntropyLoss()
    opt = make_optimizer(o.optimizer, model.parameters(), o.lr, momentum=o.momentum, weight_decay=o.wd)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, o.horizon)
    run = cockpit_core.track(model, loss_fn, opt, logdir=logdir)

    def check() -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            return model(xv)

    step, micro = 0, 0
    model.train()
    if o.bug == "eval_first":  # a check before training, and no way back
        check()
    while step < o.steps:
        for sounds, kinds in loader:
            loss = loss_fn(model(sounds), kinds)
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            loss.backward()
            micro += 1
            if micro % o.accumulate == 0:
                if o.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), o.clip)
                opt.step()
                if o.bug != "no_zero_grad":
                    opt.zero_grad()
                step += 1
                if step <= o.horizon:
                    sched.step()
                if step % 75 == 0:
                    run.log(valid_accuracy=(check().argmax(-1) == yv).float().mean().item())
                    if o.bug != "eval_first":
                        model.train()
            if step >= o.steps or o.bug == "same_batch":
                break
    run.close()
    return wrong_rate(check(), yv, KINDS)


PROGRAM = Program(
    name="tones",
    half="B",
    train=train,
    settings={
        "width": 8,
        "norm": True,
        "activation": "relu",
        "dropout": 0.0,
        "init": None,
        "count": 1500,
        "weights": [1.0] * KINDS,
        "noise": 0.0,
        "batch": 32,
        "optimizer": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "wd": 1e-4,
        "horizon": 300,
        "steps": 300,
        "accumulate": 1,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=30.0),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", horizon=6),
        severe("momentum_too_high", momentum=0.9995),
        severe("clipping_too_hard", clip=1e-4),
        severe("eval_mode", bug="eval_first", lr=0.2),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        severe("inputs_not_scaled", bug="int16", norm=False),
        severe("double_softmax", bug="softmax_in_model"),
        severe("labels_random", bug="files_and_labels_apart"),
        mild("label_noise", noise=0.6),
        severe("data_not_shuffled", bug="sorted"),
        severe("batch_repeated", bug="same_batch"),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("init_constant", init=-1.0),
        severe("dead_units", bug="negative_beta"),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            batch=8,
            accumulate=8,
            lr=0.3,
        ),
    ],
    healthy=[
        healthy("lr_02", lr=0.02),
        healthy("lr_015", lr=0.15),
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("no_norm_adam", norm=False, optimizer="adam", lr=3e-3),
        healthy("batch_16", batch=16, lr=0.03, steps=400, horizon=400),
        healthy("batch_96", batch=96, lr=0.1, steps=250, horizon=250),
        healthy("accumulate_4", batch=16, accumulate=4, steps=250, horizon=250),
        healthy("imbalanced", weights=[3.0, 2.0, 1.0, 1.0, 1.0, 0.7]),
        healthy("elu_dropout", activation="elu", dropout=0.1),
        healthy("clip_2", clip=2.0, momentum=0.8),
        healthy("adamw_gelu", optimizer="adamw", lr=4e-3, wd=0.02, activation="gelu"),
    ],
)
