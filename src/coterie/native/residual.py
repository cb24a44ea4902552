"""Chains of convolutions, normalisations and ReLUs, as residual networks have them, on CPUs.

Where kernels are on, a normalisation is one pass with the ReLU and the sum with a shortcut that
follow it, and convolutions with 3 x 3 weights and stride 1 are ours. All other layers are torch's,
with the channels innermost in memory, which on CPUs is the faster layout for them too. In bfloat16
all convolutions are torch's, and normalisations ours.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.native import batch_norm, switch, winograd
from coterie.native.layers import hooked_everywhere, is_unhooked, takes


def is_on(x: Tensor) -> bool:
    """Return whether kernels are on and take a batch, in its own precision or in bfloat16."""
    if not switch.kernels_on() or hooked_everywhere():
        return False
    return takes(x) or (switch.converts_to_bfloat16() and _can_be_bfloat16(x))


def _can_be_bfloat16(x: Tensor) -> bool:
    """Return whether a batch is bfloat16, or will be by the first convolution."""
    images = switch.are_plain(x) and x.ndim == 4 and len(x) > 0
    return images and x.dtype in (torch.float32, torch.bfloat16)


def forward_chain(modules: nn.Module, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """Compute `modules(x)`, or with a shortcut relu(modules(x) + shortcut).

    `modules` is a sequence of pairs, which are sequences of a convolution and its normalisation,
    and of other layers.
    """
    if not isinstance(modules, nn.Sequential) or not is_unhooked(modules):
        return _finish(modules(x), shortcut is not None, shortcut)
    rest = list(modules)
    while rest:
        match rest:
            case [nn.Sequential() as pair, nn.ReLU() as relu, *rest] if is_unhooked(relu):
                x = forward_pair(pair, x, relu=True)
            case [nn.Sequential() as pair] if shortcut is not None:
                return forward_pair(pair, x, relu=True, shortcut=shortcut)
            case [nn.Sequential() as pair, *rest]:
                x = forward_pair(pair, x, relu=False)
            case [module, *rest]:
                x = module(x)
    return _finish(x, shortcut is not None, shortcut)


def forward_pair(pair: nn.Module, x: Tensor, relu: bool, shortcut: Tensor | None = None) -> Tensor:
    """Compute norm(convolution(x)) + shortcut, cut at zero if `relu`; `pair` holds the layers."""
    if not (isinstance(pair, nn.Sequential) and len(pair) == 2 and is_unhooked(pair)):
        return _finish(pair(x), relu, shortcut)
    layer, norm = pair
    x = winograd.lay_out(x)
    y = winograd.convolve(x, layer) if winograd.takes_layer(layer) else layer(x)
    alike = shortcut is None or shortcut.dtype is y.dtype
    if not alike or not batch_norm.takes_norm(norm, y):
        return _finish(norm(y), relu, shortcut)
    return batch_norm.normalise(y, norm, relu, shortcut)


def _finish(x: Tensor, relu: bool, shortcut: Tensor | None) -> Tensor:
    """Do what follows a normalisation that no kernel takes."""
    x = x if shortcut is None else x + shortcut
    return F.relu(x) if relu else x
