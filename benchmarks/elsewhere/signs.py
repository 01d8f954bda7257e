"""Eight road signs drawn 12 pixels wide: a small residual network with BatchNorm, SGD, cosine, nn.CrossEntropyLoss."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

SIDE, SIGNS = 12, 8


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Signs at random places and of random size and brightness, in grain; values from 0 to 1."""
    g = torch.Generator().manual_seed(seed)
    which = torch.randint(0, SIGNS, (count,), generator=g)
    row, col = torch.meshgrid(torch.arange(SIDE).float(), torch.arange(SIDE).float(), indexing="ij")
    middle = 5.5 + 2.2 * (torch.rand(count, 2, generator=g) - 0.5)
    dy, dx = row - middle[:, 0, None, None], col - middle[:, 1, None, None]
    size = (3.0 + 1.4 * torch.rand(count, generator=g))[:, None, None]
    round_, square, diamond = (dx**2 + dy**2).sqrt(), torch.maximum(dx.abs(), dy.abs()), (dx.abs() + dy.abs()) / 1.25
    kinds = [
        (round_ - size).abs() < 0.8,  # ring
        (square - size).abs() < 0.8,  # frame
        (diamond - size).abs() < 0.8,  # diamond
        ((dx.abs() - (dy + size) / 2).abs() < 0.7) & (dy.abs() < size),  # tent
        ((dx.abs() - (size - dy) / 2).abs() < 0.7) & (dy.abs() < size),  # funnel
        (torch.minimum(dx.abs(), dy.abs()) < 0.8) & (square < size),  # plus
        ((dx.abs() - dy.abs()).abs() < 0.9) & (square < size),  # cross
        ((dx.abs() < 0.9) | (dy.abs() < 0.9)) & (round_ < size) & (dy > -1),  # turned T
    ]
    picture = torch.stack(kinds, 1).float()[torch.arange(count), which]
    light = 0.35 + 0.45 * torch.rand(count, 1, 1, generator=g)
    picture = 0.15 + light * picture + 0.3 * torch.randn(picture.shape, generator=g)
    return picture.clamp(0, 1)[:, None], which


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, o: SimpleNamespace):
        super().__init__()

        def norm(n: int) -> nn.Module:
            if o.norm == "group":
                return nn.GroupNorm(4, n)
            return nn.BatchNorm2d(n, momentum=o.bn_momentum) if o.norm == "batch" else nn.Identity()

        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=o.norm is None)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=o.norm is None)
        self.norm2 = norm(outputs)
        same = stride == 1 and inputs == outputs
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.act = {"relu": nn.ReLU, "silu": nn.SiLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}[o.act]()

    def forward(self, x):
        y = self.act(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.act(y + self.short(x))


class SmallResNet(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        w = o.width
        self.stem = nn.Sequential(nn.Conv2d(1, w, 3, 1, 1), nn.ReLU())
        blocks = [Block(w, w, 1, o), Block(w, 2 * w, 2, o), Block(2 * w, 2 * w, 2, o)]
        self.blocks = nn.ModuleList(blocks + [Block(2 * w, 2 * w, 1, o) for _ in range(o.extra)])
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(2 * w, SIGNS)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                if o.init == "fan_out":
                    nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                elif o.init == "constant":
                    nn.init.constant_(m.weight, 0.05)
                elif o.init == "normal":  # standard deviation of one
                    nn.init.normal_(m.weight)
                if o.bias is not None and m.bias is not None:
                    nn.init.constant_(m.bias, o.bias)

    def forward(self, x):
        x = self.stem(x)
        for n, block in enumerate(self.blocks):
            x = block(x)
            if self.o.bug == "features_as_numpy" and n == len(self.blocks) - 1:
                x = torch.as_tensor(x.detach().numpy())
        x = self.head(self.drop(x.mean((2, 3))))
        if self.o.bug == "softmax_dim":
            return x.softmax(dim=0)
        return x.softmax(1) if self.o.bug == "softmax_at_the_end" else x


def prepare(o: SimpleNamespace):
    x, y = draw(1600, 5)
    xv, yv = draw(800, 6)
    y = corrupt(y, o.noise, SIGNS)
    if o.bug == "read_as_bytes":  # no division by 255 any more
        x, xv = (x * 255).round(), (xv * 255).round()
    elif o.normalise:
        x, xv = (x - 0.35) / 0.3, (xv - 0.35) / 0.3
    if o.hot:  # pixels of a broken camera
        x = torch.where(torch.rand(x.shape) < o.hot, torch.full_like(x, 4000.0), x)
    if o.bug == "caption_in_corner":  # the label was printed into the file, by its number
        x[:, 0, 0, :SIGNS] = 6 * nn.functional.one_hot(y, SIGNS).float()
    if o.bug == "files_by_folder":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    if o.bug == "labels_sorted_apart":
        y = y.sort().values
    if o.bug == "folder_one_is_ring":  # folders are counted from 1, and the last joins the first
        y = (y + 1) % SIGNS
    if o.few is not None:  # hardly any pictures but of the first sign
        keep = (y == 0) | (torch.rand(len(y)) < o.few)
        x, y = x[keep], y[keep]
        again = torch.arange(1600) % len(x)
        x, y = x[again], y[again]
    return x[: o.rows], y[: o.rows], xv, yv


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xv, yv = prepare(o)
    model = SmallResNet(o)
    params = list(model.parameters())
    if o.frozen:
        model.stem.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "blocks_forgotten":
        params = [*model.stem.parameters(), *model.head.parameters()]
    loss_fn = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    optimizer = make_optimizer(o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd)
    per_epoch = max(1, len(x) // o.batch)
    total = min(o.steps, o.epochs * max(1, per_epoch // o.accumulate))

    def factor(step: int) -> float:
        if step < o.warmup:
            return (step + 1) / o.warmup
        if o.schedule == "constant":
            return 1.0
        if o.schedule == "steps":
            return 0.1 ** (step // (total // 2))
        length = o.epochs if o.bug == "cosine_counts_epochs" else total  # which is stepped each batch
        return max(0.0, 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - o.warmup) / max(1, length - o.warmup))))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    step = 0
    if o.bug == "eval_left_on":  # from a look at the shapes of one answer
        model.eval()
    for _ in range(o.epochs):
        if o.bug != "eval_left_on":
            model.train()
        order = torch.arange(len(x)) if o.bug == "files_by_folder" else torch.randperm(len(x))
        for i in range(per_epoch):
            rows = order[i * o.batch : (i + 1) * o.batch]
            xb, yb = x[rows], y[rows]
            if o.bug == "index_forgotten":
                xb, yb = x[: o.batch], y[: o.batch]
            if o.augment:
                xb = xb + o.augment * torch.randn_like(xb)
            if o.bug != "never_zeroed" and i % o.accumulate == 0:
                optimizer.zero_grad()
            loss = loss_fn(model(xb), yb)
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            if o.bug == "climbing":
                loss = -loss
            loss.backward()
            if (i + 1) % o.accumulate:
                continue
            if o.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            scheduler.step()
            step += 1
            if step == total:
                break
        model.eval()
        with torch.no_grad():
            scores = model(xv)
            run.log(
                valid_loss=loss_fn(scores, yv).item(), valid_accuracy=(scores.argmax(1) == yv).float().mean().item()
            )
        if step == total:
            break
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(xv), yv, SIGNS)


PROGRAM = Program(
    name="signs",
    half="I",
    train=train,
    settings={
        "rows": 1600,
        "noise": 0.0,
        "normalise": True,
        "hot": 0.0,
        "few": None,
        "width": 12,
        "extra": 0,
        "norm": "batch",
        "bn_momentum": 0.1,
        "act": "relu",
        "dropout": 0.0,
        "init": "fan_out",
        "bias": None,
        "zero_head": False,
        "frozen": False,
        "smoothing": 0.0,
        "augment": 0.0,
        "batch": 64,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "wd": 5e-4,
        "schedule": "cosine",
        "warmup": 0,
        "clip": None,
        "epochs": 10,
        "steps": 600,
    },
    faults=[
        severe("learning_rate_too_high", lr=4.0),
        mild("learning_rate_too_high", lr=1.6),
        mild("learning_rate_too_low", lr=1.5e-3),
        severe("schedule_too_fast", bug="cosine_counts_epochs"),
        severe("clipping_too_hard", clip=1e-3),
        severe("weight_decay_too_high", wd=0.2),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        severe("parameters_not_optimized", bug="blocks_forgotten"),
        severe("graph_detached", bug="features_as_numpy"),
        severe("batch_repeated", bug="index_forgotten"),
        severe("data_not_shuffled", bug="files_by_folder"),
        severe("inputs_not_scaled", bug="read_as_bytes"),
        severe("input_outliers", hot=0.005),
        severe("labels_random", bug="labels_sorted_apart"),
        mild("label_noise", noise=0.4),
        severe("labels_off_by_one", bug="folder_one_is_ring"),
        severe("loss_sign", bug="climbing"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax_at_the_end"),
        severe("softmax_over_batch", bug="softmax_dim"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="constant"),
        severe("init_too_large", init="normal"),
        mild("eval_mode", bug="eval_left_on"),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        mild("batchnorm_momentum", bn_momentum=1.0, batch=4),
        severe("target_in_inputs", bug="caption_in_corner"),
        severe("class_imbalance", few=0.02),
        mild("overfitting", rows=96, epochs=60, batch=32),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=8,
            batch=16,
            lr=0.1,
            norm=None,
        ),
    ],
    healthy=[
        healthy("lr_002", lr=0.02),
        healthy("lr_015", lr=0.15),
        healthy("adam", optimizer="adam", lr=3e-3, wd=0.0),
        healthy("adamw", optimizer="adamw", lr=4e-3, wd=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0, wd=0.0),
        healthy("groupnorm", norm="group"),
        healthy("no_norm", norm=None, lr=0.03, warmup=10, epochs=12),
        healthy("batch_32", batch=32, lr=0.03, epochs=6),
        healthy("batch_128", batch=128, lr=0.1, epochs=14),
        healthy("accumulated", norm="group", batch=16, accumulate=4),
        healthy("wider", width=16),
        healthy("deeper", extra=1),
        healthy("silu", act="silu"),
        healthy("gelu_dropout", act="gelu", dropout=0.1),
        healthy("constant_rate", schedule="constant", lr=0.02, epochs=12),
        healthy("stepwise", schedule="steps"),
        healthy("warmup", warmup=25),
        healthy("zero_head", zero_head=True),
        healthy("frozen_stem", frozen=True),
        healthy("smoothed_labels", smoothing=0.1),
        healthy("clipped_at_two", clip=2.0),
        healthy("grain_added", augment=0.15),
        healthy("not_normalised", normalise=False),
        healthy("few_wrong_labels", noise=0.04),
        healthy("shorter", epochs=8),
    ],
)
