"""SGD over one flat buffer of parameters, in one pass."""

import ctypes
from collections.abc import Sequence

import torch
from torch import nn

from coterie.native import switch
from coterie.native.interface import Descent
from coterie.native.library import loaded


class FlatSGD:
    """SGD with momentum, Nesterov's form and weight decay, as `torch.optim.SGD` has them.

        d = g + decay w,   v = momentum v + d,   w = w - lr (v  or  d + momentum v)

    The parameters become views of one buffer; their gradients stay where they are.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        self._parameters = list(parameters)
        sizes = [parameter.numel() for parameter in self._parameters]
        self._weights = torch.empty(sum(sizes))
        self._velocities = torch.zeros(sum(sizes))
        parts = torch.split(self._weights, sizes) if sizes else ()
        for parameter, part in zip(self._parameters, parts, strict=True):
            part.copy_(parameter.detach().flatten())
            parameter.data = part.view(parameter.shape)
        self._sizes = torch.tensor(sizes, dtype=torch.int64)
        self._gradients = (ctypes.c_void_p * len(sizes))()
        self._step = Descent(len(sizes), lr, momentum, weight_decay, nesterov)

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        held = [None if p.grad is None else p.grad.contiguous() for p in self._parameters]
        self._gradients[:] = [None if one is None else one.data_ptr() for one in held]
        given = (self._weights, self._velocities, self._gradients, self._sizes, self._step)
        loaded().call("sgd", torch.float32, *given)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self._parameters:
            parameter.grad = None


def takes(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether the kernel can work on these parameters."""
    return switch.takes(*parameters) and all(p.dtype == torch.float32 for p in parameters)
