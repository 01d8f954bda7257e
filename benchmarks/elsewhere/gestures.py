"""Strokes of a finger on a pad, told apart by a GRU (or an LSTM): a Trainer class, Adam, nn.CrossEntropyLoss."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

NAMES = ("circle", "circle_back", "swipe", "zigzag", "eight", "spiral", "hook")
CLASSES, LENGTH = len(NAMES), 20


def strokes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Where the finger is at 20 moments, in mm, and how hard it presses, in gram."""
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(0, CLASSES, (count,), generator=g)
    tempo = 0.8 + 0.4 * torch.rand(count, 1, generator=g)
    t = (torch.linspace(0, 1, LENGTH) ** tempo).expand(count, LENGTH)
    turn = 2 * math.pi * t
    shapes = torch.stack(
        [
            torch.stack([turn.cos() - 1, turn.sin()], -1),
            torch.stack([turn.cos() - 1, -turn.sin()], -1),
            torch.stack([2 * t - 1, 0.3 * t * (1 - t)], -1),
            torch.stack([2 * t - 1, 0.6 * (2.5 * turn).sin()], -1),
            torch.stack([turn.sin(), 0.6 * (2 * turn).sin()], -1),
            torch.stack([t * (1.6 * turn).cos(), t * (1.6 * turn).sin()], -1),
            torch.stack([2 * t - 1, torch.relu(t - 0.6) * 4 - 0.5], -1),
        ]
    )
    path = shapes[label, torch.arange(count)]
    tilt = 0.55 * torch.randn(count, generator=g)
    c, s = tilt.cos(), tilt.sin()
    path = torch.einsum("ntj,nij->nti", path, torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2))
    path = path * (0.7 + 0.6 * torch.rand(count, 1, 2, generator=g)) + 0.4 * torch.randn(count, 1, 2, generator=g)
    path = path + 0.17 * torch.randn(path.shape, generator=g)
    force = 180 + 40 * torch.randn(count, 1, 1, generator=g) + 12 * torch.randn(count, LENGTH, 1, generator=g)
    return torch.cat([75 + 25 * path, force], -1), label


class Reader(nn.Module):
    """Recurrent layers, then a linear layer on the last state, on the mean or on what attention picks."""

    def __init__(self, channels: int, classes: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        kind = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}[o.cell]
        first = o.batch_first
        self.rnn = kind(
            channels, o.hidden, o.layers, batch_first=first, bidirectional=o.both_ways, dropout=o.drop_between
        )
        size = o.hidden * (1 + o.both_ways)
        self.norm = nn.LayerNorm(size) if o.norm == "layer" else nn.Identity()
        self.query = nn.Linear(size, size) if o.pool == "attention" else None
        self.drop = nn.Dropout(o.drop)
        self.head = nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.rnn(x)
        if self.o.bug == "detached":
            states = states.detach()
        if self.o.pool == "last":
            h = states[:, -1]
        elif self.o.pool == "mean":
            h = states.mean(1)
        else:  # the last state asks, all states answer
            scores = (states @ self.query(states[:, -1])[:, :, None]).squeeze(-1) * self.o.sharpness
            h = (scores.softmax(1)[:, :, None] * states).sum(1)
        logits = self.head(self.drop(self.norm(h)))
        if self.o.last == "softmax_dim0":
            return logits.softmax(dim=0)
        return logits


