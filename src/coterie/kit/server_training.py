"""Training on the server: epochs over pairs that clients sent.

    rate = lr B / 256   up to it linearly over the warm-up, then one cosine to 0 over all epochs

The optimiser lives through all epochs: what it remembers goes from one to the next as tensors.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.core.errors import Diverged
from coterie.core.settings import Local
from coterie.kit.context import ServerContext
from coterie.kit.objective import Loss
from coterie.kit.optimizers import make_optimizer
from coterie.kit.pairs import PairPool, Pairs
from coterie.nets.heads import Network

_FULL_BATCH = 256  # the batch that a learning rate is stated for

Watch = Callable[[Loss, Pairs, float], Mapping[str, float]]


def full_rate(lr: float, batch_size: int) -> float:
    """The rate for batches of another size than 256: in proportion."""
    return lr * batch_size / _FULL_BATCH


def share_at(step: int, steps: int, warmup: int) -> float:
    """The share of the full rate in a step: (k + 1) / W in the warm-up, then a cosine to 0."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class ServerTraining:
    """How the server trains."""

    batch_size: int
    optimizer: Literal["lars", "sgd", "adam"]
    lr: float  # for a batch of 256
    momentum: float
    weight_decay: float
    warmup: int  # epochs

    def epoch(
        self, ctx: ServerContext, net: Network, pool: PairPool, memory: Tensors, watch: Watch
    ) -> Tensors:
        """Train for one round of the stage, an epoch; what the optimiser remembers after it.

        `watch` sees every batch's loss before the step, with the share of the full rate; the means
        of what it returns are recorded, as are those of the loss and its notes.
        """
        settings = Local(
            optimizer=self.optimizer, momentum=self.momentum, weight_decay=self.weight_decay
        )
        optimizer = make_optimizer(settings, [p for p in net.parameters() if p.requires_grad], 1.0)
        restore_optimizer(optimizer, memory)
        device = next(net.parameters()).device
        epoch, epochs = ctx.round.step, ctx.round.steps
        rate, sums = 0.0, dict[str, float]()
        for pairs in pool.batches(epoch, self.batch_size, ctx.generator("order")):
            step, steps = epoch * pairs.steps + pairs.step, epochs * pairs.steps
            share = share_at(step, steps, self.warmup * pairs.steps)
            rate = share * full_rate(self.lr, self.batch_size)
            for group in optimizer.param_groups:
                group["lr"] = rate
            views = (pairs.first.to(device), pairs.second.to(device))
            index = torch.arange(len(pairs), device=device)
            y = index if pairs.y is None else pairs.y.to(device)
            loss = ctx.objective.loss(net, Batch(views, y, index))
            values = {"loss": float(loss.total.detach())}
            if not math.isfinite(values["loss"]):
                raise Diverged(f"the server's loss is {values['loss']} in epoch {epoch + 1}")
            values |= {name: float(note.detach()) for name, note in loss.notes.items()}
            values |= watch(loss, pairs, share)
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + len(pairs) * value
            optimizer.zero_grad(set_to_none=True)
            loss.total.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            ctx.objective.after_step(net, (step + 1) / steps)
        ctx.metrics.update({name: total / len(pool) for name, total in sums.items()})
        ctx.metrics.update(rate=rate, pairs=float(len(pool)))
        return optimizer_tensors(optimizer)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """What an optimiser remembers, as tensors that a state can hold."""
    memory = optimizer.state_dict()["state"]
    return {
        f"{place}.{name}": value.detach().cpu().clone()
        for place, entries in memory.items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Lay back what `optimizer_tensors` took out."""
    memory: dict[int, Tensors] = {}
    for name, value in tensors.items():
        place, _, entry = name.partition(".")
        memory.setdefault(int(place), {})[entry] = value.clone()
    optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})


@torch.no_grad()
def descend_linear(head: Tensors, x: Tensor, y: Tensor, rate: float, momentum: float) -> float:
    """One step of a linear classifier on constant features, in place; the loss before it.

    `head` has `weight`, `bias` and their velocities `push` and `lift`.
    """
    logits = x @ head["weight"].T + head["bias"]
    wanted = torch.eye(len(head["bias"]), dtype=x.dtype, device=x.device)[y]
    error = (logits.softmax(dim=1) - wanted) / len(y)
    head["push"].mul_(momentum).add_(error.T @ x)
    head["lift"].mul_(momentum).add_(error.sum(dim=0))
    head["weight"].sub_(head["push"], alpha=rate)
    head["bias"].sub_(head["lift"], alpha=rate)
    return float(F.cross_entropy(logits, y))
