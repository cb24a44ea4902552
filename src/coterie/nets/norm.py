"""Normalisation layers by name."""

from typing import Literal

from torch import nn

NormKind = Literal["bn", "none"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def norm_1d(kind: NormKind, features: int) -> nn.Module:
    """A normalisation of vectors with `features` entries."""
    return nn.BatchNorm1d(features) if kind == "bn" else nn.Identity()


def batch_norm_buffers(net: nn.Module) -> frozenset[str]:
    """The names of all running statistics of BatchNorm layers in `net`."""
    return frozenset(
        f"{path}.{name}" if path else name
        for path, module in net.named_modules()
        if isinstance(module, BATCH_NORMS)
        for name, _ in module.named_buffers(recurse=False)
    )
