"""Augmentation: what is done to a client's images in training, one draw per sample and epoch.

A transform draws its parameters for the whole shard as one table per epoch and is then applied to
any batch of rows: the same image gets the same parameters however the batches are cut.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Table = Mapping[str, Tensor]


class Augment(Protocol):
    """One way to change images at random."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """The parameters of one epoch: tensors with a row per sample of the shard."""

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Change float images in [0, 1] (or as they are stored) that stand at `rows`."""


@dataclass(frozen=True)
class Unchanged:
    """No augmentation."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Nothing is drawn."""
        return {}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """The images as they are."""
        return images


AUGMENTS: dict[str, Callable[[], Augment]] = {"none": Unchanged}


@dataclass(frozen=True)
class Normalise:
    """(x / 255 - mean) / std per channel for uint8 images, (x - mean) / std for floats."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def unit(self, images: Tensor) -> Tensor:
        """Floats: uint8 images in [0, 1], floats as they are."""
        if images.dtype == torch.uint8:
            return images.to(torch.float32).mul_(1.0 / 255.0)
        return images.to(torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise unit images."""
        if not self.mean:
            return images
        shape = (1, -1) + (1,) * (images.ndim - 2)
        mean = torch.tensor(self.mean, device=images.device).reshape(shape)
        std = torch.tensor(self.std, device=images.device).reshape(shape)
        return (images - mean).div_(std)
