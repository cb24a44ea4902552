"""IDX files, the format of MNIST: a header of big-endian numbers, then bytes, gzipped or not."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.datasets import Raw
from coterie.data.formats import locate

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_CLASSES = 10
_BYTES_OF_UNSIGNED = 0x08
_LARGEST = 2**30
_AGAIN = "delete it and get it again"


@dataclass(frozen=True, slots=True)
class IdxFiles:
    """Grey images in ten classes, as four files; `debian` is where a package installs them."""

    name: str
    folder: str
    mean: float
    std: float
    debian: Path | None = None

    def files(self, root: str) -> tuple[Path, ...]:
        """Find training images and labels, test images and labels.

        The root, its folder `name` and torchvision's folder are searched.
        """
        base = locate.resolve_root(root)
        own = (base / self.name, base / self.folder / "raw")
        # Two data sets have these file names, so in the default root only their folders are used.
        folders = (base, *own) if root else (*own, *filter(None, [self.debian]))
        for location in folders:
            files = [_find_file(location, name) for name in NAMES]
            if any(files):
                break
        else:
            also = f", or install Debian's dataset-{self.name}" if self.debian else ""
            wanted = ", ".join(f"{name}-ubyte.gz" for name in NAMES)
            raise locate.describe_missing(self.name, folders, wanted, also)
        if None in files:
            path = location / f"{NAMES[files.index(None)]}-ubyte.gz"
            raise DataError(f"{path} is missing; put it beside the others")
        return tuple(filter(None, files))

    def read(self, root: str) -> Raw:
        """Read the four files."""
        x_train, y_train, x_test, y_test = map(_read, self.files(root), (3, 1, 3, 1))
        x_train, x_test = x_train[:, np.newaxis], x_test[:, np.newaxis]
        return Raw(x_train, y_train, x_test, y_test, _CLASSES, (self.mean,), (self.std,))


def _read(file: Path, axes: int) -> np.ndarray:
    """Read the array of a file: labels have one axis, images three."""
    try:
        with file.open("rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if raw.peek(2).startswith(b"\x1f\x8b") else raw
            sizes = _parse_header(file, stream.read(4 + 4 * axes), axes)
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


def _find_file(folder: Path, name: str) -> Path | None:
    """Find a file under one of its usual spellings."""
    stems = (name, name.replace("-idx", ".idx"))
    paths = (folder / f"{stem}-ubyte{end}" for stem in stems for end in (".gz", ""))
    return next((path for path in paths if path.is_file()), None)
