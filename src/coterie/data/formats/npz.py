"""Arrays of .npz files, with the channels of images moved to the front."""

import zlib
from collections.abc import Iterable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from coterie.core.errors import DataError
from coterie.data import checks

# What numpy and zipfile raise on files that are truncated, altered, encrypted or not .npz.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, BadZipFile, zlib.error)
_GREY_AXES, _IMAGE_AXES = 3, 4


def read(path: Path, choices: Iterable[tuple[str, ...]]) -> dict[str, np.ndarray]:
    """Read the first set of arrays that the file has completely; pickled objects are rejected."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array")
            missing = ""
            for names in choices:
                absent = [name for name in names if name not in archive]
                if not absent:
                    return {name: archive[name] for name in names}
                missing = missing or absent[0]
            have = ", ".join(archive.files) or "nothing"
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays ({reason}); write it again "
            "with np.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...)"
        ) from error
    raise DataError(f"{path} has no array {missing!r} (it has: {have}); add it with np.savez")


def channels_first(origin: str, train: np.ndarray, test: np.ndarray) -> list[np.ndarray]:
    """Move the channels of both arrays to the front, judging by the training shape."""
    if train.ndim != test.ndim:
        raise DataError(
            f"{origin}: x_test has shape {test.shape} and x_train {train.shape}; "
            "give both the same layout"
        )
    if train.ndim == _GREY_AXES:
        return [train[:, np.newaxis], test[:, np.newaxis]]
    if train.ndim != _IMAGE_AXES:
        return [train, test]
    first, last = train.shape[1] in checks.CHANNELS, train.shape[3] in checks.CHANNELS
    if first and last:
        raise DataError(
            f"{origin}: x_train has shape {train.shape}, in which both (N, channels, height, "
            "width) and (N, height, width, channels) can be read; pad or crop the images so that "
            "only the channel axis is 1, 3 or 4 long, or leave the axis out for grey images"
        )
    return [x.transpose(0, 3, 1, 2) if last else x for x in (train, test)]


def default_statistics(x: np.ndarray) -> tuple[float, ...]:
    """Return mean and deviation for a user's data: 0.5 per channel for bytes, none for floats."""
    byte_images = x.ndim == _IMAGE_AXES and x.dtype.kind in "iu"
    return (0.5,) * x.shape[1] if byte_images else ()
