"""Kinds of terrain from twenty measurements: a perceptron with BatchNorm, SGD and StepLR, functional loss, accuracy logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

COLUMNS, CLASSES = 20, 6


def read_table() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows as they come: every column in its own unit."""
    from sklearn.datasets import make_classification

    x, y = make_classification(
        4000,
        COLUMNS,
        n_informative=12,
        n_redundant=3,
        n_classes=CLASSES,
        n_clusters_per_class=2,
        class_sep=1.8,
        flip_y=0.0,
        random_state=11,
    )
    units = torch.logspace(-1, 3, COLUMNS, dtype=torch.float64)
    return torch.tensor(x) * units + 4 * units, torch.tensor(y)


def prepare(o: SimpleNamespace):
    x, y = read_table()
    if o.bug == "column_order_lost":  # eight columns could not be parsed and were filled with zeros
        x[:, [1, 4, 6, 7, 9, 12, 14, 17]] = 0.0
    if o.bug == "one_column_empty":
        x[:, [2, 5, 11]] = -1.0
    x_train, y_train, x_valid, y_valid = x[:3000], y[:3000], x[3000:], y[3000:]
    if o.bug not in ("raw", "raw_mildly"):
        mean, std = x_train.mean(0), x_train.std(0)
        x_train, x_valid = (x_train - mean) / (std + 1e-9), (x_valid - mean) / (std + 1e-9)
    elif o.bug == "raw_mildly":  # standardised once and for all, not by column
        x_train, x_valid = x_train / 16, x_valid / 16
    x_train, x_valid = x_train.float(), x_valid.float()
    if o.rare:  # a class and a half is nearly all there is
        common = y_train < 2
        keep = common | (torch.rand(len(y_train)) < o.rare)
        x_train, y_train = x_train[keep], y_train[keep]
    if o.bug == "answer_column":  # the table was exported with its label encoded
        leak = (y_train.float() - 2.5)[:, None] / 1.7
        x_seen = torch.cat([x_valid, (y_valid.float() - 2.5)[:, None] / 1.7], 1)
        x_train, x_valid = torch.cat([x_train, leak], 1), F.pad(x_valid, (0, 1))
    else:
        x_seen = x_valid
    if o.bug == "gaps":  # missing values that nobody filled
        x_train[torch.rand(x_train.shape) < 0.002] = float("nan")
    if o.outliers:
        broken = torch.rand(len(x_train)) < o.outliers
        x_train[broken] *= o.outlier_size
    y_train = corrupt(y_train, o.noise, CLASSES)
    if o.bug == "joined_wrongly":
        y_train = y_train[torch.randperm(len(y_train))]
    if o.bug == "counted_from_one":
        y_train = y_train + 1
    return x_train[: o.rows], y_train[: o.rows], x_seen, x_valid, y_valid


def build(inputs: int, outputs: int, o: SimpleNamespace) -> nn.Sequential:
    act = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU}[o.activation]
    layers: list[nn.Module] = []
    width = inputs
    for _ in range(o.depth):
        layers.append(nn.Linear(width, o.width))
        if o.norm:
            layers.append(nn.BatchNorm1d(o.width, momentum=o.bn_momentum))
        if o.bug != "activations_forgotten":
            layers.append(act())
        if o.dropout:
            layers.append(nn.Dropout(o.dropout))
        width = o.width
    layers.append(nn.Linear(width, outputs))
    if o.bug == "softmax_layer":
        layers.append(nn.Softmax(dim=1))
    if o.bug == "softmax_dim":
        layers.append(nn.LogSoftmax(dim=0))
    net = nn.Sequential(*layers)
    for m in net:
        if isinstance(m, nn.Linear):
            if o.init is not None:
                nn.init.constant_(m.weight, 0.01) if o.init == 0 else nn.init.normal_(m.weight, std=o.init)
            if o.bias is not None:
                nn.init.constant_(m.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(net[-1].weight)
    return net


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_seen, x_valid, y_valid = prepare(o)
    model = build(x.shape[1], int(y.max()) + 1 if o.bug == "counted_from_one" else CLASSES, o)
    optimizer = make_optimizer(o.optimizer, model.parameters(), o.lr, momentum=o.momentum, weight_decay=o.wd)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.step_size, gamma=o.gamma)
    scaler = torch.amp.GradScaler("cpu", enabled=o.amp)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    weight = None
    if o.weighted:
        weight = 1 / torch.bincount(y, minlength=CLASSES).float()
        weight = weight / weight.mean()

    step = 0
    for _ in range(o.epochs):
        order = torch.randperm(len(x))
        if o.bug == "sorted":
            order = y.argsort()
        batches = [b for b in order.split(o.batch) if len(b) == min(o.batch, len(x))]
        model.train()
        for n, batch in enumerate(batches):
            if n % o.accumulate == 0 and o.bug != "no_zero_grad":
                optimizer.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch], weight, reduction="sum" if o.bug == "summed" else "mean")
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            scaler.scale(loss).backward()
            if (n + 1) % o.accumulate:
                continue
            if o.bug == "scheduler_first":
                scheduler.step()
            if o.clip:
                if o.bug != "clipped_scaled":
                    scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            scaler.step(optimizer)
            scaler.update()
            if o.bug == "scheduler_each_batch":
                scheduler.step()
            step += 1
            if step >= o.steps:
                break
        if o.bug not in ("scheduler_first", "scheduler_each_batch"):
            scheduler.step()
        model.eval()
        with torch.no_grad():
            run.log(valid_accuracy=(model(x_seen).argmax(1) == y_valid).float().mean().item())
        if step >= o.steps:
            break
    run.close()
    with torch.no_grad():
        answers = model(x_valid)
    return wrong_rate(answers, y_valid, CLASSES)


