"""Pairs of representations that clients sent: they lie in files and are read a batch at a time.

A client's file has blocks of pairs, (blocks x n, 2, ...), every block with one pair of each of its
n samples. An epoch reads one block of every client.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from coterie.core.bundle import Blob
from coterie.core.task import ClientId

Blobs = Mapping[ClientId, Blob]

_FEWEST = 2  # pairs of a batch: a contrast needs another sample


def stratified(sizes: Sequence[int], batch_size: int, generator: Generator) -> list[np.ndarray]:
    """Batches of one epoch over strata of these sizes: rows of (stratum, place in the stratum).

    Every place occurs once. Row j of a stratum of n stands at (j + 1/2) / n of the epoch, so each
    batch has every stratum in proportion to its size, to within two; strata of one size whose
    number divides the batch have equal shares exactly. Within a batch the order is drawn. A last
    batch of one joins the batch before it.
    """
    strata = np.concatenate([np.full(size, k) for k, size in enumerate(sizes)])
    places = np.concatenate([generator.permutation(size) for size in sizes])
    stand = np.concatenate([(np.arange(size) + 0.5) / size for size in sizes])
    rows = np.stack([strata, places], axis=1)[np.lexsort((strata, stand))]
    starts = list(range(0, len(rows), batch_size))
    if len(starts) > 1 and len(rows) - starts[-1] < _FEWEST:
        starts.pop()
    parts = np.split(rows, starts[1:])
    return [part[generator.permutation(len(part))] for part in parts]


@dataclass(frozen=True)
class Pairs:
    """A batch of pairs from several clients."""

    first: Tensor
    second: Tensor
    y: Tensor | None  # the labels, where clients sent them
    step: int  # in its epoch ...
    steps: int  # ... of so many

    def __len__(self) -> int:
        return len(self.first)


class PairPool:
    """What clients sent, mapped from its files; only batches are ever in memory."""

    def __init__(self, pairs: Blobs, labels: Blobs, blocks: int = 1) -> None:
        self._pairs = [blob.open() for _, blob in sorted(pairs.items())]
        self._labels = [np.asarray(blob.open()) for _, blob in sorted(labels.items())]
        self.sizes = [len(array) // blocks for array in self._pairs]
        self.blocks = blocks

    def __len__(self) -> int:
        """The pairs of an epoch."""
        return sum(self.sizes)

    def labels(self, epoch: int) -> np.ndarray | None:
        """The labels of an epoch's pairs, where clients sent them."""
        if not self._labels:
            return None
        sizes = zip(self._labels, self.sizes, strict=True)
        return np.concatenate([y[self._block(epoch, n)] for y, n in sizes])

    def batches(self, epoch: int, batch_size: int, generator: Generator) -> Iterator[Pairs]:
        """The batches of an epoch; its block is the next one in turn."""
        plan = stratified(self.sizes, batch_size, generator)
        offsets = [self._block(epoch, size).start for size in self.sizes]
        for step, rows in enumerate(plan):
            chosen = [(k, rows[:, 0] == k) for k in np.unique(rows[:, 0]).tolist()]
            held = np.empty((len(rows), *self._pairs[0].shape[1:]), self._pairs[0].dtype)
            y = np.empty(len(rows), np.int64)
            for k, here in chosen:
                places = offsets[k] + rows[here, 1]
                held[here] = self._pairs[k][places]
                if self._labels:
                    y[here] = self._labels[k][places]
            first, second = (torch.from_numpy(held[:, i].astype(np.float32)) for i in (0, 1))
            labels = torch.from_numpy(y) if self._labels else None
            yield Pairs(first, second, labels, step, len(plan))

    def _block(self, epoch: int, size: int) -> slice:
        start = (epoch % self.blocks) * size
        return slice(start, start + size)
