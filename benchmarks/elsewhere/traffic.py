"""Cars per hour at a counting station, three hours ahead: 1D convolutions or an LSTM, nn.MSELoss, SGD with momentum."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

WINDOW, AHEAD, HOURS = 30, 3, 3600


def count_cars(hours: int, seed: int) -> Tensor:
    """Cars per hour: rush hours, quiet week-ends, weather that changes slowly, and now and then a jam."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(hours)
    hour, day = (t % 24).float(), (t // 24) % 7
    week_end = (day >= 5).float()
    morning, evening = torch.exp(-((hour - 8) ** 2) / 5), torch.exp(-((hour - 17) ** 2) / 9)
    noon = torch.exp(-((hour - 13) ** 2) / 30)
    usual = (1 - week_end) * (520 * morning + 610 * evening + 160 * noon) + week_end * 420 * noon
    mood, jam = torch.zeros(hours), torch.zeros(hours)
    shock, starts = torch.randn(hours, generator=g), torch.rand(hours, generator=g) < 0.012
    for i in range(1, hours):
        mood[i] = 0.97 * mood[i - 1] + 0.06 * shock[i]
        jam[i] = 1.0 if starts[i] else 0.8 * jam[i - 1]
    cars = (90 + usual * (1 + mood).clamp(min=0.2)) * (1 - 0.5 * jam)
    return (cars + 18 * torch.randn(hours, generator=g)).clamp(min=0)


def windows(series: Tensor, target: Tensor, o: SimpleNamespace) -> tuple[Tensor, Tensor]:
    """Windows of the series [N, T, 1] and what comes AHEAD hours after each window's end [N, 1]."""
    n = len(series) - WINDOW - AHEAD + 1
    first = torch.arange(n)
    x = series[first[:, None] + torch.arange(WINDOW)][:, :, None]
    return x, target[first + WINDOW - 1 + AHEAD][:, None]


def activation(name: str) -> nn.Module:
    table = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
    return table[name]() if name in table else nn.Identity()


class ConvForecast(nn.Module):
    def __init__(self, o: SimpleNamespace, channels: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for i in range(o.depth):
            wide = o.width
            blocks.append(nn.Conv1d(channels, wide, 3, dilation=2**i, padding=2**i))
            if o.norm == "batch":
                blocks.append(nn.BatchNorm1d(wide))
            elif o.norm == "group":
                blocks.append(nn.GroupNorm(4, wide))
            blocks += [activation(o.act), nn.Dropout(o.dropout)]
            channels = wide
        self.blocks = nn.Sequential(*blocks)
        self.hidden = nn.Sequential(nn.Linear(channels * 6, o.width), activation(o.act))
        self.extra = nn.Sequential(*[nn.Sequential(nn.Linear(o.width, o.width), nn.Sigmoid()) for _ in range(o.extra)])
        self.out = nn.Linear(o.width, 1)
        self.stop = o.bug == "cut"
        self.last = activation(o.last)

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(x.transpose(1, 2))[:, :, -6:].flatten(1)
        if self.stop:
            h = h.detach()
        return self.last(self.out(self.extra(self.hidden(h))))


class LstmForecast(nn.Module):
    def __init__(self, o: SimpleNamespace, channels: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, o.width, batch_first=o.bug != "time_first")
        self.drop = nn.Dropout(o.dropout)
        self.out = nn.Linear(o.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.drop(self.lstm(x)[0][:, -1]))


def build(o: SimpleNamespace, channels: int) -> nn.Module:
    model = LstmForecast(o, channels) if o.net == "lstm" else ConvForecast(o, channels)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if o.net == "conv" and p.dim() > 1:
                p.mul_(o.gain)
            elif o.net == "conv" and o.shift and not name.startswith("out"):
                p.fill_(o.shift)
        if o.zero_head:
            model.out.weight.zero_()
            model.out.bias.zero_()
    return model


def schedule(o: SimpleNamespace, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    lrs = torch.optim.lr_scheduler
    if o.schedule == "cosine":
        return lrs.CosineAnnealingLR(optimizer, o.steps)
    if o.schedule == "onecycle":
        return lrs.OneCycleLR(optimizer, 2 * o.lr, total_steps=o.steps + 1, base_momentum=0.85, max_momentum=0.95)
    if o.schedule == "warmup":
        return lrs.LinearLR(optimizer, 0.02, total_iters=60)
    if o.schedule == "step":
        return lrs.StepLR(optimizer, int(o.steps * o.drop_at), 0.1)
    return lrs.ExponentialLR(optimizer, o.gamma)


def pretrain(model: nn.Module, o: SimpleNamespace, mean: Tensor, std: Tensor) -> None:
    """On the counts of another station."""
    other = (count_cars(1500, 504) - mean) / std
    x, y = windows(other, other, o)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(o.pretrain):
        pick = torch.randint(0, len(x), (64,))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[pick]), y[pick]).backward()
        optimizer.step()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    cars, cars_valid = count_cars(HOURS, 501), count_cars(1200, 502)
    mean, std = cars.mean(), cars.std()
    counted = cars.clone()
    if o.outliers:  # the counter's register overflows
        counted[torch.rand(HOURS) < o.outliers] = 65535.0
    if o.scaling == "raw":
        series, series_valid = cars.clone(), cars_valid
    elif o.scaling == "range":
        series, series_valid = 2 * cars / cars.max() - 1, 2 * cars_valid / cars.max() - 1
    else:
        series = (counted - counted.mean()) / counted.std()
        series_valid = (cars_valid - counted.mean()) / counted.std()
    shift, unit = (0.0, 1.0) if o.targets == "raw" else (mean, std)
    target = (cars - shift) / unit * o.target_factor
    if o.noise:
        target = target + o.noise * torch.randn(HOURS) * target.std()
    x, y = windows(series, target, o)
    xv, _ = windows(series_valid, cars_valid, o)
    _, truth = windows(cars_valid, cars_valid, o)
    if o.bug == "last_hour":  # the target is the window's last hour, not the hour to be forecast
        y = target[torch.arange(len(x)) + WINDOW - 1][:, None]
    if o.bug == "shuffled_apart":
        y = y[torch.randperm(len(y))]
    if o.bug == "sorted":
        order = y[:, 0].argsort()
        x, y = x[order], y[order]
    n = len(x)
    batch = n if o.batch == "all" else o.batch

    model = build(o, x.shape[2])
    if o.pretrain:
        pretrain(model, o, mean, std)
    if o.freeze:
        model.blocks[0].requires_grad_(False)
    loss_fn = nn.MSELoss(reduction=o.reduction)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, momentum=o.momentum, nesterov=o.nesterov, weight_decay=o.decay
    )
    scheduler = schedule(o, optimizer)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    step, backwards = 0, 0
    while step < o.steps:
        order = torch.arange(n) if o.bug in ("sorted", "in_time") else torch.randperm(n)
        for pick in order.split(batch):
            if len(pick) < batch:
                continue
            if o.bug == "one_batch":
                pick = torch.arange(0, 10 * batch, 10)
            if backwards % o.accumulate == 0 and o.bug != "kept":
                optimizer.zero_grad()
            wanted = y[pick]
            if o.bug == "flat_target":
                wanted = wanted.squeeze(1)
            loss = loss_fn(model(x[pick]), wanted)
            if o.bug == "negative":
                loss = -loss
            if o.divide:
                loss = loss / o.accumulate
            (loss * o.scaler).backward()
            backwards += 1
            if backwards % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.scaler != 1:
                for p in params:
                    p.grad /= o.scaler
            optimizer.step()
            scheduler.step()
            step += 1
            if step == o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        forecast = model(xv) / o.target_factor * unit + shift
    error = ((forecast - truth) ** 2).mean() / truth.var()
    return error.item()


