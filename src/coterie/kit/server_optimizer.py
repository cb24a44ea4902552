"""The server optimiser: what is done with the averaged update of any method.

    d = w - mean(w_k)                                    the pseudo-gradient
    momentum  v = rho v + (1 - dampening) d,             w = w - lr v             (FedAvgM)
    adam      v = b2 v + (1 - b2) d^2                    w = w - lr m / (sqrt(v) + tau)
    yogi      v = v - (1 - b2) d^2 sign(v - d^2)         with m = b1 m + (1 - b1) d
    adagrad   v = v + d^2                                and v = tau^2 at the start (FedOpt)

FedAvgM is undamped as Hsu et al. write it; `server.dampening = 0.9` is what MOON's code does.
FedOpt (Reddi et al.) has no bias correction, and b1 = 0 in FedAdagrad. Buffers take the plain
average.
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
    names = f"{FIRST}/{group}", f"{SECOND}/{group}"
    moments = [server.get(name) for name in names]
    new: Tensors = {}
    for name, average in averaged.items():
        if name not in parameters or not average.is_floating_point():
            new[name] = average
            continue
        gap = old[name].to(torch.float64) - average.to(torch.float64)
        before = (held[name].to(torch.float64) if name in held else None for held in moments)
        move, after = _move(settings, gap, *before)
        for held, moment in zip(moments, after, strict=False):
            held[name] = moment.to(average.dtype)
        new[name] = (old[name].to(torch.float64) - settings.lr * move).to(average.dtype)
    kept = {name: held for name, held in zip(names, moments, strict=True) if held}
    return server.replace(**{group: new}, **kept)


def _move(
    settings: ServerSettings, gap: Tensor, first: Tensor | None, second: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The direction of a step, and the moments after it."""
    if settings.optimizer == "none":
        return gap, ()
    before = torch.zeros_like(gap) if first is None else first
    if settings.optimizer == "momentum":
        velocity = settings.momentum * before + (1.0 - settings.dampening) * gap
        return velocity, (velocity,)
    mean = settings.beta1 * before + (1.0 - settings.beta1) * gap
    square = gap * gap
    spread = torch.full_like(gap, settings.tau**2) if second is None else second
    if settings.optimizer == "adam":
        spread = settings.beta2 * spread + (1.0 - settings.beta2) * square
    elif settings.optimizer == "yogi":
        spread = spread - (1.0 - settings.beta2) * square * torch.sign(spread - square)
    else:
        spread = spread + square
    return mean / (spread.sqrt() + settings.tau), (mean, spread)
