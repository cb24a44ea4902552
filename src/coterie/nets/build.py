"""Backbones by name: the directory `nets/backbones` is the registry."""

from importlib import import_module
from typing import cast

from torch import Tensor, nn

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.native.frozen_network import Row


class Backbone(nn.Module):
    """A module that maps a batch to vectors of length `width`."""

    width: int
    in_lanes = False  # whether its first layer wants the samples of a batch innermost in memory

    def row(self, x: Tensor) -> Row | None:
        """Its layers, if there is a kernel that takes batches like `x` through all of them."""
        return None


def make_backbone(settings: NetSettings, shape: tuple[int, ...]) -> Backbone:
    """The backbone that the settings name for samples of `shape`, freshly initialised."""
    module = import_module(f"coterie.nets.backbones.{settings.backbone.replace('-', '_')}")
    return cast(Backbone, module.build(shape, settings))


def check_no_first_norm(settings: NetSettings) -> None:
    """Say so where `norm_first` is set for a backbone that has no two norms to begin with."""
    if settings.norm_first:
        raise ConfigError(
            f"net.norm_first = {settings.norm_first!r} is for residual networks, and "
            f"net.backbone = {settings.backbone!r} is none; leave it empty or use 'resnet8'"
        )


def check_no_norm(settings: NetSettings) -> None:
    """Say so where a norm is chosen for a backbone without any; "bn" is what it is by default."""
    if settings.norm not in ("bn", "none"):
        raise ConfigError(
            f"net.norm = {settings.norm!r} is for networks with normalisation layers, and "
            f"net.backbone = {settings.backbone!r} has none; leave it out or use 'resnet8' or 'mlp'"
        )
