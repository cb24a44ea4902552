"""Parts of a user's own that any process can import."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.skew import Skewed


class Net(nn.Module):
    """A backbone that takes the shape of a sample and an option, and does not say its width."""

    def __init__(self, shape: tuple[int, ...], hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(x)
        return h


@dataclass(frozen=True)
class Shade:
    """An augmentation with a field: every image a little lighter or darker."""

    strength: float = 0.1

    def draw(self, samples: int, generator: np.random.Generator) -> dict[str, Tensor]:
        return {"by": torch.from_numpy(generator.uniform(-1.0, 1.0, samples).astype(np.float32))}

    def __call__(self, images: Tensor, rows: Tensor, table: Any) -> Tensor:
        by = table["by"][rows].reshape(-1, *(1,) * (images.ndim - 1))
        return images + self.strength * by

    def find_problem(self, samples: np.ndarray) -> str | None:
        return None


@dataclass(frozen=True)
class Stripes(Skewed):
    """A partition: client k has every n-th sample from k on."""

    clients: int = 3
    min_samples: int = 1

    def deal(
        self, labels: np.ndarray, classes: int, seed: int, groups: Any = None
    ) -> dict[int, np.ndarray]:
        return {k: np.arange(k, len(labels), self.clients) for k in range(self.clients)}


def two_sites(root: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A data source: two sites with vectors of six entries."""
    draw = np.random.default_rng(len(root))
    sizes: Sequence[tuple[str, int]] = (("north", 40), ("south", 30))
    return {
        name: (draw.normal(size=(size, 6)).astype(np.float32), np.arange(size) % 3)
        for name, size in sizes
    }
