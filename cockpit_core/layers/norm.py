"""Normalisation layers: ``y = w * x_hat + c``, so ``g_n = sum_positions b * x_hat`` and ``sum_positions b``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cockpit_core.foundation.sharded import has_peers
from cockpit_core.kernels.native.normalised import (
    can_normalise,
    can_sum_positions,
    find_moments,
    sum_by_groups,
    sum_normalised,
    sum_positions,
)
from cockpit_core.layers.contribution import Contribution, Rows
from cockpit_core.layers.registry import Call, NotCovered, match_dtype, rule, samples_first


def position_rows(call: Call, b: Tensor, scale: float) -> dict[str, Contribution] | None:
    """Of a LayerNorm over the last dimension, without a normalised input; None where there is no kernel for it."""
    module: nn.LayerNorm = call.module  # type: ignore[assignment]
    if len(module.normalized_shape) != 1 or not call.input.dtype == b.dtype == module.weight.dtype:
        return None
    x, b = samples_first(call.input, call, 1), samples_first(b, call, 1)
    if not can_sum_positions(x, b):
        return None
    products, sums = sum_positions(x, b, module.eps)
    parts: dict[str, Contribution] = {"weight": Rows(products, module.weight.shape, scale)}
    if module.bias is not None:
        parts["bias"] = Rows(sums, module.bias.shape, scale)
    return parts


def affine_rows(call: Call, b: Tensor, normalised: Tensor, scale: float, features: int) -> dict[str, Contribution]:
    """Features are the last ``features`` dimensions (LayerNorm, RMSNorm)."""
    module = call.module
    b = match_dtype(samples_first(b, call, features), module.weight)  # type: ignore[arg-type]
    x_hat = match_dtype(samples_first(normalised, call, features), module.weight)  # type: ignore[arg-type]
    positions = tuple(range(1, b.dim() - features))
    parts: dict[str, Contribution] = {}
    weight, bias = module.weight, getattr(module, "bias", None)
    product = b * x_hat
    parts["weight"] = Rows(product.sum(positions) if positions else product, weight.shape, scale)  # type: ignore[arg-type]
    if bias is not None:
        parts["bias"] = Rows(b.sum(positions) if positions else b, bias.shape, scale)
    return parts


@rule(nn.LayerNorm)
def layer_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    module: nn.LayerNorm = call.module  # type: ignore[assignment]
    if module.weight is None:
        return {}
    parts = position_rows(call, b, scale)
    if parts is not None:
        return parts
    x_hat = F.layer_norm(call.input, module.normalized_shape, None, None, module.eps)
    return affine_rows(call, b, x_hat, scale, len(module.normalized_shape))


if hasattr(nn, "RMSNorm"):  # torch 2.4

    @rule(nn.RMSNorm)
    def rms_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
        module: nn.RMSNorm = call.module  # type: ignore[assignment]
        if module.weight is None:
            return {}
        x_hat = F.rms_norm(call.input, module.normalized_shape, None, module.eps)
        return affine_rows(call, b, x_hat, scale, len(module.normalized_shape))


Moments = Callable[[], tuple[Tensor, Tensor]]
"""Mean and variance, [N or 1, groups] each."""
Sums = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From the gradient of the output to sums over positions of ``b x_hat`` and of ``b``, [N, C] each."""


def sum_with(call: Call, moments: Moments) -> Sums:
    return lambda b: sum_normalised(call.input, b, *moments(), call.module.eps)  # type: ignore[arg-type]


def channel_rows(
    call: Call, b: Tensor, scale: float, x_hat: Callable[[], Tensor], sums: Sums | None = None
) -> dict[str, Contribution]:
    """Features are dimension 1, positions all behind it (BatchNorm, GroupNorm, InstanceNorm). With ``sums`` by a kernel
    nothing of the input's size is written; else ``x_hat`` is."""
    module, B = call.module, call.batch_size
    weight: nn.Parameter = module.weight  # type: ignore[assignment]
    b = match_dtype(b, weight)
    if sums is not None and call.input.dtype == b.dtype and can_normalise(call.input, b):
        rows = list(sums(b))
    else:
        product = b * match_dtype(x_hat(), weight)
        rows = [t.flatten(2).sum(2) if t.dim() > 2 else t for t in (product, b)]  # [N, C]
    rows = [samples_first(r, call, 1) for r in rows]
    rows = [r if r.dim() == 2 else r.reshape(B, -1, r.shape[-1]).sum(1) for r in rows]
    parts: dict[str, Contribution] = {"weight": Rows(rows[0], weight.shape, scale)}
    if module.bias is not None:
        parts["bias"] = Rows(rows[1], weight.shape, scale)
    return parts


@rule(nn.GroupNorm)
def group_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    module: nn.GroupNorm = call.module  # type: ignore[assignment]
    if module.weight is None:
        return {}
    normalise = partial(F.group_norm, call.input, module.num_groups, None, None, module.eps)
    own = partial(sum_by_groups, call.input, groups=module.num_groups, eps=module.eps)
    return channel_rows(call, b, scale, normalise, own)


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    module: nn.modules.instancenorm._InstanceNorm = call.module  # type: ignore[assignment]
    if module.weight is None:
        return {}
    own = module.running_mean is None or call.training
    mean, var = (None, None) if own else (module.running_mean, module.running_var)
    normalise = partial(F.instance_norm, call.input, mean, var, use_input_stats=own, eps=module.eps)
    return channel_rows(call, b, scale, normalise)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """In training mode samples mix in mean and variance: ``b_n * x_hat_n`` are contributions that add up to the
    gradient, not gradients of one sample's loss. The header says so."""
    module: nn.modules.batchnorm._BatchNorm = call.module  # type: ignore[assignment]
    if module.weight is None:
        return {}
    own = call.training or module.running_mean is None
    if own:
        call.method, call.reason = "contribution", "BatchNorm in training mode mixes samples"
    mean, var = (None, None) if own else (module.running_mean, module.running_var)
    normalise = partial(F.batch_norm, call.input, mean, var, None, None, training=own, momentum=0.0, eps=module.eps)
    moments: Moments = partial(find_moments, call.input, module.num_features, joined=True)
    if mean is not None and var is not None:
        known = mean[None], var[None]
        moments = lambda: known  # noqa: E731
    with torch.no_grad():
        return channel_rows(call, b, scale, normalise, sum_with(call, moments))


@rule(nn.SyncBatchNorm)
def sync_batch_norm(call: Call, b: Tensor, scale: float) -> dict[str, Contribution]:
    """As BatchNorm, with mean and variance of the samples of all processes, as the module itself has used them."""
    module: nn.SyncBatchNorm = call.module  # type: ignore[assignment]
    if module.weight is None:
        return {}
    if call.statistics is None:
        if is_shared(module, call.training):
            raise NotCovered("the statistics that SyncBatchNorm shares between processes were not found in its graph")
        return batch_norm(call, b, scale)
    call.method, call.reason = "contribution", "SyncBatchNorm in training mode mixes samples of all processes"
    channels = (1, -1, *(1,) * (call.input.dim() - 2))
    mean, inverse_deviation = (s.reshape(channels) for s in call.statistics)
    return channel_rows(call, b, scale, lambda: (call.input - mean) * inverse_deviation)


def is_shared(module: nn.SyncBatchNorm, training: bool) -> bool:
    """Does this module talk to other processes in its forward pass?"""
    return training and has_peers(module.process_group)
