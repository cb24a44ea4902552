"""Augmentation: random changes of the training samples, drawn per sample and epoch.

A transform draws one table of parameters per epoch for the whole shard and is then applied batch
by batch, so that a sample gets the same parameters whatever batch it is in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote
from coterie.data.augment_affine import Affine
from coterie.data.augment_vectors import JitterScaleCrop, MaskNoise
from coterie.data.augment_views import RandomView, Table

_IMAGE_AXES = 3
_COLOURS = 3  # channels of a colour image
_LARGE = 32  # pixels of the shorter side from which colours are changed too


class Augment(Protocol):
    """A random transform of images."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw the parameters of one epoch: tensors with one row per sample of the shard."""

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Transform the float images at the positions `rows` of the shard."""

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Say why these samples cannot be used ("takes ..., the data has ..."), or return None."""


@dataclass(frozen=True)
class Unchanged:
    """No augmentation."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw nothing."""
        return {}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Return the images unchanged."""
        return images

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Accept all samples."""
        return None


@dataclass(frozen=True)
class CropFlip:
    """Pad by four pixels, crop the old size at random, mirror with probability 1/2.

    With `border = "reflect"` this is MOON's augmentation of CIFAR-10.
    """

    padding: int = 4
    border: Literal["reflect", "constant"] = "reflect"

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw where each crop starts, from 0 to twice the padding, and whether it is mirrored."""
        starts = generator.integers(0, 2 * self.padding + 1, size=(samples, 2))
        mirrored = generator.random(samples) < 0.5
        return {"starts": torch.from_numpy(starts), "mirrored": torch.from_numpy(mirrored)}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Crop and mirror all images in one gather."""
        count, channels, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4, mode=self.border)
        padded_width = width + 2 * self.padding
        device = images.device
        starts, mirrored = (table[name][rows].to(device) for name in ("starts", "mirrored"))
        row = starts[:, :1] + torch.arange(height, device=device)
        column = torch.arange(width, device=device).expand(count, width)
        column = starts[:, 1:] + torch.where(mirrored[:, None], width - 1 - column, column)
        pixels = (row[:, :, None] * padded_width + column[:, None, :]).reshape(count, 1, -1)
        flat = padded.reshape(count, channels, -1)
        crops = flat.gather(2, pixels.expand(count, channels, height * width))
        return crops.reshape(images.shape)

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require images that are larger than the padding."""
        shape = samples.shape[1:]
        if len(shape) == _IMAGE_AXES and min(shape[1:]) > self.padding:
            return None
        return (
            f"takes images larger than {self.padding} pixels, the data has samples of shape {shape}"
        )


@dataclass(frozen=True)
class CropFlipRotate:
    """Crop and mirror with a black border, then rotate by up to 15 degrees: MOON's CIFAR-100.

    Rotation takes the nearest pixel; pixels from outside the image are black.
    """

    crop: CropFlip = CropFlip(border="constant")
    degrees: float = 15.0

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Draw the parameters of the crop and an angle."""
        angles = generator.uniform(-self.degrees, self.degrees, size=samples)
        return {**self.crop.draw(samples, generator), "angles": torch.from_numpy(angles)}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Crop, mirror, rotate."""
        angles = table["angles"][rows].to(images.device, torch.float32)
        return rotate(self.crop(images, rows, table), angles, mode="nearest")

    def find_problem(self, samples: np.ndarray) -> str | None:
        """Require what the crop requires."""
        return self.crop.find_problem(samples)


def rotate(images: Tensor, degrees: Tensor, mode: Literal["nearest", "bilinear"]) -> Tensor:
    """Rotate each image about its centre, counter-clockwise by its own angle; fill with black."""
    radians = degrees * (math.pi / 180.0)
    cosine, sine, zero = torch.cos(radians), torch.sin(radians), torch.zeros_like(radians)
    height, width = images.shape[2:]
    # grid coordinates are in half sides: the ratio keeps the proportions of non-square images
    first = torch.stack([cosine, -sine * (height / width), zero], dim=1)
    second = torch.stack([sine * (width / height), cosine, zero], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(images.shape), False)
    return F.grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)


# SimCLR's strengths 0.8, 0.8, 0.8, 0.2, halved as for CIFAR-10
_COLOUR_VIEW = partial(RandomView, jitter=0.8, strengths=(0.4, 0.4, 0.4, 0.1), grey=0.2)
_LESS_SATURATION = (0.4, 0.4, 0.2, 0.1)
_ORCHESTRA = partial(_COLOUR_VIEW, scale=(0.5, 1.0), strengths=_LESS_SATURATION, blur=0.5)

AUGMENTS: dict[str, Callable[[], Augment]] = {
    "none": Unchanged,
    "crop-flip": CropFlip,
    "crop-flip-rotate": CropFlipRotate,
    "simsiam": partial(_COLOUR_VIEW, scale=(0.2, 1.0)),
    "simclr": partial(_COLOUR_VIEW, blur=0.5),
    "simclr-sharp": _COLOUR_VIEW,
    "byol": partial(_COLOUR_VIEW, strengths=_LESS_SATURATION, blur=0.5, solarise=0.1),
    "orchestra": _ORCHESTRA,
    "orchestra-second": partial(_ORCHESTRA, blur=0.1, solarise=0.2),
    "resized-crop": partial(RandomView, scale=(0.6, 1.0), flip=0.0),
    "affine": Affine,
    "mask-noise": MaskNoise,
    "jitter-scale-crop": JitterScaleCrop,
}
SECOND = {"orchestra": "orchestra-second"}  # by `data.augment`: the transform of view "second"


Kind = Literal["image", "signal", "table"]  # what samples are: `data.kind`


def choose_views(kind: Kind, shape: tuple[int, ...], views: tuple[str, ...]) -> str:
    """Choose what `data.augment = "auto"` means for samples of a kind and an objective's views.

    One view is left as it is. Of several, those of images are cropped, and change their colours if
    they have any and are not too small to lose them.
    """
    if len(views) == 1:
        return "none"
    if kind != "image":
        return "mask-noise" if kind == "table" else "jitter-scale-crop"
    channels, *sides = shape
    return "simsiam" if channels == _COLOURS and min(sides) >= _LARGE else "resized-crop"


Choice = str | Mapping[str, Any] | Augment  # a name, a name with fields, or the object itself


def make_augment(choice: Choice) -> Augment:
    """Make the augmentation that `data.augment` names: a shipped one, or the user's own class."""
    if not isinstance(choice, str | Mapping):
        return _make(choice, choice.__name__, {}) if isinstance(choice, type) else choice
    fields = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = fields.pop("name", None)
    if not isinstance(name, str) or (fields and ":" not in name):
        raise ConfigError(
            f"data.augment = {quote(choice)} must be a name, or a table with name = "
            "'package.module:Class' and the fields of that class"
        )
    if ":" not in name:
        registry.check_known("data.augment", name, AUGMENTS)
        return AUGMENTS[name]()
    kind = registry.import_own(name, "data.augment")
    missing = [slot for slot in ("draw", "__call__", "find_problem") if not hasattr(kind, slot)]
    if not isinstance(kind, type) or missing:
        raise ConfigError(
            f"data.augment = {quote(name)} must be a class with draw, __call__ and find_problem"
        )
    return _make(kind, name, fields)


