"""Resistance of sailing hulls from six numbers of their shape and speed: MLP by a function, MSELoss, SGD, DataLoader."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

HULLS, TRIALS = 1536, 600
LOW = torch.tensor([-5.0, 0.53, 4.3, 2.8, 2.7, 0.125])  # buoyancy, prismatic, length/displacement, beam/draught, ...
HIGH = torch.tensor([0.0, 0.60, 5.1, 5.4, 3.6, 0.45])


def tow(hulls: torch.Tensor) -> torch.Tensor:
    """Resistance as a towing tank would measure it, up to noise."""
    z = (hulls - LOW) / (HIGH - LOW)
    wave = torch.exp(2.6 * z[:, 5]) * (0.6 + 0.5 * (z[:, 1] - 0.5) ** 2 + 0.35 * torch.sin(3 * z[:, 2] + 2 * z[:, 4]))
    return wave + 2.2 * z[:, 0] * (1 - z[:, 3]) + 0.8 * torch.cos(4 * z[:, 3] * z[:, 5])


def load(o: SimpleNamespace, g: torch.Generator):
    hulls = LOW + (HIGH - LOW) * torch.rand(HULLS + TRIALS, 6, generator=g)
    true = tow(hulls)
    x = (hulls - hulls.mean(0)) / hulls.std(0)
    true = (true - true.mean()) / true.std()
    measured = true + o.noise * torch.randn(true.shape, generator=g)
    if o.tails:
        measured = measured + o.tails * torch.distributions.StudentT(2.0).sample(measured.shape)
    if o.bug == "raw_units":  # waterline in millimetres, speed in cm/s; no standardising
        x = hulls * torch.tensor([1.0, 1000.0, 1.0, 100.0, 1.0, 100.0])
    if o.bug == "speed_lost":  # a bad join: the same number in every row
        x[:, [0, 5]] = 1.0
    if o.bug == "leak":
        x = torch.cat([x, measured[:, None]], 1)
        x[HULLS:, -1] = 0.0
    x, measured, true = x * o.x_scale, measured * o.y_scale + o.y_shift, true * o.y_scale + o.y_shift
    x_train, y_train = x[:HULLS].clone(), measured[:HULLS].clone()
    if o.outliers:
        x_train[torch.rand(x_train.shape) < o.outliers] *= o.outlier_factor
    if o.bug == "index_reset":
        y_train = y_train[torch.randperm(HULLS)]
    if o.mixed_up:
        rows = (torch.rand(HULLS) < o.mixed_up).nonzero()[:, 0]
        y_train[rows] = 2.5 * y_train[rows[torch.randperm(len(rows))]]
    if o.bug == "sorted":
        order = y_train.argsort()
        x_train, y_train = x_train[order], y_train[order]
    return TensorDataset(x_train, y_train), x[HULLS:], true[HULLS:]


class Cut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


def mlp(inputs: int, o: SimpleNamespace) -> nn.Sequential:
    acts = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "linear": nn.Identity}
    layers: list[nn.Module] = []
    for i, width in enumerate(o.widths):
        layers.append(nn.Linear(inputs, width))
        if o.norm:
            layers.append(nn.LayerNorm(width))
        layers.append(acts[o.act]())
        if o.dropout:
            layers.append(nn.Dropout(o.dropout))
        if o.bug == "cut" and i == len(o.widths) - 2:
            layers.append(Cut())
        inputs = width
    layers += [nn.Linear(inputs, inputs), nn.Sigmoid()] * o.sigmoids
    layers.append(nn.Linear(inputs, 1))
    if o.positive:
        layers.append(nn.ReLU())  # "resistance cannot be negative"
    net = nn.Sequential(*layers)
    linear = [m for m in net if isinstance(m, nn.Linear)]
    for m in linear:
        if o.init == "he":
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)
        if o.init == "constant":
            nn.init.constant_(m.weight, o.gain)
            nn.init.zeros_(m.bias)
        elif o.gain != 1:
            m.weight.data *= o.gain
    for m in linear[:-1]:
        if o.bias:
            nn.init.constant_(m.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(linear[-1].weight)
    return net


def scheduler(o: SimpleNamespace, opt: torch.optim.Optimizer, total: int):
    def factor(step: int) -> float:
        if o.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(step, total) / total))
        if o.schedule == "warmup":
            return min(1.0, (step + 1) / 50) * (1 - step / (total + 1))
        if o.schedule == "steps":
            return 0.3 ** (3 * step // total)
        return o.gamma**step

    return torch.optim.lr_scheduler.LambdaLR(opt, factor)


@torch.no_grad()
def validate(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    net.eval()
    loss = nn.functional.mse_loss(net(x).squeeze(-1), y).item()
    net.train()
    return loss


def pretrain(net: nn.Sequential, data: TensorDataset, steps: int) -> dict:
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    x, y = data.tensors
    for _ in range(steps):
        rows = torch.randint(0, len(x), (64,))
        opt.zero_grad()
        nn.functional.mse_loss(net(x[rows])[:, 0], y[rows]).backward()
        opt.step()
    return opt.state_dict()


def parameters(net: nn.Sequential, o: SimpleNamespace):
    if o.frozen:
        net[0].requires_grad_(False)
    if o.bug == "head_only":
        return net[-1].parameters()
    if o.no_decay_bias:
        return [
            {"params": [p for p in net.parameters() if p.dim() > 1]},
            {"params": [p for p in net.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ]
    return [p for p in net.parameters() if p.requires_grad]


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data, x_test, y_test = load(o, torch.Generator().manual_seed(511))
    inputs = x_test.shape[1]
    if o.rows:
        data = Subset(data, range(o.rows))
    net = mlp(inputs, o)
    state = pretrain(net, data, o.earlier) if o.earlier else None
    opt = make_optimizer(o.opt, parameters(net, o), o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps)
    if o.resume:
        opt.load_state_dict(state)
    if o.bug == "fresh_network":
        net = mlp(inputs, o)
    sampler = RandomSampler(data) if o.bug != "sorted" else SequentialSampler(data)
    loader = DataLoader(data, batch_size=o.batch, sampler=sampler, drop_last=True)
    loss_fn = {"mse": nn.MSELoss, "huber": nn.SmoothL1Loss, "l1": nn.L1Loss}[o.loss](reduction=o.reduction)
    total = o.steps
    sched = scheduler(o, opt, total)
    run = cockpit_core.track(net, loss_fn, opt, logdir=logdir)

    step, stuck = 0, None
    net.train(o.bug != "never_train")
    while step < total:
        for xb, yb in loader:
            if o.bug == "first_batch":
                stuck = stuck or (xb, yb)
                xb, yb = stuck
            if step % o.zero_every == 0:
                opt.zero_grad()
            for part_x, part_y in zip(xb.chunk(o.parts), yb.chunk(o.parts), strict=True):
                out = net(part_x)
                if o.bug != "no_squeeze":
                    out = out.squeeze(-1)
                if o.bug == "log":
                    out, part_y = out.log(), part_y.log()
                loss = loss_fn(out, part_y)
                if o.bug == "score":  # "higher is better"
                    loss = -loss
                (loss / o.parts if o.divide else loss).backward()
            if o.clip:
                nn.utils.clip_grad_norm_(net.parameters(), o.clip)
            opt.step()
            sched.step()
            step += 1
            if step % 120 == 0:
                run.log(valid_loss=validate(net, x_test, y_test))
            if step == total:
                break
    run.close()
    return validate(net, x_test, y_test) / y_test.var().item()


PROGRAM = Program(
    name="yacht",
    half="H",
    train=train,
    settings={
        "widths": (64, 64, 32),
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "sigmoids": 0,
        "positive": False,
        "init": "he",
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "frozen": False,
        "earlier": 0,
        "resume": False,
        "noise": 0.2,
        "tails": 0.0,
        "rows": 0,
        "x_scale": 1.0,
        "y_scale": 1.0,
        "y_shift": 0.0,
        "outliers": 0.0,
        "outlier_factor": 60.0,
        "mixed_up": 0.0,
        "batch": 64,
        "parts": 1,
        "divide": True,
        "zero_every": 1,
        "loss": "mse",
        "reduction": "mean",
        "opt": "sgd",
        "lr": 0.02,
        "momentum": 0.9,
        "wd": 1e-4,
        "no_decay_bias": False,
        "eps": 1e-8,
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "steps": 480,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.5),
        mild("learning_rate_too_high", lr=0.12),
        severe("learning_rate_too_low", lr=0.02 / 300),
        mild("learning_rate_too_low", lr=0.02 / 30),
        severe("schedule_too_fast", schedule="gamma", gamma=0.95),
        mild("schedule_too_fast", schedule="gamma", gamma=0.98, lr=0.01),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", zero_every=10**6),
        severe("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="fresh_network"),
        mild("graph_detached", bug="cut", widths=(24, 16, 16)),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="raw_units"),
        mild("inputs_not_scaled", x_scale=16.0),
        severe("input_outliers", outliers=0.03),
        severe("targets_not_scaled", y_scale=1000.0, y_shift=3000.0),
        mild("targets_not_scaled", y_scale=30.0, y_shift=100.0),
        severe("labels_random", bug="index_reset"),
        mild("label_noise", mixed_up=0.4),
        severe("loss_sign", bug="score"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        severe("loss_broadcast", bug="no_squeeze"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="constant", gain=0.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), sigmoids=6),
        severe("dropout_too_high", dropout=0.97),
        severe("not_finite", bug="log"),
        severe("target_in_inputs", bug="leak"),
        severe("constant_feature", bug="speed_lost"),
        severe("output_activation", ("output_activation", "dead_units"), positive=True),
    ],
    healthy=[
        healthy("adam", opt="adam", lr=4e-3),
        healthy("adamw", opt="adamw", lr=4e-3, wd=0.01),
        healthy("nadam", opt="nadam", lr=3e-3),
        healthy("rmsprop", opt="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adagrad", opt="adagrad", lr=0.03, schedule="gamma"),
        healthy("rate_third", lr=0.007),
        healthy("rate_edge", lr=0.06),
        healthy("no_momentum", momentum=0.0, lr=0.1),
        healthy("constant_rate", schedule="gamma", lr=0.01),
        healthy("step_decay", schedule="steps"),
        healthy("warmup_linear", schedule="warmup"),
        healthy("batch_16", batch=16, lr=0.01),
        healthy("full_batch", batch=HULLS, lr=0.05, steps=250),
        healthy("layernorm_gelu", norm=True, act="gelu"),
        healthy("tanh_wide", act="tanh", widths=(128, 64), lr=0.03),
        healthy("deeper", widths=(64, 64, 64, 64, 32), lr=0.015),
        healthy("torch_init", init="torch", lr=0.06),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", earlier=250, frozen=True, lr=0.01),
        healthy("resumed", earlier=250, resume=True, lr=0.01, steps=300),
        healthy("four_parts", parts=4),
        healthy("one_row_at_a_time", batch=16, parts=16, lr=0.01, steps=300),
        healthy("heavy_tails", tails=0.15, loss="huber"),
        healthy("decay_weights_only", wd=3e-3, no_decay_bias=True),
        healthy("clip_5", clip=5.0),
        healthy("longer", steps=1000),
    ],
)
