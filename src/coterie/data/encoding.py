"""From the columns of tables to the inputs of a network, and back to a description of them.

A number is one input: (value - mean) / deviation. A category is one input for each of its values,
1 where the cell has it and 0 elsewhere; a missing or unknown value has 0 everywhere.

Mean and deviation are those of the training rows of all sites, found from sums that sites send
(`data.table_statistics`). Sites that never train (`cohort.unseen`) send nothing, and use what the
others made. With `standardise = "site"` they are those of each site by itself. A column without
spread keeps the deviation 1. Missing numbers count nowhere, and are filled in with the mean.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import list_first, quote
from coterie.core.settings import Missing, Standardise
from coterie.data.formats.locate import sort_names
from coterie.data.table import Table, parse_number, write_value
from coterie.data.table_statistics import (
    Numbers,
    Sums,
    add_squares,
    add_up,
    find_deviation,
    find_mean,
    measure_site,
)

ALL = ""  # in place of a site's name: of all sites together
MOST_VALUES = 1000  # of a category

ColumnKind = Literal["number", "category"]
BySite = Mapping[str, Numbers]


@dataclass(frozen=True)
class TableColumn:
    """How the cells of a column become inputs; without `mean` they are not standardised."""

    name: str
    kind: ColumnKind
    values: tuple[str, ...] = ()  # of a category, one input each
    mean: BySite | None = None
    deviation: BySite | None = None
    filling: BySite | None = None  # of missing numbers; None: they are refused
    gaps: Numbers = ()  # numbers that stand for a missing cell

    @property
    def width(self) -> int:
        """The number of inputs."""
        return len(self.values) if self.kind == "category" else 1

    def to_plain(self) -> dict[str, Any]:
        """Write it as plain values for JSON: a number for a number, by site where sites differ."""
        plain: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.kind == "category":
            plain["values"] = list(self.values)
        for key in ("mean", "deviation", "filling"):
            by_site: BySite | None = getattr(self, key)
            if by_site is not None:
                written = {site: self._unwrap(numbers) for site, numbers in by_site.items()}
                plain[key] = written.get(ALL, written)
        if self.gaps:
            plain["gaps"] = list(self.gaps)
        return plain

    def _unwrap(self, numbers: Numbers) -> float | list[float]:
        return numbers[0] if self.kind == "number" else list(numbers)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "TableColumn":
        """Read what `to_plain` wrote."""
        kept: dict[str, Any] = {
            key: _wrap(plain[key]) for key in ("mean", "deviation", "filling") if key in plain
        }
        kept |= {key: tuple(plain.get(key, ())) for key in ("values", "gaps")}
        return cls(plain["name"], plain["kind"], **kept)


def _wrap(plain: Any) -> BySite:
    by_site = plain if isinstance(plain, Mapping) else {ALL: plain}
    return {
        site: tuple(numbers) if isinstance(numbers, list) else (float(numbers),)
        for site, numbers in by_site.items()
    }


def find_kinds(tables: Sequence[Table], categorical: Iterable[str] = ()) -> dict[str, ColumnKind]:
    """Tell the columns of numbers from those of categories, which are stated or have text only."""
    kinds = dict[str, ColumnKind]()
    for name, kind in find_known_kinds(tables, categorical).items():
        if kind is None:
            raise DataError(
                f"{tables[0].origin}, column {name!r} has no value at all; leave it out"
            )
        kinds[name] = kind
    return kinds


def find_known_kinds(
    tables: Sequence[Table], categorical: Iterable[str] = ()
) -> dict[str, ColumnKind | None]:
    """Tell columns as `find_kinds` does; None for one without a value, which others may have."""
    first = tables[0]
    for table in tables[1:]:
        for one, other in ((first, table), (table, first)):
            if lacks := [name for name in one.columns if name not in other.columns]:
                raise DataError(
                    f"{other.origin} has no column {lacks[0]!r}, which {one.origin} has; give all "
                    "sites the same columns"
                )
    stated = set(categorical)
    if strange := sorted(stated - first.columns.keys()):
        have = ", ".join(first.columns)
        raise ConfigError(f"data.categorical: {quote(strange[0])} is no column; there are: {have}")
    if not first.columns:
        raise DataError(f"{first.origin} has no column of features")
    return {
        name: "category" if name in stated else _find_kind(name, tables) for name in first.columns
    }


def _find_kind(name: str, tables: Sequence[Table]) -> ColumnKind | None:
    """Numbers, or text, or None for neither; a column that has both is refused."""
    texts = [table for table in tables if table.columns[name].dtype.kind == "O"]
    if not texts:
        empty = all(np.isnan(table.columns[name]).all() for table in tables)
        return None if empty else "number"
    numeric = [table for table in tables if table not in texts]
    mixed = any(not np.isnan(table.columns[name]).all() for table in numeric)
    for table in texts:
        cells = [cell for cell in table.columns[name].tolist() if cell is not None]
        mixed = mixed or any(parse_number(cell) is not None for cell in cells)
    if not mixed:
        return "category"
    for table in texts:
        for row, cell in enumerate(table.columns[name].tolist()):
            if cell is not None and parse_number(cell) is None:
                raise DataError(
                    f"{table.locate(row, name)}: {quote(cell)} is not a number, as other "
                    f"cells are; correct it, or list the column: data.categorical=['{name}']"
                )
    raise AssertionError("a column of numbers alone is no column of text")


def clear_gaps(table: Table, gaps: Mapping[str, Numbers]) -> Table:
    """Empty the cells that have a number which stands for a missing one, by column."""
    cleared = dict(table.columns)
    for name, numbers in gaps.items():
        if not numbers or name not in cleared:
            continue
        cells = cleared[name]
        if cells.dtype.kind == "O":
            texts = [cell is not None and parse_number(cell) in numbers for cell in cells.tolist()]
            cleared[name] = cells.copy()
            cleared[name][np.array(texts, bool)] = None
        else:
            cleared[name] = np.where(np.isin(cells, numbers), np.nan, cells)
    return replace(table, columns=cleared)


def find_missing(table: Table, names: Iterable[str]) -> np.ndarray:
    """Which rows lack a value in one of the columns, as a mask."""
    mask = np.zeros(len(table), bool)
    for name in names:
        mask |= is_missing(table.columns[name])
    return mask


def is_missing(values: np.ndarray) -> np.ndarray:
    """Which cells of a column are missing."""
    if values.dtype.kind == "O":
        return np.array([cell is None for cell in values.tolist()], bool)
    missing: np.ndarray = np.isnan(values)
    return missing


def refuse_missing(table: Table, names: Iterable[str], remedy: str) -> None:
    """Raise an error that names the first missing cell, if there is one."""
    for name in names:
        if (rows := np.flatnonzero(is_missing(table.columns[name]))).size:
            raise DataError(f"{table.locate(int(rows[0]), name)}: the value is missing; {remedy}")


def fit_columns(
    training: Mapping[str, Table],
    kinds: Mapping[str, ColumnKind],
    standardise: Standardise = "federated",
    missing: Missing = "mean",
    dummies: bool = False,
    unseen: Collection[str] = (),
) -> tuple[TableColumn, ...]:
    """Fit the encoding of every column to the training rows of all sites, by name.

    Sites that are `unseen` count for nothing but statistics of their own. With `dummies` a category
    has no input for its first value, and its inputs are standardised too, as in regression on dummy
    variables.
    """
    fitted = []
    for name, kind in kinds.items():
        values: tuple[str, ...] = ()
        if kind == "category":
            seen = (table for site, table in training.items() if site not in unseen)
            listed = [list_values(name, table) for table in seen]
            values = join_values(name, listed)[1 if dummies else 0 :]
        column = TableColumn(name, kind, values)
        if kind == "number" or (dummies and standardise != "none"):
            inputs = {site: read_inputs(column, table) for site, table in training.items()}
            statistics = _measure(name, inputs, standardise == "site", unseen)
            column = add_statistics(column, *statistics, standardise, missing, dummies)
        fitted.append(column)
    return tuple(fitted)


def add_statistics(
    column: TableColumn,
    means: BySite,
    deviations: BySite,
    standardise: Standardise,
    missing: Missing,
    dummies: bool = False,
) -> TableColumn:
    """Add what a column is standardised by, and what its missing cells are filled in with."""
    is_number = column.kind == "number"
    scaled = standardise != "none" and (is_number or dummies)
    return replace(
        column,
        mean=means if scaled else None,
        deviation=deviations if scaled else None,
        filling=means if missing == "mean" and is_number else None,
    )


def list_values(name: str, table: Table) -> tuple[str, ...]:
    """List the distinct values of a category in a table."""
    written = {write_value(value) for value in table.columns[name].tolist()}
    return tuple(sorted(value for value in written if value is not None))


def join_values(name: str, parts: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Join the values of a category at all sites, sorted as numbers if all are, else as text."""
    values = sort_names(value for part in parts for value in part)
    if len(values) > MOST_VALUES:
        raise DataError(
            f"column {name!r} has {len(values):,} different values, and a category may have "
            f"{MOST_VALUES:,}; leave the column out"
        )
    return tuple(values)


