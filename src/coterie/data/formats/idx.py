"""IDX files, the format of MNIST: a header of big-endian numbers, then bytes, gzipped or not."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import locate

_NAMES = (
    ("train-images", "idx3-ubyte"),
    ("train-labels", "idx1-ubyte"),
    ("t10k-images", "idx3-ubyte"),
    ("t10k-labels", "idx1-ubyte"),
)
_BYTES_OF_UNSIGNED = 0x08
_LARGEST = 2**30
_AGAIN = "delete it and get it again"


def files(name: str, root: str, folder: str, defaults: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Find the four files: training images and labels, test images and labels.

    The root, its folder `name` and torchvision's folder (`folder`) are searched.
    """
    base = locate.resolve_root(root)
    own = (base / name, base / folder / "raw")
    # Two data sets have these file names, so in the default root only their folders are searched.
    folders = (base, *own) if root else (*own, *defaults)
    for location in folders:
        files = [_find_file(location, stem, kind) for stem, kind in _NAMES]
        if any(files):
            break
    else:
        also = f", or install Debian's dataset-{name}" if defaults else ""
        wanted = ", ".join(f"{stem}-{kind}.gz" for stem, kind in _NAMES)
        raise locate.describe_missing(name, folders, wanted, also)
    for (stem, kind), file in zip(_NAMES, files, strict=True):
        if file is None:
            path = location / f"{stem}-{kind}.gz"
            raise DataError(f"{path} is missing; put it beside the others")
    return tuple(file for file in files if file)


def read(file: Path, axes: int) -> np.ndarray:
    """Read the array of a file: labels have one axis, images three."""
    header_size = 4 + 4 * axes
    try:
        with gzip.open(file) if _is_gzipped(file) else file.open("rb") as stream:
            sizes = _parse_header(file, stream.read(header_size), axes)
            expected = math.prod(sizes)
            data = stream.read(expected + 1) if expected < _LARGEST else b""
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{file} cannot be read ({error}); it is truncated or damaged: {_AGAIN}"
        ) from error
    if len(data) != expected:
        more = "more" if len(data) > expected else len(data)
        raise DataError(f"{file} should have {expected} bytes of data and has {more}; {_AGAIN}")
    return np.frombuffer(data, np.uint8).reshape(sizes)


def _parse_header(file: Path, header: bytes, axes: int) -> tuple[int, ...]:
    if len(header) != 4 + 4 * axes:
        raise DataError(f"{file} ends after {len(header)} bytes, inside its header; {_AGAIN}")
    magic, *sizes = struct.unpack(f">{1 + axes}I", header)
    expected = _BYTES_OF_UNSIGNED << 8 | axes
    if magic != expected:
        raise DataError(
            f"{file} starts with the number {magic:#010x} instead of {expected:#010x}: it is not "
            f"an IDX file of {'labels' if axes == 1 else 'images'}; {_AGAIN}"
        )
    return tuple(sizes)


def _is_gzipped(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _find_file(folder: Path, stem: str, kind: str) -> Path | None:
    """Find a file under one of its usual spellings."""
    for name in (f"{stem}-{kind}", f"{stem}.{kind}"):
        for ending in (".gz", ""):
            if (folder / f"{name}{ending}").is_file():
                return folder / f"{name}{ending}"
    return None
