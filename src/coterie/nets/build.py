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


class Backbone(nn.Module):
    """A module that maps a batch to vectors of length `width`."""

    width: int
    in_lanes = False  # whether its first layer wants the samples of a batch innermost in memory


Own = nn.Module | Callable[..., nn.Module]  # a user's backbone: a module, or what makes one


def make_backbone(
    settings: NetSettings, shape: tuple[int, ...], own: Own | None = None
) -> Backbone:
    """The backbone that the settings name for samples of `shape`, freshly initialised.

    `own` is the user's object, where `net.backbone` names one that cannot be imported.
    """
    if own is None and ":" in settings.backbone:
        own = registry.import_own(settings.backbone, "net.backbone")
    if own is not None:
        return cast(Backbone, _build_own(own, settings, shape))
    if settings.options:
        raise ConfigError(
            f"net.options is for a backbone of your own; {settings.backbone!r} takes none"
        )
    module = import_module(f"coterie.nets.backbones.{settings.backbone.replace('-', '_')}")
    return cast(Backbone, module.build(shape, settings))


def _build_own(own: Own, settings: NetSettings, shape: tuple[int, ...]) -> nn.Module:
    """A copy of the user's module, or what the user's class or function makes."""
    if isinstance(own, nn.Module):
        net: Any = copy.deepcopy(own)
    else:
        options = dict(settings.options)
        if "shape" in inspect.signature(own).parameters:
            options["shape"] = shape
        try:
            net = own(**options)
        except TypeError as error:
            raise ConfigError(
                f"net.backbone = {settings.backbone!r} with net.options = {settings.options}: "
                f"{error}"
            ) from error
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"net.backbone = {settings.backbone!r} must make an nn.Module, not a "
            f"{type(net).__name__}"
        )
    if not isinstance(getattr(net, "width", None), int):
        setattr(net, "width", _measure_width(net, settings.backbone, shape))  # noqa: B010
    return net


@torch.no_grad()
def _measure_width(net: nn.Module, name: str, shape: tuple[int, ...]) -> int:
    """The length of the vectors that a module makes of two zero samples."""
    training = net.training
    try:
        h = net.eval()(torch.zeros(2, *shape))
    except Exception as error:  # whatever the user's module raises
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigError(
            f"net.backbone = {name!r} cannot take samples of shape {shape}: {said}"
        ) from error
    finally:
        net.train(training)
    if not (isinstance(h, Tensor) and h.ndim == _AXES and len(h) == _AXES):
        gave = list(h.shape) if isinstance(h, Tensor) else type(h).__name__
        raise ConfigError(
            f"net.backbone = {name!r} must map (n, {', '.join(map(str, shape))}) to (n, width); "
            f"for n = 2 it gave {gave}"
        )
    return int(h.shape[1])


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
