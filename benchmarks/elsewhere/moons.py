"""Two moons on a canvas, a small MLP with ReLU and one logit, BCEWithLogitsLoss, SGD: a notebook, top to bottom."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def draw(kind: str, n: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in pixels of a canvas of 640 x 480, and 0 or 1 for each."""
    g = torch.Generator().manual_seed(seed)
    y = (torch.rand(n, generator=g) < 0.5).float()
    t = math.pi * torch.rand(n, generator=g)
    if kind == "rings":
        radius = 0.4 + 0.8 * y
        xy = torch.stack([radius * (2 * t).cos(), radius * (2 * t).sin()], 1)
    elif kind == "blobs":  # four of them, like a chess board
        corner = torch.randint(0, 2, (n,), generator=g).float()
        xy = torch.stack([2 * corner - 1, 2 * (corner - y).abs() - 1], 1)
    else:
        up = torch.stack([t.cos(), t.sin()], 1)
        down = torch.stack([1 - t.cos(), 0.5 - t.sin()], 1)
        xy = torch.where(y[:, None] == 1, down, up)
    xy = xy + noise * torch.randn(n, 2, generator=g)
    return torch.tensor([270.0, 210.0]) + 120 * xy, y


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    # --- data -------------------------------------------------------------------------------------------------------
    X, y = draw(o.kind, o.rows, o.spread, 21)
    X_val, y_val = draw(o.kind, 1000, o.spread, 22)

    if o.columns > 2:  # seen by more sensors, each of which mixes the two coordinates
        mix = torch.randn(2, o.columns, generator=torch.Generator().manual_seed(5)) / math.sqrt(2)
        X, X_val = X @ mix, X_val @ mix

    if o.glitches:  # a few readings that slipped by some digits
        X = torch.where(torch.rand(len(X), 1) < o.glitches, X * o.glitch, X)

    if o.scale == "standard":
        mu, sd = X.mean(0), X.std(0)
        X, X_val = (X - mu) / sd, (X_val - mu) / sd
    elif o.scale == "unit":
        X, X_val = X / 240 - 1, X_val / 240 - 1
    elif o.scale == "by_ten":  # a rule of thumb that does not fit
        mu = X.mean(0)
        X, X_val = (X - mu) / 10, (X_val - mu) / 10

    if o.bug == "one_column_twice":
        X, X_val = X.clone(), X_val.clone()
        X[:, 1], X_val[:, 1] = X[0, 1], X[0, 1]
    if o.bug == "shuffled_x_only":
        X = X[torch.randperm(len(X))]
    if o.flips:
        y = torch.where(torch.rand(len(y)) < o.flips, 1 - y, y)
    if o.rare:
        kept = (y == 0) | (torch.rand(len(y)) < o.rare)
        X, y = X[kept], y[kept]
    if o.bug == "one_and_two":
        y = y + 1
    if o.bug == "sorted":
        rank = y.argsort()
        X, y = X[rank], y[rank]

    loader = DataLoader(TensorDataset(X, y), batch_size=o.batch, shuffle=o.bug != "sorted", drop_last=o.norm)

    # --- model ------------------------------------------------------------------------------------------------------
    act = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU, "elu": nn.ELU, "no": nn.Identity}

    layers: list[nn.Module] = []
    width = X.shape[1]
    for _ in range(o.depth):
        layers.append(nn.Linear(width, o.hidden))
        if o.norm:
            layers.append(nn.BatchNorm1d(o.hidden))
        layers.append(act[o.act]())
        if o.drop:
            layers.append(nn.Dropout(o.drop))
        width = o.hidden
    layers.append(nn.Linear(width, 1))
    if o.end is not None:
        layers.append(o.end())
    model = nn.Sequential(*layers)
    linear = [m for m in model if isinstance(m, nn.Linear)]
    for m in linear:
        if o.init == "xavier":
            nn.init.xavier_uniform_(m.weight)
        if o.init == "constant":
            nn.init.constant_(m.weight, 0.1)
            nn.init.zeros_(m.bias)
        if o.init == "normal":  # with the usual std of 1
            nn.init.normal_(m.weight)
    if o.bias is not None:
        for m in linear[:-1]:
            nn.init.constant_(m.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(linear[-1].weight)
        nn.init.zeros_(linear[-1].bias)
    if o.random_features:
        linear[0].requires_grad_(False)
    if o.pretrained:  # a first training, on other points of the same kind
        X_pre, y_pre = draw(o.kind, 400, o.spread, 23)
        X_pre = (X_pre - X_pre.mean(0)) / X_pre.std(0)
        first = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(o.pretrained):
            first.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(X_pre).squeeze(1), y_pre).backward()
            first.step()

    # --- training ---------------------------------------------------------------------------------------------------
    criterion = nn.BCEWithLogitsLoss(reduction=o.reduction)
    params = linear[-1].parameters() if o.bug == "head_only" else [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.decay, nesterov=o.nesterov
    )
    steps = o.epochs * len(loader)
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    elif o.schedule == "onecycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=o.lr, total_steps=steps + 1)
    elif o.schedule == "exponential":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    else:
        scheduler = None

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    first_batch = next(iter(loader))
    for _epoch in range(o.epochs):
        model.train()
        for xb, yb in loader:
            if o.bug == "same_batch":
                xb, yb = first_batch
            if o.bug != "no_zero_grad":
                optimizer.zero_grad()
            logits = model(xb).squeeze(1)
            target = yb * (1 - o.smooth) + 0.5 * o.smooth
            loss = criterion(logits, target)
            if o.bug == "minus":
                loss = -loss
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.bug == "no_parentheses":
                optimizer.step  # noqa: B018
            else:
                optimizer.step()
            if scheduler is not None and o.tick == "batch":
                scheduler.step()
        if scheduler is not None and o.tick == "epoch":
            scheduler.step()

    run.close()

    # --- how good is it? --------------------------------------------------------------------------------------------
    model.eval()
    with torch.no_grad():
        logits = model(X_val).squeeze(1)
    if not torch.isfinite(logits).all():
        return math.inf
    border = 0.5 if o.end is nn.Sigmoid else 0.0
    return 2 * ((logits > border).float() != y_val).float().mean().item()


