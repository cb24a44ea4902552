"""`fashion-mnist`: 70,000 grey pictures of clothing of 28 x 28 pixels, as IDX files."""

from pathlib import Path

from coterie.data.formats import idx

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist
_SOURCE = idx.IdxFiles("fashion-mnist", "FashionMNIST", 0.2860, 0.3530, _DEBIAN)
files, read = _SOURCE.files, _SOURCE.read
