"""A small decoder-only transformer writes dates as numbers: "07 mar 1998 > 19980307" and "mar 07 , 1998 > ...".
Tied embedding, causal attention by hand, F.cross_entropy, AdamW with warm-up and linear decay; every 50 steps the loss
of an estimate on held-out dates is logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

MONTH, COMMA, ARROW, PAD = 10, 22, 23, 24  # digits are 0 to 9, months 10 to 21
VOCAB = 25
PROMPT, ANSWER = 9, 8
BLOCK = PROMPT + ANSWER - 1


def make_dates(n: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    day = torch.randint(1, 32, (n,), generator=g)
    month = torch.randint(1, 13, (n,), generator=g)
    year = torch.randint(1900, 2100, (n,), generator=g)
    d = [day // 10, day % 10]
    m = [month // 10, month % 10]
    y = [year // 1000, year // 100 % 10, year // 10 % 10, year % 10]
    word, comma, arrow, pad = month + MONTH - 1, *(torch.full((n,), t) for t in (COMMA, ARROW, PAD))
    british = torch.stack([pad, *d, word, *y, arrow, *y, *m, *d], 1)
    american = torch.stack([word, *d, comma, *y, arrow, *y, *m, *d], 1)
    return torch.where(torch.rand(n, 1, generator=g) < 0.5, british, american)


class Attention(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.qkv = nn.Linear(o.dim, 3 * o.dim)
        self.proj = nn.Linear(o.dim, o.dim)
        diagonal = 0 if o.bug == "mask_diagonal" else 1
        self.register_buffer("future", torch.triu(torch.ones(BLOCK, BLOCK, dtype=torch.bool), diagonal))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, L, C = x.shape
        q, k, v = (t.view(B, L, self.o.heads, -1).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        att = q @ k.transpose(-2, -1)
        if self.o.bug != "unscaled_scores":
            att = att / math.sqrt(q.shape[-1])
        if self.o.bug != "mask_left_out":
            att = att.masked_fill(self.future[:L, :L], -math.inf)
        att = att.softmax(-1)
        out = (att @ v).transpose(1, 2)
        if self.o.bug == "heads_merged_wrongly":
            out = (att @ v).permute(2, 0, 1, 3)  # (time, batch, head, channel): read as (batch, time, ...)
        return self.proj(out.reshape(B, L, C))


class Layer(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.attention = Attention(o)
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}[o.act]
        self.mlp = nn.Sequential(nn.Linear(o.dim, o.expand * o.dim), act(), nn.Linear(o.expand * o.dim, o.dim))
        self.drop = nn.Dropout(o.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class DateWriter(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.tokens = nn.Embedding(VOCAB, o.dim)
        self.places = nn.Embedding(BLOCK, o.dim)
        self.layers = nn.ModuleList([Layer(o) for _ in range(o.layers)])
        self.norm = nn.LayerNorm(o.dim)
        self.head = nn.Linear(o.dim, VOCAB, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)) and o.std is not None:
                nn.init.normal_(m.weight, std=o.std)
        if o.bug == "unscaled_scores":
            for layer in self.layers:
                nn.init.normal_(layer.attention.qkv.weight, std=1.0)
        if o.bug == "weights_all_equal":
            for p in self.parameters():
                nn.init.constant_(p, 0.02)
        if o.tied:
            self.head.weight = self.tokens.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        x = self.tokens(idx) + self.places.weight[: idx.shape[1]]
        for k, layer in enumerate(self.layers):
            x = layer(x)
            if self.o.bug == "stream_detached" and k == len(self.layers) - 1:
                x = x.detach()  # kept for the probe, and fed on by mistake
        return self.head(self.norm(x))


def corpus(o: SimpleNamespace) -> torch.Tensor:
    data = make_dates(o.lines, 81)
    if o.bug == "answers_of_others":
        data[:, PROMPT:] = data[torch.randperm(len(data)), PROMPT:]
    if o.typos:
        wrong = torch.rand(len(data), ANSWER) < o.typos
        data[:, PROMPT:] = torch.where(wrong, torch.randint(0, 10, wrong.shape), data[:, PROMPT:])
    if o.bug == "two_dates_mostly":
        usual = torch.rand(len(data)) < 0.98
        data[usual] = make_dates(40, 83)[torch.randint(0, 2, (int(usual.sum()),))]
    if o.bug == "file_sorted":
        keys = (data[:, PROMPT:] * 10 ** torch.arange(ANSWER - 1, -1, -1)).sum(1)
        data = data[keys.argsort()]
    return data


def batches(data: torch.Tensor, o: SimpleNamespace):
    """Inputs and targets, for ever."""
    at, generator = 0, None
    while True:
        if o.bug == "file_sorted":
            rows = torch.arange(at, at + o.batch) % len(data)
            at += o.batch
        else:
            if o.bug == "seed_in_the_loop":
                generator = torch.Generator().manual_seed(1337)
            rows = torch.randint(0, len(data), (o.batch,), generator=generator)
        lines = data[rows]
        if o.bug == "targets_are_inputs":
            yield lines[:, :-1], lines[:, :-1]
        elif o.bug == "shifted_twice":
            yield lines[:, :-2], lines[:, 2:]
        else:
            yield lines[:, :-1], lines[:, 1:]


def loss_of(scores: torch.Tensor, targets: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    if o.bug == "probabilities":
        scores = scores.softmax(-1)
    if o.bug == "log_softmax_dim_0":
        loss = F.nll_loss(scores.log_softmax(0).flatten(0, 1), targets.flatten())
    else:
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), label_smoothing=o.smoothing)
    return loss


def groups(model: DateWriter, o: SimpleNamespace) -> list[dict]:
    params = [p for p in model.parameters() if p.requires_grad]
    decayed = {"params": [p for p in params if p.dim() >= 2], "weight_decay": o.decay}
    others = {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}
    if o.bug == "second_group_only":
        return [others]
    return [decayed, others]


@torch.no_grad()
def written(model: DateWriter, lines: torch.Tensor) -> float:
    """Wrong digits when the model writes the answers itself, relative to always writing the most frequent digit."""
    model.eval()
    text = lines[:, :PROMPT]
    for _ in range(ANSWER):
        scores = model(text)[:, -1]
        if not torch.isfinite(scores).all():
            return math.inf
        text = torch.cat([text, scores.argmax(-1, keepdim=True)], 1)
    answer = lines[:, PROMPT:]
    guess = (answer != answer.mode(0).values).float().mean()
    return ((text[:, PROMPT:] != answer).float().mean() / guess).item()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data, held_out = corpus(o), make_dates(300, 82)
    model = DateWriter(o)
    if o.earlier:
        tune = torch.optim.AdamW(model.parameters(), lr=2e-3)
        source = batches(make_dates(2000, 84), o)
        for _ in range(o.earlier):
            x, y = next(source)
            tune.zero_grad()
            loss_of(model(x), y, o).backward()
            tune.step()
    if o.freeze:
        model.layers[0].requires_grad_(False)
    opt = make_optimizer(o.optimizer, groups(model, o), o.lr, betas=(o.beta1, o.beta2), eps=o.eps)

    def rate(step: int) -> float:
        if o.bug == "warmup_in_tokens":
            return min(1.0, (step + 1) / (o.warmup * BLOCK * o.batch))
        if step < o.warmup:
            return (step + 1) / o.warmup
        if o.schedule == "linear":
            return max(0.0, 1 - (step - o.warmup) / (o.steps - o.warmup)) * 0.95 + 0.05
        if o.schedule == "power":
            return o.gamma ** (step - o.warmup)
        return 1.0

    sched = torch.optim.lr_scheduler.LambdaLR(opt, rate)
    run = cockpit_core.track(model, None, opt, logdir=logdir)
    source = batches(data, o)
    for step in range(o.steps):
        model.train()
        opt.zero_grad(set_to_none=True)
        for _ in range(o.accumulate):
            x, y = next(source)
            loss = loss_of(model(x), y, o) / o.accumulate
            loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        if o.bug != "step_commented_out":
            opt.step()
        sched.step()
        if (step + 1) % 50 == 0:
            model.eval()
            with torch.no_grad():
                scores = model(held_out[:, :-1])
                valid = F.cross_entropy(scores.flatten(0, 1), held_out[:, 1:].flatten()).item()
                right = (scores[:, PROMPT - 1 :].argmax(-1) == held_out[:, PROMPT:]).float().mean().item()
            run.log(valid_loss=valid, valid_accuracy=right)
    run.close()
    return written(model, held_out)


PROGRAM = Program(
    name="weekdays",
    half="I",
    train=train,
    settings={
        "lines": 4000,
        "typos": 0.0,
        "dim": 40,
        "heads": 4,
        "layers": 2,
        "expand": 2,
        "act": "gelu",
        "dropout": 0.0,
        "std": 0.05,
        "tied": True,
        "earlier": 0,
        "freeze": False,
        "batch": 32,
        "accumulate": 1,
        "smoothing": 0.0,
        "optimizer": "adamw",
        "lr": 4e-3,
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-8,
        "decay": 0.05,
        "warmup": 30,
        "schedule": "linear",
        "gamma": 1.0,
        "clip": 1.0,
        "steps": 260,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.04),
        severe("learning_rate_too_low", lr=1.3e-4),
        severe("warmup_too_long", "learning_rate_too_low", bug="warmup_in_tokens"),
        severe("schedule_too_fast", schedule="power", gamma=0.9),
        severe("weight_decay_too_high", decay=40.0),
        mild("weight_decay_too_high", decay=3.0),
        severe("batch_too_small", batch=2),
        severe("momentum_too_high", beta1=0.999),
        severe("adam_eps_too_large", eps=0.1),
        severe("parameters_not_optimized", bug="second_group_only"),
        severe("nothing_moves", ("nothing_moves", "schedule_before_step"), bug="step_commented_out"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="stream_detached"),
        severe("batch_repeated", bug="seed_in_the_loop"),
        severe("data_not_shuffled", bug="file_sorted"),
        severe("labels_random", bug="answers_of_others"),
        severe("targets_not_shifted", bug="targets_are_inputs"),
        severe("shifted_twice", ("targets_not_shifted", "labels_off_by_one"), bug="shifted_twice"),
        severe("target_in_inputs", bug="mask_left_out"),
        severe("samples_mixed", bug="heads_merged_wrongly"),
        severe("attention_too_sharp", bug="unscaled_scores"),
        mild("softmax_over_batch", bug="log_softmax_dim_0"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="probabilities"),
        severe("init_constant", bug="weights_all_equal"),
        severe("init_too_large", std=2.0),
        severe("dropout_too_high", dropout=0.9),
        severe("class_imbalance", bug="two_dates_mostly"),
        severe("not_finite", bug="mask_diagonal"),
        severe("overfitting", lines=60),
    ],
    healthy=[
        healthy("rate_third", lr=1.6e-3, steps=350),
        healthy("rate_double", lr=8e-3),
        healthy("constant_rate", schedule="none", lr=2e-3),
        healthy("no_warmup", warmup=0, lr=3e-3, steps=350),
        healthy("long_warmup", warmup=100),
        healthy("adam", optimizer="adam", decay=0.0),
        healthy("nadam", optimizer="nadam", decay=0.0, lr=2e-3),
        healthy("rmsprop", optimizer="rmsprop", decay=0.0, lr=1e-3),
        healthy("untied", tied=False),
        healthy("batch_16", batch=16, steps=400),
        healthy("batch_64", batch=64, steps=220),
        healthy("accumulated", batch=16, accumulate=2),
        healthy("wider", dim=64, lr=3e-3),
        healthy("three_layers", layers=3),
        healthy("two_heads", heads=2),
        healthy("relu", act="relu", expand=4),
        healthy("little_dropout", dropout=0.05),
        healthy("std_02", std=0.02),
        healthy("no_clip", clip=None),
        healthy("clip_half", clip=0.5),
        healthy("decay_more", decay=0.2),
        healthy("smoothed", smoothing=0.05),
        healthy("few_typos", typos=0.02),
        healthy("fewer_lines", lines=2000),
        healthy("fine_tuned", earlier=250, freeze=True, lr=1e-3, steps=150),
        healthy("longer", steps=400),
    ],
)
