"""Drawn garments, 16x16 pixels, six kinds: a CNN with max-pooling, Adam, F.cross_entropy. A Trainer class."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

KINDS = ("shirt", "pullover", "dress", "trousers", "skirt", "bag")
SIDE = 16


def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n garments as grey values 0 to 255, photographed a bit askew, in shade and with specks."""
    g = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, 1, 1, generator=g)

    kind = torch.randint(0, len(KINDS), (n,), generator=g)
    line = torch.linspace(-1.25, 1.25, SIDE)
    yy, xx = torch.meshgrid(line, line, indexing="ij")
    turn, size = between(-0.35, 0.35), between(0.75, 1.2)
    dx, dy = xx - between(-0.25, 0.25), yy - between(-0.25, 0.25)
    u = (turn.cos() * dx + turn.sin() * dy).abs() / size  # distance from the middle line
    v = (turn.cos() * dy - turn.sin() * dx) / size  # from collar (-1) to hem (1)
    body = (u < between(0.38, 0.5)) & (v.abs() < 0.85)
    sleeve, waist, leg = between(0.0, 0.25), between(0.15, 0.3), between(0.06, 0.16)
    masks = [
        body | ((u < 0.95) & (v > -0.85) & (v < -0.45 + sleeve)),
        body | ((u > 0.55) & (u < 0.9) & (v > -0.8) & (v < 0.45 + sleeve)) | ((u < 0.9) & (v > -0.85) & (v < -0.5)),
        (v.abs() < 0.95) & (u < waist + 0.5 * (v + 0.2).abs()),
        (v.abs() < 0.95) & (u < 0.5) & ((v < -0.45) | (u > leg)),
        (v > -0.5) & (v < 0.7) & (u < waist + 0.35 * (v + 0.5)),
        ((v > -0.2) & (v < 0.75) & (u < 0.8)) | ((v > -0.75) & (v <= -0.2) & (u > 0.3) & (u < 0.5)),
    ]
    shape = torch.stack(masks, 1)[torch.arange(n), kind].float()
    cloth = between(50, 150) * (1 + 0.4 * torch.sin(between(3, 14) * v + between(0, 6)))
    image = between(5, 45) + shape * cloth + 46 * torch.randn(n, SIDE, SIDE, generator=g)
    return image.clamp(0, 255)[:, None], kind