def read_inputs(column: TableColumn, table: Table) -> np.ndarray:
    """Read the inputs of a column as they are given, float64 (rows, width); NaN: missing."""
    cells = table.columns[column.name]
    if column.kind == "category":
        positions = {value: position for position, value in enumerate(column.values)}
        inputs = np.zeros((len(cells), column.width))
        for row, cell in enumerate(cells.tolist()):
            position = positions.get(write_value(cell) or "")
            if position is not None:
                inputs[row, position] = 1.0
        return inputs
    if cells.dtype.kind != "O":
        return cells[:, np.newaxis]
    row = next(r for r, cell in enumerate(cells) if cell and parse_number(cell) is None)
    raise DataError(
        f"{table.locate(row, column.name)}: {quote(cells[row])} is not a number; correct it"
    )


def _measure(
    name: str, inputs: Mapping[str, np.ndarray], by_site: bool, unseen: Collection[str]
) -> tuple[BySite, BySite]:
    """Means and deviations of inputs, of all sites together or of each by itself."""
    seen = {site: part for site, part in inputs.items() if site not in unseen}
    sums = [add_up(part) for part in seen.values()]
    mean = require_mean(name, sums)
    squares = [add_squares(part, mean) for part in seen.values()]
    deviation = find_deviation(mean, sums, squares)
    if not by_site:
        return {ALL: tuple(mean.tolist())}, {ALL: tuple(deviation.tolist())}
    own = {site: measure_site(part, mean, deviation) for site, part in inputs.items()}
    means, deviations = ({site: pair[n] for site, pair in own.items()} for n in (0, 1))
    return means, deviations


