"""Data that a Python program passes in: the samples of every site, by its name."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core import seeds
from coterie.core.errors import ConfigError, DataError
from coterie.data import datasets, labels, partition
from coterie.data.datasets import AnyKind, Dataset, Raw
from coterie.data.encoding import encode
from coterie.data.formats import npz
from coterie.data.inputs import is_table
from coterie.data.partition import Partition
from coterie.data.samples import is_frame, read_samples, split_frame
from coterie.data.sources.arrays import arrange_labelled
from coterie.data.sources.sites import join_sites, read_site
from coterie.data.subset import hold_out_fifth
from coterie.data.table import Table, TableOptions
from coterie.data.table_sites import LabelledTable, deal_tests, encode_sites, pair_rows
from coterie.experiment.own import GIVEN

Divided = tuple[Dataset, Partition]
Site = Raw | LabelledTable
_NO_OPTIONS = TableOptions()
_TEST = "the test samples"
_LONGEST = 200  # bytes of a site's name, which becomes the name of a file


def read_sites(
    sites: Any,
    label: str | None = None,
    site: str | None = None,
    kind: AnyKind = "auto",
    resize: int = 0,
) -> dict[str, Site]:
    """Read the samples of every site: a mapping by name, or a data frame with a column `site`.

    Test samples are there only if the files of a site have some of their own.
    """
    if is_frame(sites):
        if not site:
            raise ConfigError(
                "a data frame needs site='COLUMN', the column that says whose each row is"
            )
        sites = split_frame(sites, site, label)
    elif site:
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
    options: TableOptions = _NO_OPTIONS,
    *,
    resize: int = 0,
) -> Divided:
    """Store the samples of sites in the cache, and make each site a client.

    Without `test`, a fifth of the samples of every site is held out, drawn by the seed, unless the
    site has test samples of its own. Rows of a `test` frame with the column of sites are their
    site's; other test samples are dealt to all.
    """
    read = read_sites(sites, options.label, None, kind, resize)
    tests = None if test is None else _read(test, _TEST, options.label, kind, resize)
    tables = {name: part for name, part in read.items() if isinstance(part, LabelledTable)}
    arrays = {name: part for name, part in read.items() if isinstance(part, Raw)}
    if tables and arrays:
        raise DataError(
            f"{call(next(iter(arrays)))} has no names of columns, and others have; give all sites "
            "data frames, or all arrays"
        )
    if tables:
        joined = _join_tables(tables, tests, seed, kind, options)
    else:
        _refuse_options(options)
        joined = _join_arrays(arrays, tests, seed)
    groups = joined.groups
    assert groups is not None  # the sites
    if not len(joined.x_test):
        raise DataError(
            "no site has five samples, of which one would be held out to test on; give more, or "
            "test=(x, y)"
        )
    dataset = datasets.store(GIVEN, replace(joined, groups=None), what="the sites")
    train, held_out = (
        {client: np.flatnonzero(part == client) for client in range(len(read))}
        for part in (groups.train, groups.test)
    )
    if not len(groups.test):  # nobody knows whose test samples they are
        held_out = partition.deal_test(train, dataset.y_train, dataset.y_test, dataset.classes)
    return dataset, Partition(train, held_out, tuple(read))


def _join_arrays(sites: Mapping[str, Raw], tests: Site | None, seed: int) -> Raw:
    """Join the arrays of sites, each without the samples that are held out."""
    parts = {
        call(name): part if tests is not None or len(part.x_test) else _hold_out(part, seed, index)
        for index, (name, part) in enumerate(sites.items())
    }
    joined = join_sites(sites, parts)
    if tests is None:
        return joined
    if isinstance(tests, LabelledTable):
        raise DataError(f"{_TEST} have names of columns, and the sites none; give arrays")
    return _replace_tests(joined, tests.x_train, tests.y_train)


def _join_tables(
    sites: Mapping[str, LabelledTable],
    tests: Site | None,
    seed: int,
    kind: AnyKind,
    options: TableOptions,
) -> Raw:
    """Encode the tables of sites together, and join them."""
    if kind not in ("auto", "table"):
        raise ConfigError(f"kind = {kind!r}, and the sites have tables with named columns")

    def split(index: int, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if tests is not None:  # they are for all sites
            return np.arange(len(y)), np.empty(0, np.int64)
        return hold_out_fifth(y, seeds.generator(seed, "hold-out", client=index))

    if isinstance(tests, LabelledTable) and options.site in tests.table.columns:
        sites, tests = deal_tests(sites, tests, options.site, "site"), None
    elif tests is not None and options.standardise == "site":
        raise ConfigError(
            "data.standardise = 'site' needs the site of every test row: give sites and test as "
            "data frames with the column site=, or leave test= out"
        )
    encoded = encode_sites(sites, options, split)
    parts = {call(name): part for name, part in encoded.parts.items()}
    joined = encoded.describe(join_sites(sites, parts))
    if tests is None:
        return joined
    if not isinstance(tests, LabelledTable):
        raise DataError(f"{_TEST} have no names of columns; give a data frame, as of the sites")
    return _replace_tests(joined, encode(encoded.columns, tests.table), tests.y)


def _replace_tests(joined: Raw, x: np.ndarray, y: np.ndarray) -> Raw:
    """Replace the test samples by some that belong to no site."""
    assert joined.groups is not None  # the sites
    return replace(
        joined, x_test=x, y_test=y, groups=replace(joined.groups, test=np.empty(0, np.int64))
    )


def _refuse_options(options: TableOptions) -> None:
    """Refuse what only tables with named columns have."""
    for key, value in asdict(options).items():
        if key not in ("label", "site") and value != getattr(_NO_OPTIONS, key):
            raise ConfigError(
                f"data.{key} = {value!r} is for tables with named columns, and the sites have "
                "arrays; give data frames, or leave it out"
            )


def has_labels(sites: Mapping[str, Site]) -> bool:
    """Whether a sample of any site has a label."""
    known = (part.y if isinstance(part, LabelledTable) else part.y_train for part in sites.values())
    return any(labels.known(np.asarray(y)).any() for y in known)


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


def _read(given: Any, name: str, label: str | None, kind: AnyKind, resize: int) -> Site:
    """Read and check the samples of a site; all become training samples, but its own test files."""
    if isinstance(given, Site):
        return given
    if isinstance(given, str | PathLike) and not (is_table(given) or Path(given).suffix == ".npy"):
        return read_site(Path(given), kind, resize)
    read = read_samples(given, label=label, name=name)
    if isinstance(read.x, Table):
        table = read.x.name(name)
        return pair_rows(table, read.y, (lambda row: table.locate(row, label)) if label else None)
    x, y = arrange_labelled(read.x, read.y, name, f"{name}: the labels", kind)
    half = npz.default_statistics(x)
    return Raw(x, y, x[:0], y[:0], mean=half, std=half)


def _hold_out(part: Raw, seed: int, index: int) -> Raw:
    x, y = part.x_train, part.y_train
    train, test = hold_out_fifth(y, seeds.generator(seed, "hold-out", client=index))
    return replace(part, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
