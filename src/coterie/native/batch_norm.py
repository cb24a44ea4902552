"""Batch normalisation with what follows it, as one differentiable function on CPUs.

    y = (x - mean) / sqrt(variance + eps) * gamma + beta [+ shortcut], cut at zero if `relu`

Activations have their channels innermost in memory, as `winograd.py` leaves them. They may be
bfloat16: it is computed with in single precision, in which scale, shift and their gradients are.
"""

from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.native.layers import is_unhooked
from coterie.native.library import Value, loaded
from coterie.native.winograd import PANEL, differentiate, lay_out


def takes_norm(norm: nn.Module, x: Tensor) -> TypeGuard[nn.BatchNorm2d]:
    """Return whether the kernel does this; with fixed statistics only where no graph is kept."""
    if type(norm) is not nn.BatchNorm2d or not is_unhooked(norm) or x.shape[1] % PANEL:
        return False
    known = norm.affine and norm.running_mean is not None and norm.momentum is not None
    if not known or x.dtype not in (norm.weight.dtype, torch.bfloat16):
        return False
    return _count_rows(x) > 1 if norm.training else not torch.is_grad_enabled()


def normalise(
    x: Tensor, norm: nn.BatchNorm2d, relu: bool, shortcut: Tensor | None = None
) -> Tensor:
    """Compute y; in training mode from the batch's statistics, which the running ones follow."""
    x, shortcut = lay_out(x), None if shortcut is None else lay_out(shortcut)
    assert norm.running_mean is not None and norm.running_var is not None
    if not norm.training:
        inverse = torch.rsqrt(norm.running_var.double() + norm.eps)
        return _compute(x, norm.weight, norm.bias, shortcut, norm.running_mean, inverse, relu)
    rows = _count_rows(x)
    mean, squares = torch.empty((2, x.shape[1]), dtype=torch.float64)
    _call("moments", x.dtype, x, mean, squares, rows, x.shape[1])
    assert norm.num_batches_tracked is not None and norm.momentum is not None
    with torch.no_grad():
        norm.num_batches_tracked.add_(1)
        norm.running_mean.lerp_(mean.to(norm.running_mean), norm.momentum)
        norm.running_var.lerp_((squares / (rows - 1)).to(norm.running_var), norm.momentum)
    inverse = torch.rsqrt(squares / rows + norm.eps)
    given = (x, norm.weight, norm.bias, shortcut, mean, inverse, relu)
    if not torch.is_grad_enabled():
        return _compute(*given)
    y: Tensor = _Normalise.apply(*given, norm.eps)  # type: ignore[no-untyped-call]
    return y


def _count_rows(x: Tensor) -> int:
    """Count the places that a channel is averaged over."""
    return x.numel() // x.shape[1]


def _compute(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shortcut: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    relu: bool,
) -> Tensor:
    """Compute y as x * scale + shift + shortcut."""
    scale = inverse * weight.detach()
    shift = bias.detach() - mean * scale
    y = torch.empty_like(x, memory_format=torch.channels_last)
    size = (_count_rows(x), x.shape[1], int(relu))
    factors = (scale.to(weight.dtype), shift.to(weight.dtype))
    _call("normalise", x.dtype, x, *factors, shortcut, y, *size)
    return y


def _call(name: str, dtype: torch.dtype, *values: Value) -> None:
    """Call the kernel for activations of a type."""
    if dtype is torch.bfloat16:
        name, dtype = f"{name}_bf16", torch.float32
    loaded().call(name, dtype, *values)


class _Normalise(torch.autograd.Function):
    """Normalisation by the batch's statistics; normalise.h has the equations of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shortcut: Tensor | None,
        mean: Tensor,
        inverse: Tensor,
        relu: bool,
        eps: float,
    ) -> Tensor:
        y = _compute(x, weight, bias, shortcut, mean, inverse, relu)
        ctx.save_for_backward(x, weight, bias, shortcut, mean, inverse, y if relu else None)
        ctx.relu, ctx.eps = relu, eps
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, _, shortcut, mean, inverse, y = ctx.saved_tensors
        if torch.is_grad_enabled():  # what is returned will be differentiated too
            return *_differentiate_again(ctx, gradient), None, None, None, None
        gradient, rows, channels = lay_out(gradient), _count_rows(x), x.shape[1]
        masked = None
        if shortcut is not None and ctx.needs_input_grad[3]:
            masked = torch.empty_like(x, memory_format=torch.channels_last)
        sums = torch.empty((2, channels), dtype=torch.float64)
        given = (gradient, y, x, mean.to(weight.dtype), masked, sums, rows, channels)
        _call("normalise_sums", x.dtype, *given)
        of_bias, of_weight = sums[0], sums[1] * inverse
        of_x = None
        if ctx.needs_input_grad[0]:
            scale = inverse * weight
            slope = -scale * inverse * of_weight / rows
            slopes = torch.stack([scale, slope, -scale * of_bias / rows - slope * mean])
            of_x = torch.empty_like(x, memory_format=torch.channels_last)
            from_y = (gradient, y) if masked is None else (masked, None)
            given = (*from_y, x, slopes.to(weight.dtype), of_x, rows, channels)
            _call("normalise_gradient", x.dtype, *given)
        of_parameters = (of_weight.to(weight.dtype), of_bias.to(weight.dtype))
        return of_x, *of_parameters, masked, None, None, None, None


def _differentiate_again(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The same gradients by torch, with a graph of their own."""
    x, weight, bias, shortcut, *_ = ctx.saved_tensors
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=ctx.eps)
    y = y if shortcut is None else y + shortcut
    leaves = (x, weight, bias, shortcut)
    return differentiate(F.relu(y) if ctx.relu else y, leaves, gradient, ctx.needs_input_grad[:4])
