"""What somebody asks for: a transformer on padded sentences, dictionaries, AdamW, linear warm-up and decay, both logged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

CITIES = "rome oslo lima cairo delhi paris quito kyoto".split()
THINGS = "tea bread lamps shoes paper soap".split()
HOURS = "one two three four five six seven".split()
FILLER = "please now hello thanks kindly today well maybe okay sorry".split()
PATTERNS = [
    ["book a seat from {c} to rome", "i want to go from {c} to rome"],
    ["book a seat from rome to {c}", "i want to go from rome to {c}"],
    ["wake me at {h}", "set the clock to {h}"],
    ["do not wake me at {h}", "stop the clock at {h}"],
    ["buy {t} then call me", "order {t} and call me"],
    ["call me then buy {t}", "call me and order {t}"],
    ["is it warm in {c}", "will it rain in {c} at {h}"],
]
CLASSES = len(PATTERNS)
VOCABULARY = ["<pad>", *CITIES, *THINGS, *HOURS, *FILLER]
VOCABULARY += sorted({w for p in PATTERNS for line in p for w in line.split()} - set(VOCABULARY))
INDEX = {word: n for n, word in enumerate(VOCABULARY)}
LONGEST = 14


def sentence(rng: random.Random, kind: int) -> list[int]:
    line = rng.choice(PATTERNS[kind]).format(c=rng.choice(CITIES[1:]), h=rng.choice(HOURS), t=rng.choice(THINGS))
    words = line.split()
    for _ in range(rng.randint(0, 4)):
        words.insert(rng.randint(0, len(words)), rng.choice(FILLER))
    return [INDEX[w] for w in words if w in INDEX][:LONGEST]


def collect(count: int, seed: int, weights: list[float] | None = None) -> list[dict]:
    rng = random.Random(seed)
    kinds = rng.choices(range(CLASSES), weights or [1.0] * CLASSES, k=count)
    return [{"words": sentence(rng, k), "label": k} for k in kinds]


def collate(rows: list[dict]) -> dict[str, torch.Tensor]:
    ids = torch.zeros(len(rows), LONGEST, dtype=torch.long)
    for n, row in enumerate(rows):
        ids[n, : len(row["words"])] = torch.tensor(row["words"])
    return {"input_ids": ids, "mask": ids != 0, "labels": torch.tensor([row["label"] for row in rows])}


class Layer(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.heads, self.sharp = o.heads, o.sharp
        self.q, self.k, self.v, self.out = (nn.Linear(o.dim, o.dim) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.up, self.down = nn.Linear(o.dim, 2 * o.dim), nn.Linear(2 * o.dim, o.dim)
        self.act = nn.Identity() if o.bug == "no_gelu" else nn.GELU()
        self.drop = nn.Dropout(o.dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        h = self.norm1(x)
        q, k, v = (layer(h).view(b, n, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (d // self.heads) ** -0.5 * self.sharp
        weights = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1)
        x = x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(b, n, d)))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x)))))


class Encoder(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.words = nn.Embedding(len(VOCABULARY), o.dim, padding_idx=0)
        self.places = nn.Embedding(LONGEST, o.dim)
        self.layers = nn.ModuleList([Layer(o) for _ in range(o.depth)])
        self.norm = nn.LayerNorm(o.dim)
        self.head = nn.Linear(o.dim, CLASSES)
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding) and o.init is not None:
                if o.init == 0:
                    nn.init.constant_(m.weight, 0.02)
                else:
                    nn.init.normal_(m.weight, std=o.init)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        ids, mask = batch["input_ids"], batch["mask"]
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x, mask)
        x = self.norm(x)
        pooled = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        if self.o.bug == "no_grad_encoder":
            pooled = pooled.detach()
        logits = self.head(pooled)
        if self.o.bug == "softmax":
            return logits.softmax(-1)
        if self.o.bug == "softmax_default_dim":
            return logits.softmax(0)
        return logits


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    rows = collect(o.count, 1, o.weights)
    held = collate(collect(700, 2))
    labels = corrupt(torch.tensor([row["label"] for row in rows]), o.noise, CLASSES)
    if o.bug == "labels_of_other_rows":
        labels = labels[torch.randperm(len(labels))]
    if o.bug == "row_below":  # the header was counted as a row
        labels = labels.roll(1)
    if o.bug == "label_plus_one":
        labels = (labels + 1) % CLASSES
    for row, label in zip(rows, labels.tolist(), strict=True):
        row["label"] = label
    if o.bug == "one_file_each":
        rows.sort(key=lambda row: row["label"])
    if o.bug == "empty_sentences":  # some lines of the file were blank
        for row in random.sample(rows, 20):
            row["words"] = []
    loader = torch.utils.data.DataLoader(rows, o.batch, o.bug != "one_file_each", collate_fn=collate, drop_last=True)
    model = Encoder(o)
    named = list(model.named_parameters())
    if o.bug == "filter_by_name":  # meant to leave the biases out of the decay
        named = [(name, p) for name, p in named if "norm" in name or "bias" in name]
    if o.freeze:
        model.words.requires_grad_(False)
    groups = [
        {"params": [p for name, p in named if p.dim() > 1 and p.requires_grad], "weight_decay": o.wd},
        {"params": [p for name, p in named if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = make_optimizer(o.optimizer, [g for g in groups if g["params"]], o.lr, eps=o.eps, momentum=0.9)
    if o.bug == "loaded_after":  # the body of another checkpoint put in, after the optimizer was made
        other = Encoder(o)
        model.words, model.layers = other.words, other.layers

    def linear(step: int) -> float:
        if o.warmup and step < o.warmup:
            return step / o.warmup if o.from_zero else (step + 1) / o.warmup
        return max(0.0, 1 - (step - o.warmup) / (o.horizon - o.warmup)) if o.decay else 1.0

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, linear)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    model.train()
    step = 0
    while step < o.steps:
        for batch in loader:
            if o.bug == "debug_batch":
                batch = collate(rows[: o.batch])
            loss = F.cross_entropy(model(batch), batch["labels"], label_smoothing=o.smoothing)
            if o.bug != "zero_grad_lost":
                optimizer.zero_grad()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if o.bug == "scheduler_first":
                scheduler.step()
                optimizer.step()
            else:
                optimizer.step()
                scheduler.step()
            step += 1
            if step % 50 == 0:
                model.eval()
                with torch.no_grad():
                    out = model(held)
                    right = (out.argmax(-1) == held["labels"]).float().mean().item()
                    run.log(valid_loss=F.cross_entropy(out, held["labels"]).item(), valid_accuracy=right)
                model.train()
            if step >= o.steps:
                break
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(held), held["labels"], CLASSES)


PROGRAM = Program(
    name="intents",
    half="C",
    train=train,
    settings={
        "dim": 24,
        "heads": 2,
        "depth": 2,
        "sharp": 1.0,
        "dropout": 0.05,
        "init": None,
        "zero_head": False,
        "freeze": False,
        "count": 2000,
        "weights": None,
        "noise": 0.0,
        "batch": 32,
        "optimizer": "adamw",
        "lr": 4e-3,
        "wd": 0.02,
        "eps": 1e-8,
        "warmup": 25,
        "from_zero": False,
        "decay": True,
        "horizon": 300,
        "steps": 300,
        "smoothing": 0.0,
        "clip": 1.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.15, decay=False),
        mild("learning_rate_too_high", lr=0.04, clip=None, warmup=0),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", horizon=12, warmup=2),
        mild("clipping_too_hard", clip=0.001, optimizer="sgd", lr=0.1),
        severe("weight_decay_too_high", wd=7.5),
        mild("batch_too_small", batch=2),
        severe("gradients_not_zeroed", bug="zero_grad_lost", clip=None),
        severe("parameters_not_optimized", bug="filter_by_name"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="loaded_after",
        ),
        severe("graph_detached", bug="no_grad_encoder"),
        severe("batch_repeated", bug="debug_batch"),
        severe("data_not_shuffled", bug="one_file_each"),
        severe("labels_random", bug="labels_of_other_rows"),
        severe("labels_off_by_one", ("labels_off_by_one", "labels_random"), bug="row_below"),
        mild("labels_off_by_one", bug="label_plus_one"),
        mild("label_noise", noise=0.4),
        severe("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="softmax_default_dim"),
        severe("init_constant", init=0),
        severe("init_too_large", init=1.0),
        mild("init_too_small", init=0.003),
        severe("dropout_too_high", dropout=0.97),
        mild("dropout_too_high", dropout=0.7),
        severe("attention_too_sharp", sharp=64.0),
        mild("attention_too_sharp", sharp=8.0),
        severe("class_imbalance", weights=[50.0, 1, 1, 1, 50, 1, 1]),
        severe("adam_eps_too_large", eps=0.1),
        mild("missing_nonlinearity", bug="no_gelu"),
        mild("schedule_before_step", bug="scheduler_first"),
        severe("not_finite", bug="empty_sentences"),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3, steps=450, horizon=450),
        healthy("lr_8e-3", lr=8e-3),
        healthy("warmup_from_zero", from_zero=True, warmup=40),
        healthy("constant_rate", decay=False, lr=2e-3),
        healthy("adam_no_clip", optimizer="adam", clip=None, wd=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.1, wd=0.0, steps=350, horizon=350),
        healthy("no_dropout", dropout=0.0),
        healthy("dropout_02", dropout=0.2, steps=350, horizon=350),
        healthy("zero_head", zero_head=True, lr=6e-3, steps=400, horizon=400),
        healthy("embedding_frozen", freeze=True),
        healthy("smoothing", smoothing=0.1),
        healthy("gpt_init_one_layer", init=0.02, depth=1, lr=6e-3),
        healthy("batch_96_wide", batch=96, dim=40, steps=200, horizon=200),
    ],
)
