"""The first network of every course: LeNet on digits, log_softmax and NLLLoss, SGD with momentum in a bare loop, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate


class LeNet(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        w = o.width
        self.conv1 = nn.Conv2d(1, w, 3, padding=1)
        self.conv2 = nn.Conv2d(w, 2 * w, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(w) if o.norm else nn.Identity()
        self.bn2 = nn.BatchNorm2d(2 * w) if o.norm else nn.Identity()
        self.fc1 = nn.Linear(2 * w * 16, 60)
        self.extra = nn.ModuleList([nn.Linear(60, 60) for _ in range(o.extra)])
        self.fc2 = nn.Linear(60, 42)
        self.fc3 = nn.Linear(42, 10)
        self.dropout = nn.Dropout(o.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        o = self.o
        f = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu, "none": lambda t: t}[o.act]
        x = F.max_pool2d(f(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(f(self.bn2(self.conv2(x))), 2)
        if o.bug == "data_view":  # as in code of 2017
            x = x.data.view(-1, x.shape[1] * 16)
        x = x.flatten(1)
        x = f(self.fc1(x))
        for layer in self.extra:
            x = f(layer(x))
        x = self.dropout(f(self.fc2(x)))
        x = self.fc3(x)
        if o.bug == "relu_on_scores":
            x = F.relu(x)
        if o.bug == "no_log":
            return F.softmax(x, dim=1)
        if o.bug == "log_by_hand":
            return torch.log(F.softmax(x, dim=1))
        if o.bug == "wrong_dim":
            return F.log_softmax(x, dim=0)
        return F.log_softmax(x, dim=1)


def weights_init(o: SimpleNamespace):
    @torch.no_grad()
    def init(m: nn.Module) -> None:
        if not isinstance(m, nn.Conv2d | nn.Linear):
            return
        if o.init == "zeros":
            m.weight.zero_()
            m.bias.zero_()
        elif o.init == "xavier":
            nn.init.xavier_uniform_(m.weight)
            m.bias.zero_()
        elif o.init == "kaiming":
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            m.bias.zero_()
        elif isinstance(o.init, float):
            m.weight.normal_(0.0, o.init)
        if o.bias is not None and len(m.bias) != 10:
            m.bias.fill_(o.bias)

    return init


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_test, y_test = digits(seed)
    if o.bug == "bytes":
        x, x_test = x * 15.9, x_test * 15.9
    elif o.bug != "not_divided":
        x, x_test = x / 16, x_test / 16
        if o.centred:
            x, x_test = (x - 0.305) / 0.376, (x_test - 0.305) / 0.376
    x, x_test = (F.interpolate(t.unsqueeze(1), scale_factor=2, mode="bilinear") for t in (x, x_test))
    if o.bug == "reshaped":  # the file holds height, width, image: reshape does not turn the axes
        x = x[:, 0].permute(1, 2, 0).reshape(-1, 1, 16, 16)
    if o.bug == "shuffled_apart":
        y = y[torch.randperm(len(y))]
    if o.bug == "one_based":
        y = (y + 1) % 10
    y = corrupt(y, o.noise, 10)
    if o.bug == "by_class":
        order = y.argsort()
        x, y = x[order], y[order]
    x, y = x[: o.rows], y[: o.rows]

    model = LeNet(o)
    model.apply(weights_init(o))
    if o.zero_head:
        nn.init.zeros_(model.fc3.weight)
    if o.freeze:
        model.conv1.requires_grad_(False)
    params = model.fc3.parameters() if o.bug == "head_only" else [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, nesterov=o.nesterov, eps=1e-8
    )
    if o.bug == "layers_put_in":
        fresh = LeNet(o)  # convolutions that a colleague had trained, put in after the optimizer was made
        model.conv1, model.conv2, model.fc1 = fresh.conv1, fresh.conv2, fresh.fc1
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=o.step_size, gamma=o.gamma)
    criterion = nn.NLLLoss()
    run = cockpit_core.track(model, criterion, optimizer, logdir)

    step = 0
    model.train()
    if o.bug == "still_eval":  # a test before the first epoch, and no way back
        model.eval()
    while step < o.steps:
        perm = torch.arange(len(x)) if o.bug in ("by_class", "always_first") else torch.randperm(len(x))
        for i in range(0, len(x) - o.batch + 1, o.batch):
            idx = perm[: o.batch] if o.bug == "always_first" else perm[i : i + o.batch]
            images, labels = x[idx], y[idx]
            if o.bug != "no_zero_grad":
                optimizer.zero_grad()
            output = model(images)
            if o.bug == "by_hand":  # the mean log-likelihood of the right class; its minus was forgotten
                loss = output.gather(1, labels[:, None]).mean()
            else:
                loss = criterion(output, labels)
            loss.backward()
            if o.clip_norm:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip_norm)
            optimizer.step()
            if o.bug == "scheduler_inside":
                scheduler.step()
            step += 1
            if step >= o.steps:
                break
        if o.bug != "scheduler_inside":
            scheduler.step()
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_test), y_test, 10)


PROGRAM = Program(
    name="lenet",
    half="E",
    train=train,
    settings={
        "width": 6,
        "extra": 0,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "zero_head": False,
        "freeze": False,
        "centred": True,
        "rows": 1347,
        "noise": 0.0,
        "batch": 32,
        "optimizer": "sgd",
        "lr": 0.02,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 0.0,
        "step_size": 5,
        "gamma": 0.5,
        "clip_norm": None,
        "steps": 420,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.6),
        mild("learning_rate_too_high", lr=0.07, gamma=1.0),
        mild("learning_rate_too_low", lr=3e-3),
        severe("schedule_too_fast", bug="scheduler_inside"),
        mild("clipping_too_hard", clip_norm=0.1),
        mild("weight_decay_too_high", wd=0.025),
        severe("momentum_too_high", momentum=0.99),
        severe("gradients_not_zeroed", bug="no_zero_grad", lr=0.05),
        severe("parameters_not_optimized", bug="head_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="layers_put_in",
        ),
        severe("graph_detached", bug="data_view"),
        severe("batch_repeated", bug="always_first"),
        severe("data_not_shuffled", bug="by_class"),
        severe("inputs_not_scaled", bug="bytes"),
        mild("inputs_not_scaled", bug="not_divided", lr=0.08),
        severe("labels_random", bug="shuffled_apart"),
        severe("inputs_scrambled", "labels_random", bug="reshaped"),
        mild("label_noise", noise=0.6),
        severe("loss_sign", bug="by_hand"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="no_log"),
        severe("softmax_over_batch", bug="wrong_dim"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_on_scores"),
        severe("dead_units", bias=-3.0),
        severe("init_constant", init="zeros"),
        mild("init_too_large", init=0.32),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", extra=2),
        mild("dropout_too_high", dropout=0.9),
        severe("eval_mode", bug="still_eval", norm=True, init=0.02),
        mild("overfitting", rows=96, gamma=1.0),
        severe("labels_off_by_one", bug="one_based"),
        severe("not_finite", ("not_finite", "inputs_not_scaled"), bug="log_by_hand", init=0.5),
    ],
    healthy=[
        healthy("nesterov", nesterov=True),
        healthy("sgd_without_momentum", momentum=0.0, lr=0.2),
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adagrad", optimizer="adagrad", lr=0.02, gamma=1.0),
        healthy("batchnorm", norm=True, lr=0.05),
        healthy("batchnorm_init_002", norm=True, init=0.02, lr=0.05),
        healthy("tanh_xavier", act="tanh", init="xavier", lr=0.05),
        healthy("gelu_wide", act="gelu", width=10, steps=350),
        healthy("dropout_half", dropout=0.5, steps=600),
        healthy("decay_1e-3", wd=1e-3),
        healthy("not_centred", centred=False, lr=0.04),
        healthy("batch_128", batch=128, lr=0.08, steps=250, step_size=10),
        healthy("batch_8", batch=8, lr=0.006, steps=800, step_size=2),
        healthy("zero_head", zero_head=True),
        healthy("kaiming_clip_5", init="kaiming", clip_norm=5.0),
        healthy("first_layer_frozen", freeze=True),
        healthy("constant_rate", gamma=1.0),
    ],
)
