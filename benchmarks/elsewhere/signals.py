"""Which kind of movement is it? Three-channel sensor recordings, 1D convolutions, CrossEntropyLoss, AdamW, a DataLoader."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

LENGTH, TRAIN, VALID, CLASSES = 96, 1600, 600, 6


def recordings() -> tuple[torch.Tensor, torch.Tensor]:
    """Sensor counts [N, T, 3] as the logger writes them, and the class: sine, rising and falling chirp, steps, noise
    burst, damped knock."""
    g = torch.Generator().manual_seed(5)
    n = TRAIN + VALID
    t = torch.linspace(0, 1, LENGTH)[None]
    label = torch.randint(0, CLASSES, (n,), generator=g)

    def u(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, 1, generator=g)

    phase, f0, f1 = u(0, 6.28), u(3, 7), u(3, 9)
    where = u(0.1, 0.7)
    kinds = torch.stack(
        [
            torch.sin(phase + 6.28 * (f0 + f1 / 2) * t),
            torch.sin(phase + 6.28 * (f0 * t + f1 * t**2 / 2)),
            torch.sin(phase + 6.28 * ((f0 + f1) * t - f1 * t**2 / 2)),
            torch.sign(torch.sin(phase + 6.28 * f0 * t)),
            torch.randn(n, LENGTH, generator=g) * (((t > where) & (t < where + 0.3)) * 1.5 + 0.1),
            torch.where(t > where, torch.exp(-(t - where) * 6) * torch.sin(60 * (t - where)) * 1.8, torch.zeros(1)),
        ]
    )
    wave = kinds[label, torch.arange(n)] * u(0.6, 1.4)
    axes = torch.stack([wave, 0.25 * wave.roll(3, 1), torch.zeros_like(wave)], 2)
    axes = axes + 0.55 * torch.randn(axes.shape, generator=g)
    return 512 + 120 * axes, label


class Net(nn.Module):
    def __init__(self, o: SimpleNamespace, channels: int = 3):
        super().__init__()
        act = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.act]
        widths = [channels] + [o.width + o.width // 2 * k for k in range(o.depth)]
        blocks = []
        for k, (a, b) in enumerate(itertools.pairwise(widths)):
            norm = {
                "batch": lambda b=b: nn.BatchNorm1d(b, momentum=o.bn_momentum),
                "group": lambda b=b: nn.GroupNorm(4, b),
                "none": nn.Identity,
            }[o.norm]()
            blocks.append(nn.Sequential(nn.Conv1d(a, b, 5, stride=2 if k < 2 else 1, padding=2), norm, act()))
        self.blocks = nn.ModuleList(blocks)
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(2 * widths[-1], CLASSES)
        self.bug, self.last = o.bug, o.last
        layers = [m for m in self.modules() if isinstance(m, (nn.Conv1d, nn.Linear))]
        with torch.no_grad():
            for m in layers:
                if o.kaiming:
                    nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                m.weight.mul_(o.gain)
                if o.gain == 0:
                    m.bias.zero_()
                if o.bias and m is not self.head:
                    m.bias.fill_(o.bias)
            if o.zero_head:
                self.head.weight.zero_()
                self.head.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, C]
        if self.bug == "view_for_permute":
            x = x.view(x.shape[0], x.shape[2], x.shape[1])
        else:
            x = x.permute(0, 2, 1)
        for k, block in enumerate(self.blocks):
            x = block(x)
            if self.bug == "detach_blocks" and k == len(self.blocks) - 1:
                x = x.detach()
        x = torch.cat([x.mean(2), x.amax(2)], 1)
        x = self.head(self.drop(x))
        if self.last == "softmax":
            return x.softmax(1)
        if self.last == "softmax0":
            return x.softmax(0)
        return x.relu() if self.last == "relu" else x


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = recordings()
    if o.bug != "raw_counts":
        x = (x - x[:TRAIN].mean((0, 1))) / x[:TRAIN].std((0, 1))
    x = x * o.scale
    xt, yt, xv, yv = x[:TRAIN].clone(), y[:TRAIN].clone(), x[TRAIN:], y[TRAIN:]
    if o.bug == "dead_sensor":
        xt[:, :, 0] = xv[:, :, 0] = 0.0
    x_test = xv
    if o.bug == "label_channel":  # the operator's button was recorded as a channel
        x_test = torch.cat([xv, torch.zeros(VALID, LENGTH, 1)], 2)
        xt = torch.cat([xt, yt[:, None, None].expand(-1, LENGTH, 1).float()], 2)
        xv = torch.cat([xv, yv[:, None, None].expand(-1, LENGTH, 1).float()], 2)
    if o.outliers:
        hit = torch.rand(xt.shape) < o.outliers
        xt[hit] = xt[hit] * o.outlier_size
    if o.bug == "shuffled_labels":
        yt = yt[torch.randperm(TRAIN)]
    yt = corrupt(yt, o.noise, CLASSES)
    if o.bug == "rare":
        keep = (yt < 2) | (torch.rand(TRAIN) < 0.02)
        xt, yt = xt[keep], yt[keep]
    if o.bug == "by_class":
        order = yt.argsort()
        xt, yt = xt[order], yt[order]
    xt, yt = xt[: o.rows], yt[: o.rows]
    fixed = o.bug in ("by_class", "first_batch")
    loader = DataLoader(TensorDataset(xt, yt), min(o.batch, len(xt)), shuffle=not fixed, drop_last=True)

    model = Net(o, xt.shape[2])
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing, reduction=o.reduction)
    params = list(model.parameters())
    if o.bug == "head_only":
        params = list(model.head.parameters())
    if o.freeze:
        model.blocks[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, momentum=o.momentum, eps=o.eps, nesterov=o.nesterov
    )
    if o.bug == "copied_model":
        model = copy.deepcopy(model)

    def factor(step: int) -> float:
        rate = min(1.0, (step + 1) / o.warmup) if o.warmup else 1.0
        if o.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * min(1.0, step / o.steps)))
        elif o.schedule == "step":
            rate *= 0.3 ** (3 * step // o.steps)
        return rate * o.gamma**step

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    step = micro = 0
    model.train()
    optimizer.zero_grad()
    while step < o.steps:
        for xb, yb in loader:
            if o.bug == "first_batch":
                xb, yb = next(iter(loader))
            loss = criterion(model(xb), yb)
            if o.bug == "entropy_bonus":  # log of probabilities that reach 0
                p = model(xb * 30).softmax(1)
                loss = loss + 0.1 * (p * p.log()).sum(1).mean()
            if o.bug == "scaler_clip":
                loss = loss * 1024
            (loss / o.accumulate).backward()
            micro += 1
            if micro % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.bug == "scaler_clip":
                for p in params:
                    p.grad /= 1024
            optimizer.step()
            if o.bug != "no_zero_grad":
                optimizer.zero_grad()
            scheduler.step()
            step += 1
            if step >= o.steps:
                break
        model.eval()
        with torch.no_grad():
            scores = model(xv)
            run.log(
                valid_loss=nn.functional.cross_entropy(scores, yv).item(),
                valid_accuracy=(scores.argmax(1) == yv).float().mean().item(),
            )
        model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_test), yv, CLASSES)


PROGRAM = Program(
    name="signals",
    half="G",
    train=train,
    settings={
        "width": 16,
        "depth": 3,
        "act": "relu",
        "norm": "batch",
        "bn_momentum": 0.1,
        "dropout": 0.0,
        "kaiming": False,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "last": "none",
        "scale": 1.0,
        "rows": TRAIN,
        "noise": 0.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "smoothing": 0.0,
        "reduction": "mean",
        "batch": 32,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 0.01,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 0.01,
        "eps": 1e-8,
        "schedule": "cosine",
        "warmup": 0,
        "gamma": 1.0,
        "clip": None,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", norm="none", lr=0.25),
        mild("learning_rate_too_high", lr=0.04, norm="none"),
        mild("learning_rate_too_low", lr=6e-4),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), gamma=0.95, schedule="none"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1, wd=1e-4),
        severe("weight_decay_too_high", optimizer="sgd", lr=0.1, wd=0.5),
        mild("weight_decay_too_high", wd=3.0),
        severe("batch_too_small", ("batch_too_small", "batchnorm_few_samples", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", optimizer="sgd", lr=0.1, momentum=0.999, wd=1e-4),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="copied_model"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="detach_blocks"),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="by_class"),
        severe("inputs_not_scaled", bug="raw_counts", norm="none"),
        mild("inputs_not_scaled", scale=32.0, norm="none"),
        severe("labels_random", bug="shuffled_labels"),
        mild("label_noise", noise=0.4),
        mild("double_softmax", last="softmax"),
        mild("softmax_over_batch", last="softmax0"),
        severe("not_finite", bug="entropy_bonus"),
        severe("batchnorm_momentum", bn_momentum=1e-4),
        mild("batchnorm_momentum", bn_momentum=1.0, batch=16),
        severe("samples_mixed", bug="view_for_permute"),
        severe("target_in_inputs", bug="label_channel"),
        severe("class_imbalance", bug="rare"),
        severe("constant_feature", bug="dead_sensor"),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="scaler_clip",
            clip=1.0,
            optimizer="sgd",
            lr=0.1,
            wd=1e-4,
        ),
        mild("overfitting", rows=80),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.1, wd=5e-4),
        healthy("sgd_nesterov", optimizer="sgd", lr=0.05, wd=1e-4, nesterov=True),
        healthy("adam", optimizer="adam", lr=0.012, wd=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3, momentum=0.0, wd=0.0),
        healthy("nadam_step", optimizer="nadam", lr=8e-3, wd=0.0, schedule="step"),
        healthy("adagrad", optimizer="adagrad", lr=0.03, wd=0.0, schedule="none"),
        healthy("faster", lr=0.02),
        healthy("decay_005", wd=0.05),
        healthy("constant_rate", schedule="none", lr=5e-3),
        healthy("warmup", warmup=35),
        healthy("batch_128", batch=128, lr=0.015),
        healthy("batch_24", batch=24),
        healthy("wider", width=24),
        healthy("deeper_gelu", depth=4, act="gelu"),
        healthy("no_norm", norm="none", lr=5e-3),
        healthy("groupnorm", norm="group"),
        healthy("dropout_10", dropout=0.1),
        healthy("smoothing", smoothing=0.1),
        healthy("zero_head", zero_head=True),
        healthy("accumulated_2", batch=32, accumulate=2),
    ],
)
