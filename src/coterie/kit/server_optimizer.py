"""The server optimiser: what is done with the averaged update of any method.

    d = w - mean(w_k)                                    the pseudo-gradient
    momentum  v = rho v + (1 - dampening) d,             w = w - lr v             (FedAvgM)
    adam      v = b2 v + (1 - b2) d^2                    w = w - lr m / (sqrt(v) + tau)
    yogi      v = v - (1 - b2) d^2 sign(v - d^2)         with m = b1 m + (1 - b1) d
    adagrad   v = v + d^2                                and v = tau^2 at the start (FedOpt)

FedAvgM is undamped as Hsu et al. write it; `server.dampening = 0.9` is what MOON's code does.
FedOpt (Reddi et al.) has no bias correction. Buffers take the plain average.
"""

from collections.abc import Set

import torch
from torch import Tensor

from coterie.core.bundle import ServerState, Tensors
from coterie.core.settings import ServerSettings

FIRST, SECOND = "server_first_moment", "server_second_moment"


def step_server(
    settings: ServerSettings,
    server: ServerState,
    averaged: Tensors,
    parameters: Set[str],
    group: str = "model",
) -> ServerState:
    """The next state: `group` moved, and this optimiser's moments beside it."""
    old = server[group]
    if settings.optimizer == "none" and settings.lr == 1.0:
        return server.replace(**{group: averaged})
    moments = f"{FIRST}/{group}", f"{SECOND}/{group}"
    first, second = (server.get(moment) for moment in moments)
    new: Tensors = {}
    for name, average in averaged.items():
        if name not in parameters or not average.is_floating_point():
            new[name] = average
            continue
        gap = old[name].to(torch.float64) - average.to(torch.float64)
        move = _move(settings, name, gap, first, second, average.dtype)
        new[name] = (old[name].to(torch.float64) - settings.lr * move).to(average.dtype)
    found = zip(moments, (first, second), strict=True)
    return server.replace(**{group: new}, **{place: held for place, held in found if held})


def _move(
    settings: ServerSettings,
    name: str,
    gap: Tensor,
    first: Tensors,
    second: Tensors,
    dtype: torch.dtype,
) -> Tensor:
    if settings.optimizer == "none":
        return gap
    before = first[name].to(torch.float64) if name in first else torch.zeros_like(gap)
    if settings.optimizer == "momentum":
        velocity = settings.momentum * before + (1.0 - settings.dampening) * gap
        first[name] = velocity.to(dtype)
        return velocity
    mean = settings.beta1 * before + (1.0 - settings.beta1) * gap
    square = gap * gap
    if name in second:
        spread = second[name].to(torch.float64)
    else:
        spread = torch.full_like(gap, settings.tau**2)
    if settings.optimizer == "adam":
        spread = settings.beta2 * spread + (1.0 - settings.beta2) * square
    elif settings.optimizer == "yogi":
        spread = spread - (1.0 - settings.beta2) * square * torch.sign(spread - square)
    else:
        spread = spread + square
    first[name], second[name] = mean.to(dtype), spread.to(dtype)
    return mean / (spread.sqrt() + settings.tau)
