"""`sites`: one folder of images, or one .npz file, per client."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data import checks
from coterie.data.datasets import Groups, Raw
from coterie.data.formats import images, locate, npz, tree
from coterie.data.formats.images import LabelledFiles
from coterie.data.subset import hold_out

_CHOICES = (checks.ARRAYS, ("x_train", "y_train"), ("x", "y"))


def files(root: str) -> tuple[Path, ...]:
    """List the .npz files, or all images of all sites."""
    sites = _list_sites(locate.require_own("sites", root))
    if next(iter(sites.values())).is_file():
        return tuple(sites.values())
    return tuple(path for site in sites.values() for path in tree.read(site).paths())


def decode(root: str, resize: int, scratch: Path) -> Raw:
    """Read all samples of all sites, with the site as their group."""
    sites = _list_sites(locate.require_own("sites", root))
    first = next(iter(sites.values()))
    if not first.is_file():
        return _read_folders(sites, resize, scratch)
    if resize:
        raise ConfigError(
            f"data.resize={resize} is for image files, and {first} is not one; leave it out"
        )
    return _read_archives(sites)


def _list_sites(root: Path) -> dict[str, Path]:
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
    return {name: sites[name] for name in locate.sort_names(sites)}


def _read_folders(sites: Mapping[str, Path], resize: int, scratch: Path) -> Raw:
    train, test, classes = tree.label([tree.read(path) for path in sites.values()])
    raw = images.decode(_join(train), _join(test), resize, scratch)
    lengths = [[len(site.paths) for site in part] for part in (train, test)]
    return replace(raw, classes=classes, groups=_make_groups(sites, *lengths))


def _join(parts: Sequence[LabelledFiles]) -> LabelledFiles:
    labels = np.concatenate([part.labels for part in parts])
    return LabelledFiles([path for part in parts for path in part.paths], labels)


def _read_archives(sites: Mapping[str, Path]) -> Raw:
    parts = {path: _read_arrays(path) for path in sites.values()}
    start, (first, *_) = next(iter(parts.items()))
    for path, (x, *_) in parts.items():
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise DataError(
                f"{path}: samples are {x.dtype} {x.shape[1:]}, and those of "
                f"{start} {first.dtype} {first.shape[1:]}; give all sites the same form"
            )
    lengths = ([len(part[index]) for part in parts.values()] for index in (0, 2))
    groups = _make_groups(sites, *lengths)
    x_train, y_train, x_test, y_test = map(np.concatenate, zip(*parts.values(), strict=True))
    half = npz.default_statistics(first)
    return Raw(x_train, y_train, x_test, y_test, mean=half, std=half, groups=groups)


def _read_arrays(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Read training and test arrays of one site; without test arrays a fifth is held out."""
    arrays = npz.read(path, _CHOICES)
    part = "" if "x" in arrays else "_train"
    x, y = arrays[f"x{part}"], arrays[f"y{part}"]
    y_test = arrays.get("y_test", y)
    x, x_test = npz.channels_first(str(path), x, arrays.get("x_test", x))
    try:
        checks.check_part(part, x, y)
        checks.check_part("_test", x_test, y_test)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    if "x_test" in arrays:
        return x, y, x_test, y_test
    train, test = hold_out(y)
    return x[train], y[train], x[test], y[test]


def _make_groups(names: Iterable[str], train: Sequence[int], test: Sequence[int]) -> Groups:
    """Make the groups of sites that have so many training and test samples, in their order."""
    of_train, of_test = (np.repeat(np.arange(len(lengths)), lengths) for lengths in (train, test))
    return Groups(of_train, of_test, tuple(names))
