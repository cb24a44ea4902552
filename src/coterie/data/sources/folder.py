"""`folder`: your own images, one folder per class or without labels; Tiny-ImageNet unpacked."""

from dataclasses import replace
from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import images, locate, tree


def files(root: str) -> tuple[Path, ...]:
    """List all images, and files that say of which class they are."""
    return tuple(tree.read(locate.require_own("folder", root)).paths())


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode all images; classes are numbered in the order of their names."""
    (train,), (test,), classes = tree.label([tree.read(locate.require_own("folder", root))])
    raw = images.decode(train, test, resize, scratch)
    return replace(raw, classes=len(classes), class_names=classes)
