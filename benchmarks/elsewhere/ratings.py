"""Film ratings by matrix factorisation: embeddings and biases, Adam with two groups, DataLoader, loss module, validation logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

USERS, FILMS, TASTES = 180, 140, 3


def ratings(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """User, film, stars between 1 and 5: taste, generosity, quality and some noise."""
    taste, genre = torch.randn(USERS, TASTES), torch.randn(FILMS, TASTES)
    generous, good = 0.4 * torch.randn(USERS), 0.5 * torch.randn(FILMS)
    cells = torch.randperm(USERS * FILMS)[:count]
    user, film = cells // FILMS, cells % FILMS
    stars = 3.3 + generous[user] + good[film] + 0.5 * (taste[user] * genre[film]).sum(-1) + 0.25 * torch.randn(count)
    return user, film, stars.clamp(1, 5)


class Factors(nn.Module):
    def __init__(self, o: SimpleNamespace, mean: float) -> None:
        super().__init__()
        self.o = o
        self.user, self.film = nn.Embedding(USERS, o.rank), nn.Embedding(FILMS, o.rank)
        self.user_bias, self.film_bias = nn.Embedding(USERS, 1), nn.Embedding(FILMS, 1)
        self.mean = nn.Parameter(torch.tensor(mean))
        for table in (self.user, self.film):
            nn.init.normal_(table.weight, std=o.init) if o.init > 0 else nn.init.constant_(table.weight, -o.init)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.film_bias.weight)

    def forward(self, user: torch.Tensor, film: torch.Tensor) -> torch.Tensor:
        match = (self.user(user) * self.film(film)).sum(-1)
        if self.o.bug == "film_detached":
            match = (self.user(user).detach() * self.film(film).detach()).sum(-1)
        if self.o.bug == "column":
            return (self.mean + self.user_bias(user) + self.film_bias(film)) + match[:, None]
        score = self.mean + self.user_bias(user).squeeze(-1) + self.film_bias(film).squeeze(-1) + match
        if self.o.bug == "sigmoid_output":  # right for clicks, not for stars
            return torch.sigmoid(score)
        return score


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    user, film, stars = ratings(12000)
    uv, fv, sv = user[10000:], film[10000:], stars[10000:]
    user, film, stars = user[: o.count], film[: o.count], stars[: o.count]
    if o.bug == "columns_sorted_apart":
        stars = stars[torch.randperm(len(stars))]
    if o.bug == "percent":  # stars exported as 0 to 1000
        stars = stars * 200
    stars = stars + o.noise * torch.randn(len(stars))
    if o.bug == "by_stars":
        order = stars.argsort()
        user, film, stars = user[order], film[order], stars[order]
    shuffle = o.bug not in ("by_stars", "first_batch")
    loader = DataLoader(
        TensorDataset(user, film, stars), batch_size=o.batch, shuffle=shuffle, drop_last=len(user) > o.batch
    )

    model = Factors(o, stars.mean().item() if o.centred else 0.0)
    criterion = nn.MSELoss(reduction="sum" if o.bug == "summed" else "mean")
    tables = [] if o.bug == "tables_left_out" else [model.user.weight, model.film.weight]
    biases = [model.user_bias.weight, model.film_bias.weight, model.mean]
    groups = [{"params": biases, "weight_decay": 0.0}] + ([{"params": tables, "weight_decay": o.wd}] if tables else [])
    optimizer = make_optimizer(o.optimizer, groups, o.lr, momentum=o.momentum, eps=o.eps)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    if o.bug == "tables_replaced":  # grown for new users after the optimizer was made
        model.user = nn.Embedding.from_pretrained(torch.randn(USERS, o.rank) * o.init, freeze=False)
        model.film = nn.Embedding.from_pretrained(torch.randn(FILMS, o.rank) * o.init, freeze=False)
    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    step = 0
    while step < o.steps:
        for u, f, s in loader:
            if step >= o.steps:
                break
            if o.bug != "no_zero_grad":
                optimizer.zero_grad()
            loss = criterion(model(u, f), s)
            if o.bug == "maximised":
                loss = -loss
            loss.backward()
            if o.clip:
                nn.utils.clip_grad_norm_(model.parameters(), o.clip)
            optimizer.step()
            step += 1
            if o.bug == "scheduler_inside":
                scheduler.step()
            if o.bug == "first_batch":
                break
        if o.bug not in ("scheduler_inside", "first_batch"):
            scheduler.step()
        with torch.no_grad():
            if step % 2 == 0:
                run.log(valid_loss=nn.functional.mse_loss(model(uv, fv).reshape(-1), sv).item())
    run.close()
    with torch.no_grad():
        guess = model(uv, fv).reshape(-1)
        if o.bug == "percent":
            guess = guess / 200
        return (((guess - sv) ** 2).mean() / sv.var()).item()


PROGRAM = Program(
    name="ratings",
    half="A",
    train=train,
    settings={
        "rank": 4,
        "init": 0.1,
        "count": 10000,
        "noise": 0.0,
        "centred": True,
        "batch": 128,
        "optimizer": "adam",
        "lr": 0.02,
        "wd": 1e-5,
        "momentum": 0.9,
        "eps": 1e-8,
        "gamma": 0.85,
        "steps": 600,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=5.0),
        mild("learning_rate_too_high", lr=0.3),
        severe("learning_rate_too_low", lr=1e-6),
        mild("learning_rate_too_low", lr=5e-4),
        severe("schedule_too_fast", bug="scheduler_inside"),
        severe("loss_broadcast", bug="column"),
        severe("labels_random", bug="columns_sorted_apart"),
        mild("label_noise", noise=2.5),
        severe("targets_not_scaled", bug="percent", centred=False),
        severe("data_not_shuffled", bug="by_stars"),
        severe("batch_repeated", bug="first_batch"),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("loss_sign", bug="maximised"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=1.0),
        severe("weight_decay_too_high", optimizer="adamw", wd=30.0),
        severe("init_constant", init=-0.0),
        severe("init_too_large", init=6.0),
        severe("parameters_not_optimized", bug="tables_left_out"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "parameters_not_optimized"), bug="tables_replaced"),
        severe("graph_detached", bug="film_detached"),
        severe("output_activation", bug="sigmoid_output"),
        severe("adam_eps_too_large", eps=10.0),
        mild("overfitting", rank=48, count=1500, wd=0.0, init=0.5),
    ],
    healthy=[
        healthy("lr_01", lr=0.01, gamma=0.95),
        healthy("lr_04", lr=0.04, gamma=0.7),
        healthy("sgd", optimizer="sgd", lr=2.0),
        healthy("adagrad", optimizer="adagrad", lr=0.15),
        healthy("batch_64", batch=64, lr=0.015, steps=800),
        healthy("batch_512", batch=512, lr=0.04, steps=300),
        healthy("rank_8", rank=8, wd=1e-4),
        healthy("not_centred", centred=False, lr=0.04),
        healthy("decay", optimizer="adamw", wd=0.05),
        healthy("noisy_stars", noise=0.2),
        healthy("flat", gamma=1.0, lr=0.01),
        healthy("wide_init", init=0.3),
    ],
)
