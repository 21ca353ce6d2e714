"""A module without BatchNorm: GroupNorm in its place.

BatchNorm divides by statistics of the whole batch, so one device's update would depend on other devices' examples.
GroupNorm (Wu and He 2018) takes them from each example alone. Both scale and shift every channel afterwards, by weights
of the same shape, which are kept; the running statistics have no counterpart and are dropped. A pretrained module
therefore needs a few rounds to settle.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsefed.core.errors import ConfigError

GROUPS = 32  # at most, as in the paper
CHANNELS = 4  # in a group at least: in a layer without positions, a group of one would always be 0


def without_batchnorm(module: nn.Module) -> nn.Module:
    """Return a copy of a module with GroupNorm in place of every BatchNorm layer; its scales and shifts are kept.

    A layer of C channels gets the largest number of groups up to 32 that divides C and leaves at least 4 channels in a
    group; if there is none, one group. A layer that the module uses in two places stays one layer.

    Args:
        module: Any module; it is not changed.

    Returns:
        The copy; a module without BatchNorm is copied as it is.

    Raises:
        ConfigError: A BatchNorm layer has a single feature and no positions, or does not know its features yet.

    >>> without_batchnorm(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1].num_groups
    16
    """
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            _require_replaceable(name or "model", layer)
    done: dict[int, nn.Module] = {}  # by id of the layer: one may stand in two places
    return _replaced(copy.deepcopy(module), done)


def _replaced(module: nn.Module, done: dict[int, nn.Module]) -> nn.Module:
    if id(module) in done:
        return done[id(module)]
    done[id(module)] = module  # before its children, for one that contains itself
    if isinstance(module, _BatchNorm):
        done[id(module)] = _group_norm(module)
    for child, layer in module._modules.items():
        if layer is not None:
            module._modules[child] = _replaced(layer, done)
    return done[id(module)]


def _require_replaceable(name: str, layer: _BatchNorm) -> None:
    if layer.num_features == 0:
        raise ConfigError(
            f"layer '{name}' is a {type(layer).__name__} that has not seen an example yet; call the module on one first"
        )
    if layer.num_features == 1 and isinstance(layer, nn.BatchNorm1d):
        raise ConfigError(
            f"layer '{name}' is a BatchNorm1d over a single feature, which normalised by itself would always be 0; "
            "remove the layer"
        )


def _group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    channels = layer.num_features
    norm = nn.GroupNorm(groups_of(channels), channels, eps=layer.eps, affine=layer.affine).train(layer.training)
    if layer.affine:
        norm = norm.to(layer.weight.device, layer.weight.dtype)
        with torch.no_grad():
            for own, kept in ((norm.weight, layer.weight), (norm.bias, layer.bias)):
                own.copy_(kept)
                own.requires_grad_(kept.requires_grad)
    return norm


def groups_of(channels: int) -> int:
    """Return the largest number of groups up to 32 that divides the channels and leaves at least 4 in a group, or 1.

    >>> [groups_of(channels) for channels in (256, 64, 24, 7, 2)]
    [32, 16, 6, 1, 1]
    """
    fitting = [g for g in range(1, GROUPS + 1) if channels % g == 0 and channels // g >= CHANNELS]
    return max(fitting, default=1)
