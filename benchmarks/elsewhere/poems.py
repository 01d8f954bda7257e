"""Quatrains by four imaginary poets, word by word: a small GPT, tied embedding, AdamW, warm-up, a config."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from types import SimpleNamespace

import torch
import torch.nn as nn
from torch.nn import functional as F

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe

POETS = ["<ann>", "<bo>", "<cy>", "<dee>"]
ARTICLES = ["the", "my", "one", "no"]
ADJECTIVES = ["old", "red", "slow", "wild", "cold", "soft", "lost", "small"]
NOUNS = ["moon", "fox", "river", "wind", "clock", "rose", "ship", "crow", "stone", "child"]
VERBS = ["sings", "waits", "burns", "falls", "dreams", "calls", "turns", "sleeps"]
RHYMES = ["night", "light", "bright", "white", "day", "grey", "away", "play", "sea", "tree", "free", "me"]
WORDS = ["\n", "<end>", *POETS, *ARTICLES, *ADJECTIVES, *NOUNS, *VERBS, *RHYMES]
ID = {word: i for i, word in enumerate(WORDS)}
VOCAB = len(WORDS)


def write_poems(n: int, seed: int, by_poet: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """n poems one after the other as one row of tokens, and how surprising each really is (-ln p)."""
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(n, 40, generator=g).tolist()
    tokens: list[int] = []
    surprise: list[float] = []

    def say(word: str, p: float) -> str:
        tokens.append(ID[word])
        surprise.append(-math.log(p))
        return word

    def choose(words: list[str], favourite: str | None, share: float, draw: float) -> str:
        """The favourite with this probability, or else any of the words."""
        k = len(words)
        word = favourite if draw < share else words[min(k - 1, int((draw - share) / (1 - share) * k))]
        return say(word, (1 - share) / k + (share if word == favourite else 0.0))

    for i in range(n):
        draw = iter(u[i])
        poet = i * 4 // n if by_poet else int(next(draw) * 4)
        say(POETS[poet], 0.25)
        ends: list[str] = []
        for line in range(4):
            choose(ARTICLES, ARTICLES[(poet + line) % 4], 0.8, next(draw))
            adjective = choose(ADJECTIVES, ADJECTIVES[2 * poet + line % 2], 0.6, next(draw))
            a = ADJECTIVES.index(adjective)
            noun = NOUNS.index(choose(NOUNS, NOUNS[(3 * a + poet) % 10], 0.8, next(draw)))
            choose(VERBS, VERBS[(5 * noun + 2 * poet + 1) % 8], 0.85, next(draw))
            if line < 2:
                ends.append(choose(RHYMES, None, 0.0, next(draw)))
            else:  # line 3 rhymes on line 1, and 4 on 2
                r = RHYMES.index(ends[line - 2])
                choose(RHYMES, RHYMES[r - r % 4 + (r + 1) % 4], 0.9, next(draw))
            say("\n", 1.0)
        say("<end>", 1.0)
    return torch.tensor(tokens), torch.tensor(surprise)


@dataclass
class Config:
    context: int = 40
    dim: int = 48
    heads: int = 4
    layers: int = 2
    expand: int = 4
    act: str = "gelu"
    prenorm: bool = True
    dropout: float = 0.0
    std: float = 0.05
    tied: bool = True
    scale: str = "down"
    mask: str = "causal"
    detach: bool = False


class Attention(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg, self.d = cfg, cfg.dim // cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)
        future = torch.ones(cfg.context, cfg.context).triu(0 if cfg.mask == "diagonal" else 1).bool()
        self.register_buffer("future", future & (cfg.mask != "none"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.cfg.heads, self.d).permute(2, 0, 3, 1, 4)
        scale = self.d**-0.5
        scores = q @ k.transpose(-2, -1)
        scores = scores * (scale if self.cfg.scale == "down" else self.d**1.5)
        weights = scores.masked_fill(self.future[:t, :t], float("-inf")).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.norm1, self.norm2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attention = Attention(cfg)
        act = {"gelu": nn.GELU(), "relu": nn.ReLU(), "silu": nn.SiLU()}[cfg.act]
        wide = cfg.expand * cfg.dim
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, wide), act, nn.Linear(wide, cfg.dim))
        self.drop = nn.Dropout(cfg.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.cfg.prenorm:
            x = self.norm1(x + self.drop(self.attention(x)))
            return self.norm2(x + self.drop(self.mlp(x)))
        x = x + self.drop(self.attention(self.norm1(x)))
        return x + self.drop(self.mlp(self.norm2(x)))


class Poet(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg = cfg
        self.words = nn.Embedding(VOCAB, cfg.dim)
        self.places = nn.Embedding(cfg.context, cfg.dim)
        self.drop = nn.Dropout(cfg.dropout)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, VOCAB, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=cfg.std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        if cfg.tied:
            self.head.weight = self.words.weight
        else:
            self.head.weight.data = self.words.weight.data.clone()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if self.cfg.detach and i < self.cfg.layers - 1:
                x = x.detach()
        return self.head(self.norm(x))


def get_batch(text: torch.Tensor, o: SimpleNamespace, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    if o.bug == "reproducible":
        torch.manual_seed(1337)
    t, last = o.context, len(text) - o.context - 2
    start = torch.randint(last, (o.batch,))
    if o.bug == "in_order":  # reads the book from the first page to the last
        start = (step * last // o.steps + torch.arange(o.batch) * t) % last
    shift = {"same": 0, "twice": 2}.get(o.bug, 1)
    x = torch.stack([text[i : i + t] for i in start])
    if o.bug == "drawn_again":
        start = torch.randint(last, (o.batch,))
    return x, torch.stack([text[i + shift : i + shift + t] for i in start])


def language_loss(logits: torch.Tensor, y: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    if o.bug == "probabilities":
        logits = logits.softmax(-1)
    elif o.bug == "time_first":
        logits = logits.transpose(0, 1)
    return F.cross_entropy(logits.reshape(-1, VOCAB), y.reshape(-1), label_smoothing=o.smooth)


def rate(o: SimpleNamespace, step: int) -> float:
    if o.bug == "whole_division":
        return min(1, step // 1000)
    if o.schedule == "exp":
        return o.gamma**step
    up = min(1.0, (step + 1) / o.warmup)
    done = max(0.0, (step - o.warmup) / (o.steps - o.warmup))
    if o.schedule == "sqrt":
        return min(up, (o.warmup / (step + 1)) ** 0.5)
    down = {"cosine": 0.5 + 0.5 * math.cos(math.pi * done), "linear": 1 - done, "constant": 1.0}[o.schedule]
    return up * (o.floor + (1 - o.floor) * down)


def parameter_groups(model: nn.Module, o: SimpleNamespace) -> list[dict]:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    if not o.tied:  # "the head is the embedding anyway"
        named = [(name, p) for name, p in named if not name.startswith("head")]
    if o.bug == "layers_forgotten":
        named = [(name, p) for name, p in named if not name.startswith("layers")]
    decayed = [p for _, p in named if p.dim() > 1]
    return [{"params": decayed}, {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0}]


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    cfg = Config(**{f.name: getattr(o, f.name) for f in fields(Config)})
    text, _ = write_poems(o.poems, 11, by_poet=o.bug == "in_order")
    valid, surprise = write_poems(120, 12)
    model = Poet(cfg)
    if o.pretrain:
        first = torch.optim.Adam(model.parameters(), lr=2e-3)
        for _ in range(o.pretrain):
            x, y = get_batch(text, o, 0)
            first.zero_grad()
            language_loss(model(x), y, o).backward()
            first.step()
    if o.freeze:
        model.places.requires_grad_(False)
    betas = {"betas": (o.beta1, o.beta2)} if o.beta2 else {}
    optimizer = make_optimizer(
        o.optimizer, parameter_groups(model, o), o.lr, weight_decay=o.wd, eps=o.eps, momentum=0.9, **betas
    )
    if o.bug == "built_again":
        model = Poet(cfg)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(o, step))
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    for step in range(o.steps):
        model.train()
        if o.bug != "zero_grad_lost":
            optimizer.zero_grad(set_to_none=True)
        for _ in range(o.accumulate):
            x, y = get_batch(text, o, step)
            if o.noise:
                y = corrupt(y, o.noise, VOCAB)
            loss = language_loss(model(x), y, o) / o.accumulate
            if o.bug == "log_likelihood":  # meant to be maximised, but it is a loss already
                loss = -loss
            loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            model.eval()
            with torch.no_grad():
                x, y = valid[: 40 * o.context].view(40, -1), valid[1 : 40 * o.context + 1].view(40, -1)
                logits = model(x)
                share = (logits.argmax(-1) == y).float().mean().item()
                run.log(valid_loss=F.cross_entropy(logits.view(-1, VOCAB), y.view(-1)).item(), valid_accuracy=share)
    run.close()
    return excess(model.eval(), valid, surprise, o.context)


@torch.no_grad()
def excess(model: nn.Module, text: torch.Tensor, surprise: torch.Tensor, t: int) -> float:
    """Nats above what the next word really costs, divided by those of guessing; one word after each context."""
    ends = torch.arange(t, len(text), 6)
    logits = model(torch.stack([text[i - t : i] for i in ends]))[:, -1]
    true = surprise[ends].mean().item()
    return (F.cross_entropy(logits, text[ends]).item() - true) / (math.log(VOCAB) - true)


PROGRAM = Program(
    name="poems",
    half="L",
    train=train,
    settings=dict(
        **{f.name: f.default for f in fields(Config)},
        poems=1500,
        noise=0.0,
        smooth=0.0,
        pretrain=0,
        freeze=False,
        optimizer="adamw",
        lr=4e-3,
        beta1=0.9,
        beta2=0.95,
        eps=1e-8,
        wd=0.1,
        warmup=40,
        schedule="cosine",
        floor=0.1,
        gamma=1.0,
        clip=1.0,
        batch=12,
        accumulate=1,
        steps=400,
    ),
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.1),
        severe("learning_rate_too_low", lr=1.3e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", schedule="exp", gamma=0.95),
        mild("schedule_too_fast", schedule="exp", gamma=0.98),
        severe("nothing_moves", ("nothing_moves", "learning_rate_too_low"), bug="whole_division"),
        severe("weight_decay_too_high", wd=15.0),
        mild("weight_decay_too_high", wd=5.0),
        severe("batch_too_small", ("batch_too_small", "learning_rate_too_high"), batch=1),
        mild("momentum_too_high", ("momentum_too_high", "learning_rate_too_high"), beta1=0.999),
        severe("gradients_not_zeroed", bug="zero_grad_lost", clip=None),
        mild("parameters_not_optimized", bug="layers_forgotten"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="built_again"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), detach=True),
        severe("batch_repeated", bug="reproducible"),
        severe("data_not_shuffled", bug="in_order"),
        severe("labels_random", ("labels_random", "samples_mixed"), bug="drawn_again"),
        mild("label_noise", noise=0.3),
        severe("loss_sign", ("loss_sign", "not_finite"), bug="log_likelihood"),
        severe("double_softmax", bug="probabilities"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="time_first"),
        severe("init_constant", std=0.0),
        severe("init_too_large", std=1.0),
        mild("init_too_small", std=1e-5),
        severe("dropout_too_high", dropout=0.9),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.1),
        mild("attention_too_sharp", scale="squared"),
        severe("targets_not_shifted", bug="same"),
        severe("shifted_twice", ("targets_not_shifted", "labels_off_by_one"), bug="twice"),
        severe("target_in_inputs", mask="none"),
        severe("not_finite", mask="diagonal"),
        mild("weights_not_tied", ("weights_not_tied", "parameters_not_optimized"), tied=False),
        mild("overfitting", poems=12),
    ],
    healthy=[
        healthy("adam", optimizer="adam", wd=0.0),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3, wd=0.0),
        healthy("sgd_momentum", optimizer="sgd", lr=0.5, wd=0.0),
        healthy("rate_halved", lr=2e-3),
        healthy("rate_doubled", lr=8e-3),
        healthy("linear_to_zero", schedule="linear", floor=0.0),
        healthy("constant_after_warmup", schedule="constant", lr=3e-3),
        healthy("inverse_root", schedule="sqrt", warmup=80, lr=6e-3),
        healthy("no_clipping", clip=None),
        healthy("wider", dim=64, steps=320),
        healthy("three_layers", layers=3, steps=320),
        healthy("relu", act="relu"),
        healthy("postnorm", prenorm=False),
        healthy("gpt2_init", std=0.02),
        healthy("dropout_5", dropout=0.05),
        healthy("label_smoothing", smooth=0.02),
        healthy("fine_tuning", pretrain=150, lr=2e-3, steps=300),
        healthy("frozen_places", freeze=True),
        healthy("accumulation", batch=6, accumulate=2),
        healthy("batch_24", batch=24, steps=260, lr=6e-3),
        healthy("noise_small", noise=0.01),
    ],
)
