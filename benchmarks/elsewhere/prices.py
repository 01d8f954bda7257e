"""What a used car brings: low, middle and high price by the pinball loss, embedded categories, Adam, StepLR, the loss logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

BRANDS, FUELS, REGIONS = 12, 4, 20
LEVELS = (0.1, 0.5, 0.9)
ROWS, HELD_OUT = 4000, 800


def cars(tail: float | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Categories, numbers (kilometres, age in months, kilowatts, doors, owners) and the price in euro."""
    rng = torch.Generator().manual_seed(17)

    def uniform(*size: int) -> torch.Tensor:
        return torch.rand(*size, generator=rng)

    kinds = torch.stack([(uniform(ROWS) * top).long() for top in (BRANDS, FUELS, REGIONS)], 1)
    age = uniform(ROWS) * 180
    km = age * (400 + 1400 * uniform(ROWS)) + 500
    power = 45 + 160 * uniform(ROWS) ** 1.5
    doors = 3 + 2 * (uniform(ROWS) > 0.3).float()
    owners = 1 + (age / 60 * uniform(ROWS)).round()
    brand = 0.5 * torch.randn(BRANDS, generator=rng)
    holds = 0.7 + 0.6 * uniform(BRANDS)  # some brands keep their value
    fuel = torch.tensor([0.0, 0.1, 0.25, -0.15])
    region = 0.1 * torch.randn(REGIONS, generator=rng)
    log = 9.0 + brand[kinds[:, 0]] + fuel[kinds[:, 1]] + region[kinds[:, 2]] + 0.006 * (power - 90)
    log = log - holds[kinds[:, 0]] * (age / 120 + km / 250_000) - 0.05 * owners + 0.02 * doors
    noise = torch.randn(ROWS, generator=rng)
    if tail:
        noise = noise / (torch.randn(5, ROWS, generator=rng).pow(2).mean(0).sqrt()) * tail
    price = (log + (0.06 + 0.0004 * age) * noise).exp()
    return kinds, torch.stack([km, age, power, doors, owners], 1), price


