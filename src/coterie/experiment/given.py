"""Data that a Python program passes in: the samples of every site, by its name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError, DataError
from coterie.data import checks, datasets, labels, partition
from coterie.data.datasets import AnyKind, Dataset, Raw
from coterie.data.formats import npz
from coterie.data.partition import Partition
from coterie.data.samples import Given, is_frame, read_samples, split_frame
from coterie.data.sources.sites import join_sites
from coterie.data.subset import hold_out_fifth

GIVEN = "given"  # the data set of such a run
Divided = tuple[Dataset, Partition]


def read_sites(sites: Any, label: str | None = None, site: str | None = None) -> dict[str, Given]:
    """Read the samples of every site: a mapping by name, or a data frame with a column `site`."""
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
    read = {}
    for name, samples in sites.items():
        # its personal model becomes a file of that name
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise DataError(f"the site {name!r} needs a name that can be a file's")
        read[name] = read_samples(samples, label=label, name=_call(name))
    return read


def has_labels(sites: Mapping[str, Given]) -> bool:
    """Whether a sample of any site has a label."""
    return any(
        given.y is not None and labels.known(labels.clean(given.y, len(given.x), _call(name))).any()
        for name, given in sites.items()
    )


def divide_sites(sites: Mapping[str, Any], test: Any, seed: int, kind: AnyKind = "auto") -> Divided:
    """Store the samples of sites in the cache, and make each site a client.

    Without `test`, a fifth of every site's samples is held out, drawn by the seed.
    """
    read = read_sites(sites)
    parts = {
        _call(name): _split(_call(name), given, kind, seed, index, test is None)
        for index, (name, given) in enumerate(read.items())
    }
    joined = join_sites(read, parts)
    groups = joined.groups
    assert groups is not None  # the sites
    if test is not None:
        whole = _arrange("the test samples", read_samples(test, name="the test samples"), kind)
        joined = replace(joined, x_test=whole.x_train, y_test=whole.y_train)
    dataset = datasets.store(GIVEN, replace(joined, groups=None), what="the sites")
    train, held_out = (
        {client: np.flatnonzero(part == client) for client in range(len(read))}
        for part in (groups.train, groups.test)
    )
    if test is not None:
        held_out = partition.deal_test(train, dataset.y_train, dataset.y_test, dataset.classes)
    return dataset, Partition(train, held_out, tuple(read))


def _call(name: str) -> str:
    """Name a site as errors do."""
    return f"site {name!r}"


def _split(name: str, given: Given, kind: AnyKind, seed: int, index: int, holds_out: bool) -> Raw:
    """Arrange the samples of a site; hold out a fifth of them, or none."""
    whole = _arrange(name, given, kind)
    x, y = whole.x_train, whole.y_train
    if not holds_out:
        return whole
    train, test = hold_out_fifth(y, seeds.generator(seed, "hold-out", client=index))
    return replace(whole, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def _arrange(name: str, given: Given, kind: AnyKind) -> Raw:
    """Check samples and labels; all of them become training samples."""
    x = npz.arrange(given.x, name, kind)
    checks.check_axes(name, x)
    y = labels.clean(given.y, len(x), name)
    x = checks.convert_samples(name, x)
    half = npz.default_statistics(x)
    return Raw(x, y, x[:0], y[:0], mean=half, std=half)