class Trainer:
    def __init__(self, o: SimpleNamespace, logdir: str) -> None:
        self.o = o
        self.prepare_data()
        self.model = Reader(self.x.shape[2], self.classes, o)
        self.initialise()
        params = [p for p in self.model.parameters() if p.requires_grad]
        if o.bug == "head_only":
            params = list(self.model.head.parameters())
        self.optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.decay, eps=o.eps, momentum=o.momentum)
        if o.bug == "model_made_again":
            self.model = Reader(self.x.shape[2], self.classes, o)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.criterion = nn.CrossEntropyLoss(reduction=o.reduction, label_smoothing=o.smooth)
        self.run = cockpit_core.track(self.model, self.criterion, self.optimizer, logdir=logdir)

    def prepare_data(self) -> None:
        o = self.o
        x, y = strokes(o.rows, 61)
        xv, yv = strokes(700, 62)
        if o.scaling == "standard":
            mean, std = x.mean((0, 1)), x.std((0, 1))
            x, xv = (x - mean) / std, (xv - mean) / std
        if o.spikes:  # a lost contact: one moment far out
            x = torch.where(torch.rand(len(x), LENGTH, 1) < o.spikes, x + o.spike * torch.randn_like(x), x)
        self.classes, self.clean = CLASSES, (xv, yv)
        if o.bug == "sorted":
            order = y.argsort()
            x, y = x[order], y[order]
        if o.noise:
            y = corrupt(y, o.noise, CLASSES)
        if o.bug == "joined_off_by_one_row":
            y = y.roll(1)
        if o.bug == "from_one":
            y, self.classes = y + 1, CLASSES + 1
        if o.bug == "label_channel":
            x = torch.cat([x, y[:, None, None].expand(-1, LENGTH, 1) / 3.0 - 1], 2)
            xv = torch.cat([xv, torch.zeros(len(xv), LENGTH, 1)], 2)
            self.clean = xv, yv
        if o.bug == "view_not_permute":  # channels first in the file
            x = x.transpose(1, 2).contiguous().view(len(x), LENGTH, -1)
        if o.rare:
            kept = (y == 0) | (torch.rand(len(y)) < o.rare)
            x, y = x[kept], y[kept]
        self.x, self.y, self.xv, self.yv = x, y, *self.clean

    def initialise(self) -> None:
        o, model = self.o, self.model
        with torch.no_grad():
            for p in model.parameters():
                p *= o.gain
            if o.orthogonal:
                for name, p in model.rnn.named_parameters():
                    if "weight_hh" in name:
                        nn.init.orthogonal_(p)
            if o.zero_head:
                model.head.weight.zero_()
                model.head.bias.zero_()
        if o.pretrain:
            optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
            x, y = strokes(600, 63)
            x = (x - x.mean((0, 1))) / x.std((0, 1))
            for _ in range(o.pretrain):
                pick = torch.randint(0, len(x), (64,))
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[pick]), y[pick]).backward()
                optimizer.step()
        if o.freeze:
            model.rnn.requires_grad_(False)

    def rate(self, step: int) -> float:
        o = self.o
        if o.schedule == "warmup_cosine":
            return min((step + 1) / 30, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / o.steps)))
        if o.schedule == "step":
            return 0.5 ** (4 * step // o.steps)
        return o.gamma**step

    def batches(self):
        n = len(self.x)
        while True:
            order = torch.arange(n) if self.o.bug == "sorted" else torch.randperm(n)
            for start in range(0, n - self.o.batch + 1, self.o.batch):
                pick = order[start : start + self.o.batch]
                yield self.x[pick], self.y[pick]

    def loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.criterion(self.model(x), y)
        return (-loss if self.o.bug == "negated" else loss) / self.o.accumulate

    def fit(self) -> None:
        o = self.o
        source = self.batches()
        batch = next(source)
        for step in range(1, o.steps + 1):
            if o.bug != "no_zero_grad":
                self.optimizer.zero_grad()
            for _ in range(o.accumulate):
                if o.bug != "same_batch":
                    batch = next(source)
                self.loss_of(*batch).backward()
            if o.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
            self.optimizer.step()
            self.scheduler.step()
            if step % 50 == 0:
                self.validate()
        self.run.close()

    def validate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            scores = self.model(self.xv)
            loss = nn.functional.cross_entropy(scores, self.yv)
        self.run.log(valid_loss=loss.item(), valid_accuracy=(scores.argmax(1) == self.yv).float().mean().item())
        self.model.train()

    @torch.no_grad()
    def error(self) -> float:
        self.model.eval()
        x, y = self.clean
        return wrong_rate(self.model(x), y, CLASSES)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    trainer = Trainer(o, logdir)
    trainer.fit()
    return trainer.error()


PROGRAM = Program(
    name="gestures",
    half="K",
    train=train,
    settings={
        "rows": 1000,
        "scaling": "standard",
        "spikes": 0.0,
        "spike": 60.0,
        "noise": 0.0,
        "rare": 0.0,
        "cell": "gru",
        "hidden": 32,
        "layers": 1,
        "both_ways": False,
        "batch_first": True,
        "pool": "last",
        "sharpness": 32**-0.5,
        "norm": None,
        "drop": 0.0,
        "drop_between": 0.0,
        "last": None,
        "gain": 1.0,
        "orthogonal": False,
        "zero_head": False,
        "pretrain": 0,
        "freeze": False,
        "optimizer": "adam",
        "lr": 7e-3,
        "momentum": 0.9,
        "eps": 1e-8,
        "decay": 0.0,
        "reduction": "mean",
        "smooth": 0.0,
        "schedule": None,
        "gamma": 1.0,
        "clip": None,
        "batch": 32,
        "accumulate": 1,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.25),
        mild("learning_rate_too_high", lr=0.06),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", gamma=0.95),
        severe("weight_decay_too_high", decay=0.3),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("adam_eps_too_large", eps=1.0),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="head_only"),
        severe(
            "optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="model_made_again"
        ),
        severe("graph_detached", bug="detached"),
        severe("batch_repeated", bug="same_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("inputs_not_scaled", scaling="raw"),
        severe("input_outliers", spikes=0.2, spike=60.0),
        severe("labels_random", ("labels_random", "samples_mixed"), bug="joined_off_by_one_row"),
        mild("label_noise", noise=0.4),
        severe("batch_first_forgotten", ("samples_mixed",), batch_first=False),
        severe("samples_mixed", bug="view_not_permute"),
        severe("target_in_inputs", bug="label_channel"),
        severe("labels_off_by_one", bug="from_one"),
        mild("class_imbalance", rare=0.02),
        severe("loss_sign", bug="negated"),
        mild("schedule_too_fast", gamma=0.98),
        mild("softmax_over_batch", last="softmax_dim0"),
        severe("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("init_constant", gain=0.0),
        severe("dropout_too_high", drop=0.97),
        mild("overfitting", rows=60),
        mild("attention_too_sharp", pool="attention", sharpness=20.0),
    ],
    healthy=[
        healthy("lstm", cell="lstm", lr=1e-2),
        healthy("sgd_momentum", optimizer="sgd", lr=0.2),
        healthy("adamw", optimizer="adamw", decay=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3),
        healthy("adagrad", optimizer="adagrad", lr=3e-2),
        healthy("rate_halved", lr=4e-3),
        healthy("rate_doubled", lr=1.4e-2),
        healthy("warmup_cosine", schedule="warmup_cosine", lr=1e-2),
        healthy("step", schedule="step", lr=1e-2),
        healthy("clip_1", clip=1.0),
        healthy("attention", pool="attention", hidden=48),
        healthy("both_ways", both_ways=True, pool="mean"),
        healthy("two_layers_dropout", layers=2, drop_between=0.2, drop=0.2),
        healthy("layernorm", norm="layer"),
        healthy("wide", hidden=80, lr=4e-3),
        healthy("orthogonal_smoothing", orthogonal=True, smooth=0.1),
        healthy("zero_head", zero_head=True),
        healthy("accumulation", batch=8, accumulate=4, steps=300),
        healthy("batch_128", batch=128, lr=1e-2, steps=250),
        healthy("fine_tuning", pretrain=200, lr=2e-3, steps=250),
        healthy("head_of_pretrained", pretrain=300, freeze=True, steps=250),
        healthy("noise_2", noise=0.02),
    ],
)
