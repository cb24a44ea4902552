"""Median: the server takes the median of every entry (Yin et al., ICML 2018).

    w[i] = median over k in S of w_k[i]

Every client counts once, however many samples it has. With an even number of clients the median is
the mean of the two in the middle. Integer buffers take the lower of the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from coterie.kit import (
    Answer,
    Bundle,
    ClientContext,
    Gather,
    Method,
    Payload,
    Reply,
    ServerContext,
    ServerState,
    State,
    stock,
    train,
)


def median(values: list[Tensor]) -> Tensor:
    """The median of every entry over a list of tensors of one shape."""
    ordered = torch.stack(values).sort(dim=0).values
    low, high = ordered[(len(values) - 1) // 2], ordered[len(values) // 2]
    return (low + high) / 2 if low.is_floating_point() else low


@final
@dataclass(frozen=True)
class Median(Method):
    """Train locally, take the median."""

    objectives = None
    reduce: ClassVar = {"model": Gather()}  # every upload by itself, not their mean

    init = stock.start_from_net
    broadcast = stock.send_model
    model = stock.global_model

    def client_update(self, ctx: ClientContext, down: Payload, state: State) -> Answer:
        """Train the received model on this client's data."""
        net = ctx.net(down["model"])
        train(ctx, net, ctx.objective.loss)
        return Bundle({"model": ctx.shared(net)}), None

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """Replace the model by the median."""
        uploads = list(ctx.reduce(replies).gathered["model"].values())
        names = uploads[0]
        return ctx.step(server, {name: median([u[name] for u in uploads]) for name in names})
