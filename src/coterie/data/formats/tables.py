"""Tables in files: CSV with a header, and Parquet by the extra `parquet`."""

import csv
from collections.abc import Iterator
from pathlib import Path

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import quote
from coterie.data.formats.locate import check_file
from coterie.data.table import Table, find_twice, make_table, parse_number

ENDINGS = (".csv", ".parquet")


def read(path: Path, origin: str = "", site: str = "") -> Table:
    """Read a table; errors about its cells begin with `origin`, or with the path.

    Those of a table with the column `site` begin with the site of the row.

    Rows are counted as a spreadsheet shows them: the header of a CSV file is row 1. Those of a
    Parquet file, which has none, count from 0.
    """
    check_file(path)
    reader = _read_parquet if path.suffix.lower() == ".parquet" else _read_csv
    return reader(path, origin, site)


def _read_csv(path: Path, origin: str, site: str) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            header, rows, lines = _parse(path, stream)
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read ({error}); write it as UTF-8 CSV") from error
    cells = list(zip(*rows, strict=True))
    return make_table(dict(zip(header, cells, strict=True)), lines, origin or str(path), site)


def _parse(path: Path, stream: Iterator[str]) -> tuple[list[str], list[list[str]], list[int]]:
    reader = csv.reader(stream, skipinitialspace=True)
    header = [name.strip() for name in next(reader, [])]
    _check_header(path, header)
    rows, lines = [], []
    for cells in reader:
        if not cells:  # a blank line
            continue
        if len(cells) != len(header):
            raise DataError(
                f"{path}:{reader.line_num} has {len(cells)} cells, and the header {len(header)}; "
                "make them equal"
            )
        rows.append(cells)
        lines.append(reader.line_num)
    if not rows:
        raise DataError(f"{path} has no row below its header; add samples")
    return header, rows, lines


def _check_header(path: Path, header: list[str]) -> None:
    if not header:
        raise DataError(f"{path} is empty; begin with a header, a name a column")
    if all(parse_number(name) is not None for name in header):
        raise DataError(f"{path}:1 has numbers only; begin with a header, a name a column")
    if len(header) == 1 and ";" in header[0]:
        raise DataError(f"{path}:1 is separated by semicolons; separate cells by commas")
    for position, name in enumerate(header):
        if not name:
            raise DataError(
                f"{path}:1: column {position + 1} has no name; name it, or write the file without "
                "an index"
            )
    if twice := find_twice(header):
        raise DataError(f"{path}:1 has two columns {quote(twice)}; rename one")


def _read_parquet(path: Path, origin: str, site: str) -> Table:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ConfigError(
            f"{path}: a Parquet file needs the package pyarrow: pip install 'coterie[parquet]'"
        ) from None
    try:
        stored = parquet.read_table(path)
    except (OSError, ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as a Parquet file ({reason})") from error
    names = stored.column_names
    if not stored.num_rows:
        raise DataError(f"{path} has no rows; add samples")
    if twice := find_twice(names):
        raise DataError(f"{path} has two columns {quote(twice)}; rename one")
    columns = {name: stored.column(name).to_pylist() for name in names}
    return make_table(columns, range(stored.num_rows), origin or str(path), site)
