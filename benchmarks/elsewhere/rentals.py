"""Bicycles rented in an hour: embedded hour, weekday and weather, PoissonNLLLoss on counts, Adagrad, a dict of columns."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

HOURS = 6000


def rentals() -> dict[str, torch.Tensor]:
    """Hours of one station: categories, degrees, wind in km/h, humidity in percent, and how many were rented."""
    g = torch.Generator().manual_seed(41)
    t = torch.arange(HOURS)
    hour, day = t % 24, (t // 24) % 7
    season = torch.sin(2 * math.pi * t / HOURS)
    slow = torch.randn(HOURS // 24 + 1, generator=g)[t // 24]
    degrees = 12 + 9 * season + 4 * torch.sin(2 * math.pi * (hour - 9) / 24) + 2.5 * slow
    wind = 14 + 8 * torch.randn(HOURS, generator=g).abs()
    humidity = (65 - 8 * torch.sin(2 * math.pi * hour / 24) + 12 * torch.randn(HOURS, generator=g)).clamp(20, 100)
    weather = (torch.rand(HOURS // 6 + 1, generator=g)[t // 6] * 4).long()
    workday = day < 5
    rush = torch.exp(-((hour - 8.0) ** 2) / 3) + 1.2 * torch.exp(-((hour - 17.0) ** 2) / 5)
    leisure = torch.exp(-((hour - 14.0) ** 2) / 18)
    log = 0.8 + 2.0 * torch.where(workday, rush, leisure) + 0.8 * torch.exp(-((hour - 13.0) ** 2) / 40)
    log = log - 0.004 * (degrees - 21) ** 2 - torch.tensor([0.0, 0.1, 0.5, 1.3])[weather]
    log = log - 0.012 * (wind - 14) - 0.008 * (humidity - 60)
    rate = log.exp()
    return {
        "hour": hour,
        "day": day,
        "weather": weather,
        "numbers": torch.stack([degrees, wind, humidity], 1).float(),
        "rate": rate,
        "count": torch.poisson(rate, generator=g),
    }


class Demand(nn.Module):
    def __init__(self, o: SimpleNamespace, extra: int = 0) -> None:
        super().__init__()
        self.o = o
        self.emb_hour = nn.Embedding(24, o.emb)
        self.emb_day = nn.Embedding(7, 4)
        self.emb_weather = nn.Embedding(4, 3)
        self.norm = nn.LayerNorm(o.width) if o.norm else nn.Identity()
        self.layer1 = nn.Linear(o.emb + 7 + 3 + extra, o.width)
        self.layers = nn.ModuleList([nn.Linear(o.width, o.width) for _ in range(o.depth - 1)])
        self.drop = nn.Dropout(o.dropout)
        self.rate = nn.Linear(o.width, 1)
        for layer in (self.layer1, *self.layers, self.rate):
            if o.init == "constant":
                nn.init.constant_(layer.weight, 0.02)
            elif o.init is not None:
                nn.init.normal_(layer.weight, std=o.init)
            if o.bias is not None and layer is not self.rate:
                nn.init.constant_(layer.bias, o.bias)
        if o.bug == "constant_tables":
            for table in (self.emb_hour, self.emb_day, self.emb_weather):
                nn.init.constant_(table.weight, 0.02)
        if o.mean_bias is not None:
            nn.init.zeros_(self.rate.weight)
            nn.init.constant_(self.rate.bias, o.mean_bias)

    def forward(self, row: dict[str, torch.Tensor]) -> torch.Tensor:
        f = {"relu": torch.relu, "silu": nn.functional.silu, "sigmoid": torch.sigmoid, "none": lambda v: v}[self.o.act]
        x = torch.cat(
            [self.emb_hour(row["hour"]), self.emb_day(row["day"]), self.emb_weather(row["weather"]), row["numbers"]], 1
        )
        x = f(self.norm(self.layer1(x)))
        if self.o.bug == "no_grad_block":  # meant for the statistics in it
            with torch.no_grad():
                for layer in self.layers:
                    x = f(layer(x))
        else:
            for layer in self.layers:
                x = f(layer(x))
        z = self.rate(self.drop(x))
        if self.o.bug == "relu_rate":  # counts are not negative; but this is a logarithm
            z = torch.relu(z)
        if self.o.bug == "exp_twice":
            z = z.exp()
        return z if self.o.bug == "keeps_column" else z.squeeze(1)


def rows(data: dict[str, torch.Tensor], index: torch.Tensor) -> dict[str, torch.Tensor]:
    return {key: column[index] for key, column in data.items()}


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data = rentals()
    split = torch.randperm(HOURS, generator=torch.Generator().manual_seed(9))
    known, held = split[:4800], split[4800:]
    numbers = data["numbers"]
    if o.bug != "as_measured":
        numbers = (numbers - numbers[known].mean(0)) / numbers[known].std(0)
    data["numbers"] = numbers
    if o.bug == "clock_lost":  # only the date was parsed: every row is midnight
        data["hour"] = torch.zeros_like(data["hour"])
    extra = 0
    if o.bug == "registered_too":  # registered and casual riders: together they are the count
        part = data["count"] * 0.7
        data["numbers"], extra = torch.cat([numbers, torch.log1p(part)[:, None]], 1), 1
    truth = rows(data, held)
    if extra:
        truth["numbers"] = truth["numbers"].clone()
        truth["numbers"][:, -1] = 0.0
    train_rows = rows(data, known[: o.count])
    y = train_rows["count"]
    if o.bug == "per_day":  # sums of a day in the place of hours, and then thousandths of it
        y = y * 1000
    if o.bug == "columns_apart":
        y = y[torch.randperm(len(y))]
    if o.wrong:
        y = torch.where(torch.rand(len(y)) < o.wrong, y[torch.randperm(len(y))], y)
    if o.spikes:  # a sensor that answers with its largest number
        hit = torch.rand(len(y)) < o.spikes
        train_rows["numbers"] = torch.where(
            hit[:, None], torch.full_like(train_rows["numbers"], 327.67), train_rows["numbers"]
        )
    if o.bug == "sorted_table":
        order = y.argsort()
        train_rows, y = rows(train_rows, order), y[order]

    model = Demand(o, extra)
    loss_fn = nn.PoissonNLLLoss(log_input=o.bug != "not_log", reduction="sum" if o.bug == "summed" else "mean")
    params = list(model.parameters())
    if o.bug == "tables_forgotten":
        params = [p for name, p in model.named_parameters() if name.startswith("rate")]
    if o.freeze:
        model.emb_weather.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, momentum=o.momentum, lr_decay=o.lr_decay)
    if o.bug == "transfer":  # body and tables of a colleague's model, put in too late
        other = Demand(o, extra)
        model.emb_hour, model.emb_day, model.layer1, model.layers = (
            other.emb_hour,
            other.emb_day,
            other.layer1,
            other.layers,
        )
    run = cockpit_core.track(model, loss_fn, optimizer, logdir)
    for step in range(o.steps):
        if o.halve and step and step % o.halve == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        if o.bug == "sorted_table":
            index = (torch.arange(o.batch) + step * o.batch) % len(y)
        elif o.bug == "seeded":  # inside the loop, for reproducible results
            index = torch.randint(0, len(y), (o.batch,), generator=torch.Generator().manual_seed(seed))
        else:
            index = torch.randint(0, len(y), (o.batch,))
        out = model(rows(train_rows, index))
        target = y[index]
        if o.bug == "by_hand":  # Poisson likelihood, which is to be maximised
            loss = (target * out - out.exp()).clamp(min=-1e4).mean()
        elif o.bug == "log_counts":  # in some hours nobody came, and nobody added the one
            loss = (out - target.log()).pow(2).mean()
        else:
            loss = loss_fn(out, target)
        optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
    run.close()

    model.eval()
    with torch.no_grad():
        out = model(truth).view(-1)
        rate = out.clamp(min=1e-3) if o.bug == "not_log" else out.clamp(max=20).exp()
        rate = rate / 1000 if o.bug == "per_day" else rate
    wanted = truth["rate"]

    def deviance(rate: torch.Tensor) -> torch.Tensor:
        return (wanted * (wanted / rate.clamp(min=1e-6)).log() - wanted + rate).mean()

    return (deviance(rate) / deviance(data["rate"][known].mean())).item()


PROGRAM = Program(
    name="rentals",
    half="E",
    train=train,
    settings={
        "emb": 8,
        "width": 64,
        "depth": 2,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "mean_bias": None,
        "freeze": False,
        "count": 4800,
        "wrong": 0.0,
        "spikes": 0.0,
        "batch": 64,
        "optimizer": "adagrad",
        "lr": 0.05,
        "lr_decay": 0.0,
        "momentum": 0.9,
        "wd": 0.0,
        "halve": None,
        "clip": None,
        "steps": 600,
    },
    faults=[
        mild("learning_rate_too_high", lr=0.15),
        mild("learning_rate_too_low", lr=4e-3),
        mild("schedule_too_fast", lr_decay=0.1),
        mild("weight_decay_too_high", wd=0.1),
        mild("batch_too_small", batch=2, optimizer="adam", lr=8e-3),
        severe("momentum_too_high", optimizer="sgd", lr=0.01, momentum=0.999),
        severe("parameters_not_optimized", bug="tables_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="transfer"),
        severe("graph_detached", bug="no_grad_block"),
        severe("batch_repeated", bug="seeded"),
        severe("data_not_shuffled", bug="sorted_table"),
        severe("inputs_not_scaled", bug="as_measured"),
        severe("input_outliers", spikes=0.002),
        severe("targets_not_scaled", bug="per_day"),
        severe("labels_random", bug="columns_apart"),
        mild("label_noise", wrong=0.35),
        severe("loss_sign", bug="by_hand"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.01),
        severe("loss_broadcast", bug="keeps_column"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_rate", act="silu"),
        mild("exp_in_the_network_too", ("output_activation", "not_finite"), bug="exp_twice"),
        severe("rates_taken_for_logs", ("output_activation", "not_finite", "not_learning"), bug="not_log"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init="constant", bug="constant_tables"),
        severe("init_too_large", ("init_too_large", "not_finite"), init=1.0),
        mild("overfitting", count=160, optimizer="adam", lr=5e-3),
        severe("constant_feature", bug="clock_lost"),
        mild("missing_nonlinearity", act="none"),
        severe("target_in_inputs", bug="registered_too"),
        mild("dropout_too_high", dropout=0.8),
        severe("not_finite", bug="log_counts"),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=4e-3),
        healthy("adam_halved", optimizer="adam", lr=1e-2, halve=150),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, momentum=0.0),
        healthy("sgd_momentum_clip", optimizer="sgd", lr=0.01, clip=5.0),
        healthy("adagrad_lr_003", lr=0.03, steps=800),
        healthy("layernorm", norm=True),
        healthy("starts_at_the_mean", mean_bias=1.0),
        healthy("silu_deep", act="silu", depth=4),
        healthy("wide", width=128, lr=0.03),
        healthy("weather_frozen", freeze=True),
        healthy("dropout_01", dropout=0.1),
        healthy("batch_256", batch=256, steps=400, lr=0.06),
        healthy("batch_16", batch=16, lr=0.04, steps=800),
        healthy("small_decay", optimizer="adamw", lr=5e-3, wd=0.01),
    ],
)
