"""Who leaves a telephone company: a table, sigmoid and BCELoss, RMSprop, BatchNorm, a DataLoader, val_loss logged."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

ROWS, HELD_OUT = 5000, 1500


def customers() -> tuple[torch.Tensor, torch.Tensor]:
    """Months, monthly fee, total, calls to support, minutes, contract (3), payment (4), age; and who left, about a third."""
    g = torch.Generator().manual_seed(5)
    months = torch.rand(ROWS, generator=g) ** 1.5 * 72 + 1
    fee = 20 + 90 * torch.rand(ROWS, generator=g)
    total = months * fee * (0.9 + 0.2 * torch.rand(ROWS, generator=g))
    calls = torch.poisson(1.2 + 0.02 * fee, generator=g)
    minutes = (6 + 0.7 * torch.randn(ROWS, generator=g)).exp()
    contract = torch.randint(0, 3, (ROWS,), generator=g)
    payment = torch.randint(0, 4, (ROWS,), generator=g)
    age = 18 + 60 * torch.rand(ROWS, generator=g)
    score = 1.6 * (calls - 2.4) * torch.where(fee > 60, 1.0, -0.8) - 1.4 * (contract - 1) * (1 + (months < 24).float())
    score = score + 0.06 * (fee - 65) - 2.2 * (months / 36 - 0.6) + 2.0 * (payment == 2) * (age / 20 - 2.5)
    score = score + 1.8 * torch.sin(minutes.log() * 2.0) - 1.2
    left = torch.rand(ROWS, generator=g) < torch.sigmoid(2.5 * score)
    one_hot = [nn.functional.one_hot(contract, 3).float(), nn.functional.one_hot(payment, 4).float()]
    return torch.cat([torch.stack([months, fee, total, calls, minutes, age], 1), *one_hot], 1), left.float()


class ChurnData(Dataset):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, n: int):
        return self.x[n], self.y[n]


class ChurnNet(nn.Module):
    def __init__(self, inputs: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity, "tanh": nn.Tanh}
        sizes = [inputs] + [o.width] * o.depth
        blocks = []
        for a, b in itertools.pairwise(sizes):
            norm = nn.BatchNorm1d(b, momentum=o.bn_momentum) if o.norm else nn.Identity()
            blocks.append(nn.Sequential(nn.Linear(a, b), norm, act[o.act](), nn.Dropout(o.dropout)))
        self.blocks = blocks if o.bug == "plain_list" else nn.ModuleList(blocks)
        self.out = nn.Linear(o.width, 1)
        for m in [layer for block in blocks for layer in block] + [self.out]:
            if isinstance(m, nn.Linear):
                if o.std is not None:
                    nn.init.normal_(m.weight, std=o.std)
                if o.bug == "filled":
                    nn.init.constant_(m.weight, 0.05)
                if o.bias is not None and m is not self.out:
                    nn.init.constant_(m.bias, o.bias)
        if o.prior is not None:
            nn.init.zeros_(self.out.weight)
            nn.init.constant_(self.out.bias, o.prior)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for n, block in enumerate(self.blocks):
            x = block(x)
            if n == 0 and self.o.bug == "feature_hook":  # kept for a plot, and the copy was returned
                x = torch.tensor(x.tolist())
        z = self.out(x)
        if self.o.bug == "softmax_of_one":
            return torch.softmax(z, dim=1).squeeze(1)
        if self.o.bug == "relu_first":
            z = torch.relu(z)
        p = torch.sigmoid(z)
        if self.o.bug == "twice":
            p = torch.sigmoid(p)
        return p.squeeze(1)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = customers()
    if o.bug == "columns_missing":  # two names changed in the export; fillna(0)
        x[:, [1, 3]] = 0.0
    known = ROWS - HELD_OUT
    if o.bug == "standardised_by_row":
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    elif o.bug != "raw":
        mean, std = x[:known].mean(0), x[:known].std(0).clamp(min=1e-6)
        if o.bug == "cents":  # after scaling, one join brought money in cents and minutes in seconds
            mean, std = mean * 0, torch.tensor([1.0, 4.0, 70.0, 1.0, 20.0, 4.0] + [1.0] * 7)
        x = (x - mean) / std
    x_val, y_val, seen = x[known:], y[known:], x[known:]
    if o.bug == "final_bill":  # only those who left have one
        seen = torch.cat([x_val, y_val[:, None]], 1)
        x_val = torch.cat([x_val, torch.zeros(HELD_OUT, 1)], 1)
        x = torch.cat([x, y[:, None] + 0.02 * torch.randn(ROWS, 1)], 1)
    x, y = x[:known][: o.rows], y[:known][: o.rows]
    if o.bug == "few_leavers":
        keep = (y == 0) | (torch.rand(len(y)) < 0.02)
        x, y = x[keep], y[keep]
    if o.bug == "merged_badly":
        y = y[torch.randperm(len(y))]
    if o.wrong:
        y = torch.where(torch.rand(len(y)) < o.wrong, (torch.rand(len(y)) < 0.5).float(), y)
    if o.bug == "gaps":
        x = x.masked_fill(torch.rand(x.shape) < 5e-4, float("nan"))
    if o.outliers:  # a missing value is 9999 in this system
        x = x.masked_fill(torch.rand(x.shape) < o.outliers, 9999.0 / 30)
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    loader = DataLoader(ChurnData(x, y), o.batch, shuffle=o.bug != "sorted", drop_last=True)

    model = ChurnNet(x.shape[1], o)
    criterion = nn.BCELoss()
    optimizer = make_optimizer(o.optimizer, model.parameters(), o.lr, weight_decay=o.wd, momentum=o.momentum)
    gamma = 0.97 if o.bug == "every_batch" else o.gamma
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    done = 0
    model.train()
    while done < o.steps:
        for xb, yb in loader:
            if o.bug == "debugging":  # one batch, to see whether it can be learned
                xb, yb = x[: o.batch], y[: o.batch]
            p = model(xb)
            if o.bug == "column":
                loss = -(yb * torch.log(p[:, None] + 1e-7) + (1 - yb) * torch.log(1 - p[:, None] + 1e-7)).mean()
            elif o.bug == "likelihood":
                loss = (yb * torch.log(p + 1e-7) + (1 - yb) * torch.log(1 - p + 1e-7)).mean()
            else:
                loss = criterion(p, yb)
            if o.bug != "no_zero_grad":
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            done += 1
            if o.bug == "every_batch":
                scheduler.step()
            if done % 100 == 0:
                model.eval()
                with torch.no_grad():
                    run.log(val_loss=nn.functional.binary_cross_entropy(model(seen), y_val).item())
                model.train()
            if done >= o.steps:
                break
        if o.bug != "every_batch":
            scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        p = model(x_val).clamp(1e-6, 1 - 1e-6)
    prior = y_val.mean()
    chance = -(prior * prior.log() + (1 - prior) * (1 - prior).log())
    return (nn.functional.binary_cross_entropy(p, y_val) / chance).item()


PROGRAM = Program(
    name="churn",
    half="E",
    train=train,
    settings={
        "width": 64,
        "depth": 2,
        "act": "relu",
        "norm": True,
        "bn_momentum": 0.1,
        "dropout": 0.1,
        "std": None,
        "bias": None,
        "prior": None,
        "rows": 3500,
        "wrong": 0.0,
        "outliers": 0.0,
        "batch": 128,
        "optimizer": "rmsprop",
        "lr": 2e-3,
        "momentum": 0.0,
        "wd": 0.0,
        "gamma": 0.9,
        "clip": None,
        "steps": 600,
    },
    faults=[
        mild("learning_rate_too_high", lr=0.03, gamma=1.0, norm=False),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", bug="every_batch", lr=1e-3),
        mild("weight_decay_too_high", wd=0.05, norm=False),
        mild("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=2),
        severe("batchnorm_momentum", bn_momentum=1.0, batch=8),
        severe("gradients_not_zeroed", bug="no_zero_grad", optimizer="sgd", lr=0.1, momentum=0.9, norm=False),
        severe("parameters_not_optimized", bug="plain_list", norm=False, width=12),
        mild("graph_detached", bug="feature_hook", width=16),
        severe("batch_repeated", bug="debugging"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="raw", norm=False),
        mild("inputs_not_scaled", bug="cents", norm=False),
        mild("scaled_by_row", "inputs_not_scaled", bug="standardised_by_row", norm=False),
        mild("input_outliers", outliers=0.003),
        severe("labels_random", bug="merged_badly"),
        mild("label_noise", wrong=0.4),
        severe("class_imbalance", bug="few_leavers"),
        severe("loss_sign", bug="likelihood"),
        severe("loss_broadcast", bug="column"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="twice"),
        severe("output_activation", ("output_activation", "double_softmax", "nothing_moves"), bug="softmax_of_one"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_first"),
        severe("dead_units", bias=-5.0, norm=False, lr=5e-4),
        severe("init_constant", bug="filled", norm=False, dropout=0.0),
        mild("dropout_too_high", dropout=0.8),
        mild("overfitting", rows=150, width=128, dropout=0.0),
        severe("target_in_inputs", bug="final_bill"),
        severe("constant_feature", bug="columns_missing"),
        severe("not_finite", bug="gaps"),
    ],
    healthy=[
        healthy("no_norm", norm=False),
        healthy("adam", optimizer="adam", lr=4e-3),
        healthy("adamw_decay", optimizer="adamw", lr=4e-3, wd=0.01),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1, momentum=0.9),
        healthy("rmsprop_with_momentum", momentum=0.9, lr=3e-4),
        healthy("leaky_deep", act="leaky", depth=4),
        healthy("tanh", act="tanh", lr=3e-3),
        healthy("dropout_03_wide", dropout=0.3, width=128),
        healthy("starts_from_prior", prior=-0.6, norm=False),
        healthy("batch_16", batch=16, lr=1.5e-3, gamma=0.8, steps=800),
        healthy("batch_512", batch=512, lr=6e-3, steps=300, gamma=0.98),
        healthy("clip_1", clip=1.0),
        healthy("normal_01", std=0.1, norm=False),
        healthy("some_wrong_labels", wrong=0.04),
        healthy("constant_rate", gamma=1.0, lr=1e-3),
        healthy("bn_momentum_001", bn_momentum=0.01, gamma=0.95),
    ],
)
