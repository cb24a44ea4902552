"""Random views of samples that are no images: rows of tables, and signals (channels, time).

Strengths are in units of the data, which are taken to be standardised: a mean of 0 and a deviation
of 1 per feature or channel.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.data.augment_views import Range, Table

_POOL = (
    2**16
)  # random numbers per epoch; a sample reads them from its own start with its own stride
_VECTOR_AXES, _SIGNAL_AXES = 1, 2


def draw_walks(samples: int, generator: np.random.Generator) -> dict[str, Tensor]:
    """Draw where in a pool each sample starts and the stride it takes from there.

    A stride is odd, so a walk meets every number of the pool once before it repeats. The noise of a
    shard would take as much memory as its samples; this takes two integers for each.
    """
    starts = generator.integers(0, _POOL, samples)
    strides = 2 * generator.integers(0, _POOL // 2, samples) + 1
    return {"starts": torch.from_numpy(starts), "strides": torch.from_numpy(strides)}


def walk(table: Table, rows: Tensor, entries: int) -> Tensor:
    """Compute the positions in a pool, (samples, entries), that some samples read."""
    starts, strides = table["starts"][rows, None], table["strides"][rows, None]
    return (starts + strides * torch.arange(entries)) % _POOL


def draw_normal(generator: np.random.Generator) -> Tensor:
    """Draw a pool of normal numbers."""
    return torch.from_numpy(generator.standard_normal(_POOL, dtype=np.float32))


@dataclass(frozen=True)
class MaskNoise:
    """For tables: set features to 0, their mean, at random, and add Gaussian noise to all."""

    mask: float = 0.3  # probability, for each feature of a sample
    noise: float = 0.1  # deviation

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw pools of masks and noise, and how each sample reads them."""
        masked = generator.random(_POOL) < self.mask
        pools = {"masked": torch.from_numpy(masked), "noise": draw_normal(generator)}
        return pools | draw_walks(samples, generator)

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Mask and jitter vectors (n, features)."""
        positions = walk(table, rows, images.shape[1])
        masked = table["masked"][positions].to(images.device)
        noise = (table["noise"][positions] * self.noise).to(images.device)
        return images.masked_fill(masked, 0.0) + noise

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require vectors."""
        shape = samples.shape[1:]
        if len(shape) == _VECTOR_AXES:
            return None
        return f"takes vectors, as tables have them, the data has samples of shape {shape}"


@dataclass(frozen=True)
class JitterScaleCrop:
    """For signals: crop and stretch in time, scale channels, add noise, at times drop a channel."""

    jitter: float = 0.05  # deviation of the noise
    scale: float = 0.1  # deviation of a channel's factor, whose mean is 1
    crop: Range = (0.5, 1.0)  # length of the crop as a fraction of the signal's
    drop: float = 0.1  # probability that one of several channels is set to 0

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw crops and dropped channels, a pool of noise, and how each sample reads it."""
        columns = {
            "lengths": generator.uniform(*self.crop, samples),
            "positions": generator.random(samples),
            "dropped": generator.random(samples) < self.drop,
            "channels": generator.random(samples),
        }
        drawn = {name: torch.from_numpy(column) for name, column in columns.items()}
        return drawn | {"noise": draw_normal(generator)} | draw_walks(samples, generator)

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Transform signals (n, channels, time)."""
        count, channels, time = images.shape
        drawn = {name: table[name][rows] for name in ("lengths", "positions", "dropped")}
        normal = table["noise"][walk(table, rows, channels * (1 + time))].to(images.device)
        factors = 1.0 + self.scale * normal[:, :channels, None]
        noise = (self.jitter * normal[:, channels:]).reshape(count, channels, time)
        views = stretch(images, drawn["lengths"], drawn["positions"]) * factors + noise
        if channels > 1:
            chosen = (table["channels"][rows] * channels).long()[:, None] == torch.arange(channels)
            chosen &= drawn["dropped"][:, None]
            views = views.masked_fill(chosen[..., None].to(images.device), 0.0)
        return views

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require signals."""
        shape = samples.shape[1:]
        if len(shape) == _SIGNAL_AXES:
            return None
        return f"takes signals (channels, time), the data has samples of shape {shape}"


def stretch(signals: Tensor, lengths: Tensor, positions: Tensor) -> Tensor:
    """Cut a window out of each signal and stretch it linearly to the length of the signal.

    A window has n = round(length T) of T points, at least one, and begins at s, that share
    `position` of what is left. Point k is read at s + clamp((k + 1/2) n / T - 1/2, 0, n - 1).
    """
    time = signals.shape[2]
    size = (lengths * time).round().clamp_(min=1.0)
    start = (positions * (time - size + 1.0)).floor()
    points = (torch.arange(time, dtype=torch.float64) + 0.5) * (size / time)[:, None] - 0.5
    points = torch.minimum(points.clamp_(min=0.0), size[:, None] - 1.0) + start[:, None]
    before = points.floor()
    share = (points - before).to(signals.device, signals.dtype)[:, None, :]
    left = before.long()
    right = (left + 1).clamp_(max=time - 1)
    ends = (
        signals.gather(2, at.to(signals.device)[:, None, :].expand(signals.shape))
        for at in (left, right)
    )
    first, second = ends
    return first * (1.0 - share) + second * share
