"""Which of six subjects a paper belongs to: a graph of citations, noisy word counts, a two-layer graph convolution. The
whole graph at once, 120 labelled nodes, dropout, Adam with weight decay. After every tenth epoch the loss and accuracy on
the validation nodes are logged. Written top to bottom, like a notebook."""

from __future__ import annotations

import copy
import itertools
import math
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import cockpit_core

from .harness import Program, corrupt, healthy, make_optimizer, mild, severe

NODES, WORDS, K = 500, 48, 6


def make_graph(seed: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Adjacency, word counts, subjects. Papers cite mostly their own subject, and use its words a little more often."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, K, (NODES,), generator=g)
    same = y[:, None] == y[None]
    chance = torch.where(same, 0.036, 0.0042)
    adj = (torch.rand(NODES, NODES, generator=g) < chance).float().triu(1)
    adj = adj + adj.t()
    topics = torch.rand(K, WORDS, generator=g).pow(3) * 1.2
    common = torch.rand(WORDS, generator=g).pow(2) * 3
    length = torch.exp(0.4 * torch.randn(NODES, 1, generator=g))
    counts = torch.poisson(length * (common + 1.4 * topics[y]), generator=g)
    return adj, counts, y


def normalise(adj: torch.Tensor, o: SimpleNamespace) -> torch.Tensor:
    if o.bug == "self_loops_forgotten":
        adj = adj.clone()
        adj[::50] = 0  # papers that cite nothing
        adj[:, ::50] = 0
        inverse = adj.sum(1).pow(-0.5)
        return inverse[:, None] * adj * inverse[None]
    adj = adj + torch.eye(len(adj))
    degree = adj.sum(1)
    if o.adjacency == "row":
        return adj / degree[:, None]
    return degree.pow(-0.5)[:, None] * adj * degree.pow(-0.5)[None]


class GraphConv(nn.Module):
    def __init__(self, n_in: int, n_out: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_out))
        bound = 1 / math.sqrt(n_out)
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x, adj):
        return adj @ (x @ self.weight) + self.bias


class GCN(nn.Module):
    def __init__(self, n_in: int, n_out: int, o: SimpleNamespace):
        super().__init__()
        self.o = o
        sizes = [n_in] + [o.hidden] * (o.layers - 1) + [n_out]
        self.convs = nn.ModuleList([GraphConv(a, b) for a, b in itertools.pairwise(sizes)])
        self.norms = nn.ModuleList([nn.LayerNorm(n) if o.layernorm else nn.Identity() for n in sizes[1:-1]])
        self.act = {"relu": F.relu, "elu": F.elu, "tanh": torch.tanh, "gelu": F.gelu, "sigmoid": torch.sigmoid}[o.act]

    def forward(self, x, adj):
        o = self.o
        for n, conv in enumerate(self.convs):
            x = F.dropout(x, o.dropout, self.training)
            before = x
            x = conv(x, adj)
            if n == len(self.convs) - 1:
                break
            x = self.act(self.norms[n](x))
            if o.skip and before.shape == x.shape:
                x = x + before
            if o.bug == "embedding_saved":
                self.embedding = x = x.detach()
        if o.bug == "relu_after_every_layer":
            x = F.relu(x)
        if o.bug == "softmax_in_forward":
            x = F.softmax(x, dim=1)
        return x


