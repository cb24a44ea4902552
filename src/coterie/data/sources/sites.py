"""`sites`: one folder of images, or one .npz file, per client; with labels or without."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.data import labels
from coterie.data.datasets import AnyKind, Groups, Raw
from coterie.data.formats import images, locate, npz, tree
from coterie.data.formats.images import LabelledFiles
from coterie.data.sources.arrays import make_raw


def files(root: str) -> tuple[Path, ...]:
    """List the .npz files, or all images of all sites."""
    sites = _list_sites(locate.require_own("sites", root))
    if not next(iter(sites.values())).is_dir():
        return tuple(sites.values())
    return tuple(path for site in sites.values() for path in tree.read(site).paths())


def decode(root: str, resize: int, scratch: Path, kind: AnyKind = "auto") -> Raw:
    """Read all samples of all sites, with the site as their group."""
    sites = _list_sites(locate.require_own("sites", root))
    first = next(iter(sites.values()))
    if first.is_dir():
        _refuse_kind(kind, root)
        return _read_folders(sites, resize, scratch)
    if resize:
        raise ConfigError(
            f"data.resize={resize} is for image files, and {first} is not one; leave it out"
        )
    return _read_archives(sites, kind)


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
    groups = _make_groups(sites, *lengths)
    return replace(raw, classes=len(classes), class_names=classes, groups=groups)


def _join(parts: Sequence[LabelledFiles]) -> LabelledFiles:
    labels = np.concatenate([part.labels for part in parts])
    return LabelledFiles([path for part in parts for path in part.paths], labels)


def _read_archives(sites: Mapping[str, Path], kind: AnyKind) -> Raw:
    parts = {str(path): make_raw(str(path), npz.read(path), kind) for path in sites.values()}
    return join_sites(sites, parts)


def join_sites(names: Iterable[str], parts: Mapping[str, Raw]) -> Raw:
    """Join the arrays of sites, which errors call by the keys of `parts`, with sites as groups."""
    start, first = next(iter(parts.items()))
    for origin, part in parts.items():
        x, form = part.x_train, (first.x_train.shape[1:], first.x_train.dtype)
        if (x.shape[1:], x.dtype) != form:
            raise DataError(
                f"{origin}: samples are {x.dtype} {x.shape[1:]}, and those of {start} {form[1]} "
                f"{form[0]}; give all sites the same form"
            )
    raws = parts.values()
    groups = _make_groups(names, *([len(x) for x in p] for p in _samples(raws)))
    x_train, x_test = map(np.concatenate, _samples(raws))
    y_train = labels.join({origin: part.y_train for origin, part in parts.items()})
    y_test = labels.join({origin: part.y_test for origin, part in parts.items()})
    half = first.mean
    return Raw(x_train, y_train, x_test, y_test, mean=half, std=half, groups=groups)


def _samples(parts: Iterable[Raw]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The training and the test samples of every part."""
    return [part.x_train for part in parts], [part.x_test for part in parts]


def read_site(path: Path, kind: AnyKind, resize: int) -> Raw:
    """Read the folder of images or the .npz file of a single site into memory.

    Classes are text, as they are not numbered before those of all sites are known.
    """
    if path.suffix == ".npz":
        return make_raw(str(path), npz.read(locate.require_own("sites", str(path), "file")), kind)
    _refuse_kind(kind, str(path))
    site = tree.read(locate.require_own("sites", str(path)))
    (train,), (test,), classes = tree.label([site])
    pixels = images.decode_files([*train.paths, *test.paths], resize)
    names = np.array([*classes, ""])  # the label -1 is the last
    half = (0.5,) * pixels.shape[1]
    cut = len(train.paths)
    return Raw(
        *(pixels[:cut], names[train.labels], pixels[cut:], names[test.labels]), mean=half, std=half
    )


def _refuse_kind(kind: AnyKind, root: str) -> None:
    """Reject a stated kind of data that folders of images are not."""
    if kind not in ("auto", "image"):
        raise ConfigError(f"data.kind = {kind!r}, and {root} has folders of images")


def _make_groups(names: Iterable[str], train: Sequence[int], test: Sequence[int]) -> Groups:
    """Make the groups of sites that have so many training and test samples, in their order."""
    of_train, of_test = (np.repeat(np.arange(len(lengths)), lengths) for lengths in (train, test))
    return Groups(of_train, of_test, tuple(names))
