"""`folder`: your own images, one folder per class; Tiny-ImageNet as it is unpacked."""

from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import images, locate, tree


def files(root: str) -> tuple[Path, ...]:
    """All images."""
    found = tree.read(locate.given("folder", root))
    parts = (found.train, found.test)
    return tuple(path for part in parts for paths in part.values() for path in paths)


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode all images; the classes are numbered in the order of their names."""
    found = tree.read(locate.given("folder", root))
    names = locate.ordered(found.train)
    tree.check_tested(found, names)
    train, test = (tree.table(part, names) for part in (found.train, found.test))
    x_train, x_test = images.decode({"x_train": train.paths, "x_test": test.paths}, resize, scratch)
    half = (0.5,) * x_train.shape[1]
    return Raw(x_train, train.labels, x_test, test.labels, len(names), mean=half, std=half)
