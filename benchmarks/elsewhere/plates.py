"""Letters of number plates, 16x16 pixels: a little ResNet with BatchNorm, SGD with Nesterov, a Trainer class."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

# the twelve letters that look the same in Latin and in Cyrillic, five columns by seven rows
FONT = {
    "A": "0E 11 11 1F 11 11 11",
    "B": "1E 11 11 1E 11 11 1E",
    "E": "1F 10 10 1E 10 10 1F",
    "K": "11 12 14 18 14 12 11",
    "M": "11 1B 15 15 11 11 11",
    "H": "11 11 11 1F 11 11 11",
    "O": "0E 11 11 11 11 11 0E",
    "P": "1E 11 11 1E 10 10 10",
    "C": "0E 11 10 10 10 11 0E",
    "T": "1F 04 04 04 04 04 04",
    "Y": "11 11 0A 04 04 04 04",
    "X": "11 11 0A 04 0A 11 11",
}
NUM_CLASSES, SIZE, NUM_TRAIN, NUM_TEST = len(FONT), 16, 1920, 600


def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey photographs with values from 0 to 255, [n, 1, 16, 16], and which letter it is."""
    g = torch.Generator().manual_seed(seed)
    rows = [[int(row, 16) for row in code.split()] for code in FONT.values()]
    glyphs = torch.tensor([[[row >> (4 - i) & 1 for i in range(5)] for row in letter] for letter in rows]).float()
    glyphs = F.pad(F.interpolate(glyphs[:, None], scale_factor=2, mode="bilinear"), (3, 3, 1, 1))
    y = torch.randint(0, NUM_CLASSES, (n,), generator=g)
    turn, shear = 0.2 * torch.randn(n, generator=g), 0.15 * torch.randn(n, generator=g)
    zoom = 1.05 + 0.3 * torch.rand(n, generator=g)
    shift = 0.2 * torch.randn(n, 2, generator=g)
    top = torch.stack([zoom * turn.cos(), -zoom * turn.sin() + shear, shift[:, 0]], 1)
    bottom = torch.stack([zoom * turn.sin(), zoom * turn.cos(), shift[:, 1]], 1)
    grid = F.affine_grid(torch.stack([top, bottom], 1), [n, 1, SIZE, SIZE], align_corners=False)
    ink = F.grid_sample(glyphs[y], grid, align_corners=False)
    paper = 190 + 25 * torch.randn(n, 1, 1, 1, generator=g)
    depth = 70 + 70 * torch.rand(n, 1, 1, 1, generator=g)
    slope = torch.linspace(-1, 1, SIZE) * 25 * torch.randn(n, 1, 1, 1, generator=g)
    pixels = paper + slope - depth * ink + 22 * torch.randn(n, 1, SIZE, SIZE, generator=g)
    return pixels.round().clamp(0, 255), y


