"""Addition, written out digit by digit: a decoder-only transformer with tied embeddings and warm-up, validation logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

PLUS, EQUALS, TOKENS = 10, 11, 12
LENGTH, ANSWER = 6, 2  # tokens of "a b + c d =", and of the answer


def problems(numbers: torch.Tensor) -> torch.Tensor:
    """Rows such as 3 1 + 2 9 = 0 6: the sum of 31 and 29, units first."""
    a, b = numbers // 40, numbers % 40
    total = a + b
    columns = [
        a // 10,
        a % 10,
        torch.full_like(a, PLUS),
        b // 10,
        b % 10,
        torch.full_like(a, EQUALS),
        total % 10,
        total // 10,
    ]
    return torch.stack(columns, 1)


class Layer(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.ln1, self.ln2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.q, self.k, self.v, self.mix = (nn.Linear(o.dim, o.dim, bias=False) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(o.dim, 4 * o.dim), nn.Linear(4 * o.dim, o.dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        h = self.ln1(x)
        q, k, v = (f(h).view(b, t, self.o.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * self.o.sharpness / math.sqrt(d / self.o.heads)
        if self.o.bug != "no_mask":
            scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        if self.o.bug == "mask_includes_self":  # off by one: the first place may look at nothing
            scores = scores.masked_fill(torch.ones(t, t).triu(0).bool(), -torch.inf)
        weights = scores.softmax(0 if self.o.bug == "attention_over_batch" else -1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(b, t, d))
        hidden = self.fc1(self.ln2(x))
        hidden = F.gelu(hidden) if self.o.gelu else F.relu(hidden)
        return x + self.fc2(F.dropout(hidden, self.o.dropout, self.training))


class Adder(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.token, self.place = nn.Embedding(TOKENS, o.dim), nn.Embedding(LENGTH + ANSWER, o.dim)
        nn.init.normal_(self.token.weight, std=o.embed_std)
        nn.init.normal_(self.place.weight, std=o.embed_std)
        self.layers = nn.Sequential(*[Layer(o) for _ in range(o.depth)])
        self.norm = nn.LayerNorm(o.dim)
        self.head = nn.Linear(o.dim, TOKENS, bias=False)
        if o.tied:
            self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        x = self.layers(x)
        if self.o.bug == "trunk_detached":
            x = x.detach()
        logits = self.head(self.norm(x))
        return logits.softmax(-1) if self.o.bug == "softmax_in_model" else logits


def answer_loss(logits: torch.Tensor, rows: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    """Cross-entropy of the answer's digits only."""
    if o.bug == "not_shifted":  # each place has to tell its own token
        return F.cross_entropy(logits.flatten(0, 1), rows[:, :-1].flatten())
    guess = logits[:, LENGTH - 1 :].flatten(0, 1)
    loss = F.cross_entropy(guess, rows[:, LENGTH:].flatten(), label_smoothing=o.smoothing)
    return -loss if o.bug == "maximised" else loss


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    order = torch.randperm(1600)
    valid, pool = problems(order[:300]), problems(order[300 : 300 + o.problems])
    shown = pool.clone()
    if o.bug == "answers_shuffled":
        shown[:, LENGTH:] = shown[torch.randperm(len(shown)), LENGTH:]
    if o.noise:
        swap = torch.rand(len(shown), ANSWER) < o.noise
        shown[:, LENGTH:] = torch.where(swap, torch.randint(0, 10, swap.shape), shown[:, LENGTH:])
    model = Adder(o)
    if o.init:
        for p in model.layers.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=o.init)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    if o.bug == "layers_left_out":
        decay, rest = [model.token.weight, model.place.weight], list(model.norm.parameters())
    groups = [{"params": decay, "weight_decay": o.wd}, {"params": rest, "weight_decay": 0.0}]
    optimizer = make_optimizer(o.optimizer, groups, o.lr, betas=o.betas, eps=o.eps)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    for step in range(o.steps):
        warm = min(1.0, (step + 1) / o.warmup)
        fade = 1 - (1 - o.last) * step / o.steps
        for group in optimizer.param_groups:
            group["lr"] = o.lr * warm * fade
        rows = shown[: o.batch] if o.bug == "same_rows" else shown[torch.randint(0, len(shown), (o.batch,))]
        optimizer.zero_grad()
        loss = answer_loss(model(rows[:, :-1]), rows, o)
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                logits = model(valid[:, :-1])[:, LENGTH - 1 :]
                accuracy = (logits.argmax(-1) == valid[:, LENGTH:]).float().mean().item()
                run.log(
                    valid_loss=F.cross_entropy(logits.flatten(0, 1), valid[:, LENGTH:].flatten()).item(),
                    valid_accuracy=accuracy,
                )
            model.train()
    run.close()
    model.eval()
    written = valid[:, :LENGTH]
    with torch.no_grad():
        for _ in range(ANSWER):  # one digit after the other, from the question alone
            last = model(written)[:, -1]
            if not torch.isfinite(last).all():
                return math.inf
            written = torch.cat([written, last.argmax(-1, keepdim=True)], 1)
    return (written != valid)[:, LENGTH:].float().mean().item() / 0.8


PROGRAM = Program(
    name="sums",
    half="B",
    train=train,
    settings={
        "dim": 32,
        "heads": 2,
        "depth": 1,
        "dropout": 0.0,
        "gelu": True,
        "sharpness": 1.0,
        "tied": True,
        "embed_std": 0.3,
        "init": None,
        "problems": 1300,
        "noise": 0.0,
        "batch": 96,
        "optimizer": "adamw",
        "lr": 6e-3,
        "wd": 0.2,
        "betas": (0.9, 0.98),
        "eps": 1e-8,
        "warmup": 40,
        "last": 0.0,
        "steps": 450,
        "clip": 1.0,
        "smoothing": 0.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.5),
        mild("learning_rate_too_high", lr=0.06, warmup=1),
        mild("learning_rate_too_low", lr=3e-4),
        severe("attention_too_sharp", sharpness=80.0),
        severe("softmax_over_batch", bug="attention_over_batch"),
        severe("double_softmax", bug="softmax_in_model"),
        severe("not_finite", bug="mask_includes_self"),
        severe("target_in_inputs", ("target_in_inputs", "targets_not_shifted"), bug="no_mask"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        severe("labels_random", bug="answers_shuffled"),
        mild("label_noise", noise=0.4),
        severe("graph_detached", bug="trunk_detached"),
        severe("parameters_not_optimized", bug="layers_left_out"),
        severe("batch_repeated", bug="same_rows"),
        severe("init_too_large", init=3.0),
        severe("loss_sign", bug="maximised"),
    ],
    healthy=[
        healthy("lr_4e-3", lr=4e-3, last=0.3),
        healthy("lr_8e-3", lr=8e-3),
        healthy("untied", tied=False, embed_std=0.5, lr=8e-3),
        healthy("relu", gelu=False),
        healthy("batch_48", batch=48, lr=5e-3, steps=500),
        healthy("batch_192", batch=192, lr=8e-3, steps=350),
        healthy("adam", optimizer="adam", wd=0.0, lr=5e-3),
        healthy("four_heads", heads=4),
        healthy("beta_0999", betas=(0.9, 0.999), warmup=80),
        healthy("decay_01", wd=0.1, dropout=0.02),
        healthy("no_clip", clip=None),
    ],
)
