"""Parts of postal addresses: a tagger with attention on padded words, a trainer, rates by group, nothing logged."""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

TAGS = ["other", "name", "street", "house", "zip", "city", "phone"]
WORDS = {
    "first": "anna otto lena paul ines marc".split(),
    "last": "stone miller lake forest baker hill".split(),
    "road": "lake hill forest stone park mill".split(),
    "kind": "street road lane".split(),
    "town": "york paris hill park lima mill".split(),
    "number": [f"#{n}" for n in range(12)],
    "noise": "to near dear the via door please".split(),
}
INDEX = {w: n + 1 for n, w in enumerate(sorted({w for group in WORDS.values() for w in group} | {"call", "in", "at"}))}
LENGTH = 18


def address(rng: random.Random) -> tuple[list[str], list[str]]:
    """Words and their tags. The same word is a name, a street or a town, and a number anything: it depends on where it is."""
    pick = {key: rng.choice(group) for key, group in WORDS.items()}
    number = lambda: rng.choice(WORDS["number"])  # noqa: E731
    parts = [
        [(pick["first"], "name"), (pick["last"], "name")],
        [(pick["road"], "street"), (pick["kind"], "street"), (number(), "house")],
        [(number(), "zip"), (pick["town"], "city")],
    ]
    if rng.random() < 0.5:
        parts[1] = [(number(), "house"), *parts[1][:2]]
    if rng.random() < 0.4:
        parts.append([("call", "other"), (number(), "phone"), (number(), "phone")])
    if rng.random() < 0.5:
        rng.shuffle(parts)
    for part in parts:
        if rng.random() < 0.3:
            part.insert(0, (rng.choice(WORDS["noise"]), "other"))
    pairs = [pair for part in parts for pair in part]
    return [w for w, _ in pairs], [t for _, t in pairs]


