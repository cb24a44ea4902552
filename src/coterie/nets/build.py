"""Backbones by name: the directory `nets/backbones` is the registry."""

import copy
import inspect
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings

_AXES = 2  # of a batch of vectors
_IMAGE_AXES = 3


class Backbone(nn.Module):
    """A module that maps a batch to vectors of length `width`."""

    width: int
    in_lanes = False  # whether its first layer wants the samples of a batch innermost in memory


Shape = tuple[int, ...]  # of a sample
Own = nn.Module | Callable[..., nn.Module]  # a user's backbone: a module, or what makes one


def make_backbone(settings: NetSettings, shape: Shape, own: Own | None = None) -> Backbone:
    """The backbone that the settings name for samples of `shape`, freshly initialised.

    `own` is the user's object, where `net.backbone` names one that cannot be imported.
    """
    name = settings.backbone
    if own is None and ":" in name:
        own = registry.import_own(name, "net.backbone")
    if own is not None:
        return cast(Backbone, _build_own(own, settings, shape))
    if settings.options:
        raise ConfigError(f"net.options is for a backbone of your own; {name!r} takes none")
    module = import_module(f"coterie.nets.backbones.{name.replace('-', '_')}")
    return cast(Backbone, module.build(shape, settings))


def _build_own(own: Own, settings: NetSettings, shape: Shape) -> nn.Module:
    """A copy of the user's module, or what the user's class or function makes."""
    key = f"net.backbone = {settings.backbone!r}"
    if isinstance(own, nn.Module):
        net: Any = copy.deepcopy(own)
    else:
        options = dict(settings.options)
        if "shape" in inspect.signature(own).parameters:
            options["shape"] = shape
        try:
            net = own(**options)
        except TypeError as error:
            raise ConfigError(f"{key} with net.options = {settings.options}: {error}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{key} must make an nn.Module, not a {type(net).__name__}")
    if not isinstance(getattr(net, "width", None), int):
        setattr(net, "width", _measure_width(net, key, shape))  # noqa: B010
    return net


@torch.no_grad()
def _measure_width(net: nn.Module, key: str, shape: Shape) -> int:
    """The length of the vectors that a module makes of two zero samples."""
    training = net.training
    try:
        h = net.eval()(torch.zeros(2, *shape))
    except Exception as error:  # whatever the user's module raises
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(f"{key} cannot take samples of shape {shape}: {said}") from error
    finally:
        net.train(training)
    if not (isinstance(h, Tensor) and h.ndim == _AXES and len(h) == _AXES):
        gave = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ConfigError(
            f"{key} must map (n, {', '.join(map(str, shape))}) to (n, width); for n = 2 it gave "
            f"{gave}"
        )
    return int(h.shape[1])


def check_images(shape: Shape, smallest: int, taker: str, remedy: str = "") -> None:
    """Reject samples that are no images, and small images."""
    if len(shape) != _IMAGE_AXES or min(shape[1:]) < smallest:
        raise ConfigError(
            f"{taker} takes images of at least {smallest} x {smallest} pixels, the data has "
            f"samples of shape {shape}{remedy}"
        )


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
