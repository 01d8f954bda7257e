"""Arms of a spiral among distracting columns: an MLP with ReLU, nn.CrossEntropyLoss, SGD with momentum, batches by hand."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

ARMS, TRAIN, TEST = 5, 2400, 800


def sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Five columns as a sensor would give them: two positions in mm, a temperature, a humidity and a pressure."""
    g = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, ARMS, (n,), generator=g)
    t = torch.rand(n, generator=g).sqrt()
    angle = 2 * math.pi * arm / ARMS + 2.3 * t + 0.3 * torch.randn(n, generator=g)
    position = 60 + 22 * (0.15 + t)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
    rest = torch.tensor([20.0, 55.0, 1013.0]) + torch.tensor([3.0, 9.0, 12.0]) * torch.randn(n, 3, generator=g)
    return torch.cat([position, rest], 1), arm


class Sine(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x)


ACTIVATIONS = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "leaky": lambda: nn.LeakyReLU(0.1),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "sine": Sine,
    "none": nn.Identity,
}


def make_model(inputs: int, classes: int, o: SimpleNamespace) -> nn.Sequential:
    sizes = [inputs] + [o.width] * o.depth
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        parts.append(nn.Linear(a, b))
        if o.norm == "layer":
            parts.append(nn.LayerNorm(b))
        elif o.norm == "batch":
            parts.append(nn.BatchNorm1d(b))
        parts.append(ACTIVATIONS[o.act]())
        if o.dropout:
            parts.append(nn.Dropout(o.dropout))
    parts.append(nn.Linear(o.width, classes))
    if o.last == "softmax":
        parts.append(nn.Softmax(dim=1))
    net = nn.Sequential(*parts)
    layers = [m for m in net if isinstance(m, nn.Linear)]
    for layer in layers:
        if o.init == "kaiming":
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
        elif o.init == "zeros":
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        layer.weight.data *= o.gain
    if o.bias is not None:
        for layer in layers[:-1]:
            nn.init.constant_(layer.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
    return net


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = sample(TRAIN, 301)
    xv, yv = sample(TEST, 302)
    clean_x, clean_y = xv, yv
    if o.scaling == "standard":
        mean, std = x.mean(0), x.std(0)
        x, xv = (x - mean) / std, (xv - mean) / std
    elif o.scaling == "minmax":
        low, high = x.min(0).values, x.max(0).values
        x, xv = 2 * (x - low) / (high - low) - 1, 2 * (xv - low) / (high - low) - 1
    x, xv = x * o.factor, xv * o.factor
    clean_x = xv
    classes = ARMS
    if o.outliers:
        x = torch.where(torch.rand_like(x) < o.outliers, x * o.outlier_size, x)
    if o.bug == "shuffled_apart":
        x = x[torch.randperm(len(x))]
    if o.bug == "label_as_column":
        x = torch.cat([x, y[:, None].float() - 2], 1)
        clean_x = torch.cat([xv, torch.zeros(TEST, 1)], 1)
        xv = torch.cat([xv, yv[:, None].float() - 2], 1)
    if o.bug == "wrong_axis":  # columns as rows in the file: should be transposed
        x = x.T.contiguous().reshape(len(x), -1)
    if o.noise:
        y = corrupt(y, o.noise, ARMS)
    if o.bug == "counted_from_one":
        y, classes = y + 1, ARMS + 1
    if o.rare:
        keep = (y == 0) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.rows:
        x, y = x[: o.rows], y[: o.rows]
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    n = len(x)
    batch = n if o.batch == "all" else o.batch

    net = make_model(x.shape[1], classes, o)
    if o.pretrain:
        warm = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(o.pretrain):
            pick = torch.randint(0, n, (64,))
            warm.zero_grad()
            nn.functional.cross_entropy(net(x[pick]), y[pick]).backward()
            warm.step()
    if o.freeze:
        net[0].requires_grad_(False)
    criterion = nn.CrossEntropyLoss(reduction=o.reduction, label_smoothing=o.smooth)
    trained = [p for p in net.parameters() if p.requires_grad]
    if o.bug == "head_only":
        trained = net[-1].parameters()
    opt = make_optimizer(
        o.optimizer, trained, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov, alpha=0.95
    )
    if o.bug == "copied_after":
        net = copy.deepcopy(net)
    total = o.steps
    shape = {
        "none": lambda s: 1.0,
        "cosine": lambda s: 0.5 * (1 + math.cos(math.pi * min(1, s / total))),
        "warmup": lambda s: min(1.0, (s + 1) / 50),
        "steps": lambda s: 0.3 ** (3 * s // total),
        "exp": lambda s: o.gamma**s,
    }[o.schedule]
    sched = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    run = cockpit_core.track(net, criterion, opt, logdir=logdir)

    step, micro = 0, 0
    while step < o.steps:
        order = torch.arange(n) if o.bug == "sorted" else torch.randperm(n)
        if o.bug == "zero_per_epoch":
            opt.zero_grad()
        for pick in order.split(batch):
            if len(pick) < batch and o.norm == "batch":
                continue
            if o.bug == "same_batch":
                pick = torch.arange(batch)
            if micro % o.accumulate == 0 and o.bug not in ("zero_per_epoch", "never_zeroed"):
                opt.zero_grad()
            if o.bug == "detached":
                features = net[:4](x[pick]).detach()
                out = net[4:](features)
            else:
                out = net(x[pick])
            loss = criterion(out, y[pick])
            if o.bug == "maximise":
                loss = -loss
            if o.divide:
                loss = loss / o.accumulate
            loss.backward()
            micro += 1
            if micro % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(net.parameters(), o.clip)
            opt.step()
            sched.step()
            step += 1
            if step >= o.steps:
                break
        net.eval()
        with torch.no_grad():
            scores = net(xv)
            run.log(
                valid_loss=nn.functional.cross_entropy(scores, yv).item(),
                valid_accuracy=(scores.argmax(1) == yv).float().mean().item(),
            )
        net.train()
    run.close()

    net.eval()
    with torch.no_grad():
        return wrong_rate(net(clean_x), clean_y, ARMS)


PROGRAM = Program(
    name="spirals",
    half="G",
    train=train,
    settings={
        "width": 64,
        "depth": 3,
        "act": "relu",
        "last": None,
        "norm": None,
        "dropout": 0.0,
        "init": "kaiming",
        "gain": 1.0,
        "bias": None,
        "zero_head": False,
        "freeze": False,
        "pretrain": 0,
        "scaling": "standard",
        "factor": 1.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "noise": 0.0,
        "rare": 0.0,
        "rows": None,
        "batch": 48,
        "accumulate": 1,
        "divide": True,
        "reduction": "mean",
        "smooth": 0.0,
        "optimizer": "sgd",
        "lr": 0.06,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 0.0,
        "schedule": "cosine",
        "gamma": 1.0,
        "clip": None,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.5),
        mild("learning_rate_too_high", lr=0.2, schedule="none"),
        severe("learning_rate_too_low", lr=2e-4),
        mild("learning_rate_too_low", lr=2e-3),
        severe("schedule_too_fast", schedule="exp", gamma=0.8),
        mild("schedule_too_fast", schedule="exp", gamma=0.98),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.03),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=6),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        mild("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="copied_after"),
        mild("graph_detached", bug="detached"),
        severe("batch_repeated", bug="same_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        mild("inputs_not_scaled", factor=4.0),
        severe("input_outliers", outliers=0.03, outlier_size=60.0),
        mild("input_outliers", outliers=0.01, outlier_size=15.0),
        severe("labels_random", bug="shuffled_apart"),
        mild("label_noise", noise=0.4),
        mild("double_softmax", last="softmax"),
        severe("loss_sign", bug="maximise"),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            batch=6,
            accumulate=8,
            divide=False,
            lr=0.12,
            steps=300,
        ),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="wrong_axis"),
        mild("overfitting", rows=90),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=8e-3),
        healthy("adamw_decay", optimizer="adamw", lr=8e-3, wd=0.05),
        healthy("nadam", optimizer="nadam", lr=8e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("nesterov_warmup", nesterov=True, schedule="warmup"),
        healthy("constant_rate", schedule="none"),
        healthy("rate_halved", lr=0.04),
        healthy("rate_doubled", lr=0.12),
        healthy("batch_128", batch=128, lr=0.1),
        healthy("batch_32", batch=32, lr=0.06),
        healthy("wide", width=160, depth=2, lr=0.1),
        healthy("deeper", depth=5, width=48),
        healthy("gelu_layernorm", act="gelu", norm="layer"),
        healthy("batchnorm", norm="batch"),
        healthy("dropout_10", dropout=0.1, width=128, lr=0.1),
        healthy("label_smoothing", smooth=0.1),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=300, lr=0.02, steps=300),
        healthy("decay_small", wd=1e-3),
    ],
)
