"""What methods with models of their clients' own share: a step of adaptation, a second model."""

from dataclasses import replace

import torch

from coterie.core.bundle import Tensors
from coterie.kit.context import ClientContext
from coterie.kit.local import Stepper
from coterie.nets.heads import Network

PERSONAL = "personal"  # the group of a client's state, and the slot of its network


def adapt(ctx: ClientContext, weights: Tensors, steps: int, lr: float | None) -> Tensors:
    """theta = Theta - beta grad L(Theta; B): plain SGD steps on a copy, which is returned.

    beta is `lr`; None: `local.lr` as written, since a step at the rate of a schedule's last round
    moves nothing. B is one batch of `batch_size` x `accumulate` samples, drawn for the purpose. In
    training mode, so that statistics of norms move with the copy; where they stay on clients, the
    copy begins with this client's. A client without training samples keeps the model as it came.
    """
    net = ctx.net(weights)
    if not len(ctx.data):
        return ctx.weights(net)
    plain = replace(ctx.local, optimizer="sgd", momentum=0.0, nesterov=False, weight_decay=0.0)
    stepper = Stepper(ctx, net, local=plain, lr=ctx.local.lr if lr is None else lr)
    while stepper.steps < steps:
        for batch in ctx.batches(f"adapt/{stepper.steps}"):
            if stepper(ctx.objective.loss(net, batch), batch) and stepper.steps == steps:
                break
    return ctx.weights(net)


def both_networks(ctx: ClientContext, weights: Tensors, own: Tensors) -> tuple[Network, Network]:
    """The networks of the global model as received, and of the client's own model."""
    return ctx.net(weights), ctx.net(own, slot=PERSONAL)


def buffers(net: Network) -> Tensors:
    """Copies of what is not trained: statistics of norms."""
    return {name: buffer.detach().clone() for name, buffer in net.named_buffers()}


@torch.no_grad()
def lay(net: Network, weights: Tensors) -> None:
    """Lay weights into a network; names that are not among them stay."""
    places = net.state_dict()
    for name, tensor in weights.items():
        places[name].copy_(tensor)
