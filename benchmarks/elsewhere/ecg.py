"""Heartbeats in counts of a 12-bit converter, six diagnoses: 1D convolutions, then a GRU, Adam, NLLLoss.
A notebook, cell after cell; the last validation is all there is."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

LABELS = ["normal", "extrasystole", "fibrillation", "bundle block", "raised ST", "tachycardia"]
N_CLASSES, LENGTH = len(LABELS), 144


def make_ecg(n, seed):
    """Traces [n, 144] in counts (about 2048 +- 300) and their class."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=g)

    y = torch.randint(0, N_CLASSES, (n,), generator=g)
    t = torch.arange(LENGTH).float()
    gap = torch.where(y == 5, 27.0, 44.0) * (1 + 0.08 * normal(n))
    at = 22 * torch.rand(n, generator=g)
    early = torch.randint(1, 3, (n,), generator=g)
    trace = torch.zeros(n, LENGTH)

    def wave(centre, width, height):
        return height[:, None] * torch.exp(-0.5 * ((t - centre[:, None]) / width[:, None]) ** 2)

    one = torch.ones(n)
    for beat in range(7):
        ectopic = (y == 1) & (early == beat)
        wide = ectopic | (y == 3)
        height = 1 + 0.12 * normal(n)
        at_beat = at - torch.where(ectopic, 0.3 * gap, 0 * gap)
        p = torch.where((y == 2) | ectopic, 0.0, 0.22) * (1 + 0.2 * normal(n))
        trace += wave(at_beat - 8, 2.2 * one, p)
        trace += wave(at_beat, torch.where(wide, 3.2, 1.3), torch.where(ectopic, 1.3, 1.0) * height)
        trace += wave(at_beat + 3.4, torch.where(wide, 2.4, 1.2), -0.3 * height)
        trace += wave(at_beat + 14, 3.6 * one, torch.where(wide, -0.3, 0.3) * height)
        trace += wave(at_beat + 8, 4.0 * one, torch.where(y == 4, 0.22, 0.0) * height)
        at = at + gap * torch.where(y == 2, 1 + 0.22 * normal(n), 1 + 0.04 * normal(n)).clamp(0.45, 1.7)
    drift = 0.15 * normal(n, 1) * torch.sin(t / 35 + 6.3 * torch.rand(n, 1, generator=g))
    trace = trace * (0.8 + 0.4 * torch.rand(n, 1, generator=g)) + drift + 0.15 * normal(n, LENGTH)
    return (2048 + 300 * trace).round(), y


