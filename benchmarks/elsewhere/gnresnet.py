"""Coloured signs on coloured ground: a small ResNet with GroupNorm, SGD with Nesterov momentum, OneCycleLR, a Trainer."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CLASSES, SIDE = 6, 14


def signs(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Disc, ring, square, frame, upright cross and slanted cross, each in any colour on any other."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (n,), generator=g)
    centre = 5.5 + 2 * torch.rand(2, n, 1, 1, generator=g)
    size = 3 + 1.2 * torch.rand(n, 1, 1, generator=g)
    at = torch.arange(SIDE).float()
    dy, dx = (at.view(1, -1, 1) - centre[0]).abs(), (at.view(1, 1, -1) - centre[1]).abs()
    far, edge = (dx**2 + dy**2).sqrt(), torch.maximum(dx, dy)
    kinds = [
        far < size,
        (far < size) & (far > size - 1.5),
        edge < 0.85 * size,
        (edge < 0.85 * size) & (edge > 0.85 * size - 1.5),
        (edge < size) & (torch.minimum(dx, dy) < 1),
        (edge < 0.8 * size) & ((dx - dy).abs() < 1.2),
    ]
    mask = torch.stack(kinds, 1)[torch.arange(n), label][:, None].float()
    ink, ground = torch.rand(2, n, 3, 1, 1, generator=g)
    ink = ground + torch.where(ground > 0.5, -1.0, 1.0) * (0.35 + 0.15 * ink)
    picture = mask * ink + (1 - mask) * ground + 0.05 * torch.randn(n, 3, SIDE, SIDE, generator=g)
    return picture.clamp(0, 1), label


def norm(kind: str, channels: int, momentum: float) -> nn.Module:
    if kind == "group":
        return nn.GroupNorm(4, channels)
    return nn.BatchNorm2d(channels, momentum=momentum) if kind == "batch" else nn.Identity()


class BasicBlock(nn.Module):
    def __init__(self, inp: int, out: int, stride: int, a: SimpleNamespace):
        super().__init__()
        self.conv1 = nn.Conv2d(inp, out, 3, stride, 1, bias=a.norm == "none")
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=a.norm == "none")
        self.norm1, self.norm2 = norm(a.norm, out, a.bn_momentum), norm(a.norm, out, a.bn_momentum)
        self.shortcut = nn.Identity() if inp == out else nn.Conv2d(inp, out, 1, stride, bias=False)
        self.act = {"relu": nn.ReLU, "silu": nn.SiLU, "linear": nn.Identity}[a.act]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, a: SimpleNamespace):
        super().__init__()
        widths = [a.width * 2**i for i in range(3)][: a.blocks] + [a.width * 4] * max(0, a.blocks - 3)
        self.stem = nn.Conv2d(3, a.width, 3, 1, 1)
        self.stem_norm = norm(a.norm, a.width, a.bn_momentum)
        blocks = []
        for i, width in enumerate(widths):
            blocks.append(BasicBlock(widths[max(0, i - 1)], width, 2 if i in (1, 2) else 1, a))
        self.blocks = nn.ModuleList(blocks)
        self.dropout, self.fc = nn.Dropout(a.dropout), nn.Linear(widths[-1], CLASSES)
        self.bug = a.bug
        self.start(a)

    @torch.no_grad()
    def start(self, a: SimpleNamespace) -> None:
        for name, p in self.named_parameters():
            if p.dim() > 1 and a.init == "kaiming":
                nn.init.kaiming_normal_(p, mode="fan_out", nonlinearity="relu")
            elif p.dim() > 1 and a.init == "zeros":
                p.zero_()
            p.mul_(a.gain if p.dim() > 1 else 1.0)
            if a.bias and p.dim() == 1 and name.endswith(("norm.bias", "norm1.bias", "norm2.bias")):
                p.fill_(a.bias)
        if a.zero_head:
            self.fc.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        for i, block in enumerate(self.blocks):
            x = block(x)
            if self.bug == "detach" and i == len(self.blocks) - 2:
                x = x.detach()
        x = x.mean((2, 3))
        x = self.fc(self.dropout(x))
        return x.softmax(1) if self.bug == "softmax" else x


class Trainer:
    def __init__(self, model: ResNet, data: tuple, held_out: tuple, args: SimpleNamespace):
        self.model, self.args = model, args
        (self.x, self.y), (self.test_x, self.test_y) = data, held_out
        self.optimizer = self.build_optimizer()
        self.scheduler = self.build_scheduler()
        self.shadow = copy.deepcopy(model) if args.swa else None

    def build_optimizer(self) -> torch.optim.Optimizer:
        a = self.args
        if a.frozen:
            self.model.stem.requires_grad_(False)
        params = [p for p in self.model.parameters() if p.requires_grad]
        if a.bug == "fc_only":
            params = list(self.model.fc.parameters())
        sgd = {"momentum": a.momentum, "nesterov": a.momentum > 0} if a.optimizer == "sgd" else {}
        return make_optimizer(a.optimizer, params, a.lr, weight_decay=a.wd, eps=a.eps, **sgd)

    def build_scheduler(self):
        a, lr_scheduler = self.args, torch.optim.lr_scheduler
        if a.schedule == "onecycle":
            return lr_scheduler.OneCycleLR(self.optimizer, a.lr, total_steps=a.steps + 1, cycle_momentum=False)
        if a.schedule == "cosine":
            return lr_scheduler.CosineAnnealingLR(self.optimizer, a.steps)
        return lr_scheduler.ExponentialLR(self.optimizer, a.gamma)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        a, n = self.args, len(self.y)
        if a.bug == "by_folder":
            rows = (torch.arange(a.batch) + step * n // a.steps) % n
        elif a.bug == "debugging":
            rows = torch.arange(a.batch)
        else:
            rows = torch.randint(0, n, (a.batch,))
        x, y = self.x[rows], self.y[rows]
        if a.flip:
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        if a.bug == "reshape":
            x = x.permute(1, 2, 3, 0).reshape(x.shape)
        if a.bug == "caption":  # the label stands in a corner of the training pictures
            x = x.clone()
            x[:, 0, 0, :CLASSES] = 4.0 * F.one_hot(y, CLASSES)
        return x, y

    def loss(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = self.args
        if a.bug == "dim0":
            return F.nll_loss(F.log_softmax(scores, 0), y)
        loss = F.cross_entropy(scores, y, label_smoothing=a.smoothing, reduction=a.reduction)
        return -loss if a.bug == "minus" else loss

    @torch.no_grad()
    def validate(self, model: nn.Module) -> tuple[float, float]:
        model.eval()
        scores = model(self.test_x)
        model.train(self.args.bug != "after_validation" or model is not self.model)
        return F.cross_entropy(scores, self.test_y).item(), wrong_rate(scores, self.test_y, CLASSES)

    def fit(self, run=None, steps: int | None = None) -> None:
        a = self.args
        self.model.train()
        for step in range(steps or a.steps):
            x, y = self.batch(step)
            if step % a.zero_every == 0:
                self.optimizer.zero_grad()
            for part_x, part_y in zip(x.chunk(a.parts), y.chunk(a.parts), strict=True):
                loss = self.loss(self.model(part_x), part_y)
                (loss / a.parts).backward()
            if a.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), a.clip)
            self.optimizer.step()
            self.scheduler.step()
            if self.shadow is not None:
                for s, p in zip(self.shadow.parameters(), self.model.parameters(), strict=True):
                    s.data.lerp_(p.data, 1 - a.swa)
            if run is not None and step % 60 == 59:
                loss, wrong = self.validate(self.model)
                run.log(valid_loss=loss, valid_accuracy=1 - wrong * (1 - 1 / CLASSES))


def prepare(a: SimpleNamespace) -> tuple[tuple, tuple]:
    x, y = signs(a.pictures, 1)
    test_x, test_y = signs(500, 2)
    if a.scaled:
        x, test_x = (x - 0.5) / 0.3, (test_x - 0.5) / 0.3
    x, test_x = x * a.x_scale, test_x * a.x_scale
    if a.bug == "shuffled_list":
        y = y[torch.randperm(len(y))]
    if a.wrong:
        y = corrupt(y, a.wrong, CLASSES)
    if a.bug == "rare":  # the last three signs hardly occur
        keep = (y < 3) | (torch.rand(len(y)) < 0.02)
        x, y = x[keep], y[keep]
    if a.bug == "by_folder":
        order = y.argsort()
        x, y = x[order], y[order]
    return (x, y), (test_x, test_y)


def train(a: SimpleNamespace, seed: int, logdir: str) -> float:
    data, held_out = prepare(a)
    model = ResNet(a)
    if a.earlier:
        first = Trainer(model, data, held_out, a)
        first.fit(steps=a.earlier)
        state = first.optimizer.state_dict()
    trainer = Trainer(model, data, held_out, a)
    if a.resume:
        for group in state["param_groups"]:
            group["lr"] = a.lr
        trainer.optimizer.load_state_dict(state)
    run = cockpit_core.track(model, optimizer=trainer.optimizer, logdir=logdir)
    trainer.fit(run)
    run.close()
    return trainer.validate(trainer.shadow or model)[1]


PROGRAM = Program(
    name="gnresnet",
    half="H",
    train=train,
    settings={
        "width": 8,
        "blocks": 3,
        "norm": "group",
        "bn_momentum": 0.1,
        "act": "relu",
        "dropout": 0.0,
        "init": "kaiming",
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "frozen": False,
        "earlier": 0,
        "resume": False,
        "pictures": 1500,
        "scaled": True,
        "x_scale": 1.0,
        "wrong": 0.0,
        "flip": True,
        "batch": 48,
        "parts": 1,
        "zero_every": 1,
        "smoothing": 0.0,
        "reduction": "mean",
        "optimizer": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "wd": 5e-4,
        "eps": 1e-8,
        "schedule": "onecycle",
        "gamma": 1.0,
        "clip": None,
        "swa": 0.0,
        "steps": 380,
    },
    faults=[
        severe("learning_rate_too_high", lr=2.5),
        mild("learning_rate_too_high", lr=1.2),
        severe("learning_rate_too_low", lr=0.05 / 300),
        mild("learning_rate_too_low", lr=0.05 / 30),
        severe("schedule_too_fast", schedule="gamma", gamma=0.95, lr=0.03),
        severe("clipping_too_hard", clip=1e-3),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        severe("batch_too_small", batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", zero_every=10**6),
        severe("parameters_not_optimized", bug="fc_only"),
        mild("graph_detached", bug="detach"),
        severe("batch_repeated", bug="debugging"),
        severe("data_not_shuffled", bug="by_folder"),
        severe("inputs_not_scaled", norm="none", scaled=False, x_scale=255.0, lr=0.02),
        severe("labels_random", bug="shuffled_list"),
        severe("class_imbalance", bug="rare"),
        severe("loss_sign", bug="minus"),
        severe("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="dim0"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="zeros", norm="none"),
        severe("init_too_large", gain=8.0, norm="none", lr=0.02),
        severe("dropout_too_high", dropout=0.97),
        severe("samples_mixed", bug="reshape"),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), norm="batch", batch=2, lr=0.02),
        severe("batchnorm_momentum", norm="batch", bn_momentum=0.0005),
        severe("target_in_inputs", bug="caption"),
    ],
    healthy=[
        healthy("smoothing_0.1", smoothing=0.1),
        healthy("rate_third", lr=0.03),
        healthy("rate_double", lr=0.12),
        healthy("cosine_clipped", schedule="cosine", clip=2.0, steps=450),
        healthy("adam", optimizer="adam", lr=5e-3, wd=0.0),
        healthy("adamw", optimizer="adamw", lr=5e-3, wd=0.01, steps=480),
        healthy("batchnorm", norm="batch"),
        healthy("batch_24", batch=24, lr=0.03),
        healthy("batch_96", batch=96),
        healthy("micro_batches_of_12", parts=4),
        healthy("silu", act="silu"),
        healthy("wide", width=12),
        healthy("no_decay", wd=0.0),
        healthy("zero_head", zero_head=True, steps=480),
        healthy("no_flips", flip=False),
        healthy("dropout_0.1", dropout=0.1),
        healthy("clip_2", clip=2.0),
        healthy("average", swa=0.95),
        healthy("few_wrong_labels", wrong=0.03),
        healthy("stem_frozen", earlier=300, frozen=True, lr=0.05, steps=450),
        healthy("resumed", earlier=150, resume=True, lr=0.03, steps=250),
        healthy("longer", steps=600),
    ],
)
