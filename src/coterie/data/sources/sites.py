"""`sites`: one folder of images, or one .npz file, per client."""

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
    """List the .npz files, or all images of all sites."""
    sites = _list_sites(locate.require_folder("sites", root))
    if sites[0].path.is_file():
        return tuple(site.path for site in sites)
    return tuple(path for site in sites for path in tree.read(site.path).paths())


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Read all samples of all sites, with the site as their group."""
    sites = _list_sites(locate.require_folder("sites", root))
    if not sites[0].path.is_file():
        return _read_folders(sites, resize, scratch)
    if resize:
        raise ConfigError(
            f"data.resize={resize} is for image files, and {sites[0].path} is not one; leave it out"
        )
    return _read_archives(sites)


def _list_sites(root: Path) -> list[_Site]:
    """List the clients in the order of their names; all are folders, or all are .npz files."""
    entries = [entry for entry in root.iterdir() if not entry.name.startswith(".")]
    folders = {entry.name: entry for entry in entries if entry.is_dir()}
    archives = {entry.stem: entry for entry in entries if entry.suffix == ".npz"}
    if folders and archives:
        raise DataError(
            f"{root} contains folders ({min(folders)}) and .npz files ({min(archives)}.npz); "
            "give every site the same form"
        )
    sites = folders or archives
    if not sites:
        raise DataError(
            f"{root} contains no site; put one folder or one .npz file per client there"
        )
    return [_Site(name, sites[name]) for name in locate.sort_names(sites)]


def _read_folders(sites: list[_Site], resize: int, scratch: Path) -> Raw:
    trees = [tree.read(site.path) for site in sites]
    classes = locate.sort_names(name for folders in trees for name in folders.train)
    for folders in trees:
        tree.check_test_classes(folders, classes)
    train = [tree.label_files(folders.train, classes) for folders in trees]
    test = [tree.label_files(folders.test, classes) for folders in trees]
    paths = {
        name: [path for site in part for path in site.paths]
        for name, part in (("x_train", train), ("x_test", test))
    }
    x_train, x_test = images.decode(paths, resize, scratch)
    y_train, y_test = ([site.labels for site in part] for part in (train, test))
    half = (0.5,) * x_train.shape[1]
    return Raw(
        x_train,
        np.concatenate(y_train),
        x_test,
        np.concatenate(y_test),
        len(classes),
        mean=half,
        std=half,
        groups=_make_groups(sites, y_train, y_test),
    )


def _read_archives(sites: list[_Site]) -> Raw:
    parts = [_read_arrays(site.path) for site in sites]
    first = parts[0][0]
    for site, (x, *_) in zip(sites, parts, strict=True):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise DataError(
                f"{site.path}: samples are {x.dtype} {x.shape[1:]}, and those of "
                f"{sites[0].path} {first.dtype} {first.shape[1:]}; give all sites the same form"
            )
    x_train, x_test = (np.concatenate([part[index] for part in parts]) for index in (0, 2))
    y_train, y_test = ([part[index] for part in parts] for index in (1, 3))
    half = npz.default_statistics(first)
    return Raw(
        x_train,
        np.concatenate(y_train),
        x_test,
        np.concatenate(y_test),
        mean=half,
        std=half,
        groups=_make_groups(sites, y_train, y_test),
    )


def _read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read training and test arrays of one site; without test arrays a fifth is held out."""
    arrays = npz.read(path, _CHOICES)
    has_test = "x_test" in arrays
    part = "" if "x" in arrays else "_train"
    x, y = arrays[f"x{part}"], arrays[f"y{part}"]
    x, x_test = npz.channels_first(str(path), x, arrays["x_test"] if has_test else x)
    try:
        checks.check_part(part, x, y)
        if has_test:
            checks.check_part("_test", x_test, arrays["y_test"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if has_test:
        return x, y, x_test, arrays["y_test"]
    train, test = hold_out(y)
    return x[train], y[train], x[test], y[test]


def _make_groups(sites: list[_Site], train: list[np.ndarray], test: list[np.ndarray]) -> Groups:
    of_train, of_test = (
        np.repeat(np.arange(len(sites)), [len(labels) for labels in part]) for part in (train, test)
    )
    return Groups(of_train, of_test, tuple(site.name for site in sites))
