"""How many bikes are rented in an hour: a table (hour, season, weather, ...), an MLP, squared error, SGD with momentum.
Small functions; nothing is validated before the end."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

N_TRAIN, N_TEST = 3000, 1000
# hour sine and cosine, twice the hour sine and cosine, season sine and cosine, and so on
COLUMNS = "sin1 cos1 sin2 cos2 season_sin season_cos workday year temperature humidity wind rain pressure".split()


def load_table(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns in their usual units, and rentals per hour (0 to about 1000)."""
    g = torch.Generator().manual_seed(seed)
    hour = torch.randint(0, 24, (n,), generator=g).float()
    day = 365 * torch.rand(n, generator=g)
    workday = (torch.rand(n, generator=g) < 0.69).float()
    year = torch.randint(0, 2, (n,), generator=g).float()
    warm = -torch.cos(2 * math.pi * (day - 20) / 365)
    daily = -torch.cos(2 * math.pi * (hour - 3) / 24)
    temperature = 12 + 10 * warm + 4 * daily + 4 * torch.randn(n, generator=g)
    humidity = (68 - 10 * daily + 15 * torch.randn(n, generator=g)).clamp(15, 100)
    wind = 12 + 8 * torch.randn(n, generator=g).abs()
    rain = (torch.rand(n, generator=g) < 0.25) * 4 * torch.rand(n, generator=g)
    pressure = 1013 + 8 * torch.randn(n, generator=g)

    def peak(at: float, width: float) -> torch.Tensor:
        return torch.exp(-0.5 * ((hour - at) / width) ** 2)

    commuters = workday * (380 * peak(8, 1.3) + 460 * peak(17.5, 1.8) + 70 * peak(12.5, 2))
    leisure = (1 - workday) * 330 * peak(14, 3.6) + 60 * peak(21, 2.5) + 25
    pleasant = torch.exp(-0.5 * ((temperature - 22) / 13) ** 2)
    weather = pleasant * torch.exp(-0.35 * rain) * (1 - 0.006 * (humidity - 60).clamp(min=0)) * (1.15 - 0.01 * wind)
    rentals = (commuters + leisure) * weather * (1 + 0.4 * year) * (1 + 0.07 * torch.randn(n, generator=g))
    a, b = 2 * math.pi * hour / 24, 2 * math.pi * day / 365
    parts = [a.sin(), a.cos(), (2 * a).sin(), (2 * a).cos(), b.sin(), b.cos(), workday, year]
    parts += [temperature, humidity, wind, rain, pressure]
    return torch.stack(parts, 1), rentals.clamp(min=0).round()


def prepare(o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    x, y = load_table(N_TRAIN, 91)
    xt, yt = load_table(N_TEST, 92)
    if o.bug == "casual_registered":  # these two columns add up to the target, and nobody knows them in advance
        casual = y * (0.15 + 0.1 * torch.rand(len(y)))
        x = torch.cat([x, casual[:, None], (y - casual)[:, None]], 1)
        xt = torch.cat([xt, casual.mean().expand(N_TEST, 1), (y - casual).mean().expand(N_TEST, 1)], 1)
    if o.bug == "hour_unparsed":  # every row says midnight
        x[:, :4] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    if o.bug == "merged_wrongly":
        x = x[torch.randperm(len(x))]
    if o.mislabelled:
        wrong = torch.rand(len(y)) < o.mislabelled
        y = torch.where(wrong, y[torch.randperm(len(y))], y)
    if o.bug == "sorted":
        order = torch.argsort(y)
        x, y = x[order], y[order]
    if o.scaling == "standard":
        mean, std = x.mean(0), x.std(0)
        std[std < 1e-6] = 1.0  # as StandardScaler does
        x, xt = (x - mean) / std, (xt - mean) / std
    elif o.scaling == "minmax":
        low, high = x.amin(0), x.amax(0)
        x, xt = 2 * (x - low) / (high - low) - 1, 2 * (xt - low) / (high - low) - 1
    elif o.scaling == "whole_table":  # mean and deviation of all numbers in the table
        x, xt = (x - x.mean()) / x.std(), (xt - x.mean()) / x.std()
    elif o.scaling == "zero_division":
        x[:, COLUMNS.index("rain")] = 0.0  # a dry year
        x, xt = (x - x.mean(0)) / x.std(0), (xt - x.mean(0)) / x.std(0)
    if o.outliers:  # 9999 stands for missing
        x = torch.where(torch.rand_like(x) < o.outliers, o.outlier_size, x)
    return x * o.factor, y, xt * o.factor, yt


class Residual(nn.Module):
    def __init__(self, width: int, act: type[nn.Module]):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), act(), nn.Linear(width, width))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.body(h)


