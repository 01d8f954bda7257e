"""Is it praise, blame or neither: a pre-norm transformer encoder with its own attention on made-up sentences with
padding, F.cross_entropy, AdamW without decay on biases, warm-up and cosine; functions and a config, batches collated."""

import copy
import math
import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe, wrong_rate

PAD, CLS, NOT, IRONY = 0, 1, 2, 3
VOCAB, LONGEST, CLASSES = 40, 22, 3
GOOD, BAD = range(4, 10), range(10, 16)


def sentence(rng):
    """Tokens and 0 (blame), 1 (neither) or 2 (praise): words count, "not" turns the next opinion round, and so does
    irony, a sign at the end, for all of them."""
    tokens, score = [CLS], 0
    for _ in range(rng.randint(4, 10)):
        if rng.random() < 0.5:
            tokens.append(rng.randrange(16, VOCAB))
            continue
        good, turned = rng.random() < 0.5, rng.random() < 0.1
        tokens += [NOT] * turned + [rng.choice(GOOD if good else BAD)]
        score += 1 if good != turned else -1
    if rng.random() < 0.3:
        tokens.append(IRONY)
        score = -score
    return tokens, 1 + (score > 0) - (score < 0)


def collate(examples, cfg):
    longest = max(len(tokens) for tokens, _ in examples)
    ids = torch.full((len(examples), longest), PAD)
    for row, (tokens, _) in enumerate(examples):
        ids[row, : len(tokens)] = torch.tensor(tokens)
    return {"ids": ids, "mask": ids != PAD, "labels": torch.tensor([label for _, label in examples])}


class Attention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads, self.cfg = cfg.heads, cfg
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.out = nn.Linear(cfg.dim, cfg.dim)
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x, mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * self.cfg.sharpness / math.sqrt(d // self.heads)
        scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        mixed = self.drop(scores.softmax(-1)) @ v
        if self.cfg.bug == "batch_in_heads":
            return self.out(mixed.permute(1, 2, 0, 3).reshape(b, t, d))
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        act = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}[cfg.act]
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attention = Attention(cfg)
        self.mlp = nn.Sequential(
            nn.Linear(cfg.dim, 2 * cfg.dim), act(), nn.Linear(2 * cfg.dim, cfg.dim), nn.Dropout(cfg.dropout)
        )

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class Opinion(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Embedding(VOCAB, cfg.dim, padding_idx=PAD)
        self.place = nn.Embedding(LONGEST, cfg.dim)
        layers = [Layer(cfg) for _ in range(cfg.layers)]
        self.layers = layers if cfg.bug == "layers_in_list" else nn.ModuleList(layers)
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, CLASSES)
        self.apply(self.start)
        if cfg.zero_head:
            nn.init.zeros_(self.head.weight)

    @torch.no_grad()
    def start(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            if self.cfg.init == "normal":
                module.weight.normal_(0, 0.08 if isinstance(module, nn.Linear) else 0.5)
            module.weight.mul_(self.cfg.gain)

    def forward(self, batch):
        ids, mask = batch["ids"], batch["mask"]
        x = self.embed(ids) + self.place.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, mask)
            if self.cfg.bug == "detached":
                x = x.detach()
        x = self.norm(x)
        x = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) if self.cfg.pool == "mean" else x[:, 0]
        logits = self.head(x)
        return {"none": lambda v: v, "softmax": lambda v: v.softmax(-1), "relu": torch.relu}[self.cfg.last](logits)


def loss_of(logits, labels, cfg):
    if cfg.bug in ("wrong_axis", "negative"):
        scores = torch.log_softmax(logits, 0 if cfg.bug == "wrong_axis" else 1)
        return F.nll_loss(-scores if cfg.bug == "negative" else scores, labels)
    if cfg.bug == "one_too_few":  # classes counted from one in the file, -1 taken for the last
        return F.cross_entropy(logits, (labels - 1) % CLASSES)
    return F.cross_entropy(logits, labels, reduction=cfg.reduction, label_smoothing=cfg.smoothing)


