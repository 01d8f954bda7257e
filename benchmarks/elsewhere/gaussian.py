"""Progress of diabetes with an error bar: mean and log-variance from one network, own likelihood,
plain index batches, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def table() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(5))
    return torch.tensor(data.data, dtype=torch.float32)[order], torch.tensor(data.target, dtype=torch.float32)[order]


class Forecast(nn.Module):
    def __init__(self, o: SimpleNamespace, columns: int) -> None:
        super().__init__()
        act = {"tanh": nn.Tanh, "relu": nn.ReLU, "softplus": nn.Softplus, "sigmoid": nn.Sigmoid}[o.activation]
        layers: list[nn.Module] = []
        width = columns
        for _ in range(o.depth):
            layers += [nn.Linear(width, o.width), act(), nn.Dropout(o.dropout)]
            width = o.width
        self.trunk = nn.Sequential(*layers)
        self.mean, self.spread = nn.Linear(width, 1), nn.Linear(width, 1)
        if o.zero_head:
            nn.init.zeros_(self.mean.weight)
            nn.init.zeros_(self.spread.weight)
        if o.negative_bias:
            for layer in self.trunk:
                if isinstance(layer, nn.Linear):
                    nn.init.constant_(layer.bias, -o.negative_bias)
        self.bug = o.bug

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(rows)
        mean, spread = self.mean(hidden), self.spread(hidden)
        if self.bug == "relu_output":  # "progress cannot be negative", but the targets are centred
            mean = torch.relu(mean)
        return (mean, spread) if self.bug == "column" else (mean.squeeze(-1), spread.squeeze(-1))


def negative_log_likelihood(mean: torch.Tensor, spread: torch.Tensor, y: torch.Tensor, bug: str | None) -> torch.Tensor:
    if bug == "variance_is_raw":  # takes the output for the variance, which may be negative
        return (0.5 * spread.log() + 0.5 * (y - mean) ** 2 / spread).mean()
    if bug == "sign":
        return -(0.5 * spread + 0.5 * (y - mean) ** 2 * torch.exp(-spread)).mean()
    return (0.5 * spread + 0.5 * (y - mean) ** 2 * torch.exp(-spread)).mean()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = table()
    xv, yv = x[340:], y[340:]
    x, y = x[:340], y[:340]
    centre, width = x.mean(0), x.std(0)
    if o.bug == "constant_columns":  # bmi, pressure, s5: a join that failed and was filled with the mean
        x = x.clone()
        x[:, [2, 3, 8]] = centre[[2, 3, 8]]
    x, xv = x[: o.rows], xv
    y = y[: o.rows]
    if o.scale_inputs:
        x, xv = (x - centre) / width, (xv - centre) / width
    if o.bug == "decimal_comma":  # "24,3" read as 243, and worse, in some rows
        hit = torch.rand(x.shape) < 0.04
        x = torch.where(hit, x * 300, x)
    ym, ys = y.mean(), y.std()
    if o.scale_targets:
        y = (y - ym) / ys
    else:
        ym, ys = torch.tensor(0.0), torch.tensor(1.0)
    if o.bug == "rows_permuted":
        y = y[torch.randperm(len(y))]
    y = y + o.noise * y.std() * torch.randn(len(y))
    if o.bug == "leak":  # the target's own follow-up measurement stayed among the columns
        x = torch.cat([x, y[:, None] + 0.05 * torch.randn(len(y), 1)], 1)
        xv = torch.cat([xv, torch.randn(len(xv), 1)], 1)

    model = Forecast(o, x.shape[1])
    if o.init:
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=o.init)
    opt = make_optimizer(o.optimizer, model.parameters(), o.lr, weight_decay=o.wd, momentum=o.momentum)
    run = cockpit_core.track(model, optimizer=opt, logdir=logdir)
    done = 0
    while done < o.steps:
        order = torch.randperm(len(x))
        for rows in order.split(o.batch):
            opt.zero_grad()
            mean, spread = model(x[rows])
            loss = negative_log_likelihood(mean, spread, y[rows], o.bug)
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            opt.step()
            done += 1
            if done >= o.steps:
                break
    run.close()
    model.eval()
    with torch.no_grad():
        guess = model(xv)[0].reshape(-1) * ys + ym
    return (((guess - yv) ** 2).mean() / yv.var()).item()


PROGRAM = Program(
    name="gaussian",
    half="A",
    train=train,
    settings={
        "activation": "tanh",
        "depth": 2,
        "width": 24,
        "dropout": 0.0,
        "zero_head": False,
        "negative_bias": 0.0,
        "scale_inputs": True,
        "scale_targets": True,
        "rows": 340,
        "noise": 0.0,
        "init": None,
        "batch": 32,
        "optimizer": "adam",
        "lr": 2e-3,
        "wd": 0.05,
        "momentum": 0.9,
        "steps": 400,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.0),
        mild("learning_rate_too_high", lr=0.15),
        severe("learning_rate_too_low", lr=1e-6),
        mild("learning_rate_too_low", lr=1e-4),
        severe("inputs_not_scaled", scale_inputs=False),
        severe("targets_not_scaled", scale_targets=False),
        severe("loss_broadcast", bug="column"),
        severe("loss_sign", bug="sign"),
        severe("labels_random", bug="rows_permuted"),
        mild("label_noise", noise=2.0),
        severe("not_finite", bug="variance_is_raw"),
        severe("output_activation", bug="relu_output"),
        severe("input_outliers", bug="decimal_comma"),
        mild("constant_feature", bug="constant_columns"),
        severe("target_in_inputs", bug="leak"),
        severe("vanishing_gradients", activation="sigmoid", depth=9),
        severe("dead_units", activation="relu", negative_bias=8.0),
        severe("weight_decay_too_high", optimizer="adamw", wd=100.0),
        severe("init_too_large", init=5.0),
        severe("clipping_too_hard", optimizer="sgd", lr=0.03, clip=1e-4),
        severe("overfitting", rows=60, width=256, steps=600, wd=0.0),
        mild("dropout_too_high", dropout=0.95),
    ],
    healthy=[
        healthy("lr_1e-3", lr=1e-3, steps=600),
        healthy("lr_6e-3", lr=6e-3, steps=300),
        healthy("sgd", optimizer="sgd", lr=0.02),
        healthy("relu", activation="relu", steps=300),
        healthy("softplus", activation="softplus"),
        healthy("batch_8", batch=8, lr=1e-3),
        healthy("full_batch", batch=340, lr=6e-3),
        healthy("zero_head", zero_head=True),
        healthy("linear_like", depth=1, width=8, lr=5e-3),
        healthy("dropout_02", dropout=0.2, width=48),
        healthy("clip_5", clip=5.0, optimizer="adamw", wd=0.3),
        healthy("small_noise", noise=0.3, lr=2e-3),
    ],
)
