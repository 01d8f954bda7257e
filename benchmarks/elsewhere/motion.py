"""What a wrist does at every time step: dilated convolutions with BatchNorm, Nesterov momentum, OneCycleLR, nothing logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe, wrong_rate

CHANNELS, TIME, ACTS = 6, 64, 5


def recordings(count: int, seed: int, o: SimpleNamespace, rest: float | None = None):
    """Accelerations and rotations, and what was done at each step: rest, walk, run, stir, wave."""
    rng = torch.Generator().manual_seed(seed)
    speeds = torch.tensor([0.0, 0.35, 0.6, 0.5, 0.35])
    axes = torch.randn(ACTS, CHANNELS, generator=torch.Generator().manual_seed(8))
    tilt = 0.5 * torch.randn(ACTS, CHANNELS, generator=torch.Generator().manual_seed(9))
    x, y = torch.zeros(count, CHANNELS, TIME), torch.zeros(count, TIME, dtype=torch.long)
    t = torch.arange(TIME)
    for n in range(count):
        at = 0
        while at < TIME:
            length = int(torch.randint(14, 32, (1,), generator=rng))
            act = int(torch.randint(ACTS, (1,), generator=rng))
            if rest is not None and torch.rand((), generator=rng) < rest:
                act = 0
            span = t[at : at + length]
            pace, phase = (
                speeds[act] * (0.85 + 0.3 * torch.rand((), generator=rng)),
                6.3 * torch.rand((), generator=rng),
            )
            wave = torch.sin(2 * math.pi * pace * 0.5 * span + phase)
            x[n, :, at : at + length] = axes[act][:, None] * wave + tilt[act][:, None]
            y[n, at : at + length] = act
            at += length
    return 9.81 * (x + o.shake * torch.randn(x.shape, generator=rng)), y


def wrong_labels(y: torch.Tensor, share: float) -> torch.Tensor:
    """Segments of eight steps that somebody labelled while talking."""
    swap = (torch.rand(len(y), TIME // 8) < share).repeat_interleave(8, 1)
    other = torch.randint(0, ACTS, (len(y), TIME // 8)).repeat_interleave(8, 1)
    return torch.where(swap, other, y)


class Residual(nn.Module):
    def __init__(self, width: int, dilation: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(width, momentum=o.bn_momentum) if o.norm else nn.Identity()
        self.act = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "leaky": nn.LeakyReLU, "none": nn.Identity}[o.activation]()
        self.drop = nn.Dropout(o.dropout)
        self.skip = o.skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.act(self.norm(self.conv(x))))
        return x + y if self.skip else y


class TCN(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.stem = nn.Conv1d(CHANNELS, o.width, 5, padding=2)
        self.blocks = nn.Sequential(*[Residual(o.width, 2 ** (n % 4), o) for n in range(o.depth)])
        self.head = nn.Conv1d(o.width, ACTS + (o.bug == "acts_from_one"), 1)
        for name, p in self.named_parameters():
            if o.gain != 1.0 and name.endswith("weight") and p.dim() == 3:
                p.data *= o.gain
            if o.bias is not None and name.endswith("conv.bias"):
                nn.init.constant_(p, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        if self.bug == "detached":
            x = x.detach()
        x = self.head(x)
        if self.bug == "softmax_acts":
            return torch.softmax(x, 1)
        if self.bug == "softmax_batch":
            return torch.log_softmax(x, 0)
        return x


def make_data(o: SimpleNamespace):
    x, y = recordings(o.count, 100, o, o.rest)
    x_valid, y_valid = recordings(150, 200, o)
    if o.bug == "raw":  # the counts of the sensor, and its bias
        x, x_valid = x * 40 + 500, x_valid * 40 + 500
    elif o.bug == "units":
        x, x_valid = x * 16 / 9.81, x_valid * 16 / 9.81
    else:
        mean, std = x.mean((0, 2), keepdim=True), x.std((0, 2), keepdim=True)
        x, x_valid = (x - mean) / std, (x_valid - mean) / std
    if o.bug == "axes_dead":
        x[:, [0, 2, 3, 5]] = 0.0
        x_valid[:, [0, 2, 3, 5]] = 0.0
    if o.outliers:  # knocks against the table
        x[torch.rand(len(x)) < o.outliers] *= o.knock
    y = wrong_labels(y, o.noise)
    if o.bug == "videos_mixed_up":
        y = y[torch.randperm(len(y))]
    if o.bug == "acts_from_one":
        y = y + 1
    if o.bug == "by_act":
        order = y.float().mean(1).argsort()
        x, y = x[order], y[order]
    return x, y, x_valid, y_valid


def batches(count: int, o: SimpleNamespace):
    while True:
        order = torch.arange(count) if o.bug == "by_act" else torch.randperm(count)
        for n in range(0, count - o.batch + 1, o.batch):
            yield order[n : n + o.batch]


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = make_data(o)
    net = TCN(o)
    ce = nn.CrossEntropyLoss(
        weight=o.weights and torch.tensor(o.weights), reduction="sum" if o.bug == "summed" else "mean"
    )
    if o.frozen_stem:
        net.stem.requires_grad_(False)
    chosen = [p for name, p in net.named_parameters() if o.bug != "stem_and_head" or not name.startswith("blocks")]
    opt = make_optimizer(o.optimizer, chosen, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.momentum > 0)
    if o.one_cycle:
        cycled = "momentum" in opt.param_groups[0] and o.optimizer == "sgd" and o.momentum < 0.95
        sched = torch.optim.lr_scheduler.OneCycleLR(
            opt, o.lr, total_steps=o.steps + 1, pct_start=0.2, cycle_momentum=cycled, max_momentum=o.momentum
        )
    else:
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, o.decay)
    scaler = torch.amp.GradScaler("cpu", enabled=o.scaled)
    run = cockpit_core.track(net, ce, opt, logdir=logdir)

    net.train()
    source = batches(len(x), o)
    for step in range(o.steps):
        if o.bug != "no_zero":
            opt.zero_grad()
        for _ in range(o.accumulate):
            pick = torch.arange(o.batch) if o.bug == "same" else next(source)
            loss = ce(net(x[pick]), y[pick])
            scaler.scale(loss / (1 if o.bug == "not_divided" else o.accumulate)).backward()
        if o.clip:
            if o.bug != "clip_scaled":
                scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        scaler.step(opt)
        scaler.update()
        sched.step()
        if step == 0 and o.bug == "eval_stays":  # a first look at the validation data, without a way back
            net.eval()
    run.close()

    net.eval()
    with torch.no_grad():
        return wrong_rate(net(x_valid).transpose(1, 2), y_valid, ACTS)


PROGRAM = Program(
    name="motion",
    half="D",
    train=train,
    settings={
        "width": 24,
        "depth": 4,
        "norm": True,
        "bn_momentum": 0.1,
        "activation": "relu",
        "skip": True,
        "dropout": 0.0,
        "gain": 1.0,
        "bias": None,
        "zero_head": False,
        "frozen_stem": False,
        "count": 500,
        "rest": None,
        "shake": 1.3,
        "noise": 0.0,
        "outliers": 0.0,
        "knock": 60.0,
        "weights": None,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.08,
        "momentum": 0.9,
        "wd": 1e-4,
        "one_cycle": True,
        "decay": 1.0,
        "scaled": False,
        "clip": None,
        "steps": 260,
    },
    faults=[
        severe("learning_rate_too_high", lr=2.0, norm=False, one_cycle=False),
        mild("learning_rate_too_high", lr=0.5, norm=False, one_cycle=False),
        severe("learning_rate_too_low", lr=2.7e-4),
        mild("learning_rate_too_low", lr=2.7e-3),
        severe("schedule_too_fast", one_cycle=False, decay=0.95, lr=0.02),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", wd=0.3),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero"),
        mild("parameters_not_optimized", bug="stem_and_head"),
        severe("graph_detached", bug="detached"),
        severe("batch_repeated", bug="same"),
        mild("data_not_shuffled", bug="by_act"),
        severe("inputs_not_scaled", bug="raw", norm=False),
        mild("inputs_not_scaled", bug="units", norm=False),
        severe("input_outliers", outliers=0.03),
        severe("labels_random", bug="videos_mixed_up"),
        mild("label_noise", noise=0.4),
        severe("labels_off_by_one", bug="acts_from_one"),
        mild("double_softmax", bug="softmax_acts"),
        severe("softmax_over_batch", bug="softmax_batch"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe(
            "vanishing_gradients",
            ("vanishing_gradients", "saturated_units"),
            depth=8,
            activation="sigmoid",
            norm=False,
            skip=False,
        ),
        mild("batchnorm_momentum", bn_momentum=1.0, batch=4),
        severe("eval_mode", bug="eval_stays", dropout=0.1),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clip_scaled",
            scaled=True,
            clip=1.0,
        ),
        severe("class_imbalance", rest=0.97),
        severe("constant_feature", bug="axes_dead"),
        mild("missing_nonlinearity", activation="none"),
    ],
    healthy=[
        healthy("lr_003", lr=0.03),
        healthy("lr_02", lr=0.2),
        healthy("no_norm_clipped", norm=False, clip=1.0, lr=0.05),
        healthy("adam", optimizer="adam", lr=5e-3),
        healthy("rmsprop_no_norm", optimizer="rmsprop", lr=1e-3, norm=False, momentum=0.0),
        healthy("leaky_constant_rate", activation="leaky", one_cycle=False, lr=0.03),
        healthy("zero_head", zero_head=True),
        healthy("stem_frozen", frozen_stem=True),
        healthy("singles_accumulated_no_norm", norm=False, batch=1, accumulate=8, lr=0.05),
        healthy("mixed_precision_clipped", scaled=True, clip=1.0),
        healthy("label_noise_15_percent", noise=0.15),
        healthy("more_rest_weighted", rest=0.35, weights=[0.4, 1.0, 1.0, 1.0, 1.0]),
        healthy("dropout_03", dropout=0.3),
        healthy("batch_64", batch=64, lr=0.15, steps=200),
    ],
)
