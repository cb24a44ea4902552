"""The precision of a forward pass: bfloat16 inside networks, where a run asks for it.

Convolutions and linear layers then multiply in bfloat16 and add up in float32 (torch's autocast).
Weights, gradients, optimisers, statistics of BatchNorm, losses and averages stay float32, and so
does what a network hands out.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch
from torch import Tensor

from coterie.core.errors import ConfigError

_BF16: ContextVar[bool] = ContextVar("bf16", default=False)
_IMAGES = 4  # axes of a batch of them


@contextmanager
def bf16(on: bool) -> Iterator[None]:
    """Compute forward passes in bfloat16, or in float32, inside a `with` block."""
    before = _BF16.set(on)
    try:
        yield
    finally:
        _BF16.reset(before)


def casting(x: Tensor) -> AbstractContextManager[object]:
    """Return the context in which a network computes with `x`."""
    return torch.autocast(x.device.type, torch.bfloat16) if _BF16.get() else nullcontext()


def lay_out(x: Tensor) -> Tensor:
    """Return images with their channels innermost in memory, which is faster in bfloat16."""
    return (
        x.contiguous(memory_format=torch.channels_last) if _BF16.get() and x.ndim == _IMAGES else x
    )


def to_float32(x: Tensor) -> Tensor:
    """Return what `casting` may have made bfloat16 as float32; what others cast stays as it is."""
    return x.float() if _BF16.get() and x.dtype is torch.bfloat16 else x


def check_bf16(device: str) -> None:
    """Refuse bfloat16 on a device that only emulates it."""
    if device.startswith("cuda"):
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ConfigError(f"net.precision = 'bf16': {device} has no bfloat16; use 'fp32'")
        return
    if not (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        raise ConfigError(
            "net.precision = 'bf16': this processor has no instructions for bfloat16 (avx512_bf16 "
            "or amx_bf16), and to emulate them takes several times as long; use 'fp32'"
        )