def build(inputs: int, o: SimpleNamespace) -> nn.Sequential:
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU, "sigmoid": nn.Sigmoid}
    act = kinds.get(o.act, nn.Identity)
    layers: list[nn.Module] = [nn.Linear(inputs, o.width)]
    for i in range(o.depth):
        if o.norm:
            layers.append({"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}[o.norm](o.width))
        layers += [act()] + ([nn.Dropout(o.dropout)] if o.dropout else [])
        if i < o.depth - 1:
            layers.append(Residual(o.width, act) if o.residual else nn.Linear(o.width, o.width))
    for _ in range(o.squashing):
        layers += [nn.Linear(o.width, o.width), nn.Sigmoid()]
    layers.append(nn.Linear(o.width, 1))
    if o.last:
        layers.append({"relu": nn.ReLU, "sigmoid": nn.Sigmoid}[o.last]())
    net = nn.Sequential(*layers)
    linears = [m for m in net.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for m in linears:
            if o.init == "xavier":
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)
            m.weight.mul_(o.gain)
        if o.zero_last:
            linears[-1].weight.zero_()
    return net


def lr_lambda(o: SimpleNamespace):
    def factor(step: int) -> float:
        done = min(1.0, step / o.steps)
        if o.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * done))
        if o.schedule == "one_cycle":
            return 0.04 + 0.96 * (done / 0.3 if done < 0.3 else (1 - done) / 0.7)
        if o.schedule == "steps":
            return 0.3 ** int(3 * done)
        if o.schedule == "inverse":
            return 1 / (1 + o.decay * step)
        return o.decay**step if o.schedule == "exp" else 1.0

    return factor


def batches(n: int, size: int, o: SimpleNamespace):
    while True:
        order = torch.arange(n) if o.bug == "sorted" else torch.randperm(n)
        for start in range(0, n - size + 1, size):
            yield order[start : start + size]


def fit_before(net: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> None:
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        pick = torch.randint(0, len(x), (64,))
        opt.zero_grad()
        nn.functional.mse_loss(net(x[pick]), y[pick]).backward()
        opt.step()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xt, yt = prepare(o)
    middle, spread = (y.mean(), y.std()) if o.target == "standard" else (torch.tensor(0.0), torch.tensor(o.unit))
    t = (y - middle) / spread
    if o.bug != "no_unsqueeze":
        t = t[:, None]
    net = build(x.shape[1], o)
    if o.pretrain:
        fit_before(net, x, t, o.pretrain)
    if o.freeze:
        net[0].requires_grad_(False)
    if o.half:
        net, x, t = net.half(), x.half(), t.half()
    loss_fn = {"mse": nn.MSELoss, "smooth_l1": nn.SmoothL1Loss}[o.loss]()
    params = [p for p in net.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, nesterov=o.nesterov, weight_decay=o.wd, eps=o.eps
    )
    if o.bug == "deepcopy":
        net = copy.deepcopy(net)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_lambda(o))
    run = cockpit_core.track(net, loss_fn, optimizer, logdir=logdir)

    size = len(x) if o.batch == "all" else o.batch
    feed = batches(len(x), size, o)
    for _ in range(o.steps):
        if o.bug != "zero_grad_missing":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            pick = next(feed)
            if o.bug == "no_graph":
                with torch.no_grad():
                    h = net[: o.cut](x[pick])
                out = net[o.cut :](h)
            else:
                out = net(x[pick])
            loss = loss_fn(out, t[pick])
            loss = loss / o.accumulate if o.divide else loss
            scale = 4096 if o.bug == "clip_scaled" else -1 if o.bug == "reward" else 1
            (loss * scale).backward()
        if o.bug == "clip_scaled":  # clips first and divides by the scale of the loss then
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            for p in net.parameters():
                p.grad /= scale
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
    run.close()
    return unexplained(net.float().eval(), xt, yt, middle, spread)


@torch.no_grad()
def unexplained(net: nn.Module, x: torch.Tensor, y: torch.Tensor, middle: torch.Tensor, spread: torch.Tensor) -> float:
    """Root of the mean squared error in rentals, divided by that of answering with the mean."""
    rentals = net(x).squeeze(1) * spread + middle
    return ((rentals - y).square().mean().sqrt() / y.std()).item()


