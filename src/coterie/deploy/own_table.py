"""The table of one site: read and split as in a simulation, encoded once the columns are agreed on.

Before that only sums leave it: how many cells a column has and their sum, then the sum of squared
differences from the mean of all sites. Which of them may be asked for follows from the
configuration, never from the request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coterie.core.formatting import list_first
from coterie.data import datasets, labels
from coterie.data.datasets import Dataset, Raw
from coterie.data.encoding import (
    ColumnKind,
    TableColumn,
    encode,
    find_known_kinds,
    is_missing,
    join_values,
    list_values,
    read_inputs,
)
from coterie.data.labels import ClassNames
from coterie.data.sources import table as source
from coterie.data.subset import hold_out
from coterie.data.table import Table, TableOptions
from coterie.data.table_sites import check_missing, divide_rows
from coterie.data.table_statistics import add_squares, add_up, measure_site
from coterie.deploy.columns import (
    ColumnCard,
    TableCard,
    needs_squares,
    needs_sums,
    read_means,
    write_sums,
)
from coterie.deploy.handshake import Declined


@dataclass(frozen=True, eq=False)
class OwnTable:
    """The rows of a site with numbered labels, before they are inputs of a network."""

    options: TableOptions
    train: Table
    test: Table
    y_train: np.ndarray
    y_test: np.ndarray
    class_names: ClassNames
    kinds: Mapping[str, ColumnKind | None]  # as far as this site can tell
    notes: tuple[str, ...]  # on missing cells

    @classmethod
    def read(cls, root: str, options: TableOptions) -> "OwnTable":
        """Read a site's rows; a fifth of every class is held out if it brings no test rows."""
        site = source.read_site(root, options)
        whole = [part.table for part in (site, site.test) if part]
        kinds = find_known_kinds(whole, options.categorical)
        notes = check_missing(whole, kinds, options)
        train, test = divide_rows(site, kinds, options, lambda index, y: hold_out(y))
        y_train, y_test, names = labels.encode(train.y, test.y)
        return cls(options, train.table, test.table, y_train, y_test, names, kinds, notes)

    def describe(self) -> TableCard:
        """Tell the names and kinds of its columns."""
        bare = {name: bool(is_missing(self.train.columns[name]).all()) for name in self.kinds}
        columns = (ColumnCard(name, kind, bare[name]) for name, kind in self.kinds.items())
        return TableCard(len(self.train), tuple(columns))

    def add_up(self, asked: Any) -> dict[str, Any]:
        """Answer `sums`: values of categories, count and sum of columns of numbers."""
        if not isinstance(asked, Mapping):
            raise Declined("the server asks for no columns")
        sums, values = {}, {}
        for name, kind in asked.items():
            if kind == "category" and self._may_be(name, "category"):
                values[name] = join_values(name, [list_values(name, self.train)])
            elif kind == "number" and needs_sums(self.options) and self._may_be(name, "number"):
                sums[name] = add_up(self._read_numbers(name))
            else:
                raise Declined(f"the server asks for {kind!r:.40} in the column {name!r:.80}")
        return write_sums(sums, values)

    def add_squares(self, means: Any) -> dict[str, Any]:
        """Answer `squares`: sums of squared differences from the means of all sites."""
        numbers = [name for name in self.kinds if self._may_be(name, "number")]
        read = read_means(means, numbers if needs_squares(self.options) else [])
        squares = {
            name: add_squares(self._read_numbers(name), np.array([mean]))[0]
            for name, mean in read.items()
        }
        return {"squares": squares}

    def _read_numbers(self, name: str) -> np.ndarray:
        """Read a column of numbers of the rows to train on."""
        return read_inputs(TableColumn(name, "number"), self.train)

    def _may_be(self, name: str, kind: ColumnKind) -> bool:
        """Whether a column is of this kind, or has no value that would tell."""
        return name in self.kinds and self.kinds[name] in (kind, None)

    def encode(self, plain: Sequence[Mapping[str, Any]], known_as: str, name: str) -> Dataset:
        """Encode the rows by the columns of the federation, which calls this site `known_as`.

        Where each site is standardised by itself, its statistics go under its own `name`.
        """
        columns = tuple(map(TableColumn.from_plain, plain))
        if {column.name for column in columns} != self.kinds.keys():
            have = list_first(list(self.kinds))
            raise Declined(f"the columns of the run are not those of this table: {have}")
        if self.options.standardise == "site":
            columns = tuple(self._measure(column, known_as, name) for column in columns)
        x, x_test = (encode(columns, part, name) for part in (self.train, self.test))
        raw = Raw(
            *(x, self.y_train, x_test, self.y_test, len(self.class_names)),
            class_names=self.class_names,
            columns=tuple(column.to_plain() for column in columns),
            notes=self.notes,
        )
        return datasets.store("table", raw)

    def encode_tests(self, plain: Sequence[Mapping[str, Any]]) -> Dataset:
        """Encode the rows for a server, which tests with them and is no site."""
        if self.options.standardise == "site":
            raise Declined("data.standardise = 'site' has no mean for rows of the server")
        return self.encode(plain, "", "")

    def _measure(self, column: TableColumn, known_as: str, name: str) -> TableColumn:
        """Take this site's own statistics; of all sites where it has no value of its own."""
        if column.kind != "number" or column.mean is None or column.deviation is None:
            return column
        given = (part.get(known_as, (np.nan,)) for part in (column.mean, column.deviation))
        inputs = read_inputs(column, self.train)
        mean, deviation = measure_site(inputs, *map(np.array, given))
        if np.isnan(mean).any():
            raise Declined(f"the run has no mean of the column {column.name!r}, and this site none")
        filling = None if column.filling is None else {name: mean}
        return replace(column, mean={name: mean}, deviation={name: deviation}, filling=filling)
