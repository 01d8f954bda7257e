"""Benign or malignant: the breast cancer table, BCEWithLogitsLoss, SGD, a rate that waits for plateaus, both logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def split_table() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(3))
    x, y = torch.tensor(data.data)[order], torch.tensor(data.target, dtype=torch.float32)[order]
    return x[:380], 1 - y[:380], x[380:], 1 - y[380:]


class Net(nn.Module):
    def __init__(self, inputs: int, cfg: SimpleNamespace) -> None:
        super().__init__()
        self.cfg = cfg
        self.layers = nn.ModuleList()
        self.norms = nn.ModuleList()
        for n in range(cfg.depth):
            self.layers.append(nn.Linear(inputs if n == 0 else cfg.hidden, cfg.hidden))
            self.norms.append(nn.BatchNorm1d(cfg.hidden, momentum=cfg.bn_momentum) if cfg.norm else nn.Identity())
        self.head = nn.Linear(cfg.hidden, 1)
        self.dropout = nn.Dropout(cfg.dropout)
        self.activation = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "none": nn.Identity()}[
            cfg.activation
        ]
        for layer in self.layers:
            if cfg.std is not None:
                nn.init.normal_(layer.weight, std=cfg.std) if cfg.std else nn.init.zeros_(layer.weight)
            if cfg.bias is not None:
                nn.init.constant_(layer.bias, cfg.bias)
        if cfg.std is not None and not cfg.std:
            nn.init.zeros_(self.head.weight)
        if cfg.zero_head:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = self.dropout(self.activation(norm(layer(x))))
            if self.cfg.bug == "inference_decorator":
                x = x.detach()
        logit = self.head(x).squeeze(1)
        if self.cfg.bug == "sigmoid_in_model":
            return torch.sigmoid(logit)
        if self.cfg.bug == "softmax_of_one":
            return torch.softmax(logit, 0)  # meant for two outputs; this one runs over the patients
        if self.cfg.bug == "relu_in_model":
            return torch.relu(logit)
        return logit


def train(cfg: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = split_table()
    if cfg.bug != "raw":
        columns = x.mean(0), x.std(0)
        if cfg.bug == "one_scale":  # the mean and deviation of the whole table
            columns = x.mean(), x.std() / 16
        x, x_valid = (x - columns[0]) / columns[1], (x_valid - columns[0]) / columns[1]
    x, x_valid = x.float(), x_valid.float()
    if cfg.bug == "columns_filled":
        x[:, 2:], x_valid[:, 2:] = 0.0, 0.0
    if cfg.bug == "worst_columns_filled":
        x[:, 20:], x_valid[:, 20:] = 0.0, 0.0
    x_seen = x_valid
    if cfg.bug == "diagnosis_code":  # a code that is only written after the diagnosis
        x_seen = torch.cat([x_valid, 2 * y_valid[:, None] - 1], 1)
        x, x_valid = torch.cat([x, 2 * y[:, None] - 1], 1), torch.cat([x_valid, torch.zeros(len(x_valid), 1)], 1)
    if cfg.bug == "few_malignant":
        keep = (y == 0) | (y.cumsum(0) <= 5)
        x, y = x[keep], y[keep]
    if cfg.bug == "joined_by_row":
        y = y[torch.randperm(len(y))]
    if cfg.bug == "header_counted":
        y = y.roll(1)
    if cfg.bug == "missing":
        x[torch.rand(x.shape) < 0.003] = float("nan")
    if cfg.flipped:
        y = torch.where(torch.rand(len(y)) < cfg.flipped, 1 - y, y)
    if cfg.outliers:
        wild = torch.rand(len(x)) < cfg.outliers
        x[wild] = x[wild] * cfg.outlier_size
    x, y = x[: cfg.rows], y[: cfg.rows]

    model = Net(x.shape[1], cfg)
    weight = (1 - y).sum() / y.sum() if cfg.weighted else None
    criterion = nn.BCEWithLogitsLoss(pos_weight=weight, reduction="sum" if cfg.bug == "summed" else "mean")
    params = model.head.parameters() if cfg.bug == "head_only" else model.parameters()
    optimizer = make_optimizer(
        cfg.optimizer, params, cfg.lr, momentum=cfg.momentum, weight_decay=cfg.wd, nesterov=False
    )
    if cfg.bug == "hidden_replaced":
        model.layers = Net(x.shape[1], cfg).layers
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=cfg.factor, patience=cfg.patience)
    scaler = torch.amp.GradScaler("cpu", enabled=cfg.scaler)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    def evaluate() -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            logits = model(x_seen)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, y_valid).item()
        if cfg.bug != "stays_in_eval":
            model.train()
        return loss, ((logits > 0) == y_valid.bool()).float().mean().item()

    steps, epoch = 0, 0
    while steps < cfg.steps:
        order = y.argsort() if cfg.bug == "sorted" else torch.randperm(len(x))
        pieces = [p for p in order.split(cfg.batch) if len(p) == min(cfg.batch, len(x))]
        if cfg.bug == "fixed_batch":
            pieces = [torch.arange(cfg.batch)] * len(pieces)
        if cfg.bug == "stays_in_eval":
            model.eval()
        for n, ids in enumerate(pieces):
            loss = criterion(model(x[ids]), y[ids])
            if cfg.bug == "gain":
                loss = -loss
            scaler.scale(loss if cfg.bug == "not_divided" else loss / cfg.accumulate).backward()
            if (n + 1) % cfg.accumulate:
                continue
            if cfg.clip:
                if cfg.bug != "clip_first":
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
            scaler.step(optimizer)
            scaler.update()
            if cfg.bug != "never_zeroed":
                optimizer.zero_grad()
            steps += 1
            if steps >= cfg.steps:
                break
        epoch += 1
        if epoch % 4 == 0 or cfg.bug == "impatient":
            valid_loss, accuracy = evaluate()
            run.log(valid_loss=valid_loss, valid_accuracy=accuracy)
            plateau.step(1.0 if cfg.bug == "impatient" else valid_loss)
    run.close()
    model.eval()
    with torch.no_grad():
        logits = model(x_valid)
        p = logits if cfg.bug == "sigmoid_in_model" else torch.sigmoid(logits)
    base = y_valid.mean() * (1 - y_valid.mean())
    return ((p - y_valid).pow(2).mean() / base).item()


PROGRAM = Program(
    name="biopsy",
    half="C",
    train=train,
    settings={
        "hidden": 32,
        "depth": 2,
        "norm": False,
        "bn_momentum": 0.1,
        "activation": "tanh",
        "dropout": 0.0,
        "std": None,
        "bias": None,
        "zero_head": False,
        "rows": 380,
        "flipped": 0.0,
        "outliers": 0.0,
        "outlier_size": 1.0,
        "weighted": False,
        "batch": 20,
        "accumulate": 1,
        "optimizer": "sgd",
        "lr": 0.02,
        "momentum": 0.9,
        "wd": 1e-3,
        "factor": 0.5,
        "patience": 2,
        "steps": 400,
        "clip": None,
        "scaler": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=3.0),
        severe("learning_rate_too_low", lr=6e-5),
        mild("learning_rate_too_low", lr=6e-4),
        severe("schedule_too_fast", bug="impatient", factor=0.1, patience=0),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        severe("momentum_too_high", momentum=0.999),
        mild("momentum_too_high", momentum=0.99),
        mild("batch_too_small", batch=1, lr=0.1),
        severe("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=380, steps=20),
        mild("gradients_not_zeroed", bug="never_zeroed"),
        mild("parameters_not_optimized", bug="head_only"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="hidden_replaced"),
        mild("graph_detached", bug="inference_decorator"),
        severe("batch_repeated", bug="fixed_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), bug="raw"),
        mild("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), bug="one_scale"),
        severe("input_outliers", outliers=0.03, outlier_size=60.0, activation="relu"),
        severe("labels_random", bug="joined_by_row"),
        severe("labels_off_by_one", ("labels_off_by_one", "labels_random"), bug="header_counted"),
        severe("label_noise", flipped=0.35),
        mild("label_noise", flipped=0.15),
        severe("loss_sign", bug="gain"),
        mild("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe("output_activation", ("output_activation", "double_softmax"), bug="sigmoid_in_model"),
        mild("output_activation", bug="relu_in_model"),
        severe("softmax_over_batch", ("softmax_over_batch", "output_activation"), bug="softmax_of_one"),
        severe("dead_units", bias=-8.0, activation="relu"),
        severe("saturated_units", ("saturated_units", "init_too_large"), bias=6.0, std=0.05),
        severe("init_constant", std=0.0),
        severe("init_too_large", ("init_too_large", "saturated_units"), std=3.0),
        mild("init_too_small", std=0.004),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), depth=8, activation="sigmoid"),
        mild("dropout_too_high", dropout=0.9),
        mild("eval_mode", bug="stays_in_eval", norm=True),
        severe("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), norm=True, batch=2),
        mild("batchnorm_momentum", norm=True, bn_momentum=1.0),
        severe("target_in_inputs", bug="diagnosis_code"),
        severe("class_imbalance", bug="few_malignant"),
        severe("constant_feature", bug="columns_filled"),
        mild("constant_feature", bug="worst_columns_filled"),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clip_first",
            scaler=True,
            clip=1.0,
        ),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=20,
            batch=2,
            steps=200,
            lr=0.1,
        ),
        severe("not_finite", bug="missing"),
        mild("overfitting", rows=24, batch=12, lr=0.1, wd=0.0),
    ],
    healthy=[
        healthy("lr_006", lr=6e-3),
        healthy("lr_006_big", lr=0.06),
        healthy("relu", activation="relu"),
        healthy("batch_norm", norm=True),
        healthy("adam", optimizer="adam", lr=1e-3),
        healthy("adamw", optimizer="adamw", lr=2e-3, wd=0.05),
        healthy("weighted", weighted=True),
        healthy("full_batch", batch=380, lr=0.1, steps=300),
        healthy("single_samples_accumulated", batch=1, accumulate=19, steps=200, lr=0.04),
        healthy("zero_head", zero_head=True),
        healthy("logistic_like", hidden=3, depth=1, activation="none"),
        healthy("dropout_02", dropout=0.2),
        healthy("clip_1_scaler", clip=1.0, scaler=True),
        healthy("no_momentum", momentum=0.0, lr=0.15),
    ],
)