def norm_layer(o: SimpleNamespace, channels: int) -> nn.Module:
    if o.norm == "batch":
        return nn.BatchNorm2d(channels, momentum=o.bn_momentum)
    return nn.GroupNorm(4, channels) if o.norm == "group" else nn.Identity()


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, o: SimpleNamespace):
        super().__init__()
        self.act = {"relu": F.relu, "silu": F.silu, "leaky": F.leaky_relu, "none": lambda t: t}[o.act]
        bias = o.norm is None
        self.conv1 = nn.Conv2d(cin, cout, 3, stride=stride, padding=1, bias=bias)
        self.norm1 = norm_layer(o, cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1, bias=bias)
        self.norm2 = norm_layer(o, cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride=stride, bias=bias), norm_layer(o, cout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.act(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return self.act(out + self.shortcut(x))


class PlateNet(nn.Module):
    def __init__(self, classes: int, o: SimpleNamespace):
        super().__init__()
        w = o.width
        self.bug, self.softmax = o.bug, o.softmax
        self.stem = nn.Sequential(
            nn.Conv2d(1, w, 3, padding=1, bias=o.norm is None),
            norm_layer(o, w),
            nn.Identity() if o.act == "none" else nn.ReLU(inplace=True),
        )
        blocks = [Block(w, w, 2, o), Block(w, 2 * w, 2, o), Block(2 * w, 3 * w, 2, o)][: o.blocks]
        self.blocks = blocks if o.bug == "plain_list" else nn.ModuleList(blocks)
        self.drop = nn.Dropout(o.dropout)
        self.fc = nn.Linear(w * o.blocks, classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if o.conv_init is not None:
                    nn.init.constant_(m.weight, o.conv_init)
            if isinstance(m, nn.BatchNorm2d) and o.bn_bias:
                nn.init.constant_(m.bias, o.bn_bias)
        if o.zero_fc:
            nn.init.zeros_(self.fc.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = x.mean(dim=(2, 3))
        if self.bug == "detach":
            x = x.detach()
        if self.bug == "mixed":  # meant as a flatten
            x = x.transpose(0, 1).reshape(len(x), -1)
        x = self.fc(self.drop(x))
        return F.softmax(x, dim=1) if self.softmax else x


class Trainer:
    def __init__(self, o: SimpleNamespace, logdir: str):
        self.o = o
        x, y = draw(NUM_TRAIN, 41)
        xv, yv = draw(NUM_TEST, 42)
        classes = NUM_CLASSES
        if o.noise:
            y = corrupt(y, o.noise, NUM_CLASSES)
        if o.rare:
            keep = (y < 2) | (torch.rand(len(y)) < o.rare)
            x, y = x[keep], y[keep]
        if o.rows:
            x, y = x[: o.rows], y[: o.rows]
        if o.bug == "sorted":
            order = torch.argsort(y, stable=True)
            x, y = x[order], y[order]
        if o.bug == "from_one":
            y, classes = y + 1, NUM_CLASSES + 1
        if o.bug == "each_image":  # one photograph is all black
            x[7] = 0
            x, xv = ((t - t.mean((1, 2, 3), True)) / t.std((1, 2, 3), keepdim=True) for t in (x, xv))
        else:
            mean, std = x.mean(), x.std()
            x, xv = (x - mean) / std, (xv - mean) / std
        if o.outliers:
            x[torch.rand(len(x)) < o.outliers] *= 60
        self.valid = xv, yv

        self.net = PlateNet(classes, o)
        batch = min(o.batch, len(x))
        self.loader = DataLoader(
            TensorDataset(x, y), batch_size=batch, shuffle=o.bug not in ("sorted", "same_batch"), drop_last=True
        )
        self.criterion = nn.CrossEntropyLoss(reduction=o.reduction, label_smoothing=o.smooth)
        if o.pretrain:
            self.pretrain(x, y)
        if o.freeze:
            self.net.stem.requires_grad_(False)
        params = self.net.parameters()
        if o.bug == "no_decay_groups":  # the groups leave out all convolutions
            params = [p for name, p in self.net.named_parameters() if "norm" in name or "fc" in name]
        self.optimizer = make_optimizer(
            o.optimizer,
            params,
            o.lr,
            momentum=o.momentum,
            nesterov=o.nesterov and o.momentum > 0,
            weight_decay=o.wd,
            maximize=o.bug == "maximize",
        )
        if o.bug == "copied":
            self.net = copy.deepcopy(self.net)
        self.steps = min(o.steps, o.epochs * len(self.loader) // o.accumulate) if o.epochs else o.steps
        self.scheduler = self.make_scheduler()
        self.run = cockpit_core.track(self.net, self.criterion, self.optimizer, logdir=logdir)
        self.done = 0

    def make_scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        o, opt, sched = self.o, self.optimizer, torch.optim.lr_scheduler
        if o.schedule == "cosine":
            return sched.CosineAnnealingLR(opt, T_max=self.steps)
        if o.schedule == "onecycle":
            return sched.OneCycleLR(opt, max_lr=o.lr, total_steps=self.steps + 1)
        if o.schedule == "step":
            return sched.StepLR(opt, step_size=o.step_size, gamma=o.gamma)
        if o.schedule == "warmup":
            ramp = sched.LinearLR(opt, 0.05, 1.0, total_iters=40)
            return sched.SequentialLR(opt, [ramp, sched.CosineAnnealingLR(opt, self.steps - 40)], [40])
        return sched.ConstantLR(opt, 1.0)

    def pretrain(self, x: torch.Tensor, y: torch.Tensor) -> None:
        warm = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        for _ in range(self.o.pretrain):
            pick = torch.randint(0, len(x), (32,))
            warm.zero_grad()
            F.cross_entropy(self.net(x[pick]), y[pick]).backward()
            warm.step()

    def fit(self) -> float:
        self.net.train()
        if self.o.bug == "eval":  # a first look before training
            self.validate()
        while self.done < self.steps:
            self.train_epoch()
        self.validate()
        self.run.close()
        return wrong_rate(self.scores, self.valid[1], NUM_CLASSES)

    def train_epoch(self) -> None:
        o = self.o
        for i, (images, labels) in enumerate(self.loader):
            if o.bug == "same_batch":
                images, labels = next(iter(self.loader))
            if i % o.accumulate == 0 and o.bug != "no_zero":
                self.optimizer.zero_grad()
            loss = self.criterion(self.net(images), labels)
            if o.divide:
                loss = loss / o.accumulate
            loss.backward()
            if (i + 1) % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(self.net.parameters(), o.clip)
            self.optimizer.step()
            self.scheduler.step()
            self.done += 1
            if self.done >= self.steps:
                break
            if self.done % 60 == 0:
                self.validate()

    @torch.no_grad()
    def validate(self) -> None:
        self.net.eval()
        images, labels = self.valid
        self.scores = self.net(images)
        accuracy = (self.scores.argmax(1) == labels).float().mean()
        self.run.log(valid_loss=F.cross_entropy(self.scores, labels).item(), valid_accuracy=accuracy.item())
        if self.o.bug not in ("eval", "eval_later"):
            self.net.train()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    return Trainer(o, logdir).fit()


PROGRAM = Program(
    name="plates",
    half="L",
    train=train,
    settings={
        "width": 12,
        "blocks": 3,
        "act": "relu",
        "norm": "batch",
        "bn_momentum": 0.1,
        "bn_bias": 0.0,
        "conv_init": None,
        "zero_fc": False,
        "softmax": False,
        "dropout": 0.0,
        "noise": 0.0,
        "rare": 0.0,
        "rows": None,
        "outliers": 0.0,
        "batch": 32,
        "accumulate": 1,
        "divide": True,
        "reduction": "mean",
        "smooth": 0.0,
        "pretrain": 0,
        "freeze": False,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "wd": 5e-4,
        "schedule": "cosine",
        "step_size": 120,
        "gamma": 0.2,
        "clip": None,
        "epochs": None,
        "steps": 360,
    },
    faults=[
        severe("learning_rate_too_high", lr=4.0),
        mild("learning_rate_too_high", lr=0.8, schedule="none"),
        mild("learning_rate_too_low", lr=3e-3),
        severe("schedule_too_fast", schedule="step", step_size=3, gamma=0.2),
        mild("schedule_too_fast", schedule="step", step_size=1, gamma=0.97),
        mild("clipping_too_hard", ("clipping_too_hard", "learning_rate_too_low"), clip=0.02),
        severe("weight_decay_too_high", wd=0.3),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2, lr=0.01),
        mild("batch_too_small", ("batch_too_small", "batchnorm_few_samples", "learning_rate_too_high"), batch=4),
        severe("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=960, epochs=6),
        severe("momentum_too_high", momentum=0.999, nesterov=False, schedule="none"),
        severe("gradients_not_zeroed", bug="no_zero"),
        severe("parameters_not_optimized", bug="plain_list"),
        mild("parameters_not_optimized", bug="no_decay_groups"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="copied"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="detach"),
        severe("batch_repeated", bug="same_batch"),
        severe("data_not_shuffled", bug="sorted"),
        mild("input_outliers", outliers=0.03),
        mild("label_noise", noise=0.3),
        severe("labels_off_by_one", bug="from_one"),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="maximize"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        mild("double_softmax", softmax=True),
        severe("dead_units", bn_bias=-4.0),
        severe("init_constant", conv_init=0.0),
        mild("eval_mode", bug="eval"),
        severe("batchnorm_momentum", bn_momentum=1e-3),
        severe("class_imbalance", rare=0.02),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="mixed"),
        severe("missing_nonlinearity", act="none"),
        mild("overfitting", rows=96),
        severe("not_finite", bug="each_image"),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=8e-3, wd=0.0),
        healthy("adamw", optimizer="adamw", lr=6e-3, wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0, wd=0.0),
        healthy("plain_momentum", nesterov=False),
        healthy("without_momentum", momentum=0.0, lr=0.4),
        healthy("rate_halved", lr=0.06),
        healthy("rate_doubled", lr=0.2),
        healthy("onecycle", schedule="onecycle", lr=0.25),
        healthy("warmup_cosine", schedule="warmup"),
        healthy("steps", schedule="step"),
        healthy("wider", width=20, steps=300),
        healthy("silu", act="silu"),
        healthy("groupnorm", norm="group"),
        healthy("label_smoothing", smooth=0.1),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_fc=True),
        healthy("dropout_20", dropout=0.2),
        healthy("fine_tuning", pretrain=150, lr=0.03, steps=260),
        healthy("frozen_stem", freeze=True),
        healthy("accumulation", batch=16, accumulate=2),
        healthy("label_noise_small", noise=0.02),
    ],
)
