"""The tables of all sites, encoded together: kinds of columns, missing cells, test rows, inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.core.formatting import counted, list_first
from coterie.core.settings import Missing
from coterie.data import labels
from coterie.data.datasets import Raw
from coterie.data.encoding import (
    TableColumn,
    clear_gaps,
    encode,
    find_kinds,
    find_missing,
    fit_columns,
    is_missing,
    refuse_missing,
)
from coterie.data.table import Table, TableOptions, group_rows
from coterie.data.table_statistics import Numbers

# the position of a site and its labels -> the rows to train on, and those to test with
Split = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledTable:
    """The rows of a site, and a cleaned label for each; `test` are rows that came for testing."""

    table: Table
    y: np.ndarray
    test: "LabelledTable | None" = None


@dataclass(frozen=True, slots=True, eq=False)
class EncodedSites:
    """The arrays of every site, the columns that made them, and notes for the user."""

    parts: Mapping[str, Raw]
    columns: tuple[TableColumn, ...]
    notes: tuple[str, ...]

    def describe(self, joined: Raw) -> Raw:
        """Add the description of the columns, and the notes, to the joined arrays."""
        plain = tuple(column.to_plain() for column in self.columns)
        return replace(joined, columns=plain, notes=self.notes)


def label_rows(table: Table, label: str, key: str = "data.label") -> LabelledTable:
    """Split the column of labels off; without a name for it, no row has a label."""
    if not label:
        return LabelledTable(table, labels.clean(None, len(table)))
    values, rest = table.split_off(label, key)
    return pair_rows(rest, values, lambda row: table.locate(row, label))


def pair_rows(table: Table, values: Any, locate: labels.Locate | None = None) -> LabelledTable:
    """Pair the rows of a table with labels that came beside it."""
    where = locate or (lambda row: f"{table.origin}, row {table.rows[row]}")
    return LabelledTable(table, labels.clean(values, len(table), table.origin, where))


def deal_tests(
    sites: Mapping[str, LabelledTable], tests: LabelledTable, column: str, key: str
) -> dict[str, LabelledTable]:
    """Give each site the test rows that name it in a column; some sites may have none."""
    parts = group_rows(tests.table, column, key)
    none = tests.table.split_off(column, key)[1].take(np.arange(0))
    if strange := [name for name in parts if name not in sites]:
        raise DataError(
            f"{tests.table.origin}: the site {strange[0]!r} has test rows and no training rows; "
            f"there are: {list_first(list(sites))}"
        )
    dealt = {}
    for name, site in sites.items():
        rows, table = parts.get(name, (np.empty(0, np.int64), none))
        named = table.name(f"{tests.table.origin}, site {name!r}")
        dealt[name] = replace(site, test=LabelledTable(named, tests.y[rows]))
    return dealt


def encode_sites(
    sites: Mapping[str, LabelledTable],
    options: TableOptions,
    split: Split,
    dummies: bool = False,
    gaps: Numbers = (),
) -> EncodedSites:
    """Encode the tables of sites, by what their training rows are like.

    `split` tells the test rows of a site that brought none; `dummies` is as in `fit_columns`.
    Numbers that are `gaps` are missing cells, also in rows that a trained model is given: it fills
    them in.
    """
    sites = {name: _clear(site, gaps) for name, site in sites.items()}
    whole = [part.table for site in sites.values() for part in (site, site.test) if part]
    kinds = find_kinds(whole, options.categorical)
    notes = check_missing(whole, kinds, options)
    divided = {
        name: divide_rows(site, kinds, options, split, index)
        for index, (name, site) in enumerate(sites.items())
    }
    training = {name: train.table for name, (train, _) in divided.items()}
    missing: Missing = "mean" if gaps else options.missing
    fitted = fit_columns(training, kinds, options.standardise, missing, dummies, options.unseen)
    columns = tuple(replace(column, gaps=gaps) for column in fitted)
    parts = {}
    for name, (train, test) in divided.items():
        x, x_test = (encode(columns, part.table, name) for part in (train, test))
        parts[name] = Raw(x, train.y, x_test, test.y)
    return EncodedSites(parts, columns, notes)


def _clear(site: LabelledTable, gaps: Numbers) -> LabelledTable:
    """Empty the cells that stand for a missing value."""
    table = clear_gaps(site.table, dict.fromkeys(site.table.columns, gaps))
    return replace(site, table=table, test=_clear(site.test, gaps) if site.test else None)


def divide_rows(
    site: LabelledTable,
    names: Iterable[str],
    options: TableOptions,
    split: Split,
    index: int = 0,
) -> tuple[LabelledTable, LabelledTable]:
    """Divide the rows of a site into those to train on and those to test with.

    Rows that miss a value in one of the columns `names` are dropped first, if the options say so.
    """
    site = _drop(site, list(names), options)
    if site.test is not None:
        return replace(site, test=None), site.test
    train, test = split(index, site.y)
    return _take(site, train), _take(site, test)


def _take(site: LabelledTable, rows: np.ndarray) -> LabelledTable:
    return LabelledTable(site.table.take(rows), site.y[rows])


def _drop(site: LabelledTable, names: Sequence[str], options: TableOptions) -> LabelledTable:
    """Drop rows with a missing value, if that is how they are treated."""
    if options.missing != "drop" or not len(site.table):
        return site
    kept = _take(site, np.flatnonzero(~find_missing(site.table, names)))
    if not len(kept.table):
        raise DataError(
            f"{site.table.origin}: every row has a missing value, and data.missing = 'drop' leaves "
            "none; use data.missing=mean, or leave a column out"
        )
    return replace(kept, test=_drop(site.test, names, options) if site.test else None)


def check_missing(
    tables: Sequence[Table], kinds: Mapping[str, object], options: TableOptions
) -> tuple[str, ...]:
    """Say what happens to missing values, or refuse them."""
    if options.missing == "refuse":
        for table in tables:
            remedy = "fill it in, or use data.missing=mean or data.missing=drop"
            refuse_missing(table, kinds, remedy)
        return ()
    if options.missing == "drop":
        total = sum(map(len, tables))
        dropped = sum(int(find_missing(table, kinds).sum()) for table in tables)
        if not dropped:
            return ()
        return (f"{dropped:,} of {total:,} rows have a missing value and are left out",)
    return describe_filled(tables, kinds)


def describe_filled(tables: Sequence[Table], kinds: Mapping[str, object]) -> tuple[str, ...]:
    """Count the missing cells of columns of each kind, and say what is put in their place."""
    notes = []
    treatments = {"number": "filled in with the mean", "category": "left without a value"}
    for kind, treatment in treatments.items():
        counts = {
            name: sum(int(is_missing(table.columns[name]).sum()) for table in tables)
            for name in kinds
            if kinds[name] == kind
        }
        named = [f"{name} {count:,}" for name, count in counts.items() if count]
        if named:
            cells = counted(sum(counts.values()), "missing cell")
            notes.append(f"{cells} {treatment}: {', '.join(named)}")
    return tuple(notes)
