"""Which pixels belong to a round cell, which to a square crystal: colour pictures of 16x16, a small encoder and decoder
with BatchNorm, a bridge and a look at the whole picture; cross-entropy over pixels, SGD with momentum, polynomial decay.
A Trainer class does the work and logs loss and accuracy of each epoch."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIZE, CLASSES = 16, 3


@torch.no_grad()
def draw(count: int, seed: int, empty: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes (0 to 255) of three channels, and the class of each pixel (0 background, 1 round, 2 square)."""
    g = torch.Generator().manual_seed(seed)
    ys, xs = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    mask = torch.zeros(count, SIZE, SIZE, dtype=torch.long)
    light = 60 + 40 * torch.rand(count, 3, 1, 1, generator=g)
    picture = light + 25 * torch.randn(count, 3, 1, 1, generator=g) * (xs / SIZE - 0.5)
    for _ in range(2):
        kind = 1 + (torch.rand(count, 1, 1, generator=g) < 0.5).long()
        there = torch.rand(count, 1, 1, generator=g) > empty
        r = 2.6 + 1.8 * torch.rand(count, 1, 1, generator=g)
        cy, cx = (3 + 10 * torch.rand(count, 1, 1, generator=g) for _ in range(2))
        dy, dx = (ys - cy).abs(), (xs - cx).abs()
        inside = torch.where(kind == 1, (dy**2 + dx**2).sqrt() < r, torch.maximum(dy, dx) < 0.9 * r) & there
        mask = torch.where(inside, kind, mask)
        shade = torch.tensor([40.0, 75, 60])[None, :, None, None] + 20 * torch.randn(count, 3, 1, 1, generator=g)
        tint = torch.tensor([12.0, 0, -12])[None, :, None, None] * (2 * kind[:, None] - 3)
        picture = torch.where(inside[:, None], picture + shade + tint, picture)
    picture = picture + 14 * torch.randn(picture.shape, generator=g)
    return picture.clamp(0, 255), mask


class ConvBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, o: SimpleNamespace, stride: int = 1, kernel: int = 3):
        super().__init__()
        self.conv = nn.Conv2d(n_in, n_out, kernel, stride, kernel // 2, bias=o.norm != "batch")
        self.norm = nn.BatchNorm2d(n_out, momentum=o.bn_momentum) if o.norm == "batch" else nn.Identity()
        acts = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "silu": nn.SiLU, "none": nn.Identity}
        self.act = acts[o.act]()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class SegNet(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        c = o.channels
        self.enter = ConvBlock(4 if o.bug == "mask_in_alpha" else 3, c, o)
        self.down = ConvBlock(c, 2 * c, o, stride=2)
        self.middle = nn.Sequential(*[ConvBlock(2 * c, 2 * c, o) for _ in range(o.depth)])
        self.context = ConvBlock(2 * c, 2 * c, o, kernel=1) if o.context else None
        self.drop = nn.Dropout2d(o.dropout)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.join = ConvBlock(3 * c if o.bridge else 2 * c, c, o)
        self.head = nn.Conv2d(c, CLASSES + (o.bug == "classes_from_one"), 1)

    def forward(self, x):
        a = self.enter(x)
        h = self.middle(self.down(a))
        if self.context is not None:  # the whole picture at a glance
            h = h + self.context(h.mean((2, 3), keepdim=True))
        h = self.drop(h)
        if self.o.bug == "encoder_under_no_grad":  # it was pretrained, once
            a, h = a.detach(), h.detach()
        h = self.up(h)
        h = self.join(torch.cat([a, h], 1) if self.o.bridge else h)
        return self.head(h)


class Trainer:
    def __init__(self, o: SimpleNamespace, logdir: str):
        self.o = o
        self.prepare()
        self.model = SegNet(o)
        self.initialise()
        self.criterion = nn.CrossEntropyLoss(
            reduction="sum" if o.bug == "summed" else "mean",
            label_smoothing=o.smoothing,
        )
        self.optimizer = make_optimizer(
            o.optimizer, self.parameters(), o.lr, momentum=o.momentum, weight_decay=o.decay, nesterov=o.nesterov
        )
        if o.bug == "loaded_after":  # the checkpoint holds a whole model
            self.model = copy.deepcopy(self.model)
        self.per_epoch = max(1, len(self.images) // (o.batch * o.accumulate))
        self.epochs = math.ceil(o.steps / self.per_epoch)
        total = self.epochs if o.bug == "iterations_in_epochs" else self.epochs * self.per_epoch
        if o.schedule == "cosine":
            self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, total)
        elif o.schedule == "onecycle":
            self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 2 * o.lr, total, cycle_momentum=False)
        elif o.schedule == "poly":
            self.scheduler = torch.optim.lr_scheduler.PolynomialLR(self.optimizer, total, o.power)
        else:
            self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, 1.0)
        self.run = cockpit_core.track(self.model, self.criterion, self.optimizer, logdir=logdir)

    def prepare(self) -> None:
        o = self.o
        x, y = draw(o.pictures, 31, 0.99 if o.bug == "mostly_empty" else 0.1)
        xv, yv = draw(250, 32)
        if o.bug == "one_channel_lost":
            x[:, :2], xv[:, :2] = 0, 0
        if o.bug == "contrast_of_each":  # some slides are blank
            x[torch.rand(len(x)) < 0.05] = 240.0
            x = (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), keepdim=True)
            xv = (xv - xv.mean((2, 3), keepdim=True)) / xv.std((2, 3), keepdim=True)
        elif o.scaling == "standard":
            x, xv = (x - 105) / 45, (xv - 105) / 45
        elif o.scaling == "unit":
            x, xv = x / 255, xv / 255
        if o.bug == "overflown":
            x = torch.where(torch.rand(x.shape) < 0.005, torch.tensor(65535.0), x)
        if o.bug == "mask_in_alpha":
            x = torch.cat([x, y[:, None] - 1.0], 1)
            xv = torch.cat([xv, torch.zeros(len(xv), 1, SIZE, SIZE)], 1)
        if o.bug == "listed_in_text_order":
            y = y[torch.tensor(sorted(range(len(y)), key=str))]
        if o.bug == "channels_last_file":  # read as (channel, row, column)
            x = x.permute(2, 3, 1, 0).reshape(x.shape)
        if o.bug == "classes_from_one":
            y = y + 1
        if o.shuffled_masks:
            bad = (torch.rand(len(y)) < o.shuffled_masks).nonzero()[:, 0]
            y[bad] = y[bad.roll(1)]
        if o.bug == "by_content":
            order = ((y == 1).sum((1, 2)) - (y == 2).sum((1, 2))).argsort()
            x, y = x[order], y[order]
        self.images, self.masks, self.valid = x, y, (xv, yv)

    def initialise(self) -> None:
        o = self.o
        for m in self.model.modules():
            if isinstance(m, nn.Conv2d) and m is not self.model.head and o.init:
                if o.init == "he":
                    nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                elif o.init == "ones":
                    nn.init.constant_(m.weight, 1.0 / m.weight[0].numel())
                else:
                    nn.init.normal_(m.weight, std=o.init)
            if isinstance(m, nn.BatchNorm2d) and o.shift:
                nn.init.constant_(m.bias, o.shift)
        if o.frozen:
            self.model.enter.requires_grad_(False)

    def parameters(self) -> list[nn.Parameter]:
        return [p for p in self.model.parameters() if p.requires_grad]

    def batches(self):
        o, n = self.o, len(self.images)
        order = torch.arange(n) if o.bug in ("by_content", "always_the_first") else torch.randperm(n)
        for k in range(self.per_epoch * o.accumulate):
            if o.bug == "always_the_first":
                k = 0
            idx = order[k * o.batch : (k + 1) * o.batch]
            x, y = self.images[idx], self.masks[idx]
            if o.mirror and torch.rand(()) < 0.5:
                x, y = x.flip(3), y.flip(2)
            if o.grain:
                x = x + o.grain * torch.randn_like(x)
            yield x, y

    def epoch(self) -> None:
        o = self.o
        if o.bug != "eval_left_on":
            self.model.train()
        for n, (x, y) in enumerate(self.batches()):
            if n % o.accumulate == 0 and o.bug != "zero_grad_forgotten":
                self.optimizer.zero_grad()
            loss = self.criterion(self.model(x), y)
            (loss / o.accumulate).backward()
            if (n + 1) % o.accumulate == 0:
                if o.clip:
                    nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
                self.optimizer.step()
                self.scheduler.step()

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        self.model.eval()
        x, y = self.valid
        scores = self.model(x)
        return nn.functional.cross_entropy(scores, y).item(), (scores.argmax(1) == y).float().mean().item()

    def fit(self) -> float:
        for k in range(self.epochs):
            if k == 0 and self.o.bug == "eval_left_on":  # a sanity check before the first epoch
                self.validate()
            self.epoch()
            loss, accuracy = self.validate()
            self.run.log(valid_loss=loss, valid_accuracy=accuracy)
        self.run.close()
        if not math.isfinite(loss):
            return math.inf
        return (1 - accuracy) / (self.valid[1] != 0).float().mean().item()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    return Trainer(o, logdir).fit()


