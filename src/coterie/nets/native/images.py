"""Batches of images straight from their bytes, laid out for the first convolution."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.nets.native.layers import as_batch, lanes_for
from coterie.nets.native.library import loaded


@functools.cache
def _values(numbers: tuple[float, ...]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)


def gather(
    store: Tensor,
    rows: Tensor,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    starts: Tensor | None = None,
    mirrored: Tensor | None = None,
    padding: int = 0,
    reflect: bool = False,
) -> Tensor:
    """Chosen uint8 images (n, c, rows, columns), normalised: (u / 255 - mean) / std.

    With `starts` (two for each image of the store) and `mirrored` each is a window of the image
    inside a border of `padding`, reflected or black, from left to right or mirrored.
    """
    _, channels, height, width = store.shape
    lanes = lanes_for(len(rows))
    memory = torch.empty((channels, height, width, lanes))
    middle, scale = (
        _values(tuple(mean or [0.0] * channels)),
        _values(tuple(std or [1.0] * channels)),
    )
    shape = (len(rows), lanes, channels, height, width)
    window = (starts, mirrored, padding, reflect)
    given = (store, len(store), rows, *shape, *window, middle, scale, memory)
    loaded().call("images", torch.float32, *given)
    return as_batch(memory, len(rows))
