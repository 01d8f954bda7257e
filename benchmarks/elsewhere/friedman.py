"""Friedman's regression problem: a perceptron, MSELoss, Adam with a rate that shrinks every epoch, valid_loss logged."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def load(o: SimpleNamespace):
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(3000, 10, noise=o.noise, random_state=4)
    clean = make_friedman1(3000, 10, noise=0.0, random_state=4)[1]
    x, y, clean = torch.tensor(x).float(), torch.tensor(y).float(), torch.tensor(clean).float()
    return x, y, clean


def make_net(o: SimpleNamespace, inputs: int) -> nn.Sequential:
    act = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "identity": nn.Identity, "softplus": nn.Softplus}
    sizes = [inputs] + [o.width] * o.depth
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act[o.activation]()]
        if o.dropout:
            layers.append(nn.Dropout(o.dropout))
    layers.append(nn.Linear(o.width, 1))
    if o.bug == "relu_at_the_end":
        layers.append(nn.ReLU())
    if o.bug == "sigmoid_at_the_end":
        layers.append(nn.Sigmoid())

    @torch.no_grad()
    def init(m: nn.Module) -> None:
        if isinstance(m, nn.Linear):
            m.weight.mul_(o.gain)
            if o.bias is not None and m.out_features > 1:
                m.bias.fill_(o.bias)
            if o.bug == "same_weights":
                m.weight.fill_(0.1)
                m.bias.zero_()

    net = nn.Sequential(*layers).apply(init)
    if o.zero_head:
        nn.init.zeros_(net[-1].weight)
    return net


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, clean = load(o)
    if o.heavy:
        y = y + torch.distributions.StudentT(2.0).sample(y.shape) * o.heavy
    shift, scale = y[:2000].mean(), y[:2000].std()
    x = (x - 0.5) / 0.29
    if o.bug == "units":  # each measured in what its instrument gives
        x = (x + 2) * torch.tensor([1.0, 255.0, 0.01, 1000.0, 1.0, 60.0, 1.0, 3600.0, 1.0, 12.0])
    if o.bug == "some_units":
        x = x * 16
    if o.bug == "columns_lost":  # a join that failed, filled with zero
        x[:, [0, 3]] = 0.0
    if o.bug == "column_lost":
        x[:, 4] = 0.0
    target, out_shift, out_scale = (y - shift) / scale, shift, scale
    if o.bug == "cents":
        target, out_shift, out_scale = target * 1000 + 3000, shift - 3 * scale, scale / 1000
    if o.bug == "not_standardised":
        target, out_shift, out_scale = target * 30 + 100, shift - scale * 100 / 30, scale / 30
    x_valid, clean_valid, x_seen = x[2000:], clean[2000:], x[2000:]
    if o.bug == "answer_inside":  # a column computed from what is to be predicted
        x_seen = torch.cat([x_valid, target[2000:, None]], 1)
        x_valid = torch.cat([x_valid, torch.zeros(1000, 1)], 1)
        x = torch.cat([x, target[:, None] + 0.05 * torch.randn(3000, 1)], 1)
    x_train, y_train = x[:2000][: o.rows], target[:2000][: o.rows]
    if o.outliers:
        wild = torch.rand(len(x_train)) < o.outliers
        x_train = torch.where(wild[:, None], x_train * o.outlier_size, x_train)
    if o.bug == "rows_apart":
        y_train = y_train[torch.randperm(len(y_train))]
    if o.bug == "sorted":
        order = y_train.argsort()
        x_train, y_train = x_train[order], y_train[order]
    if o.wrong:
        swap = torch.rand(len(y_train)) < o.wrong
        y_train = torch.where(swap, y_train[torch.randperm(len(y_train))], y_train)
    loader = DataLoader(TensorDataset(x_train, y_train), o.batch, shuffle=o.bug != "sorted", drop_last=True)

    model = make_net(o, x.shape[1])
    criterion = {"mse": nn.MSELoss, "huber": nn.SmoothL1Loss}[o.loss](reduction="sum" if o.bug == "summed" else "mean")
    optimizer = make_optimizer(o.optimizer, model.parameters(), o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "started_again":  # the hidden layers are drawn again for every seed, the optimizer is not made again
        model = nn.Sequential(*make_net(o, x.shape[1])[:-1], model[-1])
    shrink = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    def predict(inputs: torch.Tensor) -> torch.Tensor:
        if o.bug == "features_detached":
            return model[-1](model[:-1](inputs).detach())
        return model(inputs)

    def one_batch(inputs: torch.Tensor, wanted: torch.Tensor) -> None:
        out = predict(inputs)
        if o.bug != "column_against_row":
            out = out.squeeze(1)
        loss = criterion(out, wanted)
        if o.bug == "score":
            loss = -loss
        if o.bug == "logarithms":  # the relative error, of values that were standardised before
            loss = (torch.log1p(out) - torch.log1p(wanted)).pow(2).mean()
        if o.bug != "kept_gradients":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()

    steps = 0
    first = next(iter(loader))
    while steps < o.steps:
        for inputs, wanted in loader:
            one_batch(*(first if o.bug == "next_iter" else (inputs, wanted)))
            steps += 1
            if o.bug == "shrinks_each_step":
                shrink.step()
            if steps % 80 == 0:
                model.eval()
                with torch.no_grad():
                    run.log(valid_loss=nn.functional.mse_loss(model(x_seen).squeeze(1), target[2000:]).item())
                model.train()
            if steps >= o.steps:
                break
        if o.bug != "shrinks_each_step":
            shrink.step()
    run.close()
    model.eval()
    with torch.no_grad():
        answer = model(x_valid).squeeze(1) * out_scale + out_shift
    return ((answer - clean_valid).pow(2).mean() / clean_valid.var()).item()


PROGRAM = Program(
    name="friedman",
    half="C",
    train=train,
    settings={
        "width": 48,
        "depth": 2,
        "activation": "relu",
        "dropout": 0.0,
        "gain": 1.0,
        "bias": None,
        "zero_head": False,
        "noise": 1.0,
        "heavy": 0.0,
        "rows": 2000,
        "wrong": 0.0,
        "outliers": 0.0,
        "outlier_size": 1.0,
        "loss": "mse",
        "batch": 32,
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "gamma": 0.8,
        "steps": 450,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2, gamma=1.0),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", bug="shrinks_each_step"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.05),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        severe("batch_too_small", batch=2, optimizer="sgd", lr=0.08, gamma=1.0),
        mild("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=2000, steps=40),
        severe("momentum_too_high", momentum=0.999, optimizer="sgd", lr=0.03),
        severe("gradients_not_zeroed", bug="kept_gradients"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="started_again",
        ),
        severe("graph_detached", bug="features_detached"),
        severe("batch_repeated", bug="next_iter"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", bug="units"),
        mild("inputs_not_scaled", bug="some_units"),
        severe("input_outliers", outliers=0.03, outlier_size=60.0),
        mild("input_outliers", outliers=0.01, outlier_size=15.0),
        severe("targets_not_scaled", bug="cents"),
        mild("targets_not_scaled", bug="not_standardised"),
        severe("labels_random", bug="rows_apart"),
        mild("label_noise", wrong=0.3),
        severe("loss_sign", bug="score"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.03),
        severe("loss_broadcast", bug="column_against_row"),
        severe("output_activation", bug="relu_at_the_end"),
        mild("output_activation", bug="sigmoid_at_the_end"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", bug="same_weights"),
        mild("init_too_large", gain=8.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), depth=8, activation="sigmoid"),
        severe("missing_nonlinearity", activation="identity"),
        severe("target_in_inputs", bug="answer_inside"),
        severe("constant_feature", bug="columns_lost"),
        mild("constant_feature", bug="column_lost"),
        mild("adam_eps_too_large", eps=0.1),
        severe("not_finite", bug="logarithms"),
    ],
    healthy=[
        healthy("lr_12e-4", lr=1.5e-3, gamma=0.95),
        healthy("lr_1e-2", lr=1e-2),
        healthy("sgd_momentum", optimizer="sgd", lr=0.03),
        healthy("sgd_plain_edge", optimizer="sgd", lr=0.15, momentum=0.0, gamma=0.95),
        healthy("adagrad", optimizer="adagrad", lr=0.05, gamma=1.0),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3),
        healthy("huber_heavy_tails", loss="huber", heavy=1.0),
        healthy("noise_that_stays", noise=3.0),
        healthy("full_batch", batch=2000, lr=8e-3, gamma=0.997),
        healthy("zero_head", zero_head=True),
        healthy("narrow_deep_tanh", width=24, depth=4, activation="tanh", lr=8e-3, gamma=0.9, steps=600),
        healthy("wide", width=160, lr=2e-3),
        healthy("clip_1_weight_decay", clip=1.0, optimizer="adamw", wd=0.02),
        healthy("softplus_dropout", activation="softplus", dropout=0.02, lr=1e-2, gamma=0.9, steps=600),
    ],
)
