"""Tags for digits (even, prime, has a loop, ...): a trunk trained before on whole digits, mostly frozen,
small batches added up, validation logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe

EVEN, PRIME, LOOP, LARGE, STRAIGHT, CUBE = (
    {0, 2, 4, 6, 8},
    {2, 3, 5, 7},
    {0, 6, 8, 9},
    {5, 6, 7, 8, 9},
    {1, 4, 7},
    {1, 8},
)
TAGS = torch.tensor([[float(d in tag) for tag in (EVEN, PRIME, LOOP, LARGE, STRAIGHT, CUBE)] for d in range(10)])


def trunk(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, width),
        nn.ReLU(),
    )


def pretrained(x: torch.Tensor, y: torch.Tensor, width: int) -> nn.Sequential:
    """A trunk that learnt to tell the digits apart, on a third of the data, untracked."""
    body, head = trunk(width), nn.Linear(width, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=5e-3)
    for _ in range(60):
        pick = torch.randint(0, 450, (64,))
        optimizer.zero_grad()
        F.cross_entropy(head(body(x[pick])), y[pick]).backward()
        optimizer.step()
    return body


class Tagger(nn.Module):
    def __init__(self, body: nn.Sequential, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        self.body = body
        act = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}[o.activation]()
        self.head = nn.Sequential(
            nn.Linear(o.trunk_width, o.width), act, nn.Dropout(o.dropout), nn.Linear(o.width, TAGS.shape[1])
        )
        if o.zero_head:
            nn.init.zeros_(self.head[-1].weight)
        if o.init is not None:
            for m in self.head:
                if isinstance(m, nn.Linear):
                    nn.init.normal_(m.weight, std=o.init) if o.init > 0 else nn.init.constant_(m.weight, 0.0)
                    nn.init.constant_(m.bias, o.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.head(self.body(x))
        if self.o.bug == "sigmoid_twice":
            return out.sigmoid()
        return out.softmax(0) if self.o.bug == "softmax_dim0" else out


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xv, yv = digits(seed)
    x, xv = (x / 16 - 0.3)[:, None], (xv / 16 - 0.3)[:, None]
    body = pretrained(x, y, o.trunk_width)
    tags, tags_valid = TAGS[y], TAGS[yv]
    if o.bug == "bytes":  # the trunk saw scaled pixels, the new pipeline does not
        x, xv = (x + 0.3) * 255, (xv + 0.3) * 255
    if o.noise:
        tags = torch.where(torch.rand(tags.shape) < o.noise, 1 - tags, tags)
    if o.bug == "tags_apart":
        tags = tags[torch.randperm(len(tags))]
    if o.bug == "digit_off_by_one":  # tags looked up for the next digit
        tags = TAGS[(y + 1) % 10]
    if o.bug == "all_negative":  # tags of most images were never entered
        tags = tags * (torch.rand(len(tags), 1) < 0.03)
    model = Tagger(body, o)
    if o.frozen:
        for p in model.body.parameters():
            p.requires_grad_(False)
    loss_fn = nn.BCEWithLogitsLoss(reduction="sum" if o.bug == "summed" else "mean")
    trainable = [p for p in model.parameters() if p.requires_grad]
    if o.bug == "wrong_filter":  # keeps what it should leave out
        trainable = list(model.head[-1].parameters())
    optimizer = make_optimizer(o.optimizer, trainable, o.lr, weight_decay=o.wd, momentum=o.momentum, eps=o.eps)
    if o.bug == "head_replaced":
        model.head = Tagger(body, o).head
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.every, o.gamma)
    run = cockpit_core.track(model, loss_fn, optimizer, logdir=logdir)

    for step in range(o.steps):
        model.train()
        if o.frozen:
            model.body.eval()  # its normalisation stays as it was
        for _ in range(o.accumulate):
            pick = torch.randint(0, len(x), (o.batch,))
            scores = model(x[pick])
            if o.bug == "scores_detached":
                scores = scores.detach().requires_grad_(True)
            loss = loss_fn(scores, tags[pick])
            if o.bug == "maximised":
                loss = -loss
            (loss if o.bug == "not_divided" else loss / o.accumulate).backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 60 == 59:
            model.eval()
            with torch.no_grad():
                scores = model(xv)
                accuracy = ((scores > 0) == (tags_valid > 0.5)).float().mean().item()
                run.log(
                    valid_loss=F.binary_cross_entropy_with_logits(scores, tags_valid).item(), valid_accuracy=accuracy
                )
    run.close()
    model.eval()
    with torch.no_grad():
        scores = model(xv)
    if not torch.isfinite(scores).all():
        return float("inf")
    cut = 0.5 if o.bug == "sigmoid_twice" else 0.0
    wrong = ((scores > cut) != (tags_valid > 0.5)).float().mean()
    return (wrong / torch.minimum(tags_valid.mean(0), 1 - tags_valid.mean(0)).mean()).item()


PROGRAM = Program(
    name="tags",
    half="B",
    train=train,
    settings={
        "trunk_width": 32,
        "width": 32,
        "activation": "relu",
        "dropout": 0.0,
        "zero_head": False,
        "init": None,
        "bias": 0.0,
        "frozen": True,
        "noise": 0.0,
        "batch": 16,
        "accumulate": 2,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "wd": 1e-4,
        "eps": 1e-8,
        "every": 150,
        "gamma": 0.3,
        "steps": 300,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=100.0),
        mild("learning_rate_too_low", lr=1e-3),
        severe("clipping_too_hard", clip=1e-4),
        severe("inputs_not_scaled", bug="bytes"),
        severe("labels_random", bug="tags_apart"),
        severe("labels_off_by_one", bug="digit_off_by_one"),
        mild("label_noise", noise=0.4),
        severe("class_imbalance", bug="all_negative"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="sigmoid_twice"),
        severe("softmax_over_batch", bug="softmax_dim0"),
        severe("graph_detached", ("graph_detached", "nothing_moves"), bug="scores_detached"),
        mild("parameters_not_optimized", bug="wrong_filter"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="head_replaced",
        ),
        severe("loss_sign", bug="maximised"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe(
            "accumulation_not_divided",
            ("accumulation_not_divided", "learning_rate_too_high"),
            bug="not_divided",
            accumulate=16,
            batch=4,
            lr=1.0,
        ),
        severe("init_constant", init=-1.0),
        severe("dead_units", init=0.05, bias=-4.0),
    ],
    healthy=[
        healthy("lr_005", lr=0.05, every=250),
        healthy("lr_02", lr=0.2),
        healthy("adam", optimizer="adam", lr=5e-3),
        healthy("single_samples", batch=1, accumulate=16),
        healthy("batch_64", batch=64, accumulate=1),
        healthy("thawed", frozen=False, lr=0.05),
        healthy("zero_head", zero_head=True),
        healthy("gelu_dropout", activation="gelu", dropout=0.1),
        healthy("tanh_wide", activation="tanh", width=64),
        healthy("adamw", optimizer="adamw", lr=1e-2, wd=0.05),
        healthy("clip_1", clip=1.0, momentum=0.8),
    ],
)
