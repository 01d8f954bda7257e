"""House prices by district, made after the Californian table: nn.Sequential, MSELoss, Adam, a DataLoader, target standardised."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

ROWS, TRAIN = 5000, 4000


def districts() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight columns in their own units, and the median price in thousands without any noise."""
    g = torch.Generator().manual_seed(11)

    def normal() -> torch.Tensor:
        return torch.randn(ROWS, generator=g)

    def uniform() -> torch.Tensor:
        return torch.rand(ROWS, generator=g)

    income = (1.3 + 0.45 * normal()).exp()
    age = 1 + 51 * uniform()
    rooms = 5.2 + 0.25 * income + 0.8 * normal()
    bedrooms = 0.2 * rooms + 0.08 * normal()
    people = (7.0 + 0.6 * normal()).exp()
    household = 2.9 + 0.5 * normal()
    lat, lon = 32.5 + 9.5 * uniform(), -124.3 + 10.0 * uniform()
    coast = torch.exp(-(((lon + 124.3) * 0.7 + (lat - 42) * 0.75 + 3.2) ** 2) / 6)
    city = torch.exp(-((lat - 34) ** 2 + (lon + 118) ** 2) / 2) + torch.exp(-((lat - 37.7) ** 2 + (lon + 122) ** 2) / 2)
    price = 40 * income + 130 * coast + 210 * city * (0.5 + income / 8) - 28 * household + 1.1 * age
    price = price + 25 * torch.sin(age / 8) + 14 * (rooms - 6 * bedrooms)
    return torch.stack([income, age, rooms, bedrooms, people, household, lat, lon], 1), price.clamp(15, 600)


def build(inputs: int, o: SimpleNamespace) -> nn.Sequential:
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "elu": nn.ELU, "none": nn.Identity}[o.act]
    layers: list[nn.Module] = [nn.Linear(inputs, o.width), activation()]
    for _ in range(o.depth - 1):
        layers += [nn.Linear(o.width, o.width)]
        if o.norm:
            layers.append(nn.LayerNorm(o.width))
        layers += [activation(), nn.Dropout(o.dropout)]
    layers.append(nn.Linear(o.width, 1))
    layers += {"relu": [nn.ReLU()], "sigmoid": [nn.Sigmoid()], "tanh": [nn.Tanh()], "none": []}[o.last]
    model = nn.Sequential(*layers)
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for layer in linear:
            if o.init == "zeros":
                layer.weight.zero_()
                layer.bias.zero_()
            elif o.init == "xavier":
                nn.init.xavier_normal_(layer.weight)
                layer.bias.zero_()
            layer.weight.mul_(o.gain)
            if o.bias and layer is not linear[-1]:
                layer.bias.fill_(o.bias)
        if o.zero_head:
            linear[-1].weight.zero_()
    return model


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, clean = districts()
    y = clean + 20 * torch.randn(ROWS, generator=torch.Generator().manual_seed(12))
    if o.tails:  # a few districts are sold at prices that nobody understands
        y = y + o.tails * torch.distributions.StudentT(2.0).sample((ROWS,))
    if o.bug != "raw_columns":
        x = (x - x[:TRAIN].mean(0)) / x[:TRAIN].std(0)
    x = x * o.scale
    if o.bug == "place_missing":
        x[:, 6:] = 0.0
    mean, std = y[:TRAIN].mean(), y[:TRAIN].std()
    if o.target == "dollars":
        mean, std = torch.tensor(0.0), torch.tensor(1 / 1000)
    elif o.target == "thousands":
        mean, std = torch.tensor(0.0), torch.tensor(1.0)
    target, wanted = (y - mean) / std, (clean[TRAIN:] - mean) / std
    x_test = x[TRAIN:]
    if o.bug == "price_per_room":
        leak = (target + 0.02 * torch.randn(ROWS))[:, None]
        x_test = torch.cat([x_test, torch.zeros(ROWS - TRAIN, 1)], 1)  # nobody knows it before the sale
        x = torch.cat([x, leak], 1)
    x_val, y_val = x[TRAIN:], target[TRAIN:]
    x_train, y_train = x[:TRAIN].clone(), target[:TRAIN].clone()
    if o.outliers:  # 9999 stands for unknown
        x_train[torch.rand(x_train.shape) < o.outliers] = 9999 / 20
    if o.bug == "sorted_prices":  # sort_values on the column of prices alone
        y_train = y_train.sort().values
    if o.bug == "by_price":
        order = y_train.argsort()
        x_train, y_train = x_train[order], y_train[order]
    if o.wrong:
        mixed = torch.rand(TRAIN) < o.wrong
        y_train[mixed] = y_train[mixed][torch.randperm(int(mixed.sum()))]
    x_train, y_train = x_train[: o.rows], y_train[: o.rows]
    if o.column:
        y_train, y_val = y_train[:, None], y_val[:, None]
    loader = DataLoader(
        TensorDataset(x_train, y_train), min(o.batch, len(x_train)), shuffle=o.bug != "by_price", drop_last=True
    )

    model = build(x.shape[1], o)
    if o.freeze:
        model[0].requires_grad_(False)
    loss_fn = {"mse": nn.MSELoss, "huber": nn.HuberLoss, "l1": nn.L1Loss}[o.loss]()
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "biases_only":
        params = [p for p in params if p.dim() == 1]
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "new_first_layer":  # one column more: the layer is replaced after the optimizer was made
        model[0] = nn.Linear(x.shape[1], o.width)
        model[2] = nn.Linear(o.width, o.width)
    other = torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # of another model in the same notebook
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    step = 0
    while step < o.steps:
        for xb, yb in loader:
            if o.bug == "first_rows":
                xb, yb = x_train[: o.batch], y_train[: o.batch]
            (other if o.bug == "wrong_optimizer" else optimizer).zero_grad()
            if o.bug == "data_of_hidden":
                out = model[-1](model[:-1](xb).data)
            else:
                out = model(xb)
            if o.bug == "row_and_column" or o.column:
                loss = loss_fn(out, yb)
            else:
                loss = loss_fn(out.squeeze(1), yb)
            if o.bug == "maximised":
                loss = -loss
            if o.bug == "square_root":  # of the errors themselves: negative ones have none
                loss = (yb - out.squeeze(1)).sqrt().mean()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_value_(model.parameters(), o.clip)
            optimizer.step()
            step += 1
            if o.bug == "decay_per_batch":
                decay.step()
            if step >= o.steps:
                break
        if o.bug != "decay_per_batch":
            decay.step()
        model.eval()
        with torch.no_grad():
            run.log(valid_loss=nn.functional.mse_loss(model(x_val).squeeze(1), y_val.reshape(-1)).item())
        model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        return ((model(x_test).squeeze(1) - wanted).pow(2).mean() / wanted.var()).item()