def _make(kind: Any, name: str, fields: Mapping[str, Any]) -> Augment:
    try:
        made: Augment = kind(**fields)
    except TypeError as error:
        raise ConfigError(f"data.augment = {name!r} cannot be made: {error}") from error
    return made


def choose_transform(view: str, augment: Choice) -> Augment:
    """Return the transform of an objective's view; the view `train` is `data.augment` itself.

    The view `second` is its counterpart if `data.augment` names a pair, else the same.
    """
    if view == "second" and isinstance(augment, str):
        augment = SECOND.get(augment, augment)
    return make_augment(augment if view in ("train", "second") else view)


@dataclass(frozen=True)
class Normalise:
    """(x / 255 - mean) / std per channel for uint8 images, (x - mean) / std for floats."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def unit(self, images: Tensor) -> Tensor:
        """Convert to float32: uint8 images to [0, 1], floats as they are."""
        if images.dtype == torch.uint8:
            return images.to(torch.float32).mul_(1.0 / 255.0)
        return images.to(torch.float32)

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images that `unit` has converted."""
        if not self.mean:
            return images
        shape = (1, -1) + (1,) * (images.ndim - 2)
        mean = torch.tensor(self.mean, device=images.device).reshape(shape)
        std = torch.tensor(self.std, device=images.device).reshape(shape)
        return (images - mean).div_(std)