PROGRAM = Program(
    name="bikes",
    half="L",
    train=train,
    settings={
        "width": 224,
        "depth": 4,
        "act": "relu",
        "residual": False,
        "norm": None,
        "dropout": 0.0,
        "squashing": 0,
        "last": None,
        "init": "default",
        "gain": 1.0,
        "zero_last": False,
        "freeze": False,
        "pretrain": 0,
        "scaling": "standard",
        "factor": 1.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "mislabelled": 0.0,
        "target": "standard",
        "unit": 1.0,
        "half": False,
        "loss": "mse",
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": False,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "cosine",
        "decay": 1.0,
        "clip": None,
        "batch": 128,
        "accumulate": 1,
        "divide": True,
        "steps": 700,
        "cut": 6,
    },
    faults=[
        severe("learning_rate_too_high", ("learning_rate_too_high", "not_finite"), lr=0.75),
        severe("learning_rate_too_low", lr=1e-4),
        mild("learning_rate_too_low", lr=1e-3),
        severe("schedule_too_fast", schedule="inverse", decay=1.0),
        mild("schedule_too_fast", schedule="exp", decay=0.97),
        severe("clipped_before_unscaled", ("clipped_before_unscaled", "clipping_too_hard"), bug="clip_scaled"),
        mild("clipping_too_hard", ("clipping_too_hard", "learning_rate_too_low"), clip=0.02),
        mild("weight_decay_too_high", wd=0.05),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", ("momentum_too_high", "learning_rate_too_high"), momentum=0.999, schedule="none"),
        mild("momentum_too_high", ("momentum_too_high", "learning_rate_too_high"), momentum=0.999),
        severe("gradients_not_zeroed", ("gradients_not_zeroed", "not_finite"), bug="zero_grad_missing"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="deepcopy"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="no_graph"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "not_finite"), scaling="raw"),
        severe("scaled_as_a_whole", "inputs_not_scaled", scaling="whole_table"),
        severe("input_outliers", ("input_outliers", "not_finite"), outliers=0.01, outlier_size=300.0),
        severe("targets_not_scaled", ("targets_not_scaled", "not_finite"), target="raw"),
        mild("targets_not_scaled", target="raw", optimizer="adam", lr=1e-3, steps=350),
        severe("labels_random", ("labels_random", "samples_mixed"), bug="merged_wrongly"),
        mild("label_noise", mislabelled=0.4),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="reward"),
        severe("loss_broadcast", bug="no_unsqueeze"),
        severe("init_too_large", ("init_too_large", "not_finite"), gain=8.0),
        severe("init_too_small", gain=0.1),
        severe("vanishing_gradients", squashing=6),
        severe("output_activation", last="sigmoid"),
        severe("missing_nonlinearity", act="none"),
        mild("saturated_units", ("saturated_units", "inputs_not_scaled"), act="tanh", factor=30.0),
        severe("constant_feature", bug="hour_unparsed"),
        severe("target_in_inputs", bug="casual_registered"),
        severe("not_finite", scaling="zero_division"),
        severe(
            "half_precision_underflow",
            ("half_precision_underflow", "not_finite"),
            half=True,
            optimizer="adam",
            lr=2e-3,
            width=64,
            steps=450,
        ),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            batch=32,
            accumulate=8,
            divide=False,
            steps=400,
        ),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adamw", optimizer="adamw", lr=3e-3, wd=0.02),
        healthy("nadam", optimizer="nadam", lr=2e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.02),
        healthy("nesterov", nesterov=True),
        healthy("without_momentum", momentum=0.0, lr=0.15),
        healthy("rate_doubled", lr=0.06),
        healthy("one_cycle", schedule="one_cycle", lr=0.08),
        healthy("steps", schedule="steps"),
        healthy("constant_rate", schedule="none"),
        healthy("smooth_l1", loss="smooth_l1"),
        healthy("silu", act="silu"),
        healthy("layernorm", norm="layer", optimizer="adam", lr=2e-3),
        healthy("batchnorm", norm="batch"),
        healthy("residual", residual=True),
        healthy("shallow_wide", depth=2, width=256),
        healthy("xavier", init="xavier"),
        healthy("zero_last", zero_last=True),
        healthy("clip_1", clip=1.0),
        healthy("full_batch", batch="all", lr=0.06, width=96, steps=300),
        healthy("fine_tuning", pretrain=400, lr=0.015, steps=400),
        healthy("accumulation", batch=32, accumulate=4),
        healthy("minmax", scaling="minmax"),
    ],
)
