"""A GPT in one file on sentences of a small grammar: tied embedding, model returns logits and loss, AdamW, clipping."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.nn import functional as F

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

BLOCK = 24
NOUNS = ["cat", "dog", "bird", "child", "king", "fish"]
VERBS = ["sees", "likes", "finds", "hears"]
PLACES = ["garden", "river", "house", "tower"]
CHARS = "\n abcdefghijklmnopqrstuvwxyz0123456789+=.,"
VOCAB = len(CHARS)


def sentence(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:  # the one who is seen comes back in the second half
        who, whom = rng.sample(NOUNS, 2)
        return f"the {who} {rng.choice(VERBS)} the {whom}, the {whom} runs."
    if kind < 0.7:
        who, place = rng.choice(NOUNS), rng.choice(PLACES)
        return f"in the {place} sits a {who}. {who} in {place}."
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return f"{a}+{b}={a + b}."


def corpus(seed: int, sentences: int) -> torch.Tensor:
    rng = random.Random(seed)
    text = "\n".join(sentence(rng) for _ in range(sentences)) + "\n"
    return torch.tensor([CHARS.index(c) for c in text])


class CausalSelfAttention(nn.Module):
    def __init__(self, config: SimpleNamespace):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.register_buffer("mask", torch.ones(BLOCK, BLOCK).tril().bool())
        self.n_head, self.bug, self.drop = config.n_head, config.bug, nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.c_attn(x).split(C, dim=2)
        if self.bug == "view_heads":  # heads first, but without the transposition
            q, k, v = (t.reshape(self.n_head, T, B, C // self.n_head).permute(2, 0, 1, 3) for t in (q, k, v))
        else:
            q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = q @ k.transpose(-2, -1)
        att = att * math.sqrt(k.size(-1)) if self.bug == "sharp" else att / math.sqrt(k.size(-1))
        if self.bug != "no_mask":
            att = att.masked_fill(~self.mask[:T, :T], float("-inf"))
        if self.bug == "hide_past":  # ones and zeros the wrong way round
            att = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
            att = att.masked_fill(self.mask[:T, :T], float("-inf"))
        y = (self.drop(att.softmax(dim=-1)) @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, config: SimpleNamespace):
        super().__init__()
        norm = nn.LayerNorm if config.norm else lambda n: nn.Identity()
        self.ln_1, self.ln_2 = norm(config.n_embd), norm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "none": nn.Identity}[config.act]()
        self.fc, self.act = nn.Linear(config.n_embd, 4 * config.n_embd), act
        self.proj, self.drop = nn.Linear(4 * config.n_embd, config.n_embd), nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.ln_1(x)))
        return x + self.drop(self.proj(self.act(self.fc(self.ln_2(x)))))


class GPT(nn.Module):
    def __init__(self, config: SimpleNamespace):
        super().__init__()
        self.config = config
        self.wte, self.wpe = nn.Embedding(VOCAB, config.n_embd), nn.Embedding(BLOCK, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd) if config.norm else nn.Identity()
        self.lm_head = nn.Linear(config.n_embd, VOCAB, bias=False)
        self.apply(self._init)
        if config.tied:
            self.lm_head.weight = self.wte.weight
        for block in self.h:
            if config.zero_branches:
                nn.init.zeros_(block.attn.c_proj.weight)
                nn.init.zeros_(block.proj.weight)

    def _init(self, m: nn.Module) -> None:
        std = self.config.std
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, mean=0.0, std=std)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None):
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1))))
        for i, block in enumerate(self.h):
            x = block(x)
            if self.config.bug == "data" and i == 0:
                x = x.data
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, None
        flat = logits.view(-1, VOCAB)
        if self.config.bug == "softmax_dim":
            return logits, F.nll_loss(logits.log_softmax(0).view(-1, VOCAB), targets.reshape(-1))
        if self.config.bug == "probabilities":
            flat = flat.softmax(-1)
        loss = F.cross_entropy(
            flat, targets.reshape(-1), reduction=self.config.reduction, label_smoothing=self.config.smoothing
        )
        return logits, -loss if self.config.bug == "likelihood" else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        c = self.config
        params = {name: p for name, p in self.named_parameters() if p.requires_grad}
        if c.bug == "only_head":
            params = {name: p for name, p in params.items() if name.startswith(("ln_f", "lm_head"))}
        groups = [
            {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": c.weight_decay},
            {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return make_optimizer(
            c.optimizer, groups, c.lr, betas=(0.9, 0.99), eps=c.eps, momentum=c.momentum, nesterov=c.momentum > 0
        )


def get_lr(it: int, c: SimpleNamespace) -> float:
    if it < c.warmup_iters:
        return c.lr * (it + 1) / c.warmup_iters
    if c.decay == "exponential":
        return c.lr * c.gamma**it
    ratio = (it - c.warmup_iters) / max(1, c.max_iters - c.warmup_iters)
    return c.min_lr * c.lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (1 - c.min_lr) * c.lr


def get_batch(data: torch.Tensor, c: SimpleNamespace, it: int, seed: int):
    if c.bug == "seed_inside":
        torch.manual_seed(seed)
    ix = torch.randint(len(data) - BLOCK - 2, (c.batch_size,))
    if c.bug == "in_order":  # every batch from one place in the sorted text
        ix = (it * len(data) // c.max_iters + torch.arange(c.batch_size) * 3) % (len(data) - BLOCK - 2)
    shift = {"not_shifted": 0, "two_ahead": 2}.get(c.bug, 1)
    x = torch.stack([data[i : i + BLOCK] for i in ix])
    y = torch.stack([data[i + shift : i + shift + BLOCK] for i in ix])
    if c.bug == "shuffled_targets":
        y = y.flatten()[torch.randperm(y.numel())].view_as(y)
    if c.typos:
        y = torch.where(torch.rand(y.shape) < c.typos, torch.randint(0, VOCAB, y.shape), y)
    return x, y


@torch.no_grad()
def estimate(model: GPT, data: torch.Tensor) -> float:
    """Nats per character, divided by those of guessing by frequency; a long training comes to about 0.1."""
    model.eval()
    if model.config.bug == "no_mask":  # as when it writes: nothing later exists yet
        for block in model.h:
            block.attn.bug = None
    starts = torch.arange(0, len(data) - BLOCK - 1, BLOCK)
    x = torch.stack([data[i : i + BLOCK] for i in starts])
    y = torch.stack([data[i + 1 : i + 1 + BLOCK] for i in starts])
    logits = model(x)[0]
    p = torch.bincount(data, minlength=VOCAB).float() / len(data)
    guess = -(p * (p + 1e-9).log()).sum()
    return (F.cross_entropy(logits.view(-1, VOCAB), y.view(-1)) / guess).item()


def pretrain(model: GPT, data: torch.Tensor, c: SimpleNamespace) -> dict:
    optimizer = model.configure_optimizers()
    for it in range(c.earlier):
        _, loss = model(*get_batch(data, c, it, 0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return optimizer.state_dict()


def train(c: SimpleNamespace, seed: int, logdir: str) -> float:
    data, held_out = corpus(1, c.sentences), corpus(2, 300)
    if c.bug == "in_order":
        text = "".join(CHARS[i] for i in data.tolist()).strip("\n").split("\n")
        data = torch.tensor([CHARS.index(ch) for ch in "\n".join(sorted(text))])
    model = GPT(c)
    state = pretrain(model, data, c) if c.earlier else None
    if c.freeze:
        model.wte.requires_grad_(False)
        model.wpe.requires_grad_(False)
    optimizer = model.configure_optimizers()
    if c.resume:
        optimizer.load_state_dict(state)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    model.train(c.bug != "eval")
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for it in range(c.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, c)
        if it % c.zero_every == 0:
            optimizer.zero_grad(set_to_none=True)
        for _ in range(c.micro_steps):
            xb, yb = get_batch(data, c, it, seed)
            _, loss = model(xb, yb)
            (loss / c.micro_steps if c.divide else loss).backward()
        if c.grad_clip:
            nn.utils.clip_grad_norm_(model.parameters(), c.grad_clip)
        optimizer.step()
        if c.ema:
            for name, p in model.named_parameters():
                average[name].lerp_(p.detach(), 1 - c.ema)
    run.close()
    if c.ema:
        for name, p in model.named_parameters():
            p.data.copy_(average[name])
    return estimate(model, held_out)


PROGRAM = Program(
    name="nanogpt",
    half="H",
    train=train,
    settings={
        "n_embd": 40,
        "n_head": 4,
        "n_layer": 2,
        "norm": True,
        "act": "gelu",
        "dropout": 0.0,
        "tied": True,
        "std": 0.05,
        "zero_branches": False,
        "freeze": False,
        "earlier": 0,
        "resume": False,
        "sentences": 3000,
        "typos": 0.0,
        "smoothing": 0.0,
        "reduction": "mean",
        "batch_size": 16,
        "micro_steps": 1,
        "divide": True,
        "zero_every": 1,
        "optimizer": "adamw",
        "lr": 6e-3,
        "momentum": 0.9,
        "eps": 1e-8,
        "weight_decay": 0.1,
        "warmup_iters": 30,
        "decay": "cosine",
        "min_lr": 0.1,
        "gamma": 1.0,
        "grad_clip": 1.0,
        "ema": 0.0,
        "max_iters": 280,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.15),
        severe("learning_rate_too_low", lr=6e-3 / 300),
        mild("learning_rate_too_low", lr=6e-3 / 30),
        severe("schedule_too_fast", decay="exponential", gamma=0.95),
        severe("clipping_too_hard", grad_clip=1e-3, optimizer="sgd", lr=0.3, weight_decay=0.0),
        severe("weight_decay_too_high", weight_decay=6.0),
        severe("momentum_too_high", optimizer="sgd", lr=0.3, momentum=0.999, weight_decay=0.0),
        severe("gradients_not_zeroed", zero_every=10**6),
        severe("parameters_not_optimized", bug="only_head", tied=False),
        severe("graph_detached", bug="data", tied=False),
        severe("batch_repeated", bug="seed_inside"),
        severe("data_not_shuffled", bug="in_order"),
        severe("labels_random", bug="shuffled_targets"),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        severe("labels_off_by_one", ("labels_off_by_one", "targets_not_shifted"), bug="two_ahead"),
        severe("target_in_inputs", bug="no_mask"),
        severe("not_finite", bug="hide_past"),
        severe("samples_mixed", bug="view_heads"),
        severe("softmax_over_batch", bug="softmax_dim"),
        severe("double_softmax", bug="probabilities"),
        severe("loss_sign", bug="likelihood"),
        severe("init_too_large", std=1.0),
        mild("attention_too_sharp", bug="sharp", std=0.15),
        severe("dropout_too_high", dropout=0.85),
        severe("adam_eps_too_large", eps=0.1),
        mild("loss_summed", ("loss_summed", "clipping_too_hard"), reduction="sum", optimizer="sgd", lr=0.3),
    ],
    healthy=[
        healthy("rate_third", lr=1.7e-3, max_iters=380),
        healthy("rate_double", lr=0.01),
        healthy("nadam", optimizer="nadam", weight_decay=0.0),
        healthy("sgd_nesterov", optimizer="sgd", lr=0.4, weight_decay=0.0, max_iters=450),
        healthy("batch_8", batch_size=8, max_iters=400),
        healthy("micro_batches_of_one", batch_size=1, micro_steps=8, lr=3e-3, max_iters=300),
        healthy("accumulate_4", batch_size=4, micro_steps=4),
        healthy("wider", n_embd=80, lr=3e-3),
        healthy("relu", act="relu"),
        healthy("untied", tied=False),
        healthy("zero_branches", zero_branches=True),
        healthy("dropout_0.05", dropout=0.05, max_iters=380),
        healthy("no_clipping", grad_clip=None),
        healthy("cosine_to_zero", min_lr=0.0),
        healthy("smoothing", smoothing=0.02),
        healthy("few_typos", typos=0.01),
        healthy("average", ema=0.97),
        healthy("resumed", earlier=150, resume=True, lr=3e-3, max_iters=200),
        healthy("fine_tuned_frozen_embedding", earlier=150, freeze=True, lr=3e-3, max_iters=200),
        healthy("longer", max_iters=550),
    ],
)
