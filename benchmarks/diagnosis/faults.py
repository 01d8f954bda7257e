"""Faults as transformations of a program: of its settings, its model, its data, or its loop. Severe and mild."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.diagnosis import rare_faults as rare
from benchmarks.diagnosis.job import MATRICES, TRAINED, Job, trained_modules, with_followers
from benchmarks.diagnosis.programs import Program, make_optimizer

Fault = Callable[[Job], None]
ADAPTIVE = ("adam", "adamw", "rmsprop", "adagrad")


def change(**by: tuple[float, float]) -> Fault:
    """Set settings to (severe, mild)."""

    def apply(job: Job) -> None:
        job.settings = replace(job.settings, **{name: pair[job.mild] for name, pair in by.items()})  # type: ignore[arg-type]

    return apply


def lr_high(job: Job) -> None:
    factor = (40, 10) if job.settings.optimizer in ADAPTIVE else (25, 6)
    job.settings.lr *= factor[job.mild]


def lr_low(job: Job) -> None:
    job.settings.lr /= (300, 30)[job.mild]


def schedule_fast(job: Job) -> None:
    job.settings.schedule, job.settings.decay = "exponential", (0.95, 0.98)[job.mild]


def decay_high(job: Job) -> None:
    job.settings.weight_decay = (
        (0.03, 0.006)[job.mild] / job.settings.lr if job.settings.optimizer == "adamw" else (0.3, 0.06)[job.mild]
    )


def batch_small(job: Job) -> None:
    job.settings.batch = (2, 4)[job.mild]


def momentum_high(job: Job) -> None:
    job.settings.optimizer = "momentum" if job.settings.optimizer == "sgd" else job.settings.optimizer
    job.settings.momentum = (0.999, 0.99)[job.mild]


def not_zeroed(job: Job) -> None:
    job.zero_grad = False


def not_optimized(job: Job) -> None:
    """Only the last layer (severe), or all but the first two tensors (mild)."""
    named = list(job.model.named_parameters())
    kept = named[2:] if job.mild else named[-2:]
    job.where = [name for name, _ in named if name not in dict(kept)]
    job.optimizer = make_optimizer(job.settings.optimizer, [p for _, p in kept], job.settings)


def detached(job: Job) -> None:
    """Behind the middle layer that is called (severe), or behind the first (mild)."""
    layers = trained_modules(job.model)
    place = 0 if job.mild else max(0, len(layers) // 2 - 1)
    path, chosen = list(layers.items())[place]
    modules = [name for name, _ in job.model.named_modules()]
    job.where = [name for name in modules[: modules.index(path) + 1] if name]
    chosen.register_forward_hook(lambda module, args, output: cut(output))


def cut(output: object) -> object:
    if isinstance(output, tuple):
        return tuple(cut(part) for part in output)
    return output.detach() if isinstance(output, Tensor) else output


def same_batch(job: Job) -> None:
    job.same_batch = True


def sorted_data(job: Job) -> None:
    """By label, or by the target's mean."""
    data = job.data
    order = data.y.reshape(len(data.y), -1).float().mean(1).argsort()
    data.x, data.y = data.x[order], data.y[order]
    job.shuffle = False
    if job.mild:  # a tenth of the data out of order
        stray = torch.randperm(len(order), generator=torch.Generator().manual_seed(0))[: len(order) // 4]
        data.x[stray], data.y[stray] = data.x[stray.flip(0)].clone(), data.y[stray.flip(0)].clone()


def raw_inputs(job: Job) -> None:
    factor = (255.0, 16.0)[job.mild]
    job.data.x, job.data.valid_x = job.data.x * factor, job.data.valid_x * factor


def outliers(job: Job) -> None:
    share, factor = ((0.03, 60.0), (0.01, 15.0))[job.mild]
    hit = torch.rand(len(job.data.x), generator=torch.Generator().manual_seed(1)) < share
    job.data.x = job.data.x.clone()
    job.data.x[hit] *= factor


def targets_raw(job: Job) -> None:
    scale, shift = ((1000.0, 3000.0), (30.0, 100.0))[job.mild]
    data = job.data
    data.y, data.valid_y = data.y * scale + shift, data.valid_y * scale + shift


def labels_random(job: Job) -> None:
    order = torch.randperm(len(job.data.y), generator=torch.Generator().manual_seed(2))
    job.data.y = job.data.y[order]


def label_noise(job: Job) -> None:
    hit = torch.rand(len(job.data.y), generator=torch.Generator().manual_seed(3)) < (0.4, 0.25)[job.mild]
    wrong = job.data.y[torch.randperm(len(job.data.y), generator=torch.Generator().manual_seed(4))]
    job.data.y = torch.where(hit.reshape(-1, *[1] * (job.data.y.dim() - 1)), wrong, job.data.y)


def wrong_sign(job: Job) -> None:
    job.sign = -1.0


def summed(job: Job) -> None:
    job.loss.reduction = "sum"


def double_softmax(job: Job) -> None:
    job.output = lambda z: z.softmax(1)


def softmax_over_batch(job: Job) -> None:
    job.output = lambda z: z.softmax(0)


def broadcast(job: Job) -> None:
    job.data.y, job.data.valid_y = job.data.y[:, 0], job.data.valid_y[:, 0]


def dead_units(job: Job) -> None:
    biased = [(path, m) for path, m in trained_modules(job.model, MATRICES).items() if m.bias is not None][:-1]
    job.where = with_followers(job.model, [path for path, _ in biased])
    for _, module in biased:
        nn.init.constant_(module.bias, (-4.0, -1.0)[job.mild])  # type: ignore[arg-type]


def scale_weights(factor: Callable[[Job], float]) -> Fault:
    def apply(job: Job) -> None:
        with torch.no_grad():
            for module in job.model.modules():
                if isinstance(module, TRAINED):
                    for p in module.parameters():
                        p.mul_(factor(job))

    return apply


def sigmoid_deep(job: Job) -> None:
    job.settings.activation, job.settings.depth = "sigmoid", (6, 3)[job.mild]
    job.model = job.program.make_model(job.settings)
    layers = list(trained_modules(job.model))
    job.where = layers[: (len(layers) + 1) // 2]


def dropout_high(job: Job) -> None:
    job.settings.dropout = (0.97, 0.85)[job.mild]
    job.model = job.program.make_model(job.settings)


def eval_mode(job: Job) -> None:
    job.settings.dropout = max(job.settings.dropout, 0.2)
    job.model = job.program.make_model(job.settings)
    job.eval_mode = True


def not_divided(job: Job) -> None:
    job.settings.accumulate, job.divide = (16, 4)[job.mild], False


def eps_high(job: Job) -> None:
    job.remake_optimizer()
    assert job.optimizer is not None
    for group in job.optimizer.param_groups:
        group["eps"] = (0.1, 0.01)[job.mild]


def not_shifted(job: Job) -> None:
    job.data.y = job.data.x.clone()


ANY = ("classes", "values", "tokens", "reconstruction")
FLOAT = ("classes", "values", "reconstruction")
FAULTS: dict[str, tuple[Fault, tuple[str, ...], tuple[str, ...]]] = {
    # name: what to do, kinds of programs it fits, diagnoses that name it (equivalent causes)
    "lr_high": (lr_high, ANY, ("learning_rate_too_high",)),
    "lr_low": (lr_low, ANY, ("learning_rate_too_low",)),
    "schedule_fast": (schedule_fast, ANY, ("schedule_too_fast", "learning_rate_too_low")),
    "clip_hard": (change(clip=(1e-3, 0.03)), ANY, ("clipping_too_hard", "learning_rate_too_low")),
    "decay_high": (decay_high, ANY, ("weight_decay_too_high",)),
    "batch_small": (batch_small, ANY, ("batch_too_small", "learning_rate_too_high", "batchnorm_few_samples")),
    "momentum_high": (momentum_high, ANY, ("momentum_too_high", "learning_rate_too_high")),
    "not_zeroed": (not_zeroed, ANY, ("gradients_not_zeroed",)),
    "not_optimized": (not_optimized, ANY, ("parameters_not_optimized", "optimizer_holds_others")),
    "detached": (detached, ANY, ("graph_detached",)),
    "same_batch": (same_batch, ANY, ("batch_repeated",)),
    "sorted": (sorted_data, ("classes", "values"), ("data_not_shuffled",)),
    "inputs_raw": (raw_inputs, FLOAT, ("inputs_not_scaled",)),
    "outliers": (outliers, FLOAT, ("input_outliers",)),
    "targets_raw": (targets_raw, ("values",), ("targets_not_scaled",)),
    "labels_random": (labels_random, ("classes", "values", "tokens"), ("labels_random",)),
    "label_noise": (label_noise, ("classes", "values"), ("label_noise", "labels_random")),
    "wrong_sign": (wrong_sign, ANY, ("loss_sign",)),
    "summed": (summed, ANY, ("loss_summed", "learning_rate_too_high")),
    "double_softmax": (double_softmax, ("classes", "tokens"), ("double_softmax",)),
    "softmax_over_batch": (softmax_over_batch, ("classes",), ("softmax_over_batch",)),
    "broadcast": (broadcast, ("values",), ("loss_broadcast",)),
    "dead_units": (dead_units, ANY, ("dead_units",)),
    "init_zero": (scale_weights(lambda job: 0.0), ANY, ("init_constant",)),
    "init_large": (scale_weights(lambda job: (8.0, 3.0)[job.mild]), ANY, ("init_too_large", "learning_rate_too_high")),
    "init_small": (scale_weights(lambda job: (0.02, 0.2)[job.mild]), ANY, ("init_too_small", "vanishing_gradients")),
    "sigmoid_deep": (sigmoid_deep, ANY, ("vanishing_gradients", "init_too_small")),
    "dropout_high": (dropout_high, ANY, ("dropout_too_high",)),
    "eval_mode": (eval_mode, ANY, ("eval_mode",)),
    "not_divided": (not_divided, ANY, ("accumulation_not_divided", "learning_rate_too_high")),
    "eps_high": (eps_high, ANY, ("adam_eps_too_large", "learning_rate_too_low")),
    "not_shifted": (not_shifted, ("tokens",), ("targets_not_shifted",)),
    "dead_layer": (rare.dead_layer, ANY, ("dead_units",)),
    "zero_layer": (rare.zero_layer, ANY, ("init_constant", "graph_detached", "init_too_small", "dead_units")),
    "stale_optimizer": (rare.stale_optimizer, ANY, ("optimizer_holds_others", "parameters_not_optimized")),
    "not_tied": (rare.not_tied, ("tokens",), ("weights_not_tied",)),
    "attention_sharp": (rare.attention_sharp, ("tokens",), ("attention_too_sharp", "init_too_large")),
    "batchnorm_few": (rare.batchnorm_few, ("classes",), ("batchnorm_few_samples", "batch_too_small")),
    "batchnorm_momentum": (rare.batchnorm_momentum, ("classes",), ("batchnorm_momentum",)),
    "batch_large": (change(batch=(1000, 500)), ("classes", "values"), ("batch_too_large",)),
    "half_overflow": (
        rare.half_overflow,
        ("classes", "values"),
        ("not_finite", "half_precision_underflow", "inputs_not_scaled"),
    ),
    "half_underflow": (
        rare.half_underflow,
        ("classes", "values"),
        ("half_precision_underflow", "learning_rate_too_low"),
    ),
    "clip_scaled": (
        rare.clip_scaled,
        ("classes",),
        ("clipped_before_unscaled", "clipping_too_hard", "learning_rate_too_low"),
    ),
    "leakage": (rare.leakage, ("classes", "values"), ("target_in_inputs",)),
    "imbalance": (rare.imbalance, ("classes",), ("class_imbalance",)),
    "labels_off": (rare.labels_off, ("classes",), ("labels_off_by_one",)),
    "constant_feature": (rare.constant_feature, ("classes", "values"), ("constant_feature",)),
    "no_activation": (rare.no_activation, ANY, ("missing_nonlinearity",)),
    "scheduler_first": (rare.scheduler_first, ANY, ("schedule_before_step",)),
}
ONE_GRADE = {"not_zeroed", "same_batch", "labels_random", "wrong_sign", "summed", "double_softmax", "softmax_over_batch",
             "broadcast", "init_zero", "eval_mode", "not_shifted", "zero_layer", "not_tied", "half_overflow", "labels_off",
             "no_activation", "scheduler_first"}  # fmt: skip
ONLY = {  # faults that need something of a program
    "eps_high": ("regression", "conv1d", "gru", "decoder", "autoencoder"),
    "dead_units": ("mlp", "cnn", "regression", "conv1d", "autoencoder"),
    "dead_layer": ("mlp", "cnn", "regression", "conv1d", "autoencoder"),
    "zero_layer": ("mlp", "cnn", "regression", "conv1d", "autoencoder"),
    "batchnorm_few": ("resnet",), "batchnorm_momentum": ("resnet",), "batch_large": ("mlp", "regression"),
    "half_overflow": ("mlp", "regression"), "half_underflow": ("mlp", "regression"),
    "clip_scaled": ("mlp", "cnn", "resnet"), "leakage": ("mlp", "regression"),
    "labels_off": ("mlp", "cnn", "resnet", "conv1d"), "constant_feature": ("mlp", "regression"),
    "no_activation": ("mlp", "regression", "conv1d", "autoencoder"), "scheduler_first": ("mlp", "regression", "gru"),
}  # fmt: skip


def fits(name: str, program: Program) -> bool:
    return program.kind in FAULTS[name][1] and program.name in ONLY.get(name, (program.name,))
