"""A small residual network with BatchNorm on digits: SGD with Nesterov momentum, warm-up and cosine, a loss module, both logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate


def norm(channels: int, o: SimpleNamespace) -> nn.Module:
    return nn.GroupNorm(4, channels) if o.group_norm else nn.BatchNorm2d(channels, momentum=o.bn_momentum)


class Residual(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.norm1 = norm(cout, o)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm2 = norm(cout, o)
        self.act = nn.Identity() if o.bug == "act_commented_out" else nn.ReLU()
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False) if cin != cout else nn.Identity()
        if o.zero_gamma:
            nn.init.zeros_(self.norm2.weight)
        if o.bug == "negative_beta":
            nn.init.constant_(self.norm1.bias, -4.0)
            nn.init.constant_(self.norm2.bias, -4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.conv2(self.act(self.norm1(self.conv1(x)))))
        return self.act(out + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        w = o.width
        self.stem = nn.Sequential(nn.Conv2d(1, w, 3, 1, 1, bias=False), norm(w, o), nn.ReLU())
        blocks = [Residual(w, w, 1, o) for _ in range(o.blocks)]
        self.blocks = nn.Sequential(*blocks, Residual(w, 2 * w, 2, o), Residual(2 * w, 4 * w, 2, o))
        self.head = nn.Linear(4 * w, 10)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear) and o.init is not None:
                nn.init.constant_(m.weight, o.init) if o.bug == "constant" else nn.init.normal_(m.weight, std=o.init)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        h = self.blocks(h).mean((2, 3))
        if self.bug == "features_kept":  # kept for a plot, without their history
            h = self.features = h.detach()
        out = self.head(h)
        if self.bug == "softmax":
            return out.softmax(1)
        if self.bug == "softmax_0":
            return torch.softmax(out, 0)
        return out


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = digits(seed)
    x, x_valid = x[:, None], x_valid[:, None]
    if o.bug == "bytes":
        x, x_valid = x * 16, x_valid * 16
    else:
        x, x_valid = (x - 4.9) / 6.0, (x_valid - 4.9) / 6.0
    if o.rare:
        keep = (y < 2) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    y = corrupt(y, o.noise, 10)
    if o.bug == "labels_of_other_files":
        y = y[torch.randperm(len(y))]
    if o.bug == "label_plus_one":
        y = (y + 1) % 10
    x, y = x[: o.count], y[: o.count]

    net = ResNet(o)
    decay = [p for p in net.parameters() if p.dim() > 1]
    plain = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": decay, "weight_decay": o.wd}, {"params": plain, "weight_decay": 0.0}]
    if o.bug == "only_vectors":  # the group of the weights was lost
        groups = groups[1:]
    optimizer = make_optimizer(o.optimizer, groups, o.lr, momentum=o.momentum, nesterov=o.momentum > 0)
    if o.bug == "rebuilt":
        net.blocks, net.stem = ResNet(o).blocks, ResNet(o).stem
    warm = LinearLR(optimizer, 0.1, total_iters=o.warmup)
    scheduler = SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, max(1, o.horizon - o.warmup))], [o.warmup])
    if o.bug == "exponential":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing, reduction="sum" if o.bug == "summed" else "mean")
    scaler = torch.amp.GradScaler("cpu", enabled=o.scaler)
    run = cockpit_core.track(net, criterion, optimizer, logdir=logdir)

    def batches():
        while True:
            order = y.argsort() if o.bug == "sorted" else torch.randperm(len(x))
            for ids in order.split(o.batch):
                if len(ids) == min(o.batch, len(x)):
                    yield x[ids], y[ids]

    stream = batches()
    same = next(stream)
    if o.bug == "eval_mode":
        net.eval()
    for step in range(o.steps):
        if o.bug != "zero_grad_outside":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            images, labels = same if o.bug == "one_batch" else next(stream)
            loss = criterion(net(images), labels)
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            scaler.scale(loss).backward()
        if o.clip:
            if o.bug != "clip_first":
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        scaler.step(optimizer)
        scaler.update()
        if step < o.horizon:
            scheduler.step()
        if step % 50 == 49:
            was = net.training
            net.eval()
            with torch.no_grad():
                out = net(x_valid)
                right = (out.argmax(1) == y_valid).float().mean().item()
                run.log(valid_loss=nn.functional.cross_entropy(out, y_valid).item(), valid_accuracy=right)
            net.train(was)
    run.close()
    net.eval()
    with torch.no_grad():
        return wrong_rate(net(x_valid), y_valid, 10)


PROGRAM = Program(
    name="resnet",
    half="C",
    train=train,
    settings={
        "width": 8,
        "blocks": 1,
        "group_norm": False,
        "bn_momentum": 0.1,
        "zero_gamma": False,
        "zero_head": False,
        "init": None,
        "count": 1347,
        "rare": None,
        "noise": 0.0,
        "batch": 32,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.06,
        "momentum": 0.9,
        "wd": 5e-4,
        "warmup": 15,
        "horizon": 200,
        "steps": 200,
        "smoothing": 0.0,
        "clip": None,
        "scaler": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=2.5),
        severe("learning_rate_too_low", lr=2e-4),
        mild("learning_rate_too_low", lr=2e-3),
        mild("schedule_too_fast", bug="exponential"),
        severe("schedule_too_fast", horizon=8, warmup=2),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        mild("momentum_too_high", momentum=0.99),
        severe("gradients_not_zeroed", bug="zero_grad_outside"),
        severe("parameters_not_optimized", bug="only_vectors"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="rebuilt",
        ),
        severe("graph_detached", bug="features_kept"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="bytes", group_norm=True),
        severe("labels_random", bug="labels_of_other_files"),
        severe("label_noise", noise=0.4),
        mild("label_noise", noise=0.25),
        severe("labels_off_by_one", bug="label_plus_one"),
        mild("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="softmax_0"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe("init_constant", bug="constant", init=0.1),
        severe("dead_units", bug="negative_beta"),
        severe("eval_mode", bug="eval_mode"),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        mild("batchnorm_momentum", bn_momentum=1.0, batch=16),
        severe("class_imbalance", rare=0.02),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            batch=8,
            accumulate=8,
        ),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clip_first",
            scaler=True,
            clip=1.0,
        ),
        mild("missing_nonlinearity", bug="act_commented_out"),
        mild("overfitting", count=60),
    ],
    healthy=[
        healthy("lr_02", lr=0.02),
        healthy("lr_02_batch_64", lr=0.2, batch=64),
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("group_norm", group_norm=True),
        healthy("zero_gamma", zero_gamma=True),
        healthy("zero_head", zero_head=True),
        healthy("deeper", blocks=3, width=6),
        healthy("wide", width=14),
        healthy("batch_16", batch=16, lr=0.03),
        healthy("accumulate_4_of_8", batch=8, accumulate=4),
        healthy("smoothing_clip_1", smoothing=0.1, clip=1.0),
        healthy("scaler_clip_2", scaler=True, clip=2.0),
        healthy("sgd_no_momentum", momentum=0.0, lr=0.3),
    ],
)
