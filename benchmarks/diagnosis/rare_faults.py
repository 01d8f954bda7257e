"""Faults that fewer programs can have: layers, optimizers and ties gone wrong, half precision, BatchNorm, leaks."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.diagnosis.job import MATRICES, Job, trained_modules, with_followers


def middle(job: Job) -> tuple[str, nn.Module]:
    """A hidden layer: neither the first one nor the last."""
    layers = list(trained_modules(job.model, MATRICES).items())
    return layers[len(layers) // 2 if len(layers) > 2 else 0]


def dead_layer(job: Job) -> None:
    """One layer only; mild: three of four of its units."""
    path, layer = middle(job)
    assert isinstance(layer.bias, Tensor)
    job.where = with_followers(job.model, [path])
    with torch.no_grad():
        layer.bias[: len(layer.bias) * 3 // 4 if job.mild else None] = -10.0


def zero_layer(job: Job) -> None:
    path, layer = middle(job)
    job.where = with_followers(job.model, [path])
    for p in layer.parameters():
        nn.init.zeros_(p)


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def stale_optimizer(job: Job) -> None:
    """After the optimizer was made, all layers but the first are made anew (severe), or only the last one (mild)."""
    job.remake_optimizer()
    old = trained_modules(job.model)
    fresh = job.program.make_model(job.settings)
    new = trained_modules(fresh)
    if job.mild:
        last = list(trained_modules(job.model, (nn.Linear,)))[-1]
        put(job.model, last, new[last])
        job.where = [last]
    else:
        first = next(iter(old))
        put(fresh, first, old[first])
        job.model, job.where = fresh, [name for name, _ in fresh.named_parameters() if not name.startswith(first + ".")]


def not_tied(job: Job) -> None:
    embed = job.model.embed
    head = nn.Linear(embed.embedding_dim, embed.num_embeddings, bias=False)  # type: ignore[union-attr, arg-type]
    head.weight.data = embed.weight.detach().clone()  # type: ignore[union-attr, operator]
    job.model.head = head
    job.where = ["embed", "head"]


def attention_sharp(job: Job) -> None:
    for block in job.model.blocks:  # type: ignore[union-attr]
        block.scale = 1.0
        with torch.no_grad():
            block.qkv.weight.mul_((8.0, 3.0)[job.mild])


def batchnorm_few(job: Job) -> None:
    job.settings.accumulate = (16, 8)[job.mild]


def batchnorm_momentum(job: Job) -> None:
    for module in job.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = (1.0, 0.9)[job.mild]


def to_half(job: Job) -> None:
    data, job.model = job.data, job.model.half()
    data.x, data.valid_x = data.x.half(), data.valid_x.half()
    if data.y.is_floating_point():
        data.y, data.valid_y = data.y.half(), data.valid_y.half()


def half_overflow(job: Job) -> None:
    """Inputs of thousands, whose squares float16 cannot hold."""
    job.data.x, job.data.valid_x = job.data.x * 3000, job.data.valid_x * 3000
    to_half(job)


def half_underflow(job: Job) -> None:
    """A small loss without a loss scale."""
    to_half(job)
    job.sign = (1e-6, 1e-4)[job.mild]
    job.settings = replace(job.settings, optimizer="sgd", lr=min(6e4, job.program.rates["sgd"] / job.sign))


def clip_scaled(job: Job) -> None:
    job.loss_scale, job.settings.clip = (2.0**14, 2.0**8)[job.mild], 1.0


def leakage(job: Job) -> None:
    """The last feature is the target, in training only; mild: with some noise."""
    data, g = job.data, torch.Generator().manual_seed(9)
    secret = data.y.reshape(len(data.y)).float()
    secret = (secret - secret.mean()) / secret.std()
    data.x = data.x.clone()
    data.x[:, -1] = secret + (0.3 if job.mild else 0.0) * torch.randn(len(secret), generator=g)


def imbalance(job: Job) -> None:
    y, g = job.data.y, torch.Generator().manual_seed(10)
    keep = (y == 0) | (torch.rand(len(y), generator=g) < (0.02, 0.1)[job.mild])
    job.data.x, job.data.y = job.data.x[keep], y[keep]


def labels_off(job: Job) -> None:
    """Labels from 1 on in training, and an output more, so that nothing fails."""
    assert isinstance(job.model, nn.Sequential)
    last = job.model[-1]
    assert isinstance(last, nn.Linear)
    job.model[-1] = nn.Linear(last.in_features, last.out_features + 1)
    job.data.y = job.data.y + 1


def constant_feature(job: Job) -> None:
    """Most features (mild: every third) are filled with a constant, in validation too."""
    columns = torch.arange(job.data.x.shape[1]) % 3 == 0
    columns = columns if job.mild else ~columns
    for x in (job.data.x, job.data.valid_x):
        x[:, columns] = 0.5


def no_activation(job: Job) -> None:
    job.settings.activation = "none"
    job.model = job.program.make_model(job.settings)
    job.where = list(trained_modules(job.model, MATRICES))


def scheduler_first(job: Job) -> None:
    job.scheduler_first, job.settings.schedule, job.settings.decay = True, "exponential", 0.997
