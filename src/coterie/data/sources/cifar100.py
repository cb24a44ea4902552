"""`cifar100`: 60,000 photographs of 32 x 32 pixels with the hundred fine labels."""

from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import cifar

_LAYOUTS = (
    cifar.Layout(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ("train.bin",),
        "test.bin",
        label_bytes=2,  # coarse, then fine
    ),
    cifar.Layout(
        "cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", key="fine_labels"
    ),
)
_CLASSES = 100
_MEAN = (0.5071, 0.4865, 0.4409)
_STD = (0.2673, 0.2564, 0.2762)


def files(root: str) -> tuple[Path, ...]:
    """List the archive or the two files."""
    return cifar.files("cifar100", _LAYOUTS, root)


def read(root: str) -> Raw:
    """Read both files."""
    return Raw(*cifar.read("cifar100", _LAYOUTS, root), classes=_CLASSES, mean=_MEAN, std=_STD)
