"""Tables of features: named columns of numbers and text, with rows as the user counts them.

A column of a `Table` is a float64 array with NaN for a missing cell, or an object array of text
with None for one. `data.encoding` makes inputs of a network of it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.core.formatting import quote
from coterie.core.settings import Missing, Standardise
from coterie.data.formats.locate import sort_names

MISSING_TEXTS = frozenset({"", "NA", "N/A", "NaN", "nan", "null", "NULL", "?"})
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TableOptions:
    """The keys of `[data]` that are for tables, and sites from which nothing is learned.

    The rows of `unseen` sites are encoded by what those of the others are like.
    """

    label: str = ""
    site: str = ""
    test: str = ""
    categorical: tuple[str, ...] = ()
    standardise: Standardise = "federated"
    missing: Missing = "mean"
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns by name; `rows` and `origin` are how errors name a row and the table."""

    columns: Mapping[str, np.ndarray]
    rows: Sequence[Any]
    origin: str
    owners: Sequence[Any] = ()  # the site of each row, while the columns of all are read

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: np.ndarray) -> "Table":
        """Select rows by their positions."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, rows=[self.rows[row] for row in rows.tolist()])

    def split_off(self, column: str, key: str) -> tuple[np.ndarray, "Table"]:
        """Split a column off, which the argument or key `key` named; return it and the rest."""
        if column not in self.columns:
            have = ", ".join(self.columns)
            raise DataError(f"{self.origin}: {key}={quote(column)} is no column; it has: {have}")
        rest = {name: values for name, values in self.columns.items() if name != column}
        return self.columns[column], replace(self, columns=rest)

    def locate(self, row: int, column: str) -> str:
        """Name a cell as errors do."""
        owner = write_value(self.owners[row]) if len(self.owners) else None
        origin = self.origin if owner is None else f"site {quote(owner)}"
        return f"{origin}, row {self.rows[row]}, column {quote(column)}"

    def name(self, origin: str) -> "Table":
        """Copy the table under another name."""
        return replace(self, origin=origin)


def make_table(
    columns: Mapping[str, Any], rows: Sequence[Any], origin: str, site: str = ""
) -> Table:
    """Make a table of columns as they were read: arrays of numbers, or cells of any kind.

    Errors name the site of a cell, if there is a column `site` that says whose each row is.
    """
    whole = Table({}, rows, origin)
    owners = _parse_column(whole, site, columns[site]).tolist() if site in columns else ()
    table = replace(whole, owners=owners)
    parsed = {name: _parse_column(table, name, cells) for name, cells in columns.items()}
    return replace(whole, columns=parsed)


def read_frame(frame: Any, origin: str, site: str = "") -> Table:
    """Make a table of a data frame; rows are called by its index, if it has one.

    `site` is as in `make_table`.
    """
    names = list(map(str, frame.columns))
    if twice := find_twice(names):
        raise DataError(f"{origin}: the data frame has two columns {quote(twice)}; rename one")
    columns = {
        name: np.asarray(frame[column].to_numpy())
        for name, column in zip(names, frame.columns, strict=True)
    }
    rows = list(getattr(frame, "index", range(len(frame))))
    return make_table(columns, rows, origin, site)


def find_twice(names: Iterable[str]) -> str | None:
    """Find the first name that there is more than once."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def split_by_site(table: Table, column: str, key: str) -> dict[str, Table]:
    """Split a table by a column of names into one per site, in the order of their names."""
    return {name: part for name, (_, part) in group_rows(table, column, key).items()}


def group_rows(table: Table, column: str, key: str) -> dict[str, tuple[np.ndarray, Table]]:
    """Split a table as `split_by_site` does; return the positions of the rows too."""
    values, rest = table.split_off(column, key)
    names = [write_value(value) for value in values.tolist()]
    if None in names:
        where = table.locate(names.index(None), column)
        raise DataError(f"{where}: the site is missing; fill it in")
    chosen = np.array(names, object)
    positions = {
        name: np.flatnonzero(chosen == name)
        for name in sort_names({name for name in names if name is not None})
    }
    return {
        name: (rows, rest.take(rows).name(f"site {name!r}")) for name, rows in positions.items()
    }


def write_value(value: Any) -> str | None:
    """Write a category as text, numbers in their shortest form (1.0 is "1"); None if missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    number = parse_number(value)
    return value if number is None else write_value(number)


def parse_number(text: str) -> float | None:
    """Parse text as a number; None for other text."""
    try:
        number = float(text)
    except ValueError:
        return None
    # Python also takes "1_000" and other spellings of infinity, which nobody writes as numbers
    return None if "_" in text or math.isnan(number) else number


def _parse_column(table: Table, name: str, cells: Any) -> np.ndarray:
    """Parse a column: to floats if every cell that is there is a number, else to text."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return _check_finite(table, name, cells.astype(np.float64))
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "mM":
        raise DataError(
            f"{table.origin}, column {name!r} has dates; turn them into numbers or drop the column"
        )
    texts = [_read_cell(table, row, name, cell) for row, cell in enumerate(_iterate(cells))]
    numbers = [math.nan if text is None else parse_number(text) for text in texts]
    if None not in numbers:
        return _check_finite(table, name, np.array(numbers, np.float64))
    parsed = np.empty(len(texts), object)
    parsed[:] = texts
    return parsed


def _iterate(cells: Any) -> Iterable[Any]:
    listed: Iterable[Any] = cells.tolist() if isinstance(cells, np.ndarray) else cells
    return listed


def _read_cell(table: Table, row: int, column: str, cell: Any) -> str | None:
    """Read a cell as text; None if it is missing."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(cell, str):
        text = cell.strip()
        return None if text in MISSING_TEXTS else text
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    if np.ndim(cell) != 0 or isinstance(cell, bytes | dict | set):
        raise DataError(
            f"{table.locate(row, column)}: {quote(cell)} is neither a number nor a text; give "
            "one value a cell"
        )
    if isinstance(cell, float | np.floating):
        return None if math.isnan(cell) else repr(float(cell))
    return str(cell)


def _check_finite(table: Table, name: str, values: np.ndarray) -> np.ndarray:
    broken = np.flatnonzero(np.abs(values) > _LARGEST)  # false for NaN, which is missing
    if broken.size:
        row = int(broken[0])
        raise DataError(
            f"{table.locate(row, name)}: {values[row]} is no finite number (float32); correct it "
            "or leave it empty"
        )
    return values
