"""Names of characters: a decoder with tied embedding that returns its loss, AdamW, accumulation, cosine, valid_loss logged."""

from __future__ import annotations

import math
import unicodedata
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def corpus() -> tuple[torch.Tensor, int]:
    """What Python calls the characters of Unicode, one after the other, as numbers."""
    known = (
        unicodedata.name(chr(code), "")
        for code in (*range(0x1200, 0x1900), *range(0xA000, 0xA500), *range(0x1F00, 0x2000))
    )
    text = "\n".join(name for name in known if name)
    letters = sorted(set(text))
    index = {c: n for n, c in enumerate(letters)}
    return torch.tensor([index[c] for c in text]), len(letters)


class Block(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.ln_1, self.ln_2 = nn.LayerNorm(o.dim), nn.LayerNorm(o.dim)
        self.c_attn = nn.Linear(o.dim, 3 * o.dim)
        self.c_proj = nn.Linear(o.dim, o.dim)
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "none": nn.Identity}[o.activation]()
        self.mlp = nn.Sequential(nn.Linear(o.dim, 2 * o.dim), act, nn.Linear(2 * o.dim, o.dim), nn.Dropout(o.dropout))
        late = torch.ones(o.block, o.block).triu(1).bool()
        if o.bug == "mask_reversed":
            late = torch.ones(o.block, o.block).tril(0).bool()  # the first row sees everything, the last one nothing
        self.register_buffer("late", late if o.bug != "no_mask" else torch.zeros_like(late))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        heads = self.o.heads
        q, k, v = (part.view(b, t, heads, d // heads).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).split(d, 2))
        att = q @ k.transpose(-2, -1) * (self.o.sharp / math.sqrt(d // heads))
        att = att.masked_fill(self.late[:t, :t], float("-inf")).softmax(-1)
        x = x + self.c_proj((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, size: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.wte = nn.Embedding(size, o.dim)
        self.wpe = nn.Embedding(o.block, o.dim)
        self.drop = nn.Dropout(o.dropout)
        self.h = nn.ModuleList([Block(o) for _ in range(o.depth)])
        self.ln_f = nn.LayerNorm(o.dim)
        self.lm_head = nn.Linear(o.dim, size, bias=False)
        for m in self.modules():
            if isinstance(m, nn.Linear | nn.Embedding):
                nn.init.normal_(m.weight, std=o.std) if o.std else nn.init.constant_(m.weight, 0.02)
            if isinstance(m, nn.Linear) and m.bias is not None:
                nn.init.zeros_(m.bias)
        if o.bug == "tied_by_copy":
            self.lm_head.weight = nn.Parameter(self.wte.weight.detach().clone())
        elif o.bug == "tied_without_gradient":
            del self.lm_head.weight
            self.lm_head.register_buffer("weight", self.wte.weight.detach().clone())
        elif o.tied:
            self.lm_head.weight = self.wte.weight
        elif o.zero_head:
            nn.init.zeros_(self.lm_head.weight)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor):
        x = self.drop(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        for n, block in enumerate(self.h):
            x = block(x)
            if n == 0 and self.o.bug == "checkpoint_by_hand":
                x = x.detach()
        logits = self.lm_head(self.ln_f(x))
        if self.o.bug == "probabilities":
            logits = logits.softmax(-1)
        if self.o.bug == "softmax_over_lines":
            logits = logits.log_softmax(0)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))
        return logits, loss


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    ids, size = corpus()
    pieces = ids[: len(ids) // 2000 * 2000].view(-1, 2000)
    held = pieces[::10].reshape(-1)[: 24 * (o.block + 1) * 4]
    held = held.view(-1, o.block + 1)
    text = pieces[torch.arange(len(pieces)) % 10 != 0].reshape(-1)[: o.letters]
    answers = text
    if o.noise:
        answers = torch.where(torch.rand(len(text)) < o.noise, torch.randint(0, size, text.shape), text)
    if o.bug == "targets_shuffled":
        answers = text[torch.randperm(len(text))]
    shift = {"not_shifted": 0, "shifted_twice": 2}.get(o.bug, 1)

    model = GPT(size, o)
    params = list(dict.fromkeys(model.parameters()))
    if o.bug == "blocks_in_a_list":  # the blocks were once in a plain list, and the optimizer still believes it
        params = [*model.wte.parameters(), *model.wpe.parameters(), *model.ln_f.parameters()]
    if o.freeze:
        model.wpe.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    groups = [
        {"params": [p for p in params if p.dim() > 1], "weight_decay": o.wd},
        {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = make_optimizer(o.optimizer, groups, o.lr, betas=(0.9, 0.95), eps=o.eps, momentum=0.9)
    if o.bug == "resumed":
        model.h = GPT(size, o).h
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    def rate(step: int) -> float:
        if step < o.warmup:
            return o.lr * (step + 1) / o.warmup
        return o.lr * (
            o.floor + (1 - o.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, (step - o.warmup) / o.horizon)))
        )

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.randint(0, len(text) - o.block - 2, (o.batch,))
        if o.bug == "fixed_start":
            start = torch.arange(o.batch) * 100
        return (
            torch.stack([text[s : s + o.block] for s in start]),
            torch.stack([answers[s + shift : s + o.block + shift] for s in start]),
        )

    for step in range(o.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        for _ in range(o.accumulate):
            _, loss = model(*batch())
            if o.bug == "likelihood":
                loss = -loss
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        if o.bug != "zero_grad_lost":
            optimizer.zero_grad(set_to_none=True)
        if step % 70 == 69:
            model.eval()
            with torch.no_grad():
                last = held.shape[1] - 1
                run.log(valid_loss=model(held[:, :last], held[:, min(shift, 1) :][:, :last])[1].item())
            model.train()
    run.close()

    model.eval()
    if o.bug == "no_mask":
        for block in model.h:  # letters are written one after the other: nobody sees the next ones
            block.late = torch.ones(o.block, o.block).triu(1).bool()
    with torch.no_grad():
        logits, _ = model(held[:, :-1], held[:, 1:])
        if o.bug == "probabilities":
            logits = logits.clamp(min=1e-9).log()
        nll = F.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten()).item()
    share = torch.bincount(text, minlength=size).float() / len(text)
    return nll / -(share * share.clamp(min=1e-9).log()).sum().item()


PROGRAM = Program(
    name="names",
    half="C",
    train=train,
    settings={
        "dim": 32,
        "heads": 2,
        "depth": 2,
        "block": 24,
        "sharp": 1.0,
        "activation": "gelu",
        "dropout": 0.0,
        "std": 0.05,
        "tied": True,
        "zero_head": False,
        "freeze": False,
        "letters": 400_000,
        "noise": 0.0,
        "batch": 16,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 5e-3,
        "wd": 0.05,
        "eps": 1e-8,
        "warmup": 20,
        "floor": 0.1,
        "horizon": 260,
        "steps": 280,
        "clip": 1.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2, warmup=1, floor=1.0),
        mild("learning_rate_too_high", lr=0.05, clip=None),
        severe("learning_rate_too_low", lr=1.7e-5),
        mild("learning_rate_too_low", lr=1.7e-4),
        severe("schedule_too_fast", horizon=6, warmup=2, floor=0.0),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.5),
        severe("weight_decay_too_high", wd=6.0),
        mild("batch_too_small", batch=1),
        severe("gradients_not_zeroed", bug="zero_grad_lost", clip=None),
        severe("parameters_not_optimized", bug="blocks_in_a_list"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized"),
            bug="resumed",
        ),
        severe("graph_detached", bug="checkpoint_by_hand"),
        severe("batch_repeated", bug="fixed_start"),
        severe("labels_random", bug="targets_shuffled"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="likelihood"),
        severe("double_softmax", bug="probabilities"),
        mild("softmax_over_batch", bug="softmax_over_lines"),
        severe("init_constant", std=0),
        severe("init_too_large", ("init_too_large", "attention_too_sharp"), std=1.0),
        mild("dropout_too_high", dropout=0.7),
        severe("attention_too_sharp", sharp=64.0),
        mild("attention_too_sharp", sharp=8.0),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        mild("targets_not_shifted", ("targets_not_shifted", "labels_off_by_one"), bug="shifted_twice"),
        severe("target_in_inputs", bug="no_mask"),
        severe("weights_not_tied", ("weights_not_tied", "parameters_not_optimized"), bug="tied_without_gradient"),
        mild("weights_not_tied", bug="tied_by_copy"),
        mild("adam_eps_too_large", eps=0.1),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            batch=4,
            accumulate=8,
            optimizer="sgd",
            lr=0.3,
            clip=None,
            steps=200,
            horizon=180,
        ),
        mild("missing_nonlinearity", activation="none"),
        severe("not_finite", bug="mask_reversed"),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3, steps=360, horizon=340),
        healthy("lr_1e-2", lr=1e-2),
        healthy("untied", tied=False),
        healthy("untied_zero_head", tied=False, zero_head=True),
        healthy("adam_no_decay", optimizer="adam", wd=0.0),
        healthy("cosine_to_zero", floor=0.0),
        healthy("no_warmup_no_clip", warmup=1, clip=None, lr=3e-3),
        healthy("accumulate_4_of_8", batch=8, accumulate=4, steps=200, horizon=180),
        healthy("positions_frozen", freeze=True),
        healthy("std_002_deeper", std=0.02, depth=3, dim=28),
        healthy("relu_one_layer", activation="relu", depth=1),
        healthy("dropout_005", dropout=0.05),
        healthy("decay_02", wd=0.2),
    ],
)
