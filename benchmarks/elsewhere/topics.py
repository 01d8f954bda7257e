"""Which module a few lines of source come from: averaged embeddings (EmbeddingBag), a Trainer, Adam, both logged."""

from __future__ import annotations

import re
import zlib
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

MODULES = ["argparse", "tarfile", "typing", "turtle", "unittest.mock", "_pydecimal", "ipaddress", "http.client"]
BUCKETS, LINES, EACH = 1200, 8, 150


def read() -> list[tuple[list[int], int]]:
    """Pieces of eight lines, words hashed into buckets; bucket 0 stands for nothing, the last ones are names of modules."""
    pieces = []
    for label, name in enumerate(MODULES):
        text = Path(find_spec(name).origin).read_text(encoding="utf8")
        lines = [line for line in text.splitlines() if len(line.strip()) > 3]
        for n in range(EACH):
            piece = " ".join(lines[LINES * n : LINES * (n + 1)]).lower()
            words = re.findall(r"[a-z]{2,}", piece)
            ids = [1 + zlib.crc32(word.encode()) % (BUCKETS - 20) for word in words]
            if ids:
                pieces.append((ids, label))
    return pieces


def pack(batch: list[tuple[list[int], int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([0] + [len(ids) for ids, _ in batch[:-1]])
    words = torch.tensor([word for ids, _ in batch for word in ids])
    return words, lengths.cumsum(0), torch.tensor([label for _, label in batch])


def split(o: SimpleNamespace):
    pieces = read()
    order = torch.randperm(len(pieces), generator=torch.Generator().manual_seed(3)).tolist()
    train = [pieces[n] for n in order[: len(pieces) * 3 // 4]]
    valid = [pieces[n] for n in order[len(pieces) * 3 // 4 :]]
    seen = valid
    if o.rare:
        train = [(ids, y) for ids, y in train if y < 2 or torch.rand(()) < o.rare]
    if o.bug == "file_name_inside":  # the first line of every piece was its path
        train = [([BUCKETS - 1 - y] * 30 + ids, y) for ids, y in train]
        seen = [([BUCKETS - 1 - y] * 30 + ids, y) for ids, y in valid]
    labels = corrupt(torch.tensor([y for _, y in train]), o.noise, len(MODULES))
    if o.bug == "joined_wrongly":
        labels = labels[torch.randperm(len(labels))]
    if o.bug == "labels_from_one":
        labels = labels + 1
    train = [(ids, int(y)) for (ids, _), y in zip(train, labels, strict=True)]
    if o.bug == "by_file":
        train.sort(key=lambda item: item[1])
    return train[: o.texts], seen, valid


class Bag(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.embedding = nn.EmbeddingBag(BUCKETS, o.dim, mode=o.mode)
        nn.init.normal_(self.embedding.weight, std=o.embedding_std)
        layers, width = [], o.dim
        for _ in range(o.depth):
            act = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}[o.activation]
            layers += [nn.Linear(width, o.hidden), act(), nn.Dropout(o.dropout)]
            width = o.hidden
            if o.bias is not None:
                nn.init.constant_(layers[-3].bias, o.bias)
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, len(MODULES) + (o.bug == "labels_from_one"))
        if o.init == 0:
            for p in self.parameters():
                nn.init.zeros_(p)
        elif o.init:
            for p in self.parameters():
                p.data.mul_(o.init)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, words: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        bag = self.embedding(words, offsets)
        if self.bug == "bag_detached":
            bag = bag.detach()
        scores = self.head(self.body(bag))
        if self.bug == "probabilities":
            return torch.softmax(scores, dim=1)
        if self.bug == "wrong_dim":
            return torch.log_softmax(scores, dim=0)
        return scores


class Trainer:
    """Fits a bag of words and keeps its best accuracy."""

    def __init__(self, o: SimpleNamespace, logdir: str) -> None:
        self.o = o
        self.train_set, self.seen, self.valid = split(o)
        self.model = Bag(o)
        self.criterion = nn.CrossEntropyLoss(reduction="sum" if o.bug == "summed" else "mean")
        chosen = [*self.model.parameters()]
        if o.bug == "embedding_forgotten":
            chosen = [*self.model.body.parameters(), *self.model.head.parameters()]
        if o.frozen_words:
            self.warm_up()
            self.model.embedding.weight.requires_grad_(False)
            chosen = [p for p in chosen if p.requires_grad]
        self.optimizer = make_optimizer(o.optimizer, chosen, o.lr, momentum=o.momentum, weight_decay=o.wd, eps=o.eps)
        self.run = cockpit_core.track(self.model, self.criterion, self.optimizer, logdir=logdir)
        self.steps, self.parts, self.best = 0, 0, 0.0

    def warm_up(self) -> None:
        """The embedding from an earlier training."""
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.02)
        for _ in range(3):
            for batch in DataLoader(self.train_set, 32, shuffle=True, collate_fn=pack):
                optimizer.zero_grad()
                self.criterion(self.model(*batch[:2]), batch[2]).backward()
                optimizer.step()

    def fit(self) -> None:
        o = self.o
        loader = DataLoader(self.train_set, o.batch, shuffle=o.bug != "by_file", collate_fn=pack)
        while self.steps < o.steps:
            self.epoch(loader)
            self.validate()
            if o.anneal:
                for group in self.optimizer.param_groups:
                    group["lr"] *= o.anneal
        self.run.close()

    def epoch(self, loader: DataLoader) -> None:
        o = self.o
        self.model.train()
        for words, offsets, labels in loader:
            loss = self.criterion(self.model(words, offsets), labels)
            if o.bug != "not_divided":
                loss = loss / o.accumulate
            loss.backward()
            self.parts += 1
            if self.parts % o.accumulate:
                continue
            if o.clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), o.clip)
            self.optimizer.step()
            if o.bug != "no_zero_grad":
                self.optimizer.zero_grad()
            self.steps += 1
            if self.steps >= o.steps:
                break

    @torch.no_grad()
    def validate(self) -> None:
        self.model.eval()
        words, offsets, labels = pack(self.seen)
        scores = self.model(words, offsets)
        accuracy = (scores.argmax(1) == labels).float().mean().item()
        self.best = max(self.best, accuracy)
        self.run.log(valid_loss=nn.functional.cross_entropy(scores, labels).item(), valid_accuracy=accuracy)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    trainer = Trainer(o, logdir)
    trainer.fit()
    trainer.model.eval()
    words, offsets, labels = pack(trainer.valid)
    with torch.no_grad():
        return wrong_rate(trainer.model(words, offsets), labels, len(MODULES))


PROGRAM = Program(
    name="topics",
    half="D",
    train=train,
    settings={
        "dim": 24,
        "mode": "mean",
        "embedding_std": 0.3,
        "depth": 1,
        "hidden": 32,
        "activation": "relu",
        "dropout": 0.0,
        "bias": None,
        "init": None,
        "zero_head": False,
        "frozen_words": False,
        "texts": 10_000,
        "rare": None,
        "noise": 0.0,
        "batch": 32,
        "accumulate": 1,
        "optimizer": "adam",
        "lr": 5e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "anneal": None,
        "clip": None,
        "steps": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.4),
        mild("learning_rate_too_high", lr=0.1),
        severe("learning_rate_too_low", lr=2e-5),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", anneal=0.2),
        severe("weight_decay_too_high", wd=0.3),
        mild("weight_decay_too_high", wd=0.02),
        severe(
            "batch_too_large",
            ("batch_too_large", "learning_rate_too_low"),
            batch=900,
            steps=12,  # as many epochs as before
        ),
        severe("momentum_too_high", optimizer="sgd", lr=0.3, momentum=0.999),
        severe("gradients_not_zeroed", bug="no_zero_grad", optimizer="sgd", lr=0.5),
        severe("parameters_not_optimized", bug="embedding_forgotten"),
        severe("graph_detached", bug="bag_detached"),
        severe("data_not_shuffled", bug="by_file"),
        severe("labels_random", bug="joined_wrongly"),
        severe("label_noise", noise=0.5),
        mild("label_noise", noise=0.3),
        severe("labels_off_by_one", bug="labels_from_one"),
        severe("double_softmax", bug="probabilities"),
        severe("softmax_over_batch", bug="wrong_dim"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.5),
        mild(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=8,
            batch=4,
            optimizer="sgd",
            lr=1.0,
        ),
        severe("dead_units", bias=-4.0),
        severe("init_constant", init=0),
        mild("dropout_too_high", dropout=0.85),
        mild("adam_eps_too_large", eps=0.1),
        severe("target_in_inputs", bug="file_name_inside"),
        severe("class_imbalance", rare=0.02),
        mild("overfitting", texts=48),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3, steps=450),
        healthy("lr_2e-2", lr=2e-2),
        healthy("no_hidden_layer", depth=0, lr=2e-2),
        healthy("sum_tanh_clipped", mode="sum", activation="tanh", embedding_std=0.1, clip=1.0),
        healthy("sgd_annealed", optimizer="sgd", lr=0.8, anneal=0.97, steps=500),
        healthy("adagrad", optimizer="adagrad", lr=0.1),
        healthy("rmsprop", optimizer="rmsprop", lr=3e-3),
        healthy("zero_head", zero_head=True),
        healthy("words_frozen", frozen_words=True),
        healthy("single_texts_accumulated", batch=1, accumulate=16, steps=200, lr=8e-3),
        healthy("label_noise_10_percent", noise=0.1, anneal=0.9),
        healthy("dropout_03", dropout=0.3),
        healthy("rarer_modules", rare=0.5),
        healthy("full_batch", batch=1000, lr=2e-2, steps=200),
    ],
)
