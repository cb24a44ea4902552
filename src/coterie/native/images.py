"""Batches of images straight from their bytes, laid out for the first convolution."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from coterie.native.interface import Images
from coterie.native.layers import as_batch, lanes_for
from coterie.native.library import loaded


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

    With `starts` (two for each image of the store, from 0 to twice the padding) and `mirrored` each
    is a window of the image inside a border of `padding`, reflected or black, from left to right or
    mirrored.
    """
    _check(store, rows, starts, mirrored, padding)
    _, channels, height, width = store.shape
    lanes = lanes_for(len(rows))
    memory = torch.empty((channels, height, width, lanes))
    middle = _values(tuple(mean or [0.0] * channels))
    scale = _values(tuple(std or [1.0] * channels))
    shape = Images(len(store), len(rows), lanes, channels, height, width, padding, reflect)
    given = (store, rows.contiguous(), starts, mirrored, middle, scale, memory, shape)
    loaded().call("gather", torch.float32, *given)
    return as_batch(memory, len(rows))


def _check(
    store: Tensor, rows: Tensor, starts: Tensor | None, mirrored: Tensor | None, padding: int
) -> None:
    """The kernel trusts what it is given."""
    count, *_, height, width = store.shape
    if store.dtype != torch.uint8 or rows.dtype != torch.int64 or not store.is_contiguous():
        raise ValueError("images are contiguous bytes, chosen by 64-bit numbers")
    if len(rows):
        least, most = rows.aminmax()
        if least < 0 or most >= count:
            raise IndexError(f"there are {count} images, and others were asked for")
    if (starts is None) != (mirrored is None):
        raise ValueError("where windows start and whether they are mirrored belong together")
    if starts is None or mirrored is None:
        return
    if starts.shape != (count, 2) or mirrored.shape != (count,):
        raise ValueError(f"windows of {len(starts)} images for {count}")
    if starts.dtype != torch.int64 or mirrored.dtype != torch.bool:
        raise ValueError("windows start at 64-bit numbers and are mirrored or not")
    if not (starts.is_contiguous() and mirrored.is_contiguous()):
        raise ValueError("windows are contiguous")
    if not 0 <= padding < min(height, width):
        raise ValueError(f"a border of {padding} around images of {height} x {width}")
