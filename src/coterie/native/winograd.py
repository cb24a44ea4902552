"""Convolutions with 3 x 3 weights as a differentiable function on CPUs, by Winograd's filtering.

Activations have their channels innermost in memory (torch's `channels_last`). To everybody else
they are ordinary tensors with unusual strides; one that comes with other strides is rearranged
first. A quarter of the multiplications of the plain form do (`winograd.h`).
"""

import threading
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.native import switch
from coterie.native.interface import Tiles
from coterie.native.layers import is_unhooked
from coterie.native.library import loaded

PANEL = 16  # channels that a kernel takes at a time
_CHUNK = 84  # tiles that a convolution works on at a time: a multiple of 42
_SIDE = 4  # results of a tile, by row and by column
_POINTS = 36  # at which a tile is multiplied
_WORK = threading.local()  # a buffer for each dtype, kept: to map fresh memory takes longer


def lay_out(x: Tensor) -> Tensor:
    """Return the batch with its channels innermost in memory."""
    return x.contiguous(memory_format=torch.channels_last)


def takes_layer(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether the kernel does it: 3 x 3 weights, stride 1, one zero around, no bias."""
    if type(layer) is not nn.Conv2d or not is_unhooked(layer) or not switch.takes(layer.weight):
        return False
    square = layer.kernel_size == (3, 3) and layer.padding == (1, 1)
    plain = layer.stride == layer.dilation == (1, 1) and layer.groups == 1 and layer.bias is None
    in_panels = layer.in_channels % PANEL == layer.out_channels % PANEL == 0
    return square and plain and in_panels and layer.padding_mode == "zeros"


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Compute conv2d(x, weight, padding=1) for weights of 3 x 3."""
    y: Tensor = _Convolve.apply(lay_out(x), layer.weight)  # type: ignore[no-untyped-call]
    return y


def _call_convolve(x: Tensor, weight: Tensor, turned: bool) -> Tensor:
    """Convolve with the weights, or with the weights turned about: the gradient of x."""
    x = lay_out(x)
    samples, _, height, width = x.shape
    outputs = weight.shape[1 if turned else 0]
    size = (samples, outputs, height, width)
    y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    shape, work = _plan(x, outputs)
    loaded().call("convolve", x.dtype, x, weight.contiguous(), y, work, shape, int(turned))
    return y


def _plan(x: Tensor, outputs: int) -> tuple[Any, Tensor]:
    """Return the shape of a convolution as C has it, and its workspace."""
    samples, inputs, height, width = x.shape
    tiles = samples * -(-height // _SIDE) * -(-width // _SIDE)
    chunk = min(_CHUNK, -(-tiles // 42) * 42)
    work = _workspace(x.dtype, _POINTS * (inputs * outputs + chunk * (inputs + outputs)))
    return Tiles(samples, height, width, inputs, outputs, chunk), work


class _Convolve(torch.autograd.Function):
    """The gradient of x is a convolution too; that of the weights sums over all tiles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _call_convolve(x, weight, turned=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # what is returned will be differentiated too
            y = F.conv2d(x, weight, padding=1)
            return differentiate(y, (x, weight), gradient, ctx.needs_input_grad)
        gradient = lay_out(gradient)
        of_x = _call_convolve(gradient, weight, turned=True) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            of_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
            shape, work = _plan(x, len(weight))
            loaded().call("convolve_weights", x.dtype, x, gradient, of_weight, work, shape)
        return of_x, of_weight


def differentiate(
    y: Tensor, leaves: tuple[Tensor, ...], gradient: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the leaves that need one, by torch, with a graph of their own."""
    asked = [leaf for leaf, is_asked in zip(leaves, needed, strict=False) if is_asked]
    slopes = iter(torch.autograd.grad(y, asked, gradient, create_graph=True))
    return tuple(next(slopes) if is_asked else None for is_asked in needed[: len(leaves)])


def _workspace(dtype: torch.dtype, size: int) -> Tensor:
    """Return a buffer of at least so many numbers, the same for all calls of a thread."""
    kept: Tensor | None = getattr(_WORK, str(dtype), None)
    if kept is None or kept.numel() < size:
        kept = torch.empty(size, dtype=dtype)
        setattr(_WORK, str(dtype), kept)
    return kept
