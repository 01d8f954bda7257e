"""Which digits are alike: one network for all three, TripletMarginLoss on unit vectors, Adam, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate

CANVAS = 12


def place(images: torch.Tensor, seed: int) -> torch.Tensor:
    """Each digit somewhere on a larger sheet, so that comparing pixels is of no use."""
    rng = torch.Generator().manual_seed(seed)
    sheet = torch.zeros(len(images), 1, CANVAS, CANVAS)
    corners = torch.randint(1, CANVAS - 8, (len(images), 2), generator=rng).tolist()
    for n, (top, left) in enumerate(corners):
        sheet[n, 0, top : top + 8, left : left + 8] = images[n]
    return sheet


class Embedder(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.act]
        w = o.width

        def norm(channels: int) -> nn.Module:
            return nn.BatchNorm2d(channels) if o.norm else nn.Identity()

        self.backbone = nn.Sequential(nn.Conv2d(1, w, 3, padding=1), norm(w), act(), nn.MaxPool2d(2))
        self.backbone.append(nn.Sequential(nn.Conv2d(w, 2 * w, 3, padding=1), norm(2 * w), act(), nn.MaxPool2d(2)))
        for _ in range(o.more):
            self.backbone.append(nn.Sequential(nn.Conv2d(2 * w, 2 * w, 3, padding=1), norm(2 * w), act()))
        self.drop = nn.Dropout(o.dropout)
        self.hidden = nn.Linear(2 * w * 9, 48)
        self.project = nn.Linear(48, o.dim)
        for m in self.modules():
            if isinstance(m, nn.Conv2d | nn.Linear):
                if o.gain is not None:
                    m.weight.data.mul_(o.gain)
                if o.bug == "constant":
                    nn.init.constant_(m.weight, 0.02)
                if o.bias is not None and m is not self.project:
                    nn.init.constant_(m.bias, o.bias)
        if o.orthogonal:
            nn.init.orthogonal_(self.project.weight)
        if o.freeze:
            self.backbone[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        act = {"silu": F.silu, "sigmoid": torch.sigmoid, "none": lambda t: t}.get(self.o.act, F.relu)
        f = self.backbone(x).flatten(1)
        if self.o.bug == "backbone_frozen_by_hand":
            f = f.detach()
        z = self.project(self.drop(act(self.hidden(f))))
        if self.o.bug == "relu_last":
            z = F.relu(z - 0.5)
        if self.o.bug == "softmax_last":
            return z.softmax(1)
        if self.o.bug == "softmax_batch":
            return z.softmax(0)
        return F.normalize(z, dim=1) if self.o.unit else z


class Triplets:
    """Draws anchors, positives and negatives by the labels."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, o: SimpleNamespace) -> None:
        self.x, self.o = x, o
        self.rows = y.argsort()  # class after class
        self.counts = torch.bincount(y, minlength=10)
        self.starts = self.counts.cumsum(0) - self.counts
        self.turn = 0

    def one_of(self, classes: torch.Tensor) -> torch.Tensor:
        return self.rows[self.starts[classes] + (torch.rand(len(classes)) * self.counts[classes]).long()]

    def draw(self, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        o = self.o
        a_class = torch.randint(0, 10, (n,))
        if o.bug == "one_class_after_the_other":
            a_class = torch.full((n,), (self.turn // 40) % 10)
        n_class = (a_class + torch.randint(1, 10, (n,))) % 10
        if o.bug == "one_class_after_the_other":
            n_class = (a_class + 1) % 10
        if o.bug == "any_negative":  # nobody looks whether it is of another class; and the positive is anybody too
            a_class, n_class = torch.randint(0, 10, (n,)), torch.randint(0, 10, (n,))
        p_class = torch.randint(0, 10, (n,)) if o.bug == "any_negative" else a_class
        self.turn += 1
        anchor, positive, negative = (self.x[self.one_of(classes)] for classes in (a_class, p_class, n_class))
        if o.bug == "positive_is_anchor":
            positive = anchor
        if o.bug == "order_mixed_up":  # the data set gives anchor, negative, positive
            positive, negative = negative, positive
        return anchor, positive, negative


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = digits(seed)
    x, x_valid = place(x, 1), place(x_valid, 2)
    scale = 1 / 15.9 if o.bug == "bytes" else 16.0
    x, x_valid = x / scale, x_valid / scale
    x, y = x[: o.rows], y[: o.rows]
    clean, x = x, x + o.grain * torch.randn_like(x)
    if o.spikes:
        x = torch.where(torch.rand(len(x), 1, 1, 1) < o.spikes, x * 80, x)
    told = corrupt(y, o.noise, 10)
    if o.bug == "labels_of_other_file":
        told = y[torch.randperm(len(y))]
    data = Triplets(x, told, o)

    net = Embedder(o)
    loss_fn = nn.TripletMarginLoss(margin=o.margin, swap=o.swap)
    params = [p for p in net.parameters() if p.requires_grad]
    if o.bug == "projection_only":
        params = list(net.project.parameters())
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "backbone_replaced":
        fresh = Embedder(o)
        net.backbone, net.hidden = fresh.backbone, fresh.hidden
    gamma = 0.94 if o.bug == "gamma_per_step" else o.gamma
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1 if o.bug == "gamma_per_step" else 100, gamma)
    run = cockpit_core.track(net, loss_fn, optimizer, logdir)

    net.train(o.bug != "eval_from_the_start")
    same = data.draw(o.batch)
    for step in range(o.steps):
        for group in optimizer.param_groups if step <= o.warmup and o.warmup else []:
            group["lr"] = o.lr * max(step, 1) / o.warmup
        anchor, positive, negative = same if o.bug == "drawn_once" else data.draw(o.batch)
        if o.together:
            za, zp, zn = net(torch.cat([anchor, positive, negative])).chunk(3)
        else:
            za, zp, zn = net(anchor), net(positive), net(negative)
        if o.bug == "margin_by_hand":  # max(0, ...) with the sign of the distances turned around
            loss = F.relu((za - zn).pow(2).sum(1) - (za - zp).pow(2).sum(1) + o.margin).mean()
        elif o.bug == "square_root":  # the root has no slope at zero distance
            loss = F.relu(
                (za - za.detach()).pow(2).sum(1).sqrt() + (za - zp).norm(dim=1) - (za - zn).norm(dim=1) + o.margin
            ).mean()
        else:
            loss = loss_fn(za, zp, zn)
        if o.bug != "gradients_stay":
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()

    net.eval()
    with torch.no_grad():
        known, asked = net(clean), net(x_valid)
        centres = torch.stack([known[y == c].mean(0) for c in range(10)])
        return wrong_rate(-torch.cdist(asked, centres), y_valid, 10)


PROGRAM = Program(
    name="triplets",
    half="E",
    train=train,
    settings={
        "width": 8,
        "more": 0,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "dim": 16,
        "unit": True,
        "margin": 0.5,
        "swap": False,
        "together": True,
        "gain": None,
        "bias": None,
        "orthogonal": False,
        "freeze": False,
        "rows": 1347,
        "noise": 0.0,
        "grain": 0.0,
        "spikes": 0.0,
        "batch": 64,
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "gamma": 0.7,
        "warmup": 0,
        "clip": None,
        "steps": 450,
    },
    faults=[
        mild("learning_rate_too_high", lr=0.08, gamma=1.0),
        mild("learning_rate_too_low", lr=3e-4),
        severe("schedule_too_fast", bug="gamma_per_step"),
        mild("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", batch=8),
        severe("gradients_not_zeroed", bug="gradients_stay", optimizer="sgd", lr=0.1),
        severe("parameters_not_optimized", bug="projection_only"),
        severe(
            "optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="backbone_replaced"
        ),
        mild("graph_detached", bug="backbone_frozen_by_hand"),
        severe("batch_repeated", bug="drawn_once"),
        severe("data_not_shuffled", bug="one_class_after_the_other"),
        severe("inputs_not_scaled", bug="bytes", unit=False, margin=1.0, optimizer="sgd", lr=0.1),
        mild("input_outliers", spikes=0.15),
        severe("labels_random", bug="labels_of_other_file"),
        severe("negatives_of_any_class", "labels_random", bug="any_negative"),
        mild("overfitting", rows=120),
        mild("label_noise", noise=0.4),
        severe("loss_sign", ("loss_sign", "labels_random"), bug="order_mixed_up"),
        severe("sign_in_the_margin", ("loss_sign", "labels_random"), bug="margin_by_hand"),
        severe("softmax_over_batch", ("softmax_over_batch", "output_activation"), bug="softmax_batch"),
        mild("output_activation", ("output_activation", "double_softmax"), bug="softmax_last"),
        severe("output_activation", ("output_activation", "dead_units"), bug="relu_last"),
        mild("positive_is_the_anchor", ("target_in_inputs", "not_learning"), bug="positive_is_anchor"),
        severe("dead_units", bias=-3.0),
        severe("init_constant", bug="constant"),
        severe(
            "init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=0.1, unit=False
        ),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", more=4),
        severe("dropout_too_high", dropout=0.97),
        mild("eval_mode", bug="eval_from_the_start", norm=True, gain=0.3),
        mild("adam_eps_too_large", eps=0.1),
        severe("not_finite", bug="square_root"),
    ],
    healthy=[
        healthy("lr_1e-3", lr=1e-3, gamma=1.0, steps=550),
        healthy("three_passes", together=False),
        healthy("batchnorm", norm=True),
        healthy("margin_02_swap", margin=0.2, swap=True),
        healthy("not_normalised", unit=False, margin=1.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1, gamma=0.9),
        healthy("adamw", optimizer="adamw", wd=0.02),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("silu_deeper", act="silu", more=1),
        healthy("first_layer_frozen", freeze=True),
        healthy("orthogonal_head", orthogonal=True),
        healthy("grainy", grain=0.1),
        healthy("warmup_clip", warmup=40, clip=1.0),
        healthy("batch_96", batch=96, lr=4e-3, steps=250),
        healthy("dropout_02_wide", dropout=0.2, width=12),
        healthy("dim_8", dim=8),
    ],
)
