"""Which of five activities a phone records: windows of three accelerations in mg, a GRU, CrossEntropyLoss, RMSprop,
clipped gradients, epochs over a shuffled index. The loop keeps a running training loss only."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

ACTIVITIES = ["walk", "run", "stairs", "cycle", "bus"]
K, T = len(ACTIVITIES), 24


def record(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Windows of 24 samples at 12 Hz."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, K, (n,), generator=g)
    pace = torch.tensor([1.7, 2.6, 1.5, 1.2, 3.1])[y] * (1 + 0.12 * torch.randn(n, generator=g))
    swing = torch.tensor([210.0, 420.0, 240.0, 200.0, 190.0])[y] * torch.exp(0.35 * torch.randn(n, generator=g))
    lag = torch.tensor([0.0, 0.4, 1.6, 1.6, 0.8])[y][:, None]
    second = torch.tensor([0.5, 0.3, 0.1, 0.0, 0.4])[y][:, None]
    t = torch.arange(T)[None] / 12
    phase = 6.2832 * (pace[:, None] * t + torch.rand(n, 1, generator=g))
    up = phase.sin() + second * (2 * phase + 1).sin()
    ahead = 0.7 * (phase + lag).sin()
    side = 0.4 * (0.5 * phase + lag).cos()
    motion = torch.stack([up, ahead, side], 2) * swing[:, None, None]
    tilt = torch.tensor([930.0, 250.0, 80.0]) + 90 * torch.randn(n, 1, 3, generator=g)
    return motion + tilt + 70 * torch.randn(n, T, 3, generator=g), y


class Recogniser(nn.Module):
    def __init__(self, channels: int, o: SimpleNamespace):
        super().__init__()
        self.o = o
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[o.cell]
        batch_first = o.bug != "batch_first_left_out"
        self.rnn = kind(channels, o.hidden, batch_first=batch_first, bidirectional=o.both_ways)
        width = o.hidden * (2 if o.both_ways else 1)
        self.upper = nn.ModuleList([nn.GRU(width, width, batch_first=True) for _ in range(o.upper)])
        self.mix = nn.Linear(width, width)
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(width, K)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        o = self.o
        out, _ = self.rnn(x)
        if o.bug == "states_detached":  # "or the graph grows with every window"
            out = out.detach()
        for layer in self.upper:
            out, _ = layer(out)
        h = out.mean(1) if o.pool == "mean" else out[:, -1]
        h = self.drop(torch.relu(self.mix(h)))
        return self.head(h)


def prepare(o: SimpleNamespace):
    x, y = record(1800, 71)
    xv, yv = record(600, 72)
    if o.windows:
        x, y = x[: o.windows], y[: o.windows]
    if o.bug == "lost_samples":  # where the phone lost a sample it wrote -32768
        x = torch.where(torch.rand(len(x), T, 1) < 0.01, torch.tensor(-32768.0), x)
    if o.bug == "paused":  # the sensor slept, and the last value was held for the window
        x[:, 1:], xv[:, 1:] = x[:, :1], xv[:, :1]
    if o.scaling == "standard":
        mean, std = x.mean((0, 1)), x.std((0, 1))
        x, xv = (x - mean) / std, (xv - mean) / std
    elif o.scaling == "rough":
        x, xv = (x - 400) / 250, (xv - 400) / 250
    elif o.scaling == "window":
        x = (x - x.mean(1, keepdim=True)) / 200
        xv = (xv - xv.mean(1, keepdim=True)) / 200
    if o.bug == "log_scaled":
        x, xv = torch.log(x.abs() * 20 // 1), torch.log(xv.abs() * 20 // 1)
    if o.bug == "marker_channel":  # the recorder's event marker, set by the person who labelled
        x = torch.cat([x, (y.float()[:, None, None] - 2).expand(-1, T, 1)], 2)
        xv = torch.cat([xv, torch.zeros(len(xv), T, 1)], 2)
    if o.bug == "reshaped_not_permuted":  # the file has (channel, time, window)
        x = x.permute(2, 1, 0).reshape(len(x), T, 3)
    if o.bug == "labels_of_next_window":
        y = torch.roll(y, -1)
    if o.bug == "by_activity":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    return x, corrupt(y, o.mislabelled, K), xv, yv


def reset(model: Recogniser, o: SimpleNamespace) -> None:
    for name, p in model.named_parameters():
        if o.init == "orthogonal" and p.dim() == 2 and name.startswith("rnn"):
            nn.init.orthogonal_(p)
        elif o.init == "wide":
            nn.init.normal_(p, std=3.0)
    if o.mix_bias is not None:
        nn.init.constant_(model.mix.bias, o.mix_bias)
    if o.zero_head:
        nn.init.zeros_(model.head.weight)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xv, yv = prepare(o)
    model = Recogniser(x.shape[2], o)
    reset(model, o)
    if o.earlier:
        quick = torch.optim.Adam(model.parameters(), lr=4e-3)
        for _ in range(o.earlier):
            idx = torch.randint(0, len(x), (32,))
            quick.zero_grad()
            nn.functional.cross_entropy(model(x[idx]), y[idx]).backward()
            quick.step()
    if o.freeze:
        for p in model.rnn.parameters():
            p.requires_grad = False
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    optimizer = make_optimizer(
        o.optimizer,
        [p for p in model.parameters() if p.requires_grad],
        o.lr,
        momentum=o.momentum,
        weight_decay=o.decay,
        alpha=o.alpha,
    )
    if o.bug == "model_again":  # a cell of the notebook was run twice
        model = copy.deepcopy(model)
    if o.schedule == "exp":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    elif o.schedule == "onecycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2 * o.lr, total_steps=o.steps, cycle_momentum=False)
    elif o.schedule == "multistep":
        marks = [15, 30, 45, 60] if o.bug == "milestones_in_epochs" else [o.steps * 3 // 5, o.steps * 4 // 5]
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, marks, gamma=o.gamma)
    else:
        scheduler = None
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    batch = min(o.batch, len(x))
    running, done = None, 0
    while done < o.steps:
        index = torch.arange(len(x)) if o.bug == "by_activity" else torch.randperm(len(x))
        for start in range(0, len(x) - batch + 1, batch):
            idx = index[start : start + batch]
            if o.bug == "index_not_advanced":
                idx = torch.arange(batch)
            xb, yb = x[idx], y[idx]
            if o.jitter:
                xb = xb + o.jitter * torch.randn_like(xb)
            scores = model(xb)
            if o.bug == "softmax_first_dim":
                loss = nn.functional.nll_loss(scores.log_softmax(0), yb)
            else:
                loss = criterion(scores, yb)
            if o.bug != "zero_grad_at_start_only" or done == 0:
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            if scheduler:
                scheduler.step()
            running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
            done += 1
            if done >= o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(xv), yv, K)


PROGRAM = Program(
    name="walks",
    half="I",
    train=train,
    settings={
        "windows": None,
        "scaling": "standard",
        "mislabelled": 0.0,
        "jitter": 0.0,
        "cell": "gru",
        "hidden": 32,
        "both_ways": False,
        "upper": 0,
        "pool": "mean",
        "dropout": 0.1,
        "init": "default",
        "mix_bias": None,
        "zero_head": False,
        "earlier": 0,
        "freeze": False,
        "batch": 32,
        "smoothing": 0.0,
        "optimizer": "rmsprop",
        "lr": 6e-3,
        "momentum": 0.0,
        "alpha": 0.99,
        "decay": 0.0,
        "schedule": "multistep",
        "gamma": 0.3,
        "clip": 1.0,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.06),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2.5e-4),
        severe("schedule_too_fast", bug="milestones_in_epochs", gamma=0.1),
        mild("schedule_too_fast", schedule="exp", gamma=0.97),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.1, momentum=0.9),
        mild("weight_decay_too_high", decay=0.004),
        severe("batch_too_small", batch=2),
        severe("momentum_too_high", momentum=0.999),
        severe("gradients_not_zeroed", bug="zero_grad_at_start_only", clip=None),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="states_detached"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="model_again"),
        severe("batch_repeated", bug="index_not_advanced"),
        severe("data_not_shuffled", bug="by_activity"),
        severe("inputs_not_scaled", scaling="raw"),
        severe("input_outliers", bug="lost_samples"),
        severe("labels_random", bug="labels_of_next_window"),
        severe("samples_mixed", bug="batch_first_left_out"),
        severe("windows_reshaped", ("samples_mixed", "labels_random"), bug="reshaped_not_permuted"),
        mild("label_noise", mislabelled=0.5),
        mild("softmax_over_batch", bug="softmax_first_dim"),
        severe("dead_units", mix_bias=-4.0),
        severe("init_too_large", ("init_too_large", "saturated_units"), init="wide"),
        severe("dropout_too_high", dropout=0.97),
        severe("target_in_inputs", bug="marker_channel"),
        severe("constant_feature", bug="paused"),
        severe("not_finite", bug="log_scaled"),
        mild("overfitting", windows=60),
    ],
    healthy=[
        healthy("rate_third", lr=2.5e-3, steps=450),
        healthy("rate_double", lr=1e-2),
        healthy("constant_rate", schedule="none"),
        healthy("one_cycle", schedule="onecycle"),
        healthy("slow_exp", schedule="exp", gamma=0.997),
        healthy("adam", optimizer="adam", lr=8e-3),
        healthy("adamw", optimizer="adamw", lr=8e-3, decay=0.02),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3, momentum=0.9),
        healthy("rmsprop_momentum", momentum=0.5, lr=4e-3),
        healthy("quick_average", alpha=0.95),
        healthy("batch_16", batch=16, lr=5e-3, steps=450),
        healthy("batch_96", batch=96, lr=8e-3, steps=240),
        healthy("lstm", cell="lstm"),
        healthy("wider", hidden=48, lr=5e-3),
        healthy("both_ways", both_ways=True, hidden=24),
        healthy("two_layers", upper=1),
        healthy("last_state", pool="last"),
        healthy("no_clip", clip=None),
        healthy("clip_5", clip=5.0),
        healthy("no_dropout", dropout=0.0),
        healthy("orthogonal", init="orthogonal"),
        healthy("zero_head", zero_head=True),
        healthy("about_zero", scaling="rough"),
        healthy("per_window", scaling="window"),
        healthy("jitter", jitter=0.05),
        healthy("smoothed", smoothing=0.05),
        healthy("few_mislabelled", mislabelled=0.03),
        healthy("fine_tuned", earlier=300, freeze=True, lr=2e-3, steps=200),
        healthy("longer", steps=450),
    ],
)