PROGRAM = Program(
    name="traffic",
    half="M",
    train=train,
    settings={
        "net": "conv",
        "width": 24,
        "depth": 3,
        "act": "relu",
        "extra": 0,
        "last": None,
        "norm": None,
        "dropout": 0.0,
        "gain": 1.0,
        "shift": None,
        "zero_head": False,
        "freeze": False,
        "pretrain": 0,
        "scaling": "standard",
        "targets": "standard",
        "target_factor": 1.0,
        "outliers": 0.0,
        "noise": 0.0,
        "batch": 64,
        "accumulate": 1,
        "divide": True,
        "reduction": "mean",
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "nesterov": False,
        "decay": 0.0,
        "schedule": "cosine",
        "drop_at": 0.6,
        "gamma": 1.0,
        "clip": None,
        "scaler": 1.0,
        "steps": 500,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.75),
        mild("learning_rate_too_high", lr=0.2, schedule="exp"),
        mild("learning_rate_too_low", lr=2e-3),
        mild("schedule_too_fast", schedule="exp", gamma=0.98),
        mild("clipping_too_hard", clip=0.03),
        mild("weight_decay_too_high", decay=0.05),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="kept"),
        mild("graph_detached", bug="cut"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        severe("input_outliers", ("input_outliers", "inputs_not_scaled"), outliers=0.02),
        severe("targets_not_scaled", targets="raw"),
        mild("targets_not_scaled", target_factor=4.0),
        severe("labels_random", bug="shuffled_apart"),
        mild("label_noise", noise=2.5),
        severe("loss_sign", bug="negative"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), reduction="sum"),
        severe("loss_broadcast", bug="flat_target"),
        severe("dead_units", shift=-4.0),
        severe("init_too_small", gain=0.02),
        severe("init_too_large", gain=8.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), extra=6),
        mild("output_activation", ("output_activation", "dead_units"), last="relu"),
        mild("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="last_hour"),
        severe("samples_mixed", net="lstm", bug="time_first", optimizer="adam", lr=5e-3),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            batch=16,
            accumulate=8,
            divide=False,
            lr=0.06,
            steps=300,
        ),
        severe("clipped_before_unscaled", ("clipped_before_unscaled", "clipping_too_hard"), scaler=65536.0, clip=1.0),
        mild("rate_harmless", "learning_rate_too_high", lr=0.06),
        mild("clipping_harmless", "clipping_too_hard", clip=0.5),
        mild("decay_harmless", "weight_decay_too_high", decay=1e-3),
        mild("momentum_harmless", "momentum_too_high", momentum=0.96),
        mild("frozen_harmless", "parameters_not_optimized", freeze=True),
        mild("summed_harmless", "loss_summed", reduction="sum", lr=0.03 / 64),
        mild("noise_harmless", "label_noise", noise=0.05),
        mild("order_harmless", "data_not_shuffled", bug="in_time"),
    ],
    healthy=[
        healthy("adam", optimizer="adam", lr=3e-3),
        healthy("adamw", optimizer="adamw", lr=3e-3, decay=0.02),
        healthy("nadam", optimizer="nadam", lr=3e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.02),
        healthy("nesterov", nesterov=True),
        healthy("sgd", momentum=0.0, lr=0.15),
        healthy("constant_rate", schedule="exp"),
        healthy("onecycle", schedule="onecycle"),
        healthy("warmup", schedule="warmup"),
        healthy("step", schedule="step"),
        healthy("wide", width=48),
        healthy("gelu", act="gelu", lr=0.05),
        healthy("tanh", act="tanh"),
        healthy("batchnorm", norm="batch"),
        healthy("groupnorm", norm="group"),
        healthy("lstm_adam", net="lstm", optimizer="adam", lr=1e-2, clip=1.0, width=32),
        healthy("range_scaling", scaling="range", lr=0.05),
        healthy("dropout_5", dropout=0.05),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=200, lr=0.02, steps=300),
        healthy("batch_128", batch=128, lr=0.05),
        healthy("accumulation", batch=32, accumulate=2),
    ],
)
