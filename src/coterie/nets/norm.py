"""Normalisation layers by name."""

import math
from typing import Literal

from torch import nn

NormKind = Literal["bn", "gn", "none"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
GROUPS = 16


def norm_1d(kind: NormKind, features: int) -> nn.Module:
    """A normalisation of vectors with `features` entries."""
    if kind == "bn":
        return nn.BatchNorm1d(features)
    return group_norm(features) if kind == "gn" else nn.Identity()


def norm_2d(kind: NormKind, channels: int) -> nn.Module:
    """A normalisation of images with `channels` channels."""
    if kind == "bn":
        return nn.BatchNorm2d(channels)
    return group_norm(channels) if kind == "gn" else nn.Identity()


def group_norm(channels: int) -> nn.Module:
    """GroupNorm with 16 groups, or as many as the channels allow: gcd(channels, 16)."""
    return nn.GroupNorm(math.gcd(channels, GROUPS), channels)


def batch_norm_buffers(net: nn.Module) -> frozenset[str]:
    """The names of all running statistics of BatchNorm layers in `net`."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in net.named_modules()
        if isinstance(module, BATCH_NORMS)
        for name, _ in module.named_buffers(recurse=False)
    )
