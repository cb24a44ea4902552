"""Image files, decoded one by one into memory-mapped arrays."""

import math
import struct
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.core import files
from coterie.core.errors import DataError
from coterie.data.datasets import Raw
from coterie.data.formats import locate

if TYPE_CHECKING:
    from PIL.Image import Image

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".webp")
# Only these decoders run, whatever a file contains; some others start programs.
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
_GREY = ("1", "L", "LA", "La")
_COLOUR = ("P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV", "LAB")
_PIXELS = 64_000_000  # of an image; below the number from which on Pillow warns of a bomb
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # by channels
# What the decoders raise on files that are truncated or altered.
_BROKEN = (OSError, SyntaxError, ValueError, EOFError, struct.error, IndexError, OverflowError)


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFiles:
    """One part of a data set: a file and a label for every sample."""

    paths: Sequence[Path]
    labels: np.ndarray


def decode(train: LabelledFiles, test: LabelledFiles, resize: int, scratch: Path) -> Raw:
    """Decode image files to uint8 (N, C, H, W); C is 1 if all are grey. `Raw.classes` is not set.

    With `resize` the shorter side is scaled to that many pixels and the centre cropped; without
    it all images must have the same size.
    """
    parts = {"x_train": train.paths, "x_test": test.paths}
    for name, part in parts.items():
        if not part:
            raise DataError(f"{name} has no image; give every part, and at least two per class")
    paths = [*train.paths, *test.paths]
    arrays = []
    with _start_threads() as pool:
        headers = list(pool.map(_read_header, paths))
        channels = 1 if all(mode in _GREY for _, _, mode in headers) else 3
        width, height, _ = headers[0]
        if resize:
            width = height = resize
        else:
            _check_sizes(paths, headers)
        for name, part in parts.items():
            array = _allocate(scratch / f"{name}.npy", (len(part), channels, height, width))
            list(pool.map(_decode_into, array, part, repeat(resize)))
            arrays.append(array)
    half = (0.5,) * channels
    return Raw(arrays[0], train.labels, arrays[1], test.labels, mean=half, std=half)


def decode_files(
    paths: Sequence[Path], resize: int = 0, channels: int = 0, size: tuple[int, ...] = ()
) -> np.ndarray:
    """Decode image files into an array in memory, uint8 (N, C, H, W).

    With `channels` all are converted to grey, colour or colour with transparency; 0 chooses grey
    if all are grey. Without `resize` all must have the `size` (height, width), or that of the
    first image if it is empty.
    """
    if channels and channels not in _MODES:
        raise DataError(
            f"image files have 1, 3 or 4 channels, and {channels} are needed; give an .npy file"
        )
    with _start_threads() as pool:
        headers = list(pool.map(_read_header, paths))
        if not channels:
            channels = 1 if all(mode in _GREY for _, _, mode in headers) else 3
        if resize:
            size = (resize, resize)
        elif size:
            _check_trained_size(paths, headers, size)
        else:
            _check_sizes(paths, headers)
            size = headers[0][1::-1]
        array = np.empty((len(paths), channels, *size), np.uint8)
        list(pool.map(_decode_into, array, paths, repeat(resize)))
    return array


@contextmanager
def _start_threads() -> Iterator[ThreadPoolExecutor]:
    """Start threads that decode images, without Pillow's warning of large ones: we refuse them."""
    from PIL import Image

    with warnings.catch_warnings():  # not in the threads: they all share one list of filters
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with ThreadPoolExecutor() as pool:  # the decoders release the interpreter lock
            yield pool


def _read_header(path: Path) -> tuple[int, int, str]:
    """Read width, height and mode without decoding the pixels."""
    with _open_image(path) as image:
        (width, height), mode = image.size, image.mode
    if mode not in (*_GREY, *_COLOUR):
        raise DataError(f"{path} has pixels of mode {mode}; save it with 8 bits a channel")
    return width, height, mode


def _check_pixels(path: Path, image: "Image") -> None:
    """Refuse an image that would fill the memory, before its pixels are decoded."""
    width, height = image.size
    if width * height > _PIXELS:
        raise _too_large(path, f"{width:,} x {height:,} pixels")


def _too_large(path: Path, size: str) -> DataError:
    return DataError(f"{path} is too large ({size}): an image has at most {_PIXELS:,} pixels")


def _check_sizes(paths: Sequence[Path], headers: Sequence[tuple[int, int, str]]) -> None:
    width, height, _ = headers[0]
    for path, (other_width, other_height, _) in zip(paths, headers, strict=True):
        if (other_width, other_height) != (width, height):
            raise DataError(
                f"{path} has {other_width} x {other_height} pixels and {paths[0]} "
                f"{width} x {height}; set data.resize={min(width, height)} to make them equal"
            )


def _check_trained_size(
    paths: Sequence[Path], headers: Sequence[tuple[int, int, str]], size: tuple[int, ...]
) -> None:
    height, width = size
    for path, (other_width, other_height, _) in zip(paths, headers, strict=True):
        if (other_width, other_height) != (width, height):
            raise DataError(
                f"{path} has {other_width} x {other_height} pixels, and the run was trained on "
                f"images of {width} x {height} without data.resize; resize the image to that"
            )


def _allocate(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Create a memory-mapped array whose disk space is allocated in advance."""
    head = {"descr": "|u1", "fortran_order": False, "shape": shape}
    with files.open_to_write(file) as stream:
        np.lib.format.write_array_header_1_0(stream, head)
        # A full disk kills a process that writes to a memory map; allocating raises an error.
        files.allocate(stream, stream.tell() + math.prod(shape))
    return np.lib.format.open_memmap(file, mode="r+")


def _decode_into(pixels: np.ndarray, path: Path, resize: int) -> None:
    """Decode one image into its row of an array."""
    with _open_image(path) as image:
        if "transparency" in image.info:
            image = image.convert("RGBA")
        image = image.convert(_MODES[len(pixels)])
        if resize:
            image = _crop_centre(image, resize)
        pixels[:] = np.atleast_3d(np.asarray(image)).transpose(2, 0, 1)


def _crop_centre(image: "Image", side: int) -> "Image":
    """Scale the shorter side to `side` pixels and crop the square in the centre."""
    from PIL.Image import Resampling

    shorter = min(image.size)
    width, height = (max(side, round(length * side / shorter)) for length in image.size)
    if shorter != side:
        image = image.resize((width, height), Resampling.BILINEAR)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


@contextmanager
def _open_image(path: Path) -> Iterator["Image"]:
    """Open an image; the error names a damaged file."""
    from PIL import Image

    locate.check_file(path)
    try:
        with Image.open(path, formats=_FORMATS) as image:
            _check_pixels(path, image)
            yield image
    except Image.DecompressionBombError as error:  # its header says more than twice Pillow's limit
        raise _too_large(path, str(error).partition(",")[0]) from error
    except _BROKEN as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"{path} cannot be decoded ({reason}); "
            "it is truncated or not an image: replace or remove it"
        ) from error
