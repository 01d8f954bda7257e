"""Will a loan be paid back? Fourteen columns, a tanh network, BCEWithLogitsLoss, SGD with momentum, a DataLoader."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

ROWS, VALID = 2560, 1200


def applications() -> tuple[torch.Tensor, torch.Tensor]:
    """Applications in the units of the form (years, euros, shares, counts), and whether the loan went bad."""
    g = torch.Generator().manual_seed(2024)
    z = torch.randn(ROWS + VALID, 14, generator=g)
    z[:, 7] = 0.6 * z[:, 3] + 0.8 * z[:, 7]
    risk = 1.3 * z[:, 0] * z[:, 1] + 1.2 * torch.sin(1.5 * z[:, 2]) + 0.9 * z[:, 3] - 1.0 * (z[:, 4] ** 2 - 1)
    risk = risk + 1.1 * z[:, 5].abs() * z[:, 6].sign() + 0.5 * z[:, 8]
    bad = (risk - risk.median() + 0.15 * torch.randn(len(z), generator=g)) > 0
    units = torch.tensor([12.0, 900, 0.2, 3, 15000, 1.5, 40, 7, 2, 0.05, 300, 5, 1, 60])
    start = torch.tensor([42.0, 3100, 0.5, 9, 60000, 4, 130, 20, 5, 0.3, 800, 12, 3, 200])
    return z * units + start, bad.float()


def load(o: SimpleNamespace) -> tuple[TensorDataset, torch.Tensor, torch.Tensor]:
    x, y = applications()
    x_train, x_valid, y_train, y_valid = x[:ROWS], x[ROWS:], y[:ROWS], y[ROWS:]

    if o.bug == "empty_columns":  # the export knew these columns by another name
        x_train[:, [2, 5]] = x_valid[:, [2, 5]] = 0.0
    mean, std = x_train.mean(0), x_train.std(0)
    if o.bug == "forgot_to_scale":
        mean, std = torch.zeros(14), torch.ones(14)
    if o.bug == "scaled_by_spread_only":
        mean = torch.zeros(14)
    if o.scaler == "minmax":
        mean, std = x_train.mean(0), (x_train.amax(0) - x_train.amin(0)) / 4
    x_train, x_valid = (x_train - mean) / (std + 1e-6), (x_valid - mean) / (std + 1e-6)

    if o.bug == "missing_as_9999":  # filled after scaling
        x_train[torch.rand(x_train.shape) < 0.03] = -9999.0
    if o.bug == "log_income":  # a few people state no income
        x_train[:, 1] = (x_train[:, 1] + 3).clamp(min=0).log()
        x_valid = x_valid.clone()
        x_valid[:, 1] = (x_valid[:, 1] + 3).clamp(min=1e-3).log()
    if o.bug == "reminders_sent":  # written down after the loan went bad, and empty for new customers
        x_train[:, 11] = 4 * y_train - 2
        x_valid[:, 11] = 0.0
    if o.bug == "joined_by_row":
        y_train = y_train.roll(1)

    flip = torch.rand(ROWS) < o.flipped
    y_train = torch.where(flip, 1 - y_train, y_train)
    keep = (y_train == 0) | (torch.rand(ROWS) < o.bad_kept)
    x_train, y_train = x_train[keep][: o.rows], y_train[keep][: o.rows]
    if o.bug == "exported_by_outcome":
        order = y_train.argsort()
        x_train, y_train = x_train[order], y_train[order]
    return TensorDataset(x_train, y_train[:, None]), x_valid, y_valid


class Scorer(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        act = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "elu": nn.ELU}[o.act]
        sizes = [14] + [o.width] * o.depth
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(nn.LayerNorm(o.width) if o.layernorm else nn.Identity() for _ in self.hidden)
        self.act = act()
        self.drop = nn.Dropout(o.dropout)
        self.out = nn.Linear(o.width, 1)
        for layer in self.hidden:
            if o.init == "xavier":
                nn.init.xavier_normal_(layer.weight, gain=5 / 3)
                nn.init.zeros_(layer.bias)
            elif o.init == "wide":  # meant as a standard deviation of 1/width
                nn.init.normal_(layer.weight, std=float(o.width) / 8)
        if o.zero_head:
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x):
        for n, layer in enumerate(self.hidden):
            x = self.norms[n](layer(x))
            if self.o.bug != "no_activation":
                x = self.act(x)
            x = self.drop(x)
            if self.o.bug == "kept_for_plotting" and n == len(self.hidden) - 1:
                self.last_hidden = x = x.detach()
        score = self.out(x)
        if self.o.bug == "probabilities":
            score = torch.sigmoid(score)
        return score


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data, x_valid, y_valid = load(o)
    loader = DataLoader(data, batch_size=o.batch, shuffle=o.bug != "exported_by_outcome", drop_last=len(data) > o.batch)
    model = Scorer(o)
    criterion = nn.BCEWithLogitsLoss(
        reduction="sum" if o.bug == "sum" else "mean",
        pos_weight=torch.tensor([o.pos_weight]) if o.pos_weight else None,
    )
    params = list(model.parameters())
    if o.frozen:  # first layer from an earlier model: here a fixed, sensible projection
        with torch.no_grad():
            nn.init.orthogonal_(model.hidden[0].weight)
        model.hidden[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "only_the_head":
        params = list(model.out.parameters())
    if o.bug == "copied_after":
        twin = copy.deepcopy(model)
        params = list(twin.parameters())
    optimizer = make_optimizer(o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov)
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.epochs)
    elif o.schedule == "warmup":
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.2, 1.0, total_iters=3)
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)
    model.train()
    first = next(iter(loader))
    steps = 0
    for _ in range(o.epochs):
        for n, (inputs, targets) in enumerate(loader):
            if steps == o.steps:
                break
            if o.bug == "debug_batch":
                inputs, targets = first
            if o.jitter:
                inputs = inputs + o.jitter * torch.randn_like(inputs)
            if n % o.accumulate == 0 and o.bug != "no_zero_grad":
                optimizer.zero_grad()
            if o.smooth:
                targets = targets * (1 - o.smooth) + 0.5 * o.smooth
            loss = criterion(model(inputs), targets) / o.accumulate
            if o.bug == "maximised":
                loss = -loss
            loss.backward()
            if (n + 1) % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            if o.bug == "decay_each_batch":
                scheduler.step()
            steps += 1
        if o.bug != "decay_each_batch":
            scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        answers = model(x_valid)[:, 0]
    if not torch.isfinite(answers).all():
        return float("inf")
    return ((answers > 0).float() != y_valid).float().mean().item() / 0.5


PROGRAM = Program(
    name="loans",
    half="I",
    train=train,
    settings={
        "rows": ROWS,
        "scaler": "standard",
        "flipped": 0.0,
        "bad_kept": 1.0,
        "pos_weight": None,
        "width": 48,
        "depth": 2,
        "act": "tanh",
        "layernorm": False,
        "dropout": 0.0,
        "init": None,
        "zero_head": False,
        "frozen": False,
        "batch": 64,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 1e-5,
        "schedule": "exponential",
        "gamma": 0.93,
        "clip": None,
        "jitter": 0.0,
        "smooth": 0.0,
        "epochs": 15,
        "steps": 600,
    },
    faults=[
        severe("learning_rate_too_high", lr=4.0),
        mild("learning_rate_too_high", lr=1.0),
        mild("learning_rate_too_low", lr=3e-3),
        severe("schedule_too_fast", bug="decay_each_batch"),
        mild("clipping_too_hard", clip=0.03),
        mild("weight_decay_too_high", wd=0.01),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="only_the_head"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="copied_after"),
        severe("graph_detached", bug="kept_for_plotting"),
        severe("batch_repeated", bug="debug_batch"),
        severe("data_not_shuffled", bug="exported_by_outcome"),
        severe("inputs_not_scaled", bug="forgot_to_scale"),
        mild("inputs_not_scaled", bug="scaled_by_spread_only"),
        severe("input_outliers", bug="missing_as_9999"),
        severe("labels_random", ("labels_random", "label_noise"), bug="joined_by_row"),
        mild("label_noise", flipped=0.25),
        severe("loss_sign", bug="maximised"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="probabilities"),
        severe("saturated_units", ("saturated_units", "init_too_large"), init="wide"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=7),
        mild("dropout_too_high", dropout=0.8),
        severe("not_finite", bug="log_income"),
        severe("target_in_inputs", bug="reminders_sent"),
        severe("class_imbalance", bad_kept=0.02),
        mild("constant_feature", bug="empty_columns"),
        severe("missing_nonlinearity", bug="no_activation"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="sum"),
    ],
    healthy=[
        healthy("third_of_the_rate", lr=0.04),
        healthy("twice_the_rate", lr=0.2),
        healthy("adam", optimizer="adam", lr=5e-3),
        healthy("adamw", optimizer="adamw", lr=8e-3, wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=6e-3, momentum=0.0),
        healthy("nesterov", nesterov=True),
        healthy("batch_32", batch=32, epochs=8, lr=0.06),
        healthy("batch_128", batch=128, lr=0.2, epochs=25),
        healthy("full_batch", batch=ROWS, optimizer="adam", lr=0.02, epochs=160, gamma=0.99),
        healthy("accumulated", batch=16, accumulate=4),
        healthy("narrow", width=24, lr=0.15),
        healthy("wide", width=128, lr=0.06),
        healthy("three_layers", depth=3),
        healthy("relu", act="relu"),
        healthy("gelu", act="gelu"),
        healthy("elu_cosine", act="elu", schedule="cosine"),
        healthy("warmup_only", schedule="warmup"),
        healthy("layernorm", layernorm=True),
        healthy("xavier", init="xavier", lr=0.05),
        healthy("zero_head", zero_head=True),
        healthy("clipped_at_one", clip=1.0),
        healthy("some_labels_wrong", flipped=0.03),
        healthy("smoothed", smooth=0.05),
        healthy("jittered", jitter=0.05),
        healthy("minmax", scaler="minmax"),
        healthy("frozen_first_layer", frozen=True, width=96),
    ],
)
