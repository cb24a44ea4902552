"""`arrays`: the user's own data, an .npz file with x_train, y_train, x_test and y_test."""

import zipfile
import zlib
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data import checks
from coterie.data.datasets import Raw

_REMEDY = "give one with data.root=FILE.npz"
# What numpy and zipfile raise on files that are cut, altered, encrypted or no .npz at all.
_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)
_GREY_AXES, _IMAGE_AXES = 3, 4


def files(root: str) -> tuple[Path, ...]:
    """The one file, with `~` expanded."""
    try:
        return (Path(root).expanduser(),)
    except RuntimeError:  # `~name` of a user who does not exist
        return (Path(root),)


def read(root: str) -> Raw:
    """Read the file."""
    if not root:
        raise DataError(f"data.root is empty, but the data set 'arrays' is a file; {_REMEDY}")
    (path,) = files(root)
    if not path.is_file():
        raise DataError(f"{path.absolute()} is not a file; {_REMEDY}")
    arrays = _decode(path)
    return arrange(str(path), **arrays)


def arrange(
    origin: str, x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Raw:
    """Images (N, H, W), (N, H, W, C) or (N, C, H, W) become (N, C, H, W).

    uint8 images are normalised to mean 0.5 and deviation 0.5 per channel, floats are left alone.
    """
    x_train, x_test = _channels_first(origin, x_train, x_test)
    bytewise = x_train.ndim == _IMAGE_AXES and x_train.dtype.kind in "iu"
    half = (0.5,) * x_train.shape[1] if bytewise else ()
    return Raw(x_train, y_train, x_test, y_test, mean=half, std=half)


def _decode(path: Path) -> dict[str, np.ndarray]:
    """The four arrays of the file; objects, which would need pickle, are refused."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise ValueError("it is a single array")
            missing = [name for name in checks.ARRAYS if name not in archive]
            if not missing:
                return {name: archive[name] for name in checks.ARRAYS}
            have = ", ".join(archive.files) or "nothing"
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path} cannot be read as an .npz file of plain arrays ({reason}); write it again "
            "with np.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...)"
        ) from error
    raise DataError(f"{path} has no array {missing[0]!r} (it has: {have}); add it with np.savez")


def _channels_first(
    origin: str, train: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays with the channels put first, by the layout that the training shape shows."""
    if train.ndim != test.ndim:
        raise DataError(
            f"{origin}: x_test has shape {test.shape} and x_train {train.shape}; "
            "give both the same layout"
        )
    if train.ndim == _GREY_AXES:
        return train[:, np.newaxis], test[:, np.newaxis]
    if train.ndim != _IMAGE_AXES:
        return train, test
    first, last = train.shape[1] in checks.CHANNELS, train.shape[3] in checks.CHANNELS
    if first and last:
        raise DataError(
            f"{origin}: x_train has shape {train.shape}, in which both (N, channels, height, "
            "width) and (N, height, width, channels) can be read; pad or crop the images so that "
            "only the channel axis is 1, 3 or 4 long, or leave the axis out for grey images"
        )
    if not last:
        return train, test
    return train.transpose(0, 3, 1, 2), test.transpose(0, 3, 1, 2)
