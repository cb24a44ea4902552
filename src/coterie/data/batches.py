"""A client's share of the data, and how it is walked through."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.batch import Batch, Stretch
from coterie.core.settings import Local
from coterie.data.augment import Augment, Choice, CropFlip, Normalise, Table, Unchanged, make_view
from coterie.data.datasets import Dataset
from coterie.data.skew import Shift
from coterie.native.images import gather
from coterie.native.switch import kernels_on, takes

_RESIDENT_BYTES = 256 * 2**20  # up to so large a shard is normalised once, not per batch
_AHEAD = 4  # batches that are prepared together
_IMAGE_AXES = 4


def cut(samples: int, batch_size: int, drop_last: bool) -> list[tuple[int, int]]:
    """Where the batches of an epoch start and stop.

    No sample is left out: a last batch of one joins the batch before it, a shard smaller than a
    batch is one batch. `drop_last` leaves out a short last batch where there is a whole one.
    """
    size = max(1, min(batch_size, samples))
    bounds = [(start, min(start + size, samples)) for start in range(0, samples, size)]
    if len(bounds) > 1:
        start, stop = bounds[-1]
        if drop_last and stop - start < size:
            bounds.pop()
        elif stop - start == 1:
            bounds[-2:] = [(bounds[-2][0], stop)]
    return bounds


class DataShard:
    """Training and test samples of one client (or, on the server of a simulation, of all)."""

    def __init__(
        self,
        dataset: Dataset,
        train: np.ndarray,
        test: np.ndarray,
        *,
        augment: Choice = "none",
        device: torch.device | str = "cpu",
        shift: Shift | None = None,
        in_lanes: bool = False,  # samples innermost in memory, where a kernel lays them out so
    ) -> None:
        self.classes = dataset.classes
        self._dataset, self._rows = dataset, {False: train, True: test}
        self._augment, self._device = augment, torch.device(device)
        self._shift, self._in_lanes = shift or Shift(), in_lanes
        self._normalise = Normalise(dataset.mean, dataset.std)
        self._images: dict[bool, Tensor] = {}
        self._ready: dict[bool, Tensor] = {}

    def __len__(self) -> int:
        return len(self._rows[False])

    @property
    def tests(self) -> int:
        """The number of test samples."""
        return len(self._rows[True])

    @property
    def labels(self) -> Tensor:
        """The training labels, by position in the shard."""
        return self._labels(test=False)

    def batches(
        self, local: Local, views: tuple[str, ...], draw: Callable[[str], np.random.Generator]
    ) -> Iterator[Batch]:
        """The training batches of one round, shuffled anew in every epoch.

        They cover `local.epochs` epochs, or as many as `local.steps` optimiser steps take.
        """
        bounds = cut(len(self), local.batch_size, local.drop_last)
        steps_an_epoch = -(-len(bounds) // local.accumulate)
        wanted = local.steps or local.epochs * steps_an_epoch
        labels, transforms = self.labels, [self._transform(view) for view in views]
        plain = isinstance(transforms[0], Unchanged)
        ahead = _AHEAD
        if all(isinstance(one, Unchanged | CropFlip) for one in transforms) and self._bytes(False):
            ahead = 1  # batch by batch, each laid out by itself
        taken, epoch = 0, 0
        while taken < wanted:
            order = torch.from_numpy(draw(f"order/{epoch}").permutation(len(self)))
            tables = [
                transform.draw(len(self), draw(f"view/{place}/{epoch}"))
                for place, transform in enumerate(transforms)
            ]
            edge = 0  # the batch that begins the next stretch
            for position, (start, stop) in enumerate(bounds):
                rows, last = order[start:stop], position == len(bounds) - 1
                if position == edge:
                    edge += min(ahead, len(bounds) - position, (wanted - taken) * local.accumulate)
                    first = start
                    stretch = self._stretch(order[first : bounds[edge - 1][1]], transforms, tables)
                pictures = tuple(view[start - first : stop - first] for view in stretch.views)
                yield Batch(
                    pictures,
                    labels[rows],
                    rows,
                    epoch,
                    last,
                    taken / wanted,
                    plain,
                    stretch,
                    start - first,
                )
                taken += last or (position + 1) % local.accumulate == 0
                if taken == wanted:
                    return
            epoch += 1

    def _stretch(
        self, rows: Tensor, transforms: Sequence[Augment], tables: Sequence[Table]
    ) -> Stretch:
        pairs = zip(transforms, tables, strict=True)
        return Stretch(tuple(self._view(transform, rows, table) for transform, table in pairs))

    def sweep(self, batch_size: int = 256, test: bool = False) -> Iterator[Batch]:
        """All training (or test) samples in order, with the test transform."""
        labels = self._labels(test)
        for start, stop in cut(len(labels), batch_size, drop_last=False):
            rows = torch.arange(start, stop)
            images = (self._plain(rows, test),)
            yield Batch(images, labels[rows], rows, 0, stop == len(labels))

    def _labels(self, test: bool) -> Tensor:
        source = self._dataset.y_test if test else self._dataset.y_train
        labels = self._shift.labels(source[self._rows[test]])
        return torch.from_numpy(labels).to(self._device)

    def _stored(self, test: bool) -> Tensor:
        if test not in self._images:
            source = self._dataset.x_test if test else self._dataset.x_train
            rows = self._rows[test]
            images = self._shift.images(source[rows], rows, test)
            self._images[test] = torch.from_numpy(images).to(self._device).contiguous()
        return self._images[test]

    def _bytes(self, test: bool) -> bool:
        """Whether a kernel makes the batches, straight from stored bytes."""
        images = self._stored(test)
        stored = images.dtype == torch.uint8 and images.ndim == _IMAGE_AXES
        return self._in_lanes and stored and takes(images) and kernels_on()

    def _plain(self, rows: Tensor, test: bool) -> Tensor:
        images = self._stored(test)
        if self._bytes(test):
            return gather(images, rows, self._normalise.mean, self._normalise.std)
        if test not in self._ready and images.numel() * 4 <= _RESIDENT_BYTES:
            self._ready[test] = self._normalise(self._normalise.unit(images))
        if test in self._ready:
            return self._ready[test][rows]
        return self._normalise(self._normalise.unit(images[rows]))

    def _view(self, transform: Augment, rows: Tensor, table: Table) -> Tensor:
        if isinstance(transform, Unchanged):
            return self._plain(rows, test=False)
        if isinstance(transform, CropFlip) and self._bytes(False):
            return gather(
                self._stored(False),
                rows,
                self._normalise.mean,
                self._normalise.std,
                **table,
                padding=transform.padding,
                reflect=transform.border == "reflect",
            )
        images = self._normalise.unit(self._stored(test=False)[rows])
        return self._normalise(transform(images, rows, table))

    def _transform(self, view: str) -> Augment:
        return make_view(view, self._augment)