def train(o: SimpleNamespace, seed: int, logdir: str) -> float:
    adj, x, y = make_graph()
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(6))
    valid = order[250:]
    train_nodes = torch.cat([order[:250][y[order[:250]] == k][: o.per_class] for k in range(K)])
    if o.bug == "mask_of_one_subject":  # 115 of one and a single one of the others
        train_nodes = torch.cat([order[:250][y[order[:250]] == k][: 60 if k == 0 else 1] for k in range(K)])

    # features
    if o.scaling == "rows":
        x = x / x.sum(1, keepdim=True).clamp(min=1) * 10
    elif o.scaling == "standard":
        x = (x - x.mean(0)) / x.std(0)
    if o.bug == "identifier_left_in":  # the paper's number is the first column
        x = torch.cat([1e6 + 37.0 * torch.arange(NODES)[:, None], x], 1)
    if o.bug == "years_and_pages":  # a page count is stored as 99999 where unknown
        x[torch.rand(NODES) < 0.08, :4] = 99999.0
    if o.bug == "most_words_lost":
        x[:, torch.randperm(WORDS, generator=torch.Generator().manual_seed(7))[: WORDS * 3 // 4]] = 0
    if o.bug == "word_major":  # the file has one row per word
        x = x.t().reshape(NODES, WORDS)
    if o.bug == "subject_as_word":  # one-hot subjects of all labelled papers
        hint = torch.zeros(NODES, K)
        hint[train_nodes, y[train_nodes]] = 10.0
        x = torch.cat([x, hint], 1)

    # labels
    labels = y.clone()
    labels[train_nodes] = corrupt(y[train_nodes], o.mislabelled, K)
    if o.bug == "ids_sorted_as_text":
        labels = y[torch.tensor(sorted(range(NODES), key=str))]
    if o.bug == "subjects_from_one":
        labels = labels + 1

    a_hat = normalise(adj, o)

    # model
    model = GCN(x.shape[1], K + (o.bug == "subjects_from_one"), o)
    for conv in model.convs:
        if o.init == "glorot":
            nn.init.xavier_uniform_(conv.weight)
        elif o.init == "constant":
            nn.init.constant_(conv.weight, 0.05)
        elif o.init is not None:
            nn.init.normal_(conv.weight, std=o.init)
    if o.bias:
        nn.init.constant_(model.convs[0].bias, o.bias)
    if o.zero_last:
        nn.init.zeros_(model.convs[-1].weight)
    params = list(model.parameters())
    if o.frozen:
        model.convs[0].requires_grad_(False)
        params = [p for p in params if p.requires_grad]
    if o.bug == "last_conv_only":
        params = list(model.convs[-1].parameters())
    optimizer = make_optimizer(
        o.optimizer, params, o.lr, weight_decay=o.decay, betas=(o.beta1, 0.999), eps=o.eps, momentum=o.momentum
    )
    if o.bug == "model_made_again":
        model = copy.deepcopy(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=o.smoothing)
    scheduler = None
    if o.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, o.epochs)
    elif o.schedule == "exp":
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, o.gamma)
    elif o.schedule == "step":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, o.epochs // 3, 0.3)

    run = cockpit_core.track(model, criterion, optimizer, logdir=logdir)

    for epoch in range(o.epochs):
        model.train()
        if o.bug != "zero_grad_missing":
            optimizer.zero_grad()
        nodes = train_nodes
        if o.batch:
            nodes = train_nodes[torch.randperm(len(train_nodes))[: o.batch]]
        out = model(x, a_hat)
        if o.bug == "log_softmax_dim_0":
            loss = F.nll_loss(F.log_softmax(out[nodes], dim=0), labels[nodes])
        else:
            loss = criterion(out[nodes], labels[nodes])
        if o.bug == "reward":
            loss = -loss
        loss.backward()
        if o.clip:
            nn.utils.clip_grad_norm_(model.parameters(), o.clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        if epoch % 10 == 9:
            model.eval()
            with torch.no_grad():
                out = model(x, a_hat)
                run.log(
                    valid_loss=F.cross_entropy(out[valid], y[valid]).item(),
                    valid_accuracy=(out[valid].argmax(1) == y[valid]).float().mean().item(),
                )
    run.close()

    model.eval()
    with torch.no_grad():
        out = model(x, a_hat)[valid]
    if not torch.isfinite(out).all():
        return math.inf
    return (out.argmax(1) != y[valid]).float().mean().item() / (1 - 1 / K)


PROGRAM = Program(
    name="citations",
    half="J",
    train=train,
    settings={
        "per_class": 20,
        "scaling": "rows",
        "mislabelled": 0.0,
        "adjacency": "symmetric",
        "hidden": 24,
        "layers": 2,
        "act": "relu",
        "layernorm": False,
        "skip": False,
        "dropout": 0.5,
        "init": "glorot",
        "bias": 0.0,
        "zero_last": False,
        "frozen": False,
        "batch": None,
        "optimizer": "adam",
        "lr": 0.01,
        "beta1": 0.9,
        "momentum": 0.9,
        "eps": 1e-8,
        "decay": 5e-4,
        "schedule": None,
        "gamma": 1.0,
        "clip": None,
        "smoothing": 0.0,
        "epochs": 300,
    },
    faults=[
        severe("learning_rate_too_high", lr=3.0),
        mild("learning_rate_too_high", lr=0.12),
        mild("learning_rate_too_low", lr=3e-4),
        severe("schedule_too_fast", schedule="exp", gamma=0.8),
        severe("clipping_too_hard", optimizer="sgd", lr=0.1, clip=0.003),
        severe("weight_decay_too_high", decay=0.1),
        severe("momentum_too_high", optimizer="sgd", lr=0.3, momentum=0.999),
        severe("gradients_not_zeroed", bug="zero_grad_missing"),
        mild("parameters_not_optimized", bug="last_conv_only"),
        severe("optimizer_holds_others", ("optimizer_holds_others", "nothing_moves"), bug="model_made_again"),
        mild("graph_detached", ("graph_detached", "parameters_not_optimized"), bug="embedding_saved"),
        severe("inputs_not_scaled", ("inputs_not_scaled", "input_outliers"), bug="identifier_left_in"),
        severe("input_outliers", bug="years_and_pages"),
        severe("labels_random", bug="ids_sorted_as_text"),
        mild("label_noise", mislabelled=0.5),
        severe("labels_off_by_one", ("labels_off_by_one", "labels_random"), bug="subjects_from_one"),
        severe("loss_sign", bug="reward"),
        mild(
            "double_softmax", ("double_softmax", "output_activation"), bug="softmax_in_forward", optimizer="sgd", lr=0.3
        ),
        mild("softmax_over_batch", bug="log_softmax_dim_0"),
        mild("output_activation", ("output_activation", "dead_units"), bug="relu_after_every_layer"),
        severe("dead_units", bias=-6.0),
        severe("init_constant", init="constant", dropout=0.0),
        severe("vanishing_gradients", ("vanishing_gradients", "saturated_units"), act="sigmoid", layers=6),
        severe("dropout_too_high", dropout=0.97),
        severe("not_finite", bug="self_loops_forgotten"),
        mild("target_in_inputs", bug="subject_as_word"),
        severe("samples_mixed", ("samples_mixed", "labels_random"), bug="word_major"),
        severe("class_imbalance", bug="mask_of_one_subject"),
        mild("constant_feature", bug="most_words_lost"),
        mild("overfitting", per_class=2),
    ],
    healthy=[
        healthy("rate_third", lr=0.004),
        healthy("rate_triple", lr=0.03),
        healthy("adamw", optimizer="adamw", decay=0.05),
        healthy("rmsprop", optimizer="rmsprop", lr=0.005, momentum=0.0),
        healthy("nadam", optimizer="nadam", lr=0.01),
        healthy("sgd_momentum", optimizer="sgd", lr=0.3),
        healthy("cosine", schedule="cosine", lr=0.02),
        healthy("step_decay", schedule="step", lr=0.02),
        healthy("longer", epochs=450),
        healthy("less_dropout", dropout=0.2),
        healthy("more_dropout", dropout=0.6),
        healthy("no_weight_decay", decay=0.0),
        healthy("narrow", hidden=16),
        healthy("wide", hidden=64),
        healthy("residual", layers=3, skip=True),
        healthy("elu", act="elu"),
        healthy("tanh", act="tanh"),
        healthy("layernorm", layernorm=True),
        healthy("row_normalised", adjacency="row"),
        healthy("standard_features", scaling="standard"),
        healthy("kipf_init", init=None),
        healthy("zero_last", zero_last=True),
        healthy("smoothed", smoothing=0.1),
        healthy("minibatches", batch=60),
        healthy("clipped", clip=1.0),
    ],
)
