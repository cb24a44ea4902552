"""Folders of images, with one folder per class, with or without a test set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import locate
from coterie.data.formats.images import ENDINGS, LabelledFiles
from coterie.data.subset import hold_out

ByClass = Mapping[str, Sequence[Path]]

_TINY = "tiny-imagenet-200"
_ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True, slots=True)
class Tree:
    """The images of a folder by class, for training and for testing."""

    train: ByClass
    test: ByClass

    def paths(self) -> Iterator[Path]:
        """List all images."""
        return chain(*self.train.values(), *self.test.values())


def read(root: Path) -> Tree:
    """Read `train/<class>` and `test/<class>`, Tiny-ImageNet, or `<class>`, split 80/20."""
    for folder in (root, root / _TINY):
        if (folder / "wnids.txt").is_file() and (folder / "val" / _ANNOTATIONS).is_file():
            return _read_tiny_imagenet(folder)
    if not (root / "train").is_dir():
        return _split(_list_classes(root))
    train = _list_classes(root / "train")
    for name in ("test", "val"):
        if (root / name).is_dir():
            return Tree(train, _list_classes(root / name))
    return _split(train)


def label(trees: Sequence[Tree]) -> tuple[list[LabelledFiles], list[LabelledFiles], int]:
    """Label the training and the test images of every folder; return also the number of classes.

    Classes are numbered in the order of their names, over all folders. Test images of a class
    without training images are rejected.
    """
    classes = locate.sort_names(name for tree in trees for name in tree.train)
    for tree in trees:
        for name, paths in tree.test.items():
            if name not in classes and paths:
                raise DataError(
                    f"{paths[0]} is of the class {name!r}, of which there is no training image; "
                    "add some or remove the test images"
                )
    train = [_label_part(tree.train, classes) for tree in trees]
    return train, [_label_part(tree.test, classes) for tree in trees], len(classes)


def _label_part(part: ByClass, classes: Sequence[str]) -> LabelledFiles:
    paths = [path for name in classes for path in part.get(name, ())]
    counts = [len(part.get(name, ())) for name in classes]
    return LabelledFiles(paths, np.repeat(np.arange(len(classes)), counts))


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    """List the images of every class, a subfolder."""
    classes: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            classes[entry.name] = locate.list_files_below(entry, ENDINGS)
            if not classes[entry.name]:
                raise DataError(
                    f"{entry} is the folder of a class and contains no image "
                    f"({', '.join(ENDINGS)}); add some or remove it"
                )
    if not classes:
        raise DataError(
            f"{folder} contains no folder of a class; put the images in {folder}/CLASS/, or in "
            "train/CLASS/ and test/CLASS/ of data.root"
        )
    return classes


def _split(whole: ByClass) -> Tree:
    """Hold out a fifth of every class, the same in every run."""
    names = locate.sort_names(whole)
    files = _label_part(whole, names)
    parts: list[dict[str, list[Path]]] = []
    for rows in hold_out(files.labels):
        parts.append({name: [] for name in names})
        for row in rows:
            parts[-1][names[files.labels[row]]].append(files.paths[row])
    return Tree(*parts)


def _read_tiny_imagenet(folder: Path) -> Tree:
    """Read Tiny-ImageNet; its validation images, labelled in a file, are the test set."""
    names = (folder / "wnids.txt").read_text().split()
    train = _list_classes(folder / "train")
    annotations = folder / "val" / _ANNOTATIONS
    test: dict[str, list[Path]] = {name: [] for name in names}
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        file, _, rest = line.partition("\t")
        name, path = rest.split("\t")[0], folder / "val" / "images" / file
        if name not in train or name not in test:
            raise DataError(
                f"{annotations}:{number} names no class of wnids.txt; unpack {_TINY} again"
            )
        if not path.is_file():
            raise DataError(f"{path} is missing, and {annotations} names it; unpack {_TINY} again")
        test[name].append(path)
    return Tree({name: train[name] for name in names if name in train}, test)
