"""Representations as they are: a network that changes nothing, and data that are arrays."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from coterie.core.batch import Batch
from coterie.kit.networks import Frozen
from coterie.nets.heads import Network


def identity() -> Frozen:
    return Frozen(Network(nn.Identity()))


class Points:
    """A shard of given training and test samples."""

    def __init__(self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> None:
        self._parts = {False: train, True: test}
        self.classes = int(train[1].max()) + 1
        self.sweeps = 0

    def __len__(self) -> int:
        return len(self._parts[False][1])

    @property
    def labels(self) -> Tensor:
        return self._parts[False][1]

    def sweep(self, batch_size: int = 256, test: bool = False) -> Iterator[Batch]:
        self.sweeps += 1
        x, y = self._parts[test]
        for rows in torch.arange(len(y)).split(batch_size):
            yield Batch((x[rows],), y[rows], rows)


def clusters(count: int, classes: int, seed: int, spread: float = 0.05, width: int = 8) -> Points:
    """Classes around directions of their own; the wider the spread, the more they overlap."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.eye(width)[:classes]
    parts = []
    for samples in (count, count // 2):
        y = torch.arange(samples) % classes
        parts.append((centres[y] + spread * torch.randn(samples, width, generator=draw), y))
    return Points(*parts)
