"""Random views of images for self-supervised learning: crops, mirrors, colours, blur.

The operations and their parameters are those of torchvision, but every sample has its own, drawn
for the whole shard at once. Images are floats; those whose colours change lie in [0, 1].
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.data.augment_colour import JITTER, blur, make_grey, solarise

_TRIES = 10  # of a crop that fits into the image
_SIGMA = (0.1, 2.0)  # of the blur
_SMALLEST = 8  # pixels of the shorter side
_CHANNELS = (1, 3)
_IMAGE_AXES = 3

Table = Mapping[str, Tensor]
Range = tuple[float, float]


@dataclass(frozen=True)
class RandomView:
    """Crop, mirror, jitter, grey, blur, solarise, in this order; each has a chance of its own."""

    scale: Range = (0.08, 1.0)  # of the crop's area, as a share of the image's
    ratio: Range = (3.0 / 4.0, 4.0 / 3.0)  # of the crop's width to its height
    flip: float = 0.5
    strengths: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # see `_factors`
    jitter: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    solarise: float = 0.0

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Everything is drawn, whatever the chances, so that no draw shifts another.

        `areas` and `ratios` have ten tries for the crop: which one fits depends on the image's
        size, and `boxes` finds it.
        """
        low, high = (math.log(bound) for bound in self.ratio)
        table = {
            "areas": generator.uniform(*self.scale, (samples, _TRIES)),
            "ratios": np.exp(generator.uniform(low, high, (samples, _TRIES))),
            "places": generator.random((samples, 2)),
            "order": generator.permuted(np.tile(np.arange(len(JITTER)), (samples, 1)), axis=1),
            "factors": self._factors(samples, generator),
            "sigmas": generator.uniform(*_SIGMA, samples),
        }
        for name in ("flip", "jitter", "grey", "blur", "solarise"):
            table[name] = generator.random(samples) < getattr(self, name)
        return {name: torch.from_numpy(column) for name, column in table.items()}

    def _factors(self, samples: int, generator: np.random.Generator) -> np.ndarray:
        """Uniform in [max(0, 1 - s), 1 + s]; for the hue in [-s, s]."""
        strengths, middle = np.array(self.strengths), np.array([1.0, 1.0, 1.0, 0.0])
        low = np.maximum(middle - strengths, [0.0, 0.0, 0.0, -np.inf])
        return generator.uniform(low, middle + strengths, (samples, len(strengths)))

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """The views of the images that stand at `rows`."""
        drawn = {name: column[rows] for name, column in table.items()}
        height, width = images.shape[2:]
        found = resize(images, self.boxes(drawn, height, width), drawn["flip"])
        if not self.colours:
            return found
        found.clamp_(0.0, 1.0)  # the weights of four pixels may round to more than one
        for place in range(len(JITTER)):
            for kind, operation in enumerate(JITTER):
                if self.strengths[kind]:
                    chosen = drawn["jitter"] & (drawn["order"][:, place] == kind)
                    _change(found, chosen, operation, drawn["factors"][:, kind])
        _change(found, drawn["grey"], lambda some, _: make_grey(some))
        _change(found, drawn["blur"], blur, drawn["sigmas"])
        _change(found, drawn["solarise"], lambda some, _: solarise(some))
        return found

    @property
    def colours(self) -> bool:
        """Whether it does more than crop and mirror."""
        return any((self.jitter, self.grey, self.blur, self.solarise))

    def boxes(self, drawn: Table, height: int, width: int) -> np.ndarray:
        """Top, left, height and width of each crop, in whole pixels.

        The first of the tries that fits: round(sqrt(a H W r)) wide, round(sqrt(a H W / r)) high.
        If none fits: the largest box in the middle whose ratio is within the bounds.
        """
        area, ratio = (drawn[name].numpy() for name in ("areas", "ratios"))
        wide = np.rint(np.sqrt(area * (height * width) * ratio))
        high = np.rint(np.sqrt(area * (height * width) / ratio))
        fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
        each, first, some = np.arange(len(fits)), fits.argmax(axis=1), fits.any(axis=1)
        whole = self._middle(height, width)
        size = np.stack([high[each, first], wide[each, first]], axis=1)
        size = np.where(some[:, None], size, whole)
        room = np.array([height, width]) - size
        start = np.where(
            some[:, None], np.floor(drawn["places"].numpy() * (room + 1)), np.floor(room / 2)
        )
        return np.concatenate([start, size], axis=1).astype(np.int64)

    def _middle(self, height: int, width: int) -> tuple[int, int]:
        low, high = self.ratio
        if width / height < low:
            return round(width / low), width
        if width / height > high:
            return height, round(height * high)
        return height, width

    def problem(self, samples: np.ndarray) -> str | None:
        """Images of 1 or 3 channels and 8 pixels; floats in [0, 1] where colours change."""
        shape = samples.shape[1:]
        if len(shape) != _IMAGE_AXES or shape[0] not in _CHANNELS or min(shape[1:]) < _SMALLEST:
            return (
                f"takes images of 1 or 3 channels and at least {_SMALLEST} x {_SMALLEST} pixels, "
                f"the data has samples of shape {shape}"
            )
        if self.colours and samples.dtype != np.uint8:
            low, high = float(samples.min()), float(samples.max())
            if low < 0.0 or high > 1.0:
                return (
                    "takes images of bytes, or of floats between 0 and 1, "
                    f"the data has floats from {low:g} to {high:g}"
                )
        return None


def resize(images: Tensor, boxes: np.ndarray, mirrored: Tensor) -> Tensor:
    """Each image's box at the size of the image, bilinear, clamped to the box; then mirrored.

    The pixel at k of a side S, with a box from t of length n, is taken from the place
    t + clamp((k + 1/2) n / S - 1/2, 0, n - 1).
    """
    count, _, height, width = images.shape
    top, left, high, wide = torch.from_numpy(boxes).to(torch.float64).unbind(1)
    down, across = _places(height, top, high), _places(width, left, wide)
    across = torch.where(mirrored[:, None], across.flip(1), across)
    grid = torch.stack(
        [
            across[:, None, :].expand(count, height, width),
            down[:, :, None].expand(count, height, width),
        ],
        dim=3,
    )
    return F.grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=False)


def _places(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Where the pixels of a side are taken from, as `grid_sample` counts: -1 to 1."""
    places = (torch.arange(size, dtype=torch.float64) + 0.5) * (length / size)[:, None] - 0.5
    places = torch.minimum(places.clamp_(min=0.0), length[:, None] - 1.0) + start[:, None]
    return ((2.0 * places + 1.0) / size - 1.0).to(torch.float32)


def _change(
    images: Tensor,
    chosen: Tensor,
    operation: Callable[[Tensor, Tensor], Tensor],
    parameters: Tensor | None = None,
) -> None:
    """Apply an operation, in place, to the samples that are chosen."""
    picked = chosen.nonzero().flatten()
    if not len(picked):
        return
    values = (chosen if parameters is None else parameters)[picked].to(images.device, images.dtype)
    picked = picked.to(images.device)
    images.index_copy_(0, picked, operation(images.index_select(0, picked), values))
