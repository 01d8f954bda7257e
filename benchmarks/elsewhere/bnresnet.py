"""Handwritten digits with a small residual network: BatchNorm, nn.CrossEntropyLoss, SGD with momentum, cosine."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate


class Digits(Dataset):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, shift: bool = False, grain: float = 0.0):
        self.images, self.labels, self.shift, self.grain = images, labels, shift, grain

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[i]
        if self.shift and torch.rand(()) < 0.3:
            image = image.roll(int(torch.randint(-1, 2, ())), -1)
        if self.grain:
            image = image + self.grain * torch.randn_like(image)
        return image, self.labels[i]


def norm(o: SimpleNamespace, width: int) -> nn.Module:
    if o.norm == "batch":
        return nn.BatchNorm2d(width, momentum=o.bn_momentum)
    if o.norm == "group":
        return nn.GroupNorm(4, width)
    return nn.Identity()


class Block(nn.Module):
    def __init__(self, width: int, o: SimpleNamespace):
        super().__init__()
        self.a = nn.Conv2d(width, width, 3, padding=1, bias=o.norm == "none")
        self.na = norm(o, width)
        self.b = nn.Conv2d(width, width, 3, padding=1, bias=o.norm == "none")
        self.nb = norm(o, width)
        self.act = {"relu": nn.ReLU(), "gelu": nn.GELU(), "none": nn.Identity()}[o.act]
        if o.zero_branch:
            nn.init.zeros_(self.nb.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.act(self.na(self.a(x)))
        h = self.nb(self.b(h))
        return self.act(x + h)


class ResNet(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, o.width, 3, stride=2, padding=1), norm(o, o.width))
        self.blocks = nn.Sequential(*[Block(o.width, o) for _ in range(o.blocks)])
        self.neck = nn.Sequential(
            nn.Linear(o.width * 4, 32),
            nn.BatchNorm1d(32, momentum=o.bn_momentum) if o.norm == "batch" else nn.LayerNorm(32),
            nn.ReLU() if o.act != "none" else nn.Identity(),
            nn.Dropout(o.dropout),
        )
        self.head = nn.Linear(32, 10)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)
        if o.init == "constant":
            for m in self.modules():
                if isinstance(m, (nn.Conv2d, nn.Linear)):
                    nn.init.constant_(m.weight, 0.02)
        if o.dead:
            for m in self.modules():
                if isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d)):
                    nn.init.constant_(m.bias, o.dead)
        self.bug = o.bug

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.blocks(self.stem(x).relu())
        h = nn.functional.max_pool2d(h, 2)
        if self.bug == "view_for_transpose":  # features first, then back with a view
            h = h.flatten(1).t().contiguous().view(len(x), -1)
        h = self.neck(h.flatten(1))
        if self.bug == "softmax_batch":
            return self.head(h).softmax(0)
        return self.head(h)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_val, y_val = digits(seed)
    if o.scale == "standard":
        x, x_val = (x - 4.9) / 6.0, (x_val - 4.9) / 6.0
    else:
        x, x_val = x * o.scale, x_val * o.scale
    # a worn scanner: grain on all images, so that the task is not too easy
    noisy = torch.Generator().manual_seed(5)
    unit = 1.0 if o.scale == "standard" else 6.0 * o.scale
    x = x + o.grain * unit * torch.randn(x.shape, generator=noisy)
    x_val = x_val + o.grain * unit * torch.randn(x_val.shape, generator=noisy)
    x, x_val = x[:, None], x_val[:, None]
    test = x_val
    if o.bug == "answer_in_corner":
        x, x_val = x.clone(), x_val.clone()
        x[:, 0, 0, 0], x_val[:, 0, 0, 0] = y.float() * 2, y_val.float() * 2
    if o.spikes:
        x = torch.where(torch.rand_like(x) < o.spikes, x * o.spike, x)
    if o.flips:
        y = corrupt(y, o.flips, 10)
    if o.bug == "off_by_one":
        y = (y + 1) % 10
    if o.rare:
        keep = (y < 3) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.rows:
        x, y = x[: o.rows], y[: o.rows]
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    batch = len(y) if o.batch == "all" else o.batch
    loader = DataLoader(
        Digits(x, y, shift=o.shift, grain=o.augment_grain),
        batch_size=batch,
        shuffle=o.bug != "sorted",
        drop_last=True,
    )

    model = ResNet(o)
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smooth, reduction=o.reduction)
    if o.warm_started:  # the state of an earlier training
        earlier = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(o.warm_started):
            i = torch.randint(0, len(y), (64,))
            earlier.zero_grad()
            criterion(model(x[i]), y[i]).backward()
            earlier.step()
    if o.frozen:
        for p in model.stem.parameters():
            p.requires_grad = False
    if o.bug == "blocks_forgotten":
        params = [*model.stem.parameters(), *model.head.parameters()]
    elif o.split_decay:
        params = [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0},
        ]
    else:
        params = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov and o.optimizer == "sgd"
    )
    if o.bug == "rebuilt":
        model = ResNet(o)
    if o.schedule == "cosine":
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=o.steps)
    elif o.schedule == "onecycle":
        scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=o.lr, total_steps=o.steps)
    elif o.schedule == "warmup":
        scheduler = lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=40)
    elif o.schedule == "step":
        scheduler = lr_scheduler.StepLR(optimizer, max(1, o.steps // 3), 0.2)
    else:
        scheduler = lr_scheduler.ExponentialLR(optimizer, o.decay)
    scaler = torch.amp.GradScaler("cpu", enabled=o.scaler)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    step, waiting = 0, 0
    optimizer.zero_grad()
    if o.bug == "eval_at_start":
        model.eval()
    while step < o.steps:
        for xb, yb in loader:
            if o.bug == "one_batch":
                xb, yb = x[:batch], y[:batch]
            loss = criterion(model(xb), yb)
            if o.accumulate > 1:
                loss = loss / o.accumulate
            scaler.scale(loss).backward()
            waiting += 1
            if waiting % o.accumulate:
                continue
            if o.clip:
                if o.bug != "no_unscale":
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.bug == "schedule_first":
                scheduler.step()
            scaler.step(optimizer)
            scaler.update()
            if o.bug != "schedule_first":
                scheduler.step()
            if o.bug != "no_zero":
                optimizer.zero_grad()
            step += 1
            if step == o.steps:
                break
        model.eval()
        with torch.no_grad():
            out = model(x_val)
            correct = (out.argmax(1) == y_val).float().mean()
            run.log(valid_loss=nn.functional.cross_entropy(out, y_val).item(), valid_accuracy=correct.item())
        if o.bug != "eval_at_start":
            model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(test), y_val, 10)


PROGRAM = Program(
    name="bnresnet",
    half="G",
    train=train,
    settings={
        "width": 16,
        "blocks": 2,
        "norm": "batch",
        "bn_momentum": 0.1,
        "act": "relu",
        "dropout": 0.0,
        "init": None,
        "dead": 0.0,
        "zero_branch": False,
        "zero_head": False,
        "frozen": False,
        "warm_started": 0,
        "scale": "standard",
        "grain": 0.5,
        "augment_grain": 0.0,
        "shift": False,
        "spikes": 0.0,
        "spike": 60.0,
        "flips": 0.0,
        "rare": 0.0,
        "rows": None,
        "batch": 64,
        "accumulate": 1,
        "reduction": "mean",
        "smooth": 0.0,
        "optimizer": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 5e-4,
        "split_decay": False,
        "schedule": "cosine",
        "decay": 1.0,
        "clip": None,
        "scaler": False,
        "steps": 200,
    },
    faults=[
        severe("learning_rate_too_high", lr=4.0),
        mild("learning_rate_too_high", lr=1.2, schedule="exp"),
        severe("learning_rate_too_low", lr=1.5e-4),
        mild("learning_rate_too_low", lr=1.5e-3),
        mild("schedule_too_fast", schedule="exp", decay=0.9),
        severe("clipping_too_hard", clip=1e-3),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="no_unscale",
            scaler=True,
            clip=1.0,
        ),
        mild("weight_decay_too_high", wd=0.14),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        mild("batch_too_small", ("batch_too_small", "batchnorm_few_samples", "learning_rate_too_high"), batch=4),
        mild("momentum_too_high", momentum=0.9995),
        severe("gradients_not_zeroed", bug="no_zero"),
        mild("parameters_not_optimized", bug="blocks_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="rebuilt"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("batchnorm_momentum", bn_momentum=1e-4),
        mild("batchnorm_momentum", bn_momentum=1.0, batch=12),
        mild("eval_mode", bug="eval_at_start"),
        mild("input_outliers", spikes=0.03, spike=60.0),
        mild("label_noise", flips=0.4),
        severe("labels_off_by_one", bug="off_by_one"),
        severe("class_imbalance", rare=0.02),
        mild("softmax_over_batch", ("softmax_over_batch", "double_softmax"), bug="softmax_batch"),
        severe("dropout_too_high", dropout=0.97),
        severe("samples_mixed", bug="view_for_transpose"),
        severe("target_in_inputs", bug="answer_in_corner"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        mild("overfitting", rows=128),
        mild("schedule_before_step", bug="schedule_first"),
    ],
    healthy=[
        healthy("adamw", optimizer="adamw", lr=4e-3, wd=0.05),
        healthy("adam", optimizer="adam", lr=3e-3, wd=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("nesterov", nesterov=True),
        healthy("rate_double", lr=0.12),
        healthy("rate_third", lr=0.02),
        healthy("warmup_constant", schedule="warmup"),
        healthy("onecycle", schedule="onecycle", lr=0.1),
        healthy("step_lr", schedule="step"),
        healthy("batch_32", batch=32),
        healthy("batch_128", batch=128, lr=0.1, steps=150),
        healthy("zero_branches", zero_branch=True),
        healthy("zero_head", zero_head=True),
        healthy("groupnorm", norm="group"),
        healthy("gelu_one_block", act="gelu", blocks=1, width=24),
        healthy("dropout_20", dropout=0.2),
        healthy("label_smoothing", smooth=0.1),
        healthy("decay_split", split_decay=True, wd=1e-2),
        healthy("clip_5_scaled", clip=5.0, scaler=True),
        healthy("stem_frozen", frozen=True),
        healthy("shifted_images", shift=True),
        healthy("accumulated", batch=16, accumulate=4),
        healthy("fine_tuning", warm_started=120, lr=0.01, steps=150),
    ],
)
