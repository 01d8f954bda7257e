"""Do they like it? Reviews of different lengths, a bidirectional LSTM on packed sequences, Adam, clipping, val_loss logged."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

GOOD = "great lovely sturdy quick friendly tasty bright cheap quiet fresh perfect solid warm clever neat".split()
BAD = "awful slow broken rude stale noisy dull flimsy pricey cold useless dirty sticky clumsy weak".split()
THINGS = "phone soup room lamp staff cable chair coat pan bike shoes screen box bag door price bed".split()
FILL = "we bought it last week for my sister and used it every day at home since then".split()
CLASSES = 3  # no, mixed, yes


def write(rng: random.Random) -> tuple[list[str], int]:
    """One to three judgements with filling around them; "not" turns one around, after "but" nothing before it counts."""
    words: list[str] = []
    total = 0
    for n in range(rng.randint(1, 3)):
        good = rng.random() < 0.5
        turned = rng.random() < 0.3
        if n and rng.random() < 0.4:
            words.append("but")
            total = 0
        words += rng.sample(FILL, rng.randint(0, 3))
        words += ["the", rng.choice(THINGS), "was"] + (["not"] if turned else []) + [rng.choice(GOOD if good else BAD)]
        total += 1 if good != turned else -1
    return words, 1 + (total > 0) - (total < 0)


def reviews(count: int, seed: int) -> tuple[list[list[str]], torch.Tensor]:
    rng = random.Random(seed)
    pairs = [write(rng) for _ in range(count)]
    return [words for words, _ in pairs], torch.tensor([label for _, label in pairs])


class Classifier(nn.Module):
    def __init__(self, size: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.embedding = nn.Embedding(size, o.dim, padding_idx=0)
        cell = {"lstm": nn.LSTM, "gru": nn.GRU}[o.cell]
        self.rnn = cell(o.dim, o.hidden, o.layers, batch_first=o.bug != "batch_second", bidirectional=True)
        self.dropout = nn.Dropout(o.dropout)
        self.fc = nn.Linear(2 * o.hidden, CLASSES)
        for name, p in self.named_parameters():
            if o.gain is not None and p.dim() > 1:
                p.data.mul_(o.gain)
            if o.bug == "zeroed":
                nn.init.zeros_(p)
            if o.forget and "bias_ih" in name:
                p.data[o.hidden : 2 * o.hidden] = o.forget
        if o.zero_head:
            nn.init.zeros_(self.fc.weight)
        if o.freeze:
            self.embedding.weight.requires_grad_(False)

    def forward(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.dropout(self.embedding(tokens))
        if self.o.packed:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        else:
            states, _ = self.rnn(x)
        if self.o.pool == "max":
            inside = torch.arange(states.shape[1])[None, :, None] < lengths[:, None, None]
            pooled = states.masked_fill(~inside, -1e4).amax(1)
        elif self.o.bug == "last_position":  # which is padding for all but the longest
            pooled = states[:, -1]
        else:
            h = self.o.hidden
            end = states[torch.arange(len(states)), lengths - 1, :h]
            pooled = torch.cat([end, states[:, 0, h:]], 1)
        if self.o.bug == "cut":
            pooled = pooled.detach()
        scores = self.fc(self.dropout(pooled))
        if self.o.bug == "softmax":
            scores = scores.softmax(1)
        if self.o.bug == "softmax_0":
            scores = scores.softmax(0)
        return scores


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    texts, labels = reviews(o.count, 1)
    texts_val, labels_val = reviews(500, 2)
    vocabulary = {w: n + 2 for n, w in enumerate(sorted({w for t in texts for w in t}))}
    if o.bug == "case":  # the vocabulary was made from the titles: nearly every word is unknown
        vocabulary = {w: n for w, n in vocabulary.items() if w in THINGS or w in FILL}

    def numbers(text: list[str]) -> torch.Tensor:
        return torch.tensor([vocabulary.get(w, 1) for w in text])

    data = [numbers(t) for t in texts]
    val = [numbers(t) for t in texts_val]
    if o.bug == "sorted_by_length":  # for packing; the labels stayed as they were
        data = sorted(data, key=len)
    y = corrupt(labels, o.noise, CLASSES)
    if o.bug == "stars_from_one":
        y = (y + 1) % CLASSES
    order = torch.arange(len(data))
    if o.bug == "by_label":
        order = y.argsort()

    def batch(rows: torch.Tensor, texts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = [texts[n] for n in rows.tolist()]
        lengths = torch.tensor([len(t) for t in chosen])
        return pad_sequence(chosen, batch_first=True), lengths

    model = Classifier(len(vocabulary) + 2 if o.bug != "case" else 400, o)
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing, reduction="sum" if o.bug == "summed" else "mean")
    params = model.fc.parameters() if o.bug == "only_fc" else [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if (
        o.bug == "vectors_loaded"
    ):  # a new table of word vectors, after the optimizer was made; the rnn was rebuilt to fit
        fresh = Classifier(len(vocabulary) + 2, o)
        model.embedding, model.rnn = fresh.embedding, fresh.rnn
    warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / o.warmup) * o.decay**s)
    run = cockpit_core.track(model, criterion, optimizer, logdir)

    model.train()
    step = 0
    while step < o.steps:
        if o.bug not in ("by_label", "one_batch"):
            order = torch.randperm(len(data))
        for rows in order.split(o.batch):
            if o.bug == "one_batch":
                rows = order[: o.batch]
            tokens, lengths = batch(rows, data)
            loss = criterion(model(tokens, lengths), y[rows])
            if o.bug == "maximise":
                loss = -loss
            if o.bug == "log_of_right":  # by hand, without the minimum
                p = model(tokens, lengths).mul(40).softmax(1).gather(1, y[rows, None])
                loss = -(p.log()).mean()
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            if (step + 1) % o.accumulate == 0:
                optimizer.step()
                if o.bug != "no_zero_grad":
                    optimizer.zero_grad()
                warm.step()
            step += 1
            if step % 60 == 0:
                model.eval()
                with torch.no_grad():
                    scores = model(*batch(torch.arange(500), val))
                    run.log(val_loss=nn.functional.cross_entropy(scores, labels_val).item())
                model.train()
            if step >= o.steps:
                break
    run.close()

    model.eval()
    with torch.no_grad():
        return wrong_rate(model(*batch(torch.arange(500), val)), labels_val, CLASSES)


PROGRAM = Program(
    name="reviews",
    half="E",
    train=train,
    settings={
        "dim": 24,
        "hidden": 24,
        "layers": 1,
        "cell": "lstm",
        "packed": True,
        "pool": "ends",
        "dropout": 0.1,
        "gain": None,
        "forget": None,
        "zero_head": False,
        "freeze": False,
        "count": 3000,
        "noise": 0.0,
        "smoothing": 0.0,
        "batch": 32,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 8e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "warmup": 1,
        "decay": 0.995,
        "clip": 1.0,
        "steps": 420,
    },
    faults=[
        mild("learning_rate_too_high", lr=0.1),
        mild("learning_rate_too_low", lr=1e-3),
        severe("schedule_too_fast", decay=0.93),
        mild("schedule_too_fast", decay=0.975),
        severe("clipping_too_hard", clip=1e-3, optimizer="sgd", lr=0.3),
        mild("weight_decay_too_high", wd=0.02),
        mild("batch_too_small", batch=2, decay=1.0, lr=0.01),
        severe("gradients_not_zeroed", bug="no_zero_grad", clip=None),
        severe("parameters_not_optimized", bug="only_fc"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="vectors_loaded"),
        severe("graph_detached", bug="cut"),
        severe("batch_repeated", bug="one_batch"),
        severe("data_not_shuffled", bug="by_label"),
        severe("labels_random", bug="sorted_by_length"),
        mild("label_noise", noise=0.5),
        severe("labels_off_by_one", bug="stars_from_one"),
        severe("loss_sign", bug="maximise", clip=None),
        severe(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=1.0, clip=None
        ),
        mild("double_softmax", bug="softmax"),
        severe("softmax_over_batch", bug="softmax_0"),
        severe("init_constant", bug="zeroed"),
        mild("init_too_large", ("init_too_large", "saturated_units"), gain=5.0),
        severe("init_too_small", ("init_too_small", "vanishing_gradients"), gain=0.01, optimizer="sgd", lr=0.5),
        mild("dropout_too_high", dropout=0.6),
        severe("words_unknown", ("constant_feature", "not_learning"), bug="case"),
        mild("adam_eps_too_large", eps=0.1),
        mild("overfitting", count=120),
        severe("time_axis_is_batch", ("samples_mixed", "not_learning"), bug="batch_second", packed=False),
        mild("reads_padding", "not_learning", bug="last_position", packed=False),
        severe("not_finite", bug="log_of_right", gain=4.0),
    ],
    healthy=[
        healthy("gru", cell="gru"),
        healthy("max_pool", pool="max"),
        healthy("not_packed", packed=False, pool="max"),
        healthy("two_layers", layers=2, dropout=0.2),
        healthy("forget_bias_1", forget=1.0),
        healthy("frozen_embedding", freeze=True, dim=32),
        healthy("zero_head", zero_head=True),
        healthy("warmup_40", warmup=40),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("adamw_decay", optimizer="adamw", wd=0.05),
        healthy("sgd_momentum", optimizer="sgd", lr=0.5, decay=0.998, steps=600),
        healthy("label_smoothing", smoothing=0.1),
        healthy("accumulate_2", batch=16, accumulate=2, steps=700),
        healthy("batch_96", batch=96, lr=1.2e-2, steps=250, decay=0.992),
        healthy("lr_3e-3", lr=3e-3, decay=0.998, steps=500),
    ],
)
