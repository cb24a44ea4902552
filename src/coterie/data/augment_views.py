"""Random views of images for self-supervised learning: crops, flips, colours, blur.

The operations and their parameters are those of torchvision, but parameters are drawn per sample,
for the whole shard at once. Images are floats; where colours change they lie in [0, 1].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.data.augment_colour import JITTER, Operation, blur, make_grey, solarise

_TRIES = 10  # draws for a crop that fits into the image
_SIGMA = (0.1, 2.0)  # of the blur
_SMALLEST = 8  # pixels of the shorter side
_IMAGE_AXES = 3

Table = Mapping[str, Tensor]
Range = tuple[float, float]


@dataclass(frozen=True)
class RandomView:
    """Crop, flip, jitter, grey, blur, solarise, in this order, each with its own probability."""

    scale: Range = (0.08, 1.0)  # area of the crop as a fraction of the image's
    ratio: Range = (3.0 / 4.0, 4.0 / 3.0)  # width of the crop to its height
    flip: float = 0.5
    strengths: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # see `_factors`
    jitter: float = 0.0
    grey: float = 0.0
    blur: float = 0.0
    solarise: float = 0.0

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw all parameters, even those of probability 0, so that no draw shifts another.

        `areas` and `ratios` hold ten candidates for the crop; `boxes` takes the first that fits
        into the image.
        """
        low, high = (math.log(bound) for bound in self.ratio)
        table = {
            "areas": generator.uniform(*self.scale, (samples, _TRIES)),
            "ratios": np.exp(generator.uniform(low, high, (samples, _TRIES))),
            "positions": generator.random((samples, 2)),
            "order": generator.permuted(np.tile(np.arange(len(JITTER)), (samples, 1)), axis=1),
            "factors": self._factors(samples, generator),
            "sigmas": generator.uniform(*_SIGMA, samples),
        }
        for name in ("flip", "jitter", "grey", "blur", "solarise"):
            table[name] = generator.random(samples) < getattr(self, name)
        return {name: torch.from_numpy(column) for name, column in table.items()}

    def _factors(self, samples: int, generator: np.random.Generator) -> np.ndarray:
        """Draw uniformly from [max(0, 1 - s), 1 + s]; for the hue from [-s, s]."""
        strengths, middle = np.array(self.strengths), np.array([1.0, 1.0, 1.0, 0.0])
        low = np.maximum(middle - strengths, [0.0, 0.0, 0.0, -np.inf])
        return generator.uniform(low, middle + strengths, (samples, len(strengths)))

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Return the views of the images at the positions `rows` of the shard."""
        drawn = {name: column[rows] for name, column in table.items()}
        height, width = images.shape[2:]
        views = resize(images, self.boxes(drawn, height, width), drawn["flip"])
        if not self.colours:
            return views
        views.clamp_(0.0, 1.0)  # the four weights of an interpolation may sum to more than one
        for step in range(len(JITTER)):
            for kind, operation in enumerate(JITTER):
                if self.strengths[kind]:
                    chosen = drawn["jitter"] & (drawn["order"][:, step] == kind)
                    _change(views, chosen, operation, drawn["factors"][:, kind])
        _change(views, drawn["grey"], make_grey, drawn["grey"])
        _change(views, drawn["blur"], blur, drawn["sigmas"])
        _change(views, drawn["solarise"], solarise, drawn["solarise"])
        return views

    @property
    def colours(self) -> bool:
        """Whether the view changes colours, beyond cropping and flipping."""
        return any((self.jitter, self.grey, self.blur, self.solarise))

    def boxes(self, drawn: Table, height: int, width: int) -> np.ndarray:
        """Compute top, left, height and width of each crop, in whole pixels.

        A candidate is round(sqrt(a H W r)) wide and round(sqrt(a H W / r)) high; the first that
        fits is taken. If none fits: the largest centred box whose ratio is within the bounds.
        """
        area, ratio = (drawn[name].numpy() for name in ("areas", "ratios"))
        wide = np.rint(np.sqrt(area * (height * width) * ratio))
        high = np.rint(np.sqrt(area * (height * width) / ratio))
        fits = (wide >= 1) & (wide <= width) & (high >= 1) & (high <= height)
        each, first, any_fits = np.arange(len(fits)), fits.argmax(axis=1), fits.any(axis=1)
        least, most = self.ratio
        fallback = min(height, round(width / least)), min(width, round(height * most))
        size = np.stack([high[each, first], wide[each, first]], axis=1)
        size = np.where(any_fits[:, None], size, fallback)
        room = np.array([height, width]) - size
        start = np.where(
            any_fits[:, None], np.floor(drawn["positions"].numpy() * (room + 1)), np.floor(room / 2)
        )
        return np.concatenate([start, size], axis=1).astype(np.int64)

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require images of 8 pixels; of 1 or 3 channels and in [0, 1] if colours change."""
        shape = samples.shape[1:]
        known = not self.colours or shape[:1] in ((1,), (3,))
        if len(shape) != _IMAGE_AXES or not known or min(shape[1:]) < _SMALLEST:
            channels = "of 1 or 3 channels and at least" if self.colours else "of at least"
            return (
                f"takes images {channels} {_SMALLEST} x {_SMALLEST} pixels, the data has samples "
                f"of shape {shape}"
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
    """Scale each image's box to the size of the image, bilinear within the box; then flip.

    Pixel k of a side of length S, with a box from t of length n, is sampled at
    t + clamp((k + 1/2) n / S - 1/2, 0, n - 1).
    """
    count, _, height, width = images.shape
    top, left, high, wide = torch.from_numpy(boxes).to(torch.float64).unbind(1)
    y, x = _sampling_points(height, top, high), _sampling_points(width, left, wide)
    x = torch.where(mirrored[:, None], x.flip(1), x)
    size = (count, height, width)
    grid = torch.stack([x[:, None, :].expand(size), y[:, :, None].expand(size)], dim=3)
    return F.grid_sample(images, grid.to(images.device), padding_mode="border", align_corners=False)


def _sampling_points(size: int, start: Tensor, length: Tensor) -> Tensor:
    """Compute where the pixels of a side are sampled, in the coordinates of `grid_sample`."""
    points = (torch.arange(size, dtype=torch.float64) + 0.5) * (length / size)[:, None] - 0.5
    points = torch.minimum(points.clamp_(min=0.0), length[:, None] - 1.0) + start[:, None]
    return ((2.0 * points + 1.0) / size - 1.0).to(torch.float32)


def _change(images: Tensor, chosen: Tensor, operation: Operation, parameters: Tensor) -> None:
    """Apply an operation in place to the chosen samples."""
    picked = chosen.nonzero().flatten()
    if not len(picked):
        return
    values = parameters[picked].to(images.device, images.dtype)
    picked = picked.to(images.device)
    images.index_copy_(0, picked, operation(images.index_select(0, picked), values))