class Net(nn.Module):
    def __init__(self, o: SimpleNamespace, classes: int) -> None:
        super().__init__()
        act = {"relu": nn.ReLU, "gelu": nn.GELU, "leaky": nn.LeakyReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
        act["none"] = nn.Identity
        stages: list[nn.Module] = []
        channels = 1
        for wide in (o.width, 2 * o.width, 2 * o.width)[: o.stages]:
            stages.append(nn.Conv2d(channels, wide, 3, padding=1))
            if o.norm == "batch":
                stages.append(nn.BatchNorm2d(wide))
            elif o.norm == "group":
                stages.append(nn.GroupNorm(4, wide))
            stages += [act[o.act](), nn.MaxPool2d(2) if o.pool == "max" else nn.AvgPool2d(2)]
            channels = wide
        self.stages = nn.Sequential(*stages)
        self.hidden = nn.Linear(channels * (SIDE >> o.stages) ** 2, 64)
        self.deep = nn.ModuleList(nn.Linear(64, 64) for _ in range(o.sigmoid_layers))
        self.act = act[o.act]()
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(64, classes)
        self.cut = o.bug == "detached"
        self.end = o.end
        with torch.no_grad():
            for part in self.modules():
                if isinstance(part, nn.Conv2d | nn.Linear):
                    part.weight.mul_(o.gain)
                    part.bias.mul_(o.gain)
                    if part is not self.head:
                        part.bias.add_(o.shift)
            if o.zero_head:
                self.head.weight.zero_()
                self.head.bias.zero_()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stages(image).flatten(1)
        if self.cut:
            x = torch.tensor(x.tolist())
        x = self.drop(self.act(self.hidden(x)))
        for layer in self.deep:
            x = torch.sigmoid(layer(x))
        x = self.head(x)
        if self.end == "softmax_dim0":
            return F.softmax(x, dim=0)
        return x


class Trainer:
    def __init__(self, o: SimpleNamespace, seed: int, logdir: str) -> None:
        self.o, self.logdir = o, logdir
        x, y = draw(2400, 71)
        self.mean, self.std = x.mean(), x.std()
        self.classes = len(KINDS)
        x = self.scale(x)
        if o.outliers:
            broken = torch.rand(len(x)) < o.outliers
            x[broken] *= o.outlier_size
        if o.bug == "list_apart":
            x = x[torch.randperm(len(x))]
        if o.bug == "name_on_picture":
            x[torch.arange(len(x)), 0, 0, y] = 6.0
        if o.bug == "from_one":
            y, self.classes = y + 1, self.classes + 1
        if o.noise:
            y = corrupt(y, o.noise, self.classes)
        if o.rows:
            x, y = x[: o.rows], y[: o.rows]
        if o.bug == "by_kind":
            order = y.argsort()
            x, y = x[order], y[order]
        self.x, self.y = x, y
        self.batch = len(x) if o.batch == "all" else o.batch

        self.model = Net(o, self.classes)
        if o.pretrain:
            self.pretrain()
        if o.freeze:
            self.model.stages[0].requires_grad_(False)
        params = [p for p in self.model.parameters() if p.requires_grad]
        if o.bug == "head_only":
            params = list(self.model.head.parameters())
        self.optimizer = make_optimizer(
            o.optimizer, params, o.lr, weight_decay=o.decay, momentum=o.momentum, betas=(o.beta1, 0.999), eps=o.eps
        )
        if o.bug == "rebuilt":
            self.model = copy.deepcopy(self.model)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        if self.o.scaling == "raw":
            return x.clone()
        if self.o.scaling == "sixteen_bits":
            return x * 257
        if self.o.scaling == "unit":
            return x / 255
        return (x - self.mean) / self.std * self.o.factor

    def rate(self, step: int) -> float:
        done = min(1.0, step / (self.o.steps * self.o.until))
        if self.o.schedule == "cosine":
            return 0.5 + 0.5 * math.cos(math.pi * done)
        if self.o.schedule == "onecycle":
            return (0.05 + done / 0.3) if done < 0.3 else (1 - done) / 0.7
        return self.o.gamma**step

    def pretrain(self) -> None:
        x, y = draw(800, 73)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        for _ in range(self.o.pretrain):
            i = torch.randint(0, len(x), (48,))
            optimizer.zero_grad()
            F.cross_entropy(self.model(self.scale(x[i])), y[i]).backward()
            optimizer.step()

    def augment(self, x: torch.Tensor) -> torch.Tensor:
        if self.o.augment == "flip" and torch.rand(()) < 0.5:
            return x.flip(3)
        return x

    def loss(self, scores: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(scores, y, reduction=self.o.reduction, label_smoothing=self.o.smooth)
        return -loss if self.o.bug == "minus" else loss * self.o.times

    def batches(self):
        while True:
            order = torch.arange(len(self.x)) if self.o.bug == "by_kind" else torch.randperm(len(self.x))
            for pick in order.split(self.batch):
                if len(pick) == self.batch:
                    yield torch.arange(self.batch) if self.o.bug == "one_batch" else pick

    def fit(self) -> None:
        o = self.o
        run = cockpit_core.track(self.model, optimizer=self.optimizer, logdir=self.logdir)
        self.model.train(o.bug != "eval")
        batches = self.batches()
        for _ in range(o.steps):
            if o.bug != "no_zero":
                self.optimizer.zero_grad()
            for _ in range(o.accumulate):
                pick = next(batches)
                loss = self.loss(self.model(self.augment(self.x[pick])), self.y[pick])
                loss = loss / o.accumulate if o.divide else loss
                loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
            self.optimizer.step()
            self.scheduler.step()
        run.close()

    @torch.no_grad()
    def error(self) -> float:
        x, y = draw(900, 72)
        self.model.eval()
        return wrong_rate(self.model(self.scale(x)), y, len(KINDS))


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    trainer = Trainer(o, seed, logdir)
    trainer.fit()
    return trainer.error()


PROGRAM = Program(
    name="clothes",
    half="M",
    train=train,
    settings={
        "width": 12,
        "stages": 2,
        "act": "relu",
        "pool": "max",
        "norm": None,
        "sigmoid_layers": 0,
        "end": None,
        "dropout": 0.0,
        "gain": 1.0,
        "shift": 0.0,
        "zero_head": False,
        "freeze": False,
        "pretrain": 0,
        "scaling": "standard",
        "factor": 1.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "noise": 0.0,
        "rows": None,
        "augment": None,
        "batch": 48,
        "accumulate": 1,
        "divide": True,
        "reduction": "mean",
        "smooth": 0.0,
        "times": 1.0,
        "optimizer": "adam",
        "lr": 3e-3,
        "momentum": 0.9,
        "beta1": 0.9,
        "eps": 1e-8,
        "decay": 0.0,
        "schedule": "cosine",
        "until": 1.0,
        "gamma": 1.0,
        "clip": None,
        "steps": 400,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.08),
        mild("learning_rate_too_high", lr=0.03, schedule="none"),
        mild("learning_rate_too_low", lr=7e-5),
        mild("schedule_too_fast", schedule="none", gamma=0.98),
        severe("clipping_too_hard", optimizer="sgd", lr=0.05, clip=1e-3),
        mild("weight_decay_too_high", decay=0.06),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("gradients_not_zeroed", bug="no_zero"),
        mild("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="rebuilt"),
        mild("graph_detached", bug="detached"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="by_kind"),
        severe("inputs_not_scaled", scaling="sixteen_bits"),
        mild("input_outliers", outliers=0.03, outlier_size=60.0),
        severe("labels_random", bug="list_apart"),
        mild("label_noise", noise=0.6),
        severe("loss_sign", bug="minus"),
        severe("softmax_over_batch", ("softmax_over_batch", "output_activation"), end="softmax_dim0"),
        severe("dead_units", shift=-4.0),
        severe("init_constant", gain=0.0),
        mild("init_too_large", gain=8.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), sigmoid_layers=6),
        severe("dropout_too_high", dropout=0.97),
        severe("labels_off_by_one", bug="from_one"),
        severe("target_in_inputs", bug="name_on_picture"),
        mild("overfitting", rows=60),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), norm="batch", batch=2),
        mild("rate_harmless", "learning_rate_too_high", lr=6e-3),
        mild("dropout_harmless", "dropout_too_high", dropout=0.4),
        mild("clipping_harmless", "clipping_too_hard", clip=0.5),
        mild("noise_harmless", "label_noise", noise=0.03),
        mild("frozen_harmless", "parameters_not_optimized", freeze=True, width=20),
        mild("summed_harmless", "loss_summed", reduction="sum"),
        mild("scale_harmless", "inputs_not_scaled", factor=2.5),
        mild("eps_harmless", "adam_eps_too_large", eps=1e-4),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.05),
        healthy("adamw", optimizer="adamw", decay=0.05),
        healthy("nadam", optimizer="nadam"),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.02),
        healthy("rate_doubled", lr=6e-3),
        healthy("constant_rate", schedule="none"),
        healthy("onecycle", schedule="onecycle", lr=4e-3),
        healthy("wide", width=20),
        healthy("three_stages", stages=3),
        healthy("gelu", act="gelu"),
        healthy("tanh", act="tanh"),
        healthy("batchnorm", norm="batch"),
        healthy("groupnorm", norm="group"),
        healthy("average_pooling", pool="avg"),
        healthy("pixels_0_to_1", scaling="unit", lr=4e-3),
        healthy("dropout_25", dropout=0.25),
        healthy("label_smoothing", smooth=0.1),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=200, lr=1e-3, steps=300),
        healthy("flips", augment="flip"),
        healthy("batch_128", batch=128, lr=4e-3, steps=300),
        healthy("accumulation", batch=24, accumulate=2),
    ],
)
