"""Range of an electric car in km from nine readings: a residual MLP with LayerNorm, SmoothL1Loss, AdamW and a cosine
schedule with LambdaLR. The validation set is looked at every 40 steps."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

READINGS = 9


def trips(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(n, generator=g)

    battery = uniform(24, 95)  # kWh
    charge = uniform(15, 100)  # %
    speed = uniform(30, 145)  # km/h
    outside = uniform(-18, 38)  # degrees Celsius
    mass = uniform(1050, 2700)  # kg
    drag = uniform(0.48, 0.95)  # m2
    climb = uniform(-900, 1300)  # m over the trip
    age = uniform(0, 160_000)  # km on the clock
    pressure = uniform(1.7, 3.1)  # bar
    rolling = mass * 9.81 * 0.009 * (1 + 0.25 * (2.5 - pressure).clamp_min(0))
    force = rolling + 0.5 * 1.2 * drag * (speed / 3.6) ** 2 + 0.003 * mass * climb / 100
    cabin = 90 * (outside - 20).abs() * (50 / speed) ** 0.7
    usable = battery * charge / 100 * (1 - age / 800_000) * (1 - 0.004 * (10 - outside).clamp_min(0))
    km = 3600 * usable / (force + cabin + 120).clamp_min(150)
    x = torch.stack([battery, charge, speed, outside, mass, drag, climb, age, pressure], 1)
    return x, km + 4 * torch.randn(n, generator=g)


class Block(nn.Module):
    def __init__(self, width: int, o: SimpleNamespace):
        super().__init__()
        self.norm = nn.LayerNorm(width) if o.norm else nn.Identity()
        self.up = nn.Linear(width, o.expand * width)
        self.down = nn.Linear(o.expand * width, width)
        self.o = o

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = ACTIVATIONS[self.o.act](self.up(self.norm(x)))
        h = self.down(h)
        if self.o.bug == "no_skip":
            return torch.sigmoid(h)
        return x + h


ACTIVATIONS = {"gelu": nn.functional.gelu, "relu": torch.relu, "tanh": torch.tanh, "silu": nn.functional.silu}


class RangeModel(nn.Module):
    def __init__(self, columns: int, o: SimpleNamespace):
        super().__init__()
        self.inlet = nn.Linear(columns, o.width)
        self.blocks = nn.Sequential(*[Block(o.width, o) for _ in range(o.blocks)])
        self.norm = nn.LayerNorm(o.width) if o.norm else nn.Identity()
        self.outlet = nn.Linear(o.width, 1)
        self.o = o
        with torch.no_grad():
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    if o.init == "huge":
                        m.weight.normal_(std=4.0)
                    elif o.init == "xavier":
                        nn.init.xavier_uniform_(m.weight)
                if isinstance(m, Block) and o.fixup:
                    m.down.weight.zero_()
            if o.zero_head:
                self.outlet.weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.blocks(self.inlet(x))
        if self.o.bug == "no_grad_body":
            with torch.no_grad():
                h = self.blocks(self.inlet(x))
        y = self.outlet(self.norm(h))
        if self.o.bug == "tanh_at_end":
            y = 0.5 * torch.tanh(y)
        if self.o.bug == "relu_at_end":
            y = torch.relu(y)  # "a range is never negative"
        return y


def scaled(x, xv, o):
    if o.scaling == "raw":
        return x, xv
    if o.scaling == "range":
        low, high = x.amin(0), x.amax(0)
        return (x - low) / (high - low), (xv - low) / (high - low)
    mean, std = x.mean(0), x.std(0).clamp_min(1e-6)
    if o.bug == "row_statistics":  # of each car instead of each reading
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True)
        return (x - mean) / std, (xv - xv.mean(1, keepdim=True)) / xv.std(1, keepdim=True)
    return (x - mean) / std * o.factor, (xv - mean) / std * o.factor


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, km = trips(2400, 61)
    xv, km_v = trips(800, 62)
    if o.rows:
        x, km = x[: o.rows], km[: o.rows]
    if o.bug == "sensor_dead":  # these readings were never written
        x[:, :3] = xv[:, :3] = 0.0
    if o.bug == "spikes":  # a loose contact
        x[torch.rand(x.shape) < 0.004] = 16_777_215.0
    x, xv = scaled(x, xv, o)
    centre, spread = (0.0, 1.0) if o.bug == "target_in_metres" else (km.mean().item(), km.std().item())
    y, yv = (km - centre) / spread, (km_v - centre) / spread
    if o.bug == "target_in_metres":
        y, yv, spread = y * 1000, yv * 1000, 0.001
    if o.bug == "range_of_yesterday":  # the display already shows the answer, but not in a new car
        x, xv = torch.cat([x, y[:, None]], 1), torch.cat([xv, torch.zeros(len(xv), 1)], 1)
    if o.bug == "joined_by_row":  # after one table was filtered
        y = y.roll(1)
    if o.bug == "root_of_climb":
        x[:, 6], xv[:, 6] = x[:, 6].sqrt(), xv[:, 6].sqrt()
    if o.noise:
        wrong = torch.rand(len(y)) < o.noise
        y = torch.where(wrong, y[torch.randperm(len(y))], y)

    batch = min(o.batch, len(x))
    loader = DataLoader(TensorDataset(x, y.unsqueeze(1)), batch_size=batch, shuffle=True, drop_last=True)
    model = RangeModel(x.shape[1], o)
    if o.earlier:
        warm = torch.optim.AdamW(model.parameters(), lr=2e-3)
        for _ in range(o.earlier):
            rows = torch.randint(0, len(x), (64,))
            warm.zero_grad()
            nn.functional.mse_loss(model(x[rows]), y[rows, None]).backward()
            warm.step()
    if o.freeze:
        model.inlet.requires_grad_(False)

    criterion = {"smooth_l1": nn.SmoothL1Loss(), "mse": nn.MSELoss(), "l1": nn.L1Loss()}[o.loss]
    optimizer = make_optimizer(
        o.optimizer,
        [p for p in model.parameters() if p.requires_grad],
        o.lr,
        weight_decay=o.decay,
        betas=(o.beta1, 0.999),
        momentum=0.9,
        eps=o.eps,
    )
    epochs = max(1, o.steps // len(loader))

    def factor(step: int) -> float:
        if o.bug == "epochs_for_steps":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, step / epochs)))
        if step < o.warmup:
            return (step + 1) / o.warmup
        if o.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, step / o.steps)))
        if o.schedule == "power":
            return o.gamma**step
        return 1.0

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    def forever():
        while True:
            yield from loader

    source = forever()
    kept = next(iter(loader))
    model.train()
    for step in range(o.steps):
        if o.bug != "grads_pile_up":
            optimizer.zero_grad()
        for _ in range(o.accumulate):
            xb, yb = kept if o.bug == "overfit_check_left_in" else next(source)
            if o.jitter:
                xb = xb + o.jitter * torch.randn_like(xb)
            if o.bug == "squeezed_target":
                yb = yb.squeeze(1)
            loss = criterion(model(xb), yb)
            (loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if (step + 1) % 40 == 0:
            model.eval()
            with torch.no_grad():
                run.log(valid_loss=criterion(model(xv), yv.unsqueeze(1)).item())
            model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        predicted = model(xv).squeeze(1) * spread + centre
        return ((predicted - km_v).abs().mean() / (km_v - km_v.mean()).abs().mean()).item()


PROGRAM = Program(
    name="car_range",
    half="I",
    train=train,
    settings={
        "rows": None,
        "scaling": "standard",
        "factor": 1.0,
        "noise": 0.0,
        "jitter": 0.0,
        "width": 48,
        "blocks": 2,
        "expand": 2,
        "act": "gelu",
        "norm": True,
        "init": "default",
        "fixup": False,
        "zero_head": False,
        "earlier": 0,
        "freeze": False,
        "loss": "smooth_l1",
        "batch": 64,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 3e-3,
        "beta1": 0.9,
        "eps": 1e-8,
        "decay": 0.01,
        "schedule": "cosine",
        "gamma": 1.0,
        "warmup": 0,
        "clip": None,
        "steps": 400,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3, schedule="none"),
        mild("learning_rate_too_high", lr=0.03, schedule="none"),
        severe("learning_rate_too_low", lr=1e-5),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", bug="epochs_for_steps"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.05),
        mild("weight_decay_too_high", decay=8.0),
        severe("batch_too_small", batch=2),
        severe("momentum_too_high", beta1=0.999),
        severe("adam_eps_too_large", eps=0.1),
        severe("gradients_not_zeroed", bug="grads_pile_up"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="no_grad_body"),
        severe("batch_repeated", bug="overfit_check_left_in"),
        severe("inputs_not_scaled", scaling="raw"),
        mild("inputs_not_scaled", factor=255.0),
        severe("input_outliers", bug="spikes"),
        severe("targets_not_scaled", bug="target_in_metres"),
        severe("labels_random", bug="joined_by_row"),
        mild("label_noise", noise=0.4),
        severe("loss_broadcast", bug="squeezed_target"),
        severe("output_activation", bug="relu_at_end"),
        mild("output_activation", ("output_activation", "saturated_units"), bug="tanh_at_end"),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), bug="no_skip", norm=False, blocks=6),
        severe("init_too_large", init="huge"),
        severe("wrong_axis_scaled", "inputs_not_scaled", bug="row_statistics"),
        severe("target_in_inputs", bug="range_of_yesterday"),
        severe("constant_feature", bug="sensor_dead"),
        severe("not_finite", bug="root_of_climb"),
        mild("overfitting", rows=80),
    ],
    healthy=[
        healthy("rate_third", lr=1.2e-3),
        healthy("rate_double", lr=6e-3),
        healthy("constant_rate", schedule="none", lr=2e-3),
        healthy("warmup", warmup=40),
        healthy("adam", optimizer="adam", decay=0.0),
        healthy("nadam", optimizer="nadam", decay=0.0, lr=2e-3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.08, decay=1e-4),
        healthy("rmsprop", optimizer="rmsprop", lr=5e-4, decay=0.0),
        healthy("mse", loss="mse"),
        healthy("l1", loss="l1"),
        healthy("batch_32", batch=32),
        healthy("batch_256", batch=256, lr=5e-3, steps=300),
        healthy("accumulated", batch=32, accumulate=2),
        healthy("wide", width=96, lr=2e-3),
        healthy("four_blocks", blocks=4),
        healthy("relu", act="relu"),
        healthy("no_norm", norm=False),
        healthy("xavier", init="xavier"),
        healthy("fixup", fixup=True),
        healthy("zero_head", zero_head=True),
        healthy("unit_range", scaling="range", lr=4e-3),
        healthy("decay_10", decay=0.1),
        healthy("clip_1", clip=1.0),
        healthy("jitter", jitter=0.02),
        healthy("fine_tuned", earlier=300, freeze=True, lr=1e-3, steps=200),
        healthy("slow_power", schedule="power", gamma=0.994),
        healthy("few_wrong", noise=0.03),
        healthy("longer", steps=600),
    ],
)
