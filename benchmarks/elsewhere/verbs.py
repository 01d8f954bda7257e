"""Who does it? Sentences of a toy grammar, nn.TransformerEncoder, AdamW, warm-up, a dataclass of settings."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import torch
from torch import Tensor, nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

NOUNS = {
    "person": ["nurse", "baker", "pilot", "farmer", "child", "singer"],
    "animal": ["dog", "goat", "crow", "horse", "otter", "wasp"],
    "machine": ["crane", "robot", "tractor", "drone", "pump", "lorry"],
    "weather": ["storm", "frost", "flood", "breeze", "hail", "fog"],
}
VERBS = ["move", "stop", "follow", "touch", "find", "lift", "carry", "hit"]
PLACES = ["near", "behind", "with", "above"]
ADJECTIVES = ["old", "small", "loud", "grey", "strange"]
ADVERBS = ["today", "slowly", "again", "yesterday"]
WORDS = ["<pad>", "<cls>", "<unk>", "the", "a", "was", "will", "be", "by", *VERBS, *[v + "-ed" for v in VERBS]]
WORDS += [*PLACES, *ADJECTIVES, *ADVERBS, *[noun for nouns in NOUNS.values() for noun in nouns]]
WORDS += ["<0>", "<1>", "<2>", "<3>"]  # marks of the annotators
INDEX = {word: i for i, word in enumerate(WORDS)}
KINDS = list(NOUNS)
LONGEST = 18


@dataclass
class Config:
    # data
    sentences: int = 3000
    noise: float = 0.0
    rare: float = 0.0
    # model
    dim: int = 40
    heads: int = 4
    layers: int = 2
    ff: int = 80
    act: str = "relu"
    pre_norm: bool = True
    pool: str = "mean"
    dropout: float = 0.0
    end: str | None = None
    zero_head: bool = False
    freeze: bool = False
    pretrain: int = 0
    gain: float = 1.0
    attention_gain: float = 1.0
    # training
    optimizer: str = "adamw"
    lr: float = 5e-3
    beta1: float = 0.9
    eps: float = 1e-8
    decay: float = 0.01
    momentum: float = 0.9
    schedule: str = "linear"
    warmup: int = 40
    until: float = 1.0
    gamma: float = 1.0
    batch: int = 48
    accumulate: int = 1
    divide: bool = True
    reduction: str = "mean"
    smooth: float = 0.0
    clip: float = 0.0
    steps: int = 450
    epochs: int = 1000


def noun_phrase(r: random.Random, kind: str) -> list[str]:
    phrase = [r.choice(["the", "a"])]
    if r.random() < 0.4:
        phrase.append(r.choice(ADJECTIVES))
    phrase.append(r.choice(NOUNS[kind]))
    if r.random() < 0.25:  # somebody who does nothing
        phrase += [r.choice(PLACES), "the", r.choice(NOUNS[r.choice(KINDS)])]
    return phrase


def sentence(r: random.Random) -> tuple[list[str], int]:
    doer, other, verb = r.randrange(len(KINDS)), r.randrange(len(KINDS)), r.choice(VERBS)
    first, second = noun_phrase(r, KINDS[doer]), noun_phrase(r, KINDS[other])
    if r.random() < 0.5:
        words = [*first, *r.choice([[verb + "-ed"], ["will", verb]]), *second]
    else:
        words = [*second, *r.choice([["was"], ["will", "be"]]), verb + "-ed", "by", *first]
    if r.random() < 0.3:
        words.insert(r.choice([0, len(words)]), r.choice(ADVERBS))
    words = [word if r.random() > 0.08 else "<unk>" for word in words]  # badly written
    return ["<cls>", *words], doer


def corpus(n: int, seed: int) -> tuple[Tensor, Tensor]:
    r = random.Random(seed)
    ids, kinds = torch.zeros(n, LONGEST, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    for i in range(n):
        words, kinds[i] = sentence(r)
        ids[i, : len(words)] = torch.tensor([INDEX[word] for word in words])
    return ids, kinds


class Reader(nn.Module):
    def __init__(self, cfg: Config, classes: int, bug: str | None) -> None:
        super().__init__()
        self.cfg, self.bug = cfg, bug
        self.words = nn.Embedding(len(WORDS), cfg.dim, padding_idx=0)
        self.places = nn.Embedding(LONGEST, cfg.dim)
        layer = nn.TransformerEncoderLayer(
            cfg.dim,
            cfg.heads,
            cfg.ff,
            cfg.dropout,
            activation=cfg.act,
            batch_first=bug != "batch_second",
            norm_first=cfg.pre_norm,
        )
        self.encoder = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, classes)
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(cfg.gain)
            for layer in self.encoder.layers:
                layer.self_attn.in_proj_weight[: 2 * cfg.dim] *= cfg.attention_gain
            if cfg.zero_head:
                self.head.weight.zero_()

    def forward(self, ids: Tensor) -> Tensor:
        pad = ids == 0
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        if self.bug == "batch_second":
            x = self.encoder(x)
        else:
            x = self.encoder(x, src_key_padding_mask=pad)
        if self.cfg.pool == "cls":
            x = x[:, 0]
        else:
            x = x.masked_fill(pad[:, :, None], 0.0).sum(1) / (~pad).sum(1, keepdim=True)
        if self.bug == "detached":
            x = x.detach()
        x = self.head(self.norm(x))
        return x.softmax(0) if self.cfg.end == "softmax_0" else x


def spoil(ids: Tensor, kinds: Tensor, cfg: Config, bug: str | None) -> tuple[Tensor, Tensor]:
    if bug == "labels_elsewhere":
        kinds = kinds[torch.randperm(len(kinds))]
    if bug == "annotation":  # the annotators' mark is still in the text
        ids = torch.cat([ids[:, :1], kinds[:, None] + INDEX["<0>"], ids[:, 1:-1]], 1)
    if bug == "empty_lines":
        ids[torch.rand(len(ids)) < 0.01] = 0
    if cfg.noise:
        kinds = corrupt(kinds, cfg.noise, len(KINDS))
    if cfg.rare:
        keep = (kinds == 0) | (torch.rand(len(kinds)) < cfg.rare)
        ids, kinds = ids[keep], kinds[keep]
    if bug == "from_one":
        kinds = kinds + 1
    if bug == "sorted":
        order = kinds.argsort()
        ids, kinds = ids[order], kinds[order]
    return ids, kinds


def batches(ids: Tensor, kinds: Tensor, cfg: Config, bug: str | None) -> Iterator[tuple[Tensor, Tensor]]:
    for _ in range(cfg.epochs):
        order = torch.arange(len(ids)) if bug == "sorted" else torch.randperm(len(ids))
        for pick in order.split(cfg.batch):
            if bug == "one_batch":
                pick = torch.arange(cfg.batch)
            part = ids[pick]
            longest = int((part != 0).sum(1).max())
            yield part[:, :longest], kinds[pick]


def rate(cfg: Config, step: int) -> float:
    rise = min(1.0, (step + 1) / cfg.warmup) if cfg.warmup else 1.0
    done = min(1.0, step / (cfg.until * cfg.steps))
    if cfg.schedule == "linear":
        return rise * (1 - 0.98 * done)
    if cfg.schedule == "cosine":
        return rise * (0.5 + 0.5 * float(torch.cos(torch.tensor(torch.pi * done))))
    if cfg.schedule == "root":
        return rise * (max(step, cfg.warmup) / max(cfg.warmup, 1)) ** -0.5
    return rise * cfg.gamma**step


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    options = dict(vars(o))
    bug = options.pop("bug")
    cfg = Config(**options)
    ids, kinds = corpus(cfg.sentences, 601)
    ids_valid, kinds_valid = corpus(700, 602)
    ids, kinds = spoil(ids, kinds, cfg, bug)

    model = Reader(cfg, len(KINDS) + (bug == "from_one"), bug)
    if cfg.pretrain:
        old_ids, old_kinds = corpus(1500, 603)
        first = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(cfg.pretrain):
            pick = torch.randint(0, len(old_ids), (48,))
            first.zero_grad()
            nn.functional.cross_entropy(model(old_ids[pick]), old_kinds[pick]).backward()
            first.step()
    if cfg.freeze:
        model.words.requires_grad_(False)
    params = list(model.head.parameters()) if bug == "head_only" else [p for p in model.parameters() if p.requires_grad]
    loss_fn = nn.CrossEntropyLoss(reduction=cfg.reduction, label_smoothing=cfg.smooth)
    optimizer = make_optimizer(
        cfg.optimizer,
        params,
        cfg.lr,
        betas=(cfg.beta1, 0.99),
        eps=cfg.eps,
        weight_decay=cfg.decay,
        momentum=cfg.momentum,
    )
    if bug == "copied":
        model = copy.deepcopy(model)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(cfg, step))
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    model.train(bug != "eval")
    step = 0
    for back, (part, wanted) in enumerate(batches(ids, kinds, cfg, bug), 1):
        if (back - 1) % cfg.accumulate == 0 and bug != "no_zero_grad":
            optimizer.zero_grad()
        loss = loss_fn(model(part), wanted)
        if bug == "sign":
            loss = -loss
        if cfg.divide:
            loss = loss / cfg.accumulate
        loss.backward()
        if back % cfg.accumulate:
            continue
        if cfg.clip:
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        scheduler.step()
        step += 1
        if step % 90 == 0:
            model.eval()
            with torch.no_grad():
                scores = model(ids_valid)
            right = (scores.argmax(1) == kinds_valid).float().mean().item()
            run.log(valid_loss=nn.functional.cross_entropy(scores, kinds_valid).item(), valid_accuracy=right)
            model.train(bug != "eval")
        if step >= cfg.steps:
            break
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(ids_valid), kinds_valid, len(KINDS))


PROGRAM = Program(
    name="verbs",
    half="M",
    train=train,
    settings=asdict(Config()),
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.05, warmup=0, schedule="exp"),
        mild("learning_rate_too_low", lr=1e-4),
        mild("schedule_too_fast", schedule="exp", gamma=0.98),
        mild("weight_decay_too_high", decay=4.0),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=2),
        severe("momentum_too_high", beta1=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        mild("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="copied"),
        mild("graph_detached", bug="detached"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="sorted"),
        severe("labels_random", bug="labels_elsewhere"),
        mild("label_noise", noise=0.4),
        severe("loss_sign", bug="sign"),
        severe("init_too_small", gain=0.02),
        severe("softmax_over_batch", ("softmax_over_batch", "output_activation"), end="softmax_0"),
        severe("init_constant", gain=0.0),
        severe("init_too_large", gain=8.0),
        mild("dropout_too_high", dropout=0.6),
        severe("class_imbalance", rare=0.02),
        severe("labels_off_by_one", bug="from_one"),
        severe("target_in_inputs", bug="annotation"),
        severe("samples_mixed", bug="batch_second"),
        severe("not_finite", bug="empty_lines"),
        mild("attention_too_sharp", ("attention_too_sharp", "init_too_large"), attention_gain=8.0),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        severe("batch_too_large", ("batch_too_large", "learning_rate_too_low"), batch=1000, epochs=9),
        mild("overfitting", sentences=150),
        mild("rate_harmless", "learning_rate_too_high", lr=1e-2),
        mild("clipping_harmless", "clipping_too_hard", clip=0.3),
        mild("decay_harmless", "weight_decay_too_high", decay=0.1),
        mild("noise_harmless", "label_noise", noise=0.02),
        mild("eval_harmless", "eval_mode", bug="eval", dropout=0.05),
        mild("frozen_harmless", "parameters_not_optimized", freeze=True),
        mild("schedule_harmless", "schedule_too_fast", until=0.85),
        mild("summed_harmless", "loss_summed", reduction="sum"),
    ],
    healthy=[
        healthy("adam", optimizer="adam", decay=0.0),
        healthy("nadam", optimizer="nadam", decay=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=2e-3, decay=0.0, momentum=0.0),
        healthy("adagrad", optimizer="adagrad", lr=0.03, decay=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.2, decay=0.0),
        healthy("rate_doubled", lr=1e-2),
        healthy("cosine", schedule="cosine"),
        healthy("constant_after_warmup", schedule="exp"),
        healthy("inverse_root", schedule="root", warmup=80),
        healthy("no_warmup", warmup=0),
        healthy("post_norm", pre_norm=False),
        healthy("gelu", act="gelu"),
        healthy("first_token", pool="cls"),
        healthy("wide", dim=64, ff=96, lr=3e-3),
        healthy("three_layers", layers=3),
        healthy("two_heads", heads=2),
        healthy("dropout_5", dropout=0.05),
        healthy("label_smoothing", smooth=0.1),
        healthy("clip_1", clip=1.0),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuning", pretrain=200, lr=3e-3, steps=300),
        healthy("batch_96", batch=96, steps=350),
        healthy("accumulation", batch=24, accumulate=2),
        healthy("beta1_95", beta1=0.95),
    ],
)
