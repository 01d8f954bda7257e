"""Images and captions that belong together, as CLIP does it: two towers, InfoNCE in both directions,
learnt temperature, nothing logged."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, digits, healthy, make_optimizer, mild, severe, wrong_rate

WORDS = "zero one two three four five six seven eight nine".split()
FRAMES = ["a scan of the digit {}", "{} as somebody wrote it", "this is {}", "number {} in ink"]
VOCABULARY = sorted({w for frame in FRAMES for w in frame.split()} | set(WORDS))
LENGTH = 6


def caption(label: int, frame: int) -> list[int]:
    ids = [VOCABULARY.index(w) + 1 for w in FRAMES[frame].format(WORDS[label]).split()]
    return ids + [0] * (LENGTH - len(ids))


CAPTIONS = torch.tensor([[caption(label, frame) for frame in range(len(FRAMES))] for label in range(10)])


class Towers(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.bug = o.bug
        act = {"relu": nn.ReLU, "gelu": nn.GELU, "elu": nn.ELU}[o.activation]
        self.image = nn.Sequential(
            nn.Conv2d(1, o.width, 3, padding=1),
            act(),
            nn.MaxPool2d(2),
            nn.Conv2d(o.width, 2 * o.width, 3, padding=1),
            act(),
            nn.Flatten(),
            nn.Dropout(o.dropout),
            nn.Linear(2 * o.width * 16, o.space),
        )
        self.words = nn.EmbeddingBag(len(VOCABULARY) + 1, 32, mode="mean", padding_idx=0)
        self.text = nn.Sequential(nn.Linear(32, 32), act(), nn.Linear(32, o.space))
        self.log_scale = nn.Parameter(torch.tensor(float(o.log_scale)))

    def forward(self, images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
        """Similarities: group, image, caption."""
        groups = images.shape[0]
        u = self.image(images.reshape(-1, 1, 8, 8)).view(groups, 10, -1)
        v = self.text(self.words(captions.reshape(-1, LENGTH))).view(groups, 10, -1)
        if self.bug == "unguarded_norm":  # relu before the norm, and no epsilon
            u, v = torch.relu(u), torch.relu(v)
            u, v = u / u.norm(dim=-1, keepdim=True), v / v.norm(dim=-1, keepdim=True)
        else:
            u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
        if self.bug == "towers_detached":  # cached features from an evaluation script
            u, v = u.detach(), v.detach()
        if self.bug == "image_detached":
            u = u.detach()
        return self.log_scale.exp() * u @ v.transpose(1, 2)


def info_nce(similarity: torch.Tensor, bug: str | None) -> torch.Tensor:
    target = torch.arange(10).repeat(len(similarity))
    rows, columns = similarity.flatten(0, 1), similarity.transpose(1, 2).flatten(0, 1)
    if bug == "softmax_first":
        rows, columns = rows.softmax(-1), columns.softmax(-1)
    loss = 0.5 * (F.cross_entropy(rows, target) + F.cross_entropy(columns, target))
    return -loss if bug == "maximised" else loss


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, y, xv, yv = digits(seed)
    if o.scaled:
        x, xv = x / 8 - 0.6, xv / 8 - 0.6
    elif o.bug == "bytes":
        x, xv = x * 16, xv * 16
    by_class = [x[y == k] for k in range(10)]
    if o.noise:  # a share of images filed under the wrong digit
        moved = torch.where(torch.rand(len(y)) < o.noise, torch.randint(0, 10, y.shape), y)
        by_class = [x[moved == k] for k in range(10)]

    net = Towers(o)
    if o.init is not None:
        for layer in net.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.normal_(layer.weight, std=o.init) if o.init > 0 else nn.init.constant_(layer.weight, 0.05)
                nn.init.constant_(layer.bias, o.bias)
    owner = copy.deepcopy(net) if o.bug == "optimizer_of_copy" else net
    groups = [{"params": owner.image.parameters(), "weight_decay": o.wd}]
    if o.bug != "text_left_out":
        groups += [
            {"params": [*owner.words.parameters(), *owner.text.parameters()], "lr": o.lr * o.text_factor},
            {"params": [owner.log_scale]},
        ]
    if o.bug == "image_left_out":
        groups = groups[1:]
    optim = make_optimizer(o.optimizer, groups, o.lr, momentum=o.momentum)
    sched = (
        torch.optim.lr_scheduler.OneCycleLR(optim, [g["lr"] for g in optim.param_groups], total_steps=o.steps)
        if o.onecycle
        else None
    )
    run = cockpit_core.track(net, optimizer=optim, logdir=logdir)

    stored = None
    for step in range(o.steps):
        images = torch.stack([torch.stack([c[torch.randint(len(c), ())] for c in by_class]) for _ in range(o.groups)])
        frames = torch.randint(0, len(FRAMES), (o.groups, 10))
        texts = CAPTIONS[torch.arange(10).expand(o.groups, 10), frames]
        if o.bug == "captions_rolled":  # the caption list is shuffled, the image list is not
            texts = torch.stack([t[torch.randperm(10)] for t in texts])
        if o.bug == "same_batch":
            stored = stored or (images[:1], texts[:1])
            images, texts = stored
        images = images + o.jitter * torch.randn_like(images)
        loss = info_nce(net(images, texts), o.bug) / (1 if o.accumulate == 1 else o.accumulate)
        loss.backward()
        if (step + 1) % o.accumulate == 0:
            if o.clip:
                nn.utils.clip_grad_norm_(net.parameters(), o.clip)
            optim.step()
            if o.bug != "never_zeroed":
                optim.zero_grad()
        if sched:
            sched.step()
    run.close()
    net.eval()
    with torch.no_grad():
        everything = torch.cat([xv, xv[: -len(xv) % 10]]).view(-1, 10, 8, 8)
        texts = CAPTIONS[:, 2].expand(len(everything), 10, LENGTH)
        scores = net(everything, texts).flatten(0, 1)[: len(yv)]
    return wrong_rate(scores, yv, 10)


PROGRAM = Program(
    name="pairs",
    half="A",
    train=train,
    settings={
        "width": 8,
        "space": 16,
        "activation": "relu",
        "dropout": 0.0,
        "log_scale": 2.0,
        "scaled": True,
        "noise": 0.0,
        "jitter": 0.1,
        "init": None,
        "bias": 0.0,
        "groups": 6,
        "optimizer": "adam",
        "lr": 4e-3,
        "text_factor": 1.0,
        "wd": 0.0,
        "momentum": 0.9,
        "steps": 350,
        "onecycle": False,
        "accumulate": 1,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.5),
        mild("learning_rate_too_high", lr=0.06),
        severe("learning_rate_too_low", lr=2e-6),
        mild("learning_rate_too_low", lr=5e-5),
        severe("inputs_not_scaled", scaled=False, bug="bytes", optimizer="sgd", lr=0.1),
        severe("double_softmax", bug="softmax_first", log_scale=0.0),
        severe("loss_sign", bug="maximised"),
        severe("labels_random", bug="captions_rolled"),
        mild("label_noise", noise=0.7),
        severe("batch_repeated", bug="same_batch", jitter=0.0),
        severe("gradients_not_zeroed", bug="never_zeroed"),
        severe("graph_detached", bug="towers_detached"),
        mild("graph_detached", bug="image_detached"),
        severe("parameters_not_optimized", bug="image_left_out"),
        mild("parameters_not_optimized", bug="text_left_out"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="optimizer_of_copy",
        ),
        severe("not_finite", bug="unguarded_norm"),
        severe("dead_units", init=0.05, bias=-4.0),
        severe("init_constant", init=-1.0),
        severe("init_too_large", init=20.0),
        severe("dropout_too_high", dropout=0.98),
        severe("momentum_too_high", optimizer="sgd", lr=0.1, momentum=0.9999),
        severe("clipping_too_hard", optimizer="sgd", lr=0.1, clip=1e-4),
    ],
    healthy=[
        healthy("lr_2e-3", lr=2e-3),
        healthy("lr_8e-3", lr=8e-3),
        healthy("sgd", optimizer="sgd", lr=0.2),
        healthy("groups_2", groups=2, lr=2e-3, steps=500),
        healthy("groups_20", groups=20, steps=250),
        healthy("gelu", activation="gelu"),
        healthy("elu_dropout", activation="elu", dropout=0.1),
        healthy("warm_scale", log_scale=3.0, lr=3e-3),
        healthy("accumulate_4", accumulate=4, groups=2, steps=800, lr=6e-3),
        healthy("onecycle", onecycle=True, lr=8e-3),
        healthy("text_slower", text_factor=0.3, clip=1.0),
        healthy("decay", optimizer="adamw", wd=0.01, space=32),
    ],
)
