"""Class representations: what a client says of its classes, beside its weights.

FedProc's prototypes and FedSSC's shared representations are both made of the sums of z over the
samples of a class, taken with the local model at the end of local training.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.kit.context import ClientContext
from coterie.kit.losses import class_sums
from coterie.kit.objective import Loss
from coterie.nets.heads import Network

Transform = Literal["test", "train"]


@dataclass(frozen=True)
class Representations:
    """The sums of z over every class of a client, and how many samples each has."""

    sums: Tensor  # (classes, width of z)
    counts: Tensor  # (classes,)
    feature_std: float  # sqrt(d) x mean deviation of z / |z|: near 1 when spread out, 0 collapsed

    @property
    def means(self) -> Tensor:
        """The mean of every class; zeros for one without samples."""
        return self.sums / self.counts.clamp(min=1)[:, None]


@torch.no_grad()
def represent(ctx: ClientContext, net: Network, transform: Transform = "test") -> Representations:
    """The class representations of a client's training data under a network.

    `test`: in eval mode, every sample once, as it is. `train`: as FedProc's published code does
    it, one augmented epoch in training mode and without a short last batch; BatchNorm statistics
    move on the way.
    """
    net.train(transform == "train")
    sums = counts = total = squares = torch.zeros((), dtype=torch.float64)
    once = replace(ctx.local, epochs=1, steps=0, accumulate=1, drop_last=True)
    for batch in ctx.sweep() if transform == "test" else ctx.batches("represent", local=once):
        z = net(batch.x).z.to(torch.float64)
        more, seen = class_sums(z, batch.y, ctx.data.classes)
        directions = F.normalize(z, dim=-1)
        sums, counts = sums + more.cpu(), counts + seen.cpu()
        total = total + directions.sum(dim=0).cpu()
        squares = squares + directions.square().sum(dim=0).cpu()
    samples = counts.sum()
    variance = squares / samples - (total / samples).square()
    spread = variance.clamp(min=0).sqrt().mean() * float(np.sqrt(len(total)))
    return Representations(sums.to(torch.float32), counts.to(torch.int64), float(spread))


def nothing_known(net: Network, name: str) -> tuple[Tensors, Tensors]:
    """Zero vectors for every class under a name, and the mask that says that none is known."""
    layer = net.classifier
    if not isinstance(layer, nn.Linear):
        raise ValueError("class representations need a linear classifier on z")
    vectors = torch.zeros(layer.out_features, layer.in_features)
    return {name: vectors}, {"valid": torch.zeros(layer.out_features, dtype=torch.bool)}


def classification(net: Network, batch: Batch) -> Loss:
    """Cross-entropy, recorded as the term `class`."""
    return Loss.sum({"class": F.cross_entropy(net(batch.x).logits, batch.y)})


def require_some(known: Tensor, remedy: str) -> None:
    """Without cross-entropy and without any class representation nothing would be trained."""
    if not bool(known.any()):
        raise ValueError(f"no class has a representation to train towards; {remedy}")


def all_but_classifier(net: Network) -> tuple[str, ...]:
    """The parts of a network that make its representation."""
    return tuple(name for name, _ in net.named_children() if name != "classifier")
