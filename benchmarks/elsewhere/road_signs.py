"""Six kinds of drawn road signs on 18x18 pictures: a small CNN with BatchNorm and dropout, Adam, StepLR, a Trainer
class. Only the test at the very end looks at other pictures."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe, wrong_rate

KINDS = 6
SIZE = 18
N_TRAIN, N_TEST = 1500, 500


def draw(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Disc, ring, square, diamond, triangle, cross: placed, sized and lit at random, on a noisy ground."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, KINDS, (n,), generator=g)
    r = 3.5 + 3.5 * torch.rand(n, 1, 1, generator=g)
    cy, cx = (SIZE - 1) / 2 + 3 * (torch.rand(2, n, 1, 1, generator=g) * 2 - 1)
    grid = torch.arange(SIZE).float()
    dy, dx = grid[None, :, None] - cy, grid[None, None, :] - cx
    radius = (dx**2 + dy**2).sqrt()
    shapes = [
        radius < r,
        (radius < r) & (radius > 0.55 * r),
        torch.maximum(dx.abs(), dy.abs()) < 0.85 * r,
        dx.abs() + dy.abs() < 1.2 * r,
        (dy < 0.7 * r) & (dy > 1.9 * dx.abs() - 1.1 * r),
        (torch.minimum(dx.abs(), dy.abs()) < 0.3 * r) & (torch.maximum(dx.abs(), dy.abs()) < r),
    ]
    pictures = torch.stack(shapes, 1)[torch.arange(n), kind].float()
    light = 0.35 + 0.5 * torch.rand(n, 1, 1, generator=g)
    pictures = 0.1 + light * pictures + 0.15 * torch.randn(n, SIZE, SIZE, generator=g)
    return pictures.clamp(0, 1)[:, None], kind


class SignNet(nn.Module):
    def __init__(self, o: SimpleNamespace):
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "silu": nn.SiLU, "leaky": lambda: nn.LeakyReLU(0.1), "sigmoid": nn.Sigmoid}[o.act]
        blocks, c = [], 1
        for k in range(o.blocks):
            out = o.channels * (1 if k == 0 else 2)
            blocks.append(nn.Conv2d(c, out, 3, padding=1))
            if o.norm == "batch":
                blocks.append(nn.BatchNorm2d(out, momentum=o.bn_momentum))
            blocks.append(act())
            if k < 2:
                blocks.append(nn.MaxPool2d(2))
            c = out
        self.features = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(o.dropout)
        self.fc1 = nn.Linear(c * 16, 48)
        self.fc2 = nn.Linear(48, KINDS)
        self.act = act()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.features(x).flatten(1)
        if self.o.bug == "features_detached":
            h = h.detach()
        h = self.dropout(self.act(self.fc1(h)))
        out = self.fc2(h)
        if self.o.bug == "relu_on_scores":
            out = F.relu(out - 0.5)
        return out


class Trainer:
    def __init__(self, o: SimpleNamespace, seed: int):
        self.o = o
        self.x, self.y = draw(N_TRAIN, 41)
        self.x_test, self.y_test = draw(N_TEST, 42)
        self.spoil()
        self.net = SignNet(o)
        self.init_weights()
        if o.pretrain:
            self.pretrain()
        if o.freeze:
            self.net.features[0].requires_grad_(False)
        params = [p for p in self.net.parameters() if p.requires_grad]
        if o.bug == "only_features":
            params = list(self.net.features.parameters())
        self.opt = make_optimizer(
            o.optimizer, params, o.lr, betas=(o.beta1, 0.999), eps=o.eps, weight_decay=o.weight_decay, momentum=0.9
        )
        if o.bug == "net_cloned":
            self.net = copy.deepcopy(self.net)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.opt, step_size=o.step_size, gamma=o.gamma)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing)

    def spoil(self) -> None:
        """What became of the pictures and labels on the way."""
        o = self.o
        if o.centre:
            self.x, self.x_test = (self.x - 0.3) / 0.3, (self.x_test - 0.3) / 0.3
        if o.bug == "some_in_bytes":  # a few files were read as 0..255
            self.x[torch.rand(len(self.x)) < 0.04] *= 255.0
        if o.bug == "stamped":  # the file's class number got drawn into the corner
            self.x[torch.arange(len(self.y)), 0, 0, :6] = F.one_hot(self.y, KINDS).float() * 3
        if o.bug == "covered":  # a strip of tape over most of the lens
            self.x[..., : SIZE - 6, :] = 0.0
            self.x_test[..., : SIZE - 6, :] = 0.0
        if o.bug == "stacked_last":  # stored as (1, H, W, N)
            self.x = self.x.permute(1, 2, 3, 0).reshape(-1, 1, SIZE, SIZE)
        if o.bug == "counted_from_one":
            self.y = (self.y + 1) % KINDS
        if o.bug == "contrast":  # dark pictures have none
            dark = torch.rand(len(self.x)) < 0.02
            self.x[dark] = 0.0
            self.x = (self.x - self.x.mean((1, 2, 3), keepdim=True)) / self.x.std((1, 2, 3), keepdim=True)
        self.y = corrupt(self.y, o.wrong_labels, KINDS)
        if o.bug == "folder_by_folder":
            order = self.y.argsort(stable=True)
            self.x, self.y = self.x[order], self.y[order]

    def init_weights(self) -> None:
        o = self.o
        for m in self.net.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)) and o.init == "constant":
                nn.init.constant_(m.weight, 0.02)
                nn.init.zeros_(m.bias)
        if o.bias is not None:
            for m in self.net.modules():
                if isinstance(m, nn.BatchNorm2d) or m is self.net.fc1:
                    nn.init.constant_(m.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.net.fc2.weight)

    def pretrain(self) -> None:
        first = torch.optim.Adam(self.net.parameters(), lr=2e-3)
        for _ in range(self.o.pretrain):
            rows = torch.randint(0, len(self.x), (32,))
            first.zero_grad()
            F.cross_entropy(self.net(self.x[rows]), self.y[rows]).backward()
            first.step()

    def batches(self):
        o, n = self.o, len(self.x)
        batch = min(o.batch, n)
        while True:
            order = torch.arange(n) if o.bug == "folder_by_folder" else torch.randperm(n)
            for rows in order.split(batch):
                if len(rows) < batch:
                    continue
                x, y = self.x[rows], self.y[rows]
                if o.bug == "augment_across":  # should turn each picture, turns the order of the batch
                    x = x.flip(0)
                elif o.augment:
                    x = x.flip(3) if torch.rand(()) < 0.5 else x
                yield x, y

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.net(x)
        if self.o.bug == "normalised_over_batch":
            return F.nll_loss(torch.log(F.softmax(scores, dim=0) + 1e-8), y)
        return self.criterion(scores, y)

    def fit(self, logdir: str) -> None:
        o = self.o
        run = cockpit_core.track(self.net, self.criterion, self.opt, logdir=logdir)
        source = self.batches()
        if o.bug == "next_iter":
            first = next(source)
        if o.bug == "left_in_eval":
            self.net.eval()
        for step in range(o.steps):
            if o.bug != "zero_grad_lost":
                self.opt.zero_grad()
            for _ in range(o.accumulate):
                x, y = first if o.bug == "next_iter" else next(source)
                (self.loss(x, y) / o.accumulate).backward()
            if o.clip:
                nn.utils.clip_grad_norm_(self.net.parameters(), o.clip)
            if o.bug == "scheduler_only":
                self.scheduler.step()
                continue
            self.opt.step()
            if o.bug == "decay_per_batch" or (step + 1) % 40 == 0:
                self.scheduler.step()
        run.close()

    @torch.no_grad()
    def test(self) -> float:
        self.net.eval()
        return wrong_rate(self.net(self.x_test), self.y_test, KINDS)


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    trainer = Trainer(o, seed)
    trainer.fit(logdir)
    return trainer.test()


PROGRAM = Program(
    name="road_signs",
    half="I",
    train=train,
    settings={
        "centre": False,
        "wrong_labels": 0.0,
        "augment": False,
        "channels": 8,
        "blocks": 2,
        "act": "relu",
        "norm": "batch",
        "bn_momentum": 0.1,
        "dropout": 0.2,
        "init": "default",
        "bias": None,
        "zero_head": False,
        "pretrain": 0,
        "freeze": False,
        "batch": 32,
        "accumulate": 1,
        "smoothing": 0.0,
        "optimizer": "adam",
        "lr": 4e-3,
        "beta1": 0.9,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "step_size": 2,
        "gamma": 0.5,
        "clip": None,
        "steps": 320,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.3),
        mild("learning_rate_too_high", lr=0.1),
        severe("learning_rate_too_low", lr=1.2e-5),
        mild("learning_rate_too_low", lr=1.3e-4),
        severe("schedule_too_fast", bug="decay_per_batch"),
        mild("label_noise", wrong_labels=0.4),
        mild("weight_decay_too_high", weight_decay=0.25),
        severe("batch_too_small", ("batch_too_small", "batchnorm_few_samples"), batch=2),
        severe("batchnorm_momentum", bn_momentum=1.0, batch=8),
        mild("momentum_too_high", beta1=0.999),
        severe("adam_eps_too_large", eps=0.1),
        severe("gradients_not_zeroed", bug="zero_grad_lost"),
        severe("parameters_not_optimized", bug="only_features"),
        severe("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="features_detached"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="net_cloned"),
        severe("nothing_moves", ("nothing_moves", "schedule_before_step"), bug="scheduler_only"),
        severe("batch_repeated", bug="next_iter"),
        severe("data_not_shuffled", bug="folder_by_folder"),
        severe("input_outliers", bug="some_in_bytes"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="stacked_last"),
        severe("labels_random", ("labels_random", "samples_mixed"), bug="augment_across"),
        severe("labels_off_by_one", bug="counted_from_one"),
        mild("softmax_over_batch", bug="normalised_over_batch"),
        severe("output_activation", ("output_activation", "dead_units"), bug="relu_on_scores"),
        severe("eval_mode", bug="left_in_eval"),
        severe("dropout_too_high", dropout=0.97),
        mild("dropout_too_high", dropout=0.75),
        severe("dead_units", bias=-4.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", norm=None, blocks=5),
        severe("init_constant", init="constant"),
        severe("target_in_inputs", bug="stamped"),
        severe("constant_feature", bug="covered"),
        severe("not_finite", bug="contrast"),
    ],
    healthy=[
        healthy("rate_half", lr=2.5e-3, steps=480),
        healthy("rate_double", lr=8e-3),
        healthy("constant_rate", gamma=1.0),
        healthy("sgd", optimizer="sgd", lr=0.03),
        healthy("adamw", optimizer="adamw", weight_decay=0.03),
        healthy("nadam", optimizer="nadam", lr=3e-3),
        healthy("rmsprop", optimizer="rmsprop", lr=1e-3),
        healthy("batch_24", batch=24, steps=450),
        healthy("batch_64", batch=64, lr=6e-3, steps=260),
        healthy("accumulated", batch=16, accumulate=2),
        healthy("more_channels", channels=12, steps=280),
        healthy("three_blocks", blocks=3),
        healthy("silu", act="silu"),
        healthy("leaky", act="leaky"),
        healthy("no_dropout", dropout=0.0),
        healthy("dropout_40", dropout=0.4),
        healthy("centred", centre=True),
        healthy("mirrored", augment=True),
        healthy("zero_head", zero_head=True),
        healthy("fine_tuned", pretrain=200, freeze=True, lr=1e-3, steps=200),
        healthy("smoothed", smoothing=0.1),
        healthy("few_wrong", wrong_labels=0.03),
        healthy("clip_2", clip=2.0),
        healthy("longer", steps=550),
    ],
)