class ECGNet(nn.Module):
    def __init__(self, o, channels=1):
        super().__init__()
        self.o = o
        c, act = o.channels, {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "none": nn.Identity}[o.act]
        norm = {"none": nn.Identity, "batch": nn.BatchNorm1d, "group": lambda k: nn.GroupNorm(4, k)}[o.norm]
        self.conv = nn.Sequential(
            nn.Conv1d(channels, c, 7, stride=2, padding=3),
            norm(c),
            act(),
            nn.Conv1d(c, 2 * c, 5, stride=2, padding=2),
            norm(2 * c),
            act(),
            nn.Conv1d(2 * c, 2 * c, 5, stride=2, padding=2),
            norm(2 * c),
            act(),
        )
        self.gru = nn.GRU(2 * c, o.hidden, batch_first=o.bug != "time_first", bidirectional=o.both_ways)
        size = o.hidden * (2 if o.both_ways else 1)
        extra = [nn.Sequential(nn.Linear(size, size), nn.Sigmoid()) for _ in range(o.sigmoid_layers)]
        self.neck = nn.Sequential(*extra)
        self.drop = nn.Dropout(o.dropout)
        self.out = nn.Linear(size, N_CLASSES)

    def forward(self, x):
        h = self.conv(x)  # [batch, channels, time]
        if self.o.bug == "reshaped":  # time first, and then the batch first by force
            h = h.permute(2, 0, 1).reshape(h.shape[0], -1, h.shape[1])
        else:
            h = h.permute(0, 2, 1)
        h, _ = self.gru(h)
        h = self.neck(h.mean(1))
        if self.o.bug == "features_kept":  # for a plot of the features
            self.features = h = h.detach()
        h = self.out(self.drop(h))
        if self.o.last == "tanh":
            h = torch.tanh(h)
        return F.log_softmax(h, dim=1)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    # %% [1] data
    x, y = make_ecg(1500, 2001)
    x_test, y_test = make_ecg(600, 2002)
    if o.share_noise:
        y = corrupt(y, o.share_noise, N_CLASSES)
    if o.bug == "labels_next":  # a header line too many was skipped
        x, y = x[:-1], y[1:]
    if o.rare:
        keep = (y == 0) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.bug == "sorted":
        order = torch.argsort(y, stable=True)
        x, y = x[order], y[order]
    n = len(x)

    # %% [2] scaling
    if o.scaling == "standard":
        mu, sd = x.mean(), x.std()
        x, x_test = (x - mu) / sd, (x_test - mu) / sd
    elif o.scaling == "millivolts":
        x, x_test = (x - 2048) / 300, (x_test - 2048) / 300
    elif o.scaling == "centred":
        x, x_test = x - 2048, x_test - 2048
    if o.bug == "flat_trace":  # min-max of each trace, and one of them is flat
        x[3] = x[3].mean()
        x, x_test = ((a - a.amin(1, True)) / (a.amax(1, True) - a.amin(1, True)) for a in (x, x_test))
    x, x_test = x[:, None], x_test[:, None]
    if o.bug == "annotation_channel":  # the annotation was recorded as a second channel
        mark = (y.float() - 2.5)[:, None, None].expand(-1, 1, LENGTH)
        x = torch.cat([x, mark], 1)
        x_test = torch.cat([x_test, torch.zeros_like(x_test)], 1)

    # %% [3] model
    model = ECGNet(o, channels=x.shape[1])
    convs = [m for m in model.conv if isinstance(m, nn.Conv1d)]
    with torch.no_grad():
        for m in convs:
            if o.init == "kaiming":
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)
            if o.conv_bias is not None:
                m.bias.fill_(o.conv_bias)
        if o.init == "zeros":
            for p in model.parameters():
                p.zero_()
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(o.gain)
        model.gru.weight_ih_l0.mul_(o.gru_gain)
        if o.zero_out:
            model.out.weight.zero_()
            model.out.bias.zero_()
    if o.pretrain_steps:
        first = torch.optim.Adam(model.parameters(), lr=4e-3)
        for _ in range(o.pretrain_steps):
            idx = torch.randint(n, (32,))
            first.zero_grad()
            F.nll_loss(model(x[idx]), y[idx]).backward()
            first.step()
    if o.freeze:
        model.conv[0].requires_grad_(False)

    # %% [4] loss and optimizer
    loss_fn = nn.NLLLoss(reduction=o.reduction)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "conv_forgotten":
        params = [*model.gru.parameters(), *model.out.parameters()]
    extra = {"eps": o.eps} if o.eps else {}
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.weight_decay, betas=(o.momentum, 0.999), **extra
    )
    if o.bug == "fresh_copy":
        model = copy.deepcopy(model)
    decay = {
        "none": lambda s: 1.0,
        "cosine": lambda s: 0.5 * (1 + math.cos(math.pi * s / o.steps)),
        "warm": lambda s: min(1.0, (s + 1) / 40),
        "linear": lambda s: 1 - s / o.steps,
        "exp": lambda s: o.gamma**s,
    }[o.schedule]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    # %% [5] training
    model.train()
    step = 0
    batch_size = n if o.batch_size == "full" else o.batch_size
    order = torch.arange(0)
    while step < o.steps:
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            if len(order) < batch_size:
                order = torch.arange(n) if o.bug == "sorted" else torch.randperm(n)
            idx, order = order[:batch_size], order[batch_size:]
            if o.bug == "first_batch":
                idx = torch.arange(batch_size)
            xb, yb = x[idx], y[idx]
            if o.augment:
                xb = xb + o.augment * torch.randn_like(xb)
            loss = loss_fn(model(xb), yb)
            if o.bug == "double_minus":  # NLLLoss has a minus already
                loss = -loss
            loss = loss / o.accumulate if o.divide else loss
            loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        step += 1
    run.close()

    # %% [6] how good is it?
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_test), y_test, N_CLASSES)


