"""Data that a Python program passes in: the samples of every site, by its name."""

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError, DataError
from coterie.data import datasets, labels, partition
from coterie.data.datasets import AnyKind, Dataset, Raw
from coterie.data.formats import npz
from coterie.data.partition import Partition
from coterie.data.samples import is_frame, read_samples, split_frame
from coterie.data.sources.arrays import arrange_labelled
from coterie.data.sources.sites import join_sites, read_site
from coterie.data.subset import hold_out_fifth

GIVEN = "given"  # the data set of such a run
Divided = tuple[Dataset, Partition]
_TEST = "the test samples"
_LONGEST = 200  # bytes of a site's name, which becomes the name of a file


def read_sites(
    sites: Any,
    label: str | None = None,
    site: str | None = None,
    kind: AnyKind = "auto",
    resize: int = 0,
) -> dict[str, Raw]:
    """Read the samples of every site: a mapping by name, or a data frame with a column `site`.

    Test samples are there only if the files of a site have some of their own.
    """
    if is_frame(sites):
        if site is None:
            raise ConfigError(
                "a data frame needs site='COLUMN', the column that says whose each row is"
            )
        sites = split_frame(sites, site)
    elif site is not None:
        raise ConfigError(f"site={site!r} is for one data frame with the rows of all sites")
    if not isinstance(sites, Mapping):
        raise DataError(
            f"sites must be {{'name': samples, ...}} or a data frame, not a {type(sites).__name__}"
        )
    if not sites:
        raise DataError("no site was given: pass {'name': (x, y), ...}, or {'name': x, ...}")
    for name in sites:
        _check_name(name)
    return {
        name: _read(samples, call(name), label, kind, resize) for name, samples in sites.items()
    }


def divide_sites(
    sites: Mapping[str, Any],
    test: Any,
    seed: int,
    kind: AnyKind = "auto",
    *,
    label: str | None = None,
    resize: int = 0,
) -> Divided:
    """Store the samples of sites in the cache, and make each site a client.

    Without `test`, a fifth of the samples of every site is held out, drawn by the seed, unless the
    site has test samples of its own.
    """
    read = read_sites(sites, label, None, kind, resize)
    parts = {
        call(name): part if test is not None or len(part.x_test) else _hold_out(part, seed, index)
        for index, (name, part) in enumerate(read.items())
    }
    joined = join_sites(read, parts)
    groups = joined.groups
    assert groups is not None  # the sites
    if test is not None:
        whole = _read(test, _TEST, label, kind, resize)
        joined = replace(joined, x_test=whole.x_train, y_test=whole.y_train)
    elif not len(joined.x_test):
        raise DataError(
            "no site has five samples, of which one would be held out to test on; give more, or "
            "test=(x, y)"
        )
    dataset = datasets.store(GIVEN, replace(joined, groups=None), what="the sites")
    train, held_out = (
        {client: np.flatnonzero(part == client) for client in range(len(read))}
        for part in (groups.train, groups.test)
    )
    if test is not None:
        held_out = partition.deal_test(train, dataset.y_train, dataset.y_test, dataset.classes)
    return dataset, Partition(train, held_out, tuple(read))


def has_labels(sites: Mapping[str, Raw]) -> bool:
    """Whether a sample of any site has a label."""
    return any(labels.known(np.asarray(part.y_train)).any() for part in sites.values())


def call(name: str) -> str:
    """Name a site as errors do."""
    return f"site {name!r}"


def _check_name(name: Any) -> None:
    """Refuse the name of a site that cannot be that of a file: its personal model becomes one."""
    usable = isinstance(name, str) and name and name.strip() == name and name.isprintable()
    if not usable or Path(name).name != name or name == ".." or len(name.encode()) > _LONGEST:
        raise DataError(
            f"the site {str(name)[:40]!r} needs a name that can be a file's: text of up to "
            f"{_LONGEST} letters without a slash"
        )


def _read(given: Any, name: str, label: str | None, kind: AnyKind, resize: int) -> Raw:
    """Read and check the samples of a site; all become training samples, but its own test files."""
    if isinstance(given, Raw):
        return given
    if isinstance(given, str | PathLike) and Path(given).suffix not in (".npy", ".csv"):
        return read_site(Path(given), kind, resize)
    read = read_samples(given, label=label, name=name)
    x, y = arrange_labelled(read.x, read.y, name, f"{name}: the labels", kind)
    half = npz.default_statistics(x)
    return Raw(x, y, x[:0], y[:0], mean=half, std=half)


def _hold_out(part: Raw, seed: int, index: int) -> Raw:
    x, y = part.x_train, part.y_train
    train, test = hold_out_fifth(y, seeds.generator(seed, "hold-out", client=index))
    return replace(part, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