PROGRAM = Program(
    name="moons",
    half="K",
    train=train,
    settings={
        "kind": "moons",
        "rows": 1200,
        "spread": 0.18,
        "columns": 2,
        "scale": "standard",
        "glitches": 0.0,
        "glitch": 60.0,
        "flips": 0.0,
        "rare": 0.0,
        "batch": 32,
        "hidden": 64,
        "depth": 2,
        "act": "relu",
        "end": None,
        "norm": False,
        "drop": 0.0,
        "init": None,
        "bias": None,
        "zero_head": False,
        "random_features": False,
        "pretrained": 0,
        "reduction": "mean",
        "smooth": 0.0,
        "optimizer": "sgd",
        "lr": 0.15,
        "momentum": 0.0,
        "nesterov": False,
        "decay": 0.0,
        "schedule": None,
        "gamma": 0.95,
        "tick": "batch",
        "clip": None,
        "epochs": 18,
    },
    faults=[
        severe("learning_rate_too_high", lr=10.0),
        mild("learning_rate_too_high", lr=4.2),
        severe("learning_rate_too_low", lr=5e-4),
        mild("learning_rate_too_low", lr=5e-3),
        severe("schedule_too_fast", schedule="exponential", gamma=0.9),
        severe("clipping_too_hard", clip=1e-3),
        mild("clipping_too_hard", clip=0.03),
        severe("weight_decay_too_high", decay=0.3),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2, epochs=1, lr=0.4),
        mild("batch_too_large", ("batch_too_large", "not_learning", "learning_rate_too_low"), batch=600, epochs=20),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="head_only"),
        severe(
            "nothing_moves",
            ("nothing_moves", "not_learning", "parameters_not_optimized", "optimizer_holds_others"),
            bug="no_parentheses",
        ),
        mild("batch_repeated", bug="same_batch", batch=16, epochs=9),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scale="raw"),
        mild("inputs_not_scaled", scale="by_ten"),
        severe("input_outliers", glitches=0.03, glitch=60.0),
        severe("constant_feature", bug="one_column_twice"),
        severe("labels_random", bug="shuffled_x_only"),
        mild("label_noise", flips=0.35),
        mild("class_imbalance", rare=0.02),
        severe("labels_off_by_one", ("labels_off_by_one", "targets_not_scaled"), bug="one_and_two"),
        severe("loss_sign", bug="minus"),
        mild("double_softmax", ("double_softmax", "output_activation"), end=nn.Sigmoid),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="constant"),
        severe("init_too_large", init="normal", depth=4),
        severe("missing_nonlinearity", act="no"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=7),
        severe("dropout_too_high", drop=0.93),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("adagrad", optimizer="adagrad", lr=0.05),
        healthy("momentum", lr=0.05, momentum=0.9),
        healthy("nesterov_cosine", lr=0.1, momentum=0.9, nesterov=True, schedule="cosine"),
        healthy("rate_doubled", lr=0.3),
        healthy("one_cycle", lr=0.6, schedule="onecycle"),
        healthy("step_down_each_epoch", schedule="exponential", gamma=0.9, tick="epoch"),
        healthy("full_batch", optimizer="adam", lr=0.01, batch=1200, epochs=400),
        healthy("wide", hidden=128),
        healthy("deeper", depth=4),
        healthy("elu_xavier", act="elu", init="xavier", momentum=0.9, lr=0.05),
        healthy("batchnorm", norm=True),
        healthy("dropout_10", drop=0.1, hidden=96),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("random_features", random_features=True, hidden=128),
        healthy("label_smoothing", smooth=0.1),
        healthy("fine_tuning", pretrained=100, lr=0.1, epochs=8),
        healthy("unit_canvas", scale="unit", lr=0.3),
        healthy("rings", kind="rings", lr=0.2),
        healthy("ten_columns", columns=10),
    ],
)
