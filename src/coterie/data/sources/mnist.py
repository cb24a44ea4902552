"""`mnist`: 70,000 handwritten digits of 28 x 28 pixels, as IDX files."""

from pathlib import Path

import numpy as np

from coterie.data.datasets import Raw
from coterie.data.formats import idx

_CLASSES = 10


def files(root: str) -> tuple[Path, ...]:
    """Find the four files."""
    return idx.files("mnist", root, "MNIST")


def read(root: str) -> Raw:
    """Read the four files."""
    return read_idx_files(files(root), 0.1307, 0.3081)


def read_idx_files(files: tuple[Path, ...], mean: float, std: float) -> Raw:
    """Read four IDX files as grey images in ten classes."""
    x_train, y_train, x_test, y_test = (
        idx.read(file, axes) for file, axes in zip(files, (3, 1, 3, 1), strict=True)
    )
    return Raw(
        x_train[:, np.newaxis],
        y_train,
        x_test[:, np.newaxis],
        y_test,
        _CLASSES,
        mean=(mean,),
        std=(std,),
    )
