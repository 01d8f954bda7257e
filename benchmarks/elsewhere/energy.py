"""Tomorrow's demand of a town: an LSTM on an hourly series, functions only, Adam, clipping, a rate that halves, nothing logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

HOURS = 3200


def demand(o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Demand and temperature by the hour, in megawatts and degrees."""
    rng = torch.Generator().manual_seed(31)
    t = torch.arange(HOURS).float()
    slow = torch.zeros(HOURS)
    kicks = torch.randn(HOURS, generator=rng)
    for n in range(1, HOURS):
        slow[n] = 0.97 * slow[n - 1] + 0.25 * kicks[n]
    warm = 12 + 6 * torch.sin(2 * math.pi * t / 24 - 2) + 3 * slow
    weekend = ((t // 24) % 7 >= 5).float()
    load = 420 + 90 * torch.sin(2 * math.pi * t / 24 - 1.2) + 40 * torch.sin(4 * math.pi * t / 24) - 70 * weekend
    load = load - 6 * (warm - 12) + 0.15 * (warm - 12) ** 2 * 6
    load = load + o.noise * torch.randn(HOURS, generator=rng)
    return load, warm


def windows(columns: torch.Tensor, load: torch.Tensor, o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    ahead = 0 if o.bug == "ahead_0" else o.ahead
    starts = range(len(load) - o.past - o.ahead)
    x = torch.stack([columns[s : s + o.past] for s in starts])
    y = torch.stack([load[s + o.past + ahead - 1] for s in starts])
    return x, y


class Forecaster(nn.Module):
    def __init__(self, inputs: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.lstm = (nn.GRU if o.cell == "gru" else nn.LSTM)(inputs, o.hidden, o.layers, batch_first=True)
        self.drop = nn.Dropout(o.dropout)
        self.hidden = nn.Linear(o.hidden, 16)
        self.out = nn.Linear(16, 1)
        for name, p in self.named_parameters():
            if o.gain is not None and "weight" in name:
                p.data.mul_(o.gain)
            if o.bug == "ones":
                nn.init.constant_(p, 0.1)
            if name == "hidden.bias" and o.bias is not None:
                nn.init.constant_(p, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.out.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x)
        last = states[:, -1]
        if self.o.bug == "state_detached":  # as one does between windows, not inside them
            last = last.detach()
        y = self.out(torch.relu(self.hidden(self.drop(last))))
        if self.o.bug == "sigmoid_out":
            y = torch.sigmoid(y)
        if self.o.bug == "relu_out":
            y = torch.relu(y)
        return y if self.o.bug == "no_squeeze" else y.squeeze(-1)


def loss_of(prediction: torch.Tensor, target: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    how = "sum" if o.bug == "summed" else "mean"
    loss = {"huber": F.smooth_l1_loss, "mse": F.mse_loss}[o.loss](prediction, target, reduction=how)
    if o.bug == "percent":  # relative error of standardised values, some of which are about zero
        loss = ((prediction - target) / target.round(decimals=1)).abs().mean()
    return -loss if o.bug == "skill" else loss


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    load, warm = demand(o)
    split = 2400
    mean, std = load[:split].mean(), load[:split].std()
    t = torch.arange(HOURS).float()
    clock = torch.stack([torch.sin(2 * math.pi * t / 24), torch.cos(2 * math.pi * t / 24)], 1)
    week = ((t // 24) % 7 >= 5).float()[:, None]
    columns = torch.cat([((load - mean) / std)[:, None], ((warm - 12) / 5)[:, None], clock, week], 1)
    if o.bug == "raw":
        columns = torch.cat([load[:, None] * 1000, warm[:, None] + 273, t[:, None] % 24, t[:, None]], 1)
    if o.bug == "megawatts":
        columns[:, 0] = load / 16
    if o.bug == "columns_stuck":  # a meter that stopped, and a clock that was never parsed
        columns[:, 0], columns[:, 2:] = 1.0, 0.0
    if o.bug == "column_stuck":
        columns[:, 2:] = 0.0
    scaled = (load - mean) / std
    x, y = windows(columns, scaled, o)
    _, truth = windows(columns, scaled, SimpleNamespace(**{**vars(o), "bug": None}))
    edge = split - o.past - o.ahead
    x_valid, y_valid = x[split:], truth[split:]
    x, y = x[:edge], y[:edge]
    unscale = (1.0, 0.0)
    if o.bug == "kilowatts":
        y, unscale = y * 1000 + 3000, (1e-3, -3.0)
    if o.bug == "raw_target":
        y, unscale = y * 30 + 100, (1 / 30, -100 / 30)
    if o.bug == "future_inside":  # the column was joined by the hour that is forecast
        x = torch.cat([x, y[:, None, None].expand(-1, o.past, 1)], 2)
        x_valid = F.pad(x_valid, (0, 1))
    if o.outliers:
        wild = torch.rand(len(x)) < o.outliers
        x[wild] *= o.outlier_size
    if o.bug == "targets_shuffled":
        y = y[torch.randperm(len(y))]
    if o.wrong:
        swap = torch.rand(len(y)) < o.wrong
        y = torch.where(swap, y[torch.randperm(len(y))], y)

    model = Forecaster(x.shape[2], o)
    params = [*model.hidden.parameters(), *model.out.parameters()] if o.bug == "heads_only" else model.parameters()
    optimizer = make_optimizer(o.optimizer, params, o.lr, momentum=0.9, weight_decay=o.wd, eps=o.eps)
    if o.bug == "model_again":
        model.lstm = Forecaster(x.shape[2], o).lstm
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [int(o.steps * f) for f in (0.5, 0.75)], gamma=o.gamma)
    if o.bug == "decay":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    order, place = torch.randperm(len(x)), 0
    for _ in range(o.steps):
        if place + o.batch > len(x):
            order, place = torch.randperm(len(x)), 0
        batch = order[place : place + o.batch]
        if o.bug == "in_order":
            batch = torch.arange(place, place + o.batch)
        if o.bug == "same_window":
            batch = torch.arange(o.batch)
        place += o.batch
        loss = loss_of(model(x[batch]), y[batch], o)
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        answer = model(x_valid).view(-1) * unscale[0] + unscale[1]
    return ((answer - y_valid).pow(2).mean() / y_valid.var()).item()


PROGRAM = Program(
    name="energy",
    half="C",
    train=train,
    settings={
        "past": 18,
        "ahead": 3,
        "hidden": 24,
        "layers": 1,
        "cell": "lstm",
        "dropout": 0.0,
        "gain": None,
        "bias": None,
        "zero_head": False,
        "noise": 8.0,
        "wrong": 0.0,
        "outliers": 0.0,
        "outlier_size": 1.0,
        "loss": "huber",
        "batch": 32,
        "optimizer": "adam",
        "lr": 6e-3,
        "wd": 0.0,
        "eps": 1e-8,
        "gamma": 0.5,
        "steps": 320,
        "clip": 1.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.5, clip=None, gamma=1.0),
        mild("learning_rate_too_high", lr=0.1, gamma=1.0),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", bug="decay"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        mild("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", batch=2),
        severe("gradients_not_zeroed", bug="no_zero_grad", clip=None),
        severe("parameters_not_optimized", bug="heads_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="model_again",
        ),
        severe("graph_detached", bug="state_detached"),
        severe("batch_repeated", bug="same_window"),
        mild("data_not_shuffled", bug="in_order"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), bug="raw"),
        mild("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), bug="megawatts"),
        severe("input_outliers", outliers=0.03, outlier_size=60.0),
        severe("targets_not_scaled", bug="kilowatts"),
        mild("targets_not_scaled", bug="raw_target"),
        severe("labels_random", bug="targets_shuffled"),
        severe("label_noise", wrong=0.5),
        severe("loss_sign", bug="skill", clip=None),
        severe(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.3, clip=None
        ),
        severe("loss_broadcast", bug="no_squeeze"),
        severe("output_activation", bug="sigmoid_out"),
        mild("output_activation", bug="relu_out"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", bug="ones"),
        mild("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("init_too_small", gain=0.02),
        severe("dropout_too_high", dropout=0.97),
        severe("target_in_inputs", bug="future_inside"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="ahead_0"),
        severe("constant_feature", bug="columns_stuck"),
        mild("constant_feature", bug="column_stuck"),
        mild("adam_eps_too_large", eps=0.1),
        severe("not_finite", bug="percent"),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3, steps=450),
        healthy("lr_15e-3", lr=1.5e-2),
        healthy("gru", cell="gru"),
        healthy("two_layers", layers=2),
        healthy("mse_no_clip", loss="mse", clip=None),
        healthy("sgd_momentum", optimizer="sgd", lr=0.15, loss="mse", steps=450),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("adamw_decay", optimizer="adamw", wd=0.03),
        healthy("noisy_meter", noise=16.0),
        healthy("batch_128", batch=128, lr=1e-2, steps=220),
        healthy("zero_head", zero_head=True),
        healthy("dropout_005_wide", dropout=0.05, hidden=40, lr=4e-3),
        healthy("constant_rate", gamma=1.0, lr=4e-3),
    ],
)
