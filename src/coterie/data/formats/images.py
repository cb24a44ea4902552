"""Image files, decoded one by one into an array that lies in a file: only a few are in memory."""

import os
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from coterie.core.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp")
# Only these decoders run, whatever a file holds; some others start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")
# What the decoders raise on files that are cut or altered.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, OverflowError)

Part = TypeVar("Part")
Read = TypeVar("Read")


def decode(parts: Mapping[str, Sequence[Path]], resize: int, scratch: Path) -> list[np.ndarray]:
    """The images of every part (`x_train`, `x_test`) as uint8 (N, C, H, W), C 1 if all are grey.

    With `resize` the shorter side is brought to that many pixels and the middle square cut out;
    without it all images have to be of one size.
    """
    for name, part in parts.items():
        if not part:
            raise DataError(f"{name} has no image; give every part, and every class two at least")
    paths = [path for part in parts.values() for path in part]
    heads = _each(paths, _head)
    channels = 1 if all(mode in _GREY for _, _, mode in heads) else 3
    width, height, _ = heads[0]
    if resize:
        width = height = resize
    else:
        _check_sizes(paths, heads)
    made = []
    for name, part in parts.items():
        array = _allocate(scratch / f"{name}.npy", (len(part), channels, height, width))
        _each(range(len(part)), _writer(array, part, resize))
        made.append(array)
    return made


def _head(path: Path) -> tuple[int, int, str]:
    """Width, height and mode, without decoding."""
    width, height, mode = _opened(path, lambda image: (*image.size, image.mode))
    if mode not in (*_GREY, *_COLOUR):
        raise DataError(f"{path} has pixels of mode {mode}; save it with 8 bits a channel")
    return width, height, mode


def _check_sizes(paths: Sequence[Path], heads: Sequence[tuple[int, int, str]]) -> None:
    width, height, _ = heads[0]
    for path, (other_width, other_height, _) in zip(paths, heads, strict=True):
        if (other_width, other_height) != (width, height):
            raise DataError(
                f"{path} has {other_width} x {other_height} pixels and {paths[0]} "
                f"{width} x {height}; set data.resize={min(width, height)} to bring all to one size"
            )


def _allocate(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a new file that has its room on the disk."""
    array = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    # Writing to a map when the disk is full ends the process; asking for the room raises an error.
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
    return array


def _writer(array: np.ndarray, paths: Sequence[Path], resize: int) -> Callable[[int], None]:
    """A function that decodes one image into its row."""
    mode = "L" if array.shape[1] == 1 else "RGB"

    def pixels(image: "Image") -> np.ndarray:
        if "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert(mode)
        if resize:
            image = _middle(image, resize)
        values = np.asarray(image)
        return values[np.newaxis] if mode == "L" else values.transpose(2, 0, 1)

    def write(row: int) -> None:
        array[row] = _opened(paths[row], pixels)

    return write


def _middle(image: "Image", side: int) -> "Image":
    """The shorter side brought to `side` pixels, and the square in the middle of the longer."""
    from PIL.Image import Resampling

    shorter = min(image.size)
    width, height = (max(side, round(length * side / shorter)) for length in image.size)
    if shorter != side:
        image = image.resize((width, height), Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _opened(path: Path, use: Callable[["Image"], Read]) -> Read:
    """What `use` makes of the image of a file; a file that is broken is named."""
    from PIL import Image

    try:
        with Image.open(path, formats=_FORMATS) as image:
            return use(image)
    except (*_BROKEN, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path} cannot be decoded ({reason}); it is cut or not an image: replace or remove it"
        ) from error


def _each(items: Sequence[Part], work: Callable[[Part], Read]) -> list[Read]:
    """Apply the work to every item on all cores: the decoders let other threads run."""
    with ThreadPoolExecutor() as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
