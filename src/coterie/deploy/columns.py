"""Columns of tables in messages: what a site tells of them, and the checks of what came.

A card has the name of every column and what is in it; later come the values of categories and the
sums of numbers. Whatever another machine wrote is a `ValueError` here if it is not that.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from coterie.data.encoding import MOST_VALUES, ColumnKind
from coterie.data.table import TableOptions
from coterie.data.table_statistics import Sums

_MOST_COLUMNS = 10_000
_LONGEST = 200  # letters of a name, or of a value
_LARGEST = float(np.finfo(np.float32).max)  # of a cell; larger ones are refused by every reader

Kinds = Mapping[str, ColumnKind]
_Entry = TypeVar("_Entry")


@dataclass(frozen=True)
class ColumnCard:
    """What a site tells of a column before the columns of all sites are known."""

    name: str
    kind: ColumnKind | None  # None: no row of the site has a value
    bare: bool = False  # no row that it trains on has a value


@dataclass(frozen=True)
class TableCard:
    """What a site tells of its table."""

    rows: int  # to train on, with a label or without
    columns: tuple[ColumnCard, ...]

    def by_name(self) -> dict[str, ColumnCard]:
        """The columns by their names, in their order."""
        return {column.name: column for column in self.columns}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "TableCard":
        """Read and check what another machine wrote."""
        if not isinstance(plain["columns"], list) or not plain["columns"]:
            raise ValueError("a table has columns")
        if len(plain["columns"]) > _MOST_COLUMNS:
            raise ValueError(f"a table has {_MOST_COLUMNS:,} columns at most")
        columns = tuple(map(_read_column, plain["columns"]))
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("two columns have the same name")
        return cls(_read_count(plain["rows"]), columns)


def _read_column(plain: Mapping[str, Any]) -> ColumnCard:
    kind, bare = plain["kind"], plain["bare"]
    if kind not in ("number", "category", None) or type(bare) is not bool:
        raise ValueError(f"{kind!r:.40} is no kind of column")
    return ColumnCard(_read_text(plain["name"]), kind, bare)


def needs_sums(options: TableOptions) -> bool:
    """Whether columns of numbers need their mean: to be standardised, or to fill in cells."""
    return options.standardise != "none" or options.missing == "mean"


def needs_squares(options: TableOptions) -> bool:
    """Whether columns of numbers need their deviation."""
    return options.standardise != "none"


def describe_sent(options: TableOptions) -> str:
    """Say what leaves a site of its table before the first round."""
    sent = "the names and kinds of its columns, and the values of categories"
    if not needs_sums(options):
        return sent
    sums = "count, sum and sum of squares" if needs_squares(options) else "count and sum"
    which = " that a site has no value of," if options.standardise == "site" else ""
    return f"{sent}; of each column of numbers{which} {sums} over its training rows"


def settle_kinds(cards: Mapping[str, TableCard]) -> tuple[dict[str, ColumnKind], dict[str, str]]:
    """Find the kind of every column at all sites; also say who is refused, and why.

    The columns are those of most sites, in the order of the first that has them, and so are their
    kinds; of two as frequent ones, those of the first site count. A column that no site has a value
    of counts as numbers, and is refused when its mean is wanted.
    """
    tables = {name: card.by_name() for name, card in cards.items()}
    common = Counter(frozenset(table) for table in tables.values()).most_common(1)[0][0]
    first = next(name for name, table in tables.items() if common == table.keys())
    refused = {
        name: _compare_names(table, first, tables[first])
        for name, table in tables.items()
        if common != table.keys()
    }
    kinds = dict[str, ColumnKind]()
    for column in tables[first]:
        told = {name: t[column].kind for name, t in tables.items() if name not in refused}
        known = Counter(kind for kind in told.values() if kind is not None)
        kinds[column] = known.most_common(1)[0][0] if known else "number"
        for name, kind in told.items():
            if kind not in (kinds[column], None):
                other = next(n for n, theirs in told.items() if theirs == kinds[column])
                refused[name] = _compare_kinds(column, kind, other)
    return kinds, refused


def _compare_names(own: Collection[str], other: str, theirs: Collection[str]) -> str:
    if lacks := [name for name in theirs if name not in own]:
        return f"it has no column {lacks[0]!r}, which site {other!r} has"
    more = next(name for name in own if name not in theirs)
    return f"it has a column {more!r}, which site {other!r} has not"


def _compare_kinds(column: str, kind: ColumnKind | None, other: str) -> str:
    has, have = ("text", "numbers") if kind == "category" else ("numbers", "text")
    return (
        f"its column {column!r} has {has}, and that of site {other!r} {have}; correct it, or list "
        f"the column on the server: data.categorical=[{column!r}]"
    )


def write_sums(sums: Mapping[str, Sums], values: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Write the answer to `sums`: columns of numbers have one input each."""
    plain = {name: [part.count[0], part.total[0]] for name, part in sums.items()}
    return {"sums": plain, "values": {name: list(part) for name, part in values.items()}}


