"""`fashion-mnist`: 70,000 grey pictures of clothing of 28 x 28 pixels, as IDX files."""

from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import idx
from coterie.data.sources.mnist import read_idx_files

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # the package dataset-fashion-mnist


def files(root: str) -> tuple[Path, ...]:
    """Find the four files; without a root, also in Debian's package."""
    return idx.files("fashion-mnist", root, "FashionMNIST", (_DEBIAN,))


def read(root: str) -> Raw:
    """Read the four files."""
    return read_idx_files(files(root), 0.2860, 0.3530)