class Pinball(nn.Module):
    """The mean over the three levels."""

    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug

    def forward(self, low_middle_high: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for n, level in enumerate(LEVELS):
            error = price - low_middle_high[:, n]
            both = torch.stack([level * error, (level - 1) * error])
            each = both.min(0).values if self.bug == "minimum" else both.max(0).values
            total = total + (each.sum() if self.bug == "summed" else each.mean())
        return total / len(LEVELS)


class CarNet(nn.Module):
    def __init__(self, numbers: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.brand, self.fuel, self.region = nn.Embedding(BRANDS, 6), nn.Embedding(FUELS, 3), nn.Embedding(REGIONS, 5)
        act = {"relu": nn.ReLU, "elu": nn.ELU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.activation]
        layers, width = [], 14 + numbers
        for _ in range(o.depth):
            layers += [nn.Linear(width, o.width), act(), nn.Dropout(o.dropout)]
            width = o.width
        self.body = nn.Sequential(*layers)
        self.out = nn.Linear(width, len(LEVELS))
        for layer in [*self.body, self.out]:
            if isinstance(layer, nn.Linear):
                if o.gain == 0:
                    nn.init.zeros_(layer.weight)
                    nn.init.zeros_(layer.bias)
                else:
                    layer.weight.data *= o.gain
                if o.bias is not None and layer is not self.out:
                    nn.init.constant_(layer.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.out.weight)

    def forward(self, kinds: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        parts = [self.brand(kinds[:, 0]), self.fuel(kinds[:, 1]), self.region(kinds[:, 2]), numbers]
        answer = self.out(self.body(torch.cat(parts, 1)))
        if self.bug == "share":
            return torch.sigmoid(answer)
        if self.bug == "never_negative":  # prices are positive; standardised ones are not
            return torch.relu(answer)
        return answer


def prepare(o: SimpleNamespace):
    kinds, numbers, price = cars(o.tail)
    known = slice(0, ROWS - HELD_OUT)
    mean, std = price[known].mean(), price[known].std()
    truth = (price - mean) / std
    if o.bug != "raw":
        numbers = (numbers - numbers[known].mean(0)) / numbers[known].std(0)
    if o.bug == "thousands":
        numbers[:, :2] = numbers[:, :2] * 16 + 20
    if o.bug == "two_columns_empty":  # of an export with other names
        numbers[:, :3] = 0.0
    seen = numbers.clone()
    if o.bug == "listed":  # the price that the shop put on the page afterwards
        seen = torch.cat([numbers, truth[:, None]], 1)
        numbers = torch.cat([numbers, torch.zeros(ROWS, 1)], 1)
    x = seen[known].clone()
    if o.outliers:  # metres instead of kilometres
        x[torch.rand(len(x)) < o.outliers] *= o.outlier_size
    if o.bug == "gaps":
        x[torch.rand(x.shape) < 0.002] = float("nan")
    y = truth[known] * o.unit + o.offset
    if o.bug == "sorted_apart":
        y = y[torch.randperm(len(y))]
    if o.wrong:
        y = torch.where(torch.rand(len(y)) < o.wrong, y[torch.randperm(len(y))], y)
    k = kinds[known]
    if o.bug == "by_price":
        order = y.argsort()
        k, x, y = k[order], x[order], y[order]
    held = slice(ROWS - HELD_OUT, ROWS)
    return (k[: o.rows], x[: o.rows], y[: o.rows]), (kinds[held], seen[held], numbers[held], truth[held]), truth[known]


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    (k, x, y), (k_valid, x_seen, x_valid, y_valid), everything = prepare(o)
    net = CarNet(x.shape[1], o)
    pinball = Pinball(o)
    optimizer = make_optimizer(
        o.optimizer, net.parameters(), o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps, nesterov=o.momentum > 0
    )
    if o.bug == "more_brands":  # tables made larger for new categories, after the optimizer
        net.brand, net.region = nn.Embedding(BRANDS, 6), nn.Embedding(REGIONS, 5)
        net.body[0] = nn.Linear(net.body[0].in_features, o.width)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, o.decay_every, gamma=o.gamma)
    run = cockpit_core.track(net, pinball, optimizer, logdir=logdir)

    loader = DataLoader(TensorDataset(k, x, y), o.batch, shuffle=o.bug != "by_price")
    if o.batch >= len(k):
        loader = [(k, x, y)]
    step = 0
    while step < o.steps:
        net.train()
        for kinds, numbers, price in loader:
            if o.bug == "column_of_prices":
                price = price[:, None]
            optimizer.zero_grad()
            loss = pinball(net(kinds, numbers), price)
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(net.parameters(), o.clip)
            if o.bug == "schedule_first":
                schedule.step()
            optimizer.step()
            if o.bug != "schedule_first":
                schedule.step()
            step += 1
            if step >= o.steps:
                break
        net.eval()
        with torch.no_grad():
            run.log(valid_loss=pinball(net(k_valid, x_seen), y_valid * o.unit + o.offset).item())
    run.close()

    judge = Pinball(SimpleNamespace(bug=None))
    constant = everything.quantile(torch.tensor(LEVELS)).expand(len(y_valid), -1)
    net.eval()
    with torch.no_grad():
        answer = (net(k_valid, x_valid) - o.offset) / o.unit
        return (judge(answer, y_valid) / judge(constant, y_valid)).item()


PROGRAM = Program(
    name="prices",
    half="D",
    train=train,
    settings={
        "depth": 2,
        "width": 48,
        "activation": "relu",
        "dropout": 0.0,
        "gain": 1.0,
        "bias": None,
        "zero_head": False,
        "rows": ROWS - HELD_OUT,
        "tail": None,
        "wrong": 0.0,
        "outliers": 0.0,
        "outlier_size": 60.0,
        "unit": 1.0,
        "offset": 0.0,
        "batch": 64,
        "optimizer": "adam",
        "lr": 6e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "clip": None,
        "decay_every": 120,
        "gamma": 0.4,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.24),
        mild("learning_rate_too_high", lr=0.06, gamma=1.0),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", decay_every=8),
        mild("schedule_too_fast", decay_every=25),
        mild(
            "schedule_before_step", ("schedule_before_step", "schedule_too_fast"), bug="schedule_first", decay_every=10
        ),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1),
        mild("weight_decay_too_high", wd=0.06),
        mild("batch_too_small", batch=2),
        severe("momentum_too_high", optimizer="sgd", lr=0.1, momentum=0.999),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="more_brands"),
        severe("data_not_shuffled", bug="by_price"),
        severe("inputs_not_scaled", bug="raw"),
        mild("inputs_not_scaled", bug="thousands"),
        severe("input_outliers", outliers=0.03, outlier_size=60.0),
        mild("input_outliers", outliers=0.01, outlier_size=15.0),
        severe("targets_not_scaled", unit=1000.0, offset=3000.0),
        mild("targets_not_scaled", unit=30.0, offset=100.0),
        severe("labels_random", bug="sorted_apart"),
        severe("loss_sign", bug="minimum"),
        severe("loss_broadcast", bug="column_of_prices"),
        severe("output_activation", bug="share"),
        mild("output_activation", bug="never_negative"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", gain=0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), depth=8, activation="sigmoid"),
        severe("missing_nonlinearity", activation="none"),
        severe("target_in_inputs", bug="listed"),
        severe("constant_feature", bug="two_columns_empty"),
        severe("not_finite", bug="gaps"),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3, steps=450, decay_every=200),
        healthy("lr_15e-3", lr=1.5e-2),
        healthy("heavy_tails", tail=1.0),
        healthy("sgd_nesterov", optimizer="sgd", lr=0.2, steps=450, decay_every=200),
        healthy("rmsprop_clipped", optimizer="rmsprop", lr=2e-3, clip=1.0),
        healthy("adagrad", optimizer="adagrad", lr=0.05, gamma=1.0),
        healthy("adamw_decay", optimizer="adamw", wd=0.05),
        healthy("zero_head", zero_head=True),
        healthy("full_batch", batch=ROWS, lr=1e-2, steps=300),
        healthy("batch_16", batch=16, lr=4e-3, steps=500, decay_every=200),
        healthy("elu_three_layers", activation="elu", depth=3, width=32),
        healthy("dropout_005", dropout=0.05),
        healthy("some_prices_wrong", wrong=0.1),
        healthy("rate_to_nothing", decay_every=40, gamma=0.6, lr=1e-2),
    ],
)
