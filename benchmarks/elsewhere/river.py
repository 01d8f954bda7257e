"""The level of a river in eight hours, from forty hours of levels and rain: dilated 1D convolutions, NAdam, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

WINDOW, AHEAD = 40, 8
TRAIN_HOURS, ALL_HOURS = 4200, 6000


def gauge() -> np.ndarray:
    """Hour by hour: level (cm), rain (mm) and temperature (degrees). Showers fill the soil, and only full soil runs off."""
    rng = np.random.default_rng(31)
    hours = np.arange(ALL_HOURS)
    temperature = 10 + 8 * np.sin(hours / 700) + 4 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 1, ALL_HOURS)
    rain, level = np.zeros(ALL_HOURS), np.zeros(ALL_HOURS)
    shower, soil, slow, fast = 0.0, 30.0, 50.0, 0.0
    delay = np.zeros(11)
    for t in hours:
        if rng.random() < 0.04:
            shower = rng.gamma(2.0, 2.5)
        shower *= 0.8
        rain[t] = shower
        soil = max(0.0, soil + shower - 0.012 * soil - 0.02 * temperature[t])
        delay = np.roll(delay, 1)
        delay[0] = shower * min(1.0, (soil / 45) ** 3)
        fast = 0.86 * fast + 3.0 * delay[10]
        slow = 0.995 * slow + 0.02 * soil * 0.5
        level[t] = slow + 4 * fast + rng.normal(0, 1.5)
    return np.stack([level, rain + rng.normal(0, 0.2, ALL_HOURS).clip(0), temperature], 1)


def windows(table: np.ndarray, goal: np.ndarray, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = range(first, last - WINDOW - AHEAD)
    x = np.stack([table[s : s + WINDOW].T for s in starts])
    y = np.array([goal[s + WINDOW + AHEAD - 1] for s in starts])
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


class Dilated(nn.Module):
    """A residual block of two convolutions that look back only."""

    def __init__(self, width: int, dilation: int, o: SimpleNamespace):
        super().__init__()
        self.pad = nn.ConstantPad1d((2 * dilation, 0), 0.0)
        self.filter = nn.Conv1d(width, width, 3, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.norm = {"group": lambda: nn.GroupNorm(4, width), "batch": lambda: nn.BatchNorm1d(width)}.get(
            o.norm, nn.Identity
        )()
        self.act = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "none": nn.Identity}[
            o.act
        ]()
        self.drop = nn.Dropout(o.dropout)
        self.residual = o.residual

    def forward(self, x):
        y = self.drop(self.mix(self.act(self.norm(self.filter(self.pad(x))))))
        return x + y if self.residual else self.act(y)


class Forecaster(nn.Module):
    def __init__(self, channels: int, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.inlet = nn.Conv1d(channels, o.width, 1)
        self.body = nn.Sequential(*[Dilated(o.width, 2**n, o) for n in range(o.blocks)])
        self.outlet = nn.Sequential(nn.Linear(o.width, 32), nn.ReLU(), nn.Linear(32, 1))
        if o.gain is not None:
            for m in self.modules():
                if isinstance(m, nn.Conv1d | nn.Linear):
                    if o.gain == "constant":
                        nn.init.constant_(m.weight, 0.01)
                        nn.init.zeros_(m.bias)
                    elif o.gain == "xavier":
                        nn.init.xavier_uniform_(m.weight)
                    else:
                        nn.init.normal_(m.weight, std=o.gain)
        if o.bug == "bias_with_wrong_sign":
            nn.init.constant_(self.outlet[0].bias, -10.0)
        if o.zero_head:
            nn.init.zeros_(self.outlet[2].weight)

    def forward(self, x):
        h = self.body(self.inlet(x))
        if self.o.bug == "body_under_no_grad":
            with torch.no_grad():
                h = self.body(self.inlet(x))
        if self.o.bug == "view_for_transpose":  # meant: time first
            h = h.view(h.shape[2], h.shape[1], h.shape[0]).permute(2, 1, 0)
        out = self.outlet(h[:, :, -1])
        if self.o.bug == "relu_at_the_end":
            out = torch.relu(out)
        return out if self.o.bug == "column_against_row" else out[:, 0]


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    table = gauge()
    goal = table[:, 0].copy()
    if o.bug == "next_level_as_feature":  # the level was shifted the wrong way round
        table = np.concatenate([table, np.roll(table[:, :1], -AHEAD, 0)], 1)
    if o.bug == "gauge_stuck":  # rain and temperature come as zeros
        table[:, 1:] = 0.0
    mean, std = table[:TRAIN_HOURS].mean(0), table[:TRAIN_HOURS].std(0) + 1e-6
    level_mean, level_std = mean[0], std[0]
    if o.bug == "raw_millimetres":
        table = table * 10
    elif o.bug == "raw_levels":
        pass
    elif o.inputs == "standard":
        table = (table - mean) / std
    elif o.inputs == "range":
        low, high = table[:TRAIN_HOURS].min(0), table[:TRAIN_HOURS].max(0)
        table = 2 * (table - low) / (high - low) - 0.5
    if o.bug == "goal_in_millimetres":
        level_mean, level_std = 0.0, 0.1
    goal = (goal - level_mean) / level_std

    x, y = windows(table, goal, 0, TRAIN_HOURS)
    xv, yv = windows(table, goal, TRAIN_HOURS, ALL_HOURS)
    guess = ((yv - y.mean()) ** 2).mean().item()
    if o.bug == "next_level_as_feature":  # the future is not there when it matters
        xv[:, 3] = 0.0
    if o.bug == "log_of_rain":
        x[:, 1] = (x[:, 1] - x[:, 1].min()).log()
    if o.bug == "spikes_in_gauge":  # lost radio contact reads as -32768 mm
        x[:, 0][torch.rand(len(x), WINDOW) < 0.08] = -32768 / 10 / 20
    if o.noise:
        swap = torch.rand(len(y)) < o.noise
        y = torch.where(swap, y[torch.randperm(len(y))], y)
    if o.bug == "shuffled_inputs_only":
        x = x[torch.randperm(len(x))]
    if o.bug == "by_level":
        order = y.argsort()
        x, y = x[order], y[order]
    if o.rows:
        keep = torch.randperm(len(x))[: o.rows]
        x, y = x[keep], y[keep]

    net = Forecaster(x.shape[1], o)
    params = list(net.parameters())
    if o.bug == "last_layer_only":
        params = list(net.outlet[2].parameters())
    if o.frozen:
        net.inlet.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    loss_fn = nn.SmoothL1Loss() if o.loss == "smooth" else nn.MSELoss()
    opt = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum, betas=(0.9, 0.999)
    )
    if o.schedule == "onecycle":
        sched = torch.optim.lr_scheduler.OneCycleLR(opt, 2 * o.lr, total_steps=o.steps + 1, cycle_momentum=False)
    elif o.schedule == "cosine":
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, o.steps)
    else:
        sched = torch.optim.lr_scheduler.ExponentialLR(opt, o.gamma)

    run = cockpit_core.track(net, loss_fn, opt, logdir=logdir)
    net.train()
    cursor, order = 0, torch.randperm(len(x))
    for step in range(o.steps):
        if o.bug != "zero_grad_once" or step == 0:
            opt.zero_grad()
        for _ in range(o.accumulate):
            if cursor + o.batch > len(x):
                cursor, order = 0, torch.randperm(len(x))
            rows = order[cursor : cursor + o.batch]
            if o.bug == "by_level":
                rows = torch.arange(cursor, cursor + o.batch)
            if o.bug != "cursor_stays":
                cursor += o.batch
            inputs = x[rows]
            if o.augment:
                inputs = inputs + o.augment * torch.randn_like(inputs)
            loss = loss_fn(net(inputs), y[rows])
            if o.bug == "score":  # higher is better, it was thought
                loss = -loss.clamp(max=1e4)
            (loss / o.accumulate).backward()
        if o.clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        opt.step()
        sched.step()
    run.close()

    net.eval()
    with torch.no_grad():
        forecast = torch.cat([net(part).reshape(len(part)) for part in xv.split(64)])
    return ((forecast - yv) ** 2).mean().item() / guess


PROGRAM = Program(
    name="river",
    half="I",
    train=train,
    settings={
        "inputs": "standard",
        "rows": None,
        "noise": 0.0,
        "width": 24,
        "blocks": 4,
        "act": "relu",
        "norm": None,
        "residual": True,
        "dropout": 0.0,
        "gain": None,
        "zero_head": False,
        "frozen": False,
        "loss": "mse",
        "batch": 64,
        "accumulate": 1,
        "augment": 0.0,
        "optimizer": "nadam",
        "lr": 2e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "exponential",
        "gamma": 0.994,
        "clip": None,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.08),
        mild("learning_rate_too_low", lr=6e-5),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), gamma=0.9),
        severe("weight_decay_too_high", wd=1.0),
        mild("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", batch=2, lr=1e-2),
        severe("momentum_too_high", optimizer="sgd", lr=0.02, momentum=0.999),
        severe("gradients_not_zeroed", bug="zero_grad_once"),
        severe("parameters_not_optimized", bug="last_layer_only"),
        severe("graph_detached", bug="body_under_no_grad"),
        severe("batch_repeated", bug="cursor_stays"),
        mild("data_not_shuffled", bug="by_level"),
        severe("inputs_not_scaled", bug="raw_millimetres"),
        mild("inputs_not_scaled", bug="raw_levels"),
        severe("input_outliers", bug="spikes_in_gauge"),
        severe("targets_not_scaled", bug="goal_in_millimetres"),
        severe("labels_random", bug="shuffled_inputs_only"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="score"),
        severe("loss_broadcast", bug="column_against_row"),
        severe("output_activation", bug="relu_at_the_end"),
        severe("init_constant", gain="constant"),
        severe("init_too_large", gain=2.0),
        severe(
            "vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", residual=False, blocks=6
        ),
        severe("dropout_too_high", dropout=0.97, residual=False),
        severe("not_finite", bug="log_of_rain"),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=1.0),
        severe("target_in_inputs", bug="next_level_as_feature"),
        mild("constant_feature", bug="gauge_stuck"),
        severe("dead_units", bug="bias_with_wrong_sign"),
        severe("samples_mixed", bug="view_for_transpose"),
    ],
    healthy=[
        healthy("lr_0007", lr=7e-4, gamma=1.0),
        healthy("lr_005", lr=5e-3),
        healthy("adam", optimizer="adam"),
        healthy("adamw", optimizer="adamw", lr=3e-3, wd=0.01),
        healthy("adagrad", optimizer="adagrad", lr=0.02, gamma=1.0),
        healthy("rmsprop", optimizer="rmsprop", lr=7e-4, momentum=0.0),
        healthy("sgd", optimizer="sgd", lr=0.02),
        healthy("constant_rate", gamma=1.0),
        healthy("cosine", schedule="cosine", lr=3e-3),
        healthy("onecycle", schedule="onecycle"),
        healthy("batch_32", batch=32, lr=1.5e-3),
        healthy("batch_128", batch=128, lr=3e-3, steps=250),
        healthy("accumulated", batch=16, accumulate=4, steps=200, lr=3e-3),
        healthy("wide", width=40, steps=250),
        healthy("narrow", width=16, lr=3e-3),
        healthy("five_blocks", blocks=5),
        healthy("gelu", act="gelu"),
        healthy("tanh", act="tanh"),
        healthy("groupnorm", norm="group"),
        healthy("batchnorm", norm="batch"),
        healthy("xavier", gain="xavier"),
        healthy("zero_head", zero_head=True),
        healthy("frozen_inlet", frozen=True),
        healthy("smooth_l1", loss="smooth"),
        healthy("between_zero_and_one", inputs="range", lr=3e-3),
        healthy("jitter", augment=0.03),
        healthy("clipped_at_one", clip=1.0),
        healthy("a_little_decay", wd=1e-4),
    ],
)
