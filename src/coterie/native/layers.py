"""Convolution, ReLU and 2 x 2 max-pooling as one differentiable function on CPUs.

Samples are the innermost dimension in memory: an activation of shape (n, c, rows, columns) is a
view of an array (c, rows, columns, lanes), lanes = n rounded up to sixteen. To everybody else it is
an ordinary tensor with unusual strides; one that comes with other strides is rearranged first. What
the lanes beyond n hold is anything in a forward pass, which does not mix samples, and zero in a
backward pass, which sums over them.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.native import switch
from coterie.native.interface import Convolution
from coterie.native.library import LANES, loaded
from coterie.native.unit_length import UnitLength

_BATCH_AXES = 4
_KNOWN = (nn.Sequential, nn.Conv2d, nn.Linear, nn.ReLU, nn.Flatten, nn.MaxPool2d, UnitLength)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def lanes_for(samples: int) -> int:
    """The samples of a batch with those that fill up its last vector."""
    return -(-samples // LANES) * LANES


def as_batch(memory: Tensor, samples: int) -> Tensor:
    """An array (c, rows, columns, lanes) as a batch (samples, c, rows, columns)."""
    return memory.permute(3, 0, 1, 2)[:samples]


def in_lanes(x: Tensor, summed: bool = False) -> Tensor:
    """The array (c, rows, columns, lanes) behind a batch, or a new one with the same samples.

    Where it will be `summed` over the lanes, those beyond the samples are zero: what lies behind a
    batch may be other samples.
    """
    samples, channels, height, width = x.shape
    lanes = lanes_for(samples)
    places = channels * height * width
    stored = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    laid = (1, height * width * lanes, width * lanes, lanes)
    if x.stride() == laid and places * lanes <= stored:
        behind = x.as_strided((channels, height, width, lanes), (*laid[1:], 1))
        if not summed or samples == lanes:
            return behind
        cleared = behind.clone()
        cleared[..., samples:] = 0
        return cleared
    memory = torch.empty((channels, height, width, lanes), dtype=x.dtype)
    loaded().call("turn", x.dtype, x.contiguous(), memory, samples, lanes, places)
    return memory


def takes(x: Tensor) -> bool:
    """Whether the kernels can work on a batch."""
    if not switch.takes(x) or x.dtype not in (torch.float32, torch.float64):
        return False
    return x.ndim == _BATCH_AXES and len(x) > 0


def is_plain(module: nn.Module) -> bool:
    """Whether a call of a module does what its class, which kernels know, does, and nothing else.

    It does not if somebody has registered a hook, replaced its `forward` or derived a class. A
    class of ours that a kernel may stand for says `like_its_base = True`, which is not inherited.
    """
    kind = type(module)
    if kind not in _KNOWN and not kind.__dict__.get("like_its_base"):
        return False
    return is_unhooked(module)


def is_unhooked(module: nn.Module) -> bool:
    """Whether nobody has registered a hook of a module or replaced its `forward`."""
    own = module.__dict__
    return "forward" not in own and not any(own[hooks] for hooks in _HOOKS)


class PlainWatch:
    """Tells whether modules that were plain still are; before each call, so it has to be fast."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules, self._kinds = modules, [type(module) for module in modules]
        self._own = [module.__dict__ for module in modules]
        self._hooks = [own[name] for own in self._own for name in _HOOKS]

    def still_plain(self) -> bool:
        """Whether nobody has registered a hook, replaced `forward` or exchanged a class."""
        if any(self._hooks) or any("forward" in own for own in self._own):
            return False
        return [type(module) for module in self._modules] == self._kinds


def forward_fused(modules: nn.Sequential, x: Tensor) -> Tensor:
    """`modules(x)`; where kernels are on, a convolution, ReLU and pooling in a row are one call."""
    if not (switch.kernels_on() and takes(x) and is_plain(modules) and not hooked_everywhere()):
        outputs: Tensor = modules(x)
        return outputs
    rest = list(modules)
    while rest:
        match rest:
            case [nn.Conv2d() as layer, nn.ReLU() as relu, nn.MaxPool2d() as pool, *after] if (
                fusable(layer, pool) and is_plain(relu)
            ):
                x = conv_relu_pool(x, layer.weight, bias_of(layer), int(layer.padding[0]))
            case [module, *after]:
                x = module(x)
        rest = after
    return x


def hooked_everywhere() -> bool:
    """Whether hooks are registered for all modules of the process."""
    return bool(torch.nn.modules.module._has_any_global_hook())  # type: ignore[no-untyped-call]


def fusable(layer: nn.Conv2d, pool: nn.MaxPool2d) -> bool:
    """Whether kernels do this convolution and pooling: square, stride 1; windows of 2 x 2."""
    side, edge = layer.kernel_size[0], layer.padding[0]
    plain = is_plain(layer) and is_plain(pool) and switch.takes(layer.weight)
    plain = plain and layer.groups == 1 and layer.padding_mode == "zeros"
    square = layer.kernel_size == (side, side) and layer.padding == (edge, edge)
    dense = layer.stride == layer.dilation == (1, 1)
    halving = (pool.kernel_size, pool.stride, pool.padding, pool.dilation) == (2, 2, 0, 1)
    return plain and square and dense and halving and not (pool.ceil_mode or pool.return_indices)


