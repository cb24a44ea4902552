"""Backbones by name: the directory `nets/backbones` is the registry."""

import copy
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings

_AXES = 2  # of a batch of vectors
_IMAGE_AXES = 3


class Backbone(nn.Module):
    """A module that maps a batch to vectors of length `width`."""

    width: int
    one_logit = False  # whether two classes on it begin as the halves of a single logit
    in_lanes = False  # whether its first layer wants the samples of a batch innermost in memory


Shape = tuple[int, ...]  # of a sample
Own = nn.Module | Callable[..., nn.Module]  # a user's backbone: a module, or what makes one


def make_backbone(settings: NetSettings, shape: Shape, own: Own | None = None) -> Backbone:
    """The backbone that the settings name for samples of `shape`, freshly initialised.

    `own` is the user's object, where `net.backbone` names one that cannot be imported.
    """
    name = settings.backbone
    if own is None and ":" in name:
        own = _import_maker(name)
    if own is not None:
        return cast(Backbone, _build_own(own, settings, shape))
    if settings.options:
        raise ConfigError(f"net.options is for a backbone of your own; {name!r} takes none")
    module = import_module(f"coterie.nets.backbones.{name.replace('-', '_')}")
    return cast(Backbone, module.build(shape, settings))


def _import_maker(name: str) -> Own:
    """Import the class or function that a user's backbone is made by."""
    own = registry.import_own(name, "net.backbone")
    if isinstance(own, nn.Module) or not callable(own):
        raise ConfigError(
            f"net.backbone = {name!r} must name a class or function that makes an nn.Module; a "
            "module with weights can only be passed from Python"
        )
    return cast(Own, own)


def _build_own(own: Own, settings: NetSettings, shape: Shape) -> nn.Module:
    """Make the user's backbone, check it, and tell its width."""
    key = f"net.backbone = {settings.backbone!r}"
    if isinstance(own, nn.Module):
        if settings.options:
            raise ConfigError(f"net.options = {settings.options}: {key} is made; give its class")
        if any(map(is_lazy, own.buffers())):  # torch cannot copy these
            raise ConfigError(f"{key} has a norm without a shape: call it once, or give its class")
    try:
        net = make_own(own, settings.options, shape)
    except Exception as error:  # whatever the user's code raises
        options = f" with net.options = {settings.options}" if settings.options else ""
        raise ConfigError(f"{key} cannot be made{options}: {first_line(error)}") from error
    if not isinstance(net, nn.Module):
        raise ConfigError(f"{key} must make an nn.Module, not a {type(net).__name__}")
    width = _measure_width(net, key, shape)
    if not hasattr(net, "width"):
        setattr(net, "width", width)  # noqa: B010
    elif net.width != width:
        raise ConfigError(
            f"{key} gives vectors of {width} entries, and its attribute width is {net.width}: it "
            "must be their length, or have another name"
        )
    return net


def make_own(own: Own, options: Mapping[str, Any], shape: Shape) -> Any:
    """Copy the user's module, or call the class or function: with `shape` if it takes that."""
    if isinstance(own, nn.Module):
        return copy.deepcopy(own).cpu()
    takes_shape = "shape" in inspect.signature(own).parameters
    return own(**options, **({"shape": shape} if takes_shape else {}))


@torch.no_grad()
def _measure_width(net: nn.Module, key: str, shape: Shape) -> int:
    """The length of the vectors that a module makes of two zero samples.

    The pass also gives lazy layers their shapes, with weights drawn under the run's seed.
    """
    training = net.training
    try:
        h = net.eval()(torch.zeros(2, *shape))
    except Exception as error:  # whatever the user's module raises
        raise ConfigError(
            f"{key} cannot take samples of shape {shape}: {first_line(error)}"
        ) from error
    finally:
        net.train(training)
    if not (isinstance(h, Tensor) and h.ndim == _AXES and len(h) == _AXES):
        gave = list(h.shape) if isinstance(h, Tensor) else f"a {type(h).__name__}"
        raise ConfigError(
            f"{key} must map (n, {', '.join(map(str, shape))}) to (n, width); for n = 2 it gave "
            f"{gave}"
        )
    if h.dtype != torch.float32:
        raise ConfigError(f"{key} must give float32, not {h.dtype}")
    return int(h.shape[1])


def first_line(error: Exception) -> str:
    """Say what went wrong in user's code in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


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
