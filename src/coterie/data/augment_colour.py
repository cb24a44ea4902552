"""Colour operations on images in [0, 1], each sample with its own parameters.

Images are (samples, channels, height, width); a parameter is a vector with one entry per sample.
Every result stays in [0, 1]. The result of a sample does not depend on the rest of its batch.
"""

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

_GREY = (0.2989, 0.587, 0.114)  # weights of red, green and blue in the brightness
_SOLAR = 0.5  # solarising inverts pixels of at least this brightness
_HUES = ((3.0, 1.0, -1.0), (2.0, -1.0, 2.0), (4.0, -1.0, 2.0))  # see `change_hue`
_LEAST_CHROMA = 1e-12  # a pixel below it is grey and has no hue

Operation = Callable[[Tensor, Tensor], Tensor]


def brightness_of(images: Tensor) -> Tensor:
    """Compute 0.2989 R + 0.587 G + 0.114 B as (samples, height, width); keep a single channel."""
    if images.shape[1] == 1:
        return images[:, 0]
    red, green, blue = images.unbind(1)
    return (red * _GREY[0]).add_(green * _GREY[1]).add_(blue * _GREY[2])


def change_brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Compute clamp(f x)."""
    return (images * _expand(factors)).clamp_(0.0, 1.0)


def change_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Compute clamp(f x + (1 - f) m), where m is the image's mean brightness."""
    # in float64, so that the order of summation does not survive rounding to float32
    mean = brightness_of(images).flatten(1).mean(dim=1, dtype=torch.float64).to(images.dtype)
    return (images * _expand(factors)).add_(_expand((1.0 - factors) * mean)).clamp_(0.0, 1.0)


def change_saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Compute clamp(f x + (1 - f) g), where g is the pixel's brightness; keep a single channel."""
    if images.shape[1] == 1:
        return images
    grey = brightness_of(images)[:, None] * _expand(1.0 - factors)
    return (images * _expand(factors)).add_(grey).clamp_(0.0, 1.0)


def change_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of HSV by a fraction of the circle; keep a single channel.

    With V = max(R, G, B), C = V - min(R, G, B) and the hue h in sixths of the circle,

        h = (G - B) / C, 2 + (B - R) / C or 4 + (R - G) / C      as V is R, G or B
        h = (h + 6 t) mod 6
        R = V - C + C clamp(|h - 3| - 1),  G and B = V - C + C clamp(2 - |h - c|), c = 2 and 4
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    most = torch.maximum(torch.maximum(red, green), blue)
    least = torch.minimum(torch.minimum(red, green), blue)
    chroma = most - least
    share = chroma.clamp(min=_LEAST_CHROMA).reciprocal_()
    hue, is_most = (red - green).mul_(share).add_(4.0), torch.empty_like(red)
    # multiplying by 0 or 1 is three times as fast as torch.where
    for channel, part, base in ((green, blue - red, 2.0), (red, green - blue, 0.0)):
        torch.eq(channel, most, out=is_most)
        hue.add_(part.mul_(share).add_(base).sub_(hue).mul_(is_most))
    hue.add_(6.0 * turns[:, None, None])
    hue.sub_((hue * (1.0 / 6.0)).floor_().mul_(6.0))
    changed = torch.empty_like(images)
    for channel_index, (centre, sign, base) in enumerate(_HUES):
        level = (hue - centre).abs_().mul_(sign).add_(base).clamp_(0.0, 1.0)
        changed[:, channel_index] = level.mul_(chroma).add_(least)
    return changed.clamp_(0.0, 1.0)


JITTER: tuple[Operation, ...] = (change_brightness, change_contrast, change_saturation, change_hue)


def make_grey(images: Tensor, _: Tensor) -> Tensor:
    """Set every channel to the pixel's brightness; keep a single channel."""
    return brightness_of(images)[:, None].expand_as(images)


def blur(images: Tensor, sigmas: Tensor) -> Tensor:
    """Apply a Gaussian filter of `kernel_size` taps along both axes, with reflected padding.

    The weight at distance d is exp(-d^2 / (2 sigma^2)), divided by the sum of the weights.
    """
    height, width = images.shape[2:]
    half = kernel_size(height, width) // 2
    distances = torch.arange(-half, half + 1, dtype=torch.float64, device=images.device)
    weights = torch.exp(-0.5 * (distances / sigmas.to(torch.float64)[:, None]) ** 2)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(images.dtype)
    padded = F.pad(images, (half,) * 4, mode="reflect")
    for axis, size in ((2, height), (3, width)):
        taps = (padded.narrow(axis, k, size) * _expand(weights[:, k]) for k in range(2 * half + 1))
        padded = reduce(Tensor.add_, taps)
    return padded.clamp_(0.0, 1.0)


def kernel_size(height: int, width: int) -> int:
    """Return the odd number nearest to a tenth of the shorter side, at least 3."""
    return max(3, min(height, width) // 20 * 2 + 1)


def solarise(images: Tensor, _: Tensor) -> Tensor:
    """Replace x by 1 - x where x is at least 0.5."""
    return torch.where(images >= _SOLAR, 1.0 - images, images)


def _expand(values: Tensor) -> Tensor:
    return values[:, None, None, None]
