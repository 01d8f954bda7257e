"""Where is the shape, and which one: one network, two heads, the model returns its own losses as detectors do, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIZE, SHAPES = 20, 3


def draw(count: int) -> dict[str, torch.Tensor]:
    """A noisy image with one disc, square or cross; the box is centre and size, in units of the image."""
    axis = torch.arange(SIZE, dtype=torch.float32)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    kind = torch.randint(0, SHAPES, (count,))
    half = torch.rand(count, 2) * 2.5 + 2.5
    centre = torch.rand(count, 2) * (SIZE - 12) + 6
    dx = (xx - centre[:, 0, None, None]).abs() / half[:, 0, None, None]
    dy = (yy - centre[:, 1, None, None]).abs() / half[:, 1, None, None]
    disc, square = dx**2 + dy**2 < 1, (dx < 1) & (dy < 1)
    cross = square & ((dx < 0.3) | (dy < 0.3))
    image = torch.stack([disc, square, cross])[kind, torch.arange(count)].float() + 0.1 * torch.randn(count, SIZE, SIZE)
    return {"image": image[:, None], "kind": kind, "box": torch.cat([centre, 2 * half], 1) / SIZE}


class Detector(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        w = o.width

        def act() -> nn.Module:
            return {"relu": nn.ReLU, "silu": nn.SiLU}[o.activation]()

        self.stem = nn.Sequential(
            nn.Conv2d(1, w, 3, stride=2, padding=1),
            act(),
            nn.Conv2d(w, 2 * w, 3, stride=2, padding=1),
            act(),
            nn.Flatten(),
            nn.Linear(2 * w * 25, 64),
            act(),
            nn.Dropout(o.dropout),
        )
        self.kind, self.box = nn.Linear(64, SHAPES), nn.Linear(64, 4)

    def predict(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.stem(image)
        if self.o.bug == "features_detached":
            features = features.detach()
        kind, box = self.kind(features), self.box(features)
        if self.o.bug == "tanh_saturated":  # tanh of something large: every coordinate is at the edge
            box = torch.tanh(30 * box)
        if self.o.bug == "relu_boxes":
            box = torch.relu(box - 1.0)
        return kind, box

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The training loss."""
        kind, box = self.predict(batch["image"])
        truth = batch["box"]
        if self.o.bug == "box_broadcast":  # each prediction against every truth
            box_loss = F.smooth_l1_loss(box[:, None], truth[None].expand(len(box), -1, -1), beta=0.1)
        elif self.o.bug == "root":  # length of the difference: its derivative at zero size is not a number
            box_loss = (truth[:, 2:].sqrt() - box[:, 2:].sqrt()).abs().mean() + F.smooth_l1_loss(
                box[:, :2], truth[:, :2], beta=0.1
            )
        else:
            box_loss = F.smooth_l1_loss(box, truth, beta=0.1)
        kind_loss = F.cross_entropy(kind, batch["kind"])
        if self.o.bug == "kind_sign":
            kind_loss = -kind_loss
        total = self.o.kind_weight * kind_loss + self.o.box_weight * box_loss
        return total * len(box) * 50 if self.o.bug == "summed" else total


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data, valid = draw(o.count), draw(400)
    if o.bug == "pixels_as_boxes":  # boxes in thousandths instead of shares
        data["box"] = data["box"] * 1000
    if o.bug == "annotations_apart":
        order = torch.randperm(o.count)
        data["box"], data["kind"] = data["box"][order], data["kind"][order]
    if o.noise:
        swap = torch.rand(o.count) < o.noise
        data["kind"] = torch.where(swap, torch.randint(0, SHAPES, (o.count,)), data["kind"])
        data["box"] = torch.where(swap[:, None], data["box"][torch.randperm(o.count)], data["box"])
    model = Detector(o)
    if o.init is not None:
        for m in model.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                nn.init.normal_(m.weight, std=o.init)
                nn.init.constant_(m.bias, o.bias)
    backbone = {"params": model.stem.parameters(), "lr": o.lr * o.stem_factor}
    heads = {"params": [*model.kind.parameters(), *model.box.parameters()]}
    groups = [heads] if o.bug == "stem_left_out" else [backbone, heads]
    optimizer = make_optimizer(o.optimizer, groups, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps)
    if o.bug == "heads_replaced":  # new heads for new classes, after the optimizer was made
        model.kind, model.box = nn.Linear(64, SHAPES), nn.Linear(64, 4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / o.warmup) * o.decay**n)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    model.train()
    for _ in range(o.steps):
        pick = torch.arange(o.batch) if o.bug == "same_batch" else torch.randint(0, o.count, (o.batch,))
        optimizer.zero_grad()
        loss = model({key: value[pick] for key, value in data.items()})
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()
    model.eval()
    with torch.no_grad():
        kind, box = model.predict(valid["image"])
    if o.bug == "pixels_as_boxes":
        box = box / 1000
    if not (torch.isfinite(kind).all() and torch.isfinite(box).all()):
        return float("inf")
    wrong = (kind.argmax(-1) != valid["kind"]).float().mean() * SHAPES / (SHAPES - 1)
    off = ((box - valid["box"]) ** 2).mean() / valid["box"].var(0).mean()
    return 0.5 * (wrong + off.clamp(max=3)).item()


PROGRAM = Program(
    name="boxes",
    half="B",
    train=train,
    settings={
        "width": 8,
        "activation": "relu",
        "dropout": 0.0,
        "init": None,
        "bias": 0.0,
        "count": 4000,
        "noise": 0.0,
        "batch": 32,
        "optimizer": "adam",
        "lr": 3e-3,
        "stem_factor": 1.0,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "warmup": 10,
        "decay": 1.0,
        "kind_weight": 1.0,
        "box_weight": 5.0,
        "steps": 500,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.0, warmup=1),
        mild("learning_rate_too_low", lr=1e-4),
        severe("targets_not_scaled", bug="pixels_as_boxes"),
        severe("loss_broadcast", bug="box_broadcast"),
        severe("not_finite", bug="root"),
        severe("loss_sign", bug="kind_sign"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.05),
        severe("saturated_units", ("saturated_units", "output_activation"), bug="tanh_saturated"),
        severe("output_activation", ("output_activation", "dead_units"), bug="relu_boxes"),
        severe("labels_random", bug="annotations_apart"),
        mild("label_noise", noise=0.5),
        severe("batch_repeated", bug="same_batch"),
        severe("parameters_not_optimized", bug="stem_left_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="heads_replaced"),
        severe("graph_detached", bug="features_detached"),
        severe("dead_units", init=0.05, bias=-3.0),
        severe("init_too_small", init=1e-5),
    ],
    healthy=[
        healthy("lr_15e-4", lr=1.5e-3, steps=600),
        healthy("lr_5e-3", lr=5e-3, decay=0.996),
        healthy("sgd", optimizer="sgd", lr=0.03, clip=5.0, steps=700),
        healthy("batch_16", batch=16, lr=2e-3, steps=600),
        healthy("batch_96", batch=96, lr=4e-3, steps=350),
        healthy("silu", activation="silu"),
        healthy("stem_slower", stem_factor=0.5, lr=4e-3),
        healthy("box_heavy", box_weight=20.0, clip=10.0),
        healthy("adamw", optimizer="adamw", wd=0.05),
        healthy("dropout_01", dropout=0.1, steps=550),
        healthy("long_warmup", warmup=120, lr=4e-3),
    ],
)