def require_mean(name: str, sums: Sequence[Sums]) -> np.ndarray:
    """Find the mean of a column over sites; refuse one that nobody has a value of."""
    mean = find_mean(sums)
    if np.isnan(mean).any():
        raise DataError(f"column {name!r} has no value in the training rows; leave it out")
    return mean


def list_sites(columns: Iterable[TableColumn]) -> tuple[str, ...]:
    """The sites that have statistics of their own; empty where all share them."""
    kept = _list_by_site(columns)
    return tuple(site for site in kept[0] if all(site in part for part in kept)) if kept else ()


def is_by_site(columns: Iterable[TableColumn]) -> bool:
    """Whether sites have statistics of their own, of which some may be known to the sites alone."""
    return bool(_list_by_site(columns))


def _list_by_site(columns: Iterable[TableColumn]) -> list[BySite]:
    """List the statistics that differ by site."""
    parts = (part for column in columns for part in (column.mean, column.filling))
    return [part for part in parts if part is not None and ALL not in part]


def encode(columns: Sequence[TableColumn], table: Table, site: str | None = None) -> np.ndarray:
    """Encode the rows of a table as float32 (rows, inputs), with the statistics of a site.

    The table may have its columns in any order, and others beside them.
    """
    if lacks := [column.name for column in columns if column.name not in table.columns]:
        have = list_first(list(table.columns))
        raise DataError(f"{table.origin} has no column {lacks[0]!r}; it has: {have}")
    sites, by_site = list_sites(columns), is_by_site(columns)
    if by_site and site not in sites:
        remedy = f"choose one with client= (--client on the command line): {list_first(sites)}"
        raise ConfigError(
            f"client = {site!r}: the table was standardised for each site by itself; "
            f"{remedy if sites else 'what a site is standardised by is in its own folder alone'}"
        )
    key = site if by_site and site is not None else ALL
    table = clear_gaps(table, {column.name: column.gaps for column in columns})
    parts = []
    for column in columns:
        part = read_inputs(column, table)
        gaps = np.isnan(part)
        if gaps.any():
            if column.filling is None:
                refuse_missing(table, [column.name], "fill it in, or drop the row")
            else:
                part = np.where(gaps, column.filling[key], part)
        if column.mean is not None and column.deviation is not None:
            part = (part - column.mean[key]) / column.deviation[key]
        parts.append(part)
    return np.concatenate(parts, axis=1).astype(np.float32)


def stack_numbers(table: Table) -> np.ndarray:
    """The columns of numbers of a table, in their order, as float32 (rows, columns)."""
    kinds = find_kinds([table])
    if texts := [name for name, kind in kinds.items() if kind == "category"]:
        cells = table.columns[texts[0]]
        row = next(row for row, cell in enumerate(cells) if cell is not None)
        raise DataError(
            f"{table.locate(row, texts[0])}: {quote(cells[row])} is not a number; the run was "
            "trained on arrays of numbers"
        )
    return np.column_stack(list(table.columns.values())).astype(np.float32)
