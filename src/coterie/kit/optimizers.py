"""Client optimisers by name, and the learning rate of a round."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from coterie.core.settings import Local
from coterie.native.sgd import FlatSGD, takes
from coterie.native.switch import kernels_on

Parameters = list[nn.Parameter]


class LARS(Optimizer):
    """SGD whose step is scaled per layer (You, Gitman, Ginsburg 2017), in the form of SimCLR.

        g' = g + wd w,   r = trust |w| / |g'|,   v = momentum v + r g',   w = w - lr v

    The paper's own ratio has |g| + wd |w| below; SimCLR's code and its followers have |g'|.
    Vectors (biases, norm parameters) take a plain momentum step without decay, as is usual.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, weight.grad, group)

    def _move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if weight.ndim > 1:
            gradient = gradient + group["weight_decay"] * weight
            size, slope = weight.norm(), gradient.norm()
            ratio = torch.where((size > 0) & (slope > 0), group["trust"] * size / slope, 1.0)
            gradient = gradient * ratio
        velocity = self.state[weight].setdefault("velocity", torch.zeros_like(weight))
        velocity.mul_(group["momentum"]).add_(gradient)
        weight.sub_(velocity, alpha=group["lr"])


def local_optimizer(local: Local, parameters: Parameters, lr: float) -> Optimizer | FlatSGD:
    """The optimiser of a client; with the kernels SGD is one pass over a flat buffer."""
    if local.optimizer == "sgd" and takes(parameters) and kernels_on():
        return FlatSGD(parameters, lr=lr, **_sgd_settings(local))
    return make_optimizer(local, parameters, lr)


def _sgd_settings(local: Local) -> dict[str, Any]:
    return {name: getattr(local, name) for name in ("momentum", "nesterov", "weight_decay")}


def make_optimizer(local: Local, parameters: Parameters, lr: float) -> Optimizer:
    """A new optimiser; momentum is never carried from one round to the next."""
    if local.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=lr, **_sgd_settings(local))
    if local.optimizer == "lars":
        return LARS(parameters, lr, local.momentum, local.weight_decay)
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=local.weight_decay)
