"""A small decoder-only transformer on made-up text: embedding tied to the output, next-token cross-entropy, AdamW."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe

VOCAB, LENGTH, WINDOW = 24, 24000, 24


@functools.lru_cache(None)
def language() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A text, the chances of the next letter by the letter and the kind of the one before it, and these per position."""
    g = torch.Generator().manual_seed(21)
    chance = (3.2 * torch.randn(4, VOCAB, VOCAB, generator=g)).softmax(-1)
    luck = torch.rand(LENGTH, generator=g).tolist()
    sums = chance.cumsum(-1).tolist()
    text = [0, 1]
    for r in luck[2:]:
        row = sums[text[-2] % 4][text[-1]]
        text.append(next((i for i, s in enumerate(row) if r < s), VOCAB - 1))
    letters = torch.tensor(text)
    true = torch.zeros(LENGTH)
    true[2:] = -chance[letters[:-2] % 4, letters[1:-1], letters[2:]].log()
    return letters, chance, true


class Attention(nn.Module):
    def __init__(self, dim: int, o: SimpleNamespace):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.o = o

    def forward(self, x):
        b, t, d = x.shape
        h = self.o.heads
        q, k, v = self.qkv(x).chunk(3, -1)
        if self.o.bug == "heads_by_view":
            q, k, v = (m.reshape(b, h, t, d // h) for m in (q, k, v))
        else:
            q, k, v = (m.view(b, t, h, d // h).transpose(1, 2) for m in (q, k, v))
        if self.o.bug == "over_batch":
            q, k, v = (m.permute(2, 1, 0, 3) for m in (q, k, v))
        n = q.shape[2]
        w = q @ k.transpose(-2, -1) * (self.o.sharp / math.sqrt(d // h))
        if self.o.bug not in ("no_mask", "over_batch"):
            w = w.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)
        if self.o.bug == "mask_everything":  # the mask hides the diagonal as well: the first row has nothing left
            w = w.masked_fill(torch.ones(n, n).triu(0).bool(), -math.inf)
        y = w.softmax(-1) @ v
        if self.o.bug == "over_batch":
            y = y.permute(2, 1, 0, 3)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        d = o.dim
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU, "none": nn.Identity}[o.act]
        self.n1 = nn.LayerNorm(d) if o.norm else nn.Identity()
        self.n2 = nn.LayerNorm(d) if o.norm else nn.Identity()
        self.attention = Attention(d, o)
        self.mlp = nn.Sequential(nn.Linear(d, 3 * d), act(), nn.Linear(3 * d, d))
        self.drop = nn.Dropout(o.dropout)
        if o.zero_branches:
            nn.init.zeros_(self.attention.proj.weight)
            nn.init.zeros_(self.mlp[2].weight)
        self.post = o.post

    def forward(self, x):
        if self.post:
            x = self.n1(x + self.drop(self.attention(x)))
            return self.n2(x + self.drop(self.mlp(x)))
        x = x + self.drop(self.attention(self.n1(x)))
        return x + self.drop(self.mlp(self.n2(x)))


class Writer(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCAB, o.dim), nn.Embedding(WINDOW, o.dim)
        nn.init.normal_(self.letters.weight, std=o.std)
        nn.init.normal_(self.places.weight, std=o.std)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.depth))
        self.norm = nn.LayerNorm(o.dim) if o.norm else nn.Identity()
        self.head = nn.Linear(o.dim, VOCAB, bias=False)
        if o.tied:
            self.head.weight = self.letters.weight
        with torch.no_grad():
            for _name, p in self.blocks.named_parameters():
                if p.dim() == 2:
                    p.mul_(o.gain)
            if o.gain == 0:
                self.letters.weight.zero_()
                self.places.weight.zero_()
        self.o = o

    def forward(self, ids):
        x = self.letters(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
            if self.o.bug == "detached_blocks":
                x = x.detach()
        scores = self.head(self.norm(x))
        if self.o.bug == "softmaxed":
            scores = scores.softmax(-1)
        if self.o.bug == "relu_scores":
            scores = scores.relu()
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    text, _, true = language()
    cut = LENGTH - 4000
    learn, test = text[:cut][: o.letters], text[cut:]
    goals = learn.clone()
    if o.bug == "shuffled_goals":
        goals = goals[torch.randperm(len(goals))]
    if o.noise:
        goals = corrupt(goals, o.noise, VOCAB)

    def window(source, begins, shift=0):
        return source[begins[:, None] + torch.arange(WINDOW) + shift]

    starts = torch.arange(0, len(test) - WINDOW - 1, WINDOW)
    ids_val, goal_val, best = window(test, starts), window(test, starts, 1), window(true[cut:], starts, 1).mean()
    shares = torch.bincount(text, minlength=VOCAB) / LENGTH
    guess = -(shares * (shares + 1e-9).log()).sum()

    model = Writer(o)
    params = list(model.parameters())
    if o.bug == "blocks_in_list":
        params = [p for n, p in model.named_parameters() if not n.startswith("blocks")]
    if o.freeze:
        model.places.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.groups:
        params = [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": o.wd},
            {"params": [p for p in params if p.dim() == 1], "weight_decay": 0.0},
        ]
    opt = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, betas=o.betas, momentum=o.momentum)
    if o.bug == "head_copied":
        model.head.weight = nn.Parameter(model.letters.weight.detach().clone())
    if o.bug == "loaded_again":  # a fresh model "to be sure", the optimizer stays
        model = Writer(o)

    def shape(step):
        up = min(1.0, (step + 1) / o.warmup) if o.warmup else 1.0
        down = {
            "none": 1.0,
            "cosine": 0.5 + 0.5 * math.cos(math.pi * min(1, step / o.steps)),
            "linear": max(0.0, 1 - step / o.steps),
        }
        return up * down[o.schedule] * o.gamma**step

    schedule = torch.optim.lr_scheduler.LambdaLR(opt, shape)

    def step_loss(ids, goal):
        scores = model(ids)
        return F.cross_entropy(
            scores.reshape(-1, VOCAB), goal.reshape(-1), label_smoothing=o.smoothing, reduction=o.reduction
        )

    def warm_state():  # a first phase on other text, then its optimizer continues
        for _ in range(60):
            at = torch.randint(0, len(learn) - WINDOW - 2, (o.batch,))
            opt.zero_grad()
            step_loss(window(learn, at), window(goals, at, 1)).backward()
            opt.step()
        opt.zero_grad()

    if o.resumed:
        warm_state()
    run = cockpit_core.track(model, optimizer=opt, logdir=logdir)
    model.train()
    ordered = torch.arange(len(learn) - WINDOW - 2)
    if o.bug == "sorted_windows":
        ordered = ordered[window(learn, ordered).float().mean(1).argsort()]
    for step in range(o.steps):
        at = torch.randint(0, len(learn) - WINDOW - 2, (o.batch,))
        if o.bug == "sorted_windows":
            first = step * (len(ordered) - o.batch) // o.steps
            at = ordered[first : first + o.batch]
        if o.bug == "same_windows":
            at = torch.arange(o.batch) * WINDOW % (len(learn) - WINDOW - 2)
        shift = {"same_letters": 0, "two_ahead": 2}.get(o.bug, 1)
        loss = step_loss(window(learn, at), window(goals, at, shift))
        if o.bug == "minus":
            loss = -loss
        if o.bug != "keeps_gradients":
            opt.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        opt.step()
        schedule.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                scores = model(ids_val[:60])
                right = (scores.argmax(-1) == goal_val[:60]).float().mean().item()
                run.log(valid_loss=F.cross_entropy(scores.transpose(1, 2), goal_val[:60]).item(), valid_accuracy=right)
            model.train()
    run.close()

    if o.bug == "no_mask":  # whoever writes text does not know what follows
        o.bug = None

    model.eval()
    with torch.no_grad():
        found = F.cross_entropy(model(ids_val).transpose(1, 2), goal_val)
    return ((found - best) / (guess - best)).item()


PROGRAM = Program(
    name="copytext",
    half="G",
    train=train,
    settings={
        "dim": 32,
        "heads": 2,
        "depth": 2,
        "act": "gelu",
        "norm": True,
        "post": False,
        "tied": True,
        "std": 0.1,
        "gain": 1.0,
        "sharp": 1.0,
        "dropout": 0.0,
        "zero_branches": False,
        "freeze": False,
        "letters": LENGTH,
        "noise": 0.0,
        "smoothing": 0.0,
        "reduction": "mean",
        "batch": 16,
        "optimizer": "adamw",
        "lr": 8e-3,
        "betas": (0.9, 0.99),
        "momentum": 0.9,
        "wd": 0.01,
        "groups": False,
        "eps": 1e-8,
        "schedule": "cosine",
        "warmup": 20,
        "gamma": 1.0,
        "clip": 1.0,
        "resumed": False,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.32),
        mild("learning_rate_too_high", lr=0.08),
        mild("learning_rate_too_low", lr=2.6e-4),
        mild("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), gamma=0.98, schedule="none"),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.3, wd=0.0),
        severe("weight_decay_too_high", wd=10.0),
        mild("weight_decay_too_high", wd=2.0),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1),
        severe("momentum_too_high", optimizer="sgd", lr=0.3, momentum=0.999, wd=0.0),
        severe("gradients_not_zeroed", bug="keeps_gradients"),
        mild("parameters_not_optimized", bug="blocks_in_list"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="loaded_again"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="detached_blocks"),
        severe("batch_repeated", ("batch_repeated", "overfitting"), bug="same_windows"),
        severe("labels_random", bug="shuffled_goals"),
        mild("label_noise", noise=0.3),
        severe("loss_sign", bug="minus"),
        severe("double_softmax", bug="softmaxed"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="same_letters"),
        severe("labels_off_by_one", ("labels_off_by_one", "targets_not_shifted"), bug="two_ahead"),
        severe("target_in_inputs", bug="no_mask"),
        mild("samples_mixed", bug="over_batch"),
        severe("not_finite", bug="mask_everything"),
        mild("attention_too_sharp", sharp=30.0),
        mild("init_too_large", std=2.0),
        severe("init_constant", gain=0.0),
        severe("dropout_too_high", dropout=0.97),
        severe("overfitting", letters=300),
        mild(
            "weights_not_tied",
            ("weights_not_tied", "optimizer_holds_others", "parameters_not_optimized"),
            bug="head_copied",
        ),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.03),
    ],
    healthy=[
        healthy("adam", optimizer="adam", wd=0.0),
        healthy("nadam", optimizer="nadam", wd=0.0, lr=5e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=4e-3, wd=0.0, momentum=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.5, wd=0.0),
        healthy("slower", lr=5.5e-3),
        healthy("faster", lr=0.016),
        healthy("decay_01", wd=0.1, groups=True),
        healthy("constant", schedule="none", lr=5e-3),
        healthy("no_warmup", warmup=0),
        healthy("batch_32", batch=32),
        healthy("batch_8", batch=8, steps=400),
        healthy("one_layer", depth=1),
        healthy("three_layers", depth=3),
        healthy("four_heads_silu", heads=4, act="silu"),
        healthy("post_norm", post=True, schedule="none"),
        healthy("dropout_10", dropout=0.1, schedule="none", batch=24),
        healthy("zero_branches", zero_branches=True),
        healthy("untied", tied=False),
        healthy("places_frozen", freeze=True),
        healthy("smoothing", smoothing=0.03),
        healthy("resumed", resumed=True),
    ],
)