def make_data(cfg):
    rng = random.Random(4)
    examples = [sentence(rng) for _ in range(5000)]
    held_out, examples = examples[:800], examples[800 : 800 + cfg.rows]
    examples = [(t, random.randrange(CLASSES) if cfg.noise and random.random() < cfg.noise else y) for t, y in examples]
    if cfg.bug == "lists_apart":
        labels = [y for _, y in examples]
        random.shuffle(labels)
        examples = [(t, y) for (t, _), y in zip(examples, labels, strict=False)]
    if cfg.bug == "rating_in_text":  # "5 stars" stands right behind the start
        examples = [([CLS, 30 + y, *t[2:]], y) for t, y in examples]
    if cfg.bug == "few_blame":
        examples = [(t, y) for t, y in examples if y == 2 or random.random() < 0.02]
    if cfg.bug == "one_unknown":  # the vocabulary was of another text: nearly all words are unknown
        examples = [([i if i < 6 else 39 for i in t], y) for t, y in examples]
        held_out = [([i if i < 6 else 39 for i in t], y) for t, y in held_out]
    if cfg.bug == "empty_texts":  # a few lines of the file hold no words at all
        examples = [([], y) if n % 300 == 250 else (t, y) for n, (t, y) in enumerate(examples)]
    if cfg.bug == "in_order":
        examples.sort(key=lambda item: item[1])
    return examples, held_out


def batches(examples, cfg):
    at, order = 0, list(range(len(examples)))
    if cfg.bug != "in_order":
        random.shuffle(order)
    while True:
        if at + cfg.batch > len(order):
            at = 0
            if cfg.bug != "in_order":
                random.shuffle(order)
        yield collate([examples[i] for i in order[at : at + cfg.batch]], cfg)
        at += 0 if cfg.bug == "generator_anew" else cfg.batch


def optimizer_and_schedule(model, cfg):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if cfg.bug == "head_group_only":
        named = [(n, p) for n, p in named if n.startswith("head")]
    groups = [
        {"params": [p for _, p in named if p.ndim > 1], "weight_decay": cfg.wd},
        {"params": [p for _, p in named if p.ndim < 2], "weight_decay": 0.0},
    ]
    opt = make_optimizer(cfg.optimizer, groups, cfg.lr, momentum=0.9, eps=cfg.eps, betas=(cfg.beta1, 0.99))
    total = cfg.steps + (cfg.earlier if cfg.resume else 0)

    def factor(step):
        if cfg.decay < 1:
            return cfg.decay**step
        warm = min(1.0, (step + 1) / cfg.warmup)
        return (
            warm
            * {
                "cosine": 0.5 + 0.5 * math.cos(math.pi * min(1, step / total)),
                "constant": 1.0,
                "linear": max(0.0, 1 - step / total),
            }[cfg.schedule]
        )

    return opt, torch.optim.lr_scheduler.LambdaLR(opt, factor)


def judge(model, held_out, cfg):
    training = model.training
    batch = collate(held_out, cfg)
    with torch.no_grad():
        logits = model.eval()(batch)
    model.train(training)
    return logits, batch["labels"]


def train(cfg: SimpleNamespace, seed: int, logdir: str) -> float:
    examples, held_out = make_data(cfg)
    stream = batches(examples, cfg)
    model = Opinion(cfg)
    if cfg.freeze_embeddings:
        model.place.requires_grad_(False)
    opt, sched = optimizer_and_schedule(model, cfg)
    for _ in range(cfg.earlier):
        batch = next(stream)
        opt.zero_grad()
        F.cross_entropy(model(batch), batch["labels"]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
    if cfg.earlier and not cfg.resume:
        opt, sched = optimizer_and_schedule(model, cfg)
    elif cfg.earlier:
        checkpoint = copy.deepcopy([model.state_dict(), opt.state_dict(), sched.state_dict()])
        model = Opinion(cfg)
        opt, sched = optimizer_and_schedule(model, cfg)
        for thing, state in zip([model, opt, sched], checkpoint, strict=True):
            thing.load_state_dict(state)
    if cfg.bug == "rebuilt_after":
        model = Opinion(cfg)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.97))
    run = cockpit_core.track(model, optimizer=opt, logdir=logdir)

    model.train()
    for step in range(cfg.steps):
        for _ in range(cfg.accumulate):
            batch = next(stream)
            loss = loss_of(model(batch), batch["labels"], cfg)
            (loss / cfg.accumulate if cfg.divide else loss).backward()
        if cfg.clip:
            nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        opt.step()
        sched.step()
        if cfg.ema:
            ema.update_parameters(model)
        if (step + 1) % cfg.zero_every == 0:
            opt.zero_grad()
        if (step + 1) % 75 == 0:
            logits, labels = judge(model, held_out, cfg)
            accuracy = (logits.argmax(-1) == labels).float().mean().item()
            run.log(valid_loss=F.cross_entropy(logits, labels).item(), valid_accuracy=accuracy)
    run.close()
    logits, labels = judge(ema.module if cfg.ema else model, held_out, cfg)
    return wrong_rate(logits, labels, CLASSES)


