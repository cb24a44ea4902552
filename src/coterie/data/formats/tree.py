"""Folders of images: one folder per class, with a test set beside them or without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import DataError
from coterie.data.formats import images, locate
from coterie.data.subset import hold_out

ByClass = Mapping[str, Sequence[Path]]

_TINY = "tiny-imagenet-200"
_NOTES = "val_annotations.txt"


@dataclass(frozen=True, slots=True)
class Tree:
    """The images of a folder by class, for training and for testing."""

    train: ByClass
    test: ByClass


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One part of a data set: a file and a label for every sample."""

    paths: list[Path]
    labels: np.ndarray


def read(root: Path) -> Tree:
    """`train/<class>` and `test/<class>`, Tiny-ImageNet, or `<class>` with a fifth held out."""
    for folder in (root, root / _TINY):
        if (folder / "wnids.txt").is_file() and (folder / "val" / _NOTES).is_file():
            return _tiny(folder)
    if not (root / "train").is_dir():
        return _split(_classes(root))
    train = _classes(root / "train")
    for name in ("test", "val"):
        if (root / name).is_dir():
            return Tree(train, _classes(root / name))
    return _split(train)


def check_tested(tree: Tree, classes: Sequence[str]) -> None:
    """Refuse test images of a class that nobody trains on."""
    for name, paths in tree.test.items():
        if name not in classes and paths:
            raise DataError(
                f"{paths[0]} is of the class {name!r}, of which there is no training image; "
                "add some or remove the test images"
            )


def table(part: ByClass, classes: Sequence[str]) -> Table:
    """The files of a part in the order of the classes, with the number of the class."""
    paths = [path for name in classes for path in part.get(name, ())]
    counts = [len(part.get(name, ())) for name in classes]
    return Table(paths, np.repeat(np.arange(len(classes)), counts))


def _classes(folder: Path) -> dict[str, list[Path]]:
    """The images below every folder of a folder."""
    found: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not entry.name.startswith("."):
            found[entry.name] = locate.below(entry, images.ENDINGS)
            if not found[entry.name]:
                raise DataError(
                    f"{entry} is the folder of a class and holds no image "
                    f"({', '.join(images.ENDINGS)}); add some or remove it"
                )
    if not found:
        raise DataError(
            f"{folder} holds no folder of a class; put the images in {folder}/CLASS/, or in "
            "train/CLASS/ and test/CLASS/ of data.root"
        )
    return found


def _split(whole: ByClass) -> Tree:
    """Hold out a fifth of every class, the same in every run."""
    names = locate.ordered(whole)
    all_of = table(whole, names)
    train, test = hold_out(all_of.labels)
    return Tree(*(_pick(all_of, names, rows) for rows in (train, test)))


def _pick(source: Table, names: Sequence[str], rows: np.ndarray) -> ByClass:
    picked: dict[str, list[Path]] = {name: [] for name in names}
    for row in rows:
        picked[names[source.labels[row]]].append(source.paths[row])
    return picked


def _tiny(folder: Path) -> Tree:
    """Tiny-ImageNet: the labels of its validation images, which are the test set, are in a file."""
    names = (folder / "wnids.txt").read_text().split()
    train = _classes(folder / "train")
    notes = folder / "val" / _NOTES
    test: dict[str, list[Path]] = {name: [] for name in names}
    for number, line in enumerate(notes.read_text().splitlines(), 1):
        words = line.split("\t")
        path = folder / "val" / "images" / words[0]
        if len(words) == 1 or words[1] not in train or words[1] not in test:
            raise DataError(f"{notes}:{number} names no class of wnids.txt; unpack {_TINY} again")
        if not path.is_file():
            raise DataError(f"{path} is missing, and {notes} names it; unpack {_TINY} again")
        test[words[1]].append(path)
    return Tree({name: train[name] for name in names if name in train}, test)
