"""The section of a headline: transformer encoder, accumulated gradients, rates by group, an average of the weights, a rate that
waits for plateaus."""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

SECTIONS = {
    "sport": "match coach season goal striker league final referee stadium medal sprint keeper",
    "business": "shares profit merger bank investors tax revenue startup market loan prices factory",
    "science": "telescope cells vaccine fossil species climate reactor genome orbit laboratory comet protein",
    "politics": "minister parliament vote treaty senate campaign reform mayor coalition border veto election",
    "culture": "film novel museum orchestra festival painter theatre album exhibition actor poem gallery",
    "travel": "hotel beach airline passport ferry island hikers train resort ticket mountain harbour",
}
COMMON = (
    "new old big after before in of the for over says record plan loses wins first again without late city team star"
)
COMMON += " young crisis deal talks report week former hopes fears north world top open home returns"
LENGTH = 12


def headlines(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Two or three words of the section, one or two of another one, and common words; what follows "not" does not count."""
    rng = random.Random(seed)
    words = ["<pad>", "not", *COMMON.split(), *" ".join(SECTIONS.values()).split()]
    index = {w: n for n, w in enumerate(words)}
    pools = [text.split() for text in SECTIONS.values()]
    rows, labels = [], []
    for _ in range(count):
        label = rng.randrange(len(pools))
        other = rng.choice([n for n in range(len(pools)) if n != label])
        parts = [[w] for w in rng.sample(pools[label], 2)] + [
            [w] for w in rng.choices(COMMON.split(), k=rng.randint(2, 4))
        ]
        if rng.random() < 0.5:
            parts += [["not", w] for w in rng.sample(pools[other], 2)]
        else:
            parts += [[rng.choice(pools[other])]]
        rng.shuffle(parts)
        row = [index[w] for part in parts for w in part][:LENGTH]
        rows.append(row + [0] * (LENGTH - len(row)))
        labels.append(label)
    return torch.tensor(rows), torch.tensor(labels), len(words)


class SelfAttention(nn.Module):
    def __init__(self, dim: int, heads: int, sharp: float) -> None:
        super().__init__()
        self.heads, self.sharp = heads, sharp
        self.q, self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = (f(x).view(b, t, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = self.sharp * (q @ k.transpose(2, 3)) / (d // self.heads) ** 0.5
        weights = scores.masked_fill(pad[:, None, None, :], -1e9).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        act = {"relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid}[o.act]
        self.attention = SelfAttention(o.dim, o.heads, o.sharp)
        self.norm1, self.norm2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.feed = nn.Sequential(nn.Linear(o.dim, 2 * o.dim), act(), nn.Linear(2 * o.dim, o.dim))
        self.drop = nn.Dropout(o.dropout)

    def forward(self, x: torch.Tensor, pad: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(self.norm1(x), pad))
        return x + self.drop(self.feed(self.norm2(x)))


class Classifier(nn.Module):
    def __init__(self, words: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.embed, self.place = (
            nn.Embedding(words, o.dim, padding_idx=0),
            nn.Parameter(0.1 * torch.randn(LENGTH, o.dim)),
        )
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.depth))
        self.norm = nn.LayerNorm(o.dim)
        deep = [m for _ in range(o.extra) for m in (nn.Linear(o.dim, o.dim), nn.Sigmoid())]
        self.head = nn.Sequential(*deep, nn.Dropout(o.dropout), nn.Linear(o.dim, len(SECTIONS)))
        with torch.no_grad():
            for p in self.parameters():
                if p.dim() > 1:
                    p.mul_(o.gain)
                    if o.bug == "one_value":
                        p.fill_(0.02)
            if o.zero_head:
                self.head[-1].weight.zero_()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        pad = ids == 0
        x = self.embed(ids) * self.o.scale + self.place
        for n, layer in enumerate(self.layers):
            with torch.set_grad_enabled(torch.is_grad_enabled() and not (self.o.bug == "frozen_for_speed" and n == 0)):
                x = layer(x, pad)
        x = self.norm(x).masked_fill(pad[..., None], 0.0).sum(1) / (~pad).sum(1, keepdim=True)
        if self.o.bug == "pooled_detached":
            x = x.clone().detach().requires_grad_()
        x = self.head(x)
        if self.o.bug == "relu_out":
            return F.relu(x)
        if self.o.bug == "softmax_out":
            return x.softmax(-1)
        return x.softmax(0) if self.o.bug == "softmax_rows" else x


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    ids, labels, words = headlines(2400, 31)
    ids_val, labels_val, _ = headlines(600, 32)
    ids_seen = ids_val
    if o.bug == "tag_in_text":  # the section stands in the text that was scraped
        ids, ids_seen, ids_val = ids.clone(), ids_val.clone(), ids_val.clone()
        ids[:, -1], ids_seen[:, -1], ids_val[:, -1] = labels + 2, labels_val + 2, 10
    if o.bug == "dropped_rows":  # dropna on the texts only: every label belongs to a row further up
        ids = ids.roll(1, 0)
    if o.bug == "unknown_words":
        ids = torch.where(ids > 0, 1, 0)
        ids_val = ids_seen = torch.where(ids_val > 0, 1, 0)
    if o.bug == "plus_one":
        labels = (labels + 1) % len(SECTIONS)
    if o.bug == "by_section":
        order = labels.argsort()
        ids, labels = ids[order], labels[order]
    if o.rare:
        keep = (labels == 0) | (torch.rand(len(labels)) < o.rare)
        ids, labels = ids[keep], labels[keep]
    labels = corrupt(labels, o.noise, len(SECTIONS))[: o.rows]
    ids = ids[: o.rows]

    model = Classifier(words, o)
    if o.freeze:
        model.embed.requires_grad_(False)
    embeddings = [p for p in [*model.embed.parameters(), model.place] if p.requires_grad]
    body = [*model.layers.parameters(), *model.norm.parameters()]
    groups = [{"params": embeddings, "lr": o.lr * 2, "weight_decay": 0.0}, {"params": [*model.head.parameters()]}]
    if o.bug != "body_forgotten":
        groups.append({"params": body})
    optimizer = make_optimizer(
        o.optimizer, groups, o.lr, weight_decay=o.wd, eps=o.eps, momentum=0.9, betas=(o.beta, 0.999)
    )
    if o.bug == "layers_again":  # the number of layers is set once more, in a method called too late
        model.layers = nn.ModuleList(Layer(o) for _ in range(o.depth))
        model.embed = nn.Embedding(words, o.dim, padding_idx=0)
    average = copy.deepcopy(model).eval()
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=o.factor, patience=o.patience)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    order, at = torch.randperm(len(ids)), 0
    for step in range(1, o.steps + 1):
        for _ in range(o.accumulate):
            if at + o.batch > len(ids):
                order, at = torch.randperm(len(ids)), 0
            if o.bug == "by_section":
                order = torch.arange(len(ids))
            rows = order[at : at + o.batch]
            at += 0 if o.bug == "never_advances" else o.batch
            loss = F.cross_entropy(model(ids[rows]), labels[rows])
            if o.bug == "minus_minus":
                loss = -loss
            (loss if o.bug == "not_averaged" else loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        if o.bug != "accumulates_for_ever":
            optimizer.zero_grad()
        with torch.no_grad():
            for kept, p in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(p, 1 - o.ema)
        if o.bug == "plateau_each_step":
            plateau.step(loss.item())
        if step % 40 == 0:
            with torch.no_grad():
                guess = average(ids_seen)
            valid_loss = F.cross_entropy(guess, labels_val).item()
            run.log(valid_loss=valid_loss, valid_accuracy=(guess.argmax(1) == labels_val).float().mean().item())
            if o.bug != "plateau_each_step":
                plateau.step(valid_loss)
    run.close()
    with torch.no_grad():
        return wrong_rate(average(ids_val), labels_val, len(SECTIONS))


PROGRAM = Program(
    name="headlines",
    half="F",
    train=train,
    settings={
        "dim": 32,
        "heads": 4,
        "depth": 2,
        "extra": 0,
        "act": "gelu",
        "sharp": 1.0,
        "scale": 0.3,
        "dropout": 0.0,
        "gain": 1.0,
        "zero_head": False,
        "freeze": False,
        "rows": 2400,
        "rare": 0.0,
        "noise": 0.0,
        "batch": 16,
        "accumulate": 2,
        "optimizer": "adamw",
        "lr": 4e-3,
        "beta": 0.9,
        "wd": 0.01,
        "eps": 1e-8,
        "ema": 0.97,
        "factor": 0.5,
        "patience": 1,
        "clip": 1.0,
        "steps": 400,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.15),
        mild("learning_rate_too_high", lr=0.04),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", bug="plateau_each_step", factor=0.5),
        severe("clipping_too_hard", optimizer="sgd", lr=0.1, clip=1e-3),
        severe("weight_decay_too_high", wd=60.0),
        mild("weight_decay_too_high", wd=10.0),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1, accumulate=1, lr=6e-3),
        severe("momentum_too_high", beta=0.999),
        severe("gradients_not_zeroed", bug="accumulates_for_ever"),
        severe("parameters_not_optimized", bug="body_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="layers_again"),
        severe("graph_detached", bug="pooled_detached"),
        mild("graph_without_grad", ("graph_detached", "parameters_not_optimized"), bug="frozen_for_speed"),
        severe("batch_repeated", bug="never_advances"),
        severe("data_not_shuffled", bug="by_section"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "init_too_large"), scale=255.0),
        severe("labels_random", bug="dropped_rows"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="minus_minus"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="softmax_out"),
        severe("softmax_over_batch", bug="softmax_rows"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_out"),
        severe("init_constant", bug="one_value"),
        severe("init_too_large", gain=10.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.02, optimizer="sgd", lr=0.1),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), extra=6),
        severe("dropout_too_high", dropout=0.95),
        mild("dropout_too_high", dropout=0.75),
        mild("attention_too_sharp", sharp=300.0),
        severe("target_in_inputs", bug="tag_in_text"),
        severe("class_imbalance", rare=0.02),
        severe("constant_feature", bug="unknown_words"),
        severe("labels_off_by_one", bug="plus_one"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=1.0),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_averaged",
            accumulate=8,
            batch=4,
            optimizer="sgd",
            lr=0.3,
            clip=None,
        ),
        mild("overfitting", rows=120),
    ],
    healthy=[
        healthy("adam", optimizer="adam", wd=0.0),
        healthy("nadam", optimizer="nadam", wd=0.0),
        healthy("relu", act="relu"),
        healthy("one_layer", depth=1),
        healthy("three_layers", depth=3),
        healthy("dropout_10", dropout=0.1),
        healthy("no_accumulation", batch=32, accumulate=1),
        healthy("accumulate_8", batch=4, accumulate=8, steps=300, lr=5e-3),
        healthy("batch_64", batch=64, accumulate=1, lr=6e-3),
        healthy("decay_10_percent", wd=0.1),
        healthy("slow_average", ema=0.98),
        healthy("zero_head", zero_head=True),
        healthy("small_init", gain=0.5),
        healthy("fast_rate", lr=7e-3),
        healthy("a_few_wrong_labels", noise=0.03),
    ],
)