def bias_of(layer: nn.Conv2d | nn.Linear) -> Tensor:
    """The bias of a layer; zeros where it has none."""
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias


def conv_relu_pool(x: Tensor, weight: Tensor, bias: Tensor, padding: int = 0) -> Tensor:
    """max_pool2d(relu(conv2d(x, weight, bias, padding=padding)), 2); stride 1, square weights."""
    _check(x, weight, bias)
    side = weight.shape[-1]
    if min(x.shape[2:]) + 2 * padding - side + 1 < 2:
        raise ValueError(
            f"images of {x.shape[2]} x {x.shape[3]} with a padding of {padding} leave nothing to "
            f"pool after a convolution with {side} x {side} weights"
        )
    if torch.is_grad_enabled() and any(one.requires_grad for one in (x, weight, bias)):
        pooled: Tensor = _ConvReLUPool.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
        return pooled
    memory = _bordered(in_lanes(x), padding)
    return as_batch(_forward(memory, weight, bias, None), len(x))


def _check(x: Tensor, weight: Tensor, bias: Tensor) -> None:
    """The kernels trust what they are given."""
    if not takes(x):
        raise ValueError(f"no kernel takes {len(x)} samples of {x.dtype} on {x.device}")
    if any(one.dtype != x.dtype or one.device != x.device for one in (weight, bias)):
        raise ValueError(f"weights of {weight.dtype} on {weight.device} for samples of {x.dtype}")
    outputs, channels, *sides = weight.shape
    if channels != x.shape[1] or sides[0] != sides[1] or bias.shape != (outputs,):
        raise ValueError(
            f"weights {tuple(weight.shape)} and a bias {tuple(bias.shape)} do not fit a batch "
            f"{tuple(x.shape)}"
        )


def _bordered(memory: Tensor, padding: int) -> Tensor:
    return F.pad(memory, (0, 0, *(padding,) * 4)).contiguous() if padding else memory


def _shape(memory: Tensor, weight: Tensor) -> ctypes.Structure:
    channels, height, width, lanes = memory.shape
    outputs, _, k, _ = weight.shape
    return Convolution(lanes, channels, height, width, outputs, k)


def _pooled(memory: Tensor, weight: Tensor) -> tuple[int, ...]:
    _, height, width, lanes = memory.shape
    side = weight.shape[-1]
    return len(weight), (height - side + 1) // 2, (width - side + 1) // 2, lanes


def _forward(memory: Tensor, weight: Tensor, bias: Tensor, chosen: Tensor | None) -> Tensor:
    """Without `chosen` in the form for frozen networks, which may round differently."""
    pooled = torch.empty(_pooled(memory, weight), dtype=memory.dtype)
    given = (memory, weight.contiguous(), bias.contiguous(), pooled)
    shape = _shape(memory, weight)
    if chosen is None:
        loaded().call("frozen", memory.dtype, *given, shape)
    else:
        loaded().call("forward", memory.dtype, *given, chosen, shape)
    return pooled


class _ConvReLUPool(torch.autograd.Function):
    """The forward pass remembers which of four places each window took its largest from."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        memory = _bordered(in_lanes(x, summed=True), padding)
        chosen = torch.empty(_pooled(memory, weight), dtype=torch.uint8)
        ctx.save_for_backward(x, weight, bias, memory, chosen)
        ctx.padding = padding
        return as_batch(_forward(memory, weight, bias, chosen), len(x))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # what is returned will be differentiated too
            return _differentiable_gradients(ctx, gradient)
        x, weight, _, memory, chosen = ctx.saved_tensors
        weight, dtype = weight.contiguous(), memory.dtype
        pooled, shape = in_lanes(gradient, summed=True), _shape(memory, weight)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            of_weight, of_bias = torch.empty_like(weight), weight.new_empty(len(weight))
            given = (memory, pooled, chosen, of_weight, of_bias)
            loaded().call("weight_gradient", dtype, *given, shape)
        if ctx.needs_input_grad[0]:
            whole = torch.empty_like(memory)
            loaded().call("input_gradient", dtype, pooled, chosen, weight, whole, shape)
            edge, (_, height, width, _) = ctx.padding, whole.shape
            inner = whole[:, edge : height - edge, edge : width - edge]
            of_x = as_batch(inner, len(x))
        return of_x, of_weight, of_bias, None


def _differentiable_gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The same gradients by torch, with a graph of their own."""
    x, weight, bias, *_ = ctx.saved_tensors
    needed = ctx.needs_input_grad[:3]
    leaves = [one for one, asked in zip((x, weight, bias), needed, strict=True) if asked]
    pooled = F.max_pool2d(F.relu(F.conv2d(x, weight, bias, padding=ctx.padding)), 2)
    gradients = iter(torch.autograd.grad(pooled, leaves, gradient, create_graph=True))
    return *(next(gradients) if asked else None for asked in needed), None
