"""Augmentation: what is done to a client's images in training, one draw per sample and epoch.

A transform draws its parameters for the whole shard as one table per epoch and is then applied to
any batch of rows: the same image gets the same parameters however the batches are cut.
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
from coterie.data.augment_views import RandomView

Table = Mapping[str, Tensor]

_IMAGE_AXES = 3


class Augment(Protocol):
    """One way to change images at random."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """The parameters of one epoch: tensors with a row per sample of the shard."""

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Change float images in [0, 1] (or as they are stored) that stand at `rows`."""

    def problem(self, samples: np.ndarray) -> str | None:
        """Why it cannot take the stored samples, as "takes ..., the data has ...", or None."""


@dataclass(frozen=True)
class Unchanged:
    """No augmentation."""

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Nothing is drawn."""
        return {}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """The images as they are."""
        return images

    def problem(self, samples: np.ndarray) -> str | None:
        """It takes anything."""
        return None


@dataclass(frozen=True)
class CropFlip:
    """Pad by four, cut out a window of the old size at random, mirror every second one.

    With `border = "reflect"` it is what MOON does on CIFAR-10.
    """

    padding: int = 4
    border: Literal["reflect", "constant"] = "reflect"

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """Where the window starts, from 0 to twice the padding, and whether to mirror."""
        starts = generator.integers(0, 2 * self.padding + 1, size=(samples, 2))
        mirrored = generator.random(samples) < 0.5
        return {"starts": torch.from_numpy(starts), "mirrored": torch.from_numpy(mirrored)}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """The windows, gathered in one pass."""
        count, channels, height, width = images.shape
        padded = F.pad(images, (self.padding,) * 4, mode=self.border)
        across = width + 2 * self.padding
        device = images.device
        starts, mirrored = (table[name][rows].to(device) for name in ("starts", "mirrored"))
        down = starts[:, :1] + torch.arange(height, device=device)
        right = torch.arange(width, device=device).expand(count, width)
        right = starts[:, 1:] + torch.where(mirrored[:, None], width - 1 - right, right)
        places = (down[:, :, None] * across + right[:, None, :]).reshape(count, 1, height * width)
        flat = padded.reshape(count, channels, -1)
        cut = flat.gather(2, places.expand(count, channels, height * width))
        return cut.reshape(images.shape)

    def problem(self, samples: np.ndarray) -> str | None:
        """Images that are larger than their border."""
        shape = samples.shape[1:]
        if len(shape) == _IMAGE_AXES and min(shape[1:]) > self.padding:
            return None
        return (
            f"takes images larger than {self.padding} pixels, the data has samples of shape {shape}"
        )


@dataclass(frozen=True)
class CropFlipRotate:
    """Crop and flip over a black border, then turn by up to 15 degrees: MOON's CIFAR-100.

    Pixels are taken from the nearest place; what comes from outside is black.
    """

    crop: CropFlip = CropFlip(border="constant")
    degrees: float = 15.0

    def draw(self, samples: int, generator: np.random.Generator) -> Table:
        """The crop's parameters and an angle."""
        angles = generator.uniform(-self.degrees, self.degrees, size=samples)
        return {**self.crop.draw(samples, generator), "angles": torch.from_numpy(angles)}

    def __call__(self, images: Tensor, rows: Tensor, table: Table) -> Tensor:
        """Crop, flip, turn."""
        angles = table["angles"][rows].to(images.device, torch.float32)
        return rotate(self.crop(images, rows, table), angles, mode="nearest")

    def problem(self, samples: np.ndarray) -> str | None:
        """The crop's."""
        return self.crop.problem(samples)


def rotate(images: Tensor, degrees: Tensor, mode: Literal["nearest", "bilinear"]) -> Tensor:
    """Turn each image about its centre, counter-clockwise by its own angle; outside is black."""
    radians = degrees * (math.pi / 180.0)
    cosine, sine, zero = torch.cos(radians), torch.sin(radians), torch.zeros_like(radians)
    height, width = images.shape[2:]
    # in units of half a side, so that images that are not square keep their proportions
    first = torch.stack([cosine, -sine * (height / width), zero], dim=1)
    second = torch.stack([sine * (width / height), cosine, zero], dim=1)
    grid = F.affine_grid(torch.stack([first, second], dim=1), list(images.shape), False)
    return F.grid_sample(images, grid, mode=mode, padding_mode="zeros", align_corners=False)


AUGMENTS: dict[str, Callable[[], Augment]] = {
    "none": Unchanged,
    "crop-flip": CropFlip,
    "crop-flip-rotate": CropFlipRotate,
    "simsiam": partial(
        RandomView, scale=(0.2, 1.0), jitter=0.8, strengths=(0.4, 0.4, 0.4, 0.1), grey=0.2
    ),
    "simclr": partial(  # strengths: half of 0.8, 0.8, 0.8, 0.2
        RandomView, jitter=0.8, strengths=(0.4, 0.4, 0.4, 0.1), grey=0.2, blur=0.5
    ),
    "simclr-sharp": partial(RandomView, jitter=0.8, strengths=(0.4, 0.4, 0.4, 0.1), grey=0.2),
    "byol": partial(
        RandomView, jitter=0.8, strengths=(0.4, 0.4, 0.2, 0.1), grey=0.2, blur=0.5, solarise=0.1
    ),
    "orchestra": partial(
        RandomView,
        scale=(0.5, 1.0),
        jitter=0.8,
        strengths=(0.4, 0.4, 0.2, 0.1),
        grey=0.2,
        blur=0.5,
    ),
    "orchestra-second": partial(
        RandomView,
        scale=(0.5, 1.0),
        jitter=0.8,
        strengths=(0.4, 0.4, 0.2, 0.1),
        grey=0.2,
        blur=0.1,
        solarise=0.2,
    ),
    "resized-crop": partial(RandomView, scale=(0.6, 1.0), flip=0.0),
}
SECOND = {"orchestra": "orchestra-second"}  # by `data.augment`: what the view "second" is


Choice = str | Mapping[str, Any] | Augment  # a name, a name with fields, or the object itself


def make_augment(choice: Choice) -> Augment:
    """The augmentation that `data.augment` names: a shipped one, or the user's own class."""
    if not isinstance(choice, str | Mapping):
        return choice
    fields = {} if isinstance(choice, str) else {k: v for k, v in choice.items() if k != "name"}
    name = choice if isinstance(choice, str) else choice.get("name")
    if not isinstance(name, str) or (fields and ":" not in name):
        raise ConfigError(
            f"data.augment = {choice!r} must be a name, or a table with name = "
            "'package.module:Class' and the fields of that class"
        )
    if ":" not in name:
        registry.check_known("data.augment", name, AUGMENTS)
        return AUGMENTS[name]()
    kind = registry.import_own(name, "data.augment")
    missing = [slot for slot in ("draw", "__call__", "problem") if not hasattr(kind, slot)]
    if not isinstance(kind, type) or missing:
        raise ConfigError(
            f"data.augment = {name!r} must be a class with draw, __call__ and problem"
        )
    try:
        made: Augment = kind(**fields)
    except TypeError as error:
        raise ConfigError(f"data.augment = {name!r} cannot be made: {error}") from error
    return made


def make_view(view: str, augment: Choice) -> Augment:
    """The transform of an objective's view: `train` is what `data.augment` names.

    `second` is the other of a pair, where `data.augment` names one; else the same.
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