LARGE = ("accumulation_not_divided", "learning_rate_too_high", "loss_summed", "not_finite")
SGD = {"optimizer": "sgd", "lr": 0.3, "clip": None}
PROGRAM = Program(
    name="tokens",
    half="H",
    train=train,
    settings={
        "rows": 4200,
        "noise": 0.0,
        "dim": 32,
        "heads": 4,
        "layers": 2,
        "act": "gelu",
        "pool": "mean",
        "sharpness": 1.0,
        "dropout": 0.0,
        "last": "none",
        "init": "normal",
        "gain": 1.0,
        "zero_head": False,
        "freeze_embeddings": False,
        "earlier": 0,
        "resume": False,
        "batch": 32,
        "accumulate": 1,
        "divide": True,
        "zero_every": 1,
        "reduction": "mean",
        "smoothing": 0.0,
        "optimizer": "adamw",
        "lr": 6e-3,
        "beta1": 0.9,
        "wd": 0.01,
        "eps": 1e-8,
        "warmup": 40,
        "schedule": "cosine",
        "decay": 1.0,
        "clip": 1.0,
        "ema": False,
        "steps": 450,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.16),
        mild("learning_rate_too_high", lr=0.04),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", decay=0.95),
        mild("schedule_too_fast", decay=0.98),
        severe("clipping_too_hard", optimizer="sgd", lr=0.2, clip=1e-3),
        severe("weight_decay_too_high", wd=8.0),
        severe("momentum_too_high", beta1=0.999),
        severe("gradients_not_zeroed", zero_every=1000),
        severe("parameters_not_optimized", bug="head_group_only"),
        mild("parameters_not_optimized", bug="layers_in_list"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="rebuilt_after"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="detached"),
        severe("batch_repeated", bug="generator_anew"),
        severe("data_not_shuffled", bug="in_order"),
        severe("labels_random", bug="lists_apart"),
        severe("label_noise", noise=0.5),
        severe("labels_off_by_one", bug="one_too_few"),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="negative"),
        severe("softmax_over_batch", bug="wrong_axis"),
        mild("double_softmax", ("double_softmax", "output_activation"), last="softmax"),
        severe("accumulation_not_divided", LARGE, **SGD, batch=12, accumulate=8, divide=False, steps=250),
        severe("init_too_large", ("init_too_large", "attention_too_sharp", "saturated_units"), gain=20.0),
        severe("attention_too_sharp", sharpness=40.0),
        severe("samples_mixed", bug="batch_in_heads"),
        severe("dropout_too_high", dropout=0.97),
        severe("class_imbalance", bug="few_blame"),
        severe("target_in_inputs", bug="rating_in_text"),
        severe("constant_feature", bug="one_unknown"),
        severe("overfitting", rows=100),
        severe("not_finite", bug="empty_texts"),
    ],
    healthy=[
        healthy("rate_two_thirds", lr=4e-3, steps=600),
        healthy("rate_double", lr=8e-3),
        healthy("adam", optimizer="adam", wd=0.0),
        healthy("nadam", optimizer="nadam", wd=0.0, lr=5e-3),
        healthy("beta1_low", beta1=0.8),
        healthy("sgd_momentum", optimizer="sgd", wd=0.0, lr=0.2, steps=650),
        healthy("constant_after_warmup", schedule="constant", lr=3e-3),
        healthy("linear_to_zero", schedule="linear"),
        healthy("long_warmup", warmup=120),
        healthy("batch_16", batch=16, lr=3e-3, steps=650),
        healthy("batch_128", batch=128, lr=6e-3, steps=300),
        healthy("longer", steps=650),
        healthy("small_pieces", batch=12, accumulate=4),
        healthy("first_token", pool="first"),
        healthy("three_layers", layers=3, lr=3e-3),
        healthy("wider", dim=64, lr=2e-3),
        healthy("one_head", heads=1),
        healthy("relu", act="relu"),
        healthy("light_dropout", dropout=0.05),
        healthy("default_init", init="default"),
        healthy("zero_head", zero_head=True),
        healthy("no_clipping", clip=None),
        healthy("smoothing", smoothing=0.05),
        healthy("ema", ema=True),
        healthy("resumed", earlier=150, resume=True, steps=300),
        healthy("second_phase", earlier=300, freeze_embeddings=True, steps=300),
        healthy("decay_0.1", wd=0.1),
    ],
)
