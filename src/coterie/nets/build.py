"""Backbones by name: the directory `nets/backbones` is the registry."""

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Literal, cast

from annotated_types import Ge
from torch import nn

from coterie.nets.norm import NormKind


@dataclass(frozen=True)
class NetSettings:
    """The `[net]` table."""

    backbone: str = "simple-cnn"
    projection: Annotated[int, Ge(0)] = 256  # entries of z; 0: no projector
    norm: NormKind = "bn"  # where the backbone has normalisation layers
    stem: Literal["cifar", "imagenet"] = "cifar"  # of residual networks
    bn_buffers: Literal["average", "local"] = "average"  # "local": never sent, one set a client


class Backbone(nn.Module):
    """A module that maps a batch to vectors of length `width`."""

    width: int


def make_backbone(settings: NetSettings, shape: tuple[int, ...]) -> Backbone:
    """The backbone that the settings name for samples of `shape`, freshly initialised."""
    module = import_module(f"coterie.nets.backbones.{settings.backbone.replace('-', '_')}")
    return cast(Backbone, module.build(shape, settings))
