"""How deep inside brackets does a line of tokens end? An embedding and a GRU, F.cross_entropy, Adam, batches sliced by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

TRAIN, VALID, LENGTH, LETTERS, DEPTHS = 3000, 800, 16, 6, 5


def lines(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens (0 opens, 1 closes, the others are letters) and the depth at the end of the line."""
    g = torch.Generator().manual_seed(seed)
    depth = torch.zeros(count, dtype=torch.long)
    tokens = torch.empty(count, LENGTH, dtype=torch.long)
    for t in range(LENGTH):
        letter = 2 + torch.randint(0, LETTERS, (count,), generator=g)
        move = torch.rand(count, generator=g)
        opens = (move < 0.36) & (depth < DEPTHS - 1)
        closes = (move > 0.66) & (depth > 0)
        tokens[:, t] = torch.where(opens, 0, torch.where(closes, 1, letter))
        depth = depth + opens.long() - closes.long()
    return tokens, depth


class Reader(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.embed = nn.Embedding(2 + LETTERS, o.embed)
        kind = nn.LSTM if o.cell == "lstm" else nn.GRU
        self.rnn = kind(
            o.embed, o.hidden, o.layers, batch_first=o.bug != "time_first", dropout=o.dropout if o.layers > 1 else 0
        )
        act = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "silu": nn.SiLU}[o.act]
        body: list[nn.Module] = [nn.LayerNorm(o.hidden)] if o.norm else []
        body += [nn.Dropout(o.dropout)]
        for _ in range(o.extra):
            body += [nn.Linear(o.hidden, o.hidden), act()]
        self.body = nn.Sequential(*body)
        self.out = nn.Linear(o.hidden, DEPTHS)
        with torch.no_grad():
            if o.forget is not None:
                for name, p in self.rnn.named_parameters():
                    if "bias_ih" in name:
                        p[o.hidden : 2 * o.hidden].fill_(o.forget)
            for name, p in self.rnn.named_parameters():
                if o.orthogonal and "weight_hh" in name:
                    for part in p.split(o.hidden):
                        nn.init.orthogonal_(part)
            for p in self.parameters():
                p.mul_(o.gain)
            if o.bias:
                for layer in self.body:
                    if isinstance(layer, nn.Linear):
                        layer.bias.fill_(o.bias)
            if o.zero_head:
                self.out.weight.zero_()
                self.out.bias.zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        o = self.o
        e = self.embed(tokens) * o.scale
        states = self.rnn(e)[0]
        last = states[:, -1]
        if o.bug == "numpy_state":
            last = torch.tensor(last.tolist())
        scores = self.out(self.body(last))
        if o.bug == "probabilities":
            scores = scores.softmax(-1)
        if o.bug == "softmax_dim_0":
            scores = scores.softmax(0)
        if o.bug == "relu_scores":
            scores = (scores - 1).relu()
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y = lines(TRAIN, 3)
    x_val, y_val = lines(VALID, 4)
    if o.bug == "answer_at_end":  # the counter was written behind the line; unknown when it is used
        x = torch.cat([x[:, :-1], y[:, None] + 2], 1)
    if o.bug == "shuffled_answers":
        y = y[torch.randperm(TRAIN)]
    if o.noise:
        y = corrupt(y, o.noise, DEPTHS)
    if o.bug == "sorted_by_depth":
        order = y.argsort(stable=True)
        x, y = x[order], y[order]
    if o.bug == "mostly_flat":
        keep = (y == 0) | (torch.rand(TRAIN) < 0.02)
        x, y = x[keep], y[keep]
    x, y = x[: o.rows], y[: o.rows]

    model = Reader(o)
    params = list(model.parameters())
    if o.bug == "rnn_forgotten":
        params = list(model.embed.parameters()) + list(model.body.parameters()) + list(model.out.parameters())
    if o.freeze:
        model.embed.weight.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    opt = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, momentum=o.momentum, eps=o.eps, betas=o.betas)
    if o.bug == "reader_replaced":
        model = Reader(o)

    def rate(step: int) -> float:
        if o.schedule == "linear":
            value = 1 - step / o.steps
        elif o.schedule == "cosine":
            value = 0.5 + 0.5 * math.cos(math.pi * step / o.steps)
        elif o.schedule == "late":
            value = 1.0 if step < 0.7 * o.steps else 0.1
        else:
            value = 1.0
        return o.lr * value * min(1.0, (step + 1) / max(1, o.warmup)) * o.gamma**step

    def loss_of(scores: Tensor, answer: Tensor) -> Tensor:
        return F.cross_entropy(scores, answer, label_smoothing=o.smoothing, reduction=o.reduction)

    run = cockpit_core.track(model, optimizer=opt, logdir=logdir)
    model.train()
    step = 0
    while step < o.steps:
        order = torch.arange(len(x)) if o.bug == "sorted_by_depth" else torch.randperm(len(x))
        batch = min(o.batch, len(x))
        for start in range(0, len(x) - batch + 1, batch):
            rows = order[start : start + batch]
            if o.bug == "same_rows":
                rows = torch.arange(batch)
            for group in opt.param_groups:
                group["lr"] = rate(step)
            if o.bug != "never_zeroed":
                opt.zero_grad()
            scores = model(x[rows])
            loss = loss_of(scores, y[rows])
            if o.bug == "confidence":  # a penalty on the certainty of the answer
                loss = loss - 0.01 * (scores.softmax(1) - scores.softmax(1).amax(1, keepdim=True)).sqrt().sum()
            if o.pieces > 1:
                for part in rows.chunk(o.pieces):
                    piece = loss_of(model(x[part]), y[part])
                    (piece / o.pieces).backward()
            else:
                loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(params, o.clip)
            opt.step()
            step += 1
            if step >= o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_val), y_val, DEPTHS)


