"""A table of measurements, six kinds of things: a perceptron, F.cross_entropy as a function, Adam, batches by slicing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CLASSES = 6
UNITS = torch.tensor([1.0, 1000.0, 0.01, 60.0, 3600.0, 1.0, 255.0, 0.1]).repeat(3)


def load() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import make_classification

    x, y = make_classification(
        5000, 24, n_informative=12, n_redundant=4, n_classes=CLASSES, class_sep=1.3, flip_y=0.0, random_state=3
    )
    return torch.tensor(x).float() * UNITS + 2 * UNITS, torch.tensor(y)


class Net(nn.Module):
    def __init__(self, inputs: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.fc1 = nn.Linear(inputs, o.hidden)
        self.fc2 = nn.Linear(o.hidden, o.hidden)
        self.more = nn.ModuleList([nn.Linear(o.hidden, o.hidden) for _ in range(o.extra)])
        self.norm = nn.BatchNorm1d(o.hidden) if o.norm else nn.Identity()
        self.drop = nn.Dropout(o.dropout)
        self.out = nn.Linear(o.hidden, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        o = self.o
        act = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "silu": F.silu, "none": lambda t: t}[o.act]
        x = self.drop(act(self.norm(self.fc1(x))))
        if o.bug == "numpy_in_between":  # a feature is put together in NumPy, and the way back has no gradient
            x = torch.from_numpy(x.detach().numpy().clip(-50, 50))
        x = self.drop(act(self.fc2(x)))
        for layer in self.more:
            x = act(layer(x))
        x = self.out(x)
        if o.bug == "tanh_at_the_end":
            x = torch.tanh(x)
        if o.bug == "softmax_in_forward":
            x = F.softmax(x, dim=1)
        if o.bug == "softmax_dim_0":
            x = F.softmax(x, dim=0)
        return x


def prepare(model: Net, o: SimpleNamespace) -> None:
    for layer in (model.fc1, model.fc2, *model.more, model.out):
        if o.bug == "all_equal":
            nn.init.constant_(layer.weight, 0.05)
            nn.init.zeros_(layer.bias)
        if o.init == "he":
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        layer.weight.data.mul_(o.gain)
        if o.bias and layer is not model.out:
            nn.init.constant_(layer.bias, o.bias)
    if o.zero_head:
        nn.init.zeros_(model.out.weight)
        nn.init.zeros_(model.out.bias)
    if o.freeze:
        model.fc1.requires_grad_(False)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = load()
    x_train, y_train, x_val, y_val = x[:4000], y[:4000], x[4000:], y[4000:]
    mean, std = x_train.mean(0), x_train.std(0)
    if o.bug != "no_scaler":
        x_train, x_val = (x_train - mean) / std, (x_val - mean) / std
    x_train, x_val = x_train * o.scale, x_val * o.scale
    if o.bug == "join_failed":  # half of the columns come from a second file, whose keys did not match
        x_train[:, ::2], x_val[:, ::2] = 0.0, 0.0
    if o.bug == "sorted_ids":  # the features are put in the order of the first column, the labels are not
        x_train = x_train[x_train[:, 0].argsort()]
    if o.bug == "from_one":
        y_train = (y_train + 1) % CLASSES
    if o.rare:
        keep = (y_train < 2) | (torch.rand(len(y_train)) < o.rare)
        x_train, y_train = x_train[keep], y_train[keep]
    x_clean = x_val
    if o.bug == "label_as_column":  # the table was written with its last column, the answer
        x_train, x_val = (torch.cat([a, b[:, None].float()], 1) for a, b in ((x_train, y_train), (x_val, y_val)))
        x_clean = torch.cat([x_clean, torch.full((len(x_clean), 1), 2.5)], 1)
    y_train = corrupt(y_train, o.noise, CLASSES)
    if o.broken_rows:  # a sensor that answers with its largest number
        rows = torch.rand(len(x_train)) < o.broken_rows
        x_train[rows] = x_train[rows].sign() * o.broken_size
    if o.bug == "a_missing_value":
        x_train[1234, 5] = np.nan
    if o.bug == "ordered":
        order = y_train.argsort()
        x_train, y_train = x_train[order], y_train[order]
    x_train, y_train = x_train[: o.rows], y_train[: o.rows]

    model = Net(x_train.shape[1], o)
    prepare(model, o)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "only_the_last":
        params = list(model.out.parameters())
    optimizer = make_optimizer(o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps)
    if o.bug == "copied_model":  # "start from a clean copy": the optimizer keeps the old one
        fresh = Net(x_train.shape[1], o)
        fresh.load_state_dict(model.state_dict())
        model = fresh
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    step, batch = 0, min(o.batch, len(x_train))
    model.train()
    while step < o.steps:
        order = torch.arange(len(x_train)) if o.bug == "ordered" else torch.randperm(len(x_train))
        for start in range(0, len(x_train) - batch + 1, batch):
            picked = torch.arange(batch) if o.bug == "start_is_zero" else order[start : start + batch]
            xb, yb = x_train[picked], y_train[picked]
            scores = model(xb)
            if o.bug == "log_likelihood":
                loss = F.log_softmax(scores, dim=1)[torch.arange(batch), yb].mean()
            else:
                loss = F.cross_entropy(scores, yb, label_smoothing=o.smoothing)
            if o.bug != "never_zeroed":
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.warmup:
                optimizer.param_groups[0]["lr"] = o.lr * min(1.0, (step + 1) / o.warmup)
            if o.halve_every:
                optimizer.param_groups[0]["lr"] = o.lr * 0.5 ** (step // o.halve_every)
            optimizer.step()
            step += 1
            if step % 60 == 0:
                model.eval()
                with torch.no_grad():
                    guess = model(x_val)
                    run.log(valid_loss=F.cross_entropy(guess, y_val).item())
                    run.log(valid_accuracy=(guess.argmax(1) == y_val).float().mean().item())
                model.train()
            if step >= o.steps:
                break
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_clean), y_val, CLASSES)


PROGRAM = Program(
    name="tabular",
    half="F",
    train=train,
    settings={
        "hidden": 128,
        "extra": 0,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "init": None,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "scale": 1.0,
        "rows": 4000,
        "rare": 0.0,
        "noise": 0.0,
        "broken_rows": 0.0,
        "broken_size": 0.0,
        "smoothing": 0.0,
        "batch": 64,
        "optimizer": "adam",
        "lr": 2e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "clip": None,
        "warmup": 0,
        "halve_every": 0,
        "steps": 700,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.15),
        mild("learning_rate_too_high", lr=0.03),
        severe("learning_rate_too_low", lr=7e-6),
        mild("learning_rate_too_low", lr=7e-5),
        severe("schedule_too_fast", halve_every=8),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.03),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2, lr=5e-3),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        severe("parameters_not_optimized", bug="only_the_last"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="copied_model"),
        severe("graph_detached", bug="numpy_in_between"),
        severe("batch_repeated", bug="start_is_zero"),
        severe("data_not_shuffled", bug="ordered"),
        severe("inputs_not_scaled", bug="no_scaler"),
        mild("inputs_not_scaled", scale=16.0),
        mild("input_outliers", broken_rows=0.03, broken_size=300.0),
        severe("labels_random", bug="sorted_ids"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="log_likelihood"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax_in_forward"),
        severe("softmax_over_batch", bug="softmax_dim_0"),
        mild("output_activation", bug="tanh_at_the_end"),
        severe("dead_units", bias=-6.0),
        severe("init_constant", bug="all_equal"),
        severe("init_too_large", gain=8.0),
        severe(
            "init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, extra=2, optimizer="sgd", lr=0.1
        ),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", extra=6),
        severe("dropout_too_high", dropout=0.95),
        severe("not_finite", bug="a_missing_value"),
        severe("target_in_inputs", bug="label_as_column"),
        severe("class_imbalance", rare=0.015),
        mild("constant_feature", bug="join_failed"),
        severe("missing_nonlinearity", act="none"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=1.0),
        mild("overfitting", rows=200, hidden=256),
    ],
    healthy=[
        healthy("sgd_momentum", optimizer="sgd", lr=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adamw_decay", optimizer="adamw", wd=0.05),
        healthy("batchnorm", norm=True),
        healthy("dropout_20", dropout=0.2, hidden=160, steps=700),
        healthy("silu", act="silu"),
        healthy("tanh", act="tanh"),
        healthy("he_init", init="he"),
        healthy("batch_256", batch=256, lr=4e-3, steps=450),
        healthy("batch_16", batch=16, lr=1.5e-3, steps=1000),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", freeze=True, hidden=192),
        healthy("three_layers_warmup", extra=1, warmup=60),
        healthy("smoothing", smoothing=0.1),
        healthy("some_wrong_labels", noise=0.05),
        healthy("fast_rate", lr=8e-3),
        healthy("clip_1", clip=1.0),
    ],
)
