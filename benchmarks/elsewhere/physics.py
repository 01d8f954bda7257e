"""A damped oscillator learnt from its equation: second derivatives inside the loss, no data but the start,
nothing shuffled, loss parts logged."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

DAMPING, STIFFNESS = 0.5, 9.0  # u'' + 2 * 0.5 u' + 9 u = 0, u(0) = 1, u'(0) = 0, for times 0 to 2
END = 2.0


def solution(t: torch.Tensor) -> torch.Tensor:
    w = math.sqrt(STIFFNESS - DAMPING**2)
    return torch.exp(-DAMPING * t) * (torch.cos(w * t) + DAMPING / w * torch.sin(w * t))


class Field(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        act = {
            "tanh": nn.Tanh,
            "softplus": nn.Softplus,
            "silu": nn.SiLU,
            "relu": nn.ReLU,
            "sigmoid": nn.Sigmoid,
            "none": nn.Identity,
        }[o.activation]
        sizes = [1] + [o.width] * o.depth
        hidden = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), act())]
        self.net = nn.Sequential(*hidden, nn.Linear(o.width, 1))
        if o.init is not None:
            for m in self.net:
                if isinstance(m, nn.Linear):
                    nn.init.normal_(m.weight, std=o.init) if o.init > 0 else nn.init.constant_(m.weight, 0.1)

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        out = self.net(t * self.o.input_scale - (1.0 if self.o.centred else 0.0))
        return torch.relu(out) if self.o.bug == "positive" else out


def slope(u: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(u.sum(), t, create_graph=True)[0]


def losses(field: Field, t: torch.Tensor, o: SimpleNamespace) -> tuple[torch.Tensor, torch.Tensor]:
    """How badly the equation holds at the given times, and how badly the start is met."""
    t = t.requires_grad_(True)
    u = field(t)
    du = slope(u, t)
    if o.bug == "slope_detached":
        du = du.detach()
    ddu = slope(du, t) if du.requires_grad else torch.zeros_like(u)
    force = STIFFNESS * u
    residual = ddu + 2 * DAMPING * du + (force.squeeze(-1) if o.bug == "residual_broadcast" else force)
    zero = torch.zeros(1, 1, requires_grad=True)
    start = field(zero)
    start_loss = (start - 1) ** 2 + 0.1 * slope(start, zero) ** 2
    return (residual**2).mean(), start_loss.sum()


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    field = Field(o)
    params = [field.net[-1].weight, field.net[-1].bias] if o.bug == "last_layer_only" else list(field.parameters())
    optimizer = make_optimizer(o.optimizer, params, o.lr, weight_decay=o.wd, eps=o.eps, betas=o.betas, momentum=0.9)
    if o.bug == "model_rebuilt":
        field = Field(o)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    run = cockpit_core.track(field, optimizer=optimizer, logdir=logdir)
    fixed = torch.rand(o.points, 1) * (0.1 if o.bug == "one_corner" else END)
    for step in range(o.steps):
        optimizer.zero_grad()
        t = fixed if o.bug == "one_corner" or o.grid else torch.rand(o.points, 1) * END
        equation, start = losses(field, t.clone(), o)
        loss = o.equation_weight * equation + start
        if o.bug == "start_sign":
            loss = o.equation_weight * equation - start
        if o.bug == "log_of_loss":  # "flattens the scale": not a number once a part is zero
            loss = torch.log(equation - 1e-1) + start
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(field.parameters(), o.clip)
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            run.log(equation=equation.item(), start=start.item())
    run.close()
    with torch.no_grad():
        t = torch.linspace(0, END, 200)[:, None]
        truth = solution(t)
        return ((field(t) - truth) ** 2).mean().item() / (truth**2).mean().item()


PROGRAM = Program(
    name="physics",
    half="B",
    train=train,
    settings={
        "width": 32,
        "depth": 2,
        "activation": "tanh",
        "init": None,
        "input_scale": 1.0,
        "centred": True,
        "points": 48,
        "grid": False,
        "equation_weight": 0.02,
        "optimizer": "adam",
        "lr": 8e-3,
        "wd": 0.0,
        "eps": 1e-8,
        "betas": (0.9, 0.999),
        "gamma": 0.997,
        "steps": 700,
        "clip": None,
    },
    faults=[
        severe("learning_rate_too_high", lr=1.0),
        mild("learning_rate_too_low", lr=2e-4),
        severe("inputs_not_scaled", input_scale=1000.0, centred=False),
        severe("output_activation", ("output_activation", "dead_units"), bug="positive"),
        severe("missing_nonlinearity", activation="none"),
        severe("loss_broadcast", bug="residual_broadcast"),
        severe("loss_sign", bug="start_sign"),
        severe("not_finite", bug="log_of_loss"),
        severe("graph_detached", bug="slope_detached"),
        severe("parameters_not_optimized", bug="last_layer_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="model_rebuilt",
        ),
        severe("batch_repeated", bug="one_corner"),
        severe("init_constant", init=-1.0),
        severe("init_too_large", ("init_too_large", "saturated_units"), init=20.0),
        severe("vanishing_gradients", activation="sigmoid", depth=8),
        severe("adam_eps_too_large", eps=10.0),
        severe("weight_decay_too_high", optimizer="adamw", wd=10.0),
    ],
    healthy=[
        healthy("lr_5e-3", lr=5e-3),
        healthy("lr_12e-3", lr=1.2e-2),
        healthy("silu", activation="silu"),
        healthy("three_layers", depth=3, lr=5e-3),
        healthy("fixed_grid", grid=True, points=64),
        healthy("points_16", points=16, lr=6e-3),
        healthy("points_128", points=128, steps=600),
        healthy("nadam", optimizer="nadam", lr=6e-3),
        healthy("flat", gamma=1.0, lr=5e-3),
        healthy("clip_1", clip=1.0),
        healthy("wider", width=64, lr=5e-3),
    ],
)
