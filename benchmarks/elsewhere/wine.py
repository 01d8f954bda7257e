"""Five regions of wine from a table of twenty measurements (make_classification), in raw units that a StandardScaler
takes out: BatchNorm and dropout in an nn.Sequential, CrossEntropyLoss, Adam, DataLoader, ReduceLROnPlateau."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

REGIONS, COLUMNS, TRAIN = 5, 20, 2400


def load(o: SimpleNamespace):
    X, y = make_classification(
        n_samples=3200,
        n_features=COLUMNS,
        n_informative=10,
        n_redundant=4,
        n_classes=REGIONS,
        n_clusters_per_class=3,
        class_sep=1.6,
        flip_y=0.0,
        random_state=3,
    )
    units = 10 ** np.random.RandomState(0).uniform(-1.5, 3.0, COLUMNS)  # ash in g/l, magnesium in mg/l, alcohol in %
    X = X * units + 4 * units
    X_train, y_train, X_valid, y_valid = X[:TRAIN], y[:TRAIN], X[TRAIN:], y[TRAIN:]
    if o.rows < TRAIN:
        X_train, y_train = X_train[: o.rows], y_train[: o.rows]
    if o.imbalance > 1:
        keep = (y_train == 0) | (np.arange(len(y_train)) % int(o.imbalance) == 0)
        X_train, y_train = X_train[keep], y_train[keep]
    if o.scaler:
        scaler = StandardScaler().fit(X_train)
        if o.bug == "constant_column":  # a column that the sheet left empty, divided by its own spread
            X_train[:, 4], X_valid[:, 4] = 12.0, 12.0
            scaler.scale_[4], scaler.mean_[4] = 0.0, 12.0
        X_train, X_valid = scaler.transform(X_train), scaler.transform(X_valid)
    if o.bug == "filled_columns":  # most columns were not found under their names and filled in
        X_train[:, :14], X_valid[:, :14] = 0.0, 0.0
    if o.bug == "label_column":
        X_train[:, -1], X_valid[:, -1] = y_train * 1.0 - 2, 0.0
    if o.bug == "sorted":
        order = np.argsort(y_train, kind="stable")
        X_train, y_train = X_train[order], y_train[order]
    if o.bug == "shuffled_apart":
        np.random.RandomState(1).shuffle(y_train)
    if o.bug == "from_one":
        y_train = np.maximum(y_train - 1, 0)  # "labels start at one"
    x, xv = torch.tensor(X_train, dtype=torch.float32), torch.tensor(X_valid, dtype=torch.float32)
    y, yv = torch.tensor(y_train), torch.tensor(y_valid)
    if o.outliers:
        x[torch.rand(len(x)) < o.outliers] *= o.outlier_size
    return TensorDataset(x, corrupt(y, o.mislabelled, REGIONS)), xv, yv


def build(o: SimpleNamespace) -> nn.Sequential:
    act = {"relu": nn.ReLU, "gelu": nn.GELU, "elu": nn.ELU, "none": nn.Identity}[o.act]
    layers: list[nn.Module] = []
    n = COLUMNS
    for _ in range(o.depth):
        layers.append(nn.Linear(n, o.width))
        if o.norm:
            layers.append(nn.BatchNorm1d(o.width, momentum=o.bn_momentum))
        layers += [act(), nn.Dropout(o.dropout)]
        n = o.width
    model = nn.Sequential(*layers, nn.Linear(n, REGIONS))
    with torch.no_grad():
        for m in model:
            if isinstance(m, nn.Linear) and o.constant is not None:
                m.weight.fill_(o.constant)
                m.bias.zero_()
            if isinstance(m, (nn.BatchNorm1d, nn.Linear)) and m is not model[-1] and o.shift:
                m.bias.fill_(o.shift)
            if isinstance(m, nn.Linear) and o.init == "kaiming":
                nn.init.kaiming_normal_(m.weight)
        if o.zero_head:
            nn.init.zeros_(model[-1].weight)
    return model


def criterion_for(o: SimpleNamespace) -> nn.Module:
    return nn.CrossEntropyLoss(reduction=o.reduction, label_smoothing=o.smoothing)


def optimizer_for(model: nn.Sequential, o: SimpleNamespace) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if o.bug == "head_only":
        parameters = list(model[-1].parameters())
    if o.freeze_first:
        for p in model[0].parameters():
            p.requires_grad_(False)
        parameters = [p for p in parameters if p.requires_grad]
    return make_optimizer(
        o.optimizer, parameters, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps, betas=(o.beta1, 0.999)
    )


def validate(model: nn.Sequential, xv: torch.Tensor, yv: torch.Tensor, stay: bool = False) -> tuple[float, float]:
    model.eval()
    with torch.no_grad():
        scores = model(xv)
        loss = nn.functional.cross_entropy(scores, yv).item()
        accuracy = (scores.argmax(1) == yv).float().mean().item()
    if not stay:
        model.train()
    return loss, accuracy


def before(o: SimpleNamespace, dataset: TensorDataset) -> tuple[dict, dict]:
    """An earlier phase on the same table: the states of the model and of the optimizer."""
    model = build(o)
    opt = optimizer_for(model, o)
    for _ in range(o.earlier):
        rows = torch.randint(0, len(dataset), (64,))
        x, y = dataset[rows]
        opt.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        opt.step()
    return model.state_dict(), opt.state_dict()


def predict(model: nn.Sequential, x: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    if o.bug == "features_data":
        out = model[-1](model[:-1](x).data)
    else:
        out = model(x)
    return torch.softmax(out, 1) if o.bug == "softmax_first" else out


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    dataset, xv, yv = load(o)
    loader = DataLoader(dataset, batch_size=min(o.batch, len(dataset)), shuffle=o.bug != "sorted", drop_last=True)
    state = before(o, dataset) if o.earlier else None
    model = build(o)
    if state:
        model.load_state_dict(state[0])
    criterion, opt = criterion_for(o), optimizer_for(model, o)
    if state and o.resume:
        opt.load_state_dict(state[1])
    if o.bug == "copied_model":
        model = copy.deepcopy(model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=2) if o.plateau else None
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, o.gamma)
    run = cockpit_core.track(model, criterion, opt, logdir=logdir)

    step, epoch, micro = 0, 0, 0
    last_check = 0
    while step < o.steps:
        for x, y in loader:
            if o.bug == "first_batch":
                x, y = dataset[: o.batch]
            if micro % (o.accumulate * o.zero_every) == 0:
                opt.zero_grad()
            loss = criterion(predict(model, x, o), y)
            if o.bug == "maximised":
                loss = -loss
            (loss / o.accumulate).backward()
            micro += 1
            if micro % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.bug != "no_step":
                opt.step()
            if o.gamma < 1:
                decay.step()
            step += 1
            if step >= o.steps:
                break
        epoch += 1
        if step - last_check >= 35 or step >= o.steps:
            last_check = step
            loss, accuracy = validate(model, xv, yv, stay=o.bug == "stays_in_eval")
            run.log(valid_loss=loss, valid_accuracy=accuracy)
            if plateau:
                plateau.step(loss)
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(xv), yv, REGIONS)


LOW = ("learning_rate_too_low", "nothing_moves")
PROGRAM = Program(
    name="wine",
    half="H",
    train=train,
    settings={
        "rows": TRAIN,
        "imbalance": 1,
        "scaler": True,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "mislabelled": 0.0,
        "width": 96,
        "depth": 2,
        "act": "relu",
        "norm": True,
        "bn_momentum": 0.1,
        "dropout": 0.1,
        "constant": None,
        "shift": 0.0,
        "init": "default",
        "zero_head": False,
        "freeze_first": False,
        "earlier": 0,
        "resume": False,
        "batch": 64,
        "accumulate": 1,
        "zero_every": 1,
        "reduction": "mean",
        "smoothing": 0.0,
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "beta1": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "plateau": True,
        "gamma": 1.0,
        "clip": None,
        "steps": 500,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.6),
        severe("learning_rate_too_low", LOW, lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", gamma=0.95),
        mild("schedule_too_fast", gamma=0.98),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.05),
        severe("weight_decay_too_high", wd=0.3),
        severe("batch_too_small", ("batch_too_small", "batchnorm_few_samples"), batch=2),
        severe("batchnorm_momentum", bn_momentum=1e-4),
        severe("gradients_not_zeroed", zero_every=1000),
        severe("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="copied_model"),
        severe("nothing_moves", ("nothing_moves", "parameters_not_optimized"), bug="no_step"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="features_data"),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaler=False),
        severe("input_outliers", outliers=0.03),
        severe("labels_random", bug="shuffled_apart"),
        severe("label_noise", mislabelled=0.5),
        severe("labels_off_by_one", bug="from_one"),
        severe("loss_sign", bug="maximised"),
        severe("dead_units", shift=-4.0),
        mild("double_softmax", ("double_softmax", "output_activation"), bug="softmax_first"),
        severe("init_constant", constant=0.05, dropout=0.0),
        severe("missing_nonlinearity", act="none"),
        severe("dropout_too_high", dropout=0.97),
        severe("class_imbalance", imbalance=50),
        severe("target_in_inputs", bug="label_column"),
        severe("constant_feature", bug="filled_columns"),
        severe("overfitting", rows=120, dropout=0.0),
        severe("not_finite", bug="constant_column"),
    ],
    healthy=[
        healthy("rate_third", lr=1.5e-3),
        healthy("rate_triple", lr=0.012),
        healthy("constant_rate", plateau=False),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1),
        healthy("adamw", optimizer="adamw", wd=0.05),
        healthy("nadam", optimizer="nadam", lr=2e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.04, plateau=False),
        healthy("batch_32", batch=32),
        healthy("batch_256", batch=256, lr=6e-3, steps=300),
        healthy("whole_table", batch=TRAIN, lr=0.015, steps=250),
        healthy("accumulated", batch=16, accumulate=4, steps=400),
        healthy("wide_gelu", width=192, act="gelu"),
        healthy("deep", depth=4),
        healthy("no_norm", norm=False, lr=2e-3),
        healthy("no_dropout", dropout=0.0),
        healthy("kaiming", init="kaiming"),
        healthy("zero_head", zero_head=True),
        healthy("smoothing", smoothing=0.05),
        healthy("slow_decay", gamma=0.995, plateau=False),
        healthy("clip_2", clip=2.0),
        healthy("resumed", earlier=200, resume=True, steps=300),
        healthy("fine_tuned", earlier=300, lr=1.5e-3, freeze_first=True, steps=250),
        healthy("few_labels_wrong", mislabelled=0.03),
        healthy("longer", steps=900),
    ],
)