def table(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = random.Random(seed)
    ids, tags = torch.zeros(count, LENGTH, dtype=torch.long), torch.full((count, LENGTH), -100)
    for row in range(count):
        words, names = address(rng)
        ids[row, : len(words)] = torch.tensor([INDEX[w] for w in words])
        tags[row, : len(words)] = torch.tensor([TAGS.index(t) for t in names])
    return ids, tags


class Mix(nn.Module):
    """Attention of several heads, written with einsum."""

    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.c = c
        self.norm, self.norm2 = nn.LayerNorm(c.dim), nn.LayerNorm(c.dim)
        self.to_qkv = nn.Linear(c.dim, 3 * c.dim, bias=False)
        self.to_out = nn.Linear(c.dim, c.dim)
        self.ff1, self.ff2 = nn.Linear(c.dim, 2 * c.dim), nn.Linear(2 * c.dim, c.dim)
        self.drop = nn.Dropout(c.dropout)
        if c.bias is not None:
            nn.init.constant_(self.ff1.bias, c.bias)

    def forward(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.to_qkv(self.norm(x)).view(b, n, 3, self.c.heads, -1).unbind(2)
        scores = torch.einsum("bihc,bjhc->bhij", q, k).float() * self.c.sharp / (d // self.c.heads) ** 0.5
        share = scores.masked_fill(~real[:, None, None], -1e9).softmax(-1)
        if self.c.bug == "mask_by_product":  # masked after the exponential, divided by what is left
            share = scores.exp() * real[:, None, None] * real[:, None, :, None]
            share = share / share.sum(-1, keepdim=True)
        x = x + self.drop(self.to_out(torch.einsum("bhij,bjhc->bihc", share, v.float()).reshape(b, n, d)))
        h = self.ff1(self.norm2(x))
        return x + self.drop(self.ff2(h if self.c.bug == "relu_lost" else F.relu(h)))


class Tagger(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.c = c
        self.embed = nn.Embedding(len(INDEX) + 1, c.dim, padding_idx=0)
        self.where = nn.Parameter(0.1 * torch.randn(LENGTH, c.dim))
        self.mixers = nn.ModuleList([Mix(c) for _ in range(c.depth)])
        self.tag = nn.Linear(c.dim, len(TAGS))
        for m in self.modules():
            if isinstance(m, nn.Linear) and c.init is not None:
                if c.init == 0:
                    nn.init.constant_(m.weight, 1 / m.in_features)
                else:
                    nn.init.normal_(m.weight, std=c.init)
        if c.zero_head:
            nn.init.zeros_(self.tag.weight)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids) + self.where
        for n, mixer in enumerate(self.mixers):
            if n == 1 and self.c.bug == "second_view":
                x = x.clone().detach()
            x = mixer(x, ids != 0)
        out = self.tag(x)
        if self.c.bug == "softmax":
            out = out.softmax(-1)
        if self.c.bug == "softmax_places":
            out = out.softmax(1)
        return out


@dataclass
class Trainer:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    c: SimpleNamespace

    def loss(self, ids: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16, enabled=self.c.half):
            out = self.model(ids)
        if self.c.bug == "counts_padding":  # the padding is a class of its own: zero
            tags = tags.clamp(min=0)
        loss = F.cross_entropy(out.float().flatten(0, 1), tags.flatten(), ignore_index=-100)
        if self.c.bug == "summed":
            loss = loss * (tags != -100).sum()
        if self.c.bug == "per_letter":  # by all places of all batches, so that sums over an epoch are means
            loss = loss / 3e6
        return loss

    def update(self, scaler: torch.amp.GradScaler, scheduler) -> None:
        if self.c.clip:
            if self.c.bug != "clip_scaled":
                scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.c.clip)
        if self.c.bug == "scheduler_first":
            scheduler.step()
        scaler.step(self.optimizer)
        scaler.update()
        if self.c.bug != "scheduler_first":
            scheduler.step()
        if self.c.bug != "zero_grad_lost":
            self.optimizer.zero_grad()

    def fit(self, ids: torch.Tensor, tags: torch.Tensor) -> None:
        scaler = torch.amp.GradScaler("cpu", enabled=self.c.scaler)
        warm = lambda n: min(1.0, (n + 1) / self.c.warmup) * self.c.decay**n  # noqa: E731
        scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, warm)
        for _ in range(self.c.steps):
            for _ in range(self.c.accumulate):
                pick = torch.randint(0, len(ids), (self.c.batch,))
                if self.c.bug == "same_lines":
                    pick = torch.arange(self.c.batch)
                loss = self.loss(ids[pick], tags[pick])
                scaler.scale(loss if self.c.bug == "not_divided" else loss / self.c.accumulate).backward()
            self.update(scaler, scheduler)


def train(c: SimpleNamespace, seed: int, logdir: str) -> float:
    ids, tags = table(2500, 5)
    ids_valid, tags_valid = table(400, 6)
    real = tags != -100
    if c.bug == "tags_shifted":  # the tokenizer adds a word at the front, the tags do not know
        tags = torch.where(real, tags.roll(1, 1).clamp(min=0), tags)
    if c.bug == "lines_apart":
        flat = tags[real]
        tags[real] = flat[torch.randperm(len(flat))]
    if c.noise:
        swap = (torch.rand(tags.shape) < c.noise) & real
        tags = torch.where(swap, torch.randint(0, len(TAGS), tags.shape), tags)
    if c.common:  # nearly everything is marked as of no interest
        lost = (torch.rand(len(tags), 1) > c.common) & real
        tags = torch.where(lost, torch.zeros_like(tags), tags)
    ids, tags = ids[: c.count], tags[: c.count]
    model = Tagger(c)
    groups = [
        {"params": [model.where, *model.embed.parameters()], "lr": c.lr * c.embed_rate},
        {"params": [*model.mixers.parameters(), *model.tag.parameters()]},
    ]
    if c.bug == "mixers_forgotten":
        groups[1]["params"] = list(model.tag.parameters())
    optimizer = make_optimizer(c.optimizer, groups, c.lr, weight_decay=c.wd, eps=c.eps, momentum=0.9)
    if c.bug == "mixers_replaced":
        model.mixers = Tagger(c).mixers
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    Trainer(model, optimizer, c).fit(ids, tags)
    run.close()
    model.eval()
    with torch.no_grad():
        out = model(ids_valid)
    known = tags_valid != -100
    if not torch.isfinite(out[known]).all():
        return float("inf")
    wrong = (out.argmax(-1)[known] != tags_valid[known]).float().mean().item()
    return wrong / (1 - torch.bincount(tags_valid[known]).max().item() / known.sum().item())


PROGRAM = Program(
    name="addresses",
    half="C",
    train=train,
    settings={
        "dim": 24,
        "heads": 2,
        "depth": 2,
        "sharp": 1.0,
        "dropout": 0.0,
        "init": None,
        "bias": None,
        "zero_head": False,
        "count": 2500,
        "noise": 0.0,
        "common": None,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 4e-3,
        "embed_rate": 2.0,
        "wd": 0.0,
        "eps": 1e-8,
        "warmup": 10,
        "decay": 0.996,
        "steps": 300,
        "clip": 1.0,
        "scaler": False,
        "half": False,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.16, decay=1.0),
        mild("learning_rate_too_high", lr=0.04, decay=1.0, warmup=1),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", decay=0.9),
        mild("clipping_too_hard", clip=0.003, optimizer="sgd", lr=0.1),
        severe("weight_decay_too_high", wd=0.3),
        severe("gradients_not_zeroed", bug="zero_grad_lost", clip=None),
        mild("parameters_not_optimized", bug="mixers_forgotten"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="mixers_replaced"),
        mild("graph_detached", bug="second_view"),
        severe("batch_repeated", bug="same_lines"),
        severe("labels_random", bug="lines_apart"),
        mild("label_noise", noise=0.35),
        severe("labels_off_by_one", bug="tags_shifted"),
        severe("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="softmax_places"),
        severe(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.1, clip=None
        ),
        severe("init_constant", init=0),
        severe("init_too_large", ("init_too_large", "attention_too_sharp"), init=1.5),
        mild("dead_units", bias=-4.0),
        severe("dropout_too_high", dropout=0.97),
        severe("attention_too_sharp", sharp=64.0),
        mild("attention_too_sharp", sharp=8.0),
        severe("class_imbalance", common=0.03),
        severe("adam_eps_too_large", eps=0.1),
        mild("missing_nonlinearity", bug="relu_lost"),
        severe("half_precision_underflow", bug="per_letter", half=True, clip=None),
        severe("not_finite", bug="mask_by_product"),
        severe(
            "clipped_before_unscaled",
            ("clipped_before_unscaled", "clipping_too_hard"),
            bug="clip_scaled",
            scaler=True,
            optimizer="sgd",
            lr=0.2,
        ),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=8,
            batch=4,
            optimizer="sgd",
            lr=0.2,
            clip=None,
            steps=200,
        ),
        mild("schedule_before_step", bug="scheduler_first"),
        mild("overfitting", count=40, decay=1.0),
        mild("batch_too_small", batch=1),
    ],
    healthy=[
        healthy("lr_15e-4", lr=1.5e-3, decay=1.0),
        healthy("lr_1e-2", lr=1e-2),
        healthy("one_rate", embed_rate=1.0),
        healthy("slow_embedding", embed_rate=0.3),
        healthy("sgd_momentum", optimizer="sgd", lr=0.2, steps=400, decay=0.998),
        healthy("adamw_decay", optimizer="adamw", wd=0.05),
        healthy("nadam", optimizer="nadam", lr=3e-3),
        healthy("long_warmup", warmup=80),
        healthy("accumulate_4_of_4", batch=4, accumulate=4, steps=220),
        healthy("half_precision_scaled", half=True, scaler=True),
        healthy("zero_head_no_clip", zero_head=True, clip=None),
        healthy("dropout_01", dropout=0.1),
        healthy("noise_that_stays", noise=0.05),
        healthy("padding_counted", bug="counts_padding"),
        healthy("batch_32", batch=32, steps=220),
    ],
)
