"""A small vision transformer on handwritten digits: AdamW, warm-up and cosine, functional loss, validation logged."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, corrupt, digits, healthy, make_optimizer, mild, severe, wrong_rate


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        head = o.dim // o.heads
        # the bug: multiplied by what should be divided by
        scale = {"scores_times_dim": float(o.dim * head), "scores_times_root": 4.0 * math.sqrt(head)}.get(
            o.bug, head**-0.5
        )
        self.norm1, self.norm2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.attention = Attention(o.dim, o.heads, scale)
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}[o.activation]()
        self.mlp = nn.Sequential(nn.Linear(o.dim, 2 * o.dim), act, nn.Dropout(o.dropout), nn.Linear(2 * o.dim, o.dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.patch = nn.Linear(4, o.dim)
        self.position = nn.Parameter(torch.randn(1, 16, o.dim) * 0.02)
        self.blocks = nn.Sequential(*[Block(o) for _ in range(o.depth)])
        self.norm = nn.LayerNorm(o.dim)
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(o.dim, 10)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                if o.init is not None:
                    nn.init.trunc_normal_(module.weight, std=o.init, a=-10 * o.init, b=10 * o.init)
                nn.init.zeros_(module.bias)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(images), 16, 4)
        if self.bug == "patch_std":  # each patch scaled by its deviation: empty patches have none
            patches = (patches - patches.mean(-1, keepdim=True)) / patches.std(-1, keepdim=True)
        tokens = self.blocks(self.drop(self.patch(patches) + self.position))
        logits = self.head(self.norm(tokens).mean(1))
        if self.bug == "softmax_in_model":
            return logits.softmax(-1)
        if self.bug == "softmax_dim0":
            return logits.softmax(0).log()
        return logits


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, x_valid, y_valid = digits(seed)
    scale = 255.0 / 16 if o.bug == "bytes" else 1 / 16 if o.scaled else 1.0
    x, x_valid = x * scale, x_valid * scale
    if o.bug == "bytes":  # pixels as they come out of a decoder, and nothing centred
        x_valid, x = x_valid.round(), x.round()
    else:
        x, x_valid = x - 0.3, x_valid - 0.3
    y = corrupt(y, o.noise, 10)
    if o.bug == "shuffled_images":
        x = x[torch.randperm(len(x))]
    if o.bug == "labels_next":
        y = (y + 1) % 10
    if o.bug == "sorted":
        order = y.argsort()
        x, y = x[order], y[order]
    loader = DataLoader(TensorDataset(x, y), batch_size=o.batch, shuffle=o.bug != "sorted", drop_last=len(x) > o.batch)

    model = ViT(o)
    params = list(model.parameters())
    if o.bug == "blocks_left_out":  # the list was kept in step with an older model
        params = [*model.head.parameters(), *model.norm.parameters()]
    if o.freeze:
        model.patch.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, betas=o.betas, momentum=0.9)
    if o.bug == "new_model":  # "reset the model for a clean start", after the optimizer was made
        model = ViT(o)

    def factor(step: int) -> float:
        if o.decay is not None:
            return o.decay**step
        if step < o.warmup:
            return (step + 1) / o.warmup
        if o.schedule == "flat":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - o.warmup) / max(1, o.steps - o.warmup)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)
    step = 0
    while step < o.steps:
        for images, labels in loader:
            if step >= o.steps:
                break
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=o.smoothing)
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            scheduler.step()
            step += 1
            if step % 60 == 0:
                model.eval()
                with torch.no_grad():
                    scores = model(x_valid)
                    accuracy = (scores.argmax(-1) == y_valid).float().mean().item()
                    run.log(valid_loss=F.cross_entropy(scores, y_valid).item(), valid_accuracy=accuracy)
                model.train()
    run.close()
    model.eval()
    with torch.no_grad():
        return wrong_rate(model(x_valid), y_valid, 10)


PROGRAM = Program(
    name="vit",
    half="A",
    train=train,
    settings={
        "dim": 24,
        "heads": 2,
        "depth": 2,
        "activation": "gelu",
        "dropout": 0.0,
        "init": None,
        "zero_head": False,
        "freeze": False,
        "scaled": True,
        "noise": 0.0,
        "batch": 48,
        "optimizer": "adamw",
        "lr": 3e-3,
        "wd": 0.05,
        "eps": 1e-8,
        "betas": (0.9, 0.999),
        "warmup": 30,
        "schedule": "cosine",
        "decay": None,
        "steps": 300,
        "clip": 1.0,
        "smoothing": 0.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.03, warmup=1, schedule="flat"),
        mild("learning_rate_too_low", lr=1e-4),
        severe("schedule_too_fast", decay=0.9),
        severe("attention_too_sharp", bug="scores_times_dim"),
        mild("attention_too_sharp", bug="scores_times_root"),
        severe("inputs_not_scaled", bug="bytes"),
        severe("double_softmax", bug="softmax_in_model"),
        severe("softmax_over_batch", bug="softmax_dim0"),
        severe("data_not_shuffled", bug="sorted"),
        severe("labels_random", bug="shuffled_images"),
        mild("label_noise", noise=0.5),
        severe("labels_off_by_one", bug="labels_next"),
        severe("parameters_not_optimized", bug="blocks_left_out"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="new_model",
        ),
        severe("weight_decay_too_high", wd=30.0),
        severe("init_too_large", init=2.0),
        severe("not_finite", bug="patch_std"),
    ],
    healthy=[
        healthy("lr_1e-3", lr=1e-3),
        healthy("lr_6e-3", lr=6e-3),
        healthy("batch_16", batch=16, lr=1.5e-3),
        healthy("batch_256", batch=256, lr=5e-3),
        healthy("zero_head", zero_head=True),
        healthy("frozen_patches", freeze=True),
        healthy("deeper_relu", depth=3, activation="relu", steps=280),
        healthy("flat_no_clip", schedule="flat", clip=None),
        healthy("smoothing_dropout", smoothing=0.1, dropout=0.1),
        healthy("init_002", init=0.02, lr=4e-3),
        healthy("pixels_0_16", scaled=False),
    ],
)
