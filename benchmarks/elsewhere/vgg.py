"""Drawn shapes in noise: a small VGG with BatchNorm, CrossEntropyLoss, SGD with momentum and a cosine, a class that trains."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CLASSES, SIZE = 8, 16


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images from 0 to 255: one shape of any size at any place, on uneven ground."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=g)
    grid = torch.arange(SIZE).float()
    centre = 5.5 + 5 * torch.rand(count, 2, 1, 1, generator=g)
    r = 3.2 + 2.3 * torch.rand(count, 1, 1, generator=g)
    dy, dx = grid[None, :, None] - centre[:, 0], grid[None, None, :] - centre[:, 1]
    dist, box, diamond = (dx**2 + dy**2).sqrt(), torch.maximum(dx.abs(), dy.abs()), dx.abs() + dy.abs()
    shapes = [
        dist < r,
        (dist < r) & (dist > r - 1.6),
        box < r,
        (box < r) & (box > r - 1.6),
        diamond < r * 1.3,
        (torch.minimum(dx.abs(), dy.abs()) < 1) & (box < r),
        ((dx.abs() - dy.abs()).abs() < 1.2) & (box < r),
        (dy > -r) & (dy < r) & (dx.abs() < (dy + r) / 2),
    ]
    mask = torch.stack([shape.expand(count, SIZE, SIZE) for shape in shapes], 1)[torch.arange(count), y].float()
    strength = 60 + 60 * torch.rand(count, 1, 1, generator=g)
    image = 70 + strength * mask + 30 * torch.randn(count, SIZE, SIZE, generator=g) + 2 * dx
    return image.clamp(0, 255).unsqueeze(1), y


def make_vgg(o: SimpleNamespace) -> nn.Sequential:
    act = {"relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "leaky": nn.LeakyReLU, "none": nn.Identity}[o.act]
    layers: list[nn.Module] = []
    channels = 1
    for width in (o.width, o.width, "M", 2 * o.width, "M", 4 * o.width, "M"):
        if width == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        if o.norm == "batch":
            layers.append(nn.BatchNorm2d(width, momentum=o.bn_momentum))
        elif o.norm == "group":
            layers.append(nn.GroupNorm(4, width))
        layers.append(act())
        channels = width
    layers += [nn.Flatten(), nn.Linear(channels * 4, 64), act()]
    for _ in range(o.extra):
        layers += [nn.Linear(64, 64), act()]
    layers += [nn.Dropout(o.dropout), nn.Linear(64, CLASSES)]
    if o.bug == "relu_last":
        layers.append(nn.ReLU())
    if o.bug == "softmax_last":
        layers.append(nn.Softmax(dim=1))
    net = nn.Sequential(*layers)
    weighted = [m for m in net if isinstance(m, nn.Conv2d | nn.Linear)]
    for m in weighted:
        if o.init == "he":
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)
        if o.init == "constant":
            nn.init.constant_(m.weight, 0.02)
            nn.init.zeros_(m.bias)
        m.weight.data *= o.gain
        if o.bias and m is not weighted[-1]:
            nn.init.constant_(m.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(weighted[-1].weight)
    return net


class Trainer:
    def __init__(self, model: nn.Sequential, data: tuple, o: SimpleNamespace, logdir: str) -> None:
        self.o, self.model, self.step = o, model, 0
        x, y, self.x_val, self.y_val = data
        shuffle = o.bug not in ("by_folder", "next_of_iter")
        self.loader = DataLoader(TensorDataset(x, y), min(o.batch, len(x)), shuffle=shuffle, drop_last=True)
        if o.freeze:
            model[0].requires_grad_(False)
        params = [p for p in model.parameters() if p.requires_grad]
        if o.bug == "features_left_out":
            params = [p for m in model if isinstance(m, nn.Linear) for p in m.parameters()]
        self.optimizer = make_optimizer(
            o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov
        )
        if o.bug == "deepcopy":  # the features so far are to be kept apart; it is the copies that stay in the model
            for n in range(10):
                self.model[n] = copy.deepcopy(model[n])
        horizon = o.horizon or o.steps
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(1.0, step / horizon)))
        )
        self.criterion = nn.CrossEntropyLoss(reduction="sum" if o.bug == "sum" else "mean")
        self.run = cockpit_core.track(self.model, self.criterion, self.optimizer, logdir=logdir)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.o.bug == "no_grad_for_features":
            with torch.no_grad():
                images = self.model[:10](images)
            return self.model[10:](images)
        return self.model(images)

    def train_step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        o = self.o
        scores = self.forward(images)
        if o.bug == "scores_normalised":
            scores = scores.log_softmax(0)
        loss = self.criterion(scores, labels)
        if o.bug == "minus":
            loss = -loss
        (loss * o.loss_scale).backward()
        if o.bug == "clip_then_unscale":
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if o.loss_scale != 1:
            for p in self.model.parameters():
                if p.grad is not None:
                    p.grad /= o.loss_scale
        if o.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
        self.optimizer.step()
        if o.bug != "no_zero":
            self.optimizer.zero_grad()
        if not o.constant:
            self.scheduler.step()
        self.step += 1

    def fit(self) -> None:
        first = next(iter(self.loader))
        while self.step < self.o.steps:
            self.model.train(self.o.bug != "eval_once")
            for batch in self.loader:
                self.train_step(*(first if self.o.bug == "next_of_iter" else batch))
                if self.step >= self.o.steps:
                    break
            self.validate()
        self.run.close()

    def validate(self) -> torch.Tensor:
        self.model.eval()
        with torch.no_grad():
            scores = self.model(self.x_val)
        right = (scores.argmax(1) == self.y_val).float().mean().item()
        self.run.log(valid_loss=nn.functional.cross_entropy(scores, self.y_val).item(), valid_accuracy=right)
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = draw(2400, 5)
    x_val, y_val = draw(600, 6)
    x, x_val = ((t - 90) / 50 * o.scale if o.bug != "bytes" else t * 10 for t in (x, x_val))
    if o.bug == "sorted_files":  # labels.txt is in alphabetical order, the images are not
        y = y.sort().values
    if o.bug == "by_folder":
        order = y.argsort()
        x, y = x[order], y[order]
    if o.bug == "one_to_eight":
        y = (y + 1) % CLASSES
    if o.rare:
        keep = (y == 0) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.hot:
        x[torch.rand(len(x)) < o.hot] *= 200
    y = corrupt(y, o.noise, CLASSES)
    trainer = Trainer(make_vgg(o), (x[: o.rows], y[: o.rows], x_val, y_val), o, logdir)
    trainer.fit()
    trainer.model.eval()
    with torch.no_grad():
        return wrong_rate(trainer.model(x_val), y_val, CLASSES)


PROGRAM = Program(
    name="vgg",
    half="F",
    train=train,
    settings={
        "width": 8,
        "extra": 0,
        "act": "relu",
        "norm": "batch",
        "bn_momentum": 0.1,
        "dropout": 0.0,
        "init": None,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "scale": 1.0,
        "rows": 2400,
        "rare": 0.0,
        "hot": 0.0,
        "noise": 0.0,
        "batch": 48,
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 1e-4,
        "horizon": 0,
        "constant": False,
        "loss_scale": 1.0,
        "clip": None,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.5),
        mild("learning_rate_too_high", lr=0.4),
        severe("learning_rate_too_low", lr=1e-4),
        mild("learning_rate_too_low", lr=1e-3),
        severe("schedule_too_fast", horizon=7),  # in epochs, but it counts batches
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clip_then_unscale",
            loss_scale=1024.0,
        ),
        severe("weight_decay_too_high", wd=0.3),
        severe("momentum_too_high", momentum=0.999),
        mild("momentum_too_high", momentum=0.99),
        severe("gradients_not_zeroed", bug="no_zero"),
        severe("parameters_not_optimized", bug="features_left_out", norm="none", init="he", lr=0.01),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="deepcopy"),
        severe("graph_detached", bug="no_grad_for_features"),
        severe("batch_repeated", bug="next_of_iter"),
        severe("data_not_shuffled", bug="by_folder"),
        severe("inputs_not_scaled", bug="bytes", norm="none", init="he", lr=0.01),
        mild("inputs_not_scaled", scale=16.0, norm="none", init="he", lr=0.01),
        mild("input_outliers", hot=0.02, norm="none", init="he", lr=0.01),
        severe("labels_random", bug="sorted_files"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="minus"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="sum"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax_last"),
        severe("softmax_over_batch", bug="scores_normalised"),
        severe("output_activation", ("output_activation", "dead_units"), bug="relu_last"),
        severe("dead_units", norm="none", init="he", lr=0.01, bias=-3.0),
        severe("init_constant", init="constant", norm="none"),
        severe("init_too_large", gain=8.0, init="he", norm="none", lr=0.01),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", extra=5, norm="none"),
        mild("dropout_too_high", dropout=0.9),
        mild("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2, lr=0.005),
        severe("batchnorm_momentum", bn_momentum=1e-4),
        severe("eval_mode", bug="eval_once", lr=0.1),
        severe("class_imbalance", rare=0.02),
        severe("labels_off_by_one", bug="one_to_eight"),
        mild("overfitting", rows=120),
    ],
    healthy=[
        healthy("nesterov", nesterov=True),
        healthy("adam", optimizer="adam", lr=2e-3, wd=0.0),
        healthy("constant_rate", constant=True, lr=0.02, steps=500),
        healthy("groupnorm", norm="group", lr=0.06),
        healthy("running_faster", bn_momentum=0.3),
        healthy("gelu_wide", act="gelu", width=12, steps=300),
        healthy("leaky", act="leaky"),
        healthy("decay_5e-3", wd=5e-3),
        healthy("batch_128", batch=128, lr=0.08, steps=250),
        healthy("batch_16", batch=16, lr=0.01, steps=600),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", freeze=True),
        healthy("dropout_30", dropout=0.3),
        healthy("loss_scaled", loss_scale=1024.0, clip=5.0),
        healthy("fast_rate", lr=0.12),
        healthy("a_few_wrong_labels", noise=0.04),
    ],
)