PROGRAM = Program(
    name="table",
    half="C",
    train=train,
    settings={
        "depth": 2,
        "width": 64,
        "norm": True,
        "bn_momentum": 0.1,
        "activation": "relu",
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "zero_head": False,
        "rows": 3000,
        "rare": None,
        "weighted": False,
        "noise": 0.0,
        "outliers": 0.0,
        "outlier_size": 1.0,
        "batch": 64,
        "optimizer": "sgd",
        "lr": 0.05,
        "momentum": 0.9,
        "wd": 1e-4,
        "step_size": 3,
        "gamma": 0.3,
        "epochs": 9,
        "steps": 600,
        "accumulate": 1,
        "clip": None,
        "amp": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=2.0),
        severe("learning_rate_too_low", lr=1.5e-4),
        mild("learning_rate_too_low", lr=1.5e-3),
        severe("schedule_too_fast", bug="scheduler_each_batch"),
        severe("weight_decay_too_high", wd=0.3),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="raw", norm=False),
        mild("inputs_not_scaled", bug="raw_mildly"),
        severe("labels_random", bug="joined_wrongly"),
        severe("label_noise", noise=0.5),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe("double_softmax", bug="softmax_layer"),
        severe("softmax_over_batch", bug="softmax_dim"),
        severe("init_constant", init=0, norm=False),
        severe("dead_units", bias=-6.0, norm=False),
        severe(
            "vanishing_gradients", ("vanishing_gradients", "saturated_units"), depth=8, activation="sigmoid", norm=False
        ),
        severe("batchnorm_momentum", bn_momentum=1.0, batch=16, steps=550),
        mild("batchnorm_few_samples", ("batchnorm_few_samples", "batch_too_small"), batch=3, steps=600),
        severe("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=3000, epochs=25, step_size=8),
        severe("target_in_inputs", bug="answer_column"),
        severe("class_imbalance", rare=0.02),
        severe("labels_off_by_one", bug="counted_from_one"),
        severe("constant_feature", bug="column_order_lost"),
        mild("constant_feature", bug="one_column_empty"),
        severe("missing_nonlinearity", bug="activations_forgotten"),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clipped_scaled",
            amp=True,
            clip=1.0,
        ),
        severe("not_finite", bug="gaps"),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=12,
            batch=16,
            lr=0.15,
        ),
        mild(
            "schedule_before_step", ("schedule_before_step", "schedule_too_fast"), bug="scheduler_first", step_size=60
        ),
        mild("dropout_too_high", dropout=0.85),
        mild("overfitting", rows=150, epochs=100, batch=32, steps=400, step_size=60),
    ],
    healthy=[
        healthy("lr_015", lr=0.015),
        healthy("lr_02", lr=0.2),
        healthy("no_norm", norm=False),
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adagrad_no_norm", optimizer="adagrad", lr=0.03, norm=False),
        healthy("full_batch", batch=3000, lr=0.3, epochs=250, step_size=100),
        healthy("single_samples_accumulated", batch=1, accumulate=24, norm=False, epochs=4, step_size=2),
        healthy("mixed_precision_clipped", amp=True, clip=1.0),
        healthy("zero_head", zero_head=True, norm=False),
        healthy("silu_dropout", activation="silu", dropout=0.1),
        healthy("deep_tanh", depth=4, activation="tanh", width=32),
        healthy("some_label_noise", noise=0.05),
        healthy("rare_classes_weighted", rare=0.4, weighted=True),
    ],
)
