"""MOON's term and its gradient in one call."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.native import switch
from coterie.native.interface import Contrast
from coterie.native.library import loaded

_AXES = 2


def takes(z: Tensor, references: Sequence[Tensor]) -> bool:
    """Whether the kernel can work on these representations."""
    if not switch.takes(z, *references) or z.dtype not in (torch.float32, torch.float64):
        return False
    return z.ndim == _AXES and all((r.shape, r.dtype) == (z.shape, z.dtype) for r in references)


def contrast(
    z: Tensor, references: Sequence[Tensor], tau: float, shortest: float
) -> tuple[Tensor, Tensor]:
    """Means over the rows of z and of the references, and the gradient of the first for z.

    The means are -log softmax(cos_k / tau)_0 and cos_k for every k, where cos_k is the cosine
    between a row of z and that of the k-th reference. No length is taken to be below `shortest`.
    """
    z, held = z.contiguous(), [one.contiguous() for one in references]
    slope, means = torch.empty_like(z), z.new_empty(1 + len(held))
    addresses = (ctypes.c_void_p * len(held))(*(one.data_ptr() for one in held))
    shape = Contrast(*z.shape, len(held), tau, shortest)
    loaded().call("contrast", z.dtype, z, addresses, slope, means, shape)
    return means, slope
