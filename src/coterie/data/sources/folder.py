"""`folder`: your own images, one folder per class; Tiny-ImageNet as it is unpacked."""

from dataclasses import replace
from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import images, locate, tree


def files(root: str) -> tuple[Path, ...]:
    """List all images."""
    return tuple(tree.read(locate.require_own("folder", root)).paths())


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode all images; classes are numbered in the order of their names."""
    (train,), (test,), classes = tree.label([tree.read(locate.require_own("folder", root))])
    return replace(images.decode(train, test, resize, scratch), classes=classes)
