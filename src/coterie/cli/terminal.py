"""Text on a terminal: long lines end at words. Elsewhere lines of text are left whole.

Tables fit the terminal, and 80 columns elsewhere.
"""

import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from coterie.core.formatting import align_columns

_NARROWEST = 20  # columns of the last cell; below that its further lines begin near the margin
_MARGIN = 4


def find_width() -> int:
    """Return the columns that a table may have: $COLUMNS, else those of the terminal, else 80."""
    return shutil.get_terminal_size().columns


def echo(text: str, *, err: bool = False) -> None:
    """Print a line; on a terminal it is broken between words."""
    stream = sys.stderr if err else sys.stdout
    if stream.isatty():
        text = _wrap(text, find_width())
    typer.echo(text, err=err)


def echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Print cells in aligned columns; the last column is broken between words."""
    indent = sum(max(map(len, column)) + 2 for column in list(zip(*rows, strict=True))[:-1])
    width = find_width()
    indent = indent if width - indent >= _NARROWEST else _MARGIN
    for line in align_columns(rows).splitlines():
        typer.echo(_wrap(line, width, " " * indent))


def _wrap(text: str, width: int, indent: str = "") -> str:
    wrapped = textwrap.wrap(
        text,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return "\n".join(wrapped) or text
