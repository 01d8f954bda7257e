"""Forecast of three sensors of a boiler, four steps ahead, from windows of a long recording: an LSTM, nn.MSELoss, Adam,
gradients clipped at 1.0; dataclasses of windows and a class that fits."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

WINDOW, AHEAD, CHANNELS = 20, 4, 3


@dataclass
class Windows:
    """All windows of a recording and what the sensors show afterwards."""

    past: Tensor  # [n, time, channel]
    future: Tensor  # [n, channel]

    def __len__(self) -> int:
        return len(self.future)


def record(length: int, noise: float) -> Tensor:
    """Pressure, temperature and flow: a driven, damped swing, its delayed image and their product."""
    g = torch.Generator().manual_seed(21)
    kicks = (torch.rand(length, generator=g) < 0.03).float() * torch.randn(length, generator=g) * 0.8
    drift = torch.randn(length, generator=g) * noise
    a, b, c, rows = 1.0, 0.0, 0.0, []
    for t in range(length):
        a, b = a + 0.35 * b, b - 0.35 * a - 0.04 * b * (a * a - 1.0) + kicks[t].item()
        a, b = max(-4.0, min(4.0, a)), max(-4.0, min(4.0, b))
        c = 0.85 * c + 0.3 * a * (1 if b > 0 else 0.2) + drift[t].item()
        rows.append((a, c, 0.5 * a * c))
    series = torch.tensor(rows)
    return series + noise * torch.randn(series.shape, generator=g)


def cut(series: Tensor, ahead: int) -> Windows:
    past = series.unfold(0, WINDOW, 1).transpose(1, 2)[:-AHEAD]
    starts = torch.arange(len(past))
    return Windows(past.contiguous(), series[starts + WINDOW - 1 + ahead])


class Forecaster(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        kind = {"lstm": nn.LSTM, "gru": nn.GRU}[o.cell]
        self.rnn = kind(CHANNELS + (o.bug == "future_column"), o.hidden, o.layers, batch_first=o.bug != "time_first")
        self.drop = nn.Dropout(o.dropout)
        more: list[nn.Module] = []
        for _ in range(o.sigmoids):
            more += [nn.Linear(o.hidden, o.hidden), nn.Sigmoid()]
        self.more = nn.Sequential(*more)
        self.out = nn.Linear(o.hidden, 1 if o.bug == "one_output" else CHANNELS)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if o.init == "orthogonal" and "weight_hh" in name:
                    for block in p.chunk(4):
                        nn.init.orthogonal_(block)
                if o.init == "zeros":
                    p.zero_()
                if "weight" in name:
                    p.mul_(o.gain)
                if o.forget and "bias_hh" in name:
                    p[o.hidden : 2 * o.hidden] = o.forget
            if o.zero_head:
                self.out.weight.zero_()

    def forward(self, past: Tensor) -> Tensor:
        states, _ = self.rnn(past)
        last = states[:, -1]
        if self.o.bug == "state_kept":
            last = last.detach()  # "do not backpropagate through old windows"
        y = self.out(self.more(self.drop(last)))
        return {"none": lambda v: v, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[self.o.last](y)


class Fit:
    def __init__(self, model: Forecaster, data: Windows, o: SimpleNamespace, frozen: bool = False):
        self.frozen = frozen
        self.model, self.data, self.o = model, data, o
        self.criterion = {"mse": nn.MSELoss, "huber": nn.HuberLoss}[o.loss](reduction=o.reduction)
        self.optimizer = self.make_optimizer()
        self.position = 0

    def make_optimizer(self) -> torch.optim.Optimizer:
        o, model = self.o, self.model
        params = list(model.out.parameters()) if o.bug == "only_out" else list(model.parameters())
        if self.frozen:
            model.rnn.requires_grad_(False)
            params = [p for p in params if p.requires_grad]
        return make_optimizer(
            o.optimizer, params, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps, betas=(o.beta1, 0.999)
        )

    def batch(self) -> tuple[Tensor, Tensor]:
        n, size = len(self.data), min(self.o.batch, len(self.data))
        if self.o.bug == "one_batch":
            rows = torch.arange(size)
        elif self.o.bug in ("in_order", "sorted"):
            rows = (torch.arange(size) + self.position) % n
            self.position += size
        else:
            rows = torch.randperm(n)[:size]
        return self.data.past[rows], self.data.future[rows]

    def loss(self) -> Tensor:
        past, future = self.batch()
        if self.o.input_noise:
            past = past + self.o.input_noise * torch.randn_like(past)
        forecast = self.model(past)
        if self.o.bug == "one_output":
            return self.criterion(forecast, future[:, 0])
        if self.o.bug == "ratio":
            return ((forecast - future) / (future * (future > 0))).pow(2).mean()
        loss = self.criterion(forecast, future)
        return -loss if self.o.bug == "score" else loss

    def step(self, i: int, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        o = self.o
        if i % o.zero_every == 0:
            self.optimizer.zero_grad()
        if o.bug == "scheduler_first":
            scheduler.step()
        for _ in range(o.accumulate):
            loss = self.loss()
            (loss / o.accumulate if o.divide else loss).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
        self.optimizer.step()
        if o.bug != "scheduler_first":
            scheduler.step()


def prepare(o: SimpleNamespace) -> tuple[Windows, Windows, Tensor, Tensor]:
    """Windows for training and for validation, and what brings forecasts back to standard units."""
    series = record(3000, o.noise)
    series = (series - series[:2200].mean(0)) / series[:2200].std(0)
    if o.outliers:  # the sensors' cable was loose at times
        series[:2200][torch.rand(2200) < o.outliers] *= o.outlier_size
    train, valid = cut(series[:2200], 0 if o.bug == "same_time" else AHEAD), cut(series[2200:], AHEAD)
    train = Windows(train.past[: o.rows], train.future[: o.rows])
    for w in (train, valid):
        w.past = w.past * o.x_scale + o.x_offset
    train.future = train.future * o.y_scale + o.y_offset
    if o.bug == "futures_mixed":
        train.future = train.future[torch.randperm(len(train))]
    if o.bug == "sorted":
        order = train.future[:, 0].argsort()
        train = Windows(train.past[order], train.future[order])
    if o.mislabelled:
        swap = torch.rand(len(train)) < o.mislabelled
        train.future[swap] = train.future[torch.randint(0, len(train), (int(swap.sum()),))]
    if o.bug == "future_column":  # the table was joined before the shift
        column = train.future[:, None, :1].expand(-1, WINDOW, -1)
        train.past = torch.cat([train.past, column], 2)
        valid.past = torch.cat([valid.past, torch.zeros(len(valid), WINDOW, 1)], 2)
    return train, valid, torch.tensor(o.y_scale), torch.tensor(o.y_offset)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data, valid, scale, offset = prepare(o)
    model = Forecaster(o)
    fit = Fit(model, data, o)
    if o.earlier:
        for _ in range(o.earlier):
            fit.optimizer.zero_grad()
            fit.loss().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            fit.optimizer.step()
        saved = {"model": model.state_dict(), "optimizer": fit.optimizer.state_dict()}
        model = Forecaster(o)
        model.load_state_dict(saved["model"])
        fit = Fit(model, data, o, frozen=o.frozen)
        if o.resume:
            fit.optimizer.load_state_dict(saved["optimizer"])
            for group in fit.optimizer.param_groups:
                group["lr"] = o.lr
    if o.bug == "second_model":
        model = fit.model = Forecaster(o)
    factors = {
        "constant": lambda i: 1.0,
        "half": lambda i: 0.5 ** (i // 150),
        "decay": lambda i: o.gamma**i,
        "linear": lambda i: max(0.0, 1 - i / o.steps),
        "warmup": lambda i: min(1.0, (i + 1) / 50),
    }
    scheduler = torch.optim.lr_scheduler.LambdaLR(fit.optimizer, factors[o.schedule])
    run = cockpit_core.track(model, fit.criterion, fit.optimizer, logdir=logdir)
    model.train()
    for i in range(o.steps):
        fit.step(i, scheduler)
    run.close()

    model.eval()
    with torch.no_grad():
        forecast = (model(valid.past) - offset) / scale
        return ((forecast - valid.future).pow(2).mean(0) / valid.future.var(0)).mean().item()


HIGH = ("learning_rate_too_high", "saturated_units")
PROGRAM = Program(
    name="sensors",
    half="H",
    train=train,
    settings={
        "noise": 0.15,
        "rows": 2200,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "x_scale": 1.0,
        "x_offset": 0.0,
        "y_scale": 1.0,
        "y_offset": 0.0,
        "mislabelled": 0.0,
        "input_noise": 0.0,
        "cell": "lstm",
        "hidden": 40,
        "layers": 1,
        "sigmoids": 0,
        "dropout": 0.0,
        "last": "none",
        "init": "default",
        "gain": 1.0,
        "forget": 0.0,
        "zero_head": False,
        "frozen": False,
        "earlier": 0,
        "resume": False,
        "batch": 48,
        "accumulate": 1,
        "divide": True,
        "zero_every": 1,
        "loss": "mse",
        "reduction": "mean",
        "optimizer": "adam",
        "lr": 8e-3,
        "momentum": 0.9,
        "beta1": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "half",
        "gamma": 1.0,
        "clip": 1.0,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", HIGH, lr=1.0),
        severe("learning_rate_too_low", lr=2.7e-5),
        mild("learning_rate_too_low", lr=2.7e-4),
        severe("schedule_too_fast", schedule="decay", gamma=0.95),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.2),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.06),
        severe("momentum_too_high", optimizer="sgd", lr=0.2, momentum=0.999),
        severe("adam_eps_too_large", eps=0.1),
        severe("gradients_not_zeroed", zero_every=1000, clip=None),
        severe("parameters_not_optimized", bug="only_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="second_model"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="state_kept"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "saturated_units"), x_scale=50.0, x_offset=400.0),
        severe("input_outliers", ("input_outliers", "saturated_units"), outliers=0.03),
        severe("targets_not_scaled", y_scale=1000.0, y_offset=3000.0),
        mild("targets_not_scaled", y_scale=30.0, y_offset=100.0),
        severe("labels_random", bug="futures_mixed"),
        severe("label_noise", mislabelled=0.5),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="score"),
        severe("loss_broadcast", bug="one_output", batch=CHANNELS * 16),
        severe("targets_not_shifted", bug="same_time"),
        severe("samples_mixed", bug="time_first"),
        severe("init_constant", init="zeros"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), sigmoids=6),
        severe("dropout_too_high", dropout=0.97),
        severe("output_activation", last="sigmoid"),
        severe("target_in_inputs", bug="future_column"),
        severe("overfitting", rows=60),
        severe("not_finite", bug="ratio"),
    ],
    healthy=[
        healthy("rate_third", lr=3e-3),
        healthy("rate_triple", lr=0.02),
        healthy("constant_rate", schedule="constant", lr=5e-3),
        healthy("linear_to_zero", schedule="linear"),
        healthy("warmup", schedule="warmup", lr=6e-3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.2),
        healthy("adamw", optimizer="adamw", wd=0.02),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=5e-3),
        healthy("adagrad", optimizer="adagrad", lr=0.04, schedule="constant"),
        healthy("gru", cell="gru"),
        healthy("two_layers", layers=2, hidden=32),
        healthy("wide", hidden=80, lr=5e-3),
        healthy("dropout", dropout=0.1),
        healthy("orthogonal", init="orthogonal"),
        healthy("forget_bias", forget=1.0),
        healthy("zero_head", zero_head=True),
        healthy("batch_16", batch=16, lr=5e-3),
        healthy("batch_256", batch=256, lr=0.012, steps=300),
        healthy("small_pieces", batch=8, accumulate=4, steps=350),
        healthy("huber", loss="huber"),
        healthy("no_clipping", clip=None),
        healthy("clip_quarter", clip=0.25),
        healthy("noise_on_inputs", input_noise=0.05),
        healthy("resumed", earlier=250, resume=True, lr=3e-3, steps=250),
        healthy("head_only_again", earlier=400, frozen=True, lr=4e-3, steps=250),
    ],
)
