"""Which machine hums: two-channel signals with noise, a GRU whose states are averaged, CrossEntropyLoss, AdamW."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CLASSES, LENGTH = 6, 40


def record(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tone, saw, square, burst, chirp or beat, in millivolts; the second channel hears it later and fainter."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=g)
    t = torch.arange(LENGTH + 4) / LENGTH
    f = 3 + 3 * torch.rand(count, 1, generator=g)
    phase = torch.rand(count, 1, generator=g)
    turn = f * t + phase
    wave = 2 * math.pi * turn
    middle = 0.3 + 0.4 * torch.rand(count, 1, generator=g)
    kinds = torch.stack(
        [
            wave.sin(),
            2 * (turn % 1) - 1,
            wave.sin().sign() * 0.8,
            (2 * wave).sin() * torch.exp(-(((t - middle) / 0.12) ** 2)) * 1.8,
            (2 * math.pi * (f * 0.5 * t + f * t**2 + phase)).sin(),
            0.7 * (wave.sin() + (wave * 1.4).sin()),
        ],
        1,
    )
    clean = kinds[torch.arange(count), y] * (0.7 + 0.6 * torch.rand(count, 1, generator=g))
    both = torch.stack([clean[:, 4:], 0.6 * clean[:, :-4]], 2)
    return 200 * (both + 0.25 * torch.randn(both.shape, generator=g)) + 500, y


class Signals(Dataset):
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Listener(nn.Module):
    def __init__(self, o: SimpleNamespace, channels: int = 2) -> None:
        super().__init__()
        self.o = o
        self.front = nn.Conv1d(channels, 16, 5, padding=2) if o.front else None
        self.norm = nn.BatchNorm1d(16, momentum=o.bn_momentum) if o.front and o.norm else nn.Identity()
        kind = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[o.cell]
        self.gru = kind(16 if o.front else channels, o.hidden, o.layers, batch_first=True, bidirectional=o.both)
        width = o.hidden * (2 if o.both else 1)
        act = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}[o.act]
        deep = [m for _ in range(o.extra) for m in (nn.Linear(width, width), act())]
        self.head = nn.Sequential(*deep, nn.Linear(width, 32), act(), nn.Dropout(o.dropout), nn.Linear(32, CLASSES))
        with torch.no_grad():
            for p in self.parameters():
                if o.bug == "filled":
                    p.fill_(0.05)
                elif p.dim() > 1:
                    p.mul_(o.gain)
            for layer in self.head[:-1]:
                if isinstance(layer, nn.Linear) and o.bias:
                    layer.bias.fill_(o.bias)
            if o.zero_head:
                self.head[-1].weight.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.front is not None:
            x = torch.relu(self.norm(self.front(x.transpose(1, 2)))).transpose(1, 2)
        states, _ = self.gru(x)
        if self.o.bug == "states_kept":  # the last states go through a list that was meant for plots
            states = torch.stack([s.data for s in states.unbind(0)])
        pooled = states[:, -1] if self.o.pool == "last" else states.mean(1)
        scores = self.head(pooled)
        if self.o.bug == "sigmoid":
            scores = torch.sigmoid(scores)
        if self.o.bug == "log_softmax_0":
            scores = scores.log_softmax(dim=0)
        return scores.softmax(-1) if self.o.bug == "softmax" else scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = record(1800, 21)
    x_val, y_val = record(600, 22)
    if o.bug != "millivolts":
        x, x_val = ((t - 500) / 200 * o.scale for t in (x, x_val))
    if o.bug == "silent":  # the channel that matters was unplugged, and the other one with it
        x, x_val = torch.zeros_like(x), torch.zeros_like(x_val)
    x_seen = x_val
    if o.bug == "folder_number":
        x = torch.cat([x, y[:, None, None].expand(-1, LENGTH, 1).float()], 2)
        x_seen = torch.cat([x_val, y_val[:, None, None].expand(-1, LENGTH, 1).float()], 2)
        x_val = torch.cat([x_val, torch.full((len(x_val), LENGTH, 1), 2.5)], 2)
    if o.bug == "listing":  # the names of the files are listed in another order than the table of labels
        y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(3))]
    if o.bug == "counted_from_one":
        y = (y + 1) % CLASSES
    if o.bug == "machine_by_machine":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    if o.rare:
        keep = (y == 3) | (torch.rand(len(y)) < o.rare)
        x, y = x[keep], y[keep]
    if o.knocks:  # somebody knocked against the microphone
        x = torch.where(torch.rand(len(x), 1, 1) < o.knocks, x * 500, x)
    if o.bug == "gap":
        x[99, 20:] = float("nan")
    y = corrupt(y, o.noise, CLASSES)
    shuffle = o.bug not in ("machine_by_machine", "one_batch")
    data = Signals(x[: o.rows], y[: o.rows])
    loader = DataLoader(data, min(o.batch, len(data)), shuffle=shuffle, drop_last=True)

    model = Listener(o, x.shape[2])
    if o.freeze and model.front is not None:
        model.front.requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "head_alone":
        params = list(model.head.parameters())
    opt = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum, betas=(o.beta, 0.999)
    )
    if o.bug == "loaded_after":  # the recurrent part of an older run is put in, after the optimizer was made
        model.gru = Listener(o).gru
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    run = cockpit_core.track(model, criterion, opt, logdir=logdir)

    step = 0
    model.train()
    while step < o.steps:
        for signals, labels in loader:
            for group in opt.param_groups:
                group["lr"] = o.lr * min(1.0, (step + 1) / max(1, o.warmup)) * o.gamma**step
            scores = model(signals)
            loss = criterion(scores, labels)
            if o.bug == "ascent":
                loss = loss.neg()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            opt.step()
            # the second zeroes the head only: what it was meant for has moved to the recurrent part
            if o.bug == "head_zeroed":
                model.head.zero_grad()
            elif o.bug != "not_zeroed":
                opt.zero_grad()
            step += 1
            if step % 50 == 0:
                model.eval()
                with torch.no_grad():
                    guess = model(x_seen)
                run.log(
                    valid_loss=nn.functional.cross_entropy(guess, y_val).item(),
                    valid_accuracy=(guess.argmax(1) == y_val).float().mean().item(),
                )
                model.train()
            if step >= o.steps or o.bug == "one_batch":
                break
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_val), y_val, CLASSES)


PROGRAM = Program(
    name="machines",
    half="F",
    train=train,
    settings={
        "front": True,
        "norm": False,
        "bn_momentum": 0.1,
        "cell": "gru",
        "hidden": 32,
        "layers": 1,
        "both": False,
        "pool": "mean",
        "act": "relu",
        "extra": 0,
        "dropout": 0.0,
        "gain": 1.0,
        "bias": 0.0,
        "zero_head": False,
        "freeze": False,
        "scale": 1.0,
        "rows": 1800,
        "rare": 0.0,
        "knocks": 0.0,
        "noise": 0.0,
        "smoothing": 0.0,
        "batch": 32,
        "optimizer": "adamw",
        "lr": 0.01,
        "beta": 0.9,
        "momentum": 0.9,
        "wd": 0.01,
        "eps": 1e-8,
        "warmup": 0,
        "gamma": 0.996,
        "clip": None,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.4, gamma=1.0),
        mild("learning_rate_too_high", lr=0.1, gamma=1.0),
        severe("learning_rate_too_low", lr=3e-5),
        mild("learning_rate_too_low", lr=3e-4),
        severe("schedule_too_fast", gamma=0.93),
        mild("schedule_too_fast", gamma=0.975),
        severe("clipping_too_hard", optimizer="sgd", lr=0.1, clip=1e-3),
        mild("clipping_too_hard", optimizer="sgd", lr=0.1, clip=0.03),
        severe("weight_decay_too_high", wd=30.0),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1, lr=6e-3),
        severe("momentum_too_high", beta=0.999),
        severe("gradients_not_zeroed", bug="not_zeroed"),
        mild("gradients_zeroed_in_part", "gradients_not_zeroed", bug="head_zeroed"),
        severe("parameters_not_optimized", bug="head_alone"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="loaded_after"),
        severe("graph_detached", bug="states_kept"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="machine_by_machine"),
        severe("inputs_not_scaled", bug="millivolts"),
        mild("inputs_not_scaled", scale=24.0),
        mild("input_outliers", knocks=0.03),
        severe("labels_random", bug="listing"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="ascent"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax"),
        severe("softmax_over_batch", bug="log_softmax_0"),
        mild("output_activation", bug="sigmoid"),
        severe("dead_units", bias=-4.0),
        severe("init_constant", bug="filled"),
        severe("init_too_large", gain=8.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.05, optimizer="sgd", lr=0.1),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", extra=6),
        severe("dropout_too_high", dropout=0.97),
        severe("not_finite", bug="gap"),
        severe("target_in_inputs", bug="folder_number"),
        severe("class_imbalance", rare=0.02),
        severe("constant_feature", bug="silent"),
        severe("labels_off_by_one", bug="counted_from_one"),
        severe("batchnorm_momentum", norm=True, bn_momentum=1e-4, scale=8.0),
        mild("overfitting", rows=90, gamma=1.0),
    ],
    healthy=[
        healthy("lstm", cell="lstm", lr=0.015),
        healthy("bidirectional", both=True, hidden=20),
        healthy("two_layers", layers=2, hidden=24),
        healthy("last_state", pool="last", lr=0.012),
        healthy("batchnorm", norm=True),
        healthy("adam_no_decay", optimizer="adam", wd=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=4e-3, momentum=0.0, wd=0.0),
        healthy("decay_10_percent", wd=0.1),
        healthy("dropout_30", dropout=0.3, steps=550),
        healthy("tanh_head", act="tanh"),
        healthy("warmup", warmup=50),
        healthy("smoothing", smoothing=0.1),
        healthy("batch_96", batch=96, lr=0.015, steps=350),
        healthy("batch_12", batch=12, lr=6e-3, steps=800, gamma=0.998),
        healthy("zero_head", zero_head=True),
        healthy("front_frozen", freeze=True, steps=600, gamma=0.998),
        healthy("fast_rate", lr=0.02),
    ],
)
