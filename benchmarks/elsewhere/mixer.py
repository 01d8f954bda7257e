"""Digits somewhere on a larger sheet: an MLP-Mixer with LayerNorm, AdamW, warm-up and cosine, loss module, both figures logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate

SHEET, PATCH, CLASSES = 12, 3, 10
TOKENS = (SHEET // PATCH) ** 2


def place(images: torch.Tensor, copies: int) -> torch.Tensor:
    """Every image `copies` times, at a fixed but arbitrary place of the sheet."""
    rng = torch.Generator().manual_seed(5)
    sheets = torch.zeros(copies * len(images), SHEET, SHEET)
    for n in range(len(sheets)):
        r, c = torch.randint(1, SHEET - 8, (2,), generator=rng).tolist()
        sheets[n, r : r + 8, c : c + 8] = images[n % len(images)]
    return sheets


def to_patches(sheets: torch.Tensor) -> torch.Tensor:
    cut = sheets.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH)
    return cut.reshape(len(sheets), TOKENS, PATCH * PATCH)


def load(o: SimpleNamespace):
    x, y, x_valid, y_valid = digits(0)
    x, y = x[: o.originals], y[: o.originals]
    if o.rare:
        keep = (y < 2) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    x, y = place(x, 3), y.repeat(3)
    x_valid = place(x_valid, 1)
    x, x_valid = to_patches(x), to_patches(x_valid)
    if o.bug != "raw_pixels":
        mean, std = x.mean(), x.std()
        x, x_valid = (x - mean) / std, (x_valid - mean) / std
    else:  # from a source of 8 bits
        x, x_valid = x * 16, x_valid * 16
    if o.outliers:  # scans that were overexposed
        x[torch.rand(len(x)) < o.outliers] *= 60
    y = corrupt(y, o.noise, CLASSES)
    if o.bug == "files_renamed":
        y = y[torch.randperm(len(y))]
    if o.bug == "one_based":
        y = y + 1
    if o.bug == "folders":  # read class by class
        order = y.argsort()
        x, y = x[order], y[order]
    return x, y, x_valid, y_valid


class MLP(nn.Sequential):
    def __init__(self, width: int, hidden: int, o: SimpleNamespace) -> None:
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "none": nn.Identity}[o.activation]
        super().__init__(nn.Linear(width, hidden), act(), nn.Dropout(o.dropout), nn.Linear(hidden, width))


class Block(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.tokens, self.channels = MLP(TOKENS, 32, o), MLP(o.width, 2 * o.width, o)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.embed = nn.Linear(PATCH * PATCH, o.width)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.depth))
        self.norm = nn.LayerNorm(o.width)
        self.head = nn.Linear(o.width, CLASSES + (o.bug == "one_based"))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if o.init == "constant":
                    nn.init.constant_(module.weight, 0.02)
                elif o.init == "timm":
                    nn.init.trunc_normal_(module.weight, std=0.05)
                    nn.init.zeros_(module.bias)
                elif o.init:
                    module.weight.data *= o.init
        if o.zero_head:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        features = self.norm(x).mean(1)
        if self.bug == "features_detached":  # they were plotted, and the line stayed
            features = features.detach()
        scores = self.head(features)
        if self.bug == "softmax":
            scores = scores.softmax(-1)
        if self.bug == "softmax_0":
            scores = torch.log_softmax(scores, 0)
        return scores


def rate(step: int, o: SimpleNamespace) -> float:
    if step < o.warmup:
        return (step + 1) / o.warmup
    done = min(1.0, (step - o.warmup) / max(1, o.horizon - o.warmup))
    return o.floor + (1 - o.floor) * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def evaluate(model: nn.Module, loss_fn: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    model.eval()
    scores = model(x)
    return loss_fn(scores, y).item(), (scores.argmax(1) == y).float().mean().item()


def pretrain(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    """A short while on even digits; the result is the start of the run that is looked at."""
    some = (y % 2 == 0).nonzero().flatten()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        batch = some[torch.randint(len(some), (64,))]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = load(o)
    model = Mixer(o)
    loss_fn = nn.CrossEntropyLoss(reduction="sum" if o.bug == "summed" else "mean", label_smoothing=o.smoothing)
    if o.pretrained:
        pretrain(model, x, y, o.pretrained)
    if o.frozen:
        model.embed.requires_grad_(False)
    parameters = model.head.parameters() if o.bug == "head_only" else model.parameters()
    optimizer = make_optimizer(
        o.optimizer, parameters, o.lr, momentum=0.9, weight_decay=o.wd, betas=(o.beta1, 0.999), eps=o.eps
    )
    if o.bug == "blocks_replaced":  # deeper blocks were tried in a notebook's next cell
        model.blocks = nn.ModuleList(Block(o) for _ in range(o.depth))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, o))
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    loader = DataLoader(TensorDataset(x, y), o.batch or len(x), shuffle=o.bug not in ("folders", "first"))
    step = 0
    while step < o.steps:
        model.train()
        for images, labels in loader:
            if o.bug == "first":  # to see whether it overfits one batch, and so it stayed
                images, labels = x[: o.batch], y[: o.batch]
            loss = loss_fn(model(images), labels)
            if o.bug != "no_zero":
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            scheduler.step()
            step += 1
            if step >= o.steps:
                break
            if step % 60 == 0:
                valid_loss, accuracy = evaluate(model, loss_fn, x_valid, y_valid)
                run.log(valid_loss=valid_loss, valid_accuracy=accuracy)
                model.train()
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_valid), y_valid, CLASSES)


PROGRAM = Program(
    name="mixer",
    half="D",
    train=train,
    settings={
        "width": 32,
        "depth": 2,
        "activation": "gelu",
        "dropout": 0.0,
        "init": None,
        "zero_head": False,
        "frozen": False,
        "pretrained": 0,
        "originals": 1347,
        "rare": None,
        "noise": 0.0,
        "outliers": 0.0,
        "smoothing": 0.0,
        "batch": 64,
        "optimizer": "adamw",
        "lr": 4e-3,
        "wd": 0.01,
        "beta1": 0.9,
        "eps": 1e-8,
        "clip": None,
        "warmup": 20,
        "horizon": 350,
        "floor": 0.05,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.16),
        mild("learning_rate_too_high", lr=0.04),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", horizon=28, floor=0.0),  # epochs, where steps were meant
        mild("schedule_too_fast", horizon=90, floor=0.0),
        severe("weight_decay_too_high", wd=8.0),
        mild("weight_decay_too_high", wd=1.5),
        severe("gradients_not_zeroed", bug="no_zero"),
        severe("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="blocks_replaced"),
        severe("graph_detached", bug="features_detached"),
        severe("batch_repeated", bug="first"),
        severe("data_not_shuffled", bug="folders"),
        severe("inputs_not_scaled", bug="raw_pixels"),
        severe("input_outliers", outliers=0.03),
        severe("labels_random", bug="files_renamed"),
        mild("label_noise", noise=0.4),
        severe("labels_off_by_one", bug="one_based"),
        mild("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="softmax_0"),
        severe("init_constant", init="constant"),
        mild("init_too_large", init=8.0),
        severe("dropout_too_high", dropout=0.97),
        mild("overfitting", originals=60),
    ],
    healthy=[
        healthy("lr_12e-4", lr=1.2e-3, steps=450, horizon=450),
        healthy("lr_1e-2", lr=1e-2),
        healthy("zero_head", zero_head=True),
        healthy("timm_init_cosine_to_zero", init="timm", floor=0.0),
        healthy("adam_clipped", optimizer="adam", lr=3e-3, wd=0.0, clip=1.0),
        healthy("nadam", optimizer="nadam", lr=3e-3, wd=0.0),
        healthy("embedding_frozen", frozen=True),
        healthy("from_even_digits", pretrained=120, lr=4e-3),
        healthy("dropout_03", dropout=0.3, steps=450, horizon=450),
        healthy("label_noise_12_percent", noise=0.12, smoothing=0.1),
        healthy("relu_beta_095", activation="relu", beta1=0.95),
        healthy("some_classes_rarer", rare=0.6),
        healthy("wide_strong_decay", width=48, wd=0.1, steps=300, horizon=300),
    ],
)
