"""The samples of a client, and the batches it trains and is tested on."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.batch import Batch, Stretch
from coterie.core.settings import Local
from coterie.data.augment import Augment, Choice, CropFlip, Normalise, Unchanged, choose_transform
from coterie.data.augment_views import Table
from coterie.data.datasets import Dataset
from coterie.data.skew import Shift
from coterie.native.images import gather
from coterie.native.switch import kernels_on, takes

_RESIDENT_BYTES = 256 * 2**20  # shards up to this size are normalised once, not per batch
_AHEAD = 4  # batches prepared together
_IMAGE_AXES = 4


def cut(samples: int, batch_size: int, drop_last: bool) -> list[tuple[int, int]]:
    """Compute where the batches of an epoch start and stop.

    No sample is left out: a last batch of one sample joins the batch before it, a shard smaller
    than a batch is one batch. `drop_last` drops an incomplete last batch unless it is the only one.
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
    """Training and test samples of one client, or of all clients on a simulated server."""

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
        self._labelled: DataShard | None = None

    def __len__(self) -> int:
        return len(self._rows[False])

    def labelled(self) -> "DataShard":
        """The same data without samples that have no label; itself if all have one."""
        if self._labelled is None:
            sources = (self._dataset.y_train, self._dataset.y_test)
            rows = [(self._rows[test], sources[test]) for test in (False, True)]
            if all((labels[own] >= 0).all() for own, labels in rows):
                return self
            train, test = (own[labels[own] >= 0] for own, labels in rows)
            self._labelled = DataShard(
                self._dataset,
                train,
                test,
                augment=self._augment,
                device=self._device,
                shift=self._shift,
                in_lanes=self._in_lanes,
            )
        return self._labelled

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
        """Yield the training batches of one round, reshuffled in every epoch.

        They cover `local.epochs` epochs, or as many batches as `local.steps` optimiser steps need.
        Without training samples there are none.
        """
        bounds = cut(len(self), local.batch_size, local.drop_last)
        if not bounds:
            return
        steps_an_epoch = -(-len(bounds) // local.accumulate)
        wanted = local.steps or local.epochs * steps_an_epoch
        labels = self.labels
        transforms = [choose_transform(view, self._augment) for view in views]
        plain = isinstance(transforms[0], Unchanged)
        ahead = _AHEAD
        simple = all(isinstance(transform, Unchanged | CropFlip) for transform in transforms)
        if simple and self._gathers_bytes(False):
            ahead = 1  # the kernel lays out each batch separately
        taken, epoch = 0, 0
        while taken < wanted:
            order = torch.from_numpy(draw(f"order/{epoch}").permutation(len(self)))
            drawn = [
                (transform, transform.draw(len(self), draw(f"view/{number}/{epoch}")))
                for number, transform in enumerate(transforms)
            ]
            edge = 0  # index of the first batch of the next stretch
            for position, (start, stop) in enumerate(bounds):
                rows, last = order[start:stop], position == len(bounds) - 1
                if position == edge:
                    edge += min(ahead, len(bounds) - position, (wanted - taken) * local.accumulate)
                    first = start
                    ahead_rows = order[first : bounds[edge - 1][1]]
                    stretch = Stretch(tuple(self._view(kind, ahead_rows, t) for kind, t in drawn))
                offset, done = start - first, taken / wanted
                images = tuple(view[offset : stop - first] for view in stretch.views)
                yield Batch(images, labels[rows], rows, epoch, last, done, plain, stretch, offset)
                taken += last or (position + 1) % local.accumulate == 0
                if taken == wanted:
                    return
            epoch += 1

    def sweep(self, batch_size: int = 256, test: bool = False) -> Iterator[Batch]:
        """Yield all training (or test) samples in order, without augmentation."""
        labels = self._labels(test)
        for start, stop in cut(len(labels), batch_size, drop_last=False):
            rows = torch.arange(start, stop)
            images = (self._unaugmented(rows, test),)
            yield Batch(images, labels[rows], rows, 0, stop == len(labels))

    def _labels(self, test: bool) -> Tensor:
        source = self._dataset.y_test if test else self._dataset.y_train
        labels = self._shift.change_labels(source[self._rows[test]])
        return torch.from_numpy(labels).to(self._device)

    def _stored(self, test: bool) -> Tensor:
        if test not in self._images:
            source = self._dataset.x_test if test else self._dataset.x_train
            rows = self._rows[test]
            images = self._shift.change_images(source[rows], rows, test)
            self._images[test] = torch.from_numpy(images).to(self._device).contiguous()
        return self._images[test]

    def _gathers_bytes(self, test: bool) -> bool:
        """Whether a kernel makes the batches from the stored bytes in one pass."""
        images = self._stored(test)
        stored = images.dtype == torch.uint8 and images.ndim == _IMAGE_AXES
        return self._in_lanes and stored and takes(images) and kernels_on()

    def _gather(self, rows: Tensor, test: bool, **crop: Any) -> Tensor:
        return gather(self._stored(test), rows, self._normalise.mean, self._normalise.std, **crop)

    def _unaugmented(self, rows: Tensor, test: bool) -> Tensor:
        images = self._stored(test)
        if self._gathers_bytes(test):
            return self._gather(rows, test)
        if test not in self._ready and images.numel() * 4 <= _RESIDENT_BYTES:
            self._ready[test] = self._normalise(self._normalise.unit(images))
        if test in self._ready:
            return self._ready[test][rows]
        return self._normalise(self._normalise.unit(images[rows]))

    def _view(self, transform: Augment, rows: Tensor, table: Table) -> Tensor:
        if isinstance(transform, Unchanged):
            return self._unaugmented(rows, test=False)
        if isinstance(transform, CropFlip) and self._gathers_bytes(False):
            reflect = transform.border == "reflect"
            return self._gather(rows, False, **table, padding=transform.padding, reflect=reflect)
        images = self._normalise.unit(self._stored(test=False)[rows])
        return self._normalise(transform(images, rows, table))