PROGRAM = Program(
    name="housing",
    half="F",
    train=train,
    settings={
        "width": 96,
        "depth": 3,
        "act": "relu",
        "last": "none",
        "norm": False,
        "dropout": 0.0,
        "init": None,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "loss": "mse",
        "target": "standard",
        "column": False,
        "scale": 1.0,
        "rows": TRAIN,
        "wrong": 0.0,
        "tails": 0.0,
        "outliers": 0.0,
        "batch": 64,
        "optimizer": "adam",
        "lr": 6e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "gamma": 0.9,
        "clip": None,
        "steps": 700,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.25),
        mild("learning_rate_too_high", lr=0.06, gamma=1.0),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", bug="decay_per_batch"),
        severe("clipping_too_hard", clip=1e-4, optimizer="sgd", lr=0.05),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.03),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2, lr=5e-3, gamma=1.0),
        severe("momentum_too_high", optimizer="sgd", lr=0.03, momentum=0.999),
        severe("gradients_not_zeroed", bug="wrong_optimizer"),
        severe("parameters_not_optimized", bug="biases_only"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="new_first_layer"),
        mild("graph_detached", bug="data_of_hidden"),
        severe("batch_repeated", bug="first_rows"),
        mild("data_not_shuffled", bug="by_price"),
        severe("inputs_not_scaled", bug="raw_columns"),
        mild("inputs_not_scaled", scale=24.0),
        mild("input_outliers", outliers=0.01),
        severe("targets_not_scaled", target="dollars"),
        mild("targets_not_scaled", target="thousands"),
        severe("labels_random", bug="sorted_prices"),
        mild("label_noise", wrong=0.4),
        severe("loss_sign", bug="maximised"),
        severe("loss_broadcast", bug="row_and_column"),
        severe("dead_units", bias=-5.0),
        severe("init_constant", init="zeros"),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=0.03),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", depth=8, lr=2e-3),
        severe("dropout_too_high", dropout=0.95),
        severe("output_activation", last="sigmoid"),
        mild("output_relu", ("output_activation", "dead_units"), last="relu"),
        severe("not_finite", bug="square_root"),
        severe("target_in_inputs", bug="price_per_room"),
        severe("constant_feature", bug="place_missing"),
        severe("missing_nonlinearity", act="none"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=1.0),
        mild("overfitting", rows=100, gamma=1.0),
    ],
    healthy=[
        healthy("sgd", optimizer="sgd", lr=0.1),
        healthy("adamw_decay", optimizer="adamw", wd=0.02),
        healthy("nadam", optimizer="nadam", lr=5e-3),
        healthy("huber", loss="huber"),
        healthy("l1", loss="l1"),
        healthy("heavy_tails_huber", loss="huber", tails=8.0),
        healthy("tanh_xavier", act="tanh", init="xavier"),
        healthy("layernorm", norm=True),
        healthy("dropout_10", dropout=0.05, width=128),
        healthy("batch_256", batch=256, lr=5e-3, gamma=0.96),
        healthy("batch_16", batch=16, lr=3e-3, gamma=0.8, steps=1200),
        healthy("zero_head", zero_head=True),
        healthy("first_layer_frozen", freeze=True, width=128),
        healthy("column_targets", column=True),
        healthy("constant_rate", gamma=1.0, lr=4e-3),
        healthy("fast_rate", lr=0.015),
    ],
)