def read_sums(
    head: Mapping[str, Any], asked: Kinds, rows: int
) -> tuple[dict[str, Sums], dict[str, tuple[str, ...]]]:
    """Read the answer to `sums`, of a site that trains on so many rows."""
    numbers = [name for name, kind in asked.items() if kind == "number"]
    categories = [name for name, kind in asked.items() if kind == "category"]
    sums = _read_entries(head.get("sums"), numbers, lambda entry: _read_sum(entry, rows))
    return sums, _read_entries(head.get("values"), categories, _read_values)


def read_squares(head: Mapping[str, Any], sums: Mapping[str, Sums]) -> dict[str, float]:
    """Read the answer to `squares`, of a site that sent these sums."""
    squares = _read_entries(head.get("squares"), list(sums), _read_number)
    for name, square in squares.items():
        if not 0.0 <= square <= sums[name].count[0] * (2.0 * _LARGEST) ** 2:
            raise ValueError(f"{square} is no sum of squares of the column {name!r}")
    return squares


def read_means(plain: Any, allowed: list[str]) -> dict[str, float]:
    """Read the means that a server sends."""
    if not isinstance(plain, Mapping) or not plain.keys() <= set(allowed):
        raise ValueError("the server has means of other columns than it may ask for")
    return _read_entries(plain, list(plain), _read_number)


def _read_entries(plain: Any, names: list[str], read: Callable[[Any], _Entry]) -> dict[str, _Entry]:
    """Read one entry for each name, and no others."""
    if not isinstance(plain, Mapping) or plain.keys() != set(names):
        raise ValueError("it answered for other columns than those it was asked about")
    return {name: read(plain[name]) for name in names}


def _read_sum(plain: Any, rows: int) -> Sums:
    if not isinstance(plain, list) or len(plain) != 2:
        raise ValueError(f"{plain!r:.40} is no count with a sum")
    count, total = _read_count(plain[0]), _read_number(plain[1])
    if count > rows:
        raise ValueError(f"{count} values of a column in {rows} rows")
    if abs(total) > count * _LARGEST:
        raise ValueError(f"{total} is no sum of {count} numbers")
    return Sums((count,), (total,))


def _read_values(plain: Any) -> tuple[str, ...]:
    if not isinstance(plain, list) or len(plain) > MOST_VALUES:
        raise ValueError(f"a category has {MOST_VALUES:,} values at most")
    return tuple(map(_read_text, plain))


def _read_text(plain: Any) -> str:
    if not isinstance(plain, str) or not 0 < len(plain) <= _LONGEST:
        raise ValueError(f"names and values of columns are text of up to {_LONGEST} letters")
    return plain


def _read_number(plain: Any) -> float:
    if type(plain) not in (int, float) or not math.isfinite(plain):
        raise ValueError(f"{plain!r:.40} is not a finite number")
    return float(cast(float, plain))


def _read_count(plain: Any) -> int:
    if type(plain) is not int or not 0 <= plain < 2**53:
        raise ValueError(f"{plain!r:.40} is not a number of rows")
    return plain
