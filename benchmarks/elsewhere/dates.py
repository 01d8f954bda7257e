"""Rewrites dates ("3 march 1994" becomes 1994-03-03): GRU encoder, GRU decoder with attention, dict batches, validation logged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

MONTHS = "january february march april may june july august september october november december".split()
LETTERS = {c: n + 1 for n, c in enumerate("abcdefghijklmnopqrstuvwxyz0123456789 ,./")}
OUT = {c: n for n, c in enumerate("0123456789-")}
START = len(OUT)


def sample() -> dict[str, list[int]]:
    day, month, year = random.randint(1, 28), random.randint(1, 12), random.randint(1950, 2029)
    name = MONTHS[month - 1]
    text = random.choice(
        [f"{day} {name} {year}", f"{name[:3]} {day}, {year}", f"{day}.{month}.{year}", f"{day} {name[:3]} {year}"]
    )
    return {"source": [LETTERS[c] for c in text], "target": [OUT[c] for c in f"{year}-{month:02d}-{day:02d}"]}


def collate(items: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    longest = max(len(item["source"]) for item in items)
    source = torch.tensor([item["source"] + [0] * (longest - len(item["source"])) for item in items])
    return {"source": source, "target": torch.tensor([item["target"] for item in items])}


class Rewriter(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.embed_in = nn.Embedding(len(LETTERS) + 1, o.embed, padding_idx=0)
        self.embed_out = nn.Embedding(len(OUT) + 1, o.embed)
        self.encoder = nn.GRU(o.embed, o.width, batch_first=True, bidirectional=True)
        self.decoder = nn.GRU(o.embed, 2 * o.width, batch_first=True)
        self.query = nn.Linear(2 * o.width, 2 * o.width, bias=False)
        self.drop = nn.Dropout(o.dropout)
        self.out = nn.Sequential(nn.Linear(4 * o.width, 2 * o.width), nn.Tanh(), nn.Linear(2 * o.width, len(OUT)))

    def forward(self, source: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        memory, last = self.encoder(self.drop(self.embed_in(source)))
        start = torch.cat([last[0], last[1]], -1)[None]
        if self.o.bug == "memory_detached":  # "do not train through the cache"
            memory, start = memory.detach(), start.detach()
        states, _ = self.decoder(self.embed_out(previous), start)
        scores = self.query(states) @ memory.transpose(1, 2) * self.o.sharpness
        scores = scores.masked_fill((source == 0)[:, None], -1e9)
        weights = scores.softmax(0 if self.o.bug == "attention_over_batch" else -1)
        logits = self.out(torch.cat([self.drop(states), weights @ memory], -1))
        return logits.softmax(-1) if self.o.bug == "softmax_in_model" else logits


def shifted(target: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full((len(target), 1), START), target[:, :-1]], 1)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    data = [sample() for _ in range(o.examples)]
    valid = collate([sample() for _ in range(400)])
    if o.bug == "two_lists":  # sources and targets shuffled each on its own
        targets = [item["target"] for item in data]
        random.shuffle(targets)
        data = [{"source": item["source"], "target": t} for item, t in zip(data, targets, strict=True)]
    if o.noise:
        for item in data:
            item["target"] = [random.randrange(11) if random.random() < o.noise else t for t in item["target"]]
    if o.bug == "by_month":
        data.sort(key=lambda item: item["target"][5:])
    loader = DataLoader(data, batch_size=o.batch, shuffle=o.bug != "by_month", collate_fn=collate, drop_last=True)

    model = Rewriter(o)
    if o.init:
        for p in model.parameters():
            nn.init.normal_(p, std=o.init)
    if o.bug == "zeros":
        for p in model.parameters():
            nn.init.zeros_(p)
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    skip = {"encoder_left_out": ("encoder", "embed_in"), "only_output": ("encoder", "decoder", "embed")}.get(o.bug, ())
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n.startswith("embed") and not n.startswith(skip)],
            "lr": o.lr * o.embed_factor,
        },
        {"params": [p for n, p in model.named_parameters() if not n.startswith("embed") and not n.startswith(skip)]},
    ]
    optimizer = make_optimizer(o.optimizer, groups, o.lr, eps=o.eps, weight_decay=o.wd, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    def batches():
        while True:
            if o.bug == "first_batch":  # an iterator made anew for every step, without shuffling
                torch.manual_seed(seed)
                yield next(iter(loader))
            else:
                yield from loader

    for step, batch in zip(range(o.steps), batches(), strict=False):
        previous = batch["target"] if o.bug == "not_shifted" else shifted(batch["target"])
        logits = model(batch["source"], previous)
        target = batch["target"]
        loss = criterion(logits.flatten(0, 1), target.flatten())
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if step % 80 == 79:
            model.eval()
            with torch.no_grad():
                scores = model(valid["source"], shifted(valid["target"]))
                run.log(valid_loss=criterion(scores.flatten(0, 1), valid["target"].flatten()).item())
            model.train()
    run.close()
    model.eval()
    with torch.no_grad():
        scores = model(valid["source"], shifted(valid["target"]))
    if not torch.isfinite(scores).all():
        return float("inf")
    return (
        scores.argmax(-1) != valid["target"]
    ).float().mean().item() / 0.55  # the commonest character at each place is right in 45 %


PROGRAM = Program(
    name="dates",
    half="A",
    train=train,
    settings={
        "embed": 24,
        "width": 24,
        "dropout": 0.0,
        "sharpness": 0.125,
        "examples": 4000,
        "noise": 0.0,
        "init": None,
        "smoothing": 0.0,
        "batch": 48,
        "optimizer": "adam",
        "lr": 8e-3,
        "embed_factor": 1.0,
        "eps": 1e-8,
        "wd": 0.0,
        "gamma": 0.997,
        "steps": 250,
        "clip": 1.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.0),
        mild("learning_rate_too_low", lr=3e-4),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        severe("labels_random", bug="two_lists"),
        severe("label_noise", noise=0.8),
        severe("graph_detached", bug="memory_detached"),
        severe("softmax_over_batch", bug="attention_over_batch"),
        severe("double_softmax", bug="softmax_in_model"),
        severe("attention_too_sharp", sharpness=60.0),
        severe("batch_repeated", bug="first_batch"),
        severe("data_not_shuffled", bug="by_month"),
        severe("gradients_not_zeroed", bug="no_zero_grad", clip=None),
        severe("parameters_not_optimized", bug="only_output"),
        mild("parameters_not_optimized", bug="encoder_left_out"),
        severe("init_constant", bug="zeros"),
        severe("overfitting", examples=64),
    ],
    healthy=[
        healthy("lr_4e-3", lr=4e-3, gamma=1.0),
        healthy("lr_12e-3", lr=1.2e-2),
        healthy("batch_32", batch=32, lr=5e-3),
        healthy("batch_128", batch=96, steps=250, lr=1e-2),
        healthy("wider", width=32, steps=260),
        healthy("adamw", optimizer="adamw", wd=0.01),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("embeddings_slower", embed_factor=0.3),
        healthy("no_clip", clip=None),
        healthy("small_dropout", dropout=0.05),
        healthy("smoothing", smoothing=0.05),
    ],
)
