"""A character model of the Python manual: GRU that carries its state along, clipping, functional loss, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe


def corpus() -> tuple[torch.Tensor, int]:
    """The help topics that come with Python, as numbers."""
    from pydoc_data.topics import topics

    text = "\n".join(topics[key] for key in sorted(topics))[:200_000].lower()
    letters = sorted(set(text))
    index = {c: n for n, c in enumerate(letters)}
    return torch.tensor([index[c] for c in text]), len(letters)


class CharModel(nn.Module):
    def __init__(self, size: int, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        self.embed = nn.Embedding(size, o.width if o.tied else o.embed)
        self.rnn = (nn.LSTM if o.cell == "lstm" else nn.GRU)(
            self.embed.embedding_dim, o.width, batch_first=True, num_layers=o.layers
        )
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(o.width, size)
        if o.tied:
            nn.init.normal_(self.embed.weight, std=0.1)
            self.head.weight = self.embed.weight
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, tokens: torch.Tensor, state=None):
        out, state = self.rnn(self.embed(tokens), state)
        if self.bug == "output_detached":
            out = out.detach()
        logits = self.head(self.drop(out))
        if self.bug == "softmax_in_model":
            logits = logits.softmax(-1)
        if self.bug == "softmax_time":
            logits = logits.log_softmax(1)
        return logits, state


def carried(state):
    """The state without its history."""
    return tuple(s.detach() for s in state) if isinstance(state, tuple) else state.detach()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    ids, size = corpus()
    held = ids[-12_000:].view(12, -1)
    ids = ids[:-12_000][: o.letters]
    if o.noise:
        swap = torch.rand(len(ids)) < o.noise
        noisy = torch.where(swap, torch.randint(0, size, ids.shape), ids)
    else:
        noisy = ids
    lanes = ids[: len(ids) // o.batch * o.batch].view(o.batch, -1)
    answers = noisy[: len(ids) // o.batch * o.batch].view(o.batch, -1)
    if o.bug == "letters_shuffled":
        answers = answers[:, torch.randperm(answers.shape[1])]
    model = CharModel(size, o)
    if o.init is not None:
        for name, p in model.named_parameters():
            if o.init == 0:
                nn.init.constant_(p, 0.05)
            elif "bias" not in name:
                nn.init.normal_(p, std=o.init)
    params = model.head.parameters() if o.bug == "head_only" else model.parameters()
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: o.decay**n)
    run = cockpit_core.track(model, optimizer=optimizer, logdir=logdir)

    state, place = None, 0
    for _ in range(o.steps):
        if place + o.length + 1 >= lanes.shape[1]:
            state, place = None, 0
        shift = 0 if o.bug == "not_shifted" else 2 if o.bug == "one_too_far" else 1
        tokens, targets = lanes[:, place : place + o.length], answers[:, place + shift : place + o.length + shift]
        if targets.shape[1] < o.length:
            state, place = None, 0
            continue
        logits, state = model(tokens, carried(state) if state is not None and o.carry else None)
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction="sum" if o.bug == "summed" else "mean"
        )
        if o.bug == "maximised":
            loss = F.log_softmax(logits, -1).gather(-1, targets[..., None]).mean()
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if o.bug != "same_window":
            place += o.length
    run.close()

    model.eval()
    with torch.no_grad():
        logits, _ = model(held[:, :-1])
        if o.bug == "softmax_in_model":
            logits = logits.clamp(min=1e-9).log()
        nll = F.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten()).item()
    share = torch.bincount(ids, minlength=size).float() / len(ids)
    return nll / -(share * share.clamp(min=1e-9).log()).sum().item()


PROGRAM = Program(
    name="chars",
    half="B",
    train=train,
    settings={
        "embed": 24,
        "width": 64,
        "layers": 1,
        "cell": "gru",
        "tied": False,
        "dropout": 0.0,
        "zero_head": False,
        "init": None,
        "letters": 180_000,
        "noise": 0.0,
        "carry": True,
        "batch": 24,
        "length": 24,
        "optimizer": "adam",
        "lr": 8e-3,
        "wd": 0.0,
        "eps": 1e-8,
        "decay": 0.997,
        "steps": 300,
        "clip": 1.0,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.7, clip=None),
        mild("learning_rate_too_low", lr=2e-4),
        severe("schedule_too_fast", decay=0.9),
        severe("targets_not_shifted", ("targets_not_shifted", "target_in_inputs"), bug="not_shifted"),
        mild("labels_off_by_one", bug="one_too_far"),
        severe("labels_random", bug="letters_shuffled"),
        mild("label_noise", noise=0.5),
        severe("double_softmax", bug="softmax_in_model"),
        mild("softmax_over_batch", bug="softmax_time"),
        severe("graph_detached", bug="output_detached"),
        severe("parameters_not_optimized", bug="head_only"),
        severe("loss_sign", bug="maximised"),
        severe(
            "loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed", optimizer="sgd", lr=0.5, clip=None
        ),
        severe("batch_repeated", bug="same_window"),
        severe("gradients_not_zeroed", bug="no_zero_grad", clip=None),
        severe("init_constant", init=0),
    ],
    healthy=[
        healthy("lr_4e-3", lr=4e-3, decay=1.0),
        healthy("lr_15e-3", lr=1.5e-2),
        healthy("lstm", cell="lstm", lr=1.2e-2),
        healthy("state_not_carried", carry=False),
        healthy("batch_12", batch=12, steps=360),
        healthy("batch_48", batch=48, length=16, lr=1e-2),
        healthy("dropout_01", dropout=0.1),
        healthy("zero_head", zero_head=True),
        healthy("adamw", optimizer="adamw", wd=0.01, lr=1e-2),
        healthy("tied", tied=True),
        healthy("no_clip", clip=None),
    ],
)
