"""`arrays`: your own data, an .npz file with x_train, y_train, x_test and y_test."""

from pathlib import Path

import numpy as np

from coterie.data import checks
from coterie.data.datasets import Raw
from coterie.data.formats import locate, npz


def files(root: str) -> tuple[Path, ...]:
    """Return the one file, with `~` expanded."""
    return (locate.expand_path(root),)


def read(root: str) -> Raw:
    """Read the file."""
    path = locate.require_own("arrays", root, "file", "FILE.npz")
    return make_raw(str(path), **npz.read(path, [checks.ARRAYS]))


def make_raw(
    origin: str, x_train: np.ndarray, y_train: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Raw:
    """Bring images (N, H, W), (N, H, W, C) or (N, C, H, W) to (N, C, H, W).

    uint8 images are normalised with mean 0.5 and deviation 0.5 per channel, floats are not.
    """
    x_train, x_test = npz.channels_first(origin, x_train, x_test)
    half = npz.default_statistics(x_train)
    return Raw(x_train, y_train, x_test, y_test, mean=half, std=half)