PROGRAM = Program(
    name="ecg",
    half="L",
    train=train,
    settings={
        "channels": 16,
        "hidden": 32,
        "both_ways": False,
        "act": "relu",
        "norm": "none",
        "init": "kaiming",
        "gain": 1.0,
        "gru_gain": 1.0,
        "conv_bias": None,
        "zero_out": False,
        "sigmoid_layers": 0,
        "dropout": 0.0,
        "last": None,
        "scaling": "standard",
        "share_noise": 0.0,
        "rare": 0.0,
        "augment": 0.0,
        "pretrain_steps": 0,
        "freeze": False,
        "optimizer": "adam",
        "lr": 5e-3,
        "momentum": 0.9,
        "weight_decay": 0.0,
        "eps": None,
        "reduction": "mean",
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "batch_size": 32,
        "accumulate": 1,
        "divide": True,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.05),
        severe("learning_rate_too_low", lr=1.5e-5),
        mild("learning_rate_too_low", lr=1.5e-4),
        severe("schedule_too_fast", schedule="exp", gamma=0.95),
        mild("schedule_too_fast", schedule="exp", gamma=0.98),
        severe("weight_decay_too_high", weight_decay=0.3),
        mild("weight_decay_too_high", weight_decay=0.03),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch_size=2),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        mild("parameters_not_optimized", bug="conv_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="fresh_copy"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="features_kept"),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        mild("inputs_not_scaled", scaling="centred"),
        severe("off_by_a_row", ("labels_random", "samples_mixed"), bug="labels_next"),
        mild("label_noise", share_noise=0.5),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="double_minus"),
        severe("dead_units", conv_bias=-4.0),
        severe("init_constant", init="zeros"),
        severe("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("init_too_small", gain=0.02),
        mild("init_too_small", gain=0.2),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), sigmoid_layers=6),
        severe("dropout_too_high", dropout=0.97),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        severe("class_imbalance", rare=0.02),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="reshaped"),
        mild("saturated_units", ("saturated_units", "init_too_large"), gru_gain=60.0),
        severe("target_in_inputs", bug="annotation_channel"),
        mild("output_activation", last="tanh"),
        severe("not_finite", bug="flat_trace"),
    ],
    healthy=[
        healthy("adamw", optimizer="adamw", weight_decay=0.01),
        healthy("nadam", optimizer="nadam", lr=3e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1),
        healthy("rate_halved", lr=2.5e-3),
        healthy("rate_doubled", lr=1e-2),
        healthy("constant_rate", schedule="none", lr=2.5e-3),
        healthy("warmup", schedule="warm", lr=3e-3),
        healthy("clip_1", clip=1.0),
        healthy("both_ways", both_ways=True, hidden=24),
        healthy("wider", channels=20, hidden=48, steps=350),
        healthy("elu", act="elu"),
        healthy("batchnorm", norm="batch"),
        healthy("groupnorm_gelu", norm="group", act="gelu"),
        healthy("dropout_20", dropout=0.2),
        healthy("zero_out", zero_out=True),
        healthy("default_init", init="default"),
        healthy("millivolts", scaling="millivolts"),
        healthy("augmented", augment=0.1),
        healthy("fine_tuning", pretrain_steps=150, lr=2.5e-3, steps=300),
        healthy("frozen_first", freeze=True),
        healthy("accumulation", batch_size=16, accumulate=2),
    ],
)
