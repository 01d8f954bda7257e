"""A small U-Net that finds discs among squares: SGD with Nesterov momentum, BCE and Dice in one loss module, nothing logged."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

SIZE = 24


def scenes(count: int, tiny: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images with one bright disc and one bright square; the mask shows the disc."""
    grid = torch.arange(SIZE, dtype=torch.float32)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    lo, hi = (1.0, 1.4) if tiny else (3.0, 5.5)

    def place() -> tuple[torch.Tensor, torch.Tensor]:
        centre = torch.rand(2, count, 1, 1) * (SIZE - 8) + 4
        return xx - centre[0], yy - centre[1]

    dx, dy = place()
    radius = torch.rand(count, 1, 1) * (hi - lo) + lo
    disc = (dx**2 + dy**2) < radius**2
    dx, dy = place()
    side = torch.rand(count, 1, 1) * 1.5 + 2.5
    square = (dx.abs() < side) & (dy.abs() < side)
    image = torch.maximum(disc.float(), square.float() * 0.9) + 0.25 * torch.randn(count, SIZE, SIZE)
    return image[:, None], disc[:, None].float()


class Double(nn.Sequential):
    """Twice convolution, normalisation, activation."""

    def __init__(self, cin: int, cout: int, o: SimpleNamespace) -> None:
        def norm() -> nn.Module:
            return nn.GroupNorm(3, cout) if o.norm == "group" else nn.BatchNorm2d(cout)

        def act() -> nn.Module:
            return nn.Identity() if o.bug == "no_activation" else nn.LeakyReLU(0.1) if o.leaky else nn.ReLU()

        layers = []
        for c in (cin, cout):
            layers += [nn.Conv2d(c, cout, 3, padding=1, bias=False), norm(), act()]
        super().__init__(*layers)


class UNet(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        w, channels = o.width, 2 if o.bug == "mask_channel" else 1
        self.bug = o.bug
        self.down1, self.down2 = Double(channels, w, o), Double(w, 2 * w, o)
        self.bottom = Double(2 * w, 2 * w, o)
        self.up2, self.up1 = Double(4 * w, w, o), Double(2 * w, w, o)
        self.out = nn.Conv2d(w, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        up = self.up2(torch.cat([F.interpolate(c, scale_factor=2.0), b], 1))
        up = self.up1(torch.cat([F.interpolate(up, scale_factor=2.0), a], 1))
        logits = self.out(up)
        return torch.sigmoid(logits) if self.bug == "sigmoid_twice" else logits


class BceDice(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o

    def forward(self, logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        prob = logits.sigmoid()
        overlap = 2 * (prob * mask).sum((1, 2, 3)) / ((prob + mask).sum((1, 2, 3)) + 1e-6)
        bce = F.binary_cross_entropy_with_logits(logits, mask, reduction="sum" if self.o.bug == "summed" else "mean")
        if self.o.bug == "dice_not_inverted":  # the coefficient itself instead of one minus it
            return overlap.mean()
        return bce + self.o.dice * (1 - overlap.mean())


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    x, mask = scenes(o.images, tiny=o.bug == "tiny_discs")
    x_valid, mask_valid = scenes(200)
    if o.bug == "masks_shuffled":
        mask = mask[torch.randperm(len(mask))]
    if o.bug == "mask_channel":
        x = torch.cat([x, mask], 1)
        x_valid = torch.cat([x_valid, torch.zeros_like(x_valid)], 1)
    net, criterion = UNet(o), BceDice(o)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d) and o.bug == "negative_beta":
            nn.init.constant_(module.bias, -4.0)
        if isinstance(module, nn.Conv2d) and o.bug == "constant_weights":
            nn.init.constant_(module.weight, 0.01)
    optim = make_optimizer(
        o.optimizer, net.parameters(), o.lr, momentum=o.momentum, nesterov=o.momentum > 0, weight_decay=o.wd
    )
    plan = torch.optim.lr_scheduler.MultiStepLR(optim, o.milestones, gamma=o.gamma)
    run = cockpit_core.track(net, criterion, optim, logdir=logdir)
    net.train()
    if o.bug == "left_in_eval":
        net.eval()
    fixed = torch.arange(o.batch)
    for _ in range(o.steps):
        pick = fixed if o.bug == "same_batch" else torch.randint(0, len(x), (o.batch,))
        if o.bug != "no_zero_grad":
            optim.zero_grad(set_to_none=True)
        loss = criterion(net(x[pick]), mask[pick])
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(net.parameters(), o.clip)
        optim.step()
        plan.step()
    run.close()

    net.eval()
    with torch.no_grad():
        found = net(x_valid) > (0.5 if o.bug == "sigmoid_twice" else 0.0)
    truth = mask_valid > 0.5
    return 1 - ((found & truth).sum() / (found | truth).sum().clamp(min=1)).item()


PROGRAM = Program(
    name="unet",
    half="A",
    train=train,
    settings={
        "width": 6,
        "norm": "batch",
        "leaky": False,
        "dice": 1.0,
        "images": 600,
        "batch": 12,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "wd": 1e-4,
        "milestones": [160, 210],
        "gamma": 0.2,
        "steps": 250,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=20.0),
        mild("learning_rate_too_low", lr=5e-4),
        severe("momentum_too_high", momentum=0.9995),
        severe("clipping_too_hard", clip=1e-4),
        severe("schedule_too_fast", milestones=[2, 4, 6, 8], gamma=0.1),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("eval_mode", bug="left_in_eval"),
        severe("loss_sign", bug="dice_not_inverted"),
        severe("loss_summed", ("loss_summed", "learning_rate_too_high"), bug="summed"),
        severe("batch_repeated", bug="same_batch"),
        severe("labels_random", bug="masks_shuffled"),
        severe("target_in_inputs", bug="mask_channel"),
        severe("double_softmax", ("double_softmax", "output_activation"), bug="sigmoid_twice"),
        severe("dead_units", bug="negative_beta"),
        severe("init_constant", bug="constant_weights"),
        severe("missing_nonlinearity", bug="no_activation"),
        severe("class_imbalance", bug="tiny_discs", dice=0.0),
    ],
    healthy=[
        healthy("lr_03", lr=0.3),
        healthy("lr_003", lr=0.03),
        healthy("adam", optimizer="adam", lr=5e-3),
        healthy("group_norm", norm="group"),
        healthy("batch_8", batch=6, lr=0.05),
        healthy("batch_32", batch=24, lr=0.15, steps=200, milestones=[150]),
        healthy("leaky", leaky=True),
        healthy("no_schedule", milestones=[]),
        healthy("clip_1", clip=1.0),
        healthy("pure_bce", dice=0.0, lr=0.2),
        healthy("dice_heavy", dice=3.0, lr=0.05),
    ],
)
