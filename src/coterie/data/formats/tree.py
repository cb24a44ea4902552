"""Folders of images: one folder per class, or flat without labels; with or without a test set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import locate
from coterie.data.formats.images import ENDINGS, LabelledFiles
from coterie.data.labels import MISSING, ClassNames
from coterie.data.subset import hold_out

ByClass = Mapping[str, Sequence[Path]]

NONE = "none"  # the class of images that have no label
_TINY = "tiny-imagenet-200"
_ANNOTATIONS = "val_annotations.txt"


@dataclass(frozen=True, slots=True)
class Tree:
    """The images of a folder by class, for training and for testing."""

    train: ByClass
    test: ByClass
    listings: tuple[Path, ...] = ()  # files that say of which class an image is

    def paths(self) -> Iterator[Path]:
        """List all files that the data are read from."""
        return chain(self.listings, *self.train.values(), *self.test.values())


def read(root: Path) -> Tree:
    """Read `train/<class>` and `test/<class>`, Tiny-ImageNet, or `<class>`, split 80/20.

    Instead of folders of classes there may be images without labels.
    """
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


def label(trees: Sequence[Tree]) -> tuple[list[LabelledFiles], list[LabelledFiles], ClassNames]:
    """Label the training and the test images of every folder; return also the classes.

    Classes are numbered in the order of their names, over all folders; the class `none` is no
    label. Test images of a class without training images are rejected.
    """
    classes = _name_classes(tree.train for tree in trees)
    if not classes:
        classes = _name_classes(tree.test for tree in trees)
    for tree in trees:
        for name, paths in tree.test.items():
            if name not in (*classes, NONE) and paths:
                raise DataError(
                    f"{paths[0]} is of the class {name!r}, of which there is no training image; "
                    "add some or remove the test images"
                )
    train = [_label_part(tree.train, classes) for tree in trees]
    return train, [_label_part(tree.test, classes) for tree in trees], tuple(classes)


def _name_classes(parts: Iterable[ByClass]) -> list[str]:
    return locate.sort_names(name for part in parts for name in part if name != NONE)


def _label_part(part: ByClass, classes: Sequence[str]) -> LabelledFiles:
    paths = [path for name in (*classes, NONE) for path in part.get(name, ())]
    counts = [len(part.get(name, ())) for name in (*classes, NONE)]
    return LabelledFiles(paths, np.repeat([*range(len(classes)), MISSING], counts))


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    """List the images of every class, a subfolder; those of a flat folder have no label."""
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    loose = [e for e in entries if e.name.lower().endswith(ENDINGS) and not e.is_dir()]
    classes: dict[str, list[Path]] = {}
    for entry in (entry for entry in entries if entry.is_dir()):
        classes[entry.name] = locate.list_files_below(entry, ENDINGS)
        if not classes[entry.name]:
            raise DataError(
                f"{entry} is the folder of a class and contains no image "
                f"({', '.join(ENDINGS)}); add some or remove it"
            )
    if loose and classes:
        raise DataError(
            f"{loose[0]} lies beside folders of classes ({min(classes)}); move it to the folder of "
            f"its class, or to {folder / NONE} if it has no label"
        )
    if not (loose or classes):
        raise DataError(
            f"{folder} contains no image ({', '.join(ENDINGS)}) and no folder of a class; put "
            f"images without labels in {folder}, labelled ones in {folder}/CLASS/, or in "
            "train/CLASS/ and test/CLASS/ of data.root"
        )
    return classes or {NONE: loose}


def _split(whole: ByClass) -> Tree:
    """Hold out a fifth of every class, the same in every run."""
    names = _name_classes([whole])
    files = _label_part(whole, names)
    by_label = [*names, NONE]  # the label -1 is the last
    parts: list[dict[str, list[Path]]] = []
    for rows in hold_out(files.labels):
        parts.append({name: [] for name in by_label if name in whole})
        for row in rows:
            parts[-1][by_label[files.labels[row]]].append(files.paths[row])
    train, test = parts
    return Tree(train, test)


def _read_tiny_imagenet(folder: Path) -> Tree:
    """Read Tiny-ImageNet; its validation images, labelled in a file, are the test set."""
    listing = folder / "wnids.txt"
    names = listing.read_text().split()
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
    numbered = {name: train[name] for name in names if name in train}
    return Tree(numbered, test, (listing, annotations))
