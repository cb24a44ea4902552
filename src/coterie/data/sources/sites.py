"""`sites`: a folder with one client's data each, as a folder of images or an .npz file."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data import checks
from coterie.data.datasets import Groups, Raw
from coterie.data.formats import images, locate, npz, tree
from coterie.data.subset import hold_out

_CHOICES = (checks.ARRAYS, ("x_train", "y_train"), ("x", "y"))


@dataclass(frozen=True, slots=True)
class _Site:
    name: str
    path: Path


def files(root: str) -> tuple[Path, ...]:
    """The .npz files, or all images of all sites."""
    sites = _sites(locate.given("sites", root))
    if sites[0].path.is_file():
        return tuple(site.path for site in sites)
    trees = [tree.read(site.path) for site in sites]
    parts = [part for found in trees for part in (found.train, found.test)]
    return tuple(path for part in parts for paths in part.values() for path in paths)


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """All samples of all sites, with the site as their group."""
    sites = _sites(locate.given("sites", root))
    if not sites[0].path.is_file():
        return _folders(sites, resize, scratch)
    if resize:
        raise ConfigError(
            f"data.resize={resize} is for image files, and {sites[0].path} is none; leave it out"
        )
    return _archives(sites)


def _sites(root: Path) -> list[_Site]:
    """The clients in the order of their names; all are folders, or all are .npz files."""
    entries = [entry for entry in root.iterdir() if not entry.name.startswith(".")]
    folders = {entry.name: entry for entry in entries if entry.is_dir()}
    archives = {entry.stem: entry for entry in entries if entry.suffix == ".npz"}
    if folders and archives:
        raise DataError(
            f"{root} holds folders ({min(folders)}) and .npz files ({min(archives)}.npz); "
            "give every site the same form"
        )
    found = folders or archives
    if not found:
        raise DataError(f"{root} holds no site; put one folder or one .npz file per client there")
    return [_Site(name, found[name]) for name in locate.ordered(found)]


def _folders(sites: list[_Site], resize: int, scratch: Path) -> Raw:
    trees = [tree.read(site.path) for site in sites]
    classes = locate.ordered(name for found in trees for name in found.train)
    for found in trees:
        tree.check_tested(found, classes)
    parts = {
        "x_train": [tree.table(found.train, classes) for found in trees],
        "x_test": [tree.table(found.test, classes) for found in trees],
    }
    paths = {name: [path for one in part for path in one.paths] for name, part in parts.items()}
    x_train, x_test = images.decode(paths, resize, scratch)
    labels = {name: [one.labels for one in part] for name, part in parts.items()}
    half = (0.5,) * x_train.shape[1]
    return Raw(
        x_train,
        np.concatenate(labels["x_train"]),
        x_test,
        np.concatenate(labels["x_test"]),
        len(classes),
        mean=half,
        std=half,
        groups=_groups(sites, labels["x_train"], labels["x_test"]),
    )


def _archives(sites: list[_Site]) -> Raw:
    parts = [_arrays(site.path) for site in sites]
    first = parts[0][0]
    for site, (x, *_) in zip(sites, parts, strict=True):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise DataError(
                f"{site.path}: samples are {x.dtype} {x.shape[1:]}, and those of "
                f"{sites[0].path} {first.dtype} {first.shape[1:]}; give all sites the same form"
            )
    x_train, x_test = (np.concatenate([part[place] for part in parts]) for place in (0, 2))
    y_train, y_test = ([part[place] for part in parts] for place in (1, 3))
    half = npz.halves(first)
    return Raw(
        x_train,
        np.concatenate(y_train),
        x_test,
        np.concatenate(y_test),
        mean=half,
        std=half,
        groups=_groups(sites, y_train, y_test),
    )


def _arrays(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training and test arrays of one site; without test arrays a fifth is held out."""
    found = npz.read(path, _CHOICES)
    own = "x_test" in found
    part = "" if "x" in found else "_train"
    x, y = found[f"x{part}"], found[f"y{part}"]
    x, x_test = npz.channels_first(str(path), x, found["x_test"] if own else x)
    try:
        checks.check_part(part, x, y)
        if own:
            checks.check_part("_test", x_test, found["y_test"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if own:
        return x, y, x_test, found["y_test"]
    train, test = hold_out(y)
    return x[train], y[train], x[test], y[test]


def _groups(sites: list[_Site], train: list[np.ndarray], test: list[np.ndarray]) -> Groups:
    of_train, of_test = (
        np.repeat(np.arange(len(sites)), [len(labels) for labels in part]) for part in (train, test)
    )
    return Groups(of_train, of_test, tuple(site.name for site in sites))
