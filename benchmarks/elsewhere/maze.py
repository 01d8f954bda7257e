"""The way to any goal in a small maze: Q-learning from a buffer of random walks, a target network, Huber written by hand, Adam."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn

import cockpit_core

from .harness import Program, healthy, make_optimizer, mild, severe

PLAN = ["......", ".##.#.", ".#....", "...##.", ".#..#.", "......"]
CELLS = [(r, c) for r, row in enumerate(PLAN) for c, mark in enumerate(row) if mark == "."]
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
INDEX = {cell: n for n, cell in enumerate(CELLS)}
NEXT = torch.tensor([[INDEX.get((r + dr, c + dc), INDEX[r, c]) for dr, dc in MOVES] for r, c in CELLS])
GAMMA, STEP, GOAL = 0.9, -0.05, 1.0


def best_actions() -> torch.Tensor:
    """For every goal, cell and action: is it one of the best? By value iteration; [goal, cell, action]."""
    n = len(CELLS)
    at_goal = torch.eye(n)
    value = torch.zeros(n, n)
    for _ in range(60):
        arrives = at_goal[:, NEXT]
        q = STEP + arrives * GOAL + GAMMA * (1 - arrives) * value[:, NEXT]
        value = q.amax(2)
    return q >= q.amax(2, keepdim=True) - 1e-5


class ReplayBuffer:
    """Transitions of a walker who tries everything."""

    def __init__(self, size: int, o: SimpleNamespace) -> None:
        n = len(CELLS)
        self.cell = torch.randint(0, n, (size,))
        self.goal = (self.cell + torch.randint(1, n, (size,))) % n
        self.action = torch.randint(0, 4, (size,))
        self.after = NEXT[self.cell, self.action]
        self.done = (self.after == self.goal).float()
        self.reward = STEP + self.done * GOAL + o.reward_noise * torch.randn(size)
        if o.bug == "points":
            self.reward = self.reward * 1000 + 3000 * self.done
        if o.wrong:
            hit = torch.rand(size) < o.wrong
            self.after = torch.where(hit, torch.randint(0, n, (size,)), self.after)
            self.reward = torch.where(hit, self.reward[torch.randperm(size)], self.reward)
        if o.bug == "in_order":  # as walked: one goal for a long time
            order = (self.goal * 100 + self.cell).argsort()
            for name, column in list(vars(self).items()):
                setattr(self, name, column[order])


def observe(cell: torch.Tensor, goal: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    """What the network sees: both places, as one of many."""
    n = len(CELLS)
    x = torch.cat([nn.functional.one_hot(cell, n), nn.functional.one_hot(goal, n)], 1).float()
    if o.bug == "goal_not_seen":
        x[:, n:] = 0.0
    if o.bug == "pixels_16":
        x = x * 16
    return x


class QNet(nn.Module):
    def __init__(self, o: SimpleNamespace) -> None:
        super().__init__()
        self.o = o
        act = {"relu": nn.ReLU, "leaky": nn.LeakyReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}[o.act]
        width, layers = 2 * len(CELLS), []
        for _ in range(o.depth):
            layers += [nn.Linear(width, o.width), act()]
            width = o.width
        self.body = nn.Sequential(*layers)
        self.drop = nn.Dropout(o.dropout)
        self.head = nn.Linear(width, 4)
        self.value = nn.Linear(width, 1) if o.dueling else None
        for m in [*layers, self.head]:
            if isinstance(m, nn.Linear):
                if o.gain is not None:
                    m.weight.data.mul_(o.gain)
                if o.bug == "ones":
                    nn.init.constant_(m.weight, 0.02)
                if o.bias is not None and m is not self.head:
                    nn.init.constant_(m.bias, o.bias)
        if o.zero_head:
            nn.init.zeros_(self.head.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.body(x))
        q = self.head(h.detach() if self.o.bug == "features_cut" else h)
        if self.value is not None:
            q = self.value(h) + q - q.mean(1, keepdim=True)
        if self.o.bug == "policy":  # the head of a policy network
            q = q.softmax(1)
        return q


def huber(difference: torch.Tensor, delta: float) -> torch.Tensor:
    size = difference.abs()
    return torch.where(size < delta, 0.5 * size**2, delta * (size - 0.5 * delta))


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    buffer = ReplayBuffer(o.buffer, o)
    policy = QNet(o)
    target = copy.deepcopy(policy)
    parameters = policy.head.parameters() if o.bug == "head_only" else policy.parameters()
    if o.bug == "targets_parameters":  # the body was to be shared
        parameters = [*target.body.parameters(), *policy.head.parameters()]
    optimizer = make_optimizer(o.optimizer, parameters, o.lr, weight_decay=o.wd, eps=o.eps, momentum=o.momentum)
    if o.bug == "policy_reset":
        policy.body = QNet(o).body
    run = cockpit_core.track(policy, optimizer=optimizer, logdir=logdir)

    for step in range(o.steps):
        lr = o.lr * o.decay**step
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / o.warmup)
        index = torch.randint(0, o.buffer, (o.batch,))
        if o.bug == "in_order":
            index = (torch.arange(o.batch) + step * o.batch) % o.buffer
        if o.bug == "newest_only":
            index = torch.arange(o.buffer - o.batch, o.buffer)
        goal, action = buffer.goal[index], buffer.action[index]
        reward, done = buffer.reward[index], buffer.done[index]

        q = policy(observe(buffer.cell[index], goal, o))
        chosen = q.gather(1, action[:, None])
        if o.bug == "first_column":
            chosen = q[:, :1]
        with torch.no_grad():
            ahead_states = observe(buffer.after[index], goal, o)
            later = target(ahead_states)
            if o.double:
                later = later.gather(1, policy(ahead_states).argmax(1, keepdim=True)).squeeze(1)
            else:
                later = later.amax(0 if o.bug == "max_over_batch" else 1)
                later = later.mean().expand(len(index)) if o.bug == "max_over_batch" else later
            wanted = reward + GAMMA * (1 - done) * later
        if o.bug != "column_minus_row":
            chosen = chosen.squeeze(1)
        error = chosen - wanted
        if o.bug == "relative":  # in percent of what was wanted
            error = error / (reward - STEP)
        loss = huber(error, delta=1.0) if o.loss == "huber" else error**2
        loss = loss.mean()
        if o.bug == "ascent":
            loss = -loss
        if o.bug != "no_zero_grad":
            optimizer.zero_grad()
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(policy.parameters(), o.clip)
        optimizer.step()
        if o.bug == "target_never":
            continue
        if o.tau:
            for slow, fast in zip(target.parameters(), policy.parameters(), strict=True):
                slow.data.lerp_(fast.data, o.tau)
        elif step % o.update == 0:
            target.load_state_dict(policy.state_dict())
    run.close()

    policy.eval()
    n = len(CELLS)
    goals, cells = torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)
    with torch.no_grad():
        q = policy(observe(cells, goals, o))
    if not torch.isfinite(q).all():
        return float("inf")
    best = best_actions().view(-1, 4)
    other = goals != cells
    right = best.gather(1, q.argmax(1, keepdim=True)).squeeze(1)[other].float().mean()
    return ((1 - right) / (1 - best[other].float().mean())).item()


PROGRAM = Program(
    name="maze",
    half="E",
    train=train,
    settings={
        "width": 192,
        "depth": 2,
        "act": "relu",
        "dropout": 0.0,
        "dueling": False,
        "double": False,
        "gain": None,
        "bias": None,
        "zero_head": False,
        "buffer": 20_000,
        "reward_noise": 0.0,
        "wrong": 0.0,
        "batch": 128,
        "loss": "huber",
        "optimizer": "adam",
        "lr": 4e-3,
        "momentum": 0.9,
        "wd": 0.0,
        "eps": 1e-8,
        "warmup": 1,
        "decay": 0.998,
        "update": 20,
        "tau": None,
        "clip": None,
        "steps": 900,
    },
    faults=[
        severe("learning_rate_too_high", lr=0.4),
        mild("learning_rate_too_high", lr=0.02, decay=1.0),
        mild("learning_rate_too_low", lr=8e-4),
        mild("schedule_too_fast", decay=0.99),
        mild("weight_decay_too_high", wd=1.5e-4),
        mild("batch_too_small", batch=16),
        severe("gradients_not_zeroed", bug="no_zero_grad"),
        severe("parameters_not_optimized", bug="head_only"),
        severe(
            "optimizer_holds_others",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="policy_reset",
        ),
        severe(
            "target_net_in_the_optimizer",
            ("optimizer_holds_others", "parameters_not_optimized", "nothing_moves"),
            bug="targets_parameters",
        ),
        severe("graph_detached", bug="features_cut"),
        severe("batch_repeated", bug="newest_only"),
        severe("data_not_shuffled", bug="in_order"),
        mild("inputs_not_scaled", bug="pixels_16"),
        severe("targets_not_scaled", bug="points"),
        mild("label_noise", wrong=0.1),
        severe("loss_sign", bug="ascent"),
        severe("loss_broadcast", bug="column_minus_row"),
        severe(
            "first_action_for_all", ("labels_random", "not_learning", "parameters_not_optimized"), bug="first_column"
        ),
        severe("max_over_the_batch", "not_learning", bug="max_over_batch"),
        severe("target_net_never_updated", "not_learning", bug="target_never"),
        severe("output_activation", ("output_activation", "double_softmax"), bug="policy"),
        severe("dead_units", bias=-2.0),
        severe("init_constant", bug="ones"),
        mild("init_too_large", gain=4.0),
        mild("missing_nonlinearity", act="none"),
        mild("dropout_too_high", dropout=0.7),
        severe("constant_feature", bug="goal_not_seen"),
        mild("adam_eps_too_large", eps=1e-3),
        severe("not_finite", bug="relative"),
    ],
    healthy=[
        healthy("double", double=True),
        healthy("dueling", dueling=True),
        healthy("soft_target", tau=0.05),
        healthy("squared", loss="mse"),
        healthy("clip_10", clip=10.0),
        healthy("constant_rate", lr=2e-3, decay=1.0, steps=1000),
        healthy("adamw", optimizer="adamw", wd=1e-3),
        healthy("noisy_rewards", reward_noise=0.03),
        healthy("leaky", act="leaky"),
        healthy("batch_256", batch=256),
        healthy("three_layers", depth=3, lr=2.5e-3),
        healthy("zero_head", zero_head=True),
        healthy("wide_batch_64", width=256, batch=64),
        healthy("batch_512", batch=512, steps=600, decay=0.997),
        healthy("warmup_constant", warmup=50, decay=1.0, lr=2e-3, steps=1000),
        healthy("update_40", update=40, steps=1000),
    ],
)
