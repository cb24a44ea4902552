"""Folders of images, with one folder per class, with or without a test set."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import images, locate
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
        for part in (self.train, self.test):
            for paths in part.values():
                yield from paths


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFiles:
    """One part of a data set: a file and a label for every sample."""

    paths: list[Path]
    labels: np.ndarray


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


def check_test_classes(tree: Tree, classes: Sequence[str]) -> None:
    """Reject test images of a class without training images."""
    for name, paths in tree.test.items():
        if name not in classes and paths:
            raise DataError(
                f"{paths[0]} is of the class {name!r}, of which there is no training image; "
                "add some or remove the test images"
            )


def label_files(part: ByClass, classes: Sequence[str]) -> LabelledFiles:
    """List the files of a part in the order of the classes, with the number of the class."""
    paths = [path for name in classes for path in part.get(name, ())]
    counts = [len(part.get(name, ())) for name in classes]
    return LabelledFiles(paths, np.repeat(np.arange(len(classes)), counts))


def _list_classes(folder: Path) -> dict[str, list[Path]]:
    """List the images of every class, a subfolder."""
    classes: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            classes[entry.name] = locate.list_files_below(entry, images.ENDINGS)
            if not classes[entry.name]:
                raise DataError(
                    f"{entry} is the folder of a class and contains no image "
                    f"({', '.join(images.ENDINGS)}); add some or remove it"
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
    files = label_files(whole, names)
    train, test = hold_out(files.labels)
    return Tree(*(_pick(files, names, rows) for rows in (train, test)))


def _pick(source: LabelledFiles, names: Sequence[str], rows: np.ndarray) -> ByClass:
    picked: dict[str, list[Path]] = {name: [] for name in names}
    for row in rows:
        picked[names[source.labels[row]]].append(source.paths[row])
    return picked


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
