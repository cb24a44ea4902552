"""CIFAR in its two official layouts, binary and Python, unpacked or as a .tar.gz archive."""

import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.data import unpickle
from coterie.data.datasets import Raw
from coterie.data.formats import locate

_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_LARGEST = 2**29  # bytes; larger than any official file
_UNREADABLE = (tarfile.TarError, EOFError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one layout, the test set last; `key` is that of the labels, empty if binary.

    A record of a binary file is `label_bytes` labels, of which the last is used, and the pixels.
    """

    folder: str
    archive: str
    names: tuple[str, ...]
    label_bytes: int = 0
    key: str = ""


@dataclass(frozen=True, slots=True)
class Cifar:
    """CIFAR-10 or CIFAR-100: its layouts, the number of classes, mean and deviation by channel."""

    name: str
    layouts: tuple[Layout, ...]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def files(self, root: str) -> tuple[Path, ...]:
        """List the files to read: the archive, or the files of the folder."""
        layout, path = self._find(root)
        if layout is None:
            return (path,)
        for file in layout.names:
            if not (path / file).is_file():
                raise DataError(f"{path / file} is missing; unpack {layout.archive} again")
        return tuple(path / file for file in layout.names)

    def read(self, root: str) -> Raw:
        """Read training images and labels, test images and labels."""
        layout, path = self._find(root)
        if layout is None:
            layout, contents = self._unpack(path)
        else:
            contents = {file.name: _read_bytes(file) for file in self.files(root)}
        parts = [_parse(layout, path / file, contents.pop(file)) for file in layout.names]
        for file, (x, _) in zip(layout.names[:-1], parts, strict=False):
            if len(x) != len(parts[0][0]):
                raise DataError(
                    f"{path / file} has {len(x)} images and {layout.names[0]} {len(parts[0][0])}; "
                    f"get {layout.archive} again"
                )
        x_test, y_test = parts.pop()
        x_train, y_train = map(np.concatenate, zip(*parts, strict=True))
        return Raw(x_train, y_train, x_test, y_test, self.classes, self.mean, self.std)

    def _find(self, root: str) -> tuple[Layout | None, Path]:
        """Find a folder with its layout, or an archive, whose layout is known once it is read."""
        base = locate.resolve_root(root)
        if base.is_file():
            return None, base
        searched = [base]
        for layout in self.layouts:
            for folder in (base / layout.folder, base):
                searched.append(folder)
                if any((folder / file).is_file() for file in layout.names):
                    return layout, folder
        for layout in self.layouts:
            searched.append(base / layout.archive)
            if searched[-1].is_file():
                return None, searched[-1]
        raise locate.describe_missing(self.name, searched, self._archives())

    def _unpack(self, path: Path) -> tuple[Layout, dict[str, bytes]]:
        """Read the files of an archive by name into memory; nothing is written to disk."""
        wanted = {file for layout in self.layouts for file in layout.names}
        try:
            contents = dict(_read_members(path, wanted))
        except _UNREADABLE as error:
            raise DataError(
                f"{path} cannot be unpacked ({error or type(error).__name__}); "
                "it is truncated or damaged: delete it and get it again"
            ) from error
        for layout in self.layouts:
            if layout.names[-1] in contents:
                missing = [file for file in layout.names if file not in contents]
                if missing:
                    raise DataError(f"{path} has no file {missing[0]}; delete it and get it again")
                return layout, contents
        raise DataError(
            f"{path} contains none of the official files; give {self._archives()} as data.root"
        )

    def _archives(self) -> str:
        return " or ".join(layout.archive for layout in self.layouts)


def _read_bytes(file: Path) -> bytes:
    locate.check_file(file)
    try:
        return file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); check the disk") from error


def _read_members(path: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(path, "r|gz") as archive:
        for member in archive:
            name = member.name.rsplit("/", 1)[-1]
            if name not in wanted or not member.isfile():
                continue
            if member.size > _LARGEST:
                raise tarfile.TarError(f"{member.name} would be {member.size} bytes")
            file = archive.extractfile(member)
            data = file.read() if file else b""
            if len(data) != member.size:
                raise tarfile.TarError(f"{member.name} ends early")
            yield name, data


def _parse(layout: Layout, origin: Path, data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Parse one file into images and labels."""
    if layout.key:
        return _parse_python(origin, data, layout.key)
    record = layout.label_bytes + _PIXELS
    if not data or len(data) % record:
        raise DataError(
            f"{origin} has {len(data)} bytes, not a whole number of records of {record}: "
            f"it is truncated or altered; get {layout.archive} again"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, record)
    labels, pixels = records[:, layout.label_bytes - 1], records[:, layout.label_bytes :]
    return pixels.reshape(-1, *_SHAPE), labels.astype(np.int64)


def _parse_python(origin: Path, data: bytes, key: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        batch = unpickle.loads(data)
        if not isinstance(batch, dict):
            raise unpickle.Refused("it is not a dictionary")
        x, y = _entry(batch, "data"), np.asarray(_entry(batch, key))
    except (unpickle.Refused, ValueError) as error:
        raise DataError(
            f"{origin} is not an official CIFAR file ({error}); delete it and get it again"
        ) from error
    pixels = isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == 2
    if not pixels or x.shape[1] != _PIXELS or y.shape != (len(x),) or y.dtype.kind not in "iu":
        shape = getattr(x, "shape", type(x).__name__)
        raise DataError(
            f"{origin}: 'data' is {shape} and {key!r} {y.dtype} {y.shape}, not bytes (N, 3072) and "
            "N integers; delete it and get it again"
        )
    return x.reshape(-1, *_SHAPE), y.astype(np.int64)


def _entry(batch: Mapping[Any, Any], key: str) -> Any:
    """Look up a key that Python 2 wrote as bytes and Python 3 as text."""
    for spelling in (key.encode(), key):
        if spelling in batch:
            return batch[spelling]
    raise unpickle.Refused(f"it has no {key!r}")
