"""`folder`: your own images, one folder per class; Tiny-ImageNet as it is unpacked."""

from pathlib import Path

from coterie.data.datasets import Raw
from coterie.data.formats import images, locate, tree


def files(root: str) -> tuple[Path, ...]:
    """List all images."""
    return tuple(tree.read(locate.require_folder("folder", root)).paths())


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Decode all images; classes are numbered in the order of their names."""
    folders = tree.read(locate.require_folder("folder", root))
    names = locate.sort_names(folders.train)
    tree.check_test_classes(folders, names)
    train, test = (tree.label_files(part, names) for part in (folders.train, folders.test))
    x_train, x_test = images.decode({"x_train": train.paths, "x_test": test.paths}, resize, scratch)
    half = (0.5,) * x_train.shape[1]
    return Raw(x_train, train.labels, x_test, test.labels, len(names), mean=half, std=half)
