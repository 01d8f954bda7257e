"""Which water wells work: a table of ten columns, an MLP with one logit, RMSprop. A notebook, top to bottom."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

COLUMNS = ["depth", "arsenic", "distance", "age", "chloride", "head", "rainfall", "households", "iron", "elevation"]


def survey(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n wells in the units of the survey's form, and whether water comes out."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, len(COLUMNS), generator=g)
    score = 1.1 * z[:, 0] * z[:, 1] + 1.4 * torch.sin(1.6 * z[:, 2]) + 0.9 * z[:, 3] - 0.8 * z[:, 4] * z[:, 5].abs()
    score = score + 0.9 * (z[:, 6] > 0.3) - 0.45 + 0.4 * z[:, 7] + 0.12 * torch.randn(n, generator=g)
    unit = torch.tensor([11.0, 25.0, 420.0, 6.5, 90.0, 2.4, 310.0, 14.0, 0.02, 55.0])
    usual = torch.tensor([38.0, 80.0, 1500.0, 19.0, 270.0, 7.0, 1400.0, 45.0, 0.06, 210.0])
    return usual + unit * z, (score > 0).float()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    # ---- 1. read the table
    x, y = survey(3200, 41)
    x_valid, y_valid = survey(1000, 42)

    # ---- 2. clean and scale
    if o.missing:  # the form's code for a value nobody wrote down
        x[torch.rand(x.shape) < o.missing] = 99999.0
    if o.bug == "int_columns":  # came out of the file as one and the same default for the whole column
        x[:, [0, 2]] = 0.0
    mean, std = x.mean(0), x.std(0)
    if o.bug == "int_columns":
        std[[0, 2]] = x_valid[:, [0, 2]].std(0)
        mean[[0, 2]] = x_valid[:, [0, 2]].mean(0)
    if o.scaling == "standard":
        x, x_valid = (x - mean) / std, (x_valid - mean) / std
    elif o.scaling == "robust":
        middle = x.median(0).values
        spread = x.quantile(0.75, 0) - x.quantile(0.25, 0)
        x, x_valid = (x - middle) / spread, (x_valid - middle) / spread
    x, x_valid = x * o.factor, x_valid * o.factor
    x_clean = x_valid
    if o.bug == "log_of_zero":  # a log column; some wells have a recorded yield of zero
        yields = (torch.rand(len(x)) * 5 - 0.05).clamp(min=0)
        x[:, 9] = yields.log()
    if o.bug == "answer_kept":  # the answer was not dropped from the columns
        x = torch.cat([x, 2 * y[:, None] - 1], 1)
        x_valid = torch.cat([x_valid, 2 * y_valid[:, None] - 1], 1)
        x_clean = torch.cat([x_clean, torch.zeros(len(x_clean), 1)], 1)
    if o.bug == "joined_badly":
        y = y[torch.randperm(len(y))]
    if o.bug == "coded_one_two":
        y = y + 1
    if o.noise:
        y = torch.where(torch.rand(len(y)) < o.noise, 1 - y, y)
    if o.rare:
        keep = (y == 0) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.rows:
        x, y = x[: o.rows], y[: o.rows]
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    n = len(x)
    batch = n if o.batch == "all" else o.batch

    # ---- 3. the model
    act = {
        "relu": nn.ReLU,
        "elu": nn.ELU,
        "silu": nn.SiLU,
        "gelu": nn.GELU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "none": nn.Identity,
    }
    layers: list[nn.Module] = []
    if o.norm_inputs:
        layers.append(nn.BatchNorm1d(x.shape[1]))
    inputs = x.shape[1]
    for _ in range(o.hidden):
        layers.append(nn.Linear(inputs, o.width))
        if o.norm == "batch":
            layers.append(nn.BatchNorm1d(o.width, momentum=o.bn_momentum))
        if o.norm == "layer":
            layers.append(nn.LayerNorm(o.width))
        layers.append(act[o.act]())
        if o.dropout > 0:
            layers.append(nn.Dropout(o.dropout))
        inputs = o.width
    layers.append(nn.Linear(o.width, 1))
    if o.end == "sigmoid":
        layers.append(nn.Sigmoid())
    if o.end == "relu":
        layers.append(nn.ReLU())
    model = nn.Sequential(*layers)
    linear = [m for m in model if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for layer in linear:
            layer.weight.mul_(o.gain)
            if o.gain == 0:
                layer.bias.zero_()
        for layer in linear[:-1]:
            layer.bias.add_(o.shift)
        if o.zero_head:
            linear[-1].weight.zero_()
            linear[-1].bias.zero_()
    if o.pretrain:  # other wells, surveyed before
        x_old, y_old = survey(1500, 43)
        x_old = (x_old - mean) / std
        first = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(o.pretrain):
            i = torch.randint(0, 1500, (64,))
            first.zero_grad()
            F.binary_cross_entropy_with_logits(model(x_old[i]).squeeze(1), y_old[i]).backward()
            first.step()
    if o.freeze:
        linear[0].requires_grad_(False)
    print(model)

    # ---- 4. loss, optimizer, schedule
    loss_fn = nn.BCEWithLogitsLoss(reduction=o.reduction)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "last_layer_only":
        parameters = list(linear[-1].parameters())
    optimizer = make_optimizer(
        o.optimizer, parameters, o.lr, momentum=o.momentum, weight_decay=o.decay, eps=o.eps, alpha=o.alpha
    )
    if o.bug == "made_anew":
        model = copy.deepcopy(model)
    if o.schedule == "onecycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, o.lr * 2, total_steps=o.steps + 1)
    else:
        curve = {
            "constant": lambda s: 1.0,
            "cosine": lambda s: 0.5 + 0.5 * math.cos(math.pi * min(s / (o.steps * o.until), 1)),
            "warmup": lambda s: min(1.0, (s + 1) / 60) * (1 - s / (o.steps + 1)),
            "exp": lambda s: o.gamma**s,
        }[o.schedule]
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, curve)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    # ---- 5. train
    model.train(o.bug != "eval")
    done, back = 0, 0
    while done < o.steps:
        shuffled = torch.randperm(n) if o.bug != "sorted" else torch.arange(n)
        for rows in shuffled.split(batch):
            if len(rows) < batch:
                continue
            if back % o.accumulate == 0 and o.bug != "no_zero_grad":
                optimizer.zero_grad()
            logits = model(x[rows])
            target = y[rows] * (1 - o.smooth) + 0.5 * o.smooth
            loss = loss_fn(logits.squeeze(1), target)
            if o.divide:
                loss = loss / o.accumulate
            loss.backward()
            back += 1
            if back % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            scheduler.step()
            done += 1
            if done % 100 == 0:
                model.eval()
                with torch.no_grad():
                    v = model(x_valid).squeeze(1)
                    right = ((v > 0) == (y_valid > 0.5)).float().mean().item()
                    run.log(valid_loss=F.binary_cross_entropy_with_logits(v, y_valid).item(), valid_accuracy=right)
                model.train(o.bug != "eval")
            if done == o.steps:
                break
    run.close()

    # ---- 6. how good is it?
    model.eval()
    with torch.no_grad():
        v = model(x_clean).squeeze(1)
    if not torch.isfinite(v).all():
        return math.inf
    cut = 0.5 if o.end == "sigmoid" else 0.0
    return ((v > cut) != (y_valid > 0.5)).float().mean().item() / 0.5


PROGRAM = Program(
    name="wells",
    half="M",
    train=train,
    settings={
        "scaling": "standard",
        "factor": 1.0,
        "missing": 0.0,
        "noise": 0.0,
        "rare": 0.0,
        "rows": None,
        "smooth": 0.0,
        "hidden": 3,
        "width": 128,
        "act": "relu",
        "end": None,
        "norm": None,
        "norm_inputs": False,
        "bn_momentum": 0.1,
        "dropout": 0.0,
        "gain": 1.0,
        "shift": 0.0,
        "zero_head": False,
        "freeze": False,
        "pretrain": 0,
        "reduction": "mean",
        "optimizer": "rmsprop",
        "lr": 2e-3,
        "alpha": 0.98,
        "momentum": 0.0,
        "eps": 1e-8,
        "decay": 0.0,
        "schedule": "cosine",
        "until": 1.0,
        "gamma": 1.0,
        "clip": None,
        "batch": 80,
        "accumulate": 1,
        "divide": True,
        "steps": 600,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.06, schedule="constant"),
        mild("learning_rate_too_low", lr=7e-5),
        mild("schedule_too_fast", schedule="exp", gamma=0.97),
        mild("clipping_too_hard", optimizer="sgd", lr=0.1, momentum=0.9, clip=0.02),
        mild("weight_decay_too_high", decay=0.04),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", ("momentum_too_high", "learning_rate_too_high"), momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad", optimizer="sgd", lr=0.1, momentum=0.9),
        mild("parameters_not_optimized", bug="last_layer_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="made_anew"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        mild("inputs_not_scaled", factor=40.0),
        severe("input_outliers", ("input_outliers", "inputs_not_scaled"), missing=0.02),
        severe("labels_random", bug="joined_badly"),
        mild("label_noise", noise=0.3),
        mild("output_activation", ("output_activation", "double_softmax"), end="sigmoid"),
        severe("dead_units", shift=-4.0),
        severe("init_constant", gain=0.0),
        mild("init_too_large", gain=8.0),
        mild("dropout_too_high", dropout=0.8),
        severe("class_imbalance", rare=0.02),
        severe("labels_off_by_one", ("labels_off_by_one", "loss_sign"), bug="coded_one_two"),
        severe("target_in_inputs", bug="answer_kept"),
        mild("constant_feature", bug="int_columns"),
        severe("missing_nonlinearity", act="none"),
        severe("not_finite", bug="log_of_zero"),
        mild("overfitting", rows=100),
        severe("eval_mode", ("eval_mode", "inputs_not_scaled"), bug="eval", norm_inputs=True, scaling="raw"),
        mild("rate_harmless", "learning_rate_too_high", lr=4e-3),
        mild("clipping_harmless", "clipping_too_hard", clip=0.2),
        mild("summed_harmless", "loss_summed", reduction="sum"),
        mild("noise_harmless", "label_noise", noise=0.01),
        mild("frozen_harmless", "parameters_not_optimized", freeze=True),
        mild("decay_harmless", "weight_decay_too_high", decay=3e-4),
        mild("momentum_harmless", "momentum_too_high", optimizer="sgd", lr=0.03, momentum=0.97),
        mild("schedule_harmless", "schedule_too_fast", until=0.7),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=4e-3),
        healthy("adamw", optimizer="adamw", lr=4e-3, decay=0.05),
        healthy("nadam", optimizer="nadam", lr=4e-3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1, momentum=0.9),
        healthy("sgd", optimizer="sgd", lr=0.6),
        healthy("adagrad", optimizer="adagrad", lr=0.03),
        healthy("rmsprop_momentum", momentum=0.8, lr=1e-3),
        healthy("rate_tripled_clipped", lr=6e-3, clip=1.0),
        healthy("constant_rate", schedule="constant"),
        healthy("onecycle", schedule="onecycle"),
        healthy("warmup_linear", schedule="warmup"),
        healthy("wide", width=256),
        healthy("silu", act="silu"),
        healthy("elu_layernorm", act="elu", norm="layer", lr=3e-3),
        healthy("batchnorm", norm="batch"),
        healthy("batchnorm_as_scaler", scaling="raw", norm_inputs=True),
        healthy("robust_scaling", scaling="robust"),
        healthy("dropout_10", dropout=0.1, width=128, lr=3e-3),
        healthy("label_smoothing", smooth=0.1),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=400, lr=1e-3, steps=400),
        healthy("accumulation", accumulate=2, batch=32),
        healthy("full_batch", batch="all", lr=4e-3, optimizer="adam", steps=400),
    ],
)
