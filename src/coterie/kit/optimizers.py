"""Client optimisers by name, and the learning rate of a round."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from coterie.core.errors import ConfigError
from coterie.core.task import Round
from coterie.kit.fields import Count, Decay, NonNegative, Positive, PositiveCount
from coterie.nets.native.sgd import FlatSGD, takes


@dataclass(frozen=True)
class Local:
    """How a client trains in one round: the `[local]` table."""

    epochs: PositiveCount = 1
    steps: Count = 0  # optimiser steps; above 0 it replaces `epochs`
    batch_size: Annotated[int, Ge(2)] = 64
    optimizer: Literal["sgd", "adam", "adamw", "lars"] = "sgd"
    lr: Positive = 0.01
    momentum: Decay = 0.9
    nesterov: bool = False
    weight_decay: NonNegative = 1e-5
    schedule: Literal["constant", "cosine", "step"] = "constant"  # over the rounds of a stage
    warmup: Count = 0  # rounds over which lr rises linearly
    milestones: tuple[Count, ...] = ()  # rounds at which "step" multiplies lr by gamma
    gamma: Positive = 0.1
    accumulate: PositiveCount = 1  # batches per optimiser step
    clip: NonNegative = 0.0  # the largest gradient norm; 0: unlimited
    drop_last: bool = False  # leave out a short last batch, where a whole one exists

    def __post_init__(self) -> None:
        if self.nesterov and (self.momentum == 0 or self.optimizer != "sgd"):
            raise ConfigError(
                "local.nesterov = true needs local.optimizer = 'sgd' and local.momentum above 0"
            )
        if self.schedule == "step" and not self.milestones:
            raise ConfigError("local.schedule = 'step' needs local.milestones, e.g. [60, 80]")

    def rate(self, round: Round) -> float:
        """The learning rate of a round.

        Linear warm-up over the first `warmup` rounds; then constant, `lr (1 + cos(pi t / T)) / 2`,
        or times `gamma` at each milestone.
        """
        if round.step < self.warmup:
            return self.lr * (round.step + 1) / self.warmup
        if self.schedule == "cosine":
            done = (round.step - self.warmup) / max(1, round.steps - self.warmup)
            return 0.5 * self.lr * (1.0 + math.cos(math.pi * done))
        if self.schedule == "step":
            passed = sum(round.step >= milestone for milestone in self.milestones)
            return self.lr * float(self.gamma**passed)
        return self.lr


class LARS(torch.optim.Optimizer):
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


def local_optimizer(
    local: Local, parameters: list[nn.Parameter], lr: float, native: bool
) -> torch.optim.Optimizer | FlatSGD:
    """What a client's steps are made by; SGD is one pass over a flat buffer where kernels are."""
    if native and local.optimizer == "sgd" and takes(parameters):
        return FlatSGD(
            parameters,
            lr=lr,
            momentum=local.momentum,
            nesterov=local.nesterov,
            weight_decay=local.weight_decay,
        )
    return make_optimizer(local, parameters, lr)


def make_optimizer(
    local: Local, parameters: list[nn.Parameter], lr: float
) -> torch.optim.Optimizer:
    """A new optimiser; momentum is never carried from one round to the next."""
    if local.optimizer == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=local.momentum,
            nesterov=local.nesterov,
            weight_decay=local.weight_decay,
        )
    if local.optimizer == "lars":
        return LARS(parameters, lr, local.momentum, local.weight_decay)
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, weight_decay=local.weight_decay)
