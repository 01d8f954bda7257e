"""A small GPT on Python sources: scaled_dot_product_attention, forward returns logits and loss, AdamW, warm-up and cosine."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def load_source() -> tuple[torch.Tensor, int]:
    names = "argparse ast bisect calendar cmd codeop collections copy csv dis fnmatch functools gettext heapq shlex"
    text = "".join(Path(importlib.util.find_spec(n).origin).read_text(encoding="utf-8")[:14_000] for n in names.split())
    text = text.replace("    ", "\t")
    letters = sorted(c for c in set(text) if text.count(c) > 15)
    stoi = {c: i + 1 for i, c in enumerate(letters)}
    return torch.tensor([stoi.get(c, 0) for c in text]), len(letters) + 1


class CausalSelfAttention(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        self.c = c
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.c.n_head, -1).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        scale = self.c.sharp / math.sqrt(C // self.c.n_head)
        causal = self.c.bug != "no_mask" or not self.training
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c: SimpleNamespace) -> None:
        super().__init__()
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU, "none": nn.Identity}[c.act]
        self.ln1, self.ln2 = nn.LayerNorm(c.n_embd), nn.LayerNorm(c.n_embd)
        self.attn = CausalSelfAttention(c)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), act(), nn.Linear(4 * c.n_embd, c.n_embd))
        self.drop = nn.Dropout(c.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attn(self.ln1(x)))
        return x + self.drop(self.mlp(self.ln2(x)))


class GPT(nn.Module):
    def __init__(self, vocab: int, c: SimpleNamespace) -> None:
        super().__init__()
        self.c = c
        self.wte, self.wpe = nn.Embedding(vocab, c.n_embd), nn.Embedding(c.block, c.n_embd)
        self.drop = nn.Dropout(c.dropout)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        self.ln_f = nn.LayerNorm(c.n_embd)
        self.head = nn.Linear(c.n_embd, vocab, bias=False)
        self.apply(self._init)
        for name, p in self.named_parameters():
            if c.scaled_init and name.endswith(("proj.weight", "mlp.2.weight")):
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * c.n_layer))
            if c.bias and name.endswith("mlp.0.bias"):
                nn.init.constant_(p, c.bias)
        if c.zero_head:
            nn.init.zeros_(self.head.weight)
        if c.tied:
            self.head.weight = self.wte.weight
        if c.bug == "tied_to_a_copy":
            self.head.weight = nn.Parameter(self.wte.weight.clone().detach(), requires_grad=False)

    def _init(self, m: nn.Module) -> None:
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=self.c.std)
            if self.c.bug == "ones":
                nn.init.constant_(m.weight, 0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx: torch.Tensor, targets: torch.Tensor | None = None):
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(idx.size(1))))
        for n, block in enumerate(self.blocks):
            if self.c.bug == "trunk_without_grad" and n == 0:
                with torch.no_grad():
                    x = block(x)
            else:
                x = block(x)
        x = self.ln_f(x)
        if self.c.bug == "detached_features":
            x = x.detach()
        logits = self.head(x)
        if self.c.bug == "tanh_logits":
            logits = torch.tanh(logits)
        if self.c.bug == "probabilities":
            logits = F.softmax(logits, dim=-1)
        if self.c.bug == "wrong_axis":
            logits = F.log_softmax(logits, dim=0)
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def get_lr(it: int, c: SimpleNamespace) -> float:
    if it < c.warmup:
        return c.lr * (it + 1) / c.warmup
    ratio = min(1.0, (it - c.warmup) / max(1, c.decay_iters - c.warmup))
    return c.lr * (c.min_ratio + (1 - c.min_ratio) * 0.5 * (1.0 + math.cos(math.pi * ratio)))


def train(c: SimpleNamespace, seed: int, logdir: str) -> float:
    data, vocab = load_source()
    pieces = data[: len(data) // 900 * 900].view(-1, 900)
    val = pieces[::10].reshape(-1)[: 48 * 49].view(48, 49)
    data = pieces[torch.arange(len(pieces)) % 10 != 0].reshape(-1)[: c.letters]
    labels = data.clone()
    if c.noise:
        wrong = torch.rand(len(data)) < c.noise
        labels[wrong] = torch.randint(vocab, (int(wrong.sum()),))
    if c.bug == "labels_elsewhere":  # the targets are cut at positions drawn a second time
        labels = labels.roll(40_001)
    if c.bug == "other_table":
        labels = (labels + 1) % vocab
    shift = {"not_shifted": 0}.get(c.bug, 1)

    def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
        ix = torch.randint(len(data) - c.block - 1, (c.batch,))
        if c.bug == "seeded_inside":
            ix = torch.randint(len(data) - c.block - 1, (c.batch,), generator=torch.Generator().manual_seed(1337))
        at = ix[:, None] + torch.arange(c.block)
        return data[at], labels[at + shift]

    model = GPT(vocab, c)
    if c.freeze:
        model.wpe.requires_grad_(False)
    params = [p for p in model.parameters() if p.requires_grad]
    if c.bug == "matrices_left_out":  # the list of those that decay was never given to the optimizer
        params = [p for p in params if p.dim() < 2]
    groups = [
        {"params": [p for p in params if p.dim() >= 2], "weight_decay": c.wd},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    groups = [g for g in groups if g["params"]]
    opt = make_optimizer(c.optimizer, groups, c.lr, betas=(c.beta1, c.beta2), eps=c.eps, momentum=0.9)
    if c.bug == "grown_later":
        model.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layer))
        model.blocks.apply(model._init)
    run = cockpit_core.track(model, optimizer=opt, logdir=logdir)

    for it in range(c.steps):
        for group in opt.param_groups:
            group["lr"] = get_lr(it, c)
        for _ in range(c.accumulate):
            xb, yb = get_batch()
            _, loss = model(xb, yb)
            if c.bug == "reward":
                loss = -loss
            (loss if c.bug == "not_divided" else loss / c.accumulate).backward()
        if c.clip:
            nn.utils.clip_grad_norm_(model.parameters(), c.clip)
        opt.step()
        if c.bug == "zero_detached":  # a list of gradients is set to zero, not those of the parameters
            _ = [p.grad.clone().zero_() for p in model.parameters() if p.grad is not None]
        else:
            opt.zero_grad(set_to_none=True)
    run.close()

    model.eval()
    with torch.no_grad():
        logits, _ = model(val[:, :-1])
        if c.bug == "probabilities":
            logits = logits.clamp(min=1e-9).log()
        nll = F.cross_entropy(logits.flatten(0, 1), val[:, 1:].flatten()).item()
    share = torch.bincount(data, minlength=vocab).float() / len(data)
    return nll / -(share * share.clamp(min=1e-9).log()).sum().item()


PROGRAM = Program(
    name="minigpt",
    half="F",
    train=train,
    settings={
        "n_embd": 48,
        "n_head": 4,
        "n_layer": 2,
        "block": 48,
        "act": "gelu",
        "dropout": 0.0,
        "sharp": 1.0,
        "std": 0.1,
        "bias": 0.0,
        "scaled_init": False,
        "zero_head": False,
        "tied": False,
        "freeze": False,
        "letters": 200_000,
        "noise": 0.0,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 6e-3,
        "beta1": 0.9,
        "beta2": 0.98,
        "wd": 0.05,
        "eps": 1e-8,
        "warmup": 30,
        "decay_iters": 450,
        "min_ratio": 0.05,
        "clip": 1.0,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3, warmup=1),
        mild("learning_rate_too_high", lr=0.06, warmup=1),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", decay_iters=35, warmup=5, min_ratio=0.0),
        mild("schedule_too_fast", decay_iters=90, min_ratio=0.0),
        severe("clipping_too_hard", optimizer="sgd", lr=0.5, clip=1e-3),
        severe("weight_decay_too_high", wd=60.0),
        mild("weight_decay_too_high", wd=8.0),
        mild("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1),
        severe("momentum_too_high", beta1=0.999),
        severe("gradients_not_zeroed", bug="zero_detached"),
        severe("parameters_not_optimized", bug="matrices_left_out"),
        mild("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="grown_later"),
        severe("graph_detached", bug="detached_features"),
        mild("graph_without_grad", ("graph_detached", "parameters_not_optimized"), bug="trunk_without_grad"),
        severe("batch_repeated", bug="seeded_inside"),
        severe("labels_random", bug="labels_elsewhere"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="reward"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="probabilities"),
        severe("softmax_over_batch", bug="wrong_axis"),
        mild("output_activation", bug="tanh_logits"),
        mild("dead_units", act="relu", bias=-8.0),
        severe("init_constant", bug="ones"),
        severe("init_too_large", std=1.5),
        mild("init_too_large", std=0.6),
        severe("dropout_too_high", dropout=0.95),
        mild("dropout_too_high", dropout=0.7),
        severe("attention_too_sharp", sharp=400.0, std=0.2),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        severe("target_in_inputs", ("target_in_inputs", "targets_not_shifted"), bug="no_mask"),
        severe("labels_off_by_one", bug="other_table"),
        mild("weights_not_tied", ("weights_not_tied", "parameters_not_optimized"), bug="tied_to_a_copy"),
        mild("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.3),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=4,
            batch=4,
            optimizer="sgd",
            lr=1.0,
            clip=None,
        ),
        mild("overfitting", letters=4000),
    ],
    healthy=[
        healthy("adam", optimizer="adam", wd=0.0, lr=3e-3),
        healthy("nadam", optimizer="nadam", wd=0.0, lr=3e-3),
        healthy("tied", tied=True),
        healthy("zero_head", zero_head=True),
        healthy("scaled_init", scaled_init=True, std=0.05),
        healthy("relu", act="relu"),
        healthy("silu_one_head", act="silu", n_head=1),
        healthy("dropout_10", dropout=0.1),
        healthy("three_layers", n_layer=3, n_embd=40, lr=3e-3),
        healthy("frozen_positions", freeze=True),
        healthy("accumulate_2", accumulate=2, batch=8),
        healthy("batch_32", batch=32, steps=320, decay_iters=320),
        healthy("batch_8", batch=8, lr=3e-3, steps=700, decay_iters=700),
        healthy("constant_rate", min_ratio=1.0, lr=3e-3),
        healthy("beta2_999", beta2=0.999),
        healthy("clip_tight_but_adam", clip=0.25),
        healthy("fast_rate", lr=0.012),
    ],
)
