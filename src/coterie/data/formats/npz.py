"""Arrays of .npz files, and the layouts of samples that users have."""

import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zipfile import BadZipFile

import numpy as np

from coterie.core.errors import DataError
from coterie.data import checks
from coterie.data.datasets import AnyKind
from coterie.data.formats import locate

# What numpy and zipfile raise on files that are truncated, altered, encrypted or not .npz.
_UNREADABLE = (
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError, OverflowError),
    *(BadZipFile, zlib.error),
)
_TABLE_AXES, _SIGNAL_AXES, _IMAGE_AXES = 2, 3, 4
_END = struct.Struct("<4s6xH10x")  # of a zip file: its signature and the number of entries
_CHOICES = [
    (f"x{part}", *(f"y{part}" for _ in labels), *test)
    for part in ("_train", "")
    for test in (("x_test", "y_test"), ("x_test",), ())
    for labels in ("y", "")
]
_KNOWN = frozenset(name for names in _CHOICES for name in names)
_AXES = {"table": (_TABLE_AXES,), "signal": (_SIGNAL_AXES,), "image": (_SIGNAL_AXES, _IMAGE_AXES)}


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """The arrays of one file, as they are in it; only the samples must be there."""

    x: np.ndarray
    y: np.ndarray | None = None
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    part: str = ""  # of the names of x and y in the file: "" or "_train"


def read(path: Path) -> Arrays:
    """Read `x`, or `x_train`, with what there is of labels and test arrays."""
    arrays = read_first(path, _CHOICES, only=_KNOWN)
    part = "_train" if "x_train" in arrays else ""
    return Arrays(**{name.removesuffix("_train"): a for name, a in arrays.items()}, part=part)


def read_first(
    path: Path, choices: Iterable[tuple[str, ...]], only: frozenset[str] = frozenset()
) -> dict[str, np.ndarray]:
    """Read the first set of arrays that the file has completely; pickled objects are rejected.

    With `only`, other names are rejected too: a misspelt `y` would be taken for missing labels.
    """
    locate.check_file(path)
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array")
            _check_directory(file, len(archive.files))
            if only and (strange := sorted(set(archive.files) - only)):
                raise ValueError(f"{strange[0]!r} is none of {', '.join(sorted(only))}")
            for names in choices:
                if all(name in archive for name in names):
                    return {name: _check_array(name, archive[name]) for name in names}
            have = ", ".join(archive.files) or "nothing"
    except _UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays ({_explain(error)}); write it "
            "again with np.savez(FILE, x=..., y=...), or without y"
        ) from error
    raise DataError(f"{path} has no array 'x' (it has: {have}); add it with np.savez")


def _check_array(name: str, content: object) -> np.ndarray:
    """Refuse a member of an archive that is no array; numpy hands its bytes out."""
    if not isinstance(content, np.ndarray):
        raise ValueError(f"{name!r} is no array")
    return content


def _check_directory(file: BinaryIO, arrays: int) -> None:
    """Check that the archive lists as many arrays as its end record counts.

    A damaged list may just be shorter, and a missing `y` would be taken for missing labels.
    """
    file.seek(-_END.size, os.SEEK_END)
    signature, entries = _END.unpack(file.read())
    if signature == b"PK\x05\x06" and entries != arrays:
        raise ValueError(f"its directory lists {arrays} of {entries} arrays")


def read_single(path: Path) -> np.ndarray:
    """Read the array of an .npy file; pickled objects are rejected."""
    locate.check_file(path)
    try:
        with path.open("rb") as file:
            array = np.load(file, allow_pickle=False)
            if not isinstance(array, np.ndarray):
                raise ValueError("it is an archive of several")
    except _UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read as an .npy file of a plain array ({_explain(error)}); write it "
            "again with np.save(FILE, x)"
        ) from error
    return array


def _explain(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def arrange(x: np.ndarray, name: str, kind: AnyKind = "auto") -> np.ndarray:
    """Bring samples to (N, C, H, W) for images, (N, C, T) for signals, (N, F) for tables.

    Images may be (N, H, W), (N, H, W, C) or (N, C, H, W). Errors begin with `name`.
    """
    if kind != "auto" and x.ndim not in _AXES[kind]:
        raise DataError(f"{name} has shape {x.shape}, which is no {kind}; change data.kind")
    if x.ndim == _SIGNAL_AXES and kind != "signal":
        if kind == "auto" and x.dtype.kind not in "iu":
            raise DataError(
                f"{name} has {x.dtype} of shape {x.shape}, which may be grey images or signals; "
                "say data.kind=image or data.kind=signal (channels x time), in Python kind='image'"
            )
        return x[:, np.newaxis]
    if x.ndim != _IMAGE_AXES:
        return x
    first, last = x.shape[1] in checks.CHANNELS, x.shape[3] in checks.CHANNELS
    if first and last:
        raise DataError(
            f"{name} has shape {x.shape}, in which both (N, channels, height, width) and "
            "(N, height, width, channels) can be read; pad or crop the images so that "
            "only the channel axis is 1, 3 or 4 long, or leave the axis out for grey images"
        )
    return x.transpose(0, 3, 1, 2) if last else x


def default_statistics(x: np.ndarray) -> tuple[float, ...]:
    """Return mean and deviation for a user's data: 0.5 per channel for bytes, none for floats."""
    byte_images = x.ndim == _IMAGE_AXES and x.dtype.kind in "iu"
    return (0.5,) * x.shape[1] if byte_images else ()