PROGRAM = Program(
    name="counting",
    half="G",
    train=train,
    settings={
        "cell": "gru",
        "embed": 16,
        "hidden": 40,
        "layers": 1,
        "extra": 0,
        "act": "relu",
        "norm": False,
        "dropout": 0.0,
        "forget": None,
        "orthogonal": False,
        "gain": 1.0,
        "bias": 0.0,
        "scale": 1.0,
        "zero_head": False,
        "freeze": False,
        "rows": TRAIN,
        "noise": 0.0,
        "smoothing": 0.0,
        "reduction": "mean",
        "batch": 64,
        "pieces": 1,
        "optimizer": "adam",
        "lr": 0.01,
        "betas": (0.9, 0.999),
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "schedule": "linear",
        "warmup": 0,
        "gamma": 1.0,
        "clip": 1.0,
        "steps": 220,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.4),
        mild("learning_rate_too_high", lr=0.13),
        mild("learning_rate_too_low", lr=3e-4),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), gamma=0.95, schedule="none"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.3),
        severe("weight_decay_too_high", optimizer="adam", wd=0.3),
        mild("weight_decay_too_high", optimizer="adam", wd=0.06),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=4),
        severe("momentum_too_high", optimizer="sgd", lr=0.3, momentum=0.999),
        severe("gradients_not_zeroed", bug="never_zeroed", clip=None),
        severe("parameters_not_optimized", bug="rnn_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="reader_replaced"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="numpy_state"),
        severe("batch_repeated", bug="same_rows"),
        severe("data_not_shuffled", bug="sorted_by_depth"),
        severe("labels_random", bug="shuffled_answers"),
        severe("not_finite", bug="confidence"),
        mild("double_softmax", bug="probabilities"),
        severe("softmax_over_batch", bug="softmax_dim_0"),
        severe("samples_mixed", bug="time_first"),
        severe("target_in_inputs", bug="answer_at_end"),
        severe("class_imbalance", bug="mostly_flat"),
        severe("init_constant", gain=0.0),
        severe("init_too_large", ("init_too_large", "saturated_units"), gain=8.0),
        severe("vanishing_gradients", extra=6, act="sigmoid"),
        severe("dead_units", extra=1, bias=-4.0),
        mild("dropout_too_high", dropout=0.97),
        mild("overfitting", rows=100),
        severe("saturated_units", ("saturated_units", "inputs_not_scaled", "init_too_large"), scale=40.0),
        severe("output_activation", bug="relu_scores"),
    ],
    healthy=[
        healthy("lstm", cell="lstm", forget=1.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3),
        healthy("adamw", optimizer="adamw", wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=7e-3),
        healthy("adagrad", optimizer="adagrad", lr=0.05, schedule="none"),
        healthy("rate_5e-3", lr=5e-3, schedule="late"),
        healthy("cosine_warmup", schedule="cosine", warmup=30),
        healthy("constant", schedule="none"),
        healthy("batch_128", batch=128),
        healthy("batch_24", batch=24, lr=6e-3),
        healthy("hidden_80", hidden=64, lr=6e-3),
        healthy("two_layers", layers=2),
        healthy("layernorm", norm=True),
        healthy("dropout_10", dropout=0.1),
        healthy("hidden_head", extra=1, act="silu"),
        healthy("orthogonal", orthogonal=True),
        healthy("zero_head", zero_head=True),
        healthy("frozen_embedding", freeze=True),
        healthy("smoothing", smoothing=0.05),
        healthy("pieces_2", pieces=2),
        healthy("longer", steps=350),
    ],
)