PROGRAM = Program(
    name="segments",
    half="J",
    train=train,
    settings={
        "pictures": 640,
        "scaling": "standard",
        "shuffled_masks": 0.0,
        "mirror": False,
        "grain": 0.0,
        "channels": 10,
        "depth": 1,
        "norm": "batch",
        "bn_momentum": 0.1,
        "act": "relu",
        "context": True,
        "bridge": True,
        "dropout": 0.0,
        "init": None,
        "shift": 0.0,
        "frozen": False,
        "smoothing": 0.0,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.06,
        "momentum": 0.9,
        "nesterov": False,
        "decay": 1e-4,
        "schedule": "poly",
        "power": 0.9,
        "clip": None,
        "steps": 440,
    },
    faults=[
        severe("learning_rate_too_high", lr=20.0),
        mild("learning_rate_too_high", lr=2.0),
        mild("learning_rate_too_low", lr=2e-3),
        severe("schedule_too_fast", bug="iterations_in_epochs", pictures=1600, batch=32),
        severe("weight_decay_too_high", decay=0.3),
        mild("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        mild("batchnorm_momentum", bn_momentum=1e-4),
        severe("gradients_not_zeroed", bug="zero_grad_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="loaded_after"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="encoder_under_no_grad"),
        severe("batch_repeated", bug="always_the_first"),
        severe("data_not_shuffled", bug="by_content"),
        severe("inputs_not_scaled", scaling="bytes", norm="none"),
        severe("input_outliers", bug="overflown"),
        severe("labels_random", bug="listed_in_text_order"),
        mild("label_noise", shuffled_masks=0.5),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe("dead_units", shift=-4.0),
        severe("init_constant", init="ones"),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), init=1e-3, norm="none"),
        severe("dropout_too_high", dropout=0.95),
        mild("eval_mode", bug="eval_left_on"),
        severe("not_finite", bug="contrast_of_each"),
        severe("target_in_inputs", bug="mask_in_alpha"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="channels_last_file"),
        severe("labels_off_by_one", ("labels_off_by_one", "labels_random"), bug="classes_from_one"),
        severe("class_imbalance", bug="mostly_empty"),
        mild("constant_feature", bug="one_channel_lost"),
        mild("missing_nonlinearity", act="none"),
        mild("overfitting", pictures=24, batch=8),
    ],
    healthy=[
        healthy("rate_third", lr=0.035),
        healthy("rate_triple", lr=0.3),
        healthy("adam", optimizer="adam", lr=5e-3),
        healthy("adamw", optimizer="adamw", lr=5e-3, decay=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3, momentum=0.0),
        healthy("nesterov", nesterov=True),
        healthy("less_momentum", momentum=0.7, lr=0.2),
        healthy("cosine", schedule="cosine"),
        healthy("one_cycle", schedule="onecycle"),
        healthy("constant_rate", schedule="none", lr=0.05),
        healthy("batch_8", batch=8, lr=0.06),
        healthy("batch_32", batch=32, lr=0.15),
        healthy("accumulated", batch=8, accumulate=2),
        healthy("wider", channels=12),
        healthy("deeper", depth=2),
        healthy("no_context", context=False),
        healthy("leaky", act="leaky"),
        healthy("silu", act="silu"),
        healthy("little_dropout", dropout=0.05),
        healthy("he_init", init="he"),
        healthy("frozen_entry", frozen=True),
        healthy("smoothed", smoothing=0.05),
        healthy("mirrored", mirror=True),
        healthy("unit_scale", scaling="unit"),
        healthy("clipped", clip=1.0),
    ],
)
