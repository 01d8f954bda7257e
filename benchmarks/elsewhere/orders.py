"""What is ordered in a short sentence of numbered words? nn.TransformerEncoder, AdamW, warm-up and linear decay."""

from __future__ import annotations

import copy
import math
import random
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

DISHES, PAD, WANT, REFUSE, START = 6, 0, (1, 2, 3), (4, 5, 6), 7
FIRST_ITEM, FIRST_FILLER, VOCABULARY, LENGTH = 8, 26, 42, 10


def sentences(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two or three pairs of a modifier and an item among other words; one pair only is wanted, and the class of its
    item (three words for each) is the answer. Now and then the modifiers could not be understood."""
    dice = random.Random(seed)
    pick = dice.randrange
    rows, answers = [], []
    for _ in range(count):
        pairs = pick(2, 4)
        wanted = pick(0, pairs)
        words, answer = [START], 0
        unclear = dice.random() < 0.1
        for n, dish in enumerate(dice.sample(range(DISHES), pairs)):
            words += [pick(FIRST_FILLER, VOCABULARY) for _ in range(pick(0, 2))]
            modifier = (WANT if n == wanted else REFUSE)[pick(0, 3)]
            words += [FIRST_FILLER if unclear else modifier, FIRST_ITEM + 3 * dish + pick(0, 3)]
            answer = dish if n == wanted else answer
        rows.append((words + [PAD] * LENGTH)[:LENGTH])
        answers.append(answer)
    return torch.tensor(rows), torch.tensor(answers)


_CACHE: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


def corpus() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    for seed, count in ((3, 6400), (4, 800)):
        if seed not in _CACHE:
            _CACHE[seed] = sentences(count, seed)
    return tuple(t.clone() for seed in (3, 4) for t in _CACHE[seed])


class OrderReader(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        self.words = nn.Embedding(VOCABULARY, o.dim, padding_idx=PAD)
        self.places = nn.Embedding(LENGTH, o.dim)
        layer = nn.TransformerEncoderLayer(
            o.dim,
            o.heads,
            o.ff * o.dim,
            dropout=o.dropout,
            activation=o.act,
            batch_first=o.bug != "batch_second",
            norm_first=o.norm_first,
        )
        self.encoder = nn.TransformerEncoder(layer, o.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(o.dim) if o.norm_first else nn.Identity()
        self.head = nn.Linear(o.dim, DISHES)
        nn.init.normal_(self.words.weight, std=o.embed_std)
        nn.init.normal_(self.places.weight, std=o.embed_std)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)
        if o.bug == "init_all_linear":
            for m in self.modules():
                if isinstance(m, nn.Linear):
                    nn.init.constant_(m.weight, 0.02)
            nn.init.constant_(self.words.weight, 0.02)
        if o.bug == "queries_scaled_up":  # the division by the root of the width was "made good" twice
            with torch.no_grad():
                for block in self.encoder.layers:
                    block.self_attn.in_proj_weight[: 2 * o.dim] *= o.dim

    def forward(self, tokens):
        o = self.o
        h = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        h = self.encoder(h, src_key_padding_mask=None if o.bug == "batch_second" else tokens == PAD)
        if o.bug == "encoder_as_feature":
            h = h.detach()
        h = self.norm(h)
        if o.pool == "first":
            h = h[:, 0]
        else:
            real = (tokens != PAD).float()[..., None]
            h = (h * real).sum(1) / real.sum(1)
        scores = self.head(h)
        if o.bug == "probabilities_out":
            scores = torch.softmax(scores, -1)
        elif o.bug == "softmax_dim_zero":
            scores = torch.softmax(scores, 0)
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    tokens, answers, tokens_valid, answers_valid = corpus()
    if o.bug == "hint_word":  # the till's own code for the dish, which comes only with the bill
        tokens[:, -1] = FIRST_FILLER + answers
    if o.bug == "empty_lines":  # nothing but padding, all of it masked
        tokens[torch.rand(len(tokens)) < 0.005] = PAD
    answers = corrupt(answers, o.noise, DISHES)
    if o.bug == "one_based":
        answers = (answers + 1).clamp(max=DISHES - 1)
    if o.bug == "paired_with_next":
        answers = answers.roll(-1)
    if o.bug == "grouped_by_dish":
        order = answers.argsort(stable=True)
        tokens, answers = tokens[order], answers[order]
    if o.rare is not None:
        keep = (answers == 2) | (torch.rand(len(answers)) < o.rare)
        tokens, answers = tokens[keep], answers[keep]
    tokens, answers = tokens[: o.rows], answers[: o.rows]

    model = OrderReader(o)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    params = list(model.parameters())
    if o.frozen:  # word vectors that came from elsewhere
        model.words.requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "head_only":
        params = list(model.head.parameters())
    if o.bug == "made_before_copy":
        model, old = copy.deepcopy(model), model
        params = list(old.parameters())
    if o.two_groups:
        params = [
            {"params": [p for p in params if p.dim() > 1]},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.wd, betas=(o.beta1, o.beta2), eps=o.eps, momentum=0.9
    )

    def rate(step: int) -> float:
        if o.warmup and step < o.warmup:
            return (step + 1) / o.warmup
        if o.decay == "constant":
            return 1.0
        done = min(1.0, (step - o.warmup) / max(1, o.horizon or o.steps - o.warmup))
        return 0.5 + 0.5 * math.cos(math.pi * done) if o.decay == "cosine" else 1 - done

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    def batches():
        while True:
            order = torch.arange(len(tokens)) if o.bug == "grouped_by_dish" else torch.randperm(len(tokens))
            for rows in order.split(min(o.batch, len(tokens))):
                if len(rows) == min(o.batch, len(tokens)):
                    yield tokens[rows], answers[rows]

    stream = batches()
    once = next(stream)
    model.train()
    for step in range(o.steps):
        for _ in range(o.accumulate):
            x, y = once if o.bug == "stream_restarted" else next(stream)
            if o.drop_words:
                x = torch.where((torch.rand(x.shape) < o.drop_words) & (x >= FIRST_FILLER), PAD + FIRST_FILLER, x)
            if o.bug == "transposed_by_view":
                x = x.view(LENGTH, -1).t()
            loss = loss_fn(model(x), y) / o.accumulate
            (-loss if o.bug == "log_likelihood" else loss).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        if o.bug == "zeroed_too_early":
            optimizer.zero_grad(set_to_none=False)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0 or step + 1 == o.steps:
            model.eval()
            with torch.no_grad():
                scores = model(tokens_valid)
            right = (scores.argmax(1) == answers_valid).float().mean().item()
            run.log(valid_loss=loss_fn(scores, answers_valid).item(), valid_accuracy=right)
            model.train()
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(tokens_valid), answers_valid, DISHES)


PROGRAM = Program(
    name="orders",
    half="I",
    train=train,
    settings={
        "rows": 6400,
        "noise": 0.0,
        "rare": None,
        "dim": 32,
        "heads": 4,
        "ff": 2,
        "layers": 2,
        "act": "gelu",
        "norm_first": True,
        "dropout": 0.0,
        "embed_std": 0.5,
        "pool": "mean",
        "zero_head": False,
        "frozen": False,
        "smoothing": 0.0,
        "drop_words": 0.0,
        "batch": 64,
        "accumulate": 1,
        "optimizer": "adamw",
        "lr": 4e-3,
        "beta1": 0.9,
        "beta2": 0.98,
        "eps": 1e-8,
        "wd": 0.01,
        "two_groups": False,
        "warmup": 30,
        "decay": "linear",
        "horizon": None,
        "clip": 1.0,
        "steps": 350,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.2),
        mild("learning_rate_too_high", lr=0.05),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", ("schedule_too_fast", "learning_rate_too_low"), horizon=12, warmup=3),
        severe("weight_decay_too_high", wd=5.0),
        mild("weight_decay_too_high", wd=2.0),
        mild("batch_too_small", batch=8),
        severe("momentum_too_high", beta1=0.999),
        severe("nothing_moves", ("nothing_moves", "not_learning"), bug="zeroed_too_early"),
        severe("parameters_not_optimized", bug="head_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="made_before_copy"),
        severe("graph_detached", bug="encoder_as_feature"),
        severe("batch_repeated", bug="stream_restarted"),
        severe("data_not_shuffled", bug="grouped_by_dish"),
        severe("labels_random", bug="paired_with_next"),
        mild("label_noise", noise=0.5),
        severe("labels_off_by_one", bug="one_based"),
        severe("loss_sign", bug="log_likelihood"),
        mild("double_softmax", ("double_softmax", "output_activation"), bug="probabilities_out"),
        severe("softmax_over_batch", bug="softmax_dim_zero"),
        severe("init_constant", bug="init_all_linear"),
        severe("init_too_large", embed_std=40.0),
        severe("attention_too_sharp", bug="queries_scaled_up"),
        severe("dropout_too_high", dropout=0.9),
        severe("samples_mixed", bug="transposed_by_view"),
        severe("batch_second", "samples_mixed", bug="batch_second"),
        severe("target_in_inputs", bug="hint_word"),
        severe("class_imbalance", rare=0.02),
        severe("adam_eps_too_large", ("adam_eps_too_large", "learning_rate_too_low"), eps=0.3),
        severe("not_finite", bug="empty_lines"),
        severe("overfitting", rows=160),
    ],
    healthy=[
        healthy("lr_0015", lr=1.5e-3, steps=500),
        healthy("lr_008", lr=8e-3),
        healthy("adam", optimizer="adam", wd=0.0, lr=4e-3),
        healthy("nadam", optimizer="nadam", wd=0.0, lr=3e-3),
        healthy("rmsprop", optimizer="rmsprop", wd=0.0, lr=1e-3),
        healthy("batch_32", batch=32, lr=3e-3, steps=500),
        healthy("batch_128", batch=128, lr=5e-3, steps=250),
        healthy("accumulated", batch=32, accumulate=2, steps=300),
        healthy("cosine", decay="cosine"),
        healthy("constant", decay="constant", lr=2.5e-3),
        healthy("long_warmup", warmup=90),
        healthy("no_clipping", clip=None),
        healthy("clipped_tighter", clip=0.3),
        healthy("post_norm", norm_first=False, lr=3e-3),
        healthy("relu", act="relu"),
        healthy("wider", dim=48, lr=3e-3, steps=280),
        healthy("wider_inside", ff=4),
        healthy("eight_heads", heads=8),
        healthy("first_word_pooled", pool="first"),
        healthy("zero_head", zero_head=True),
        healthy("small_embeddings", embed_std=0.2),
        healthy("frozen_words", frozen=True),
        healthy("smoothed", smoothing=0.1),
        healthy("some_noise", noise=0.04),
        healthy("decay_for_matrices_only", two_groups=True, wd=0.05),
        healthy("some_dropout", dropout=0.05),
        healthy("words_dropped", drop_words=0.1),
        healthy("beta2_0999", beta2=0.999),
    ],
)
