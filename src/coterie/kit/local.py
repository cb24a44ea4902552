"""The local loop: one for every method."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.core.errors import Diverged
from coterie.core.settings import Local
from coterie.kit.context import ClientContext
from coterie.kit.objective import Loss
from coterie.kit.optimizers import local_optimizer
from coterie.nets.heads import Network

Hook = Callable[[Network], None] | None
LossFn = Callable[[Network, Batch], Loss]


class Stepper:
    """Takes losses, makes optimiser steps: accumulation, hook, clipping, finite check.

    `only` names the heads and parts that are trained; all others are frozen and in eval mode.
    `hook` sees the network when a step's gradients are complete and before they are clipped,
    `after` when the step is made. `local` replaces the client's settings, `lr` the round's rate.
    """

    def __init__(
        self,
        ctx: ClientContext,
        net: Network,
        *,
        only: Iterable[str] = (),
        hook: Hook = None,
        after: Hook = None,
        local: Local | None = None,
        lr: float | None = None,
        name: str = "",
    ) -> None:
        self.ctx, self.net, self.hook, self.after = ctx, net, hook, after
        self.local = local or ctx.local
        self.steps = 0
        self._prefix = f"{name}_" if name else ""
        self._pending = 0
        self._samples = 0
        self._sums: dict[str, float] = {}
        freeze_all_but(net, tuple(only))
        self._trained = [p for p in net.parameters() if p.requires_grad]
        rate = self.local.rate(ctx.round) if lr is None else lr
        self._optimizer = local_optimizer(self.local, self._trained, rate)

    def __call__(self, loss: Loss, batch: Batch) -> bool:
        """Descend one batch's loss; True when that completed an optimiser step."""
        self._count(loss, len(batch))
        accumulate = self.local.accumulate
        (loss.total / accumulate if accumulate > 1 else loss.total).backward()  # type: ignore[no-untyped-call]
        self._pending += 1
        if self._pending < accumulate and not batch.last:
            return False
        if self._pending < accumulate:
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad.mul_(accumulate / self._pending)
        self._step(batch.progress)
        return True

    def _step(self, progress: float) -> None:
        if self.hook is not None:
            self.hook(self.net)
        if self.local.clip > 0:
            nn.utils.clip_grad_norm_(self._trained, self.local.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self.after is not None:
            self.after(self.net)
        self._pending = 0
        self.steps += 1
        place = self.ctx.round
        self.ctx.objective.after_step(self.net, (place.step + progress) / place.steps)

    def _count(self, loss: Loss, samples: int) -> None:
        value = float(loss.total.detach())
        if not math.isfinite(value):
            raise Diverged(f"the loss is {value} after {self.steps} steps")
        self._samples += samples
        parts = {"loss": value}
        parts |= {f"loss_{name}": float(term.detach()) for name, term in loss.terms.items()}
        parts |= {name: float(note.detach()) for name, note in loss.notes.items()}
        for name, part in parts.items():
            key = self._prefix + name
            self._sums[key] = self._sums.get(key, 0.0) + samples * part

    def report(self) -> None:
        """Leave the mean losses and the number of steps in the client's metrics."""
        means = {name: value / max(1, self._samples) for name, value in self._sums.items()}
        self.ctx.metrics.update(means)
        self.ctx.metrics[f"{self._prefix}steps"] = float(self.steps)


def train(
    ctx: ClientContext, net: Network, loss: LossFn, *, only: Iterable[str] = (), hook: Hook = None
) -> int:
    """Train a network over this round's batches; the number of optimiser steps taken."""
    stepper = Stepper(ctx, net, only=only, hook=hook)
    for batch in ctx.batches():
        stepper(loss(net, batch), batch)
    stepper.report()
    return stepper.steps


def freeze_all_but(net: Network, only: tuple[str, ...]) -> None:
    """Freeze every part of a network that is not named; nothing named: nothing is frozen."""
    if not only:
        return
    parts = {name for name, _ in net.named_children()}
    if unknown := set(only) - parts:
        raise ValueError(f"the network has no {sorted(unknown)[0]!r}; it has: {sorted(parts)}")
    for name, part in net.named_children():
        if name not in only:
            part.requires_grad_(False)
            part.eval()


@torch.no_grad()
def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no floating entry is NaN or infinite."""
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def parameters(net: Network) -> Tensors:
    """Copies of the parameters that are trained; no buffers."""
    return {n: p.detach().clone() for n, p in net.named_parameters() if p.requires_grad}


def pull_towards(anchor: Tensors, weight: float) -> Hook:
    """A hook that adds weight (w - anchor) to a step's gradients; None for a weight of 0.

    Parameters that are not in the anchor are left alone.
    """

    def pull(net: Network) -> None:
        for name, parameter in net.named_parameters():
            if parameter.grad is not None and name in anchor:
                parameter.grad.add_(parameter.detach() - anchor[name], alpha=weight)

    return pull if weight > 0 else None
